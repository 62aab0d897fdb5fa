"""How images are resampled and cut, planned for a whole batch in loops without the GIL: NumPy would take dozens of
calls for each, any of which other threads of a busy pipeline could delay.

Types are those of the formulas: float32 where DALI 2.4 has float32, so that sizes and regions are its own to the bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

MODES = ("stretch", "default", "not_larger", "not_smaller")
"""What becomes of extents that are not given; `fit` takes the number."""
_, DEFAULT, _, NOT_SMALLER = range(4)

_ONE, _TWO, _HALF = np.float32(1), np.float32(2), np.float32(0.5)
_LARGEST = 2.0**31 - 1


@numba.njit(error_model="numpy")
def _complete(wanted: Any, lo: Any, hi: Any, known: Any, mode: Any, limit: Any) -> None:
    """Fill in the zeros of one image's ``wanted``, and keep its limits."""
    if known == 0:
        for a in range(len(wanted)):
            wanted[a] = hi[a] - lo[a]
        return
    product, final = 1.0, 0.0 if mode == NOT_SMALLER else np.inf
    for a in range(len(wanted)):
        extent = hi[a] - lo[a]
        if wanted[a] != 0 and extent != 0:
            scale = abs(np.float64(wanted[a] / extent))
            product *= scale
            final = max(final, scale) if mode == NOT_SMALLER else min(final, scale)
    if mode <= DEFAULT:
        mean = product ** (1.0 / known) if mode == DEFAULT else 1.0
        for a in range(len(wanted)):
            extent = hi[a] - lo[a]
            if wanted[a] == 0 or extent == 0:
                wanted[a] = np.float32(np.float64(extent) * mean)
            if len(limit) and limit[a] > 0 and abs(wanted[a]) > limit[a]:
                wanted[a] = np.copysign(limit[a], wanted[a])
        return
    if len(limit):
        most = np.inf
        for a in range(len(wanted)):
            if limit[a] > 0:
                most = min(most, np.float64(limit[a]) / np.float64(hi[a] - lo[a]))
        final = min(final, most)
    for a in range(len(wanted)):
        extent = hi[a] - lo[a]
        scale = np.float64(wanted[a] / extent) if extent != 0 else np.float64(1)
        if wanted[a] == 0 or extent == 0 or abs(scale) != final:
            wanted[a] = np.float32(np.float64(extent) * np.copysign(final, scale))


@numba.njit(
    "void(float32[:, ::1], float32[:, ::1], float32[:, ::1], int64[:, ::1], int64, float32[::1], boolean, float64, "
    "int64[:, ::1])",
    nogil=True, cache=True, error_model="numpy",
)  # fmt: skip
def fit(
    wanted: Any, lo: Any, hi: Any, extents: Any, mode: Any, limit: Any, subpixel: Any, farthest: Any, sizes: Any
) -> None:
    """Sizes of the regions [``lo``, ``hi``) for ``wanted`` ones, and the regions adjusted in place, all [N, A].

    0 stands for a size that follows from the others by ``mode``; negative sizes and reversed regions flip. ``limit``:
    the largest size by axis (0: none), or empty. ``wanted`` is overwritten.
    """
    axes = extents.shape[1]
    for i in range(len(extents)):
        known, empty = 0, False
        for a in range(axes):
            if hi[i, a] < lo[i, a]:
                lo[i, a], hi[i, a] = hi[i, a], lo[i, a]
                wanted[i, a] = -wanted[i, a]
            known += int(wanted[i, a] != 0 and hi[i, a] - lo[i, a] != 0)
            empty = empty or extents[i, a] == 0
        _complete(wanted[i], lo[i], hi[i], known, mode, limit)
        for a in range(axes):
            size = wanted[i, a]
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
            reach = np.float64(extents[i, a]) + farthest
            lo[i, a] = np.float32(min(max(begin, -farthest), reach))
            hi[i, a] = np.float32(min(max(end, -farthest), reach))
            sizes[i, a] = np.int64(rounded)


