"""Shared memory that a worker process fills and the parent process reads."""

from __future__ import annotations

import errno
import mmap
import os
import socket
from multiprocessing.connection import Connection

from ....ops.storage.descriptors import Descriptor


class Block:
    """Anonymous shared memory (memfd), mapped here and in another process. The system frees it with the last process
    that holds it, however that process ends. (Named shared memory is in `/dev/shm`, which has 64 MB in a container, and
    writing beyond that ends a process with SIGBUS.)"""

    def __init__(self, file: Descriptor) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    @staticmethod
    def new() -> Block:
        """Return a new block of 0 bytes."""
        return Block(Descriptor(os.memfd_create("dali-run external_source", os.MFD_CLOEXEC)))

    @property
    def size(self) -> int:
        """Number of bytes mapped in this process."""
        return 0 if self._map is None else len(self._map)

    def grow(self, nbytes: int) -> None:
        """Grow the block to at least ``nbytes``. Raises MemoryError if the system has too little memory. The memory is
        claimed here, because a later write could not report an error."""
        if nbytes <= self.size:
            return
        try:
            os.posix_fallocate(self._file.number, 0, nbytes)
        except OSError as e:
            raise MemoryError(f"no memory for {nbytes:,} bytes of data for the parent process: {e.strerror}") from None
        self._map = mmap.mmap(self._file.number, nbytes)

    def view(self) -> memoryview:
        """Return the block's bytes at its present size."""
        size = os.fstat(self._file.number).st_size
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file.number, size)
        return memoryview(self._map)

    def close(self) -> None:
        """Release the block in this process; other processes keep it."""
        self._file.close()
        self._map = None

    def send(self, connection: Connection) -> None:
        """Share the block with the process at the other end of ``connection``, which must call `receive` next."""
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            socket.send_fds(channel, [b"b"], [self._file.number])

    @staticmethod
    def receive(connection: Connection) -> Block:
        """Return the block that the process at the other end of ``connection`` sends. Raises EOFError if that process
        has ended, OSError if this process may not open more files."""
        with socket.socket(fileno=os.dup(connection.fileno())) as channel:
            message, files, _, _ = socket.recv_fds(channel, 1, 1)
        if not message:
            raise EOFError
        if not files:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Block(Descriptor(files[0]))
