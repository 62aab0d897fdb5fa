"""Compile loops in the background, while libraries that give the same bits do their work.

`pipelines.engine.compile_ahead` starts it for the loops of decoders and of the JPEG encoder. While a loop is being
compiled (`awaited`), its decoder is not ready: later decoders of the table decode its images, and Pillow encodes JPEGs.
When the loop is compiled and stored, the next call loads it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from contextlib import suppress

from .signatures import Loop

_NICENESS = 10
"""Number to add to this process's niceness for the process that compiles in the background."""
_awaited: list[Loop] = []
"""Numba functions that the background process has not compiled yet. Decoders of all pipelines ask for them."""


def awaited(*modules: str) -> bool:
    """Return whether any Numba function of ``modules`` is still being compiled in the background. Module names lack the
    package's name."""
    return bool(_awaited) and any(loop.module in modules for loop in tuple(_awaited))


def compile_behind(wanted: Iterable[Loop]) -> None:
    """Compile the Numba functions ``wanted`` in the background, in this order, by one process of low priority. It ends
    with this process."""
    from .ahead import Compiler

    todo = list(wanted)
    worker = Compiler({}, _NICENESS)

    def run() -> None:
        try:
            with suppress(OSError):  # for example the limit on processes is reached
                worker.start()
                # if it fails, the first caller of the loop compiles it
                while todo and worker.compile(todo[0]) is not None:
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
