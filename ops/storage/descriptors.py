"""Descriptors that have an owner."""

from __future__ import annotations

import os
from collections.abc import Callable


class Descriptor:
    """An open file's number. It is closed with the last reference to this, if it was not before: whatever is made half,
    or dropped, leaves no file open. (A number alone is never closed by anybody.)"""

    def __init__(self, number: int) -> None:
        """``number``: what `os.open` and its relatives give."""
        self.number = number
        """-1 after `close`."""

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Let go of the file; twice does no harm."""
        if self.number >= 0:
            number, self.number = self.number, -1
            close(number)  # which is there until the last object goes, as modules are not

    __del__ = close
