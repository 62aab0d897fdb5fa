"""Strided copies and the operators made of them: plain NumPy definitions, ragged batches, per-sample arguments,
rejects, and that kernels stay inside their buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.conversion import saturate
from dali_run.ops.copies.strided import Affine, Border, convert, mirror, pad, permute, run, whole, window
from dali_run.ops.copies.windows import round_half_away
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.plugins import load_operators
from tests.kit.long import examples

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply as on
from ...kit.operators import batch_of, operator

load_operators()
RANDOM = np.random.default_rng(7)
IMAGES = [RANDOM.integers(0, 256, s, dtype=np.uint8) for s in ((7, 9, 3), (5, 12, 3), (10, 6, 3))]


def apply(
    name: str, inputs: list[list[Any]], layout: str = "HWC", args: dict[str, list[Any]] | None = None, **arguments: Any
) -> tuple[Batch, list[Any]]:
    op = operator(name, tuple(args or ()), **arguments)
    batches = [batch_of(samples, layout) for samples in inputs]
    ctx = Context(op, "cpu", batches[0].samples, {k: batch_of(v) for k, v in (args or {}).items()})
    return op.kernel("cpu")(ctx, *batches), ctx.rejects


# -- plans ------------------------------------------------------------------------------------------------------------


class Cpu:
    stage = "cpu"
    empty = staticmethod(np.empty)


PAD_MODES = {Border.EDGE: "edge", Border.REFLECT_1001: "symmetric", Border.REFLECT_101: "reflect", Border.WRAP: "wrap"}
sides = st.integers(1, 6)


@settings(max_examples=60)
@given(st.data())
def test_plans_do_what_numpy_does(data: st.DataObject) -> None:
    border = data.draw(st.sampled_from([*PAD_MODES, Border.FILL]))
    dtype = data.draw(st.sampled_from(["uint8", "uint16", "float32", "int64"]))
    ndim = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, 3))
    samples = [RANDOM.integers(0, 200, data.draw(st.tuples(*[sides] * ndim))).astype(dtype) for _ in range(count)]
    batch = batch_of(samples)
    before = np.array([[data.draw(st.integers(-2, 5)) for _ in range(ndim)] for _ in samples])
    after = np.array([[data.draw(st.integers(-2, 5)) for _ in range(ndim)] for _ in samples])
    extent = batch.shapes.astype(np.int64)
    shape = np.maximum(extent + before + after, 0)
    flips = np.array([[data.draw(st.booleans()) for _ in range(ndim)] for _ in samples])
    order = data.draw(st.permutations(range(ndim)))

    plan = pad(window(whole(batch), -before, shape), border, 9)
    for axis in range(ndim):
        plan = mirror(plan, axis, flips[:, axis])
    out = run(Cpu, permute(plan, order, ""), batch)  # type: ignore[arg-type]

    for i, sample in enumerate(samples):
        index = [np.arange(s) - b for s, b in zip(shape[i], before[i], strict=True)]
        mode = PAD_MODES.get(border)
        wide = np.pad(sample, 40, mode=mode) if mode else np.pad(sample, 40, constant_values=9)  # type: ignore[call-overload]
        want = wide[np.ix_(*(ix + 40 for ix in index))]
        want = np.flip(want, tuple(np.flatnonzero(flips[i]))).transpose(order)
        np.testing.assert_array_equal(out.sample(i), want)


@settings(max_examples=examples(60, 15))
@given(st.data())
def test_normalised_and_mirrored_windows(data: st.DataObject) -> None:
    channels = data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from(["uint8", "float32", "int16"]))
    target = data.draw(st.sampled_from(["float32", "float16", "uint8", "int8", "int32"]))
    order = data.draw(st.permutations(range(3)))
    samples = [
        RANDOM.integers(0, 200, (data.draw(sides), data.draw(st.integers(1, 40)), channels)).astype(dtype)
        for _ in range(2)
    ]
    batch = batch_of(samples)
    shape = batch.shapes.astype(np.int64) + np.array([2, 3, 0])
    anchor = np.tile(np.array([-1, -2, 0]), (2, 1))
    flip = np.array([data.draw(st.booleans()), data.draw(st.booleans())])
    k = data.draw(st.sampled_from([1, channels]))
    mean, mul, add = (RANDOM.uniform(-3, 3, (1, k)).astype(np.float32) for _ in range(3))
    fill = np.arange(channels) + 5.0
    plan = mirror(window(whole(batch), anchor, shape), 1, flip)
    plan = pad(convert(plan, target, Affine.of(mean, mul, add), 2 if k > 1 else -1), Border.FILL, fill, 2)
    out = run(Cpu, permute(plan, order, ""), batch)  # type: ignore[arg-type]
    for i, sample in enumerate(samples):
        exact = (sample.astype(np.float64) - mean[0]) * mul[0] + add[0]
        want = np.tile(fill, (*shape[i, :2], 1))
        want[1:-1, 2 : 2 + sample.shape[1]] = exact
        want = (want[:, ::-1] if flip[i] else want).transpose(order)
        got = out.sample(i).astype(np.float64)
        if target.startswith("float"):
            scale = 1e-6 if target == "float32" else 1e-3
            np.testing.assert_allclose(got, want, rtol=scale, atol=2000 * scale)
        else:
            ends = np.iinfo(target)
            near = np.abs(want - np.trunc(want)) % 1
            firm = np.abs(near - 0.5) > 1e-3  # a tie may fall either way in float32
            clipped = np.clip(np.sign(want) * np.floor(np.abs(want) + 0.5), ends.min, ends.max)
            np.testing.assert_array_equal(got[firm], clipped[firm])


def test_nothing_is_read_or_written_outside() -> None:
    """Samples lie between guards; the output's neighbours keep their bytes."""
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    data = np.full(200, 255, np.uint8)
    data[70 : 70 + image.size] = image.reshape(-1)
    batch = Batch(data, np.array([70]), np.array([[4, 5, 3]], np.int32), "HWC", Samples.numbered(1))
    plan = pad(window(whole(batch), np.array([[-3, -3, 0]]), np.array([[10, 11, 3]])), Border.FILL, 0)
    out = run(Cpu, plan, batch)  # type: ignore[arg-type]
    assert out.sample(0).max() == image.max()  # no 255 of the guards
    assert out.sample(0).sum() == image.sum()


