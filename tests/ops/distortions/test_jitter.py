"""jitter: where values come from (DALI has it on a GPU only), and the CUDA kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.distortions import jitter  # noqa: F401  # declares the operator

from ...kit.dali_cases import apply, batch_of, operator, source
from ...kit.emulated_lane import EmulatedLane

ROWS, COLUMNS = 60, 50
PLACES = np.stack(np.mgrid[0:ROWS, 0:COLUMNS], axis=2).astype(np.int32)
"""An image whose values say where they are."""


def moved(n: int, rng: str, lane: Any = None) -> np.ndarray:
    """How far the values of the middle came, down and across, [..., 2]."""
    images = batch_of([PLACES * 1000] * 2, "HWC")
    out, rejects = apply(operator("jitter", nDegree=n), images, seed=5, rng=rng, lane=lane)
    assert not rejects
    off = out.sample(0) // 1000 - PLACES
    return off[n:-n, n:-n]


@pytest.mark.parametrize("rng", ["philox", "dali"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_values_come_from_all_places_around_alike(n: int, rng: str) -> None:
    off = moved(n, rng)
    places = list(range(-(n >> 1), n - (n >> 1)))
    for axis in range(2):
        found, counts = np.unique(off[..., axis], return_counts=True)
        assert found.tolist() == places
        assert np.abs(counts / off[..., axis].size - 1 / n).max() < 0.05


@pytest.mark.parametrize("rng", ["philox", "dali"])
def test_cuda_run_on_the_cpu(rng: str) -> None:
    for n in (2, 3):
        np.testing.assert_array_equal(moved(n, rng, EmulatedLane()), moved(n, rng))
    for dtype in ("uint8", "float16", "float32", "int64"):
        images = batch_of([source(k, 0, 200, "uint8", [5 + k, 7, 3]).astype(dtype) for k in range(3)], "HWC")
        want, _ = apply(operator("jitter", nDegree=5), images, seed=5, rng=rng)
        got, _ = apply(operator("jitter", nDegree=5), images, seed=5, rng=rng, lane=EmulatedLane())
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_pixels_of_three_bytes_move_as_on_the_cpu(n: int) -> None:
    sizes = [[45, 61], [1, 1], [64, 64], [3, 2], [1100, 2], [0, 5]]
    images = batch_of([source(k, 0, 256, "uint8", [*size, 3]) for k, size in enumerate(sizes)], "HWC")
    masks = {"mask": batch_of([np.int32(k != 2) for k in range(len(sizes))])}
    want, _ = apply(operator("jitter", ("mask",), nDegree=n), images, args=masks, seed=5)
    got, _ = apply(operator("jitter", ("mask",), nDegree=n), images, args=masks, seed=5, lane=EmulatedLane())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(got.sample(2), images.sample(2))


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "channels"), [(2, 3), (5, 3), (5, 1)])
def test_gpu(n: int, channels: int) -> None:
    from dali_run.ops.gpu.lane import Lane

    images = batch_of([source(k, 0, 256, "uint8", [140 + k, 160 - k, channels]) for k in range(4)], "HWC")
    want, _ = apply(operator("jitter", nDegree=n), images, seed=5)
    with Lane() as lane:
        out, _ = apply(operator("jitter", nDegree=n), lane.to_device(images), seed=5, lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_masked_samples_stay_and_samples_differ() -> None:
    images = [source(1, 0, 256, "uint8", [20, 20, 3])] * 3
    args = {"mask": batch_of([np.int32(m) for m in (1, 0, 1)])}
    out, _ = apply(operator("jitter", ("mask",), nDegree=6), batch_of(images, "HWC"), args=args, seed=1)
    np.testing.assert_array_equal(out.sample(1), images[1])
    assert not np.array_equal(out.sample(0), images[0])
    assert not np.array_equal(out.sample(0), out.sample(2))
