"""Compiled loops that plan resampling and cropping of a whole batch; NumPy would need dozens of calls for each.

They all keep the GIL: acquiring it again would take longer than they do. Types are those of the formulas: float32 where
DALI 2.4 has float32, so that sizes and regions equal DALI's to the bit. Arguments of the user have a row per sample, or
one for all.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ...copies.windows_cpu import place_along

MODES = ("stretch", "default", "not_larger", "not_smaller")
"""Rules by which output lengths that are not requested are computed from the others; `fit` gets the index of a rule."""
_, DEFAULT, _, NOT_SMALLER = range(4)

_ONE, _TWO, _HALF = np.float32(1), np.float32(2), np.float32(0.5)
_LARGEST = 2.0**31 - 1
_FARTHEST = 1e6
"""Maximum distance in pixels from the image to the ends of a region: beyond it, the image's edge is only repeated."""

# The following functions are inlined where they are called: passing this many arrays for each image takes as long as
# the work.


@numba.njit(error_model="numpy", forceinline=True)
def _complete(wanted: Any, lo: Any, hi: Any, i: Any, known: Any, mode: Any, limit: Any) -> None:
    """Compute the lengths of image ``i`` that are 0 in ``wanted`` from the other lengths, by ``mode``, and apply the
    maximum lengths in ``limit``."""
    if known == 0:
        for a in range(len(wanted)):
            wanted[a] = hi[i, a] - lo[i, a]
        return
    product, final = 1.0, 0.0 if mode == NOT_SMALLER else np.inf
    for a in range(len(wanted)):
        extent = hi[i, a] - lo[i, a]
        if wanted[a] != 0 and extent != 0:
            scale = abs(np.float64(wanted[a] / extent))
            product *= scale
            final = max(final, scale) if mode == NOT_SMALLER else min(final, scale)
    if mode <= DEFAULT:
        # Powers cost more than everything else here, and a compiler hoists them out of loops even if they are not used.
        mean = product ** (1.0 / known) if mode == DEFAULT and known < len(wanted) else 1.0
        for a in range(len(wanted)):
            extent = hi[i, a] - lo[i, a]
            if wanted[a] == 0 or extent == 0:
                wanted[a] = np.float32(np.float64(extent) * mean)
            if len(limit) and limit[a] > 0 and abs(wanted[a]) > limit[a]:
                wanted[a] = np.copysign(limit[a], wanted[a])
        return
    if len(limit):
        most = np.inf
        for a in range(len(wanted)):
            if limit[a] > 0:
                most = min(most, np.float64(limit[a]) / np.float64(hi[i, a] - lo[i, a]))
        final = min(final, most)
    for a in range(len(wanted)):
        extent = hi[i, a] - lo[i, a]
        scale = np.float64(wanted[a] / extent) if extent != 0 else np.float64(1)
        if wanted[a] == 0 or extent == 0 or abs(scale) != final:
            wanted[a] = np.float32(np.float64(extent) * np.copysign(final, scale))


@numba.njit(error_model="numpy", forceinline=True)
def _fit(wanted: Any, lo: Any, hi: Any, i: Any, extents: Any, mode: Any, limit: Any, subpixel: Any, sizes: Any) -> None:
    """Compute size and region of image ``i`` as `fit` does. The region is [``lo``, ``hi``); the requested size,
    ``wanted`` [A], is overwritten."""
    known, empty = np.int64(0), False  # with a literal, Numba would compile `_complete` a second time
    for a in range(len(wanted)):
        if hi[i, a] < lo[i, a]:
            lo[i, a], hi[i, a] = hi[i, a], lo[i, a]
            wanted[a] = -wanted[a]
        known += int(wanted[a] != 0 and hi[i, a] - lo[i, a] != 0)
        empty = empty or extents[i, a] == 0
    if known < len(wanted) or mode > DEFAULT or len(limit):
        _complete(wanted, lo, hi, i, known, mode, limit)
    for a in range(len(wanted)):
        size = wanted[a]
        pixels = abs(size)
        rounded = np.floor(np.float64(pixels) + 0.5)
        rounded = min(max(rounded, 0.0 if empty else 1.0), _LARGEST)
        if size < 0:
            lo[i, a], hi[i, a] = hi[i, a], lo[i, a]
        begin, end = np.float64(lo[i, a]), np.float64(hi[i, a])
        if subpixel and rounded != pixels and pixels > 0:
            adjustment = min(max(rounded / np.float64(pixels), -10.0), 10.0)
            centre = np.float64(lo[i, a] + hi[i, a]) * 0.5
            begin, end = centre + (begin - centre) * adjustment, centre + (end - centre) * adjustment
        reach = np.float64(extents[i, a]) + _FARTHEST
        lo[i, a] = np.float32(min(max(begin, -_FARTHEST), reach))
        hi[i, a] = np.float32(min(max(end, -_FARTHEST), reach))
        sizes[i, a] = np.int64(rounded)