def test_pixels_of_three_bytes_are_mirrored_at_every_width() -> None:
    images = [RANDOM.integers(0, 256, (2, width, 3), np.uint8) for width in range(1, 52)]
    out, _ = apply("flip", [images])
    for k, image in enumerate(images):
        np.testing.assert_array_equal(out.sample(k), image[:, ::-1])


def test_samples_may_overlap_and_lie_anywhere() -> None:
    data = np.arange(100, dtype=np.float32)
    batch = Batch(data, np.array([50, 3, 50]), np.array([[2, 4], [3, 3], [1, 1]], np.int32), "HW", Samples.numbered(3))
    out, rejects = run(Cpu, mirror(whole(batch), 1, np.array([True, False, True])), batch), []  # type: ignore[arg-type]
    assert not rejects
    np.testing.assert_array_equal(out.sample(0), [[53, 52, 51, 50], [57, 56, 55, 54]])
    np.testing.assert_array_equal(out.sample(1), data[3:12].reshape(3, 3))


@pytest.mark.parametrize("name", ["crop", "flip", "transpose", "cast", "cat", "crop_mirror_normalize", "normalize"])
def test_empty_batches_and_empty_samples(name: str) -> None:
    arguments: dict[str, Any] = {"cast": {"dtype": "FLOAT"}, "transpose": {"perm": [1, 0, 2]}}.get(name, {})
    op = operator(name, **arguments)
    for shapes in (np.zeros((0, 3), np.int32), np.array([[0, 4, 3], [2, 0, 3]], np.int32)):
        batch = Batch.allocate(np.empty, shapes, np.uint8, "HWC", Samples.numbered(len(shapes)))
        ctx = Context(op, "cpu", batch.samples)
        out = op.kernel("cpu")(ctx, batch)
        assert len(out) == len(shapes)
        assert out.sizes.sum() == 0
        assert not ctx.rejects


# -- conversions ------------------------------------------------------------------------------------------------------


