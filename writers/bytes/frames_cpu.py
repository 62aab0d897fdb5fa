"""Compiled loops that frame whole batches without the GIL: scatter-gather lists, protobuf Examples, TFRecord and
RecordIO frames, LMDB pages."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from ...ops.storage.crc32c_cpu import crc32c_at, masked

intrinsic: Any = extending.intrinsic  # typed after the wrapped function, which has one argument more


@intrinsic
def _memcpy(_typing: Any, _to: Any, _source: Any, _size: Any) -> Any:
    """Call memcpy between two addresses. With arrays, Numba would compile a second version for read-only sources."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, source = (builder.inttoptr(a, pointer) for a in args[:2])
        copy: Any = cgutils.raw_memcpy
        copy(builder, to, source, args[2], 1)
        return _context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _word(_typing: Any, _address: Any, _k: Any) -> Any:
    """Return the ``k``-th little-endian word of four bytes, counted from an address of any alignment."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        words = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        return builder.load(builder.gep(words, [args[1]]), align=1)

    return types.uint32(types.int64, types.int64), generate


@numba.njit(nogil=True, cache=True)
def copy_ranges(out: Any, to: Any, source: Any, start: Any, size: Any) -> None:
    """Copy ``size[i]`` bytes from address ``source + start[i]`` to ``out[to[i]:]`` for each i. The caller has checked
    the ranges."""
    base = out.ctypes.data
    for i in range(len(to)):
        if size[i] > 0:
            _memcpy(np.int64(base + to[i]), np.int64(source + start[i]), np.int64(size[i]))


@numba.njit(nogil=True, cache=True)
def fill_io_vector(table: Any, own: Any, starts: Any, ends: Any, cuts: Any, addresses: Any, sizes: Any, n: Any) -> Any:
    """Fill ``table`` (int64[M, 2]: addresses and sizes) with the segments of the first ``n`` records of a
    `scatter_gather.ScatteredRecords` whose small bytes begin at address ``own``. Return the number of segments: at most
    2 K + 1 per record, plus one. Adjacent small bytes are one segment, even if they belong to two records."""
    m = low = high = 0  # own[low:high] is not in the table yet
    for i in range(n):
        if starts[i] != high:
            m = _put_piece(table, m, own + low, high - low)
            low = starts[i]
        for k in range(len(cuts)):
            if sizes[k, i] > 0:
                m = _put_piece(table, m, own + low, cuts[k, i] - low)
                m = _put_piece(table, m, addresses[k, i], sizes[k, i])
                low = cuts[k, i]
        high = ends[i]
    return _put_piece(table, m, own + low, high - low)


@numba.njit(nogil=True, cache=True)
def _put_piece(table: Any, m: Any, address: Any, size: Any) -> Any:
    if size <= 0:
        return m
    table[m, 0] = address
    table[m, 1] = size
    return m + 1


# -- text -------------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def put_decimal(out: Any, at: Any, value: Any) -> Any:
    """Write the digits of ``value`` (>= 0) from ``out[at]`` on. Return the end."""
    digits, rest = 1, value
    while rest >= 10:
        rest //= 10
        digits += 1
    for k in range(digits - 1, -1, -1):
        out[at + k] = np.uint8(48 + value % 10)
        value //= 10
    return at + digits


@numba.njit(nogil=True, cache=True)
def put_pairs(out: Any, first: Any, second: Any, separator: Any) -> Any:
    """Write lines of two numbers, one of ``first`` and one of ``second``. Return the bytes written: at most 40 per
    line."""
    at = 0
    for i in range(len(first)):
        at = put_decimal(out, at, first[i])
        out[at] = separator
        at = put_decimal(out, at + 1, second[i])
        out[at] = np.uint8(10)
        at += 1
    return at


# -- protobuf ---------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    v = np.uint64(value)
    while v >= np.uint64(128):
        out[at] = np.uint8(v & np.uint64(127)) | np.uint8(128)
        v >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(v)
    return at + 1


@numba.njit(nogil=True, cache=True)
def _varint_size(value: Any) -> Any:
    v, n = np.uint64(value), 1
    while v >= np.uint64(128):
        v >>= np.uint64(7)
        n += 1
    return n


@numba.njit(nogil=True, cache=True)
def varint_sizes(values: Any) -> Any:
    """Return the size in bytes of each of ``values`` as a protobuf varint (ten for negative numbers), int64[M]."""
    out = np.empty(len(values), np.int64)
    for i in range(len(values)):
        out[i] = _varint_size(values[i])
    return out


@numba.njit(nogil=True, cache=True, inline="always")
def _with_head(size: Any) -> Any:
    """Return the size of a protobuf field with ``size`` bytes of content: its tag, its length and the content."""
    return 1 + _varint_size(size) + size


@numba.njit(cache=True)
def add_entries(total: Any, name: Any, sizes: Any) -> None:
    """Add to the ``total`` of each record the number of bytes that `put_feature` writes for a feature with values of
    ``sizes``, the values included. ``name``: number of bytes of the feature's name. This loop, like `lay_out` and
    `lie_within`, takes some microseconds and keeps the GIL, which the NumPy equivalents would release and take again
    for each operation."""
    for i in range(len(total)):
        total[i] += _with_head(_with_head(name) + _with_head(_with_head(_with_head(sizes[i]))))


@numba.njit(cache=True)
def lay_out(total: Any, apart: Any, before: Any, after: Any, starts: Any, cursor: Any, ends: Any) -> Any:
    """Compute where serialised Examples of ``total`` bytes each are placed, one after the other, with ``before`` and
    ``after`` bytes around each. Values of sizes ``apart`` (int64[K, N]) are stored elsewhere, and take no space here.
    Return the end of the last Example."""
    at = np.int64(0)
    for i in range(len(total)):
        starts[i], cursor[i] = at, at + before
        at += before + _with_head(total[i]) + after
        for k in range(len(apart)):
            at -= apart[k, i]
        ends[i] = at
    return at


@numba.njit(cache=True)
def lie_within(starts: Any, sizes: Any, nbytes: Any) -> Any:
    """Whether all values lie within ``nbytes`` bytes; value i has ``sizes[i]`` bytes from ``starts[i]`` on."""
    outside = 0
    for i in range(len(starts)):
        outside += starts[i] < 0 or sizes[i] < 0 or starts[i] > nbytes - sizes[i]
    return outside == 0


@numba.njit(nogil=True, cache=True)
def put_varints(out: Any, values: Any) -> None:
    """Write ``values`` as varints one after the other, which exactly fill ``out``."""
    at = 0
    for i in range(len(values)):
        at = _put_varint(out, at, values[i])


@numba.njit(nogil=True, cache=True)
def put_lengths(out: Any, cursor: Any, tag: Any, lengths: Any) -> None:
    """Write tag and length of a protobuf field at each record's ``cursor``, and move the cursor behind them."""
    for i in range(len(cursor)):
        out[cursor[i]] = tag
        cursor[i] = _put_varint(out, cursor[i] + 1, lengths[i])