@numba.njit(
    "int64(float32[:, :], float32[:, :], float32[:, :], int64[:, :], int64, float32[::1], boolean, "
    "float32[:, ::1], float32[:, ::1], int64[:, ::1])",
    cache=True, error_model="numpy",
)  # fmt: skip
def fit(
    wanted: Any, begin: Any, end: Any, extents: Any, mode: Any, limit: Any, subpixel: Any, lo: Any, hi: Any, sizes: Any
) -> Any:
    """Compute the output sizes of regions, and adjust the regions: ``lo``, ``hi`` and ``sizes`` [N, A].

    ``wanted`` [N or 1, A or 1], the requested sizes: a size of 0 is computed from the others by ``mode``; negative
    sizes and reversed regions flip. ``begin`` and ``end`` [N, A]: the regions; without rows: the whole images of
    ``extents`` [N, A]. ``limit``: the maximum size by axis (0: none), or empty. Return the number of samples with
    numbers that are not finite; they become one pixel.
    """
    axes, endless = extents.shape[1], 0
    row = np.empty(axes, np.float32)
    for i in range(len(extents)):
        finite = True
        for a in range(axes):
            row[a] = wanted[i if len(wanted) > 1 else 0, a if wanted.shape[1] > 1 else 0]
            lo[i, a] = begin[i, a] if len(begin) else np.float32(0)
            hi[i, a] = end[i, a] if len(begin) else np.float32(extents[i, a])
            finite = finite and np.isfinite(row[a]) and np.isfinite(lo[i, a]) and np.isfinite(hi[i, a])
        if not finite:
            endless += 1
            for a in range(axes):
                row[a], lo[i, a], hi[i, a] = 1, 0, 1
        _fit(row, lo, hi, i, extents, mode, limit, subpixel, sizes)
    return endless


@numba.njit(error_model="numpy", forceinline=True)
def _columns_first(lo: Any, hi: Any, size: Any, support: Any, i: Any) -> Any:
    """Return whether sample ``i`` costs less if the horizontal pass comes first. On a CPU, a filter weight of that pass
    costs about five times as much time as one of the vertical pass."""
    y, x = size.shape[1] - 2, size.shape[1] - 1
    height, width = np.float64(abs(hi[i, y] - lo[i, y])), np.float64(abs(hi[i, x] - lo[i, x]))
    taps_y, taps_x = np.float64(max(_ONE, support[i, y])), np.float64(max(_ONE, support[i, x]))
    rows, columns = np.float64(size[i, y]), np.float64(size[i, x])
    across = columns * (5 * height * taps_x + rows * taps_y)
    return across < rows * (width * taps_y + 5 * columns * taps_x)


@numba.njit(
    "void(float32[:, ::1], float32[:, ::1], int64[:, ::1], int64[:], int64[:], boolean, int8[::1], float32[::1], "
    "int64, int8[:, ::1], float32[:, ::1], int64[:, ::1], boolean[:, ::1], boolean[::1])",
    cache=True, error_model="numpy",
)  # fmt: skip
def filters(
    lo: Any, hi: Any, size: Any, shrink: Any, enlarge: Any, antialias: Any, kinds: Any, widths: Any, gaussian: Any,
    kind: Any, support: Any, anchor: Any, flip: Any, across: Any,
) -> None:  # fmt: skip
    """Compute the filter of each axis and its width in source pixels, [N, A], and whether the horizontal pass comes
    first, [N]; see `resample.plan`. ``anchor`` and ``flip`` [N, A] become zeros.

    ``shrink`` and ``enlarge`` [N or 1]. ``kinds``: filter by interpolation type; ``widths``: by filter, if no axis
    shrinks.
    """
    wide = np.float32(4 * np.sqrt(2.0))
    for i in range(len(size)):
        for a in range(size.shape[1]):
            extent = abs(hi[i, a] - lo[i, a])
            less = np.float64(size[i, a]) < np.float64(extent)
            scale = _ONE
            if less and antialias:
                scale = extent / np.float32(max(size[i, a], 1))
            found = kinds[shrink[i if len(shrink) > 1 else 0] if less else enlarge[i if len(enlarge) > 1 else 0]]
            if found == gaussian:
                # DALI's detour over sigma and float32: the last digit decides whether one more pixel is read.
                sigma = np.float32(np.float64(scale * _HALF) / np.sqrt(2.0))
                scale = wide * sigma / _TWO
            kind[i, a] = found
            support[i, a] = max(_ONE, widths[found] * scale)
            anchor[i, a], flip[i, a] = 0, False
        across[i] = _columns_first(lo, hi, size, support, i)


