"""File descriptors that are closed with their last reference."""

from __future__ import annotations

import os
from collections.abc import Callable


class Descriptor:
    """Open file descriptor that is closed with the last reference to this object, if not before. So an object that is
    only partly constructed, or dropped, leaves no file open; with a plain number it would."""

    def __init__(self, number: int) -> None:
        """Take ownership of ``number``, an open descriptor as `os.open` returns it."""
        self.number = number
        """The file descriptor as an integer; -1 after `close`."""

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file. Closing twice is allowed."""
        if self.number >= 0:
            number, self.number = self.number, -1
            close(number)  # a default argument stays available until the last object is deleted; modules do not

    __del__ = close
