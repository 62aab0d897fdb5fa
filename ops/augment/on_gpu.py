"""Launch the kernels of cuda/augment.cu for a batch: each step of all images together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..kernels import Kernels
from .suites import OPERATIONS

_kernels: Any = Kernels(".plan_cpu", __package__)

_THREADS, _TILE = 256, 256 * 48
"""Threads per block, and values of an image that a block computes (a number divisible by 1 to 4, for any number of
channels)."""
_STATISTICS = range(OPERATIONS.index("contrast"), OPERATIONS.index("auto_contrast") + 1)


def augment(
    lane: Any, images: Batch, geometry: I64, kinds: npt.NDArray[np.int32], values: npt.NDArray[np.float32],
    linear: bool, fill: int, out: Batch,
) -> None:  # fmt: skip
    """Apply the steps that `augment_cpu.plan` has planned to each image, and write the results to ``out``, a batch
    without gaps. ``fill``: value outside of the image; -1 repeats the image's border."""
    frames = geometry[:, 0]
    total, steps = int(frames.sum()), kinds.shape[1]
    if total == 0:
        return
    jobs = np.empty((max(steps, 1), total, 8), np.int64)
    counts = np.zeros((max(steps, 1), 2), np.int64)
    _kernels.jobs(images.offsets, geometry, kinds, out.offsets, _STATISTICS[0], _STATISTICS[-1], jobs, counts)
    between = lane.empty(2 * out.data.size if (counts[:, 0] > 0).sum() > 1 else 0, np.uint8)
    tables = lane.empty(int(counts[:, 1].max()) * 4 * 256, np.uint8)
    todo, parameters = lane.upload(jobs, np.ascontiguousarray(values.reshape(-1, values.shape[-1])))
    tiles = max(1, -(-int(geometry[:, 1:].prod(axis=1).max()) // _TILE))
    memory = images.data, between, np.int64(out.data.size), out.data
    for k, (count, histograms) in enumerate(counts.tolist()):
        if histograms:
            lane.launch("augment.cu", "augment_tables", histograms, 512, *memory, todo[k], parameters, tables)
        if count:
            lane.launch(
                "augment.cu", "augment_step", tiles * count, _THREADS, *memory, todo[k], np.int32(tiles),
                np.int32(_TILE), parameters, tables, np.int32(linear), np.int32(fill),
            )  # fmt: skip
