"""Compiled loops that find the code blocks of JPEG 2000 files, a whole batch without the GIL (ITU-T T.800, annex B).

They read tile parts, the order of packets, and packet headers; only the GPU reads the contents of code blocks. A file
that is invalid in any way is left to OpenJPEG, which repairs some faults and rejects others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .codestream_cpu import (
    BLOCK_HEIGHT,
    BLOCK_WIDTH,
    BODY,
    COMPONENTS,
    DEEPEST,
    END,
    EPH,
    GUARD,
    LAYERS,
    LEVELS,
    ORDER,
    PLT,
    SOD,
    SOP,
    SOT,
    TILE_HEIGHT,
    TILE_WIDTH,
    TILE_X,
    TILE_Y,
    X0,
    X1,
    Y0,
    Y1,
    four,
    read,
    two,
)

FILE, PLACE, WIDTH, HEIGHT, BAND, PLANES, PASSES, SIZE, _BITS, _NEW = range(10)
"""Columns of the array of code blocks: index of the file; position of the block's first coefficient among those of the
image; width and height; band (0, or 3 * level + 1, 2, 3 for high frequencies across, down, both); number of bit planes,
of coding passes, and of bytes."""
BLOCK = 10
CHUNK_BLOCK, CHUNK_AT, CHUNK_TO, CHUNK_SIZE = range(4)
"""Columns of the array of byte ranges, each a contiguous part of a code block: index of the block, byte offset in the
file, byte offset in the block, number of bytes."""
CHUNK = 4
TILE_FILE, TILE_PLACE, TILE_LEFT, TILE_TOP, TILE_RIGHT, TILE_BOTTOM = range(6)
"""Columns of the array of tile components (one colour component of one tile): index of the file, position of the first
coefficient among those of the image, and the tile's edges."""
TILE = 6
_MAX_PLANES = 30
_MAX_PASSES = 109
"""Maximum number of coding passes of a code block that a file may store as one codeword segment."""
_MIN_BLOCKS, _SAMPLES_PER_BLOCK = 1024, 2048
"""Limits that protect against forged files: the number of code blocks that any image may have; and, for images with
more blocks, the minimum mean number of samples per block. One block per byte of the file is allowed in addition, since
a block that is not empty takes at least one byte."""
_TILE_PART = 14
"""Minimum number of bytes that one tile takes in a file."""
_PACKETS = 1 << 16
"""Maximum number of packets of a tile."""

_POSITION, _LAYER, _RESOLUTION = range(3)
_LRCP, _RLCP, _RPCL, _PCRL = range(4)
_UNKNOWN, _DEPTH = 999, 18
"""Value of an unknown node of a tag tree (JPEG 2000, B.10.2), and the maximum number of levels of such a tree."""

_AT, _BUFFER, _COUNT, _BEHIND = range(4)
"""Indices in the state of the bit reader for packet headers: offset of the next byte (-1 after reading beyond the end),
the last byte, its number of unread bits, and the end offset."""
_FIRST, _ACROSS, _DOWN, _NODES = range(4)
"""Columns of the array of bands, one row per frequency band of a precinct: index of its first code block, number of
code blocks across and down, and index of the first node of its tag trees."""


@njit(nogil=True, cache=True)
def _grown(rows: Any, wanted: Any) -> Any:
    """Return the array ``rows``, or a longer copy if it has fewer rows than ``wanted``, a number."""
    if wanted <= len(rows):
        return rows
    more = np.empty((max(2 * len(rows), wanted), rows.shape[1]), np.int64)
    more[: len(rows)] = rows
    return more


@njit(nogil=True, cache=True)
def _up(number: Any, shift: Any) -> Any:
    return -((-number) >> shift)


