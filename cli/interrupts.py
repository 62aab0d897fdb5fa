"""Interrupts: Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) end a job in good order, whatever it is doing."""

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
"""Seconds after an interrupt during which further ones are ignored, because they would interrupt the cleanup. The key
may bounce, or both shell and terminal may send the signal."""


class _Interrupts:
    """Interrupts of this process since its signal handlers were installed."""

    arrived = False
    last = -_BOUNCE
    """Time at which the last interrupt arrived, in seconds of `time.monotonic`."""


_interrupts = _Interrupts()


def _interrupt(*_: Any) -> None:
    before, _interrupts.last = _interrupts.last, time.monotonic()
    _interrupts.arrived = True
    if _interrupts.last - before >= _BOUNCE:
        raise KeyboardInterrupt


# A mark for code that waits for compilers: it need not wait.
_interrupt.ends_the_process = True  # type: ignore[attr-defined]


def _heed() -> None:
    _interrupts.arrived, _interrupts.last = False, -_BOUNCE
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # SIGHUP is ignored under nohup
        signal.signal(signal.SIGHUP, _interrupt)
    # otherwise SIGINT is to be ignored, for example under nohup
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def interruptible(process: bool) -> Iterator[None]:
    """Context manager in which SIGTERM, which schedulers send, and SIGHUP raise KeyboardInterrupt like Ctrl-C.
    Afterwards the previous handlers apply again. If ``process``, the process is about to exit: signals after the body
    end it, unless it was interrupted; then they are ignored, so that its exit code shows the interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.getsignal(kind) for kind in _KINDS}
    _heed()
    try:
        yield
    finally:
        for kind, handler in before.items():
            if process and (_interrupts.arrived or handler is signal.default_int_handler):
                handler = signal.SIG_IGN if _interrupts.arrived else signal.SIG_DFL
            signal.signal(kind, handler)
        # An interrupt inside code compiled from a string (dataclasses and named tuples, during imports) sets a flag in
        # the interpreter, which under `python -m` then ends by SIGINT whatever its exit code is. Running other compiled
        # text clears the flag.
        exec("")


def heeded(report: Callable[[State], None]) -> Callable[[State], None]:
    """Return ``report``, a function to be called after every batch, with a check for interrupts. An interrupt inside a
    library's callback or import may be lost, and the job would continue: the next call of the function raises it
    again."""
    if signal.getsignal(signal.SIGTERM) is not _interrupt:
        _heed()

    def report_unless_interrupted(state: State) -> None:
        if _interrupts.arrived:
            raise KeyboardInterrupt
        report(state)

    return report_unless_interrupted
