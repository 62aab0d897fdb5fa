"""Compiled loops that compute CRC-32C and XXH64 of blocks of a file, or of memory, without the GIL.

XXH64 (Collet's specification, version 0.1.1) keeps four sums of 64 bits, which a processor updates in parallel.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

from ...ops.storage.crc32c_cpu import crc32c_at

intrinsic: Any = extending.intrinsic  # typed after the wrapped function, which has one argument more

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_ZERO = np.uint64(0)
_POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC-32C, with its bits in reverse order."""
_pread: Any = types.ExternalFunction("pread", types.intp(types.intc, types.intp, types.intp, types.int64))


@intrinsic
def _word(_typing: Any, _address: Any) -> Any:
    """Return the eight bytes at an address of any alignment, little-endian."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def _half(_typing: Any, _address: Any) -> Any:
    """Return the four bytes at an address of any alignment, little-endian."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        found = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)
        return builder.zext(found, ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic
def _byte(_typing: Any, _address: Any) -> Any:
    """Return the byte at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer())), ir.IntType(64))

    return types.uint64(types.int64), generate


@numba.njit(nogil=True, cache=True, inline="always")
def _turned(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@numba.njit(nogil=True, cache=True, inline="always")
def _round(total: Any, word: Any) -> Any:
    return _turned(total + word * _P2, 31) * _P1


@numba.njit(nogil=True, cache=True)
def _begin(lanes: Any) -> None:
    """Initialise the four partial sums of XXH64 (uint64[4])."""
    lanes[0], lanes[1], lanes[2], lanes[3] = _P1 + _P2, _P2, _ZERO, _ZERO - _P1


@numba.njit(nogil=True, cache=True)
def _stripes(lanes: Any, at: Any, end: Any) -> Any:
    """Add the complete stripes of 32 bytes from address ``at`` up to ``end`` to the four partial sums of XXH64. Return
    the end of the last stripe."""
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    while end - at >= 32:
        a = _round(a, _word(at))
        b = _round(b, _word(at + 8))
        c = _round(c, _word(at + 16))
        d = _round(d, _word(at + 24))
        at += 32
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d
    return at


@numba.njit(nogil=True, cache=True)
def _ended(lanes: Any, size: Any, at: Any) -> Any:
    """Return the XXH64 (seed 0) of ``size`` bytes, whose complete stripes of 32 bytes are already in the sums
    ``lanes``. The remaining bytes, fewer than 32, are at address ``at``."""
    end = at + size % 32
    total = _P5
    if size >= 32:
        total = _turned(lanes[0], 1) + _turned(lanes[1], 7) + _turned(lanes[2], 12) + _turned(lanes[3], 18)
        for k in range(4):
            total = (total ^ _round(_ZERO, lanes[k])) * _P1 + _P4
    total += np.uint64(size)
    while end - at >= 8:
        total = _turned(total ^ _round(_ZERO, _word(at)), 27) * _P1 + _P4
        at += 8
    if end - at >= 4:
        total = _turned(total ^ (_half(at) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        total = _turned(total ^ (_byte(at) * _P5), 11) * _P1
        at += 1
    total = (total ^ (total >> np.uint64(33))) * _P2
    total = (total ^ (total >> np.uint64(29))) * _P3
    return total ^ (total >> np.uint64(32))


@numba.njit(nogil=True, cache=True)
def _xxh64(address: Any, size: Any) -> Any:
    """Return the XXH64, seed 0, of ``size`` bytes at an address."""
    lanes = np.empty(4, np.uint64)
    _begin(lanes)
    at = np.int64(address)
    return _ended(lanes, size, _stripes(lanes, at, at + size))


@numba.njit(nogil=True, cache=True)
def extend(table: Any, block: Any, state: Any, rest: Any, crcs: Any, leaves: Any) -> Any:
    """Hash the memory segments of ``table`` (int64[M, 2]: addresses and sizes) as one stream of bytes. Fill ``crcs``
    and ``leaves`` with the CRC-32C and XXH64 of each block of ``block`` bytes (a multiple of 32) that is complete.
    Return the number of these blocks. ``state`` (uint64[6]: the four sums, CRC-32C and size of the incomplete block)
    and ``rest`` (uint8[32]: its last bytes, less than a stripe) are kept from call to call."""
    k = 0
    lanes, crc, used = state[:4], np.uint32(state[4]), np.int64(state[5])
    beside = np.int64(rest.ctypes.data)
    for i in range(len(table)):
        at, left = table[i, 0], table[i, 1]
        while left > 0:
            n = min(left, block - used, np.int64(_IN_CACHE))
            if used == 0:
                _begin(lanes)
            crc = crc32c_at(crc, at, n)
            have = used % 32
            first = min(n, (32 - have) % 32)
            for j in range(first):
                rest[have + j] = np.uint8(_byte(at + j))
            if have and have + first == 32:
                _stripes(lanes, beside, beside + 32)
            done = _stripes(lanes, at + first, at + n)
            for j in range(at + n - done):
                rest[j] = np.uint8(_byte(done + j))
            at += n
            left -= n
            used += n
            if used == block:
                crcs[k] = crc
                leaves[k] = _ended(lanes, block, beside)
                k += 1
                crc, used = np.uint32(0), np.int64(0)
    state[4], state[5] = np.uint64(crc), np.uint64(used)
    return k


_IN_CACHE = 1 << 14
"""Number of bytes that `extend` reads twice, once for each checksum, while they are in the processor's cache."""


@numba.njit(nogil=True, cache=True)
def end(state: Any, rest: Any, crcs: Any, leaves: Any) -> None:
    """Compute the checksums of the last block, which is shorter than the others; parameters as in `extend`."""
    crcs[0] = np.uint32(state[4])
    leaves[0] = _ended(state[:4], np.int64(state[5]), np.int64(rest.ctypes.data))
    state[4] = state[5] = _ZERO


@numba.njit(nogil=True, cache=True)
def joined(crcs: Any, block: Any, last: Any) -> Any:
    """Return the CRC-32C of consecutive blocks, computed from the CRCs of the blocks. Each has ``block`` bytes, the
    last one ``last``."""
    crc = np.uint32(0)
    matrix = _zeros(block)
    for k in range(len(crcs)):
        if k == len(crcs) - 1:
            matrix = _zeros(last)
        crc = _applied(matrix, crc) ^ crcs[k]
    return crc


@numba.njit(nogil=True, cache=True)
def _zeros(nbytes: Any) -> Any:
    """Return the linear map over GF(2) by which ``nbytes`` zero bytes change a CRC, as its images of the CRC's 32 bits
    (uint32[32])."""
    found, power = np.empty(32, np.uint32), np.empty(32, np.uint32)
    for k in range(32):
        found[k] = np.uint32(1) << np.uint32(k)
        power[k] = found[k] >> np.uint32(1) if k else np.uint32(_POLYNOMIAL)  # one zero bit
    count = 8 * nbytes
    while count:
        if count & 1:
            for k in range(32):
                found[k] = _applied(power, found[k])
        twice = np.empty(32, np.uint32)
        for k in range(32):
            twice[k] = _applied(power, power[k])
        power = twice
        count >>= 1
    return found


@numba.njit(nogil=True, cache=True)
def _applied(matrix: Any, value: Any) -> Any:
    out = np.uint32(0)
    for k in range(32):
        if value >> np.uint32(k) & np.uint32(1):
            out ^= matrix[k]
    return out


@numba.njit(nogil=True, cache=True)
def sum_blocks(file: Any, start: Any, stop: Any, block: Any, buffer: Any, crcs: Any, leaves: Any) -> Any:
    """Compute CRC-32C and XXH64 of each block of ``block`` bytes from byte ``start`` to ``stop`` of a file. Results are
    ``crcs`` (uint32[n]) and ``leaves`` (uint64[n]); ``file`` is a descriptor, ``buffer`` (uint8[block]) working memory.
    Return the offset reached: less than ``stop`` if the file could not be read."""
    k, at = 0, np.int64(start)
    while at < stop:
        size = min(np.int64(block), stop - at)
        data, have = np.int64(buffer.ctypes.data), np.int64(0)
        while have < size:
            n = _pread(np.int32(file), data + have, size - have, at + have)
            if n <= 0:
                return at
            have += n
        crcs[k] = crc32c_at(np.uint32(0), data, size)
        leaves[k] = _xxh64(data, size)
        at += size
        k += 1
    return at
