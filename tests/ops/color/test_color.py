"""color_space_conversion against DALI's results (tests/golden/make_color.py) and plain definitions."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.color.conversion import ColorSpaceConversion
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType, DALIImageType
from tests.kit.ops.colors import GOLDEN, PAIRS, convert, source

from ...kit.emulated_lane import EmulatedLane


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_results_of_dali(a: DALIImageType, b: DALIImageType) -> None:
    want = GOLDEN[f"{a.name}_{b.name}"]
    out, ctx = convert(a, b, [source(a), source(a)[3:7]])
    assert not ctx.rejects
    assert out.layout == "HWC"
    for got, expected in ((out.sample(0), want), (out.sample(1), want[3:7])):
        assert got.shape == expected.shape
        off = np.abs(got.astype(int) - expected.astype(int))
        assert off.max() <= 1
        assert np.count_nonzero(off) <= 1 + 0.002 * off.size


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_cuda_run_on_the_cpu(a: DALIImageType, b: DALIImageType) -> None:
    images = [source(a)[:5, :9], source(a)[2:4]]
    expected, _ = convert(a, b, images)
    got, _ = convert(a, b, images, stage="gpu", device=EmulatedLane())
    for want, have in zip(expected, got, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.gpu
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_gpu(a: DALIImageType, b: DALIImageType) -> None:
    from dali_run.ops.gpu.lane import Lane

    expected, _ = convert(a, b, [source(a), source(a)[3:7]])
    op = ColorSpaceConversion(image_type=a, output_type=b)
    with Lane() as lane:
        batch = Batch.from_list([source(a), source(a)[3:7]], "HWC", Samples.numbered(2))
        out = lane.to_host(op.gpu(Context(op, "gpu", batch.samples, device=lane), lane.to_device(batch)))
        lane.synchronize()
    for want, have in zip(expected, out, strict=True):
        off = np.abs(want.astype(int) - have.astype(int))
        assert off.max() <= 1
        assert np.count_nonzero(off) <= 1 + 0.002 * off.size


def test_a_round_trip_keeps_what_studio_range_can() -> None:
    there, _ = convert(DALIImageType.RGB, DALIImageType.YCbCr, [GOLDEN["colour"]])
    back, _ = convert(DALIImageType.YCbCr, DALIImageType.RGB, [there.sample(0)])
    assert np.abs(back.sample(0).astype(int) - GOLDEN["colour"].astype(int)).max() <= 3


def test_same_space_is_no_work() -> None:
    image = GOLDEN["colour"]
    out, _ = convert(DALIImageType.BGR, DALIImageType.BGR, [image])
    np.testing.assert_array_equal(out.sample(0), image)


def test_sequences_keep_their_frames() -> None:
    frames = np.stack([GOLDEN["colour"][:4], GOLDEN["colour"][4:8]])
    out, _ = convert(DALIImageType.RGB, DALIImageType.GRAY, [frames], layout="FHWC")
    np.testing.assert_array_equal(
        out.sample(0), np.concatenate([GOLDEN["RGB_GRAY"][None, :4], GOLDEN["RGB_GRAY"][None, 4:8]])
    )


def test_wrong_channels_are_rejected_alone() -> None:
    out, ctx = convert(DALIImageType.RGB, DALIImageType.YCbCr, [GOLDEN["colour"], GOLDEN["GRAY"]])
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_shape")]
    assert np.abs(out.sample(0).astype(int) - GOLDEN["RGB_YCbCr"]).max() <= 1


def test_what_cannot_work_is_refused_before_it_runs() -> None:
    op = ColorSpaceConversion(image_type=DALIImageType.RGB, output_type=DALIImageType.GRAY)
    with pytest.raises(SpecError, match="cast"):
        op.infer(Spec((4, 4, 3), DALIDataType.FLOAT, "HWC"))
    with pytest.raises(SpecError, match="3 channels"):
        op.infer(Spec((4, 4, 1), DALIDataType.UINT8, "HWC"))
    with pytest.raises(SpecError, match="output_type"):
        ColorSpaceConversion(image_type=DALIImageType.RGB, output_type=DALIImageType.ANY_DATA).check()


@pytest.mark.parametrize("width", [1, 31, 32, 33, 64, 65, 127])
def test_gray_of_lines_of_any_length(width: int) -> None:
    """Vectors, and what is left of them, to the bit."""
    random = np.random.default_rng(width)
    images = [random.integers(0, 256, (1 + k, width, 3)).astype(np.uint8) for k in range(3)]
    out, ctx = convert(DALIImageType.RGB, DALIImageType.GRAY, images)
    assert not ctx.rejects
    for got, image in zip(out, images, strict=True):
        r, g, b = (image[..., c].astype(np.float32) for c in range(3))
        value = np.float32(0.299) * r + np.float32(0.587) * g + np.float32(0.114) * b
        np.testing.assert_array_equal(got[..., 0], (value + np.float32(0.49999997)).astype(np.uint8))
