"""The joined resize + crop_mirror_normalize gives what the two give one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dali_run.ops.images.random_resized_crop  # noqa: F401 - declares the operator
from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.fused.resize_normalize import ResizeCropMirrorNormalize, can_join, joined_arguments
from dali_run.ops.types import DALIDataType
from tests.kit.operators import operator
from tests.kit.ops.resizing import source

from ...kit.emulated_lane import EmulatedLane

IMAGES = [source(k, "uint8", [31 + 17 * k, 90 - 11 * k, 3]) for k in range(4)]
IMAGENET = {"crop": [22, 24], "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
RESIZES: list[tuple[str, dict[str, Any]]] = [
    ("resize", {"resize_shorter": 26}),
    ("resize", {"size": [60, 70], "interp_type": "CUBIC"}),
    ("resize", {"size": [24, -300], "antialias": False, "interp_type": "NN"}),
    ("resize_crop_mirror", {"resize_shorter": 40, "crop": [30, 33], "mirror": 3}),
    ("random_resized_crop", {"size": [27, 25]}),
]
NORMALIZES: list[dict[str, Any]] = [
    IMAGENET,
    {**IMAGENET, "output_layout": "HWC", "scale": 2.0, "shift": 3.0},
    {"crop": [20, 20], "dtype": "INT8", "mean": [128], "crop_pos_x": 0.2, "crop_pos_y": 0.9},
    {"dtype": "UINT8", "mirror": 1},
    {"crop": [20, 20], "dtype": "UINT8", "output_layout": "HWC", "mirror": 1},
]


def contexts(op: Any, batch: Batch, args: dict[str, Batch], **rest: Any) -> Context:
    return Context(op, rest.pop("stage", "cpu"), batch.samples, args, seed=7, **rest)


def both(
    resize: Any, normalize: Any, batch: Batch, resize_args: Any, normalize_args: Any, **rest: Any
) -> tuple[Batch, Batch, list[Any], list[Any]]:
    first = contexts(resize, batch, resize_args)
    resized = resize.cpu(first, batch)
    second = contexts(normalize, resized, normalize_args)
    apart = normalize.cpu(second, resized)
    joined = ResizeCropMirrorNormalize(resize=resize, normalize=normalize)
    ctx = contexts(joined, batch, joined_arguments(resize_args, normalize_args), **rest)
    together = joined.gpu(ctx, batch) if ctx.stage == "gpu" else joined.cpu(ctx, batch)
    return apart, together, first.rejects + second.rejects, ctx.rejects


def check(apart: Batch, together: Batch) -> None:
    assert together.dtype == apart.dtype
    assert together.layout == apart.layout
    assert together.shapes.tolist() == apart.shapes.tolist()
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("resizing", range(len(RESIZES)))
@pytest.mark.parametrize("normalizing", range(len(NORMALIZES)))
def test_joined_equals_apart(resizing: int, normalizing: int) -> None:
    name, arguments = RESIZES[resizing]
    resize, normalize = operator(name, **arguments), operator("crop_mirror_normalize", **NORMALIZES[normalizing])
    assert can_join(resize, normalize, Spec((None, None, 3), DALIDataType.UINT8, "HWC"))
    batch = Batch.from_list(IMAGES, "HWC", Samples.numbered(4))
    apart, together, _, rejects = both(resize, normalize, batch, {}, {})
    assert not rejects
    check(apart, together)
    spec = Spec((31, 90, 3), DALIDataType.UINT8, "HWC")
    joined = ResizeCropMirrorNormalize(resize=resize, normalize=normalize)
    assert joined.infer(spec) == normalize.infer(resize.infer(spec))


@pytest.mark.parametrize("dtype", ["FLOAT16", "FLOAT"])
def test_arguments_by_sample_and_input_types(dtype: str) -> None:
    samples = Samples.numbered(4)
    sizes = Batch.from_dense(np.array([40, 33, 51, 24], np.float32), "", samples)
    mirror = Batch.from_dense(np.array([0, 1, 1, 0], np.int32), "", samples)
    mean = Batch.from_dense(np.arange(12, dtype=np.float32).reshape(4, 3), "", samples)
    resize = operator("resize", per_sample=("resize_shorter",))
    normalize = operator(
        "crop_mirror_normalize", per_sample=("mirror", "mean"), crop=[20, 20], dtype=dtype, std=[3, 5, 7]
    )
    for kind in ("uint8", "float32") if dtype == "FLOAT" else ("uint8",):
        batch = Batch.from_list([i.astype(kind) for i in IMAGES], "HWC", samples)
        apart, together, _, rejects = both(
            resize, normalize, batch, {"resize_shorter": sizes}, {"mirror": mirror, "mean": mean}
        )
        assert not rejects
        check(apart, together)


def test_what_cannot_be_processed_is_rejected_once_and_alone() -> None:
    images = [IMAGES[0], source(9, "uint8", [40, 40, 1]), IMAGES[1], source(9, "uint8", [1, 60000, 3])]
    sizes = Batch.from_dense(np.array([10, 30, 30, 300], np.float32), "", Samples.numbered(4))
    resize = operator("resize", per_sample=("resize_shorter",))
    normalize = operator("crop_mirror_normalize", **IMAGENET)
    batch = Batch.from_list(images, "HWC", Samples.numbered(4))
    joined = ResizeCropMirrorNormalize(resize=resize, normalize=normalize)
    ctx = contexts(joined, batch, joined_arguments({"resize_shorter": sizes}, {}))
    out = joined.cpu(ctx, batch)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(0, "out_of_bounds"), (1, "bad_shape")]
    want, _, _, _ = both(operator("resize", resize_shorter=30), normalize, batch.take(slice(2, 3)), {}, {})
    np.testing.assert_array_equal(out.sample(2), want.sample(0))
    assert out.shapes[3].tolist() == [3, 22, 24]  # only the window is made, so a size that is too large does not matter


@pytest.mark.parametrize(
    ("resize", "normalize", "layout"),
    [
        ({"size": 9.0, "save_attrs": True}, {}, "HWC"),
        ({"size": 9.0, "dtype": "FLOAT"}, {}, "HWC"),
        ({"size": 9.0}, {"out_of_bounds_policy": "pad"}, "HWC"),
        ({"size": 9.0}, {"pad_output": True}, "HWC"),
        ({"size": 9.0}, {}, "CHW"),
        ({"size": 9.0}, {}, "FHWC"),
    ],
)
def test_what_is_not_joined(resize: dict[str, Any], normalize: dict[str, Any], layout: str) -> None:
    spec = Spec((None,) * len(layout), DALIDataType.UINT8, layout)
    first, second = operator("resize", **resize), operator("crop_mirror_normalize", **normalize)
    assert not can_join(first, second, spec)
    assert not can_join(second, second, spec)


def test_other_input_types_are_not_joined() -> None:
    first, second = operator("resize", size=9.0), operator("crop_mirror_normalize")
    for dtype in (DALIDataType.INT16, None):
        assert not can_join(first, second, Spec((None, None, 3), dtype, "HWC"))


def on_device(lane: Any, batch: Batch) -> None:
    for name, arguments in RESIZES[:3]:
        for number in (0, 1, 2, 4):
            resize, normalize = operator(name, **arguments), operator("crop_mirror_normalize", **NORMALIZES[number])
            apart, together, _, rejects = both(resize, normalize, batch, {}, {}, stage="gpu", device=lane)
            assert not rejects
            check(apart, together)


def test_cuda_sources_equal_the_cpu_kernels() -> None:
    on_device(EmulatedLane(), Batch.from_list(IMAGES, "HWC", Samples.numbered(4)))


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    from dali_run.ops.gpu.lane import Lane

    batch = Batch.from_list(IMAGES, "HWC", Samples.numbered(4))
    lane = Lane()
    for name, arguments in RESIZES:
        for number in (*range(len(NORMALIZES)), -1):
            dtype = {"dtype": "FLOAT16"} if number < 0 else {}
            resize = operator(name, **arguments)
            normalize = operator("crop_mirror_normalize", **{**NORMALIZES[max(number, 0)], **dtype})
            joined = ResizeCropMirrorNormalize(resize=resize, normalize=normalize)
            want = joined.cpu(contexts(joined, batch, {}), batch)
            with lane:
                ctx = contexts(joined, batch, {}, stage="gpu", device=lane)
                got = lane.to_host(joined.gpu(ctx, lane.to_device(batch)))
                lane.synchronize()
            assert got.shapes.tolist() == want.shapes.tolist()
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)