@numba.njit(nogil=True, cache=True)
def put_feature(out: Any, cursor: Any, name: Any, kind: Any, source: Any, start: Any, size: Any, cuts: Any) -> None:
    """Write one feature of each record in protobuf's encoding: an entry of Features.feature with the map key ``name``,
    and a Feature of one list (tag ``kind``). Its only value, or packed values, are the ``size[i]`` bytes at ``source +
    start[i]``. Moves each record's ``cursor`` behind the feature. If ``cuts`` has an element per record, it is set to
    the offset of the value, which is not copied."""
    tag = np.uint8(10)
    base = out.ctypes.data
    n = len(name)
    for i in range(len(cursor)):
        inner = 1 + _varint_size(size[i]) + size[i]
        feature = 1 + _varint_size(inner) + inner
        entry = 1 + _varint_size(n) + n + 1 + _varint_size(feature) + feature
        at = cursor[i]
        out[at] = tag
        at = _put_varint(out, at + 1, entry)
        out[at] = tag
        at = _put_varint(out, at + 1, n)
        for k in range(n):
            out[at + k] = name[k]
        at += n
        out[at] = np.uint8(18)
        at = _put_varint(out, at + 1, feature)
        out[at] = kind
        at = _put_varint(out, at + 1, inner)
        out[at] = tag
        at = _put_varint(out, at + 1, size[i])
        if len(cuts) > 0:
            cuts[i] = cursor[i] = at
            continue
        if size[i] > 0:
            _memcpy(np.int64(base + at), np.int64(source + start[i]), np.int64(size[i]))
        cursor[i] = at + size[i]


