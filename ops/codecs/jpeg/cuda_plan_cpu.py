"""Compiled loops that plan the decoding of a batch of JPEGs on a GPU, without the GIL: NumPy would need a hundred
calls, each of which other threads of a busy pipeline could delay. Called by `cuda`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .header import CMYK, FOUR, MANY_SCANS, OK, RGB, YCBCR, YCCK

WORDS, SEGMENTS, BLOCKS, ENTRIES, COEFFICIENTS, PLANES, UNSTUFFS, ENTROPIES, UNKNOWNS, TOTALS = range(10)
"""Indices in the array of totals that `plan_images` computes for a batch: elements of buffers on the device, CUDA
thread blocks of two kernels, and number of streams whose decoder states must be found."""


@numba.njit(inline="always")
def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


@numba.njit(nogil=True, cache=True)
def _reserve(stream: Any, totals: Any, scan_bytes: Any, segments: Any, blocks: Any, entries: Any) -> None:
    """Reserve space in the GPU's buffers for one stream of entropy-coded bytes, after the space of earlier streams."""
    stream.words, stream.segments, stream.blocks = totals[WORDS], totals[SEGMENTS], totals[BLOCKS]
    stream.entries = totals[ENTRIES]
    totals[WORDS] += _ceil(scan_bytes, 128) * 32 + 32
    totals[SEGMENTS] += segments
    totals[BLOCKS] += blocks
    totals[ENTRIES] += entries


@numba.njit(cache=True)
def count_equal(values: Any, value: Any) -> Any:
    """Count the ``values`` that equal ``value``. The loop keeps the GIL: if it released it, another thread would hold
    it for longer than this takes."""
    count = 0
    for i in range(len(values)):
        count += values[i] == value
    return count