@numba.njit(
    "void(float32[:, ::1], float32[:, ::1], int64[:, ::1], int64[::1], int64[::1], boolean, int8[::1], float32[::1], "
    "int64, int8[:, ::1], float32[:, ::1])",
    nogil=True, cache=True, error_model="numpy",
)  # fmt: skip
def filters(
    lo: Any, hi: Any, size: Any, shrink: Any, enlarge: Any, antialias: Any, kinds: Any, widths: Any, gaussian: Any,
    kind: Any, support: Any,
) -> None:  # fmt: skip
    """The filter of each axis and its width in source pixels, [N, A]; see `resample.plan`.

    ``kinds``: filter by interpolation type; ``widths``: by filter, where no axis shrinks.
    """
    wide = np.float32(4 * np.sqrt(2.0))
    for i in range(len(size)):
        for a in range(size.shape[1]):
            extent = abs(hi[i, a] - lo[i, a])
            less = np.float64(size[i, a]) < np.float64(extent)
            scale = _ONE
            if less and antialias:
                scale = extent / np.float32(max(size[i, a], 1))
            found = kinds[shrink[i] if less else enlarge[i]]
            if found == gaussian:
                # DALI's way through sigma and float32: the last digit decides whether one more pixel is read
                sigma = np.float32(np.float64(scale * _HALF) / np.sqrt(2.0))
                scale = wide * sigma / _TWO
            kind[i, a] = found
            support[i, a] = max(_ONE, widths[found] * scale)


_FAR = 2.0**40
ROUNDINGS = ("truncate", "round", "even")
"""Of the start of a window: cut off, halves away from zero, halves to even (as in Python)."""
_, ROUND, EVEN = range(3)


@numba.njit(error_model="numpy")
def _integer(value: Any) -> Any:
    """``value`` cut off to an integer; NaN and what lies beyond 2^40 become -2^40 or 2^40, outside of any input."""
    return np.int64(min(max(value, -_FAR), _FAR)) if value == value else np.int64(-_FAR)


@numba.njit(
    "void(int64[:, ::1], int64, float32[::1], float32[::1], int64, int64[:, ::1], int64[:, ::1])",
    nogil=True, cache=True, error_model="numpy",
)  # fmt: skip
def place(extent: Any, axis: Any, size: Any, position: Any, rounding: Any, anchor: Any, shape: Any) -> None:
    """Where windows lie along ``axis`` of samples of ``extent``: that column of ``anchor`` and ``shape``, all [N, D].

    ``size`` [N] is cut off, and the whole extent where it is not above 0. ``position`` [N], 0 to 1, of the room that is
    left is where a window starts, after ``rounding``. The product is taken in float64, as DALI's crop does: 0.7 of 5 is
    3.4999999 and starts at 3.
    """
    for i in range(len(extent)):
        wanted = _integer(np.float64(size[i]))
        shape[i, axis] = wanted if wanted > 0 else extent[i, axis]
        start = np.float64(position[i]) * np.float64(extent[i, axis] - shape[i, axis])
        if rounding == EVEN:
            start = np.rint(start)
        elif rounding == ROUND:
            whole = np.trunc(start)
            start = whole + np.copysign(1.0 if abs(start - whole) >= 0.5 else 0.0, start)
        anchor[i, axis] = _integer(start)


@numba.njit(
    "void(float32[:, ::1], float32[:, ::1], int64[:, ::1], float32[:, ::1], boolean[::1])",
    nogil=True, cache=True, error_model="numpy",
)  # fmt: skip
def columns_first(lo: Any, hi: Any, size: Any, support: Any, out: Any) -> None:
    """Whether the horizontal pass costs less when it comes first, [N]; see `resample.columns_first`."""
    y, x = size.shape[1] - 2, size.shape[1] - 1
    for i in range(len(size)):
        height, width = np.float64(abs(hi[i, y] - lo[i, y])), np.float64(abs(hi[i, x] - lo[i, x]))
        taps_y, taps_x = np.float64(max(_ONE, support[i, y])), np.float64(max(_ONE, support[i, x]))
        rows, columns = np.float64(size[i, y]), np.float64(size[i, x])
        across = columns * (5 * height * taps_x + rows * taps_y)
        out[i] = across < rows * (width * taps_y + 5 * columns * taps_x)


@numba.njit(
    "int64(boolean[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64, float64, float64[::1])",
    nogil=True, cache=True,
)  # fmt: skip
def elements(across: Any, made: Any, shapes: Any, before: Any, first: Any, most: Any, out: Any) -> Any:
    """The larger of what a sample becomes and of what lies between the passes, in elements; returns how many samples
    need more than ``most``. ``before`` and ``shapes`` [N, D]: of the input and the output; ``made`` [N, A]: the outputs
    of the spatial dimensions, which start at ``first``."""
    axes, refused = made.shape[1], 0
    y, x = first + axes - 2, first + axes - 1
    for i in range(len(made)):
        rows, columns = np.float64(made[i, axes - 2]), np.float64(made[i, axes - 1])
        between = np.float64(before[i, y]) * columns if across[i] else rows * np.float64(before[i, x])
        if axes == 3:
            between = np.float64(made[i, 0]) * max(between, np.float64(before[i, y]) * np.float64(before[i, x]))
        whole = 1.0
        for d in range(shapes.shape[1]):
            whole *= np.float64(shapes[i, d])
            if d < first or d >= first + axes:
                between *= np.float64(before[i, d])
        out[i] = max(whole, between)
        refused += out[i] > most
    return refused


