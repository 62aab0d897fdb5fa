"""The CUDA kernels of resampling give what the CPU kernels give: on a GPU, and through g++ without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.images import random_resized_crop  # noqa: F401  # declares the operator
from tests.kit.operators import operator
from tests.kit.ops.resizing import CASES, source

from ...kit.emulated_lane import EmulatedLane

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


PICTURES = [(75, 100, 3), (60, 61, 3), (100, 33, 3), (1, 1, 3), (2, 5, 3), (50, 200, 3)]
TILED: list[tuple[str, dict[str, Any]]] = [
    ("resize", {"size": [23, 29]}),
    ("resize", {"size": [130, 150]}),
    ("resize", {"size": [61, 200], "interp_type": "INTERP_NN"}),
    ("resize", {"size": [70, 33], "interp_type": "INTERP_NN", "dtype": "FLOAT"}),
    ("resize", {"size": [61, 40], "interp_type": "INTERP_CUBIC"}),
    ("resize", {"size": [61, 40], "interp_type": "INTERP_LANCZOS3"}),
    ("resize", {"size": [22, 24], "antialias": False, "dtype": "FLOAT"}),
    ("resize", {"size": [22, 100], "interp_type": "INTERP_GAUSSIAN", "dtype": "FLOAT"}),
    ("resize", {"size": [-70, -68]}),
    ("resize", {"size": [-20, 268]}),
    ("resize", {"size": [3, 268]}),
    ("random_resized_crop", {"size": [33, 50]}),
    ("resize_crop_mirror", {"resize_shorter": 50, "crop": [40, 40], "mirror": 1}),
]
"""Several tiles: both orders of the passes, few taps and many, mirrored, with borders at any byte."""


def tiled(run_on_device: Any) -> None:
    images = [np.random.default_rng(k).integers(0, 256, shape, np.uint8) for k, shape in enumerate(PICTURES)]
    for name, arguments in TILED:
        op = operator(name, **arguments)
        batch = Batch.from_list(images, "HWC", Samples.numbered(len(images)))
        want = op.cpu(Context(op, "cpu", batch.samples), batch)
        for a, b in zip(run_on_device(op, batch), want, strict=True):
            np.testing.assert_array_equal(a, b, f"{name} {arguments}")


def test_tiles_equal_the_cpu_kernels() -> None:
    lane = EmulatedLane()
    tiled(lambda op, batch: op.gpu(Context(op, "gpu", batch.samples, device=lane), batch))
    assert {k for k in lane.launched if k != "taps"} == {"resample_pixels<unsigned char>", "resample_pixels<float>"}


@pytest.mark.gpu
def test_tiles_on_a_gpu_equal_the_cpu_kernels() -> None:
    from dali_run.ops.gpu.lane import Lane

    lane = Lane()
    tiled(lambda op, batch: on_device(lane, op, batch))


def test_taps_that_reach_too_far_for_a_tile() -> None:
    lane = EmulatedLane()
    wide = np.random.default_rng(3).integers(0, 256, (3, 9000, 3), np.uint8)
    for image, size in ((wide, [2, 2]), (wide.transpose(1, 0, 2), [2, 9])):
        op = operator("resize", size=size)
        batch = Batch.from_list([np.ascontiguousarray(image)], "HWC", Samples.numbered(1))
        want = op.cpu(Context(op, "cpu", batch.samples), batch)
        got = op.gpu(Context(op, "gpu", batch.samples, device=lane), batch)
        np.testing.assert_array_equal(got.sample(0), want.sample(0))
    assert any(k.startswith("resample_pass") for k in lane.launched)