@njit(nogil=True, cache=True)
def _bit(data: Any, state: Any) -> Any:
    """Return the next bit of a packet header. A byte after 0xFF has only seven bits (B.10.1)."""
    if state[_COUNT] == 0:
        if state[_AT] < 0 or state[_AT] >= state[_BEHIND]:
            state[_AT] = -1
            return np.int64(0)
        state[_COUNT] = 7 if state[_BUFFER] == 0xFF else 8
        state[_BUFFER] = data[state[_AT]]
        state[_AT] += 1
    state[_COUNT] -= 1
    return state[_BUFFER] >> state[_COUNT] & 1


@njit(nogil=True, cache=True)
def _bits(data: Any, state: Any, count: Any) -> Any:
    value = np.int64(0)
    for _ in range(count):
        value = value << 1 | _bit(data, state)
    return value


@njit(nogil=True, cache=True)
def _align(state: Any) -> None:
    """Skip the unread bits of a packet header's last byte, up to the next byte."""
    if state[_AT] >= 0 and state[_BUFFER] == 0xFF:
        state[_AT] = state[_AT] + 1 if state[_AT] < state[_BEHIND] else -1
    state[_BUFFER] = state[_COUNT] = 0


@njit(nogil=True, cache=True)
def _tree_nodes(across: Any, down: Any) -> Any:
    count = across * down
    while across * down > 1:
        across, down = (across + 1) >> 1, (down + 1) >> 1
        count += across * down
    return count


@njit(nogil=True, cache=True)
def _below(
    data: Any, state: Any, values: Any, lows: Any, path: Any, first: Any, across: Any, down: Any, leaf: Any, least: Any
) -> Any:  # fmt: skip
    """Return whether the value of a leaf of a tag tree (JPEG 2000, B.10.2) is less than ``least``. ``first``: index of
    the tree's first node. ``path``: scratch memory, one number per level of the tree."""
    x, y = leaf % across, leaf // across
    depth = 0
    while True:
        path[depth] = first + y * across + x
        depth += 1
        if across * down <= 1:
            break
        first += across * down
        x, y, across, down = x >> 1, y >> 1, (across + 1) >> 1, (down + 1) >> 1
    low = np.int64(0)
    for k in range(depth - 1, -1, -1):
        node = path[k]
        low = max(low, lows[node])
        while low < least and low < values[node]:
            if _bit(data, state):
                values[node] = low
            else:
                low += 1
        lows[node] = low
    return values[path[0]] < least


@njit(nogil=True, cache=True)
def _passes(data: Any, state: Any) -> Any:
    """Read from a packet header how many coding passes the packet adds to a code block (table B.4)."""
    if not _bit(data, state):
        return np.int64(1)
    if not _bit(data, state):
        return np.int64(2)
    count = _bits(data, state, 2)
    if count < 3:
        return 3 + count
    count = _bits(data, state, 5)
    if count < 31:
        return 6 + count
    return 37 + _bits(data, state, 7)


@njit(nogil=True, cache=True)
def _header(data: Any, state: Any, bands: Any, blocks: Any, trees: Any, path: Any, layer: Any) -> Any:
    """Read the header of a packet (B.10): how many coding passes and bytes it adds to each code block. Return whether
    the header is valid. ``bands``: rows for the frequency bands of the packet's precinct. ``trees`` [4, nodes]: values
    and lower bounds read so far, for two tag trees."""
    included = _bit(data, state)
    for k in range(len(bands)):
        first, across, down, nodes = bands[k]
        for leaf in range(across * down):
            block = blocks[first + leaf]
            block[_NEW] = -1
            if not included:
                continue
            fresh = block[PASSES] == 0
            if fresh:
                if not _below(data, state, trees[0], trees[1], path, nodes, across, down, leaf, layer + 1):
                    continue
                zeros = 0
                while not _below(data, state, trees[2], trees[3], path, nodes, across, down, leaf, zeros + 1):
                    zeros += 1
                    if zeros > block[PLANES]:
                        return False
                block[PLANES] -= zeros
                block[_BITS] = 3
                if block[PLANES] > _MAX_PLANES:
                    return False
            elif not _bit(data, state):
                continue
            count = _passes(data, state)
            while _bit(data, state):
                block[_BITS] += 1
                if block[_BITS] > 32:
                    return False
            bits = block[_BITS]
            while count >> (bits - block[_BITS] + 1):
                bits += 1
            block[PASSES] += count
            if bits > 32 or block[PASSES] > _MAX_PASSES:
                return False
            block[_NEW] = _bits(data, state, bits)
            if state[_AT] < 0:
                return False
    _align(state)
    return state[_AT] >= 0