@numba.njit(forceinline=True)
def _between(across: Any, rows: Any, columns: Any, height: Any, width: Any) -> Any:
    """Return the number of values per channel that an image needs between the two passes of a resize."""
    return np.float64(height) * np.float64(columns) if across else np.float64(rows) * np.float64(width)


@numba.njit("int64(boolean[::1], int64[:, ::1], int64[:, ::1], int64, int64, float64, float64[::1])", cache=True)
def elements(across: Any, shapes: Any, before: Any, first: Any, axes: Any, most: Any, out: Any) -> Any:
    """Compute for each sample the number of elements of its output or of its values between the passes, whichever is
    larger; return how many samples need more than ``most``. ``before`` and ``shapes`` [N, D]: shapes of the input and
    the output, whose spatial ``axes`` start at ``first``."""
    refused = 0
    y, x = first + axes - 2, first + axes - 1
    for i in range(len(shapes)):
        between = _between(across[i], shapes[i, y], shapes[i, x], before[i, y], before[i, x])
        if axes == 3:
            between = np.float64(shapes[i, first]) * max(between, np.float64(before[i, y]) * np.float64(before[i, x]))
        whole = 1.0
        for d in range(shapes.shape[1]):
            whole *= np.float64(shapes[i, d])
            if d < first or d >= first + axes:
                between *= np.float64(before[i, d])
        out[i] = max(whole, between)
        refused += out[i] > most
    return refused


@numba.njit(
    "UniTuple(int64, 2)(int64[:, :], int64[:], int64[:, ::1], int64[:, ::1], boolean[:, ::1], boolean[::1], "
    "float32[:, ::1], int64, int32[:], int64, boolean, float64, int64[:, ::1], int64[:, ::1], boolean[:, ::1], "
    "int32[:, ::1], int64[::1], int64[:, ::1])",
    cache=True, error_model="numpy",
)  # fmt: skip
def cut_out(
    extents: Any, channels: Any, start: Any, made: Any, turned: Any, across: Any, window: Any, rounding: Any,
    mirror: Any, width: Any, planar: Any, most: Any, anchor: Any, shape: Any, flip: Any, shapes: Any, offsets: Any,
    strides: Any,
) -> Any:  # fmt: skip
    """Change a resize plan so that it produces only a window of each image, mirrored if requested. Return how many
    windows are rejected, and the total number of elements of the others.

    ``extents`` [N, 2] and ``channels`` [N or 1] are those of the images; ``start``, ``made`` and ``turned`` [N, 2] the
    plan's ``anchor``, ``shape`` and ``flip``. ``window`` [N or 1, 4]: height, width, and position down and across, see
    `place`. ``mirror`` [N or 1]: not 0 if columns are reversed. ``width``: the required number of channels, any if it
    is below 2. ``most``: see `elements`. Outputs are ``anchor``, ``shape`` and ``flip`` [N, 2] of the windows;
    ``shapes`` [N, 3] of the images, channels first if ``planar``, their consecutive ``offsets``, and their ``strides``
    [N, 2] (of `resample.Finish`). Rejected samples are empty.
    """
    found, total = 0, np.int64(0)
    c, y, x = (0, 1, 2) if planar else (2, 0, 1)
    for i in range(len(extents)):
        k = i if len(window) > 1 else 0
        at_y, height = place_along(made[i, 0], window[k, 0], window[k, 2], rounding)
        at_x, columns = place_along(made[i, 1], window[k, 1], window[k, 3], rounding)
        depth = channels[i if len(channels) > 1 else 0]
        pixels = max(
            np.float64(height) * np.float64(columns),
            _between(across[i], height, columns, extents[i, 0], extents[i, 1]),
        )
        good = at_y >= 0 and at_x >= 0 and at_y + height <= made[i, 0] and at_x + columns <= made[i, 1]
        good = good and (width < 2 or depth == width or depth == 0) and not pixels * np.float64(depth) > most
        if not good:
            at_y = at_x = height = columns = depth = 0
            found += 1
        anchor[i, 0] = start[i, 0] + (made[i, 0] - at_y - height if turned[i, 0] else at_y)
        anchor[i, 1] = start[i, 1] + (made[i, 1] - at_x - columns if turned[i, 1] else at_x)
        shape[i, 0], shape[i, 1] = height, columns
        flip[i, 0], flip[i, 1] = turned[i, 0], turned[i, 1] != (mirror[i if len(mirror) > 1 else 0] != 0)
        shapes[i, c], shapes[i, y], shapes[i, x] = depth, height, columns
        strides[i, 0], strides[i, 1] = (1, height * columns) if planar else (depth, 1)
        offsets[i] = total
        total += height * columns * depth
    return found, total


