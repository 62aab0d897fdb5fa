"""debayer and clahe: DALI's results (golden/make_camera.py: camera.npz), OpenCV's, and the CUDA kernels."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.color import clahe, debayer  # noqa: F401  # declare the operators
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

from ...kit.dali_cases import apply, batch_of, cases, operator, ours, source
from ...kit.emulated_lane import EmulatedLane

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda"])
CLAHE = {"tiles_x": 4, "tiles_y": 3, "clip_limit": 2.0}


@LANES
@pytest.mark.parametrize("name", ["debayer", "clahe"])
def test_results_of_dali(name: str, lane: Any) -> None:
    compared = 0
    for case, inputs, wanted in cases("camera"):
        if case["op"] != name or (lane is not None and case["arguments"].get("algorithm")):
            continue
        (got,), rejects = ours(case, inputs, lane)
        assert not rejects
        assert got.shape == wanted[0].shape
        off = np.abs(got.astype(int) - wanted[0])
        luma = name == "clahe" and case["arguments"].get("luma_only", True) and got.shape[-1] == 3
        assert off.max() <= (2 if luma else 0), (case, off.max())
        assert np.mean(off > 0) <= 0.3
        compared += 1
    assert compared >= 12


@LANES
def test_clahe_is_that_of_opencv_for_ragged_batches(lane: Any) -> None:
    images = [source(k, 30 * k, 120 + 30 * k, "uint8", [40 + 7 * k, 70 - 5 * k, 1]) for k in range(4)]
    out, rejects = apply(operator("clahe", **CLAHE), batch_of(images, "HWC"), lane=lane)
    assert not rejects
    for got, image in zip(out, images, strict=True):
        np.testing.assert_array_equal(got[..., 0], cv2.createCLAHE(2.0, (4, 3)).apply(image[..., 0]))


@LANES
def test_blue_may_be_anywhere(lane: Any) -> None:
    raw = [source(k, 0, 256, "uint8", [8 + k, 10 - k]) for k in range(4)]
    places = [[0, 0], [0, 1], [1, 0], [1, 1]]
    args = {"blue_position": batch_of([np.array(p) for p in places])}
    out, rejects = apply(operator("debayer", ("blue_position",)), batch_of(raw, "HW"), args=args, lane=lane)
    assert not rejects
    assert out.layout == "HWC"
    codes = (cv2.COLOR_BayerBG2RGB, cv2.COLOR_BayerGB2RGB, cv2.COLOR_BayerGR2RGB, cv2.COLOR_BayerRG2RGB)
    for got, image, code in zip(out, raw, codes, strict=True):
        np.testing.assert_array_equal(got, cv2.cvtColor(image, code))
    args = {"blue_position": batch_of([np.array([0, 0]), np.array([0, 2])])}
    out, rejects = apply(operator("debayer", ("blue_position",)), batch_of(raw[:2], "HW"), args=args, lane=lane)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["debayer", "clahe", "clahe_rgb"])
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    op = operator("debayer", blue_position=[0, 1]) if name == "debayer" else operator("clahe", **CLAHE)
    tail = {"debayer": [], "clahe": [1], "clahe_rgb": [3]}[name]
    images = batch_of([source(k, 0, 256, "uint8", [40 + k, 60 - k, *tail]) for k in range(4)], "HWC" if tail else "HW")
    want, _ = apply(op, images)
    with Lane() as lane:
        out, _ = apply(op, lane.to_device(images), lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        assert np.abs(a.astype(int) - b).max() <= (1 if name == "clahe_rgb" else 0)


def test_refused() -> None:
    with pytest.raises(SpecError, match="uint8"):
        operator("clahe", **CLAHE).infer(Spec((4, 4, 3), DALIDataType.FLOAT, "HWC"))
    with pytest.raises(SpecError, match="1 or 3 channels"):
        operator("clahe", **CLAHE).infer(Spec((4, 4, 2), DALIDataType.UINT8, "HWC"))
    with pytest.raises(SpecError, match="one channel"):
        operator("debayer", blue_position=[0, 0]).infer(Spec((4, 4, 3), DALIDataType.UINT8, "HWC"))
    images = batch_of([source(0, 0, 256, "uint8", [9, 9, c]) for c in (1, 2)], "HWC")
    _, rejects = apply(operator("clahe", **CLAHE), images)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
