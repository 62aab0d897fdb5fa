"""optical_flow of pictures that move by a known distance, on the host. Vectors point to the frame before."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

from ...kit.golden import apply, batch_of, operator


def moving(frames: int, dx: int, dy: int, seed: int) -> np.ndarray:
    """A textured picture that moves by (dx, dy) pixels a frame."""
    texture = np.random.default_rng(seed).integers(0, 256, (200, 200, 3)).astype(np.uint8)
    texture = cv2.GaussianBlur(texture, (0, 0), 3)
    texture = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX)
    return np.stack([texture[60 - k * dy : 124 - k * dy, 60 - k * dx : 130 - k * dx] for k in range(frames)])


@pytest.mark.parametrize("preset", [0, 0.5, 1])
@pytest.mark.parametrize("grid", [1, 2, 4])
def test_motion_is_found(preset: float, grid: int) -> None:
    videos = [moving(3, 3, -2, 1), moving(2, -1, 4, 2)]
    out, rejects = apply(operator("optical_flow", preset=preset, output_grid=grid), batch_of(videos, "FHWC"))
    assert not rejects
    assert out[0].layout == "FHWC"
    for got, frames, motion in zip(out[0], (2, 1), ((3, -2), (-1, 4)), strict=True):
        assert got.shape == (frames, -(-64 // grid), -(-70 // grid), 2)
        inner = got[:, 16 // grid : -16 // grid, 16 // grid : -16 // grid]
        np.testing.assert_allclose(np.median(inner, axis=(0, 1, 2)), np.negative(motion), atol=0.2)


def test_hints_begin_the_search() -> None:
    video = moving(3, 3, -2, 1)
    op = operator("optical_flow", enable_external_hints=True, hint_grid=8, enable_temporal_hints=True)
    hints = np.full((2, 8, 9, 2), (-3, 2), np.float32)
    out, _ = apply(op, batch_of([video], "FHWC"), batch_of([hints], "FHWC"))
    np.testing.assert_allclose(np.median(out[0].sample(0), axis=(0, 1, 2)), (-3, 2), atol=0.2)
    _, rejects = apply(op, batch_of([video], "FHWC"), batch_of([hints[:, :3]], "FHWC"))
    assert [r.code for r in rejects] == ["bad_shape"]


def test_single_frames_have_no_motion() -> None:
    videos = batch_of([moving(2, 1, 1, 1), moving(1, 1, 1, 1)], "FHWC")
    out, rejects = apply(operator("optical_flow"), videos)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    assert out[0].shapes.tolist() == [[1, 16, 18, 2], [0, 0, 0, 0]]


def test_refused_before_anything_runs() -> None:
    video = Spec((3, 64, 64, 3), DALIDataType.UINT8, "FHWC")
    assert operator("optical_flow").infer(video).shape == (2, 16, 16, 2)
    for match, arguments, specs in (
        ("goes with a second", {"enable_external_hints": True}, [video]),
        ("3 channels", {}, [Spec((3, 64, 64, 1), DALIDataType.UINT8, "FHWC")]),
        ("uint8 sequences", {}, [Spec((3, 64, 64, 3), DALIDataType.FLOAT, "FHWC")]),
        ("hints of type FLOAT", {"enable_external_hints": True}, [video, Spec(None, DALIDataType.UINT8, "FHWC")]),
    ):
        with pytest.raises(SpecError, match=match):
            operator("optical_flow", **arguments).infer(*specs)
    with pytest.raises(SpecError, match=r"0, 0\.5 or 1"):
        operator("optical_flow", preset=0.7)