@njit(nogil=True, cache=True)
def _body(state: Any, bands: Any, blocks: Any, chunks: Any, count: Any) -> Any:
    """Append the byte ranges in which a packet's body holds the data of code blocks to ``chunks``, which has ``count``
    rows in use. Return the new count, or -1 if the packet is invalid."""
    at = state[_AT]
    for k in range(len(bands)):
        first, across, down, _ = bands[k]
        for number in range(first, first + across * down):
            new = blocks[number, _NEW]
            if new <= 0:
                continue
            if new > state[_BEHIND] - at:
                return -1
            chunk = chunks[count]
            chunk[CHUNK_BLOCK], chunk[CHUNK_AT], chunk[CHUNK_TO], chunk[CHUNK_SIZE] = (
                number,
                at,
                blocks[number, SIZE],
                new,
            )
            count += 1
            at += new
            blocks[number, SIZE] += new
    state[_AT] = at
    return count


@njit(nogil=True, cache=True)
def _tile_parts(data: Any, at: Any, facts: Any, tile: Any, ranges: Any) -> Any:
    """Find the byte ``ranges`` [256, 2] of the file that hold the packets of a tile, whose parts must be contiguous
    from offset ``at`` on. Return the number of ranges (-1 if a part is invalid) and the next tile's offset."""
    part: Any = 0
    parts: Any = 1
    while part < parts:
        if two(data, at) != SOT or two(data, at + 2) != 10 or two(data, at + 4) != tile or at + 12 > facts[END]:
            return -1, at
        size = four(data, at + 6)
        if data[at + 10] != part or data[at + 11] == 0 or (part and data[at + 11] != parts):
            return -1, at
        parts = np.int64(data[at + 11])
        after, k = at + size, at + 12
        if size < _TILE_PART or after > facts[END]:
            return -1, at
        while two(data, k) == PLT:
            k += 2 + max(two(data, k + 2), 4)
            if k > after or data[k - 1] >= 0x80:  # its last number is incomplete
                return -1, at
        if two(data, k) != SOD or k + 2 > after:
            return -1, at
        ranges[part, 0], ranges[part, 1] = k + 2, after
        at = after
        part += 1
    return part, at


