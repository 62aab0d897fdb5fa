"""Read the JPEG headers of a whole batch in one call: shapes, sampling, orientation, and the places of tables and
scans.

Shapes must be known on the host before a batch is planned, so headers are walked on the CPU: a Numba loop that holds no
GIL, a few microseconds per image. It fills one row per image; every field is int32, so the table can be uploaded as it
is. The rules are libjpeg's (images that it rejects are CORRUPT; those that it only warns about are UNSUPPORTED here, so
that the CPU decoder decides). Nothing is read outside ``[offset, offset + size)``, whatever the bytes are.

Names follow ITU-T T.81 (JPEG), TIFF 6.0 and Exif 2.3 (orientation), and Adobe TN #5116 (APP14).
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from ..exif import EXIF_RATIONALS, EXIF_SHORTS, EXIF_STRINGS
from .scans import COLUMNS as SCAN_COLUMNS
from .scans import MAX_BLOCKS_IN_MCU, SCAN, walk_scans
from .segments import huffman_tables, past_fill, past_scan, quantisation_tables, u16

# status
OK = 0  # a header that the GPU decoder supports
UNSUPPORTED = 1  # a complete JPEG header, but for another decoder
NOT_JPEG = 2  # does not start with SOI
TRUNCATED = 3  # ends before the first scan
CORRUPT = 4  # a segment contradicts the standard or itself
MANY_SCANS = 5  # a progressive image whose scans are in the table of scans: the CUDA decoder supports it
FOUR = 6  # CMYK or YCCK in one scan: the CUDA decoder converts it to RGB
COMPLETE = (OK, UNSUPPORTED, MANY_SCANS, FOUR)

# colour space that libjpeg assumes for the components
GRAY, YCBCR, RGB, CMYK, YCCK, UNKNOWN = 0, 1, 2, 3, 4, 5

MAX_DIMENSION = 65500  # libjpeg's limit

_SCALARS = (
    "status",
    "width",
    "height",
    "components",
    "precision",
    "sof",  # marker of the frame header, 0xC0 ... 0xCF
    "colour",
    "adobe_transform",  # -1: no APP14
    "orientation",  # Exif, 1 ... 8
    "restart_interval",  # in MCUs, 0: none
    "scans",  # 1: one scan holds every component; 3: each of three components has one; 0: not one of these
    "scan_offset",  # first entropy-coded byte, from the start of the image
    "quant_16bit",  # bit i: the quantisation table of component i has 16-bit entries
    "jfif",
    "junk",  # bytes between segments that belong to none
    "first_scan",  # its first row in the table of scans, and how many it has there
    "scan_count",
)
_VECTORS = (
    "h",  # sampling factors per component
    "v",
    "component_id",
    "quant",  # per component, from the start of the image: 64 entries in zig-zag order; 0: no such table
    "dc",  # 16 code counts and the symbols of its DC and AC Huffman tables in the first scan
    "ac",
    "begin",  # with a scan for each component: its first entropy-coded byte, the byte after its last one,
    "end",
    "interval",  # and its restart interval
)
HEADER = np.dtype([(name, np.int32) for name in _SCALARS] + [(name, np.int32, (4,)) for name in _VECTORS])

_STATUS, _WIDTH, _HEIGHT, _COMPONENTS, _PRECISION, _SOF, _COLOUR, _ADOBE = range(8)
_ORIENTATION, _RESTART, _SCANS, _SCAN_OFFSET, _QUANT_16BIT, _JFIF, _JUNK, _FIRST_SCAN, _SCAN_COUNT = range(8, 17)
_H, _V, _ID, _QUANT, _DC, _AC, _BEGIN, _END, _INTERVAL = (len(_SCALARS) + 4 * i for i in range(len(_VECTORS)))
_COLUMNS = len(_SCALARS) + 4 * len(_VECTORS)


def read_headers(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], sizes: NDArray[Any], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Read the header of every image ``buffer[offset : offset + size]``; return one HEADER row per image."""
    table = np.empty(len(offsets), HEADER) if out is None else out
    _walk_all(*_views(buffer, offsets, sizes, table), _NO_SCANS, False)
    return table


