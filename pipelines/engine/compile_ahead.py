"""Compile ahead: what a plan needs of loops that are kept nowhere yet is compiled on all cores before the job starts.

Where the wheel brought compiled code, or an earlier job has compiled, nothing happens here. What is not listed, or
missing from the list, is compiled when it is first called.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from ...ops.compiled.listed import needed_by
from ...ops.compiled.times import tell, times
from ..compile.plan import Plan
from ..cores import usable_cores
from ..wording import count, duration

_WORTH_IT = 4.0
"""Seconds of compiling that are worth starting processes for."""
_BETWEEN_LINES = 5.0
"""Seconds."""


def clients_of(plan: Plan, writer: str | None = None) -> set[str]:
    """Operators of ``plan`` that run on the host, and its writer, by the names that the list of loops has for them."""
    gpu = plan.target.device == "gpu"
    names = {node.op.name for node in plan.graph.nodes if not (gpu and node.stage != "cpu")}
    return names | ({f"writers.{writer}"} if writer else set())


def compile_ahead(clients: Collection[str], processes: int | None = None) -> None:
    """Compile what these operators and writers commonly need and is kept nowhere, and tell of it now and then.

    Nothing that goes wrong here is this function's to report: whoever calls a loop that is missing compiles it."""
    wanted = needed_by(clients)
    if not wanted:
        return
    from ...ops.compiled import store
    from ...ops.compiled.ahead import compile_all, missing

    todo = missing(wanted)
    if sum(loop.seconds for loop in todo) < _WORTH_IT or store.writable_folder() is None:
        return
    processes = processes or usable_cores()
    began = said = time.perf_counter()
    compiled = 0

    def done(*_: object) -> None:
        nonlocal compiled, said
        compiled += 1
        if (now := time.perf_counter()) - said > _BETWEEN_LINES:
            said = now
            tell(f"compiled {compiled} of {len(todo)} loops, {duration(now - began)}")

    times.announced = True
    tell(f"compiling {count(len(todo), 'loop')} for this processor, once on this machine "
         f"(in {min(processes, len(todo))} processes; dali-run warm does it ahead)")  # fmt: skip
    compile_all(todo, processes, done)
    times.seconds += time.perf_counter() - began
    tell(f"compiled {count(compiled, 'loop')} in {duration(time.perf_counter() - began)}")
