"""The CUDA kernel of pictures of three bytes a pixel: more than one tile, borders at any byte, numbers of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.types import DALIInterpType

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, operator

NN = DALIInterpType.INTERP_NN
SHAPES = [(75, 100, 3), (60, 61, 3), (100, 33, 3), (1, 1, 3), (2, 5, 3), (35, 200, 3)]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("rotate", {"angle": 20.0, "fill_value": 0}),
    ("rotate", {"angle": -75.0, "fill_value": 9, "interp_type": NN}),
    ("rotate", {"angle": 20.0, "keep_size": True}),
    ("rotate", {"angle": 20.0, "keep_size": True, "interp_type": NN}),
    ("warp_affine", {"matrix": [1, 0.1, 3, 0.1, 1, 5], "fill_value": 7}),
    ("warp_affine", {"matrix": [0.5, 0.1, 3, 0.1, 0.5, 5], "size": [70, 90], "interp_type": NN}),
    ("warp_affine", {"matrix": [1e8, 0.1, 3, 0.1, 1e9, 5], "size": [70, 90], "fill_value": 3}),
    ("warp_affine", {"matrix": [1e30, 1e29, 1e28, 1e27, 1e30, 5], "size": [33, 40]}),
    ("warp_perspective", {"matrix": [1, 0.1, 3, 0.1, 1, 5, 1e-3, 0, 1]}),
    ("warp_perspective", {"matrix": [1, 0.1, 3, 0.1, 1, 5, 1e-2, 0, -0.5], "fill_value": [1, 2, 3]}),
    ("warp_perspective", {"matrix": [1, 0.1, 3, 0.1, 1, 5, 1e-3, 0, 1], "border_mode": "reflect_101"}),
    ("warp_perspective", {"matrix": [1, 0.1, -30, 0.1, 1, 50, 1e-3, 0, 1], "border_mode": "wrap", "interp_type": NN}),
    ("water", {}),
    ("water", {"interp_type": DALIInterpType.INTERP_LINEAR, "fill_value": 9}),
    ("sphere", {}),
    ("sphere", {"interp_type": DALIInterpType.INTERP_LINEAR}),
]


def compare(name: str, arguments: dict[str, Any], lane: Any, there: Any, back: Any) -> None:
    pictures = [np.random.default_rng(k).integers(0, 256, shape, np.uint8) for k, shape in enumerate(SHAPES)]
    batch, op = batch_of(pictures, "HWC"), operator(name, **arguments)
    out, _ = apply(op, batch)
    made, rejects = apply(op, there(batch), lane=lane)
    assert not rejects
    for want, got in zip(out[0], back(made[0]), strict=True):
        off = np.abs(want.astype(int) - got)
        linear = arguments.get("interp_type", NN if name in ("water", "sphere") else None) != NN
        assert np.count_nonzero(off) <= (0.005 if linear else 0.001) * off.size
        assert off.max(initial=0) <= (1 if linear else 255)


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_cuda_run_on_the_cpu(name: str, arguments: dict[str, Any]) -> None:
    lane = EmulatedLane()
    compare(name, arguments, lane, lambda b: b, lambda b: b)
    assert all(k.startswith("sample_pixels") for k in lane.launched)


def test_movies_are_sampled_frame_by_frame() -> None:
    movie = np.random.default_rng(1).integers(0, 256, (3, 40, 37, 3), np.uint8)
    op = operator("rotate", angle=30.0, keep_size=True, fill_value=0)
    got, _ = apply(op, batch_of([movie], "FHWC"), lane=EmulatedLane())
    for frame, one in zip(movie, got[0].sample(0), strict=True):
        alone, _ = apply(op, batch_of([frame], "HWC"), lane=EmulatedLane())
        np.testing.assert_array_equal(one, alone[0].sample(0))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_gpu(name: str, arguments: dict[str, Any]) -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:

        def back(batch: Any) -> Any:
            host = lane.to_host(batch)
            lane.synchronize()
            return host

        compare(name, arguments, lane, lane.to_device, back)
