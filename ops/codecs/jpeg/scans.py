"""Compiled loop that finds the scans of a progressive JPEG (T.81, annex G) by walking the whole file: one row per scan.

A GPU decodes an image's scans level by level: first all scans that give initial values, then scans that refine them.
Images with features that libjpeg-turbo warns about, for which it guesses (block smoothing, if coefficients never come),
or that are unusual, get no rows: libjpeg-turbo decodes or rejects them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .segments import huffman_tables, past_fill, past_scan, quantisation_tables, u16

MAX_SCANS = 100
"""Maximum number of scans of a progressive image for our decoders; encoders make about ten. Images with more scans are
left to libjpeg-turbo, which has its own limit."""
MAX_BLOCKS_IN_MCU = 10  # T.81, B.2.3
SMOOTHED = 10
"""Number of coefficients, from index 0 on, whose values libjpeg-turbo guesses if a progressive file does not give all
their bits."""

_SCALARS = (
    "begin",  # first entropy-coded byte, from the start of the image
    "end",  # the marker after the last one
    "interval",  # restart interval in MCUs, 0: none
    "count",  # components
    "first",  # zig-zag index of the first and the last coefficient: Ss, Se
    "last",
    "high",  # bits that were known before, and are still unknown after: Ah, Al
    "low",
    "level",  # how many scans that this one builds on are in a row before it
)
_VECTORS = (
    "component",  # in the order in which the scan has them
    "table",  # of each: the counts and symbols of its Huffman table, from the start of the image; 0: needs none
)
SCAN = np.dtype([(name, np.int32) for name in _SCALARS] + [(name, np.int32, (4,)) for name in _VECTORS])
COLUMNS = len(_SCALARS) + 4 * len(_VECTORS)
_BEGIN, _END, _INTERVAL, _COUNT, _FIRST, _LAST, _HIGH, _LOW, _LEVEL = range(len(_SCALARS))
_COMPONENT, _TABLE = len(_SCALARS), len(_SCALARS) + 4

_UNSUPPORTED = (-1, 0)


@numba.njit(nogil=True, cache=True)
def walk_scans(  # type: ignore[no-untyped-def]
    data, at, end, components, ids, h, v, quant, interval, tables, wide, rows, known
):
    """Read the headers of all scans of a progressive image. The parameters of the first scan are data[at:end]. ``ids``,
    ``h``, ``v``, ``quant`` [4]: name, sampling factors and quantisation table of each component; the number of the
    table is replaced by its offset from the start of the image. ``tables`` and ``wide``: the tables defined so far.
    ``known`` [2, 4, 64]: scratch memory. ``rows``: gets one row per scan, until it is full. Return the number of scans
    (-1: another decoder must decode the image), and a bit mask of components that have a quantisation table of 16 bits.
    """
    bits, levels = known[0], known[1]  # per coefficient: bits that are still unknown (-1: all); number of scans so far
    bits[:] = -1
    found: Any = np.int64(0)
    bound: Any = np.int64(0)
    wide_bound: Any = np.int64(0)
    for i in range(components):
        for j in range(i):
            if ids[i] == ids[j]:
                return _UNSUPPORTED
    while True:
        count = np.int64(data[at]) if end > at else np.int64(0)
        if count < 1 or count > components or end - at != 4 + 2 * count or found == MAX_SCANS:
            return _UNSUPPORTED
        spectral = at + 1 + 2 * count
        first, last = np.int64(data[spectral]), np.int64(data[spectral + 1])
        high, low = np.int64(data[spectral + 2]) >> 4, np.int64(data[spectral + 2]) & 15
        if last > 63 or last < first or (first == 0 and last > 0) or (first > 0 and count > 1):
            return _UNSUPPORTED
        if low > 13 or (high > 0 and low != high - 1):
            return _UNSUPPORTED
        kept = found < len(rows)
        row = rows[found if kept else 0]
        level: Any = np.int64(0)
        blocks: Any = np.int64(0)
        seen: Any = np.int64(0)
        for i in range(count):
            component: Any = np.int64(-1)
            for c in range(components):
                if ids[c] == np.int32(data[at + 1 + 2 * i]):
                    component = np.int64(c)
            if component < 0 or seen >> component & 1:
                return _UNSUPPORTED
            seen |= 1 << component
            blocks += h[component] * v[component]
            if first > 0 and bits[component, 0] < 0:
                return _UNSUPPORTED
            expected = high if high > 0 else -1
            for k in range(first, last + 1):
                if bits[component, k] != expected:
                    return _UNSUPPORTED
                if high > 0:
                    level = max(level, np.int64(levels[component, k]) + 1)
            # fixed now: libjpeg keeps the table that is defined at a component's first scan
            if not bound >> component & 1:
                which = np.int64(quant[component])
                if which > 3 or tables[0, which] == 0:
                    return _UNSUPPORTED
                quant[component] = tables[0, which]
                bound |= 1 << component
                wide_bound |= (wide >> which & 1) << component
            names = np.int64(data[at + 2 + 2 * i])
            name = names & 15 if first > 0 else names >> 4
            table: Any = np.int64(0)
            if first > 0 or high == 0:
                if name > 3 or tables[2 if first > 0 else 1, name] == 0:
                    return _UNSUPPORTED
                table = np.int64(tables[2 if first > 0 else 1, name])
            if kept:
                row[_COMPONENT + i], row[_TABLE + i] = component, table
        if count > 1 and blocks > MAX_BLOCKS_IN_MCU:
            return _UNSUPPORTED
        for c in range(components):
            if seen >> c & 1:
                bits[c, first : last + 1] = low
                levels[c, first : last + 1] = level
        begin = end
        stop, at, end, interval_then, wide = _next(data, begin, tables, interval, wide)
        if at == _NOTHING:
            return _UNSUPPORTED
        if kept:
            row[_BEGIN], row[_END], row[_INTERVAL], row[_COUNT] = begin, stop, interval, count
            row[_FIRST], row[_LAST], row[_HIGH], row[_LOW], row[_LEVEL] = first, last, high, low, level
            for i in range(count, 4):
                row[_COMPONENT + i], row[_TABLE + i] = 0, 0
        interval = interval_then
        found += 1
        if at == _OVER:
            break
    for c in range(components):
        if bits[c, 0] < 0:
            return _UNSUPPORTED
        for k in range(1, SMOOTHED):
            if bits[c, k] != 0:
                return _UNSUPPORTED
    return found, wide_bound


_NOTHING, _OVER = -1, -2


@numba.njit(nogil=True, cache=True)
def _next(data, at, tables, interval, wide):  # type: ignore[no-untyped-def]
    """Skip from the entropy-coded bytes at ``at`` to the next scan. Return the offset where these bytes end; begin and
    end of the next scan's parameters; and the values of DRI and DQT in between. The begin is _OVER if EOI comes first,
    and _NOTHING if anything unusual comes."""
    size = len(data)
    stop, at, marker = past_scan(data, at)
    nothing = stop, np.int64(_NOTHING), np.int64(0), interval, wide
    while True:
        if marker == 0xD9:
            return stop, np.int64(_OVER), np.int64(0), interval, wide
        if marker < 0 or at + 2 > size:
            return nothing
        begin, end = at + 2, at + u16(data, at)
        if end < begin or end > size:
            return nothing
        error: Any = np.int64(0)
        if marker == 0xDA:
            return stop, begin, end, interval, wide
        if marker == 0xC4:
            error = huffman_tables(data, begin, end, tables)
        elif marker == 0xDB:
            error, wide = quantisation_tables(data, begin, end, tables, wide)
        elif marker == 0xDD and end - begin == 2:
            interval = u16(data, begin)
        elif marker != 0xFE:
            return nothing
        at = end
        if error != 0 or at >= size or data[at] != 0xFF:
            return nothing
        at = past_fill(data, at)
        if at >= size:
            return nothing
        marker = np.int64(data[at])
        at += 1
