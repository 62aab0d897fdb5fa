"""Operators on boxes and masks against DALI's results (tests/golden/make_boxes.py); what is different on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec, find, outputs_of
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.plugins import load_operators
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.ops.ragged import call, cases, labels

load_operators()
STORED = cases("boxes")
BOUNDS = {"box_encoder": 2e-6, "bbox_rotate": 1e-6}
"""Of coordinates, absolute below 1 and relative above. The other operators give DALI's numbers to the bit."""
ON_GPU = [c for c in STORED.cases if c["op"] in ("bb_flip", "box_encoder")]


def assert_same(got: Any, wanted: Any, bound: float, where: str) -> None:
    assert got.dtype == wanted.dtype, where
    assert got.shape == wanted.shape, where
    if bound and got.dtype.kind == "f":
        np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound, err_msg=where)
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=where)


@pytest.mark.parametrize("case", STORED.cases, ids=labels("boxes"))
def test_results_of_dali(case: dict[str, Any]) -> None:
    for step, wanted in enumerate(STORED.steps(case)):
        got, ctx = call(STORED, case, step)
        assert not ctx.rejects
        assert len(got) == len(wanted)
        for k, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                assert_same(a, b, BOUNDS.get(case["op"], 0.0), f"iteration {step}, output {k}, sample {i}")


@pytest.mark.parametrize("case", ON_GPU, ids=lambda c: c["op"])
def test_cuda_run_on_the_cpu(case: dict[str, Any]) -> None:
    wanted, _ = call(STORED, case)
    got, ctx = call(STORED, case, stage="gpu", device=EmulatedLane())
    assert not ctx.rejects
    for ours, theirs in zip(got, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b, BOUNDS.get(case["op"], 0.0), case["op"])


@pytest.mark.gpu
@pytest.mark.parametrize("case", ON_GPU, ids=lambda c: c["op"])
def test_gpu(case: dict[str, Any]) -> None:
    from dali_run.ops.gpu.lane import Lane

    wanted, ctx = call(STORED, case)
    with Lane() as lane:
        given = [Batch.from_list(STORED.arrays(x), "", ctx.samples) for x in case["inputs"]]
        there = Context(ctx.op, "gpu", ctx.samples, args=ctx.args, device=lane)
        got = [lane.to_host(b) for b in outputs_of(ctx.op.kernel("gpu")(there, *map(lane.to_device, given)))]
        lane.synchronize()
    for ours, theirs in zip(got, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b, BOUNDS.get(case["op"], 0.0), case["op"])


def run(
    name: str, inputs: list[list[np.ndarray]], args: dict[str, list[np.ndarray]] | None = None, **constants: Any
) -> Any:
    op = find(name)(num_inputs=len(inputs), per_sample=frozenset(args or ()), **constants)
    op.check()
    samples = Samples.numbered(len(inputs[0]) if inputs else len(next(iter((args or {}).values()))))
    batches = [Batch.from_list(x, "", samples) for x in inputs]
    ctx = Context(
        op, "cpu", samples, seed=5, args={k: Batch.from_list(v, "", samples) for k, v in (args or {}).items()}
    )
    return outputs_of(op.cpu(ctx, *batches)), ctx


def boxes(*counts: int) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    lists = [random.random((n, 2)) * 0.5 for n in counts]
    return [np.concatenate([lo, lo + 0.3], 1).astype(np.float32) for lo in lists]


def test_a_window_depends_on_its_sample_alone() -> None:
    how = {"thresholds": (0.0, 0.3), "scaling": (0.3, 1.0), "aspect_ratio": (0.5, 2.0), "num_attempts": 20}
    given = boxes(3, 1, 0, 5)
    together, _ = run("random_bbox_crop", [given], **how)
    op = find("random_bbox_crop")(num_inputs=1, **how)
    for i in range(4):
        samples = Samples.numbered(4).take(np.array([i]))
        ctx = Context(op, "cpu", samples, seed=5)
        for alone, all_ in zip(op.cpu(ctx, Batch.from_list([given[i]], "", samples)), together, strict=True):
            np.testing.assert_array_equal(alone.sample(0), all_.sample(i))


def test_a_search_without_an_end_gives_up() -> None:
    counted: dict[str, int] = {}
    op = find("random_bbox_crop")(scaling=(0.1, 0.2), thresholds=(0.9,), allow_no_crop=False, num_inputs=1)
    samples = Samples.numbered(2)
    ctx = Context(op, "cpu", samples, services=KernelServices(count=lambda why, n: counted.update({why: n})))
    _, shape, _ = op.cpu(ctx, Batch.from_list(boxes(2, 3), "", samples))
    assert list(counted.values()) == [2]
    assert (shape.dense() <= 0.2001).all()
    assert not ctx.rejects