@numba.njit(nogil=True, cache=True)
def plan_images(
    headers: Any, which: Any, offsets: Any, sizes: Any, luma_only: Any, limits: Any, images: Any, component: Any,
    status: Any, needed: Any, unstuff_first: Any, entropy_first: Any, totals: Any, heads: Any, table: Any, scans: Any,
    parts: Any, levels: Any, known: Any, fours: Any,
) -> None:  # fmt: skip
    """Plan decoding a batch on a GPU, for the images for which ``which`` is true; the others become UNSUPPORTED. Fill
    ``images``, ``component`` (which must be zeros for scans), ``status``, ``needed``, ``unstuff_first`` and
    ``entropy_first`` (the number of CUDA thread blocks before each row), and ``totals``.

    ``images`` has one row per image; then, up to row ``heads``, three per image that has a scan per component; then one
    per stream of progressive images, whose scans are in ``table``. These scans are written to ``scans`` and ``parts``,
    and counted by ``levels``. ``limits``: status UNSUPPORTED and MISSING, maximum blocks, bits of a subsequence,
    entries of a subsequence, bytes per unstuffing thread block, subsequences per entropy thread block, maximum blocks
    of an image in many scans. ``known``: number of decoder states per image that are known from earlier epochs; empty
    if there are none. ``fours``: for each image of four components, the first of its two additional rows, among those
    of images with separate scans. The second row is for black alone."""
    unsupported, missing, most_blocks, sub_bits, sub_entries, unstuff_chunk, entropy_chunk, most_in_scans = limits
    unstuffs = entropies = states = np.int64(0)  # with a literal, Numba would compile `_plan_scans` a second time
    extra = len(headers)
    for i in range(len(headers)):
        row, image = headers[i], images[i]
        many = row.status == MANY_SCANS and len(table) > 0
        four = row.status == FOUR  # the image itself is RGB, in planes of its size
        good = which[i] and (row.status == OK or many or four) and row.width > 0
        components = 1 if not good else 3 if four else row.components
        h_max = v_max = 1
        in_mcu = 0
        for c in range(3):
            h, v = (1, 1) if components == 1 or four else (row.h[c], row.v[c])
            if not good or c >= components:
                h = v = 0
            component[i, c].h, component[i, c].v, component[i, c].first = h, v, in_mcu
            h_max, v_max = max(h_max, h), max(v_max, v)
            in_mcu += h * v
        mcus_x, mcus_y = _ceil(row.width, 8 * h_max), _ceil(row.height, 8 * v_max)
        blocks = np.int64(mcus_x) * mcus_y * in_mcu
        scan_bytes = max(sizes[i] - row.scan_offset, 0)
        fits = True
        dc_slots = ac_slots = 0
        for kind in range(2):
            a, b, d = (row.dc[0], row.dc[1], row.dc[2]) if kind == 0 else (row.ac[0], row.ac[1], row.ac[2])
            second, slots = 0, 0
            if components == 3:
                second = b if b != a else d if d != a else 0
                fits = fits and (d == a or d == second)  # noqa: SIM109  # Numba takes no tuples of mixed integers for `in`
                for c in range(1, 3):
                    if (b if c == 1 else d) != a:
                        part = component[i, c]
                        slots |= ((1 << (part.h * part.v)) - 1) << part.first
            if kind == 0:
                image.dc[0], image.dc[1], dc_slots = a, second, slots
            else:
                image.ac[0], image.ac[1], ac_slots = a, second, slots
        several = row.scans == 3
        fits = fits or several or many or four  # each scan has its own tables then
        status[i] = 0 if good and fits and blocks < (most_in_scans if many else most_blocks) else unsupported
        # A block takes at least two bits, so a huge image in a small file is rejected without allocating memory.
        if status[i] == 0 and not many and not four and blocks * 2 > scan_bytes * 8:
            status[i] = missing
        if many and status[i] == 0:
            status[i] = _check_scans(row, table, components, component[i], unsupported, missing)
        go = status[i] == 0
        alone = go and not several and not many and not four
        if not alone:
            blocks = scan_bytes = 0
        subsequences = _ceil(scan_bytes * 8, sub_bits) + 1
        restart = row.restart_interval
        segments = _ceil(mcus_x * mcus_y, restart) - 1 if alone and restart > 0 else 0
        image.owner = i
        image.known, image.known_count = states, known[i] if alone and len(known) > 0 else 0
        states += known[i] if len(known) > 0 else 0
        totals[UNKNOWNS] += alone and image.known_count == 0
        image.coefficients = totals[COEFFICIENTS] if go and many else -1
        image.raw, image.raw_size, image.scan = offsets[i], sizes[i], row.scan_offset
        image.width, image.height, image.components = row.width, row.height, components
        image.colour = RGB if four else row.colour
        image.mcus_x, image.mcus, image.blocks_in_mcu, image.block_count = mcus_x, mcus_x * mcus_y, in_mcu, blocks
        image.restart, image.segment_count, image.dc_slots, image.ac_slots = restart, segments, dc_slots, ac_slots
        _reserve(image, totals, scan_bytes, segments, blocks, subsequences * sub_entries)
        for c in range(3):
            part = component[i, c]
            part.quant, part.quant_wide = row.quant[c], (row.quant_16bit >> c) & 1
            part.expand_x, part.expand_y = h_max // max(part.h, 1), v_max // max(part.v, 1)
            part.width, part.height = _ceil(row.width * part.h, h_max), _ceil(row.height * part.v, v_max)
            part.pitch, part.plane = _ceil(mcus_x * part.h, 4) * 32, totals[PLANES]
            if go:
                samples = np.int64(part.pitch) * mcus_y * part.v * 8
                totals[PLANES] += samples
                if many:
                    totals[COEFFICIENTS] += samples
            needed[i, c] = go and c < components and (c == 0 or not luma_only or image.colour == RGB)
        unstuff_first[i], entropy_first[i] = unstuffs, entropies
        if alone:
            unstuffs += _ceil(scan_bytes + 15, unstuff_chunk)
            entropies += _ceil(subsequences, entropy_chunk)
    found = 0
    for i in range(len(headers)):
        row = headers[i]
        if row.status == FOUR:
            scan_bytes = max(sizes[i] - row.scan_offset, 0)
            if status[i] == 0:
                status[i] = _check_four(row, scan_bytes, unsupported, missing, most_blocks)
            fours[found] = extra
            found += 1
            for k in range(2):
                unstuff_first[extra + k], entropy_first[extra + k] = unstuffs, entropies
                status[extra + k], images[extra + k].owner = status[i], i
                images[extra + k].coefficients, images[extra + k].colour = -1, row.colour
                images[extra + k].raw, images[extra + k].raw_size = offsets[i], sizes[i]
                if k == 0 and status[i] == 0:
                    subsequences = _ceil(scan_bytes * 8, sub_bits) + 1
                    _plan_four(row, images, component, extra, totals, scan_bytes, subsequences * sub_entries)
                    unstuffs += _ceil(scan_bytes + 15, unstuff_chunk)
                    entropies += _ceil(subsequences, entropy_chunk)
            extra += 2
        for c in range(3 if row.scans == 3 else 0):
            scan, whole, part = images[extra], component[i, c], component[extra, 0]
            mcus_x, mcus_y = _ceil(whole.width, 8), _ceil(whole.height, 8)  # one block per MCU
            blocks, scan_bytes = np.int64(mcus_x) * mcus_y, max(row.end[c] - row.begin[c], 0)
            if status[i] == 0 and blocks * 2 > scan_bytes * 8:
                status[i] = missing
            go = status[i] == 0
            status[extra] = status[i]
            if not go:
                blocks = scan_bytes = 0
            restart = row.interval[c]
            segments = _ceil(mcus_x * mcus_y, restart) - 1 if go and restart > 0 else 0
            subsequences = _ceil(scan_bytes * 8, sub_bits) + 1
            scan.owner, scan.raw, scan.raw_size, scan.scan = i, offsets[i], row.end[c], row.begin[c]
            scan.coefficients = -1
            scan.width, scan.height, scan.components, scan.colour = whole.width, whole.height, 1, 0
            scan.mcus_x, scan.mcus, scan.blocks_in_mcu, scan.block_count = mcus_x, mcus_x * mcus_y, 1, blocks
            scan.restart, scan.segment_count, scan.dc[0], scan.ac[0] = restart, segments, row.dc[c], row.ac[c]
            _reserve(scan, totals, scan_bytes, segments, blocks, subsequences * sub_entries)
            part.h, part.v, part.expand_x, part.expand_y = 1, 1, 1, 1
            part.width, part.height, part.pitch, part.plane = whole.width, whole.height, whole.pitch, whole.plane
            part.quant, part.quant_wide = whole.quant, whole.quant_wide
            unstuff_first[extra], entropy_first[extra] = unstuffs, entropies
            if go:
                unstuffs += _ceil(scan_bytes + 15, unstuff_chunk)
                entropies += _ceil(subsequences, entropy_chunk)
                totals[UNKNOWNS] += 1
            extra += 1
    entropy_first[heads] = entropies
    unstuffs = _plan_scans(headers, status, images, component, table, scans, parts, levels, unstuff_chunk, unstuffs,
                           unstuff_first, heads, totals)  # fmt: skip
    totals[UNSTUFFS], totals[ENTROPIES] = unstuffs, entropies


