"""Checksums of files, block by block: any thread may hash any block, in any order."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from .scatter_gather import IoVector

STEP = 8 << 20
"""Number of bytes that a thread hashes in one call."""
BLOCK = 1 << 18
"""Size in bytes of a block, each of which is a leaf of the tree of checksums. Part of the format: with another size,
the same file has another tree."""
_U8 = npt.NDArray[np.uint8]
_own = threading.local()


class Checksums:
    """Computes a file's CRC-32C and its tree of checksums: the SHA-256 of the XXH64 of each block, eight bytes each,
    little-endian.

    Both detect damage, not forgery. Bytes are passed in order to `extend`, or whole blocks are read from the file
    (`take`), by several threads at once; blocks that were changed are hashed again.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, npt.NDArray[np.uint32], npt.NDArray[np.uint64]]] = []
        """Ranges of hashed blocks, each as (number of the first block, bytes, CRC-32C of each block, XXH64 of each
        block). For a block in several ranges, the last one counts."""
        self._ended = 0
        """Number of complete blocks of the file that `extend` has hashed."""
        self._state = np.zeros(6, np.uint64)
        self._rest = np.empty(32, np.uint8)
        """Last bytes (fewer than 32) of the incomplete block; see `checksums_cpu.extend`."""

    def extend(self, data: bytes | _U8 | IoVector) -> None:
        """Hash ``data``, the file's next bytes."""
        from . import checksums_cpu

        if isinstance(data, IoVector):
            table = data.table
        else:
            array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
            table = np.array([[array.ctypes.data, len(array)]], np.int64)
        most = len(data) // BLOCK + 1
        crcs, leaves = np.empty(most, np.uint32), np.empty(most, np.uint64)
        n = int(checksums_cpu.extend(table, BLOCK, self._state, self._rest, crcs, leaves))
        if n:
            self._runs.append((self._ended, n * BLOCK, crcs, leaves))
            self._ended += n

    def cut(self) -> None:
        """Drop the incomplete last block from the checksums; `take` will hash the whole block from the file."""
        self._state[:] = 0

    def take(self, descriptor: int, first: int, size: int) -> None:
        """Read and hash ``size`` bytes of a file from block ``first`` on. They are whole blocks, except at the end of
        the file. Raises OSError."""
        from . import checksums_cpu

        if not hasattr(_own, "buffer"):
            _own.buffer = np.empty(BLOCK, np.uint8)
        n, start = -(-size // BLOCK), first * BLOCK
        crcs, leaves = np.empty(n, np.uint32), np.empty(n, np.uint64)
        done = int(checksums_cpu.sum_blocks(descriptor, start, start + size, BLOCK, _own.buffer, crcs, leaves))
        self._runs.append((first, size, crcs, leaves))
        if done < start + size:
            os.pread(descriptor, 1, done)  # raises the system's reason
            raise OSError(errno.EIO, "the file was cut short by somebody else")

    def flush(self) -> None:
        """Hash the incomplete last block of the file."""
        from . import checksums_cpu

        if size := int(self._state[5]):
            crcs, leaves = np.empty(1, np.uint32), np.empty(1, np.uint64)
            checksums_cpu.end(self._state, self._rest, crcs, leaves)
            self._runs.append((self._ended, size, crcs, leaves))

    def result(self) -> tuple[str, str]:
        """Return the file's CRC-32C (8 hexadecimal digits) and the root of its tree (64 digits)."""
        from . import checksums_cpu

        self.flush()
        size = max((first * BLOCK + size for first, size, _, _ in self._runs), default=0)
        n = -(-size // BLOCK)
        crcs, leaves = np.zeros(n, np.uint32), np.zeros(n, "<u8")
        for first, nbytes, its, theirs in self._runs:
            k = -(-nbytes // BLOCK)
            crcs[first : first + k], leaves[first : first + k] = its[:k], theirs[:k]
        crc = int(checksums_cpu.joined(crcs, BLOCK, size - (n - 1) * BLOCK))
        return f"{crc:08x}", hashlib.sha256(leaves.data).hexdigest()


def checksums_of(descriptor: int, size: int, threads: ThreadPoolExecutor) -> tuple[str, str]:
    """Compute CRC-32C and tree of checksums of the ``size`` bytes of a file, by several threads. Raises OSError."""
    checksums = Checksums()
    for step in [
        threads.submit(checksums.take, descriptor, at // BLOCK, min(STEP, size - at)) for at in range(0, size, STEP)
    ]:
        step.result()
    return checksums.result()
