"""Compile ahead: what a plan needs of loops that are kept nowhere yet is compiled on all cores before it runs.

An engine does this for its plan before anything else; a job does it with its writer, and whatever runs a plan without
an engine does it, too. It can take a minute, so a data set that is not there is complained of first.

Where the wheel brought compiled code, or an earlier job has compiled, nothing happens here. What is not listed, or
missing from the list, is compiled when it is first called.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ...ops.compiled.listed import Loop, needed_by
from ...ops.compiled.store import announce_once
from ...ops.compiled.times import tell, times
from ..compile.plan import Plan
from ..cores import usable_cores
from ..wording import count, duration

_WORTH_IT = 4.0
"""Seconds of compiling that are worth starting processes for."""
_PATIENCE = 30.0
"""Seconds between two lines about compiling that goes on."""
_asked: set[str] = set()
"""Operators and writers that this process has compiled ahead for."""


def clients_of(plan: Plan, writer: str | None = None) -> set[str]:
    """Operators of ``plan`` that run on the host, and its writer, by the names that the list of loops has for them."""
    gpu = plan.target.device == "gpu"
    names = {node.op.name for node in plan.graph.nodes if not (gpu and node.stage != "cpu")}
    return names | ({f"writers.{writer}"} if writer else set())


def compile_ahead(
    clients: Collection[str], processes: int | None = None, *, check: Callable[[], object] = lambda: None,
    background: bool = True,
) -> None:  # fmt: skip
    """Compile what these operators and writers commonly need and is kept nowhere, and tell of it.

    Decoders' loops that a library can stand in for are compiled behind the work, in the ``background`` unless that is
    False. A process looks for each operator and writer once. ``check()`` is called before anything is compiled, and
    what it raises is raised: for callers that open their data sets in another process. Nothing else that goes wrong
    here is this function's to report: whoever calls a loop that is missing compiles it."""
    new = set(clients) - _asked
    if not new:
        return
    todo = _worth_it(needed_by(new))
    if todo:
        check()
    _asked.update(new)
    behind = [loop for loop in todo if background and _can_wait(loop)]
    if now := [loop for loop in todo if loop not in behind]:
        with suppress(OSError):  # no more processes, say
            _compile(now, processes or usable_cores())
    if behind:
        from ...ops.compiled.background import compile_behind

        compile_behind(behind)


def _can_wait(loop: Loop) -> bool:
    """Whether a library gives the bits of the loop until it is compiled: a decoder of the table that may not be
    ready."""
    return loop.module.startswith("ops.codecs.") and loop.function == "decode_images"


def _worth_it(wanted: Sequence[Loop]) -> Sequence[Loop]:
    """Those of ``wanted`` that are kept nowhere; none where starting processes for them is not worth it, or cannot be
    done."""
    if sum(loop.seconds for loop in wanted) < _WORTH_IT or not _can_start_python():
        return []
    from ...ops.compiled import store
    from ...ops.compiled.ahead import missing

    todo = missing(wanted)
    worth = sum(loop.seconds for loop in todo) >= _WORTH_IT and store.writable_folder() is not None
    return todo if worth else []


def _can_start_python() -> bool:
    """The program is Python, and not one that has Python in it, as servers do: that would be started once more."""
    return "python" in Path(sys.executable or "").name.lower()


def _compile(todo: Sequence[Loop], processes: int) -> None:
    from ...ops.compiled.ahead import Answer, compile_all

    began = said = time.perf_counter()
    compiled, processes = 0, min(processes, len(todo))

    def done(loop: Loop, answer: Answer) -> None:
        nonlocal compiled, said
        if "error" in answer:
            tell(f"a loop could not be compiled ahead: {loop.module}.{loop.function}: {answer['error']}")
            return
        compiled += 1
        if (now := time.perf_counter()) - said > _PATIENCE:
            said = now
            tell(f"compiled {compiled} of {len(todo)} loops, {duration(now - began)}")

    estimate = sum(loop.seconds for loop in todo) / processes
    times.announced = True
    if announce_once() or estimate > _PATIENCE:
        tell(f"compiling {count(len(todo), 'loop')} for this processor, once on this machine: about {estimate:.0f} s "
             f"on {count(processes, 'core')} (dali-run warm does it ahead)")  # fmt: skip
    compile_all(todo, processes, done)
    times.waited(time.perf_counter() - began)
