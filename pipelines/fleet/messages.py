"""Messages between a driver and its workers: JSON, a line each, over a socket. The end of a process is the end of its
socket, so nobody has to watch anybody."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

Message = dict[str, Any]
PATIENCE = 60.0
"""Seconds in which workers that were told to stop may publish what is complete."""
_BLOCK = 1 << 16


class MessageSocket:
    """One end of a socket. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._left = b""
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False where nobody is there any more."""
        text = json.dumps(message, default=str).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self.sock.sendall(text)
            return True
        return False

    def receive(self) -> Iterator[Message]:
        """Messages as they come, to the end of the other side."""
        while (found := self.ready()) is not None:
            yield from found

    def ready(self) -> list[Message] | None:
        """The messages that are there, after the next bytes came; None at the end."""
        try:
            block = self.sock.recv(_BLOCK)
        except OSError:
            return None
        if not block:
            return None
        *lines, self._left = (self._left + block).split(b"\n")
        return [json.loads(line) for line in lines]

    def fileno(self) -> int:
        """For selectors; -1 after `close`."""
        return self.sock.fileno()

    def close(self) -> None:
        """Let go of the socket."""
        self.sock.close()