def test_floats_round_half_away_and_saturate() -> None:
    values = np.array([-1, 0.4, 0.5, 1.5, 2.5, 254.5, 300, np.nan, 0.49999997, -np.inf], np.float32)
    assert saturate(values, np.uint8).tolist() == [0, 0, 1, 2, 3, 255, 255, 0, 0, 0]
    wide = np.array([-1.5, -0.5, 2.5, 3e9, -1e30, np.inf, np.nan], np.float32)
    assert saturate(wide, np.int32).tolist() == [-2, -1, 3, 2**31 - 1, -(2**31), 2**31 - 1, 0]
    assert saturate(np.array([1e19, -1e19, 2.0**53 + 2]), np.int64).tolist() == [2**63 - 1, -(2**63), 2**53 + 2]
    assert saturate(np.array([0, 0.3, -1, 0.5, np.nan], np.float32), np.bool_).tolist() == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("target", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
@pytest.mark.parametrize("source", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_integers_saturate(source: str, target: str) -> None:
    ends, wanted = np.iinfo(source), np.iinfo(target)
    values = [
        v for v in (ends.min, ends.max, 0, 1, 100, -100, 255, 256, -129, 2**31, 2**63) if ends.min <= v <= ends.max
    ]
    got = saturate(np.array(values, source), target)
    assert got.tolist() == [min(max(v, wanted.min), wanted.max) for v in values]


def test_cast_of_float32_by_the_compiled_kernel_equals_numpy() -> None:
    values = np.concatenate([np.arange(-300, 300, 0.25), [np.nan, np.inf, -np.inf, 0.49999997]]).astype(np.float32)
    for dtype in ("UINT8", "INT8", "FLOAT16"):
        out, _ = apply("cast", [[values]], "", dtype=dtype)
        np.testing.assert_array_equal(out.sample(0), saturate(values, out.dtype))


def test_rounding_of_starts() -> None:
    assert round_half_away(np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 0.0])).tolist() == [1, 2, 3, -1, -2, 2, 0]


# -- operators --------------------------------------------------------------------------------------------------------


def test_crop_takes_arguments_for_each_sample() -> None:
    args = {"crop_h": [np.float32(v) for v in (3, 5, 2)], "crop_w": [np.float32(v) for v in (4, 1, 6)],
            "crop_pos_x": [np.float32(v) for v in (0, 1, 0.5)]}  # fmt: skip
    out, rejects = apply("crop", [IMAGES], args=args)
    assert not rejects
    np.testing.assert_array_equal(out.sample(0), IMAGES[0][2:5, 0:4])
    np.testing.assert_array_equal(out.sample(1), IMAGES[1][0:5, 11:12])
    np.testing.assert_array_equal(out.sample(2), IMAGES[2][4:6, 0:6])


def test_a_window_outside_rejects_its_sample_only() -> None:
    out, rejects = apply("crop", [IMAGES], crop=[6, 6])
    assert [(r.slot, r.code) for r in rejects] == [(1, "out_of_bounds")]
    assert "out_of_bounds_policy" in rejects[0].message
    np.testing.assert_array_equal(out.sample(0), IMAGES[0][1:7, 2:8])  # round(0.5) = 1, round(1.5) = 2
    np.testing.assert_array_equal(out.sample(2), IMAGES[2][2:8, 0:6])


def test_a_position_outside_0_to_1_rejects_its_sample_only() -> None:
    args = {"crop_pos_x": [np.float32(v) for v in (0.5, 1.5, np.nan)]}
    _, rejects = apply("crop", [IMAGES], args=args, crop=[2, 2])
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument"), (2, "bad_argument")]


@pytest.mark.parametrize("size", [np.nan, np.inf, -np.inf, 1e30, 5e4])
def test_absurd_sizes_cost_one_sample(size: float) -> None:
    sizes = [np.float32(v) for v in (2, size, 3)]
    for policy in ("error", "pad", "edge", "trim_to_shape"):
        args = {"crop_h": sizes, "crop_w": sizes}
        out, rejects = apply("crop", [IMAGES], args=args, out_of_bounds_policy=policy)
        assert {r.slot for r in rejects} <= {1}
        assert out.shapes[[0, 2]].tolist() == [[2, 2, 3], [3, 3, 3]]
        assert out.sizes[1] <= IMAGES[1].size
    starts = [np.array([v, 0], np.float32) for v in (0, size, 0)]
    out, rejects = apply("slice", [IMAGES], args={"rel_start": starts}, rel_shape=[0.5, 0.5], axes=[0, 1])
    assert [r.slot for r in rejects] == [1]


def test_gray_among_colour_images_is_rejected_not_read_past() -> None:
    images = [IMAGES[0], IMAGES[0][..., :1].copy(), IMAGES[1]]
    out, rejects = apply("crop_mirror_normalize", [images], mean=[1, 2, 3], std=[1, 1, 1])
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    np.testing.assert_array_equal(out.sample(2), IMAGES[1].transpose(2, 0, 1) - np.array([1.0, 2, 3]).reshape(3, 1, 1))


