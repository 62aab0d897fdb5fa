"""Memory that a worker process fills and its owner reads."""

from __future__ import annotations

import errno
import mmap
import os
import socket
from multiprocessing.connection import Connection

from ....ops.storage.descriptors import Descriptor


class Block:
    """Memory of a file that has no name and lies in no file system, here and in another process. It goes with the last
    process that holds it, however that ends. (Shared memory with a name lies in `/dev/shm`, which has 64 MB in a
    container, and whoever writes beyond is ended by SIGBUS.)"""

    def __init__(self, file: Descriptor) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    @staticmethod
    def new() -> Block:
        """An empty one."""
        return Block(Descriptor(os.memfd_create("dali-run external_source", os.MFD_CLOEXEC)))

    @property
    def size(self) -> int:
        """Bytes that it has in this process."""
        return 0 if self._map is None else len(self._map)

    def grow(self, nbytes: int) -> None:
        """Have at least so many bytes. Raises MemoryError where the system has no memory for them: now, and not as they
        are written, where nobody could be told."""
        if nbytes <= self.size:
            return
        try:
            os.posix_fallocate(self._file.number, 0, nbytes)
        except OSError as e:
            raise MemoryError(
                f"no memory for the {nbytes:,} bytes that go to the parent process: {e.strerror}"
            ) from None
        self._map = mmap.mmap(self._file.number, nbytes)

    def view(self) -> memoryview:
        """Its bytes, as many as it has now."""
        size = os.fstat(self._file.number).st_size
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file.number, size)
        return memoryview(self._map)

    def close(self) -> None:
        """Let go of it; what others hold is theirs."""
        self._file.close()
        self._map = None

    def send(self, connection: Connection) -> None:
        """Give it to the process at the other end, too, which is to `receive` it next."""
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            socket.send_fds(channel, [b"b"], [self._file.number])

    @staticmethod
    def receive(connection: Connection) -> Block:
        """One that was sent. Raises EOFError where the other end is gone, OSError where this process may have no more
        files."""
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            told, files, _, _ = socket.recv_fds(channel, 1, 1)
        if not told:
            raise EOFError
        if not files:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Block(Descriptor(files[0]))
