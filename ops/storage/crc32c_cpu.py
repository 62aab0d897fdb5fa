"""Compiled CRC-32C (Castagnoli) of ranges of a buffer, without the GIL: the checksum of TFRecord framing and of
dali-run's shards.

Polynomial 0x1EDC6F41, reflected, initial and final inversion (RFC 3720, appendix B.4). x86 processors have an
instruction for it; three independent streams hide its latency, and are joined by the linear map that appends zeros. On
other processors, eight table look-ups process eight bytes at once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from ..compiled.target import compiles_with

_POLYNOMIAL = 0x82F63B78
LONG, SHORT = 1024, 256
"""Bytes in each of three streams that are hashed at once, for long and for short ranges. They are powers of two, so
that the map that joins the CRCs can be computed by squaring."""
_AHEAD = 8192
"""Distance in bytes at which memory is prefetched, line by line in one direction: processors do not foresee three
separate streams (from memory, one thread: 14 GB/s; with prefetching 23)."""


def _step_tables() -> NDArray[np.uint32]:
    """Return uint32[8, 256]: row k maps a byte to its CRC with k zero bytes after it (no inversions)."""
    tables = np.zeros((8, 256), np.uint32)
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = np.where(row & 1, (row >> 1) ^ np.uint32(_POLYNOMIAL), row >> 1)
    tables[0] = row
    for k in range(1, 8):
        row = (row >> 8) ^ tables[0][row & 0xFF]
        tables[k] = row
    return tables


def _apply(matrix: NDArray[np.uint32], values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Apply a linear map over GF(2), given as its images of the 32 single bits, to each value."""
    out = np.zeros_like(values)
    for bit in range(32):
        out ^= np.where(values >> np.uint32(bit) & 1, matrix[bit], np.uint32(0)).astype(np.uint32)
    return out


def _zeros_tables(nbytes: int) -> NDArray[np.uint32]:
    """Return uint32[4, 256]: the effect of ``nbytes`` (a power of two) zero bytes on a CRC, per byte of the CRC."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    matrix = (bits >> 8) ^ _TABLES[0][bits & 0xFF]  # one byte
    for _ in range(nbytes.bit_length() - 1):
        matrix = _apply(matrix, matrix)
    return np.stack([_apply(matrix, np.arange(256, dtype=np.uint32) << np.uint32(8 * k)) for k in range(4)])


_ONES = np.uint32(0xFFFFFFFF)
_TABLES = _step_tables()
_AFTER_LONG = np.stack([_zeros_tables(LONG), _zeros_tables(2 * LONG)])
_AFTER_SHORT = np.stack([_zeros_tables(SHORT), _zeros_tables(2 * SHORT)])

# untyped: mypy would expect the signature of the wrapped function, which has one argument more
intrinsic: Any = extending.intrinsic


HARDWARE = compiles_with("sse4.2")


@intrinsic
def _load64(_typing: Any, address: Any) -> Any:
    """Load the eight bytes at an address of any alignment, little-endian."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(address), generate