def test_several_fill_values_with_one_mean() -> None:
    """DALI writes zeros into the channels after the first here."""
    filled = {"out_of_bounds_policy": "pad", "fill_values": [1, 2, 3]}
    out, _ = apply("crop_mirror_normalize", [IMAGES[:1]], crop=[9, 11], mean=[4.0], **filled)
    want = np.tile(np.array([1.0, 2, 3]).reshape(3, 1, 1), (1, 9, 11))
    want[:, 1:8, 1:10] = IMAGES[0].transpose(2, 0, 1) - 4.0
    np.testing.assert_array_equal(out.sample(0), want)


@pytest.mark.parametrize("dtype", [None, "UINT8", "INT16", "FLOAT"])
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("op", ["crop", "slice"])
def test_several_fill_values_of_another_type(op: str, on_gpu: bool, dtype: str | None) -> None:
    """Each channel has its own, whatever the type of the output; of one column, too."""
    image = IMAGES[0]
    more: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    for width in (1, 4, 11):
        where: dict[str, Any] = (
            {"crop": [9, width], "crop_pos_x": 0.0, "crop_pos_y": 0.5}
            if op == "crop"
            else {"start": [-1, 0], "shape": [9, width], "axis_names": "HW"}
        )
        made = operator(op, **where, **more, out_of_bounds_policy="pad", fill_values=[1, 2, 3])
        out, rejects = on(made, batch_of([image], "HWC"), lane=EmulatedLane() if on_gpu else None)
        want = np.tile(np.array([1, 2, 3]), (9, width, 1))
        want[1:8, : min(width, 9)] = image[:, :width]
        assert not rejects
        np.testing.assert_array_equal(out.sample(0), want)


def test_an_empty_sample_that_begins_within_a_word() -> None:
    """The kernel divides by extents, and the first word of such a sample is one of another's, too."""
    images = [np.ones(s, np.uint8) for s in ((1, 1, 1), (3, 2, 1), (1, 0, 1), (5, 5, 1))]
    out, _ = on(operator("flip"), batch_of(images, "HWC"), lane=EmulatedLane())
    assert all((s == 1).all() and s.shape == i.shape for s, i in zip(out, images, strict=True))


def test_slice_by_inputs() -> None:
    anchors = [np.array(v, np.float32) for v in ([0.25, 0.5], [0.0, 0.2], [0.5, 0.1])]
    shapes = [np.array([0.5, 0.4], np.float32)] * 3
    op = operator("slice")
    batch = batch_of(IMAGES, "HWC")
    ctx = Context(op, "cpu", batch.samples)
    out = op.cpu(ctx, batch, batch_of(anchors), batch_of(shapes))
    for i, image in enumerate(IMAGES):  # (x, y) order
        extent = np.array([image.shape[1], image.shape[0]], np.float32)
        start = round_half_away(anchors[i] * extent)
        end = round_half_away((anchors[i] * extent).astype(np.float64) + shapes[i] * extent)
        np.testing.assert_array_equal(out.sample(i), image[start[1] : end[1], start[0] : end[0]])


def test_pad_to_the_largest_needs_the_whole_batch() -> None:
    assert operator("pad").per_batch
    assert operator("pad", axes=[0], shape=[-1]).per_batch
    assert not operator("pad", shape=[16]).per_batch
    assert not operator("normalize").per_batch
    assert operator("normalize", batch=True).per_batch


def test_stack_and_cat_against_numpy() -> None:
    others = [255 - image for image in IMAGES]
    for axis in (-3, -2, -1, 0, 1, 2):
        out, _ = apply("cat", [IMAGES, others, IMAGES], axis=axis)
        for i in range(3):
            np.testing.assert_array_equal(out.sample(i), np.concatenate([IMAGES[i], others[i], IMAGES[i]], axis))
    for axis in (-1, 0, 1, 2, 3):
        out, _ = apply("stack", [IMAGES, others], axis=axis)
        for i in range(3):
            np.testing.assert_array_equal(out.sample(i), np.stack([IMAGES[i], others[i]], axis))


