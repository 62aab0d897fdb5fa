"""Launch the kernels of cuda/torchvision.cu for a batch: steps of all images together, and the operations that follow
them in transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..kernels import Kernels

_blurs: Any = Kernels(".torchvision_blur_cpu", __package__)
_jobs: Any = Kernels(".torchvision_jobs_cpu", __package__)

_BLUR = 13
"""Code of the gaussian blur in `torchvision.Step`; repeated here, because that module imports this one."""
_THREADS, _MOST_TILES = 256, 1024
_TABLE = 256


def steps(
    lane: Any, images: Batch, shapes: I64, codes: npt.NDArray[np.int32], numbers: npt.NDArray[np.float64],
    interleaved: bool, out: Batch,
) -> None:  # fmt: skip
    """Apply the operations ``codes`` [N, K] with their parameters ``numbers`` [N, K, 16] to each image, and write the
    results to ``out``. ``shapes`` [N, K + 1, 3]: see `torchvision.outline`."""
    n = len(images)
    if n == 0 or out.data.size == 0:
        return
    if codes.shape[1] == 0:
        codes, numbers = np.zeros((n, 1), np.int32), np.zeros((n, 1, 16))
        shapes = np.repeat(shapes, 2, axis=1)
    count = codes.shape[1]
    most_channels = int(shapes[:, :, 0].max())
    rows, entries = np.empty((n * count, 13), np.int64), np.empty((n * count * most_channels, 2), np.int64)
    counts = np.empty((count, 3), np.int64)
    size, most = _jobs.jobs(
        *map(np.ascontiguousarray, (codes, shapes, images.offsets, out.offsets)), rows, entries, counts
    )
    windows: list[npt.NDArray[np.float32]] = [np.zeros(1, np.float32)]
    flat = numbers.reshape(-1, numbers.shape[-1])
    for j in np.flatnonzero(rows[: counts[:, 0].sum(), 4] == _BLUR).tolist():
        p = flat[rows[j, 5]]
        rows[j, 12] = sum(map(len, windows))
        windows += [_blurs.gaussian(int(p[0]), float(p[2])), _blurs.gaussian(int(p[1]), float(p[3]))]
    between, tables = lane.empty(2 * size, np.uint8), lane.empty(most + 8 * _TABLE, np.uint8)
    uploads, at, listed = [flat, np.concatenate(windows)], 0, 0
    for jobs, tabulated, _ in counts.tolist():
        uploads += [rows[at : at + jobs], entries[listed : listed + tabulated]]
        at, listed = at + jobs, listed + tabulated
    parameters, weights, *there = lane.upload(*uploads)
    room, flag = np.int64(size), np.int32(interleaved)
    for k, (jobs, tabulated, pixels) in enumerate(counts.tolist()):
        if tabulated:
            lane.launch("torchvision.cu", "torchvision_tables", tabulated, 512, images.data, between, room,
                        there[2 * k], there[2 * k + 1], flag, tables)  # fmt: skip
        if jobs:
            lane.launch("torchvision.cu", "torchvision_step", (_tiles(pixels), jobs), _THREADS, images.data, between,
                        room, out.data, there[2 * k], parameters, tables, weights, flag)  # fmt: skip


def _tiles(elements: int) -> int:
    return min(max(1, -(-elements // _THREADS)), _MOST_TILES)


def to_floats(
    lane: Any, images: Batch, divide: bool, mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32], out: Batch
) -> None:
    """Convert planar uint8 images to floats of 0 to 1, as `torchvision_cpu.to_floats` does; with means, also normalise
    them."""
    channels = images.shapes[:, 0].astype(np.int64)
    pixels = images.shapes[:, 1].astype(np.int64) * images.shapes[:, 2]
    if len(images) == 0 or out.data.size == 0:
        return
    geometry = np.stack([images.offsets, out.offsets, channels, pixels], axis=1).astype(np.int64)
    numbers = np.concatenate([mean, std, np.zeros(1, np.float32)])
    places, values = lane.upload(geometry, numbers)
    grid = (_tiles(int((channels * pixels).max())), len(images))
    lane.launch("torchvision.cu", "torchvision_floats", grid, _THREADS, images.data, out.data, places, values,
                values[len(mean) :], np.int32(len(mean)), np.int32(len(std)), np.int32(divide))  # fmt: skip


def flips(lane: Any, images: Batch, flags: npt.NDArray[np.int8], upside_down: bool, out: Batch) -> None:
    """Mirror the planar images whose entry in ``flags`` is not 0, left to right or, with ``upside_down``, top to
    bottom; copy the others. All images have one shape."""
    if len(images) and out.data.size:
        source = lane.address(images.data) + int(images.offsets[0])
        flip(lane, images.shapes[0].tolist(), source, flags, upside_down, lane.address(out.data))


def flip(
    lane: Any, shape: Sequence[int], source: int, mirrored: npt.NDArray[np.int8], upside_down: bool, out: int
) -> None:
    """Mirror consecutive images of ``shape``, like `flips`. ``source`` and ``out`` are device addresses."""
    channels, height, width = shape
    (flags,) = lane.upload(mirrored)
    wide = width % 4 == 0 and source % 4 == 0
    kernel, row = ("torchvision_flips<unsigned>", width // 4) if wide else ("torchvision_flips<unsigned char>", width)
    grid = (_tiles(channels * height * row), len(mirrored))
    lane.launch("torchvision.cu", kernel, grid, _THREADS, np.uint64(source), np.uint64(out), flags,
                np.int32(channels * height), np.int32(height), np.int32(row), np.int32(upside_down))  # fmt: skip


ERASABLE = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float32): "float"}
"""Element types that `erase` supports, with their names in CUDA."""


def erase(lane: Any, images: Batch, windows: I64, values: list[npt.NDArray[np.float32]], out: Batch) -> None:
    """Copy planar images to ``out``, and fill one window in each. ``windows`` [N, 4]: top, left, height and width.
    ``values``: fill values of each image, which NumPy can broadcast to (channels, height, width)."""
    if len(images) == 0 or out.data.size == 0:
        return
    rows = np.zeros((len(images), 13), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 5:9] = images.offsets, out.offsets, images.sizes, windows
    rows[:, 3:5] = images.shapes[:, 1:]
    at = 0
    for row, shape, window, value in zip(rows, images.shapes.tolist(), windows.tolist(), values, strict=True):
        spread = np.broadcast_to(value, (shape[0], *window[2:]))
        row[9], row[10:] = at, np.array(spread.strides) // value.itemsize
        at += value.size
    flat = np.concatenate([v.reshape(-1) for v in values])
    places, numbers = lane.upload(rows, flat)
    grid = (_tiles(int(rows[:, 2].max())), len(images))
    kernel = f"torchvision_erased<{ERASABLE[images.dtype]}>"
    lane.launch("torchvision.cu", kernel, grid, _THREADS, images.data, out.data, places, numbers)
