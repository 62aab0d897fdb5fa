"""Unpack streams with the inflating kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.gpu_streams import streams as unpacking
from tests.kit.emulated_lane import EmulatedLane


def inflated(
    lane: Any, streams: Sequence[bytes], room: Sequence[int], coding: int = unpacking.DEFLATE
) -> list[bytes | None]:
    """Unpack ``streams`` by the GPU kernel, at most ``room`` bytes each; None for streams that it rejects."""
    n, sizes = len(streams), np.array([len(s) for s in streams], np.int64)
    files = Batch.from_list([np.frombuffer(b"-" + s, np.uint8) for s in streams], "", Samples.numbered(n))
    number, zero = np.arange(n), np.zeros(n, np.int64)
    pieces = np.column_stack([number, number, zero + 1, zero, sizes])
    files, ways, wanted = lane.to_device(files), np.full(n, coding), np.array(room, np.int64)
    planned = unpacking.plan(ways, sizes, wanted, pieces)
    rows, bad = unpacking.unpack(lane, files, planned)
    to = planned.starts
    there, marks = lane.download(rows), lane.download(bad)
    lane.synchronize()
    if isinstance(lane, EmulatedLane):  # memory is noise first, so that writes outside of the rows are noticed
        beside = np.ones(len(there), np.bool_)
        for a, n in zip(to.tolist(), room, strict=True):
            beside[a : a + n] = False
        assert (there[beside] == 0xA5).all()
    return [
        None if mark else there[a : a + n].tobytes()
        for a, n, mark in zip(to.tolist(), room, marks.tolist(), strict=True)
    ]