def test_parts_that_do_not_fit_are_rejected_alone() -> None:
    others = [IMAGES[0], IMAGES[2], IMAGES[2]]
    for name in ("cat", "stack"):
        out, rejects = apply(name, [IMAGES, others])
        assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
        assert out.sample(2).reshape(-1).tolist() == np.stack([IMAGES[2]] * 2).reshape(-1).tolist()


def test_permute_batch_by_slots() -> None:
    out, _ = apply("permute_batch", [IMAGES], indices=[2, 0, 0])
    for got, source in zip(out, (2, 0, 0), strict=True):
        np.testing.assert_array_equal(got, IMAGES[source])
    # Sample 1 was dropped before: samples that want its data are dropped too.
    batch = batch_of(IMAGES, "HWC").take(np.array([0, 2]))
    op = operator("permute_batch", indices=[1, 0, 0])
    ctx = Context(op, "cpu", batch.samples)
    out = op.cpu(ctx, batch)
    assert [r.slot for r in ctx.rejects] == [0]
    np.testing.assert_array_equal(out.sample(1), IMAGES[0])


def test_reinterpret_moves_samples_that_start_at_odd_bytes() -> None:
    data = np.arange(40, dtype=np.uint8)
    batch = Batch(data, np.array([1, 9]), np.array([[2, 4], [3, 4]], np.int32), "", Samples.numbered(2))
    op = operator("reinterpret", dtype="UINT32")
    out = op.cpu(Context(op, "cpu", batch.samples), batch)
    assert out.shapes.tolist() == [[2, 1], [3, 1]]
    np.testing.assert_array_equal(out.sample(1).reshape(-1), data[9:21].view(np.uint32))


def test_squeeze_takes_axes_for_each_sample() -> None:
    samples = [np.zeros((1, 4, 2)), np.zeros((5, 1, 3)), np.zeros((2, 2, 2)), np.zeros((1, 1, 1))]
    axes = [np.array([a]) for a in (0, -2, 1, 5)]
    out, rejects = apply("squeeze", [samples], "HWC", {"axes": axes})
    assert out.shapes.tolist()[:2] == [[4, 2], [5, 3]]
    assert out.layout == ""
    assert sorted((r.slot, r.code) for r in rejects)[0] == (2, "bad_shape")
    assert (3, "bad_argument") in [(r.slot, r.code) for r in rejects]


def test_constants_share_memory() -> None:
    op = operator("constant", idata=[1, 2, 3])
    out = op.cpu(Context(op, "cpu", Samples.numbered(1000)))
    assert out.data.size == 3
    assert [s.tolist() for s in out][::999] == [[1, 2, 3], [1, 2, 3]]
    op = operator("zeros", ("shape",))
    ctx = Context(op, "cpu", Samples.numbered(2), {"shape": batch_of([np.array([2, 3]), np.array([4, 1])])})
    assert [s.tolist() for s in op.cpu(ctx)] == [[[0] * 3] * 2, [[0]] * 4]


def test_source_info() -> None:
    out, _ = apply("get_property", [IMAGES], key="source_info")
    assert out.sample(1).tobytes() == b""  # nobody read it
    out, _ = apply("get_property", [IMAGES], key="layout")
    assert out.sample(2).tobytes() == b"HWC"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("crop", {"crop": [4]}, "height, width"),
    ("crop", {"crop_w": 4}, "together"),
    ("crop", {"crop": [4, 4], "crop_h": 2, "crop_w": 2}, "exclude"),
    ("slice", {"start": [1], "rel_start": [0.1]}, "exclude"),
    ("crop_mirror_normalize", {"dtype": "INT32"}, "dtype"),
    ("crop_mirror_normalize", {"mean": [1, 2], "std": [1, 2, 3]}, "mean"),
    ("transpose", {"perm": [0, 0]}, "perm"),
    ("pad", {"axes": [0], "axis_names": "H"}, "exclude"),
    ("pad", {"align": [0]}, "align"),
    ("squeeze", {}, "axes"),
    ("expand_dims", {"axes": [-1]}, "axes"),
    ("reshape", {"shape": [-1, -1]}, "negative"),
    ("get_property", {"key": "x"}, "source_info"),
    ("constant", {}, "idata"),
    ("constant", {"idata": [1, 2], "shape": [3]}, "takes 1 or 3"),
    ("normalize", {"axes": [0], "axis_names": "H"}, "exclude"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), WRONG)