@intrinsic
def _crc64(_typing: Any, _crc: Any, _data: Any) -> Any:
    """Return ``crc`` after eight more bytes of data, computed by the SSE 4.2 instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        function = builder.module.declare_intrinsic(
            "llvm.x86.sse42.crc32.64.64", (), ir.FunctionType(word, (word, word))
        )
        return builder.call(function, args)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _prefetch(_typing: Any, _address: Any) -> Any:
    """Prefetch the cache line at an address, which need not be mapped."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer, i32 = builder.inttoptr(args[0], ir.IntType(8).as_pointer()), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (pointer.type, i32, i32, i32))
        read, keep, data = i32(0), i32(3), i32(1)
        builder.call(
            builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), kind), [pointer, read, keep, data]
        )
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _pointer(_typing: Any, _address: Any) -> Any:
    """Convert an address to a pointer for `numba.carray`."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@numba.njit(nogil=True, cache=True, inline="always")
def _join(crc: Any, table: Any) -> Any:
    c = np.uint32(crc)
    return np.uint64(
        table[0, c & np.uint32(255)]
        ^ table[1, (c >> np.uint32(8)) & np.uint32(255)]
        ^ table[2, (c >> np.uint32(16)) & np.uint32(255)]
        ^ table[3, c >> np.uint32(24)]
    )


@numba.njit(nogil=True, cache=True)
def _streams(state: Any, address: Any, stop: Any, stream: Any, after: Any) -> Any:
    """Hash all complete blocks of three streams. Return the CRC state after them, and the address where they end."""
    while stop - address >= 3 * stream:
        a, b, c = state, np.uint64(0), np.uint64(0)
        for line in range(address, address + stream, 64):
            for k in range(3):
                _prefetch(address + _AHEAD + 3 * (line - address) + 64 * k)
            for at in range(line, line + 64, 8):
                a = _crc64(a, _load64(at))
                b = _crc64(b, _load64(at + stream))
                c = _crc64(c, _load64(at + 2 * stream))
        state = _join(a, after[1]) ^ _join(b, after[0]) ^ c
        address += 3 * stream
    return state, address


def _update_hardware(crc: Any, buffer: Any, start: Any, stop: Any) -> Any:
    base = buffer.ctypes.data
    state, at = _streams(np.uint64(crc), base + start, base + stop, LONG, _AFTER_LONG)
    state, at = _streams(state, at, base + stop, SHORT, _AFTER_SHORT)
    at -= base
    while stop - at >= 8:
        state = _crc64(state, _load64(base + at))
        at += 8
    rest = np.uint32(state)
    while at < stop:
        rest = (rest >> np.uint32(8)) ^ _TABLES[0, (rest ^ np.uint32(buffer[at])) & np.uint32(255)]
        at += 1
    return rest


def _update_tables(crc: Any, buffer: Any, start: Any, stop: Any) -> Any:
    at, state = start, np.uint32(crc)
    low = np.uint32(255)
    while stop - at >= 8:
        first = state ^ (
            np.uint32(buffer[at])
            | np.uint32(buffer[at + 1]) << np.uint32(8)
            | np.uint32(buffer[at + 2]) << np.uint32(16)
            | np.uint32(buffer[at + 3]) << np.uint32(24)
        )
        state = (
            _TABLES[7, first & low]
            ^ _TABLES[6, (first >> np.uint32(8)) & low]
            ^ _TABLES[5, (first >> np.uint32(16)) & low]
            ^ _TABLES[4, first >> np.uint32(24)]
            ^ _TABLES[3, buffer[at + 4]]
            ^ _TABLES[2, buffer[at + 5]]
            ^ _TABLES[1, buffer[at + 6]]
            ^ _TABLES[0, buffer[at + 7]]
        )
        at += 8
    while at < stop:
        state = (state >> np.uint32(8)) ^ _TABLES[0, (state ^ np.uint32(buffer[at])) & low]
        at += 1
    return state


_update = numba.njit(nogil=True, cache=True)(_update_hardware if HARDWARE else _update_tables)


@numba.njit(nogil=True, cache=True)
def crc32c(buffer: Any, start: Any, stop: Any) -> Any:
    """Return the CRC-32C of ``buffer[start:stop]``; ``buffer`` is a contiguous uint8[:] that contains the range."""
    return np.uint32(_update(_ONES, buffer, np.int64(start), np.int64(stop)) ^ _ONES)


@numba.njit(nogil=True, cache=True)
def crc32c_at(crc: Any, address: Any, size: Any) -> Any:
    """Continue the checksum ``crc`` (0 to begin) with the ``size`` bytes at an address."""
    data = carray(_pointer(address), (size,), np.uint8)
    return np.uint32(_update(np.uint32(crc) ^ _ONES, data, np.int64(0), np.int64(size)) ^ _ONES)


@numba.njit(nogil=True, cache=True)
def masked_crc32c(buffer: Any, start: Any, stop: Any) -> Any:
    """Return the CRC-32C of ``buffer[start:stop]`` in the form that TFRecord stores."""
    return masked(crc32c(buffer, start, stop))


@numba.njit(nogil=True, cache=True)
def masked(crc: Any) -> Any:
    """Convert a CRC to the form that TFRecord stores: rotated right by 15 bits, plus a constant (TensorFlow's record
    format)."""
    return np.uint32(((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8))


@numba.njit(nogil=True, cache=True)
def crc32c_each(buffer: Any, offsets: Any, sizes: Any) -> Any:
    """Return uint32[N]: CRC-32C of each ``buffer[offsets[i] : offsets[i] + sizes[i]]``; int64 arrays, ranges inside the
    buffer."""
    out = np.empty(len(offsets), np.uint32)
    for i in range(len(offsets)):
        out[i] = crc32c(buffer, offsets[i], offsets[i] + sizes[i])
    return out


@numba.njit(nogil=True, cache=True)
def crc32c_extend(crc: Any, buffer: Any) -> Any:
    """Continue the checksum ``crc`` (0 to begin) with ``buffer``."""
    return np.uint32(_update(np.uint32(crc) ^ _ONES, buffer, np.int64(0), np.int64(len(buffer))) ^ _ONES)
