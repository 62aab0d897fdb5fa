"""Checksums of blocks of a file or of memory, without the GIL: CRC-32C and XXH64 of each.

XXH64 (Collet's specification, version 0.1.1) keeps four sums of 64 bits, which a processor adds to at the same time.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

from ...ops.storage.crc32c_cpu import crc32c_at

intrinsic: Any = extending.intrinsic  # typed after the function that it wraps, which has one argument more

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_ZERO = np.uint64(0)
_pread: Any = types.ExternalFunction("pread", types.intp(types.intc, types.intp, types.intp, types.int64))


@intrinsic
def _word(_typing: Any, _address: Any) -> Any:
    """The eight bytes at an address of any alignment, little-endian."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def _half(_typing: Any, _address: Any) -> Any:
    """The four bytes at an address of any alignment, little-endian."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        found = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)
        return builder.zext(found, ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic
def _byte(_typing: Any, _address: Any) -> Any:
    """The byte at an address."""

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
def _xxh64(address: Any, size: Any) -> Any:
    """XXH64, seed 0, of ``size`` bytes."""
    at, end = np.int64(address), np.int64(address + size)
    total = _P5
    if size >= 32:
        a, b, c, d = _P1 + _P2, _P2, _ZERO, _ZERO - _P1
        while end - at >= 32:
            a = _round(a, _word(at))
            b = _round(b, _word(at + 8))
            c = _round(c, _word(at + 16))
            d = _round(d, _word(at + 24))
            at += 32
        total = _turned(a, 1) + _turned(b, 7) + _turned(c, 12) + _turned(d, 18)
        for lane in (a, b, c, d):
            total = (total ^ _round(_ZERO, lane)) * _P1 + _P4
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
def sum_blocks(file: Any, address: Any, start: Any, stop: Any, block: Any, buffer: Any, crcs: Any, leaves: Any) -> Any:
    """CRC-32C and XXH64 of each block of ``block`` bytes from byte ``start`` up to ``stop`` of a descriptor, read into
    ``buffer`` (uint8[block]), or of the memory at ``address`` where ``file`` is negative. ``crcs`` (uint32[n]) and
    ``leaves`` (uint64[n]) take them. How far it came: less than ``stop`` where the file could not be read."""
    k, at = 0, np.int64(start)
    while at < stop:
        size = min(np.int64(block), stop - at)
        data = np.int64(address + at - start)
        if file >= 0:
            data = np.int64(buffer.ctypes.data)
            have = np.int64(0)
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