def test_without_any_window_the_image_is_whole() -> None:
    # DALI gives a window of no size
    (anchor, shape, left), _ = run(
        "random_bbox_crop", [boxes(2)], scaling=(0.9, 1.0), aspect_ratio=(5.0, 6.0), allow_no_crop=False,
        total_num_attempts=10,
    )  # fmt: skip
    assert anchor.sample(0).tolist() == [0, 0]
    assert shape.sample(0).tolist() == [1, 1]
    np.testing.assert_array_equal(left.sample(0), boxes(2)[0])


def test_windows_of_a_fixed_ratio_of_pixels_stay_inside() -> None:
    # DALI's may reach outside, where slice then fails
    (anchor, shape, _), _ = run(
        "random_bbox_crop", [boxes(*[2] * 50)], scaling=(0.3, 1.0), aspect_ratio=(1.5, 1.5), input_shape=(300, 480),
        allow_no_crop=False, total_num_attempts=200,
    )  # fmt: skip
    assert (anchor.dense() >= 0).all()
    assert (anchor.dense() + shape.dense() <= 1.00001).all()


@pytest.mark.parametrize("bad", [[[-0.1, 0, 0.5, 0.5]], [[0, 0, 320, 240]], [[0, 0, np.nan, 1]]])
def test_boxes_in_pixels_are_rejected_alone(bad: list[list[float]]) -> None:
    out, ctx = run("random_bbox_crop", [[boxes(2)[0], np.array(bad, np.float32), boxes(1)[0]]])
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_argument")]
    assert "ratio: true" in ctx.rejects[0].message
    assert [len(b) for b in out[2]] == [2, 0, 1]


@pytest.mark.parametrize("name", ["random_bbox_crop", "bbox_rotate", "box_encoder"])
def test_labels_that_are_not_as_many_as_boxes_are_rejected_alone(name: str) -> None:
    how: dict[str, Any] = {
        "bbox_rotate": {"angle": 10.0, "input_shape": (9, 9)},
        "box_encoder": {"anchors": (0.0, 0.0, 1.0, 1.0)},
    }.get(name, {})
    some = [np.arange(2, dtype=np.int64), np.arange(2, dtype=np.int64)]
    out, ctx = run(name, [boxes(2, 3), some], **how)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_shape")]
    assert out[-1].dtype == np.int64
    assert len(out[-1].sample(0)) == (1 if name == "box_encoder" else 2)


def test_boxes_of_another_width_are_rejected_alone() -> None:
    for name, how in (("bbox_rotate", {"angle": 10.0, "input_shape": (9, 9)}), ("bb_flip", {})):
        _, ctx = run(name, [[boxes(2)[0], np.zeros((2, 5), np.float32)]], **how)
        assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_shape")]


def test_a_whole_turn_keeps_boxes() -> None:
    for threshold in (0.0, 1.0):  # DALI refuses 1
        (out,), _ = run("bbox_rotate", [boxes(5)], angle=360.0, input_shape=(40, 30), remove_threshold=threshold)
        np.testing.assert_allclose(out.sample(0), boxes(5)[0], atol=1e-5)


def test_a_quarter_turn_of_a_box() -> None:
    (out,), _ = run("bbox_rotate", [[np.array([[0.0, 0.0, 0.5, 0.25]], np.float32)]], angle=90.0, input_shape=(40, 30))
    np.testing.assert_allclose(out.sample(0), [[0, 0.5, 0.25, 1]], atol=1e-5)  # upper left becomes lower left


@pytest.mark.parametrize(("ids", "message"), [([4], "no mask 4"), ([1, 1], "listed twice")])
def test_masks_that_cannot_be_selected_are_rejected_alone(ids: list[int], message: str) -> None:
    polygons = [np.array([[0, 0, 3], [1, 3, 6]], np.int32)] * 2
    vertices = [np.arange(12, dtype=np.float32).reshape(6, 2)] * 2
    out, ctx = run(
        "segmentation.select_masks", [[np.array(ids, np.int32), np.array([1], np.int32)], polygons, vertices]
    )
    assert [r.slot for r in ctx.rejects] == [0]
    assert message in ctx.rejects[0].message
    assert out[0].sample(1).tolist() == [[1, 0, 3]]
    assert out[1].sample(1).tolist() == [[6, 7], [8, 9], [10, 11]]


def test_a_polygon_beyond_the_vertices_is_rejected() -> None:
    polygons, vertices = [np.array([[0, 0, 9]], np.int32)], [np.zeros((6, 2), np.float32)]
    _, ctx = run("segmentation.select_masks", [[np.array([0], np.int32)], polygons, vertices])
    assert "polygon 0 reaches beyond the 6 vertices" in ctx.rejects[0].message