def read_scans(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], sizes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read the header of every image, and for progressive images those of all scans. Return HEADER rows and SCAN rows;
    HEADER rows with status MANY_SCANS contain indices of SCAN rows. Progressive files are read to the end; several
    threads share large batches of them."""
    table = read_headers(buffer, offsets, sizes)
    scanned = np.cumsum(np.where(table["sof"] == 0xC2, sizes, 0), dtype=np.int64)
    if not len(table) or scanned[-1] == 0:
        return table, np.empty(0, SCAN)
    pieces = int(min(_WALKERS, scanned[-1] // _BYTES_OF_A_WALK + 1))
    ends = np.searchsorted(scanned, scanned[-1] * np.arange(1, pieces) // pieces).tolist()

    def walk(begin: int, end: int) -> NDArray[Any]:
        views = _views(buffer, offsets[begin:end], sizes[begin:end], table[begin:end])
        scans = np.empty(_SCANS_EACH * (end - begin), SCAN)
        while True:
            count = _walk_all(*views, scans.view(np.int32).reshape(len(scans), SCAN_COLUMNS), True)
            if count <= len(scans):
                return scans[:count]
            scans = np.empty(count, SCAN)

    borders = list(pairwise([0, *ends, len(table)]))
    found = [_walkers().submit(walk, a, b) for a, b in borders[1:]]
    parts = [walk(*borders[0]), *(f.result() for f in found)]
    before = 0
    for (begin, end), part in zip(borders, parts, strict=True):
        table["first_scan"][begin:end] += before
        before += len(part)
    return table, np.concatenate(parts)


@functools.cache
def _walkers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WALKERS - 1, thread_name_prefix="walk")


os.register_at_fork(after_in_child=_walkers.cache_clear)  # its threads stay in the parent process
_WALKERS = 4
_BYTES_OF_A_WALK = 4 << 20  # fewer bytes are walked sooner than another thread wakes up


_SCANS_EACH = 12  # libjpeg makes ten
_NO_SCANS = np.empty((0, SCAN_COLUMNS), np.int32)


def _views(buffer: Any, offsets: Any, sizes: Any, table: NDArray[Any]) -> tuple[Any, Any, Any, Any]:
    columns = table.view(np.int32).reshape(len(offsets), _COLUMNS)
    buffer = buffer.view()
    buffer.flags.writeable = False  # one type for Numba, whether the bytes are mapped read-only or not
    return buffer, np.asarray(offsets, np.int64), np.asarray(sizes, np.int32), columns  # shapes have dtype int32


_BYTES_PER_COEFFICIENT = 2
_GPU_BYTES_PER_ENCODED = 9
"""Bytes of device memory for coefficients, per byte of a file, that the CUDA decoder needs. A coefficient has at least
four bits in the file, and takes four bytes."""
_GPU_BYTES_PER_IMAGE = 44 << 10
"""Bytes of device memory that the CUDA decoder needs per image, for its tables and records."""
_GPU_BYTES_PER_SCANNED, _GPU_BYTES_PER_SAMPLE, _GPU_BYTES_PER_SCAN = 3, 3, 1024
"""Bytes of device memory that the CUDA decoder needs for a progressive image with many scans: per byte of the file (a
copy without stuffing), per sample (a coefficient), and per scan (its records)."""


def why_not_plain(rows: NDArray[Any]) -> dict[str, int]:
    """Return, for the report, the reasons why the CUDA decoder does not decode some JPEGs, and the number of images per
    reason. ``rows``: headers of the images."""
    sof = rows["sof"]
    reasons = (
        ("unusual progressive", np.isin(sof, (0xC2, 0xC6, 0xCA, 0xCE)) & (rows["status"] != MANY_SCANS)),
        ("arithmetic coding", sof >= 0xC9),
        ("lossless or hierarchical", ~np.isin(sof, (0xC0, 0xC1, 0xC2))),
        ("more than 8 bits", rows["precision"] != 8),
        ("CMYK, or an odd number of components", ~np.isin(rows["components"], (1, 3)) & (rows["status"] != FOUR)),
        ("several scans", (rows["scans"] != 1) & (rows["scans"] != 3) & (rows["status"] != MANY_SCANS)),
        ("odd sampling, tables or markers", ~np.isin(rows["status"], (OK, MANY_SCANS, FOUR))),
        ("output type, or cut short", np.ones(len(rows), np.bool_)),
    )
    found: dict[str, int] = {}
    left = np.ones(len(rows), np.bool_)
    for reason, mask in reasons:
        if n := int((mask & left).sum()):
            found[reason] = n
        left &= ~mask
    return found


@numba.njit(cache=True)
def summarise(
    rows: Any, turning: Any, max_pixels: Any, orientation: Any, extents: Any, channels: Any, good: Any, odd: Any
) -> Any:
    """Fill in, for each image, ``extents`` [N, 2] (height, width after orientation), ``channels``, ``orientation`` (1
    unless ``turning``), and ``good``, which is always true. ``odd`` becomes true for images that the caller must check
    one by one: too large, or not JPEGs of a common kind. Return the number of these."""
    found = 0
    for i in range(len(rows)):
        row = rows[i]
        orientation[i] = row.orientation if turning else 1
        swap = orientation[i] >= 5
        height, width = (row.width, row.height) if swap else (row.height, row.width)
        extents[i, 0], extents[i, 1], good[i] = height, width, True
        channels[i] = 1 if row.components == 1 else 3
        odd[i] = (row.status != OK and row.status != MANY_SCANS) or np.int64(height) * width > max_pixels
        found += odd[i]
    return found


@numba.njit(cache=True)
def planes(row: Any) -> Any:
    """Return the bytes of device memory that the CUDA decoder needs for an image's samples, and for the positions of
    each block's coefficients."""
    across, down, found = 1, 1, np.int64(0)
    for c in range(min(row.components, 3)):
        across, down = max(across, row.h[c]), max(down, row.v[c])
    for c in range(min(row.components, 3)):
        wide = -(-row.width // (8 * across)) * max(row.h[c], 1)
        high = np.int64(-(-row.height // (8 * down))) * max(row.v[c], 1)
        found += high * ((wide + 3) // 4 * 256 + 8 * wide)
    return found if row.components < 4 else 2 * found


@numba.njit(cache=True)
def foreseen(
    rows: Any, shapes: Any, on_gpu: Any, aside: Any, turning: Any, max_pixels: Any, fixed: Any, elements: Any,
    besides: Any,
) -> Any:  # fmt: skip
    """Estimate, for each image, the elements when decoded, and the other bytes that decoding needs; see
    `headers.estimate_memory`. ``shapes`` [N, 1]: bytes of the files. ``aside``: whether all JPEGs are decoded to
    separate memory first, not directly into the output. ``turning``: whether JPEGs with an Exif orientation are.
    ``fixed``: see `decoded_shapes`. Return the number of images that are not JPEGs."""
    others = 0
    for i in range(len(rows)):
        row = rows[i]
        others += row.status == NOT_JPEG
        pixels = np.int64(row.width) * row.height
        elements[i] = besides[i] = 0
        if pixels < 1 or pixels > max_pixels:
            continue
        elements[i] = pixels * (fixed if fixed > 0 else 1 if row.components == 1 else 3)
        coefficients = _BYTES_PER_COEFFICIENT * pixels * min(row.components, 4)
        if on_gpu and row.status == MANY_SCANS:
            samples = _GPU_BYTES_PER_SAMPLE * pixels * row.components
            besides[i] = (
                _GPU_BYTES_PER_SCANNED * np.int64(shapes[i, 0]) + samples + _GPU_BYTES_PER_SCAN * row.scan_count
            )
            continue
        if on_gpu:
            besides[i] = _GPU_BYTES_PER_ENCODED * np.int64(shapes[i, 0]) + _GPU_BYTES_PER_IMAGE + planes(row)
            continue
        if aside or (turning and row.orientation != 1):
            besides[i] = 3 * pixels
        # pixels need the coefficients of all scans
        if row.sof == 0xC2 or row.sof == 0xC6 or row.sof == 0xCA or row.sof == 0xCE:
            besides[i] += coefficients
    return others


@numba.njit(cache=True)
def refused(good: Any, status: Any) -> Any:
    """Return the number of ``good`` images whose ``status`` is not 0."""
    found = 0
    for i in range(len(good)):
        found += good[i] and status[i] != 0
    return found


@numba.njit(cache=True)
def decoded_shapes(height: Any, width: Any, channels: Any, fixed: Any, good: Any, shapes: Any) -> None:
    """Fill ``shapes`` [N, 3] with the shapes of decoded images. Images that are not ``good`` get height and width 0.
    ``fixed``: number of channels of every image; if 0, ``channels`` has one number for each."""
    for i in range(len(good)):
        shapes[i, 0] = height[i] if good[i] else 0
        shapes[i, 1] = width[i] if good[i] else 0
        shapes[i, 2] = fixed if fixed > 0 else channels[i]


@numba.njit(nogil=True, cache=True)
def _walk_all(buffer, offsets, sizes, table, scans, whole):  # type: ignore[no-untyped-def]
    """Read the headers of all images into ``table``. If ``whole``, also read the headers of all scans of progressive
    files into ``scans``. Return the number of rows that ``scans`` needs, which may exceed its length."""
    tables, known = np.empty((3, 4), np.int32), np.empty((2, 4, 64), np.int8)
    count: Any = np.int64(0)
    for i in range(len(offsets)):
        begin, end = offsets[i], offsets[i] + sizes[i]
        row = table[i]
        row[:] = 0
        row[_ADOBE] = -1
        row[_ORIENTATION] = 1
        if begin < 0 or sizes[i] < 0 or end > len(buffer):
            row[_STATUS] = CORRUPT
        else:
            row[_STATUS] = _walk(buffer[begin:end], row, tables, whole, scans[min(count, len(scans)) :], known)
        row[_FIRST_SCAN] = count
        count += row[_SCAN_COUNT]
    return count


@numba.njit(nogil=True, cache=True)
def walking():  # type: ignore[no-untyped-def]
    """Return three uninitialised arrays that `head_of` takes as scratch memory: row, tables, known."""
    return np.empty(_COLUMNS, np.int32), np.empty((3, 4), np.int32), np.empty((2, 4, 64), np.int8)


@numba.njit(nogil=True, cache=True)
def head_of(data, row, tables, known):  # type: ignore[no-untyped-def]
    """Return the number of bytes at the start of the file ``data`` that `read_headers` reads. The whole file is read if
    it has several scans, or if the CUDA decoder does not support it."""
    row[:] = 0
    row[_ADOBE] = -1
    status = _walk(data, row, tables, False, np.empty((0, SCAN_COLUMNS), np.int32), known)
    if (status == OK and row[_SCANS] == 1) or status == FOUR:
        return np.int64(row[_SCAN_OFFSET])
    return np.int64(len(data))


@numba.njit(nogil=True, cache=True)
def _walk(data, row, tables, whole, scans, known):  # type: ignore[no-untyped-def]
    """Read the segments of a JPEG up to its first scan. If it is progressive with many scans and ``whole``, go on to
    the last scan, and write all scans to ``scans``. ``tables``: offsets of the quantisation, DC and AC tables defined
    so far. Return the status of the image."""
    size = len(data)
    if size < 2 or data[0] != 0xFF or data[1] != 0xD8 or (size > 2 and data[2] != 0xFF):
        return NOT_JPEG
    tables[:] = 0
    wide: Any = np.int64(0)  # bit i: quantisation table i has 16-bit entries
    exif: Any = False
    at = 2
    while True:
        while at < size and data[at] != 0xFF:
            row[_JUNK] += 1
            at += 1
        at = past_fill(data, at)
        if at >= size:
            return TRUNCATED
        marker = np.int64(data[at])
        at += 1
        if marker == 0x00:
            row[_JUNK] += 2
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # TEM and RSTn have no parameters
            continue
        if marker == 0xD8:
            return CORRUPT
        if marker == 0xD9:
            return TRUNCATED
        if at + 2 > size:
            return TRUNCATED
        begin, end = at + 2, at + u16(data, at)
        if end < begin:  # a length that does not include itself: libjpeg skips nothing for some markers
            if not (0xE0 <= marker <= 0xEF or marker == 0xFE):
                return CORRUPT
            end = begin
        if end > size:
            return TRUNCATED
        if marker == 0xDA:
            return _scan(data, begin, end, row, tables, wide, whole, scans, known)
        error: Any = OK
        if marker == 0xC4:
            error = huffman_tables(data, begin, end, tables)
        elif marker == 0xDB:
            error, wide = quantisation_tables(data, begin, end, tables, wide)
        elif marker == 0xDD:
            if end - begin != 2:
                return CORRUPT
            row[_RESTART] = u16(data, begin)
        elif 0xC0 <= marker <= 0xCF and marker != 0xC8 and marker != 0xCC:
            error = _frame(data, begin, end, row, marker)
        elif marker == 0xE0:
            if end - begin >= 14 and u16(data, begin) == 0x4A46 and u16(data, begin + 2) == 0x4946:  # JFIF
                row[_JFIF] = 1 if data[begin + 5] == 1 else 2  # libjpeg warns about a major version other than 1
        elif marker == 0xE1:
            exif = exif or _exif(data, begin, end, row)  # the first Exif segment decides, as in Pillow
        elif marker == 0xEE:
            if end - begin >= 12 and u16(data, begin) == 0x4164 and u16(data, begin + 2) == 0x6F62:  # Adobe
                row[_ADOBE] = data[begin + 11]
        elif not (0xE0 <= marker <= 0xEF or marker == 0xFE or marker == 0xDC or marker == 0xCC):
            return CORRUPT
        if error != OK:
            return error
        at = end


@numba.njit(nogil=True, cache=True)
def _frame(data, at, end, row, marker):  # type: ignore[no-untyped-def]
    if row[_SOF] or end - at < 6:
        return CORRUPT
    count = np.int64(data[at + 5])
    row[_SOF], row[_PRECISION], row[_COMPONENTS] = marker, data[at], count
    row[_HEIGHT], row[_WIDTH] = u16(data, at + 1), u16(data, at + 3)
    if end - at != 6 + 3 * count or count == 0 or row[_HEIGHT] == 0 or row[_WIDTH] == 0:
        return CORRUPT
    if row[_HEIGHT] > MAX_DIMENSION or row[_WIDTH] > MAX_DIMENSION or count > 10:
        return CORRUPT
    for i in range(count):
        h, v = data[at + 7 + 3 * i] >> 4, data[at + 7 + 3 * i] & 15
        if h < 1 or h > 4 or v < 1 or v > 4:
            return CORRUPT
        if i < 4:
            row[_ID + i], row[_H + i], row[_V + i] = data[at + 6 + 3 * i], h, v
            row[_QUANT + i] = data[at + 8 + 3 * i]  # the index, until the scan binds the table itself
    return OK


@numba.njit(nogil=True, cache=True)
def _scan(data, at, end, row, tables, wide, whole, scans, known):  # type: ignore[no-untyped-def]
    """Read the header of a scan, at data[at:end]. Assign Huffman and quantisation tables to the components, and choose
    which decoder decodes the image."""
    row[_SCAN_OFFSET] = end
    count = np.int64(data[at]) if end > at else 0
    if row[_SOF] == 0 or count < 1 or count > 4 or end - at != 4 + 2 * count:
        return CORRUPT
    components = row[_COMPONENTS]
    row[_COLOUR] = _colour(row)
    sequential = row[_SOF] == 0xC0 or row[_SOF] == 0xC1
    row[_SCANS] = 1 if sequential and count == components else 0
    warned = row[_JUNK] > 0 or row[_JFIF] == 2 or (components == 3 and row[_ADOBE] > 1)
    warned |= components == 4 and row[_ADOBE] != -1 and row[_ADOBE] != 0 and row[_ADOBE] != 2
    progressive = row[_SOF] == 0xC2 and row[_PRECISION] == 8 and (components == 1 or components == 3)
    if whole and progressive and not warned and _many_scans(data, at, end, row, tables, wide, scans, known):
        return MANY_SCANS
    in_order = count == components
    quant = (np.int64(row[_QUANT]), np.int64(row[_QUANT + 1]), np.int64(row[_QUANT + 2]))
    missing_quant = missing_huffman = False
    for i in range(min(components, 4)):
        table = row[_QUANT + i]
        row[_QUANT + i] = tables[0, table] if table < 4 else 0
        missing_quant |= row[_QUANT + i] == 0
        if table < 4 and wide >> table & 1:
            row[_QUANT_16BIT] |= 1 << i
    for i in range(count):
        if i >= components or np.int32(data[at + 1 + 2 * i]) != row[_ID + i]:
            in_order = False
            continue
        dc, ac = data[at + 2 + 2 * i] >> 4, data[at + 2 + 2 * i] & 15
        if dc > 3 or ac > 3:
            return CORRUPT
        row[_DC + i], row[_AC + i] = tables[1, dc], tables[2, ac]
        missing_huffman |= row[_DC + i] == 0 or row[_AC + i] == 0
    spectral = 4 + 2 * count - 3
    whole = data[at + spectral] == 0 and data[at + spectral + 1] == 63 and data[at + spectral + 2] == 0
    if sequential and row[_PRECISION] == 8 and count == 1 and components == 3:
        return UNSUPPORTED if warned or not _sampling_supported(row) else _scans(data, at, row, tables, wide, quant)
    if not sequential or row[_PRECISION] != 8 or not in_order or not whole:
        return UNSUPPORTED
    if components == 4:
        return UNSUPPORTED if warned or missing_quant or missing_huffman or not _four_supported(row) else FOUR
    if components != 1 and components != 3:
        return UNSUPPORTED
    if missing_quant:
        return CORRUPT
    if missing_huffman or warned or not _sampling_supported(row):
        return UNSUPPORTED
    return OK


@numba.njit(nogil=True, cache=True)
def _many_scans(data, at, end, row, tables, wide, scans, known):  # type: ignore[no-untyped-def]
    """Return whether the CUDA decoder supports the scans of a progressive image. The parameters of the first scan are
    at data[at:end]. If not supported, the tables defined so far stay unchanged."""
    if not _sampling_supported(row):
        return False
    quant, later = row[_QUANT : _QUANT + 4].copy(), tables.copy()
    count, wide_bound = walk_scans(
        data, at, end, row[_COMPONENTS], row[_ID : _ID + 4], row[_H : _H + 4], row[_V : _V + 4], quant,
        np.int64(row[_RESTART]), later, wide, scans, known,
    )  # fmt: skip
    if count < 0:
        return False
    row[_SCAN_COUNT], row[_QUANT_16BIT] = count, wide_bound
    row[_QUANT : _QUANT + 4] = quant
    return True


@numba.njit(nogil=True, cache=True)
def _scans(data, at, row, tables, wide, quant):  # type: ignore[no-untyped-def]
    """Find the scans of an image whose three components have one scan each. ``at``: offset of the first scan's
    parameters. ``quant``: number of each component's quantisation table. Return UNSUPPORTED if anything is unusual,
    such as a table that comes too late."""
    found = np.zeros((3, 6), np.int64)  # dc, ac, quant, begin, end, interval
    interval, wide_found, component = np.int64(row[_RESTART]), np.int64(0), 0
    for nth in range(3):
        if nth > 0:
            found[component, 4], at, interval, wide = _next_scan(data, found[component, 3], tables, interval, wide)
            if at < 0:
                return UNSUPPORTED
        if data[at] != 1 or data[at + 3] != 0 or data[at + 4] != 63 or data[at + 5] != 0:
            return UNSUPPORTED
        component = -1
        for c in range(3):
            if row[_ID + c] == np.int32(data[at + 1]) and component < 0:
                component = c
        dc, ac = data[at + 2] >> 4, data[at + 2] & 15
        if component < 0 or found[component, 3] > 0 or dc > 3 or ac > 3 or quant[component] > 3:
            return UNSUPPORTED
        table = quant[component]
        found[component, 0], found[component, 1], found[component, 2] = tables[1, dc], tables[2, ac], tables[0, table]
        found[component, 3], found[component, 4], found[component, 5] = at + 6, len(data), interval
        wide_found |= (wide >> table & 1) << component
        if tables[1, dc] == 0 or tables[2, ac] == 0 or tables[0, table] == 0:
            return UNSUPPORTED
    for c in range(3):
        row[_DC + c], row[_AC + c], row[_QUANT + c] = found[c, 0], found[c, 1], found[c, 2]
        row[_BEGIN + c], row[_END + c], row[_INTERVAL + c] = found[c, 3], found[c, 4], found[c, 5]
    row[_QUANT_16BIT], row[_SCANS] = wide_found, 3
    return OK


@numba.njit(nogil=True, cache=True)
def _next_scan(data, at, tables, interval, wide):  # type: ignore[no-untyped-def]
    """Skip from the entropy-coded bytes at ``at`` to the next scan of one component. Return the offset where these
    bytes end; the offset of the next scan's parameters, -1 if there is none or something unusual comes first; and the
    values of DRI and DQT in between."""
    size = len(data)
    stop, at, marker = past_scan(data, at)
    nothing = stop, np.int64(-1), interval, wide
    while True:
        if marker < 0 or at + 2 > size:
            return nothing
        begin, end = at + 2, at + u16(data, at)
        if end < begin or end > size:
            return nothing
        error: Any = OK
        if marker == 0xDA:
            return (stop, begin, interval, wide) if end - begin == 6 else nothing
        if marker == 0xC4:
            error = huffman_tables(data, begin, end, tables)
        elif marker == 0xDB:
            error, wide = quantisation_tables(data, begin, end, tables, wide)
        elif marker == 0xDD and end - begin == 2:
            interval = u16(data, begin)
        elif marker != 0xFE:
            return nothing
        at = end
        if error != OK or at >= size or data[at] != 0xFF:
            return nothing
        at = past_fill(data, at)
        if at >= size:
            return nothing
        marker = np.int64(data[at])
        at += 1


@numba.njit(nogil=True, cache=True)
def _sampling_supported(row):  # type: ignore[no-untyped-def]
    components = row[_COMPONENTS]
    if components == 1:
        return True  # a scan of one component has one block in its MCU, whatever its factors
    h_max, v_max, blocks = 1, 1, 0
    for i in range(components):
        h_max, v_max = max(h_max, row[_H + i]), max(v_max, row[_V + i])
        blocks += row[_H + i] * row[_V + i]
    for i in range(components):
        if h_max % row[_H + i] or v_max % row[_V + i]:
            return False
    return blocks <= MAX_BLOCKS_IN_MCU


@numba.njit(nogil=True, cache=True)
def _four_supported(row):  # type: ignore[no-untyped-def]
    """Return whether TurboJPEG supports the sampling factors of an image of four components: the fourth is sampled like
    the first, the two between at most as densely. Pillow converts other images to RGB differently."""
    h, v = row[_H], row[_V]
    if row[_H + 3] != h or row[_V + 3] != v or h * v > 4 or h == 3 or v > 2:
        return False
    return row[_H + 1] == 1 and row[_V + 1] == 1 and row[_H + 2] == 1 and row[_V + 2] == 1


@numba.njit(nogil=True, cache=True)
def _colour(row):  # type: ignore[no-untyped-def]
    """Return the colour space of the image, as libjpeg assumes it (default_decompress_parms): by JFIF, then the Adobe
    marker, then the component names."""
    if row[_COMPONENTS] == 1:
        return GRAY
    if row[_COMPONENTS] == 3:
        if row[_JFIF]:
            return YCBCR
        if row[_ADOBE] >= 0:
            return RGB if row[_ADOBE] == 0 else YCBCR
        named_rgb = row[_ID] == 0x52 and row[_ID + 1] == 0x47 and row[_ID + 2] == 0x42
        return RGB if named_rgb else YCBCR
    if row[_COMPONENTS] == 4:
        return YCCK if row[_ADOBE] > 0 else CMYK
    return UNKNOWN


@numba.njit(nogil=True, cache=True)
def _exif(data, at, end, row):  # type: ignore[no-untyped-def]
    """Read the orientation (tag 0x0112) from the first image file directory of an Exif segment to ``row``. Return
    whether the segment is Exif. As in DALI, the whole directory is ignored if an entry is cut off, or if the value of a
    baseline tag is outside the segment; the type of the tag does not matter."""
    tiff = at + 6
    if end - tiff < 0 or u16(data, at) != 0x4578 or u16(data, at + 2) != 0x6966 or u16(data, at + 4) != 0:  # Exif
        return False
    if end - tiff < 8:
        return True
    little = u16(data, tiff) == 0x4949
    if not little and u16(data, tiff) != 0x4D4D:
        return True
    if _tiff16(data, tiff + 2, little) != 42:
        return True
    directory = tiff + _tiff32(data, tiff + 4, little)
    if directory + 2 > end:
        return True
    found: Any = 0
    seen = False
    for i in range(_tiff16(data, directory, little)):
        entry = directory + 2 + 12 * i
        if entry + 2 > end:
            return True
        tag = _tiff16(data, entry, little)
        if tag in EXIF_SHORTS:
            if entry + 10 > end:
                return True
            if tag == 0x0112 and not seen:
                found, seen = _tiff16(data, entry + 8, little), True
            continue
        size: Any = 0  # bytes of a value that is stored elsewhere
        if tag in EXIF_STRINGS:
            if entry + 8 > end:
                return True
            size = _tiff32(data, entry + 4, little)
            if size <= 4:
                continue
        for rational, its_size in EXIF_RATIONALS:
            if tag == rational:
                size = its_size
        if size > 0 and (entry + 12 > end or tiff + _tiff32(data, entry + 8, little) + size > end):
            return True
    if 1 <= found <= 8:
        row[_ORIENTATION] = found
    return True


@numba.njit(nogil=True, cache=True)
def _tiff16(data, at, little):  # type: ignore[no-untyped-def]
    low, high = (data[at], data[at + 1]) if little else (data[at + 1], data[at])
    return (np.int64(high) << 8) | np.int64(low)


@numba.njit(nogil=True, cache=True)
def _tiff32(data, at, little):  # type: ignore[no-untyped-def]
    first, second = _tiff16(data, at, little), _tiff16(data, at + 2, little)
    return (second << 16) | first if little else (first << 16) | second
