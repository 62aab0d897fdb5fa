"""Send messages between a driver and its workers over sockets: one line of JSON per message.

A socket ends when its process ends, so no process needs to be monitored. Used by the driver, the fork server and the
workers.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ...ops.storage.json_text import parse_json

Message = dict[str, Any]
PATIENCE = 60.0
"""Maximum seconds that workers have to publish their complete shards after they were told to stop."""
_BLOCK = 1 << 16


class MessageSocket:
    """One end of a socket between a driver, a fork server or a worker, which carries JSON messages. Any thread may
    send; one thread receives. Whoever creates it closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._partial_line = b""
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; return False if the process on the other side has ended."""
        text = json.dumps(message, default=str).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self.sock.sendall(text)
            return True
        return False

    def receive(self) -> Iterator[Message]:
        """Yield the messages of the process on the other side of the socket, until that process ends."""
        while (messages := self.ready()) is not None:
            yield from messages

    def ready(self) -> list[Message] | None:
        """Wait for the next bytes, and return the messages that are then complete. Return None if the process on the
        other side has ended."""
        try:
            block = self.sock.recv(_BLOCK)
        except OSError:
            return None
        if not block:
            return None
        *lines, self._partial_line = (self._partial_line + block).split(b"\n")
        return [parse_json(line) for line in lines]

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for selectors; -1 after `close`."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
