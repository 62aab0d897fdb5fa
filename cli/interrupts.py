"""Interrupts: Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) end a job in good order, wherever they meet it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

State = TypeVar("State")

_KINDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BOUNCE = 0.5
"""Seconds after an interrupt in which others are the same one: the key bounced, or a shell and a terminal both sent it.
They would meet the code that puts things in order."""
_asked = False
"""Somebody asked for the end."""
_last = -_BOUNCE
"""Time of the last interrupt that was raised, in seconds of `time.monotonic`."""


def _interrupt(*_: Any) -> None:
    global _asked, _last
    _asked, before, _last = True, _last, time.monotonic()
    if _last - before >= _BOUNCE:
        raise KeyboardInterrupt


_interrupt.ends_the_process = True  # type: ignore[attr-defined]  # compilers need not be waited for


def _heed() -> None:
    global _asked, _last
    _asked, _last = False, -_BOUNCE
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored: nohup, say
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def interruptible(process: bool) -> Iterator[None]:
    """From here on SIGTERM, by which schedulers ask, and SIGHUP are as good as Ctrl-C: all raise KeyboardInterrupt.
    Afterwards signals mean what they meant before. For a ``process`` that is about to end, they mean its end; if it was
    interrupted, they are ignored, so that its exit code says so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.getsignal(kind) for kind in _KINDS}
    _heed()
    try:
        yield
    finally:
        for kind, handler in before.items():
            if process and (_asked or handler is signal.default_int_handler):
                handler = signal.SIG_IGN if _asked else signal.SIG_DFL
            signal.signal(kind, handler)
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