def test_contradictions_are_said_before_anything_runs(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        operator(name, **arguments)


IMPOSSIBLE: list[tuple[str, dict[str, Any], list[Spec], str]] = [
    ("crop_mirror_normalize", {"mean": [1, 2]}, [Spec((4, 4, 3), None, "HWC")], "2 values for 3 channels"),
    ("crop_mirror_normalize", {}, [Spec((2, 4, 4, 3), None, "FHWC")], "output_layout"),
    ("transpose", {"perm": [1, 0]}, [Spec((4, 4, 3), None, "HWC")], "2 entries for 3"),
    ("cat", {}, [Spec((4, 4), DALIDataType.FLOAT), Spec((4, 4), DALIDataType.UINT8)], "types"),
    ("cat", {"axis": 1}, [Spec((4, 4)), Spec((5, 4))], "differ"),
    ("stack", {}, [Spec((4, 4)), Spec((5, 4))], "differ in shape"),
    ("reshape", {"shape": [7, -1]}, [Spec((4, 4))], "16 elements"),
    ("squeeze", {"axes": [0]}, [Spec((4, 1))], "length 1"),
    ("slice", {"start": [1], "shape": [1], "axis_names": "D"}, [Spec((4, 4, 3), None, "HWC")], "'D'"),
    ("slice", {}, [Spec((4, 4, 3), None, "HWC")], "needs start"),
]


@pytest.mark.parametrize(("name", "arguments", "specs", "words"), IMPOSSIBLE)
def test_impossible_inputs_are_said_before_anything_runs(
    name: str, arguments: dict[str, Any], specs: list[Spec], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        operator(name, **arguments).infer(*specs)


# -- normalize --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [None, [0], [1], [2], [0, 1], [0, 2], [1, 2], [-1]])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int16", "float64"])
def test_normalize_against_numpy(axes: list[int] | None, dtype: str) -> None:
    samples = [image.astype(dtype) for image in IMAGES]
    out, rejects = apply("normalize", [samples], axes=axes, ddof=1, epsilon=0.5, scale=2, shift=3)
    assert not rejects
    where = None if axes is None else tuple(axes)
    for got, image in zip(out, IMAGES, strict=True):
        x = image.astype(np.float64)
        want = 2 * (x - x.mean(where, keepdims=True)) / np.sqrt(x.var(where, ddof=1, keepdims=True) + 0.5) + 3
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)


def test_normalize_over_the_batch() -> None:
    out, _ = apply("normalize", [IMAGES], axes=[0, 1], batch=True)
    pixels = np.concatenate([i.reshape(-1, 3) for i in IMAGES]).astype(np.float64)
    for got, image in zip(out, IMAGES, strict=True):
        np.testing.assert_allclose(got, (image - pixels.mean(0)) / pixels.std(0), rtol=1e-6, atol=1e-5)


def test_deviation_is_taken_around_the_given_mean() -> None:
    out, _ = apply("normalize", [IMAGES], mean=100.0, axes=[0, 1])
    x = IMAGES[0] - 100.0
    np.testing.assert_allclose(out.sample(0), x / np.sqrt((x**2).mean((0, 1))), rtol=1e-6, atol=1e-6)


def test_epsilon_counts_with_a_given_deviation_too() -> None:
    out, _ = apply("normalize", [IMAGES], stddev=10.0, epsilon=5.0)
    np.testing.assert_allclose(out.sample(0), (IMAGES[0] - IMAGES[0].mean()) / np.sqrt(105), rtol=1e-5, atol=1e-5)


def test_constant_samples_become_shift() -> None:
    out, _ = apply("normalize", [[np.full((3, 4), 7.3, np.float32)]], "", shift=2.5)
    assert (out.sample(0) == 2.5).all()


def test_means_as_tensors() -> None:
    mean = [np.array([[[10, 20, 30 + i]]], np.float32) for i in range(3)]
    out, rejects = apply("normalize", [IMAGES], args={"mean": mean})
    assert not rejects
    for got, image, m in zip(out, IMAGES, mean, strict=True):
        x = image - m.astype(np.float64)
        np.testing.assert_allclose(got, x / np.sqrt((x**2).mean((0, 1))), rtol=1e-6, atol=1e-6)
    bad = [*mean[:2], np.ones((1, 1, 2), np.float32)]
    _, rejects = apply("normalize", [IMAGES], args={"mean": bad})
    assert [(r.slot, r.code) for r in rejects] == [(2, "bad_argument")]


def test_full_like_has_the_type_of_what_it_is_like() -> None:
    """As DALI 2.4 does it: values saturate, and floats are rounded."""
    fill = np.array([1.5, 2.5, -3, 300], np.float32)
    out, rejects = apply("full_like", [[np.zeros((2, 4), np.uint8)] * 2, [fill] * 2], layout="")
    assert not rejects
    assert out.dtype == np.uint8
    assert out.sample(1).tolist() == [[2, 3, 0, 255]] * 2
    like, value = Spec((2, 4), DALIDataType.UINT8, "HW"), Spec((4,), DALIDataType.FLOAT)
    assert operator("full_like").infer(like, value) == like


def test_slices_to_the_end_of_samples_that_floats_cannot_count() -> None:
    extent = 2**24 + 3
    data = Batch(
        np.zeros(extent, np.uint8), np.zeros(1, np.int64), np.array([[extent]], np.int32), "", Samples.numbered(1)
    )
    op = operator("slice", start=[5], axes=[0])
    anchor, shape = op.windows(Context(op, "cpu", data.samples), data, ())
    assert (anchor.tolist(), shape.tolist()) == ([[5]], [[extent - 5]])


@pytest.mark.parametrize("kind", range(4))
def test_windows_of_slices_are_those_of_each_sample_alone(kind: int) -> None:
    """Relative and absolute ones, of constants and of inputs; those that end before they start are refused."""
    random = np.random.default_rng(kind)
    for _ in range(20):
        n = int(random.integers(1, 5))
        data = batch_of([np.zeros((*random.integers(0, 30, 2), 3), np.uint8) for _ in range(n)], "HWC")
        inputs: tuple[Batch, ...] = ()
        how: dict[str, Any] = {"out_of_bounds_policy": "pad", "axis_names": "HW"}
        first, last = (
            random.uniform(-0.5, 1, (n, 2)).astype(np.float32),
            random.uniform(-0.2, 1, (n, 2)).astype(np.float32),
        )
        of = np.float32(data.shapes[:, :2])
        if kind == 0:
            inputs = tuple(batch_of(list(values)) for values in (first, last))
            start, end = first * of, first * of + last * of
        elif kind == 1:
            how |= {"rel_start": first[0].tolist(), "rel_shape": last[0].tolist()}
            start, end = first[:1] * of, first[:1] * of + last[:1] * of
        elif kind == 2:
            whole = random.integers(-3, 5, 2)
            how |= {"start": whole.tolist(), "rel_end": last[0].tolist()}
            start, end = np.tile(whole, (n, 1)).astype(np.float32), last[:1] * of
        else:
            whole = random.integers(5, 40, 2)
            how |= {"rel_start": first[0].tolist(), "end": whole.tolist()}
            start, end = first[:1] * of, np.tile(whole, (n, 1)).astype(np.float32)
        start, end = (np.trunc(v) + np.copysign(np.abs(v - np.trunc(v)) >= 0.5, v) for v in (start, end))
        wrong = (end < start).any(axis=1)
        op = operator("slice", **how)
        ctx = Context(op, "cpu", data.samples)
        anchor, shape = op.windows(ctx, data, inputs)
        assert sorted(r.slot for r in ctx.rejects) == np.flatnonzero(wrong).tolist()
        np.testing.assert_array_equal(anchor[:, :2], np.where(wrong[:, None], 0, start))
        np.testing.assert_array_equal(shape[:, :2], np.where(wrong[:, None], 0, end - start))


@pytest.mark.parametrize(
    ("shapes", "perm", "dtype"),
    [
        ([(37, 18), (5, 5), (4, 40), (1, 9)], [1, 0], "float32"),
        ([(3, 20, 17), (2, 16, 33)], [0, 2, 1], "uint8"),
        ([(3, 19, 33), (3, 1, 1)], [1, 2, 0], "uint8"),
        ([(20, 3, 6)], [2, 1, 0], "int64"),
    ],
)
def test_lines_become_columns(shapes: list[tuple[int, ...]], perm: list[int], dtype: str) -> None:
    """Square by square, with rests, or three planes at once."""
    arrays = [np.arange(np.prod(s)).reshape(s).astype(dtype) for s in shapes]
    out, _ = apply("transpose", [arrays], "", perm=perm)
    for got, a in zip(out, arrays, strict=True):
        np.testing.assert_array_equal(got, a.transpose(perm))
