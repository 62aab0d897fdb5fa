"""Checksums of files, block by block: any thread may take any block, in any order."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

STEP = 8 << 20
"""Bytes that a thread takes the checksums of in one call."""
BLOCK = 1 << 18
"""Bytes of a leaf of the tree. A part of the format: the same file has another tree with others."""
_U8 = npt.NDArray[np.uint8]
_NOTHING = np.empty(0, np.uint8)
_own = threading.local()


class Sums:
    """CRC-32C of a file's bytes, and its tree: SHA-256 of the XXH64 of each block, eight bytes each, little-endian.

    Both find damage, neither tells who did it. Bytes come in order through `extend`, or whole blocks are read from the
    file (`take`), by several threads at once; blocks that were changed are taken again.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, int]] = {}
        self._sizes: dict[int, int] = {}
        self._rest = b""
        """The beginning of a block that came by `extend`."""

    def extend(self, data: bytes | _U8) -> None:
        """These bytes come next."""
        if self._rest:
            data = self._rest + bytes(data)
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        whole = len(array) // BLOCK * BLOCK
        if whole:
            self._sum(-1, array.ctypes.data, len(self._blocks), whole, _NOTHING)
        self._rest = array[whole:].tobytes()

    def cut(self) -> None:
        """Let go of a block that has begun: the file has it, and more."""
        self._rest = b""

    def take(self, descriptor: int, first: int, size: int) -> None:
        """Read ``size`` bytes of a file from block ``first`` on; only the last block of a file may be less than whole.
        Raises OSError."""
        if not hasattr(_own, "buffer"):
            _own.buffer = np.empty(BLOCK, np.uint8)
        done = self._sum(descriptor, 0, first, size, _own.buffer)
        if done < size:
            os.pread(descriptor, 1, first * BLOCK + done)  # to be told why not
            raise OSError(errno.EIO, "the file was cut short by somebody else")

    def _sum(self, descriptor: int, address: int, first: int, size: int, buffer: _U8) -> int:
        """Bytes that were summed."""
        from . import sums_cpu

        n = -(-size // BLOCK)
        crcs, leaves = np.empty(n, np.uint32), np.empty(n, np.uint64)
        start = first * BLOCK
        end = int(sums_cpu.sum_blocks(descriptor, address, start, start + size, BLOCK, buffer, crcs, leaves))
        for k, pair in enumerate(zip(crcs.tolist(), leaves.tolist(), strict=True)):
            self._blocks[first + k] = pair
            self._sizes[first + k] = min(BLOCK, size - k * BLOCK)
        return end - start

    def flush(self) -> None:
        """The last block has no more bytes."""
        if self._rest:
            rest, self._rest = np.frombuffer(self._rest, np.uint8), b""
            self._sum(-1, rest.ctypes.data, len(self._blocks), len(rest), _NOTHING)

    def result(self) -> tuple[str, str]:
        """CRC-32C (8 hexadecimal digits) and tree (64) of everything."""
        self.flush()
        crc, root = 0, hashlib.sha256()
        for k in range(len(self._blocks)):
            own, leaf = self._blocks[k]
            crc = own if k == 0 else _after(crc, self._sizes[k]) ^ own
            root.update(leaf.to_bytes(8, "little"))
        return f"{crc:08x}", root.hexdigest()


def sums_of(descriptor: int, size: int, threads: ThreadPoolExecutor) -> tuple[str, str]:
    """CRC-32C and tree of the ``size`` bytes of a file, by several threads. Raises OSError."""
    sums = Sums()
    for step in [
        threads.submit(sums.take, descriptor, at // BLOCK, min(STEP, size - at)) for at in range(0, size, STEP)
    ]:
        step.result()
    return sums.result()


def _after(crc: int, nbytes: int) -> int:
    """The share of bytes of CRC-32C ``crc`` in that of the same bytes and ``nbytes`` more."""
    a, b, c, d = _zeros(nbytes)
    return a[crc & 255] ^ b[crc >> 8 & 255] ^ c[crc >> 16 & 255] ^ d[crc >> 24]


@functools.lru_cache(maxsize=4)  # 40 kB each; all blocks but the last of a file have one length
def _zeros(nbytes: int) -> tuple[list[int], ...]:
    """The linear map that ``nbytes`` zero bytes are to a CRC, by each of its four bytes."""
    columns = [1 << bit for bit in range(32)]
    power = [c >> 1 ^ (_POLYNOMIAL if c & 1 else 0) for c in columns]  # one bit
    count = 8 * nbytes
    while count:
        if count & 1:
            columns = [_applied(power, c) for c in columns]
        power = [_applied(power, c) for c in power]
        count >>= 1
    return tuple([_applied(columns, byte << shift) for byte in range(256)] for shift in (0, 8, 16, 24))


_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, reflected."""


def _applied(matrix: list[int], value: int) -> int:
    """A linear map over GF(2), given by its images of the 32 bits."""
    out = 0
    while value:
        low = value & -value
        out ^= matrix[low.bit_length() - 1]
        value ^= low
    return out
