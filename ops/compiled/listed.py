"""The list of loops that are compiled ahead of time: `loops.json`, written by recording which loops jobs and tests
call.

One line per loop: its module, its function, its argument types as text (`signatures`), the operators and writers that
called it while a job warmed up, and the seconds that compiling it took, which decide the order of compilation.

To add what is new, run jobs or tests with DALI_RUN_RECORD_LOOPS=FILE (kernels: DALI_RUN_RECORD_KERNELS=FILE), then
`python -m dali_run.ops.compiled.listed FILE` (kernels: `binaries`). A loop or kernel that is not listed is compiled at
its first call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from .signatures import Loop

FILE = Path(__file__).with_name("loops.json")


def of_line(line: str) -> Loop:
    """Parse a line of loops.json."""
    module, function, types, clients, seconds = json.loads(line)
    return Loop(module, function, tuple(types), frozenset(clients), seconds)


@cache
def loops() -> tuple[Loop, ...]:
    """Return all Numba functions that loops.json lists."""
    lines = FILE.read_text().splitlines()[1:-1]  # without the brackets of the JSON array, which has one loop per line
    return tuple(of_line(line.rstrip(",")) for line in lines)


def write(found: Iterable[Loop]) -> None:
    """Overwrite loops.json with the Numba functions ``found``."""
    lines = sorted(loop.line() for loop in found)
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def needed_by(clients: Collection[str]) -> list[Loop]:
    """Return the listed Numba functions that ``clients`` (operators and writers) call in common jobs, slowest to
    compile first."""
    wanted = set(clients)
    return sorted((loop for loop in loops() if loop.clients & wanted), key=lambda loop: -loop.seconds)


def main(recorded: Iterable[str]) -> None:
    """Add Numba functions to loops.json: those in the files ``recorded``, written with DALI_RUN_RECORD_LOOPS set."""
    found = {loop: loop for loop in loops()}
    for name in recorded:
        for line in Path(name).read_text().splitlines():
            new = of_line(line)
            old = found.get(new, new)
            found[new] = Loop(new.module, new.function, new.types, old.clients | new.clients, old.seconds)
    write(found.values())


if __name__ == "__main__":
    main(sys.argv[1:])