@numba.njit(
    "void(int64, int64, int64[:, ::1], int64[:, ::1], float32[:, ::1], float32[:, ::1], int64[:, ::1])",
    cache=True,
)
def windows_to(rows: Any, columns: Any, anchor: Any, shape: Any, lo: Any, hi: Any, sizes: Any) -> None:
    """Convert windows of images to regions [``lo``, ``hi``) that become ``rows`` x ``columns``, all [N, 2]; windows
    without pixels become empty."""
    for i in range(len(anchor)):
        seen = shape[i, 0] > 0 and shape[i, 1] > 0
        sizes[i, 0], sizes[i, 1] = rows if seen else 0, columns if seen else 0
        for a in range(2):
            lo[i, a], hi[i, a] = anchor[i, a], anchor[i, a] + shape[i, a]


@numba.njit("void(int64[:, :], int64[:, :], float32[:, ::1], float32[:, ::1], int64[:, :, ::1])", cache=True)
def into_image(corner: Any, extents: Any, lo: Any, hi: Any, domain: Any) -> None:
    """Convert regions [``lo``, ``hi``) from coordinates of windows to coordinates of the images that the windows are
    cut from, in place. Windows begin at ``corner`` and have ``extents``, all [N, 2]; ``domain`` [N, 2, 2] gets their
    begin and end."""
    for i in range(len(corner)):
        for a in range(2):
            lo[i, a] += np.float32(corner[i, a])
            hi[i, a] += np.float32(corner[i, a])
            domain[i, a, 0], domain[i, a, 1] = corner[i, a], corner[i, a] + extents[i, a]


@numba.njit(
    "void(float32[:, :], float32[:, :], int64[:, :], int64[:, :], int64[:, :], float32[:, :], int64[:, :], "
    "int64[:, ::1])",
    cache=True,
)  # fmt: skip
def source_windows(
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, support: Any, extents: Any, windows: Any
) -> None:
    """Compute the pixels of images of ``extents`` [N, 2] from which a plan's outputs are computed, and a few more:
    ``windows`` [N, 4], y0, x0, y1, x1; empty if there are no outputs."""
    for i in range(len(size)):
        windows[i] = 0
        if shape[i, 0] <= 0 or shape[i, 1] <= 0:
            continue
        for a in range(2):
            begin, extent = np.float64(lo[i, a]), np.float64(extents[i, a])
            scale = (np.float64(hi[i, a]) - begin) / np.float64(max(size[i, a], 1))
            first = begin + np.float64(anchor[i, a]) * scale
            last = begin + np.float64(anchor[i, a] + shape[i, a]) * scale
            # A filter is never wider than the image; if it extends beyond, it reads as many pixels from the edge on.
            margin = np.ceil(np.float64(max(support[i, a], _ONE))) + 2
            low = min(np.floor(min(first, last) - margin), extent - margin)
            high = max(np.ceil(max(first, last) + margin), margin)
            windows[i, a] = np.int64(min(max(low, 0.0), extent))
            windows[i, 2 + a] = np.int64(min(max(high, 0.0), extent))