@numba.njit("int64(int64[:, ::1], int64[:, ::1], int64[:, ::1], boolean[::1])", nogil=True, cache=True)
def outside(anchor: Any, shape: Any, extent: Any, out: Any) -> Any:
    """Which windows reach outside of samples of ``extent``, all [N, D]; returns how many."""
    found = 0
    for i in range(len(extent)):
        out[i] = False
        for d in range(extent.shape[1]):
            if anchor[i, d] < 0 or anchor[i, d] + shape[i, d] > extent[i, d]:
                out[i] = True
        found += out[i]
    return found


@numba.njit(
    "void(float32[:, :], float32[:, :], int64[:, :], int64[:, :], int64[:, :], float32[:, :], int64[:, :], "
    "int64[:, ::1])",
    nogil=True, cache=True,
)  # fmt: skip
def source_windows(
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, support: Any, extents: Any, windows: Any
) -> None:
    """The pixels of images of ``extents`` [N, 2] that a plan's outputs are made of, and a few more: ``windows`` [N, 4],
    y0, x0, y1, x1; none where there are no outputs."""
    for i in range(len(size)):
        windows[i] = 0
        if shape[i, 0] <= 0 or shape[i, 1] <= 0:
            continue
        for a in range(2):
            begin, extent = np.float64(lo[i, a]), np.float64(extents[i, a])
            scale = (np.float64(hi[i, a]) - begin) / np.float64(max(size[i, a], 1))
            first = begin + np.float64(anchor[i, a]) * scale
            last = begin + np.float64(anchor[i, a] + shape[i, a]) * scale
            # A filter is never wider than the image; where it reaches beyond, it reads as many pixels from the edge on.
            margin = np.ceil(np.float64(max(support[i, a], _ONE))) + 2
            low = min(np.floor(min(first, last) - margin), extent - margin)
            high = max(np.ceil(max(first, last) + margin), margin)
            windows[i, a] = np.int64(min(max(low, 0.0), extent))
            windows[i, 2 + a] = np.int64(min(max(high, 0.0), extent))


@numba.njit("int64(float32[:, :], float32[:, :], float32[:, :])", nogil=True, cache=True)
def endless(wanted: Any, lo: Any, hi: Any) -> Any:
    """How many numbers of these [N, A] are not finite."""
    found = 0
    for i in range(len(wanted)):
        for a in range(wanted.shape[1]):
            found += not (np.isfinite(wanted[i, a]) and np.isfinite(lo[i, a]) and np.isfinite(hi[i, a]))
    return found


@numba.njit(
    "void(boolean[:, :], int64[:, :], int64[:, :], int64[:, :], int64[:, :], int64[:, ::1])", nogil=True, cache=True
)
def window(flip: Any, anchor: Any, shape: Any, first: Any, count: Any, out: Any) -> None:
    """Where ``count`` outputs from ``first`` on of a plan's window begin, counted as its ``anchor`` is, all [N, A]."""
    for i in range(len(out)):
        for a in range(out.shape[1]):
            out[i, a] = anchor[i, a] + (shape[i, a] - first[i, a] - count[i, a] if flip[i, a] else first[i, a])


@numba.njit("void(int32[:, :], int64, int64, int64[:, ::1])", nogil=True, cache=True)
def pixel_strides(shapes: Any, channels: Any, columns: Any, out: Any) -> None:
    """Elements between pixels of a row and between channels of packed images of ``shapes`` [N, 3], [N, 2]."""
    for i in range(len(out)):
        for k in range(2):
            out[i, k] = 1
            for d in range((columns if k == 0 else channels) + 1, 3):
                out[i, k] *= shapes[i, d]


@numba.njit("int64(int64[:, :], int64, int64)", nogil=True, cache=True)
def of_other_width(shape: Any, channel: Any, width: Any) -> Any:
    """How many samples of ``shape`` [N, D] have other than ``width`` channels, those without any left out."""
    found = 0
    for i in range(len(shape)):
        found += shape[i, channel] != width and shape[i, channel] > 0
    return found