def test_all_polygons_of_a_mask_are_kept() -> None:
    # DALI keeps the last one
    polygons = [np.array([[7, 0, 3], [2, 3, 5], [7, 5, 6]], np.int32)]
    vertices = [np.arange(6, dtype=np.float32).reshape(6, 1)]
    out, _ = run("segmentation.select_masks", [[np.array([7], np.int32)], polygons, vertices], reindex_masks=True)
    assert out[0].sample(0).tolist() == [[0, 0, 3], [0, 3, 4]]
    assert out[1].sample(0).ravel().tolist() == [0, 1, 2, 5]


def test_objects_are_connected_regions() -> None:
    import cv2

    random = np.random.default_rng(3)
    masks = [(random.random((40, 50)) < 0.55).astype(np.uint8) for _ in range(30)]
    (start, shape), _ = run("segmentation.random_object_bbox", [masks])
    for mask, a, s in zip(masks, start, shape, strict=True):
        stats = cv2.connectedComponentsWithStats(mask, connectivity=4)[2][1:, :4]
        assert [*a[::-1].tolist(), *s[::-1].tolist()] in stats.tolist()


def test_foreground_pixels_are_all_drawn() -> None:
    mask = np.zeros((4, 5), np.int32)
    mask[1, 2], mask[3, 4], mask[0, 0] = 7, 7, 3
    (out,), _ = run("segmentation.random_mask_pixel", [[mask] * 64], foreground=1, value=7)
    assert {tuple(p.tolist()) for p in out} == {(1, 2), (3, 4)}
    _, ctx = run("segmentation.random_mask_pixel", [[mask, mask[:0]]])
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_shape")]


def test_windows_that_do_not_fit_are_rejected_alone() -> None:
    crop = [np.array(c, np.int32) for c in ([2, 2], [9, 2], [2, 2])]
    start = [np.array(c, np.int32) for c in ([1, 1], [1, 1], [5, 1])]
    (out,), ctx = run("roi_random_crop", [], {"crop_shape": crop, "roi_start": start}, roi_end=(4, 4), in_shape=(8, 8))
    assert sorted(r.slot for r in ctx.rejects) == [1, 2]
    assert (out.sample(0) >= 1).all()
    assert (out.sample(0) <= 2).all()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("random_bbox_crop", {"crop_shape": (5, 5)}, "input_shape"),
    ("random_bbox_crop", {"crop_shape": (5, 5), "input_shape": (9, 9), "scaling": (0.5, 1.0)}, "scaling"),
    ("random_bbox_crop", {"crop_shape": (5, 5), "input_shape": (9, 9), "allow_no_crop": True}, "allow_no_crop"),
    ("random_bbox_crop", {"bbox_layout": "WHxx"}, "bbox_layout"),
    ("random_bbox_crop", {"aspect_ratio": (2.0, 1.0)}, "aspect_ratio"),
    ("random_bbox_crop", {"aspect_ratio": (1.0, 2.0, 3.0)}, "aspect_ratio"),
    ("random_bbox_crop", {"scaling": (1.0, 0.5)}, "scaling"),
    ("random_bbox_crop", {"thresholds": ()}, "thresholds"),
    ("random_bbox_crop", {"shape_layout": "WC"}, "shape_layout"),
    ("box_encoder", {"anchors": (0.0, 1.0, 1.0)}, "4 numbers"),
    ("box_encoder", {"anchors": (0.0, 0.0, 1.0, 1.0), "stds": (1.0, 0.0, 1.0, 1.0)}, "stds"),
    ("bbox_rotate", {"angle": 1.0, "input_shape": (9,)}, "input_shape"),
    ("bbox_rotate", {"angle": 1.0, "input_shape": (9, 9), "keep_size": True, "size": (3.0, 3.0)}, "keep_size"),
    ("roi_random_crop", {"crop_shape": (2,), "roi_start": (0,)}, "roi_end or roi_shape"),
    ("segmentation.random_object_bbox", {"ignore_class": True, "output_class": True}, "output_class"),
    ("segmentation.random_object_bbox", {"classes": (1, 2), "class_weights": (1.0,)}, "class_weights"),
    ("segmentation.random_object_bbox", {"background": 1, "classes": (1, 2)}, "background"),
    ("segmentation.random_mask_pixel", {"value": 1, "threshold": 2.0}, "exclude"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "how", "message"), REFUSED)
def test_arguments_that_contradict_each_other(name: str, how: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        find(name)(**how).check()


def test_inputs_that_cannot_be_boxes() -> None:
    for name in ("bb_flip", "random_bbox_crop"):
        with pytest.raises(SpecError, match="float32"):
            find(name)().infer(Spec((3, 4), DALIDataType.FLOAT64))
    with pytest.raises(SpecError, match=r"\[n, 4\]"):
        find("box_encoder")(anchors=(0.0, 0.0, 1.0, 1.0)).infer(Spec((3, 5), DALIDataType.FLOAT), Spec((3,)))
