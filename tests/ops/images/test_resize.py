"""resize and resize_crop_mirror against DALI's results and against plain definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.images.resize import Resize
from dali_run.ops.types import DALIDataType, DALIInterpType, from_numpy
from tests.kit.operators import operator
from tests.kit.ops.resizing import CASES, GOLDEN, run, source

from ...kit.operators import apply, batch_of


def expected() -> list[np.ndarray[Any, Any]]:
    at = dict.fromkeys(GOLDEN.files, 0)
    found = []
    for case in CASES:
        name, size = case["out_dtype"], int(np.prod(case["out_shape"]))
        found.append(GOLDEN[name][at[name] : at[name] + size].reshape(case["out_shape"]))
        at[name] += size
    return found


def test_results_are_at_most_one_level_from_dali() -> None:
    differing = total = 0
    for number, (case, want) in enumerate(zip(CASES, expected(), strict=True)):
        op = operator(case["op"], **case["arguments"])
        image = source(number, case["dtype"], case["shape"])
        out, ctx = run(op, [image], case["layout"])
        assert not ctx.rejects, (case, ctx.rejects)
        got = out.sample(0)
        assert got.shape == want.shape, case
        assert got.dtype == want.dtype, case
        known = op.infer(Spec(image.shape, from_numpy(image.dtype), case["layout"]))
        assert known == Spec(want.shape, from_numpy(want.dtype), case["layout"]), case
        difference = np.abs(got.astype(np.float64) - want)
        # float32 sums in another order: relative to the largest value that they hold
        bound = 2e-5 * max(1.0, np.abs(image).max()) if want.dtype == np.float32 else 1
        assert difference.max(initial=0) <= bound, (case, difference.max())
        if want.dtype != np.float32 and case["op"] == "resize":
            differing, total = differing + np.count_nonzero(difference), total + want.size
    assert differing < total * 1e-3


def test_a_sample_does_not_depend_on_its_batch() -> None:
    images = [source(k, "uint8", [13 + 7 * k, 40 - 5 * k, 3]) for k in range(5)]
    op = operator("resize", resize_shorter=11)
    together, _ = run(op, images)
    batch = Batch.from_list(images, "HWC", Samples.numbered(5))
    for part in (slice(3, 4), np.array([4, 0, 2])):  # offsets that neither start at 0 nor rise
        some = batch.take(part)
        out = op.cpu(Context(op, "cpu", some.samples), some)
        for got, i in zip(out, some.samples.slot.tolist(), strict=True):
            np.testing.assert_array_equal(got, together.sample(i))
    assert len(op.cpu(Context(op, "cpu", batch.samples.take(slice(0, 0))), batch.take(slice(0, 0)))) == 0


def test_the_size_can_come_from_other_operators() -> None:
    images = [source(k, "uint8", [20, 30, 3]) for k in range(3)]
    sizes = Batch.from_dense(np.array([[10, 12], [30, 0], [-5, 50]], np.float32), "", Samples.numbered(3))
    out, ctx = run(operator("resize", per_sample=("size",)), images, size=sizes)
    assert not ctx.rejects
    assert out.shapes[:, :2].tolist() == [[10, 12], [30, 45], [5, 50]]
    for k, size in enumerate(([10, 12], [30, 0], [-5, 50])):
        alone, _ = run(operator("resize", size=size), [images[k]])
        np.testing.assert_array_equal(out.sample(k), alone.sample(0))


def test_filters_can_differ_by_sample() -> None:
    image = source(1, "uint8", [20, 30, 3])
    filters = [DALIInterpType.INTERP_NN, DALIInterpType.INTERP_CUBIC, 99]
    given = Batch.from_dense(np.array(filters, np.int32), "", Samples.numbered(3))
    op = operator("resize", size=[9, 9], per_sample=("interp_type",))
    out, ctx = run(op, [image] * 3, interp_type=given)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_argument")]
    for k in (0, 1):
        alone, _ = run(operator("resize", size=[9, 9], interp_type=filters[k]), [image])
        np.testing.assert_array_equal(out.sample(k), alone.sample(0))


def test_save_attrs_gives_the_size_before() -> None:
    (out, before), _ = run(operator("resize", size=[4, 4], save_attrs=True), [source(0, "uint8", [2, 6, 8, 3])], "FHWC")
    assert out.shapes.tolist() == [[2, 4, 4, 3]]
    assert before.dtype == np.int32
    assert before.sample(0).tolist() == [6, 8]


def test_samples_that_cannot_be_resized_are_rejected_alone() -> None:
    images = [source(0, "uint8", [1, 60000, 3]), source(1, "uint8", [20, 30, 3])]
    out, ctx = run(operator("resize", resize_shorter=256), images)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(0, "too_large")]
    assert "max_size" in ctx.rejects[0].message
    assert out.shapes.tolist() == [[0, 0, 0], [256, 384, 3]]
    sizes = Batch.from_dense(np.array([np.nan, 40], np.float32), "", Samples.numbered(2))
    out, ctx = run(operator("resize", per_sample=("resize_x",)), images, resize_x=sizes)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(0, "bad_argument")]
    assert out.shapes[1].tolist() == [27, 40, 3]


def test_regions_far_outside_show_the_edge() -> None:
    image = source(2, "uint8", [6, 8, 3])
    for region in ([-1e30, 1e30], [-200, -100], [1e7, 2e7]):
        op = operator("resize", size=[3, 3], roi_start=region[:1], roi_end=region[1:], interp_type="INTERP_LINEAR")
        out, ctx = run(op, [image])
        assert not ctx.rejects
        assert out.shapes.tolist() == [[3, 3, 3]]
        if region[0] > 0:
            assert (out.sample(0) == image[-1, -1]).all()


def test_images_without_pixels_stay_so() -> None:
    out, ctx = run(operator("resize", size=[4, 4]), [np.zeros((0, 8, 3), np.uint8), np.zeros((5, 8, 3), np.uint8)])
    assert not ctx.rejects
    assert out.shapes.tolist() == [[0, 4, 3], [4, 4, 3]]


def test_integers_are_rounded_half_away_from_zero_and_saturate() -> None:
    split_plans = np.array([[[0], [1]], [[1], [2]], [[2], [3]]], np.int16)
    for sign in (1, -1):
        out, _ = run(operator("resize", size=[3, 1]), [split_plans * np.int16(sign)])
        assert out.sample(0).reshape(-1).tolist() == [sign, 2 * sign, 3 * sign]
    steps = np.repeat(np.array([0, 255], np.uint8), 2).reshape(1, 4, 1)
    out, _ = run(operator("resize", size=[1, 8], interp_type="CUBIC"), [steps])
    assert out.sample(0).reshape(-1)[[2, 5]].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one way"),
        ({"size": [4, 4], "resize_shorter": 4}, "size and resize_shorter"),
        ({"resize_shorter": 4, "resize_longer": 4}, "one way"),
        ({"resize_longer": 4, "mode": "stretch"}, "exclude"),
        ({"size": [4, 4], "roi_start": [0, 0]}, "go together"),
        ({"size": [4, float("inf")]}, "finite"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        operator("resize", **arguments)


@pytest.mark.parametrize(
    ("arguments", "spec", "message"),
    [
        ({"size": [4, 4]}, Spec((5, 5, 3), DALIDataType.INT32, "HWC"), "UINT8, INT16, UINT16, FLOAT"),
        ({"size": [4, 4], "dtype": "INT16"}, Spec((5, 5, 3), DALIDataType.UINT8, "HWC"), "or FLOAT"),
        ({"size": [4, 4]}, Spec((5, 5), DALIDataType.UINT8, "HW"), "HWC"),
        ({"size": [4, 4, 4]}, Spec((5, 5, 3), DALIDataType.UINT8, "HWC"), "1 or 2 numbers"),
        ({"size": 4, "max_size": [1, 2, 3]}, Spec((5, 5, 3), DALIDataType.UINT8, "HWC"), "1 or 2 numbers"),
    ],
)
def test_impossible_inputs_are_refused(arguments: dict[str, Any], spec: Spec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        operator("resize", **arguments).infer(spec)


def test_what_is_known_before_running() -> None:
    unknown = Spec((None, None, 3), DALIDataType.UINT8, "HWC")
    assert operator("resize", size=[4, 5]).infer(unknown).shape == (4, 5, 3)
    assert operator("resize", resize_x=4, resize_y=5).infer(unknown).shape == (5, 4, 3)
    assert operator("resize", resize_shorter=4).infer(unknown).shape == (None, None, 3)
    assert operator("resize", size=[4, 0]).infer(unknown).shape == (None, None, 3)
    assert operator("resize", size=[4, 5]).infer(Spec()).shape is None
    assert Resize(size=(4.0,), save_attrs=True).infer(unknown)[1] == Spec((2,), DALIDataType.INT32)


def test_identity_changes_nothing() -> None:
    image = source(3, "uint8", [11, 17, 3])
    for name in ("NN", "LINEAR", "CUBIC", "TRIANGULAR"):
        out, _ = run(operator("resize", size=[11, 17], interp_type=name), [image])
        np.testing.assert_array_equal(out.sample(0), image)


def test_resize_crop_mirror_is_resize_crop_flip() -> None:
    image = source(4, "uint8", [61, 83, 3])
    whole, _ = run(operator("resize", resize_shorter=40), [image])
    fused, _ = run(operator("resize_crop_mirror", resize_shorter=40, crop=[22, 30], mirror=1, crop_pos_x=0.3), [image])
    left = int(np.floor(np.float32(0.3) * (whole.shapes[0, 1] - 30) + 0.5))
    split_job = whole.sample(0)[9:31, left : left + 30][:, ::-1].astype(int)
    assert np.abs(fused.sample(0) - split_job).max() <= 1
    assert np.count_nonzero(fused.sample(0) - split_job) < 0.01 * split_job.size


def test_linear_equals_opencv_inside() -> None:
    cv2 = pytest.importorskip("cv2")
    image = source(5, "uint8", [40, 50, 3])
    out, _ = run(operator("resize", size=[63, 81], antialias=False), [image])
    theirs = cv2.resize(image, (81, 63), interpolation=cv2.INTER_LINEAR)
    assert np.abs(out.sample(0).astype(int) - theirs).max() <= 1


def test_antialiasing_equals_pillow_inside() -> None:
    pil = pytest.importorskip("PIL.Image")
    image = source(6, "uint8", [90, 120, 3])
    for ours, theirs in (("LINEAR", pil.Resampling.BILINEAR), ("CUBIC", pil.Resampling.BICUBIC)):
        out, _ = run(operator("resize", size=[30, 50], interp_type=ours), [image])
        reference = np.asarray(pil.fromarray(image).resize((50, 30), theirs)).astype(int)
        difference = np.abs(out.sample(0).astype(int) - reference)
        assert difference[3:-3, 3:-3].max() <= 1  # Pillow drops the taps that we clamp to the edge


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_nearest_pixels_are_the_same_as_floats(channels: int) -> None:
    """Where bytes stay bytes they are moved as words; widths with and without rests, and to the batch's last byte."""
    arrays = [np.random.default_rng(w).integers(0, 256, (9, w, channels)).astype(np.uint8) for w in (61, 21, 5, 1)]
    for width in (47, 32, 15):
        plain, floats = (
            apply(operator("resize", size=[7, width], interp_type="NN", dtype=dtype), batch_of(arrays, "HWC"))[0]
            for dtype in ("UINT8", "FLOAT")
        )
        assert floats.dtype == np.float32
        for got, other, a in zip(plain, floats, arrays, strict=True):
            np.testing.assert_array_equal(got, other)
            down, across = ((np.arange(n) + 0.5) * a.shape[k] / n for k, n in ((0, 7), (1, width)))
            np.testing.assert_array_equal(got, a[down.astype(int)][:, across.astype(int)])
