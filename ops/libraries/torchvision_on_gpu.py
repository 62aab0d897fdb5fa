"""The kernels of cuda/torchvision.cu over a batch: steps of all images together, and what goes with them in chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..kernels import Kernels

_blurs: Any = Kernels(".torchvision_blur_cpu", __package__)

# As in torchvision.Step, whose module imports this one.
_CONTRAST, _AUTOCONTRAST, _EQUALIZE, _BLUR = 2, 8, 9, 13
_THREADS, _MOST_TILES = 256, 1024
_TABLE = 256
_INPUT, _OUTPUT = 0, 3
"""Where a step reads and writes; 1 and 2 are memory between steps."""


def steps(
    lane: Any, images: Batch, shapes: I64, codes: npt.NDArray[np.int32], numbers: npt.NDArray[np.float64],
    interleaved: bool, out: Batch,
) -> None:  # fmt: skip
    """Each image through the steps ``codes`` [N, K] with their ``numbers`` [N, K, 16], into ``out``. ``shapes``
    [N, K + 1, 3] are `torchvision.outline`'s."""
    n = len(images)
    if n == 0 or out.data.size == 0:
        return
    if codes.shape[1] == 0:
        codes, numbers = np.zeros((n, 1), np.int32), np.zeros((n, 1, 16))
        shapes = np.repeat(shapes, 2, axis=1)
    sizes = shapes.prod(axis=2)
    count = codes.shape[1]
    last = np.where((codes != 0).any(axis=1), count - 1 - np.argmax(codes[:, ::-1] != 0, axis=1), 0)
    room = np.where(np.arange(count) < last[:, None], sizes[:, 1:], 0).max(axis=1)
    between_at = room.cumsum() - room
    between = lane.empty(2 * int(room.sum()), np.uint8)
    source, place = np.full(n, _INPUT, np.int64), images.offsets.astype(np.int64)
    launches: list[tuple[I64, I64]] = []
    windows: list[npt.NDArray[np.float32]] = [np.zeros(1, np.float32)]
    for k in range(count):
        at = np.flatnonzero((codes[:, k] != 0) | (last == k) & (k == 0))
        target = np.where(last[at] == k, _OUTPUT, 1 + (source[at] == 1))
        to = np.where(last[at] == k, out.offsets[at], between_at[at])
        kinds = codes[at, k].astype(np.int64)
        table, entries = _tables(kinds, shapes[at, k, 0])
        for j in np.flatnonzero(kinds == _BLUR).tolist():
            p = numbers[at[j], k]
            table[j] = sum(map(len, windows))
            windows += [_blurs.gaussian(int(p[0]), float(p[2])), _blurs.gaussian(int(p[1]), float(p[3]))]
        row = at * count + k
        columns = (place[at], to, source[at], target, kinds, row, *shapes[at, k].T, *shapes[at, k + 1].T, table)
        launches.append((np.stack(columns, axis=1).astype(np.int64), entries))
        source[at], place[at] = target, to
    tables = lane.empty(max(int(entries[:, 2].max(initial=0)) for _, entries in launches) + 8 * _TABLE, np.uint8)
    uploads = [numbers.reshape(-1, numbers.shape[-1]), np.concatenate(windows).astype(np.float32)]
    for jobs, entries in launches:
        uploads += [jobs, np.ascontiguousarray(entries[:, :2])]
    parameters, weights, *there = lane.upload(*(np.ascontiguousarray(a) for a in uploads))
    size, flag = np.int64(room.sum()), np.int32(interleaved)
    for k, (jobs, entries) in enumerate(launches):
        if len(entries):
            lane.launch("torchvision.cu", "torchvision_tables", len(entries), 512, images.data, between, size,
                        there[2 * k], there[2 * k + 1], flag, tables)  # fmt: skip
        if len(jobs):
            grid = (_tiles(int((jobs[:, 10] * jobs[:, 11]).max())), len(jobs))
            lane.launch("torchvision.cu", "torchvision_step", grid, _THREADS, images.data, between, size, out.data,
                        there[2 * k], parameters, tables, weights, flag)  # fmt: skip


def _tables(kinds: I64, channels: I64) -> tuple[I64, I64]:
    """Where the table of each job begins, and what is to be tabulated: [job, channel (-1: all), place]."""
    whole, apart = kinds == _CONTRAST, (kinds == _AUTOCONTRAST) | (kinds == _EQUALIZE)
    wanted = np.where(apart, channels, whole).astype(np.int64)
    ends = wanted.cumsum()
    begins = (ends - wanted) * _TABLE
    job = np.repeat(np.arange(len(kinds)), wanted)
    channel = np.arange(len(job)) - np.repeat(ends - wanted, wanted)
    channel = np.where(whole[job], -1, channel)
    return begins, np.stack([job, channel, begins[job] + channel.clip(0) * _TABLE], axis=1)


def _tiles(elements: int) -> int:
    return min(max(1, -(-elements // _THREADS)), _MOST_TILES)


def to_floats(
    lane: Any, images: Batch, divide: bool, mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32], out: Batch
) -> None:
    """As `torchvision_cpu.to_floats`: planar bytes as floats of 0 ... 1, normalized where there are means."""
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


ERASABLE = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float32): "float"}
"""Types that `erase` takes, as CUDA has them."""


def erase(lane: Any, images: Batch, windows: I64, values: list[npt.NDArray[np.float32]], out: Batch) -> None:
    """Planar images with the ``windows`` [N, 4] (top, left, height, width) filled: each with ``values`` that NumPy can
    broadcast to (channels, height, width)."""
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