@njit(nogil=True, cache=True)
def _geometry(
    facts: Any, exponents: Any, steps: Any, file: Any, tile: Any, component: Any, precincts: Any, bands: Any,
    blocks: Any, counts: Any,
) -> Any:  # fmt: skip
    """Append the precincts of one component of a tile to the arrays of precincts, bands and code blocks. ``counts``:
    rows used so far of these arrays and of the tag trees' nodes. ``tile``: edges of the tile. Return the arrays, which
    are longer copies if they were full."""
    levels, width = facts[LEVELS], facts[X1] - facts[X0]
    left, top, right, bottom = tile
    whole = (component * (facts[Y1] - facts[Y0]) + top - facts[Y0]) * width + left - facts[X0]
    for resolution in range(levels + 1):
        down = levels - resolution
        x0, y0, x1, y1 = _up(left, down), _up(top, down), _up(right, down), _up(bottom, down)
        if x0 >= x1 or y0 >= y1:
            continue
        wide, high = exponents[resolution, 0], exponents[resolution, 1]
        high_bands = 1 if resolution else 0
        block_wide = min(facts[BLOCK_WIDTH], wide - high_bands)
        block_high = min(facts[BLOCK_HEIGHT], high - high_bands)
        low_width = _up(right, down + 1) - _up(left, down + 1)
        low_height = _up(bottom, down + 1) - _up(top, down + 1)
        for py in range(y0 >> high, _up(y1, high)):
            for px in range(x0 >> wide, _up(x1, wide)):
                precincts = _grown(precincts, counts[0] + 1)
                row = precincts[counts[0]]
                row[0], row[1], row[2] = resolution, component, counts[1]
                row[3], row[4] = max(top, (py << high) << down), max(left, (px << wide) << down)
                counts[0] += 1
                for orientation in range(1, 4) if high_bands else range(1):
                    across, deep = orientation & 1, orientation >> 1
                    shift = down + high_bands
                    half = 1 << (shift - 1) if high_bands else 0
                    bx0, by0 = _up(left - half * across, shift), _up(top - half * deep, shift)
                    bx1, by1 = _up(right - half * across, shift), _up(bottom - half * deep, shift)
                    cx0 = max(bx0, px << (wide - high_bands))
                    cy0 = max(by0, py << (high - high_bands))
                    cx1 = min(bx1, (px + 1) << (wide - high_bands))
                    cy1 = min(by1, (py + 1) << (high - high_bands))
                    bands = _grown(bands, counts[1] + 1)
                    band = bands[counts[1]]
                    counts[1] += 1
                    band[_FIRST], band[_ACROSS], band[_DOWN], band[_NODES] = counts[2], 0, 0, counts[3]
                    if cx0 >= cx1 or cy0 >= cy1:
                        continue
                    first_x, first_y = cx0 >> block_wide, cy0 >> block_high
                    band[_ACROSS], band[_DOWN] = _up(cx1, block_wide) - first_x, _up(cy1, block_high) - first_y
                    counts[3] += _tree_nodes(band[_ACROSS], band[_DOWN])
                    number = 3 * (resolution - 1) + orientation if high_bands else 0
                    blocks = _grown(blocks, counts[2] + band[_ACROSS] * band[_DOWN])
                    for y in range(first_y, first_y + band[_DOWN]):
                        for x in range(first_x, first_x + band[_ACROSS]):
                            block = blocks[counts[2]]
                            counts[2] += 1
                            ax, ay = max(cx0, x << block_wide), max(cy0, y << block_high)
                            block[FILE] = file
                            block[WIDTH] = min(cx1, (x + 1) << block_wide) - ax
                            block[HEIGHT] = min(cy1, (y + 1) << block_high) - ay
                            ax += across * low_width - bx0
                            ay += deep * low_height - by0
                            block[PLACE] = whole + ay * width + ax
                            block[BAND] = number
                            block[PLANES] = steps[number, 0] + facts[GUARD] - 1
                            block[PASSES] = block[SIZE] = block[_BITS] = block[_NEW] = 0
    return precincts, bands, blocks


@njit(nogil=True, cache=True)
def _ordered(facts: Any, precincts: Any) -> Any:
    """Return the packets of a tile in the order in which the file stores them (B.12), each as the index of its precinct
    and the number of its quality layer."""
    order, layers, count = facts[ORDER], facts[LAYERS], len(precincts)
    keys = np.empty(count, np.int64)
    for k in range(count):
        resolution, component, _, y, x = precincts[k]
        place = y << 16 | x
        if order <= _RLCP:
            keys[k] = resolution << 2 | component
        elif order == _RPCL:
            keys[k] = (resolution << 32 | place) << 2 | component
        elif order == _PCRL:
            keys[k] = (place << 2 | component) << 4 | resolution
        else:
            keys[k] = (np.int64(component) << 32 | place) << 4 | resolution
    one = np.argsort(keys, kind="mergesort")
    packets = np.empty((count * layers, 2), np.int64)
    n = begin = 0
    while begin < count:
        end = count
        if order == _RLCP:
            end = begin + 1
            while end < count and precincts[one[end], 0] == precincts[one[begin], 0]:
                end += 1
        elif order > _RLCP:
            end = begin + 1
        for layer in range(layers):
            for k in range(begin, end):
                packets[n, 0], packets[n, 1] = one[k], layer
                n += 1
        begin = end
    return packets


