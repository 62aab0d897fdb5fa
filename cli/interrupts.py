"""Interrupts: Ctrl-C and SIGTERM end a job in good order, wherever they meet it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, TypeVar

State = TypeVar("State")


def heeded(report: Callable[[State], None]) -> Callable[[State], None]:
    """``report``, to be called after every batch, with SIGTERM, by which schedulers ask, as good as Ctrl-C from here
    on. An exception that arrives in the midst of a library's callback or import may be lost there, and the job would
    run to its end: the next call raises it again."""
    asked = False

    def interrupt(*_: Any) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored: nohup, say
        signal.signal(signal.SIGINT, interrupt)

    def report_unless_interrupted(state: State) -> None:
        if asked:
            raise KeyboardInterrupt
        report(state)

    return report_unless_interrupted
