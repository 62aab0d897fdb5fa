"""Run readers of videos batch by batch, as the engine calls them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.batch import Samples
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.gpu.lane import Lane
from dali_run.readers.videos.reader import ExperimentalVideo


def opened(*files: Path, **arguments: Any) -> tuple[ExperimentalVideo, Any]:
    op = ExperimentalVideo(filenames=tuple(map(str, files)), **arguments)
    op.check()
    return op, op.open()


def batches(source: Any, size: int) -> list[range]:
    return [range(a, min(len(source), a + size)) for a in range(0, len(source), size)]


def check(source: Any, index: Sequence[int], out: Any, frames: Sequence[Sequence[np.ndarray]], most: int = 0) -> None:
    for i, row in enumerate(index):
        file, *extent = source._rows[row].tolist()
        expected = np.array([frames[file][n] for n in source._numbers(file, *extent)])
        assert np.abs(out.sample(i).astype(int) - expected).max() <= most, (row, i)


def by_nvdec(op: Any, source: Any, indices: Sequence[Sequence[int]], lane: Lane, counts: dict[str, int]) -> list[Any]:
    """Start all batches before NVDEC decodes the first one. Return their contexts and outputs."""
    found: list[Any] = []
    for index in indices:
        n = len(index)
        slots, rows = np.arange(n, dtype=np.int32), np.asarray(index, np.int64)
        samples = Samples(slots, np.arange(n, dtype=np.int64), np.zeros(n, np.int64), rows, source)
        ctx = Context(op, "mixed", samples, source=source, device=lane)
        ctx.services = KernelServices(
            decoders=lambda decoder, n, _: counts.update({decoder: counts.get(decoder, 0) + n})
        )
        ctx.started = op.start_early(ctx)
        found.append(ctx)
    for k, ctx in enumerate(found):
        with lane:
            out = lane.to_host(op.mixed(ctx)[0])
            lane.synchronize()
        found[k] = ctx, out.replace(data=out.data.copy())
    return found