@njit(nogil=True, cache=True)
def _advance(state: Any, ranges: Any, part: Any, parts: Any) -> Any:
    """Go to the next tile part that is not empty, if the current one is read to its end. Return the index of the tile
    part to read from."""
    while state[_AT] == state[_BEHIND] and part + 1 < parts:
        part += 1
        state[_AT], state[_BEHIND] = ranges[part]
    return part


@njit(nogil=True, cache=True)
def _tile(
    data: Any, facts: Any, ranges: Any, parts: Any, precincts: Any, bands: Any, blocks: Any, nodes: Any, chunks: Any,
    count: Any,
) -> Any:  # fmt: skip
    """Read all packets of a tile, and append the byte ranges of its code blocks to ``chunks``. Return ``chunks`` and
    its number of used rows; the number is -1 if a packet is invalid."""
    trees = np.zeros((4, nodes), np.int64)
    trees[0], trees[2], path = _UNKNOWN, _UNKNOWN, np.empty(_DEPTH, np.int64)
    state, part = np.zeros(4, np.int64), 0
    state[_AT], state[_BEHIND] = ranges[0]
    packets = _ordered(facts, precincts)
    for n in range(len(packets)):
        part = _advance(state, ranges, part, parts)
        row = precincts[packets[n, 0]]
        if facts[SOP]:
            at = state[_AT]
            if at + 6 > state[_BEHIND] or four(data, at) != 0xFF910004 or two(data, at + 4) != n & 0xFFFF:
                return chunks, -1
            state[_AT] += 6
        some = bands[row[2] : row[2] + (3 if row[0] else 1)]
        if not _header(data, state, some, blocks, trees, path, packets[n, 1]):
            return chunks, -1
        if facts[EPH]:
            if state[_AT] + 2 > state[_BEHIND] or two(data, state[_AT]) != 0xFF92:
                return chunks, -1
            state[_AT] += 2
        wanted = count
        for k in range(len(some)):
            wanted += some[k, _ACROSS] * some[k, _DOWN]
        chunks = _grown(chunks, wanted)
        count = _body(state, some, blocks, chunks, count)
        if count < 0:
            return chunks, -1
    part = _advance(state, ranges, part, parts)
    return chunks, count if state[_AT] == state[_BEHIND] and part + 1 == parts else -1


