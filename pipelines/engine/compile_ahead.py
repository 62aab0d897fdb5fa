"""Compile the loops that a plan needs and that are cached nowhere yet, on all cores, before the plan runs.

An engine does this for its plan before anything else, a job for its plan and writer, and other code if it runs a plan
without an engine. It can take a minute, so a missing data set is reported first.

If the wheel contains compiled code, or an earlier job has compiled the loops, nothing happens here. A loop that is not
in the package's list of loops is compiled when it is first called.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ...ops.compiled.listed import needed_by
from ...ops.compiled.signatures import Loop
from ...ops.compiled.store import announce_once
from ...ops.compiled.times import tell, times
from ..compile.plan import Plan
from ..cores import usable_cores
from ..wording import count, duration

_MIN_SECONDS = 4.0
"""Minimum estimated compile time of all missing loops, in seconds, for which processes are started to compile them."""
_SECONDS_BETWEEN_LINES = 30.0
"""Seconds between two lines that report the progress of compiling."""
_done: set[str] = set()
"""Names of the operators and writers whose loops this process has already compiled ahead."""


def clients_of(plan: Plan, writer: str | None = None) -> set[str]:
    """Return the names of the plan's host operators and of the writer, as in the list of compiled loops."""
    gpu = plan.target.device == "gpu"
    names = {node.op.loop_client for node in plan.graph.nodes if not (gpu and node.stage != "cpu")}
    return names | ({f"writers.{writer}"} if writer else set())


def compile_ahead(
    clients: Collection[str], processes: int | None = None, *, check: Callable[[], object] = lambda: None,
    background: bool = True,
) -> None:  # fmt: skip
    """Compile the native loops that these operators and writers usually need and that are not cached; print progress. A
    process does this once for each of them. With ``background``, loops that a library can replace meanwhile
    are compiled in the background. ``check()`` is called before compiling begins, and its exceptions propagate; it is
    for callers that open their data sets in another process. Other failures are ignored: a missing loop is compiled
    when it is called."""
    new = set(clients) - _done
    if not new:
        return
    missing_loops = _to_compile(needed_by(new))
    if missing_loops:
        check()
    _done.update(new)
    behind = [loop for loop in missing_loops if background and _can_wait(loop)]
    if now := [loop for loop in missing_loops if loop not in behind]:
        with suppress(OSError):  # for example if no process can be started
            _compile(now, processes or usable_cores())
    if behind:
        from ...ops.compiled.background import compile_behind

        compile_behind(behind)


def _can_wait(loop: Loop) -> bool:
    """Return whether the loop may be compiled in the background. The loop of a decoder or encoder may, if a library
    gives the same result until the loop is compiled."""
    return loop.module.startswith("ops.codecs.") and loop.function in ("decode_images", "encode_images")


def _to_compile(loops: Sequence[Loop]) -> Sequence[Loop]:
    """Return those of ``loops`` that are not cached yet. Return none if starting processes to compile them does not
    pay, or is impossible."""
    if sum(loop.seconds for loop in loops) < _MIN_SECONDS or not _can_start_python():
        return []
    from ...ops.compiled import store
    from ...ops.compiled.ahead import missing

    missing_loops = missing(loops)
    pays = sum(loop.seconds for loop in missing_loops) >= _MIN_SECONDS and store.writable_folder() is not None
    return missing_loops if pays else []


def _can_start_python() -> bool:
    """Return whether this program is the Python interpreter itself. If a program embeds Python, as some servers do, a
    new process would start that program again."""
    return "python" in Path(sys.executable or "").name.lower()


def _compile(missing_loops: Sequence[Loop], processes: int) -> None:
    from ...ops.compiled.ahead import Answer, compile_all

    began = printed_at = time.perf_counter()
    compiled, processes = 0, min(processes, len(missing_loops))

    def done(loop: Loop, answer: Answer) -> None:
        nonlocal compiled, printed_at
        if "error" in answer:
            tell(f"a CPU kernel could not be compiled ahead: {loop.module}.{loop.function}: {answer['error']}")
            return
        compiled += 1
        if (now := time.perf_counter()) - printed_at > _SECONDS_BETWEEN_LINES:
            printed_at = now
            tell(f"compiled {compiled} of {len(missing_loops)} CPU kernels, {duration(now - began)}")

    estimate = sum(loop.seconds for loop in missing_loops) / processes
    times.announced = True
    if announce_once() or estimate > _SECONDS_BETWEEN_LINES:
        tell(f"compiling {count(len(missing_loops), 'CPU kernel')} for this machine: about {estimate:.0f} s on "
             f"{count(processes, 'core')}. They are kept for later runs; `dali-run warm` compiles ahead")  # fmt: skip
    compile_all(missing_loops, processes, done)
    times.waited(time.perf_counter() - began)