# -- containers -------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def _put_little(out: Any, at: Any, value: Any, nbytes: Any) -> None:
    v = np.uint64(value)
    for k in range(nbytes):
        out[at + k] = np.uint8(v & np.uint64(255))
        v >>= np.uint64(8)


@numba.njit(nogil=True, cache=True)
def put_tfrecord_frames(own: Any, starts: Any, ends: Any, cuts: Any, addresses: Any, sizes: Any) -> None:
    """Add TFRecord's framing to each record of a `scatter_gather.ScatteredRecords`: write the payload's length and its
    masked CRC before the payload, which begins 12 bytes after the record's start, and the payload's masked CRC into the
    last 4 bytes."""
    base = np.int64(own.ctypes.data)
    for i in range(len(starts)):
        at, end = starts[i], ends[i] - 4
        length = end - at - 12
        for k in range(len(cuts)):
            length += sizes[k, i]
        _put_little(own, at, length, 8)
        _put_little(own, at + 8, masked(crc32c_at(np.uint32(0), base + at, 8)), 4)
        at += 12
        crc = np.uint32(0)
        for k in range(len(cuts)):
            crc = crc32c_at(crc, base + at, cuts[k, i] - at)
            crc = crc32c_at(crc, addresses[k, i], sizes[k, i])
            at = cuts[k, i]
        _put_little(own, end, masked(crc32c_at(crc, base + at, end - at)), 4)


@numba.njit(nogil=True, cache=True)
def pack_nodes(node_sizes: Any, room: Any) -> Any:
    """Distribute nodes of these sizes, in order, over LMDB pages that have space for ``room`` bytes each. Return the
    index of the first node of each page, int64[P + 1]."""
    breaks = [np.int64(0)]
    used = np.int64(0)
    for i in range(len(node_sizes)):
        if used + node_sizes[i] > room:
            breaks.append(np.int64(i))
            used = np.int64(0)
        used += node_sizes[i]
    breaks.append(np.int64(len(node_sizes)))
    return np.array(breaks)


@numba.njit(nogil=True, cache=True)
def put_pages(
    out: Any, page_size: Any, first_page: Any, flags: Any, breaks: Any, heads: Any, keys: Any, key_start: Any,
    key_size: Any, values: Any, value_start: Any, value_size: Any,
) -> None:  # fmt: skip
    """Write LMDB leaf or branch pages. Node i is ``heads[i]`` (8 bytes: two halves of a size or page number, flags, key
    size), its key and its value; nodes are placed from the end of the page down, their offsets listed from its start
    up."""
    for p in range(len(breaks) - 1):
        base = p * page_size
        _put_little(out, base, first_page + p, 8)
        _put_little(out, base + 10, flags, 2)
        lower, upper = 16, page_size
        for i in range(breaks[p], breaks[p + 1]):
            size = 8 + key_size[i] + value_size[i]
            upper -= size + (size & 1)
            _put_little(out, base + lower, upper, 2)
            lower += 2
            at = base + upper
            for k in range(8):
                out[at + k] = heads[i, k]
            for k in range(key_size[i]):
                out[at + 8 + k] = keys[key_start[i] + k]
            at += 8 + key_size[i]
            for k in range(value_size[i]):
                out[at + k] = values[value_start[i] + k]
        _put_little(out, base + 12, lower, 2)
        _put_little(out, base + 14, upper, 2)


@numba.njit(nogil=True, cache=True)
def find_word(source: Any, start: Any, size: Any, word: Any) -> Any:
    """Find where RecordIO has to split records: at each little-endian uint32 equal to ``word``, at multiples of four
    bytes from a record's start. Record i is the ``size[i]`` bytes at ``source + start[i]``. Return the offsets in their
    records (int64[M]), and the index of the record of each (int64[M])."""
    places = [np.int64(0) for _ in range(0)]
    owners = [np.int64(0) for _ in range(0)]
    wanted = np.uint32(word)
    for i in range(len(start)):
        words, n = np.int64(source + start[i]), size[i] // 4
        for block in range(0, n, _LOOK):
            found, end = np.uint32(0), min(block + _LOOK, n)
            for k in range(block, end):  # without a branch, so that many words are compared at once
                found |= np.uint32(_word(words, k) == wanted)
            for k in range(block, end if found else block):
                if _word(words, k) == wanted:
                    places.append(np.int64(4 * k))
                    owners.append(np.int64(i))
    return np.array(places, np.int64), np.array(owners, np.int64)


_LOOK = 256
"""Number of words that `find_word` compares at once."""
