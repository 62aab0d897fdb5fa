"""The CUDA kernels of resampling give what the CPU kernels give: on a GPU, and through g++ without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context

from ...kit.emulated_lane import EmulatedLane
from .test_resize import CASES, operator, source

CHOSEN = [n for n in range(0, len(CASES), 3) if CASES[n]["op"] == "resize" or n % 2 == 0]


def on_device(lane: Any, op: Any, batch: Batch) -> Batch:
    """The gpu kernel's result for a host batch, back on the host."""
    with lane:
        out = lane.to_host(op.gpu(Context(op, "gpu", batch.samples, device=lane), lane.to_device(batch)))
        lane.synchronize()
    result: Batch = out
    return result


def grouped() -> list[tuple[dict[str, Any], list[int]]]:
    """Cases of equal arguments share a batch, so that batches are ragged."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for n in CHOSEN:
        case = CASES[n]
        key = repr((case["op"], case["arguments"], case["layout"], case["dtype"], len(case["shape"])))
        groups.setdefault(key, (case, []))[1].append(n)
    return list(groups.values())


def compare(run_on_device: Any, cases: list[tuple[dict[str, Any], list[int]]]) -> None:
    for case, numbers in cases:
        op = operator(case["op"], **case["arguments"])
        images = [source(n, case["dtype"], CASES[n]["shape"]) for n in numbers]
        batch = Batch.from_list(images, case["layout"], Samples.numbered(len(images)))
        want = op.cpu(Context(op, "cpu", batch.samples), batch)
        got = run_on_device(op, batch)
        assert got.dtype == want.dtype
        assert got.layout == want.layout
        assert got.shapes.tolist() == want.shapes.tolist(), case
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b, str(case))


def test_cuda_sources_equal_the_cpu_kernels() -> None:
    lane = EmulatedLane()
    compare(lambda op, batch: op.gpu(Context(op, "gpu", batch.samples, device=lane), batch), grouped())


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    from dali_run.ops.gpu.lane import Lane

    lane = Lane()
    compare(lambda op, batch: on_device(lane, op, batch), grouped())