@numba.njit(nogil=True, cache=True)
def _check_four(row: Any, scan_bytes: Any, unsupported: Any, missing: Any, most_blocks: Any) -> Any:
    """Return the status of an image of four components. It is supported if it has at most two Huffman tables of each
    kind (DC and AC), and at least two bits per block."""
    for kind in range(2):
        first = row.dc[0] if kind == 0 else row.ac[0]
        second = first
        for c in range(1, 4):
            table = row.dc[c] if kind == 0 else row.ac[c]
            if table != first and second != first and table != second:
                return unsupported
            if table != first:
                second = table
    mcus = np.int64(_ceil(row.width, 8 * row.h[0])) * _ceil(row.height, 8 * row.v[0])
    blocks = mcus * (2 * row.h[0] * row.v[0] + 2)
    return unsupported if blocks >= most_blocks else missing if blocks * 2 > scan_bytes * 8 else 0


@numba.njit(nogil=True, cache=True)
def _plan_four(
    row: Any, images: Any, component: Any, at: Any, totals: Any, scan_bytes: Any, entries: Any
) -> None:  # fmt: skip
    """Plan decoding of an image of four components. It has two rows: ``at`` for three components, and ``at`` + 1 for
    the fourth. Both rows have all blocks of the image, but each computes only the samples of its own components."""
    h_max, v_max = row.h[0], row.v[0]
    mcus_x, mcus_y = _ceil(row.width, 8 * h_max), _ceil(row.height, 8 * v_max)
    in_mcu, dc_slots, ac_slots = 0, 0, 0
    for c in range(4):
        here = ((1 << (row.h[c] * row.v[c])) - 1) << in_mcu
        if row.dc[c] != row.dc[0]:
            dc_slots |= here
        if row.ac[c] != row.ac[0]:
            ac_slots |= here
        part = component[at + c // 3, c % 3]
        part.h, part.v, part.first = row.h[c], row.v[c], in_mcu
        part.quant, part.quant_wide = row.quant[c], (row.quant_16bit >> c) & 1
        part.expand_x, part.expand_y = h_max // row.h[c], v_max // row.v[c]
        part.width, part.height = _ceil(row.width * row.h[c], h_max), _ceil(row.height * row.v[c], v_max)
        part.pitch, part.plane = _ceil(mcus_x * row.h[c], 4) * 32, totals[PLANES]
        totals[PLANES] += np.int64(part.pitch) * mcus_y * row.v[c] * 8
        in_mcu += row.h[c] * row.v[c]
    blocks, restart = np.int64(mcus_x) * mcus_y * in_mcu, row.restart_interval
    segments = _ceil(mcus_x * mcus_y, restart) - 1 if restart > 0 else 0
    for k in range(2):
        image = images[at + k]
        image.scan, image.width, image.height, image.components = row.scan_offset, row.width, row.height, 4 - 3 * k
        image.mcus_x, image.mcus, image.blocks_in_mcu, image.block_count = mcus_x, mcus_x * mcus_y, in_mcu, blocks
        image.restart, image.segment_count, image.dc_slots, image.ac_slots = restart, segments, dc_slots, ac_slots
        image.dc[0], image.ac[0] = row.dc[0], row.ac[0]
        for c in range(1, 4):
            if row.dc[c] != row.dc[0]:
                image.dc[1] = row.dc[c]
            if row.ac[c] != row.ac[0]:
                image.ac[1] = row.ac[c]
    _reserve(images[at], totals, scan_bytes, segments, blocks, entries)
    first, black = images[at], images[at + 1]
    black.words, black.segments, black.blocks = first.words, first.segments, first.blocks
    black.entries = first.entries
    totals[UNKNOWNS] += 1


@numba.njit(nogil=True, cache=True)
def _check_scans(row: Any, table: Any, components: Any, component: Any, unsupported: Any, missing: Any) -> Any:
    """Return the status of a progressive image with many scans. It is supported if its file is large enough: each block
    takes at least one bit in the scan that first gives its DC coefficient."""
    for c in range(components):
        part = component[c]
        h_max, v_max = component[0].h, component[0].v
        for other in range(components):
            h_max, v_max = max(h_max, component[other].h), max(v_max, component[other].v)
        width, height = _ceil(row.width * part.h, h_max), _ceil(row.height * part.v, v_max)
        blocks = np.int64(_ceil(width, 8)) * _ceil(height, 8)
        for s in range(row.first_scan, row.first_scan + row.scan_count):
            scan = table[s]
            if scan.end - scan.begin > _MOST_SCAN_BYTES:
                return unsupported
            if scan.first == 0 and scan.high == 0:
                for i in range(scan.count):
                    if scan.component[i] == c and blocks > 8 * np.int64(scan.end - scan.begin):
                        return missing
    return 0


_MOST_SCAN_BYTES = 1 << 27
"""Maximum bytes of a scan that the GPU decodes, because positions of bits are 32-bit numbers there."""
_READ_PAST = 384
"""Bytes beyond the end of a stream that a warp may read before it detects the end: a block has 63 codes of 31 bits."""
_SIZES = 28
"""Number of size classes, one per power of two of bytes; progressive images are planned by class, largest first."""


@numba.njit(nogil=True, cache=True)
def _size_class(row: Any, table: Any) -> Any:
    """Return the size class of an image by its number of compressed bytes; 0 is the class of the largest."""
    size, found = np.int64(0), _SIZES - 1
    for s in range(row.first_scan, row.first_scan + row.scan_count):
        size = max(size, np.int64(table[s].end - table[s].begin))
    while size > 1 and found > 0:
        size >>= 1
        found -= 1
    return found


@numba.njit(nogil=True, cache=True)
def _refines(scan: Any, other: Any) -> Any:
    """Return whether ``scan`` of a progressive image refines coefficients that an earlier scan, ``other``, has
    given."""
    if scan.high == 0 or scan.last < other.first or other.last < scan.first:
        return False
    for i in range(scan.count):
        for j in range(other.count):
            if scan.component[i] == other.component[j]:
                return True
    return False


@numba.njit(nogil=True, cache=True)
def _plan_scans(
    headers: Any, status: Any, images: Any, component: Any, table: Any, scans: Any, parts: Any, levels: Any,
    unstuff_chunk: Any, unstuffs: Any, unstuff_first: Any, at: Any, totals: Any,
) -> Any:  # fmt: skip
    """Plan the scans of progressive images. Their byte streams become rows of ``images`` from ``at`` on, their
    parameters rows of ``scans``. The largest images come first, so that they do not start last. Scans of an image stay
    in the order of its file, since a scan may only refine earlier ones. Return the number of CUDA thread blocks that
    unstuff all streams."""
    places = np.zeros(_SIZES, np.int64)
    for i in range(len(headers)):
        if headers[i].status == MANY_SCANS and status[i] == 0:
            places[_size_class(headers[i], table)] += headers[i].scan_count
    place = np.int64(0)
    for size in range(_SIZES):
        place, places[size] = place + places[size], place
    for i in range(len(headers)):
        row = headers[i]
        if row.status != MANY_SCANS or status[i] != 0:
            continue
        picture = images[i]
        size = _size_class(row, table)
        first, places[size] = places[size], places[size] + row.scan_count
        for s in range(row.first_scan, row.first_scan + row.scan_count):
            known, stream = table[s], images[at]
            levels[known.level] += 1
            nth = first + s - row.first_scan
            scan = scans[nth]
            scan.after[:] = 0
            for other in range(row.first_scan, s):
                if _refines(known, table[other]):
                    scan.after[(s - other - 1) >> 5] |= np.uint32(1 << ((s - other - 1) & 31))
            alone = known.count == 1
            one = component[i, known.component[0]]
            mcus_x = _ceil(one.width, 8) if alone else picture.mcus_x
            mcus = np.int64(mcus_x) * _ceil(one.height, 8) if alone else np.int64(picture.mcus)
            scan.image, scan.first, scan.last, scan.high, scan.low = at, known.first, known.last, known.high, known.low
            scan.mcus_x, scan.mcus, scan.restart, scan.count = mcus_x, mcus, known.interval, known.count
            scan.level = known.level
            for c in range(4):
                part, whole = parts[nth, c], component[i, known.component[c] if c < known.count else 0]
                part.coefficients = picture.coefficients + whole.plane - component[i, 0].plane
                part.h, part.v = (1, 1) if alone else (whole.h, whole.v)
                part.table, part.stride = known.table[c], whole.pitch // 8
            segments = _ceil(mcus, np.int64(known.interval)) - 1 if known.interval > 0 else np.int64(0)
            stream.owner, stream.coefficients, stream.raw = i, -1, picture.raw
            stream.raw_size, stream.scan = known.end, known.begin
            stream.segment_count, status[at] = segments, 0
            _reserve(stream, totals, known.end - known.begin + _READ_PAST, segments, 0, 0)
            unstuff_first[at] = unstuffs
            unstuffs += _ceil(known.end - known.begin + 15, unstuff_chunk)
            at += 1
    unstuff_first[at] = unstuffs
    return unstuffs


@numba.njit(nogil=True, cache=True)
def _wanted(part: Any, x0: Any, y0: Any, x1: Any, y1: Any, needed: Any) -> None:
    """Set which blocks of a component are needed for the image's pixels (x0, y0) to (x1, y1); none unless
    ``needed``."""
    halo_x, halo_y = int(part.expand_x > 1), int(part.expand_y > 1)
    first_x = max(x0 // part.expand_x - halo_x, 0)
    first_y = max(y0 // part.expand_y - halo_y, 0)
    last_x = min((x1 - 1) // part.expand_x + halo_x, part.width - 1)
    last_y = min((y1 - 1) // part.expand_y + halo_y, part.height - 1)
    part.roi_group, part.roi_row = first_x // 32, first_y // 8
    part.roi_groups = last_x // 32 - first_x // 32 + 1 if needed else 0
    part.roi_rows = last_y // 8 - first_y // 8 + 1


@numba.njit(nogil=True, cache=True)
def limit_blocks(
    windows: Any, images: Any, component: Any, needed: Any, groups_each: Any, idct_first: Any, dense_first: Any
) -> Any:
    """Set which blocks the inverse DCT computes: those that contain the windows (x0, y0, x1, y1), and one more sample
    on each side for upsampling; all blocks if there are no windows. Fill ``idct_first``, and ``dense_first`` for images
    with many scans: the number of thread blocks before each component. Return the larger total."""
    total, dense = np.int64(0), np.int64(0)
    for i in range(len(needed)):
        x0, y0, x1, y1 = 0, 0, images[i].width, images[i].height
        if len(windows):
            x0, y0 = max(min(windows[i, 0], x1 - 1), 0), max(min(windows[i, 1], y1 - 1), 0)
            x1, y1 = max(min(windows[i, 2], x1), x0 + 1), max(min(windows[i, 3], y1), y0 + 1)
        for c in range(3):
            part = component[i, c]
            _wanted(part, x0, y0, x1, y1, needed[i, c])
            idct_first[3 * i + c], dense_first[3 * i + c] = total, dense
            thread_blocks = _ceil(np.int64(part.roi_groups) * part.roi_rows, groups_each)
            if images[i].block_count > 0:
                total += thread_blocks
            elif images[i].coefficients >= 0:
                dense += thread_blocks
    nth = 0
    for i in range(len(needed), len(images)):
        owner = images[i].owner
        four = images[i].colour == CMYK or images[i].colour == YCCK
        for c in range(3):
            part = component[i, c]
            if four and part.h > 0:  # the blocks that the image's blocks need
                whole = component[owner, 0]
                x0, y0 = 32 * whole.roi_group, 8 * whole.roi_row
                x1 = min(x0 + 32 * whole.roi_groups, images[owner].width)
                _wanted(part, x0, y0, x1, min(y0 + 8 * whole.roi_rows, images[owner].height), needed[owner, 0])
            elif not four and c == 0:  # a scan: the blocks of its component
                whole = component[owner, nth % 3]
                part.roi_group, part.roi_groups = whole.roi_group, whole.roi_groups
                part.roi_row, part.roi_rows = whole.roi_row, whole.roi_rows
                nth += 1
            idct_first[3 * i + c] = total
            total += _ceil(np.int64(part.roi_groups) * part.roi_rows, groups_each)
    idct_first[3 * len(images)] = total
    dense_first[3 * len(needed) :] = dense
    return max(total, dense)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def strip_columns(
    image: Any, part: Any, axis: Any, coloured: Any, columns: Any, pool: Any, percent: Any, slots: Any
) -> Any:
    """Return how many columns of a resized image one warp of the kernel jpeg_strips computes, at most ``columns``; 0 if
    another kernel must resize the image.

    The warp has ``pool`` floats of shared memory: for 32 rows of its columns, in three channels, and four floats per
    source pixel that the columns depend on. No two output pixels may begin at the same source pixel, and at most
    ``slots`` may begin before the first of them ends. These starts are rounded sums, which are wrong by less than 0.02
    each."""
    across, down = axis[0], axis[1]
    if across.count <= 0 or down.count <= 0 or across.table < 0 or down.table < 0:
        return 0
    wide, high = abs(np.float64(across.scale)), abs(np.float64(down.scale))
    if not (wide > 1.02 and high > 1.02 and wide * high >= percent / 100):
        return 0
    if not (np.floor(slots * wide - 0.05) >= across.taps and np.floor(slots * high - 0.05) >= down.taps):
        return 0
    luma, other, third = part[0], part[1], part[2]
    if image.components == 3 and coloured:
        same = other.expand_x == third.expand_x and other.expand_y == third.expand_y and other.pitch == third.pitch
        full, half = other.expand_x == 1 and other.expand_y == 1, other.expand_x == 2 and other.expand_y <= 2
        if image.colour != YCBCR or not same or not (full or (half and other.width > 2)):
            return 0
    elif image.colour == RGB:
        return 0
    if luma.expand_x != 1 or luma.expand_y != 1:
        return 0
    most = min(columns, np.int64(across.count))
    while most > 0 and 32 * (3 * most + 1) + 4 + 4 * (np.ceil((most - 1) * wide) + across.taps + 8) > pool:
        most -= 1
    return most


@numba.njit(nogil=True, cache=True, error_model="numpy")
def tile_resizes(
    images: Any, component: Any, axis: Any, coloured: Any, threads: Any, block_work: Any, blocks_at_once: Any,
    slots: Any, columns: Any, pool: Any, percent: Any, strips_at_once: Any, first: Any, strips_first: Any,
) -> Any:  # fmt: skip
    """Compute how many output pixels each thread block of the resizing kernels computes (``tile`` of ``axis``), and the
    number of thread blocks before each image, the total last. ``strips_first`` is for images of the kernel jpeg_strips,
    ``first`` for the others. Return both totals.

    A block's work is estimated in instructions of a thread: about 20 per source pixel, 20 and 4 per filter weight for a
    column's share of a source row, 50 per output pixel. Source rows that two tiles read are processed twice. That costs
    at most a fifth, or more if few large images would leave most of the GPU idle. Strips are as high as the image; if
    these would be fewer than twice what the GPU can run at once, their height is a multiple of 32 rows."""
    total = strips_work = 0.0
    works = np.empty(len(images), np.float64)  # work of a row of the output
    for i in range(len(images)):
        across, down = axis[i, 0], axis[i, 1]
        wide, high = abs(np.float64(across.scale)), abs(np.float64(down.scale))
        row = 20.0 * (across.count * wide + across.taps) + (20.0 + 4.0 * across.taps) * across.count
        works[i] = high * row + 50.0 * across.count
        most = strip_columns(images[i], component[i], axis[i], coloured, columns, pool, percent, slots)
        across.tile = _ceil(np.int64(across.count), _ceil(np.int64(across.count), most)) if most > 0 else 0
        if most > 0:
            strips_work += high * down.count * across.count * wide
        elif 0 < works[i] < 1e15:
            total += works[i] * down.count
    goal, strip_goal = min(np.float64(block_work), total / (2 * blocks_at_once)), strips_work / (2 * strips_at_once)
    strips = np.int64(0)
    for i in range(len(images)):
        across, down = axis[i, 0], axis[i, 1]
        strips_first[i] = strips
        if across.tile:
            high = abs(np.float64(down.scale))
            rows = strip_goal / (across.tile * abs(np.float64(across.scale))) + down.taps
            rows = 32 * max(np.floor(rows / 32 + 0.5), np.ceil(4 * down.taps / 32))
            tile = min(max(np.int64((rows - down.taps) / high), 1), np.int64(down.count))
            down.tile = _ceil(np.int64(down.count), _ceil(np.int64(down.count), tile))
            wide_strips = _ceil(np.int64(across.count), np.int64(across.tile))
            strips += wide_strips * _ceil(np.int64(down.count), np.int64(down.tile))
    strips_first[len(images) :] = strips
    blocks = np.int64(0)
    for share in (5, 3, 2, 1):
        blocks = np.int64(0)
        for i in range(len(images)):
            across, down = axis[i, 0], axis[i, 1]
            first[i] = blocks
            if across.count > 0 and down.count > 0 and not across.tile:
                high = abs(np.float64(down.scale))
                rows = max(goal / works[i], share * (down.taps + 3) / high)
                tile = np.int64(down.count if rows >= down.count else rows if rows >= 1 else 1)
                tiles = _ceil(np.int64(down.count), tile)
                down.tile = _ceil(np.int64(down.count), tiles)
                blocks += _ceil(np.int64(across.count), threads) * _ceil(np.int64(down.count), np.int64(down.tile))
        first[len(images) :] = blocks
        if 2 * blocks >= blocks_at_once:
            break
    return blocks, strips


ELEMENTS, WEIGHTS, THREADS, THREAD_BLOCKS, STRIPS, TOTALS_OF_RESIZES = range(6)
"""Indices in the array of totals that `plan_resizes` computes for a batch."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def plan_resizes(
    images: Any, component: Any, status: Any, orientation: Any, lo: Any, hi: Any, support: Any, size: Any,
    anchor: Any, shape: Any, kind: Any, flip: Any, domain: Any, mirror: Any, channels: Any, planar: Any, tables: Any,
    limits: Any, rows: Any, axis: Any, shapes: Any, offsets: Any, windows: Any, first: Any, strips_first: Any,
    totals: Any,
) -> None:  # fmt: skip
    """Plan resizing of decoded images on a GPU, to outputs that follow each other. Write one record per image to
    ``rows`` and ``axis`` (x, y), and the outputs' ``shapes`` and ``offsets``. Also write the stored pixels that are
    read (``windows``: x0, y0, x1, y1), the number of thread blocks before each image (those of jpeg_strips separately),
    and ``totals``.

    ``lo`` to ``flip`` [N, 2] (H, W): a `resample.Plan` of the images as they are shown. ``domain`` [N, 2, 2]: begin and
    end of the pixels that may be read, or empty for all. ``mirror`` [N], or empty. ``planar``: channels first.
    ``tables`` [filters, 2]: first entry (-1: no table) and last index of each filter's table. ``limits``: maximum
    threads per block, and the limits of `tile_resizes`.
    """
    most_threads, block_work, blocks_at_once, slots, columns, pool, percent, strips_at_once = limits
    elements = weights = np.int64(0)
    widest = 1
    stored, strides = np.empty(2, np.int64), np.empty(2, np.int64)
    for i in range(len(images)):
        turned = orientation[i]
        swap = turned >= 5
        backwards_y = turned == 3 or turned == 4 or turned == 6 or turned == 7
        backwards_x = turned == 2 or turned == 3 or turned == 7 or turned == 8
        stored[0], stored[1] = images[i].height, images[i].width
        out_h, out_w = shape[i, 0], shape[i, 1]
        strides[0], strides[1] = (out_w, 1) if planar else (out_w * channels, channels)
        shapes[i, 0], shapes[i, 1], offsets[i] = out_h, out_w, elements
        out = elements
        for d in range(2):  # stored rows, stored columns
            a = 1 - d if swap else d  # the axis of the image as it is shown
            begin, end = (domain[i, a, 0], domain[i, a, 1]) if len(domain) else (np.int64(0), stored[d])
            low, high = lo[i, a], hi[i, a]
            part = axis[i, 1 - d]
            part.lo = np.float32(low - np.float32(begin)) if len(domain) else low
            part.scale = np.float32(high - low) / np.float32(size[i, a])
            corner = np.floor(min(part.lo, part.lo + np.float32(high - low)))
            part.corner = int(min(max(corner, 0), end - begin)) if corner == corner else 0
            part.stepwise = a == 0
            part.base = begin
            turns = high < low
            count = shape[i, a] if status[i] == 0 else 0
            at, reverse = anchor[i, a], flip[i, a]
            if a == 1 and len(mirror) and mirror[i]:
                reverse = not reverse
            if high < low:  # a reversed region: its outputs in reverse order
                low, high = high, low
                at, reverse = size[i, a] - at - count, not reverse
            if backwards_x if d else backwards_y:  # counted from the other end
                low, high = np.float32(stored[d] - np.float64(high)), np.float32(stored[d] - np.float64(low))
                part.base = stored[d] - 1 - begin
                begin, end = stored[d] - end, stored[d] - begin
                at, reverse, turns = size[i, a] - at - count, not reverse, not turns
            if reverse:
                out += max(count - 1, 0) * strides[a]
            part.stride = -strides[a] if reverse else strides[a]
            part.support = support[i, a]
            part.first, part.step = (size[i, a] - 1 - at, -1) if turns else (at, 1)
            part.count, part.begin, part.end = count, begin, end
            part.flip = backwards_x if d else backwards_y
            part.table, part.table_last = tables[kind[i, a], 0], tables[kind[i, a], 1]
            taps = max(1, int(np.ceil(support[i, a]))) if tables[kind[i, a], 0] >= 0 else 1
            part.taps, part.weights, part.tile, part.reached = taps, weights, 0, -1
            weights += (taps + 1) * count
            scale = np.float64(np.float32(high - low) / np.float32(size[i, a]))
            half = np.float64(support[i, a] / np.float32(2))
            near = np.floor(low + (at + 0.5) * scale - half - 1)
            far = np.ceil(low + (at + max(count, 1) - 0.5) * scale + half + 2)
            windows[i, 1 - d] = int(min(max(near, begin), end - 1)) if near == near else begin
            windows[i, 3 - d] = int(min(max(far, begin + 1), end)) if far == far else end
        rows[i].out, rows[i].stride_c, rows[i].image = out, out_w * out_h if planar else 1, i
        elements += out_w * out_h * channels
        widest = max(widest, axis[i, 0].count)
    threads = _ceil(_ceil(widest, _ceil(widest, most_threads)), 32) * 32
    totals[THREAD_BLOCKS], totals[STRIPS] = tile_resizes(
        images, component, axis, channels == 3, threads, block_work, blocks_at_once, slots, columns, pool, percent,
        strips_at_once, first, strips_first,
    )  # fmt: skip
    for i in range(len(images)):
        for d in range(2):
            part = axis[i, d]
            if axis[i, 0].tile:
                part.reached = _ceil(weights, 4) * 4
                reached = np.ceil(part.count * abs(np.float64(part.scale))) + part.taps + 2
                weights = part.reached + 4 * np.int64(reached)
    totals[ELEMENTS], totals[WEIGHTS], totals[THREADS] = elements, weights, threads


@numba.njit(nogil=True, cache=True)
def plan_pixels(
    images: Any, status: Any, orientation: Any, windows: Any, offsets: Any, channels: Any, limits: Any, rows: Any,
    shapes: Any, first: Any,
) -> Any:  # fmt: skip
    """Plan writing decoded images as interleaved pixels on a GPU. Write one record per image to ``rows``, the
    ``shapes`` (height, width), and to ``first`` the number of thread blocks before each image. Return the number of
    elements up to the end of the last output, and the number of thread blocks.

    ``windows`` [N, 4] (x0, y0, x1, y1) of images as they are shown, or empty for all pixels. ``offsets`` of the
    outputs, or empty if they follow each other. ``limits`` of the kernel jpeg_pixels: pixels of a warp's span, threads
    per block, pixels per block of an image that is rotated by its orientation."""
    span, threads, chunk = limits
    elements, end, blocks = np.int64(0), np.int64(0), np.int64(0)
    for i in range(len(status)):
        turned, row = orientation[i], rows[i]
        swap = turned >= 5
        flip_x = turned == 2 or turned == 3 or turned == 7 or turned == 8
        flip_y = turned == 3 or turned == 4 or turned == 6 or turned == 7
        stored_w, stored_h = np.int64(images[i].width), np.int64(images[i].height)
        shown_w, shown_h = (stored_h, stored_w) if swap else (stored_w, stored_h)
        x0: Any = np.int64(0)
        y0: Any = np.int64(0)
        x1, y1 = shown_w, shown_h
        if len(windows):
            x0, y0 = min(max(windows[i, 0], 0), shown_w), min(max(windows[i, 1], 0), shown_h)
            x1, y1 = min(max(windows[i, 2], x0), shown_w), min(max(windows[i, 3], y0), shown_h)
        width, height = (x1 - x0, y1 - y0) if status[i] == 0 else (np.int64(0), np.int64(0))
        x, y = (y0, x0) if swap else (x0, y0)
        row.width, row.height = width, height
        row.x, row.y = stored_w - 1 - x if flip_x else x, stored_h - 1 - y if flip_y else y
        across, down = -1 if flip_x else 1, -1 if flip_y else 1
        row.step_x_x, row.step_y_x = 0 if swap else across, across if swap else 0
        row.step_x_y, row.step_y_y = down if swap else 0, 0 if swap else down
        shapes[i, 0], shapes[i, 1] = height, width
        row.out = offsets[i] if len(offsets) else elements
        elements += width * height * channels
        end = max(end, row.out + width * height * channels)
        first[i] = blocks
        if width * height > 0:
            if across == 1 and down == 1 and not swap:  # a warp computes a span of two rows
                spans = _ceil(width + (row.x & 3), span) * ((height + (row.y & 1) + 1) // 2)
                blocks += _ceil(spans, threads // 32)
            else:
                blocks += _ceil(width * height, chunk)
    first[len(status) :] = blocks
    return end, blocks
