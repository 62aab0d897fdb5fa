"""Interrupts: Ctrl-C and SIGTERM end a job in good order, wherever they meet it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

State = TypeVar("State")

_asked = False
"""Somebody asked for the end."""


def _interrupt(*_: Any) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt


_interrupt.ends_the_process = True  # type: ignore[attr-defined]  # compilers need not be waited for


def _heed() -> None:
    global _asked
    _asked = False
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored: nohup, say
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def interruptible(process: bool) -> Iterator[None]:
    """From here on SIGTERM, by which schedulers ask, is as good as Ctrl-C: both raise KeyboardInterrupt. Afterwards
    signals mean what they meant before; for a ``process`` that is about to end, its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    _heed()
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if process and handler is signal.default_int_handler else handler)
        # An interrupt that met code made of text (dataclasses and named tuples are, while modules are imported) leaves
        # a mark in the interpreter, which then, under `python -m`, ends by SIGINT whatever its exit code is. Code made
        # of text that runs through takes the mark away.
        exec("")


def heeded(report: Callable[[State], None]) -> Callable[[State], None]:
    """``report``, to be called after every batch. An interrupt that arrives in the midst of a library's callback or
    import may be lost there, and the job would run to its end: the next call raises it again."""
    if signal.getsignal(signal.SIGTERM) is not _interrupt:
        _heed()

    def report_unless_interrupted(state: State) -> None:
        if _asked:
            raise KeyboardInterrupt
        report(state)

    return report_unless_interrupted