@njit(nogil=True, cache=True)
def _file(data: Any, file: Any, facts: Any, exponents: Any, steps: Any, blocks: Any, chunks: Any, tiles: Any, used: Any
          ) -> Any:  # fmt: skip
    """Read the packets of a file whose main header was read. Append its code blocks, byte ranges and tile components to
    ``blocks``, ``chunks`` and ``tiles``. ``used``: rows in use of these three. Return whether the file is valid, and
    the three arrays, which are longer copies if they were full."""
    ranges = np.empty((256, 2), np.int64)
    precincts, bands = np.empty((64, 5), np.int64), np.empty((192, 4), np.int64)
    across = -(-(facts[X1] - facts[TILE_X]) // facts[TILE_WIDTH])
    down = -(-(facts[Y1] - facts[TILE_Y]) // facts[TILE_HEIGHT])
    samples = (facts[X1] - facts[X0]) * (facts[Y1] - facts[Y0]) * facts[COMPONENTS]
    most = used[0] + _MIN_BLOCKS + samples // _SAMPLES_PER_BLOCK + len(data)
    at, edges, counts = facts[BODY], np.empty(4, np.int64), np.zeros(4, np.int64)
    if across * down > len(data) // _TILE_PART:
        return False, blocks, chunks, tiles
    for tile in range(across * down):
        parts, at = _tile_parts(data, at, facts, tile, ranges)
        if parts < 0:
            return False, blocks, chunks, tiles
        x, y = tile % across, tile // across
        edges[0] = max(facts[TILE_X] + x * facts[TILE_WIDTH], facts[X0])
        edges[1] = max(facts[TILE_Y] + y * facts[TILE_HEIGHT], facts[Y0])
        edges[2] = min(facts[TILE_X] + (x + 1) * facts[TILE_WIDTH], facts[X1])
        edges[3] = min(facts[TILE_Y] + (y + 1) * facts[TILE_HEIGHT], facts[Y1])
        if _blocks_at_least(facts, exponents, edges) * facts[COMPONENTS] > most - used[0]:
            return False, blocks, chunks, tiles
        counts[:] = 0
        counts[2] = used[0]
        for component in range(facts[COMPONENTS]):
            precincts, bands, blocks = _geometry(
                facts, exponents, steps, file, edges, component, precincts, bands, blocks, counts
            )
            tiles = _grown(tiles, used[2] + 1)
            row = tiles[used[2]]
            used[2] += 1
            width, height = facts[X1] - facts[X0], facts[Y1] - facts[Y0]
            row[TILE_FILE] = file
            row[TILE_PLACE] = (component * height + edges[1] - facts[Y0]) * width + edges[0] - facts[X0]
            row[TILE_LEFT:] = edges
        used[0] = counts[2]
        if used[0] > most or counts[0] * facts[LAYERS] > _PACKETS:
            return False, blocks, chunks, tiles
        chunks, used[1] = _tile(
            data, facts, ranges, parts, precincts[: counts[0]], bands, blocks, counts[3], chunks, used[1]
        )
        if used[1] < 0:
            return False, blocks, chunks, tiles
    return at == facts[END], blocks, chunks, tiles


@njit(nogil=True, cache=True)
def _blocks_at_least(facts: Any, exponents: Any, edges: Any) -> Any:
    """Return the minimum number of code blocks or precincts (the larger of both) that a tile component must have by its
    size. Checked before they are listed, because listing takes time."""
    count = np.int64(0)
    for resolution in range(facts[LEVELS] + 1):
        down = facts[LEVELS] - resolution
        width, height = _up(edges[2], down) - _up(edges[0], down), _up(edges[3], down) - _up(edges[1], down)
        wide, high = exponents[resolution, 0], exponents[resolution, 1]
        blocks = (width >> min(facts[BLOCK_WIDTH], wide)) * (height >> min(facts[BLOCK_HEIGHT], high))
        count += max(blocks, (width >> wide) * (height >> high))
    return count


@njit(nogil=True, cache=True)
def read_files(
    raw: Any, offsets: Any, sizes: Any, heights: Any, widths: Any, facts: Any, steps: Any, taken: Any
) -> Any:  # fmt: skip
    """Read N JPEG 2000 files, the bytes raw[offset : offset + size], without decoding them. Fill ``facts`` [N, FACTS]
    and ``steps`` [N, BANDS, 2] from their main headers. Set ``taken`` bool[N]: whether a file is supported and its
    image has the expected width and height. Return three arrays: code blocks int64[:, BLOCK], byte ranges of code
    blocks [:, CHUNK], and tile components [:, TILE]."""
    blocks, chunks = np.empty((4096, BLOCK), np.int64), np.empty((4096, CHUNK), np.int64)
    tiles = np.empty((64, TILE), np.int64)
    used, exponents = np.zeros(3, np.int64), np.empty((DEEPEST + 1, 2), np.int64)
    for i in range(len(sizes)):
        data = raw[offsets[i] : offsets[i] + sizes[i]]
        before = used.copy()
        taken[i] = read(data, facts[i], exponents, steps[i])
        taken[i] &= facts[i, X1] - facts[i, X0] == widths[i] and facts[i, Y1] - facts[i, Y0] == heights[i]
        if taken[i]:
            good, blocks, chunks, tiles = _file(data, i, facts[i], exponents, steps[i], blocks, chunks, tiles, used)
            taken[i] = good
        if not taken[i]:
            used[:] = before
    return blocks[: used[0]], chunks[: used[1]], tiles[: used[2]]
