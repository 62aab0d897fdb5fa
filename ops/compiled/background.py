"""Compiles loops in the background, while libraries that give the same bits do their work.

`compile_ahead` starts it for decoders' loops. A row of the decoder table whose loop is `awaited` is not ready: the rows
after it take its images. Once the loop is compiled and kept, the row loads it when it is next called.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from contextlib import suppress

from .listed import Loop

_NICENESS = 10
"""By which the priority of the compiler's process is below that of this one."""
_awaited: list[Loop] = []


def awaited(*modules: str) -> bool:
    """Whether loops of ``modules`` (without the package's own name) are being compiled in the background."""
    return bool(_awaited) and any(loop.module in modules for loop in tuple(_awaited))


def compile_behind(wanted: Iterable[Loop]) -> None:
    """Compile loops in this order, in one process of low priority, which this process ends when it ends."""
    from .ahead import Compiler

    todo = list(wanted)
    worker = Compiler({}, _NICENESS)

    def run() -> None:
        try:
            with suppress(OSError):  # no more processes, say
                worker.start()
                while todo and worker.compile(todo[0]) is not None:  # if it fails, its first caller compiles it
                    _awaited.remove(todo.pop(0))
        finally:
            atexit.unregister(worker.end)
            worker.end()
            for loop in todo:
                _awaited.remove(loop)

    _awaited.extend(todo)
    atexit.register(worker.end)
    threading.Thread(target=run, name="compile", daemon=True).start()


os.register_at_fork(after_in_child=_awaited.clear)
