"""The operator torchvision: steps of both layouts, samples of their own, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.images.resampling.resample import preset_on_gpu
from dali_run.ops.libraries import torchvision_cpu
from dali_run.ops.libraries.torchvision_on_gpu import to_floats
from dali_run.ops.types import DALIDataType
from dali_run.transforms import functional
from tests.kit.long import thinned

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply, batch_of, operator

STEPS = [["adjust_hue", 0.2], ["turn", 1], ["gaussian_blur", 5, 3, 1.5, 0.7], ["window", -2, 3, 20, 9, 2], ["equalize"],
         ["affine", 1, 1, 0.9, 0.2, 1.5, -0.2, 1.1, -3, 0, 0, 0, 0, 7, 8, 9]]  # fmt: skip


def images() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((30, 21), (24, 24), (33, 40))]


def test_both_layouts_give_the_same() -> None:
    op = operator("torchvision", steps=STEPS)
    together, rejects = apply(op, batch_of(images(), "HWC"))
    apart, more = apply(op, batch_of([np.ascontiguousarray(i.transpose(2, 0, 1)) for i in images()], "CHW"))
    assert not rejects
    assert not more
    for a, b in zip(together, apart, strict=True):
        assert a.shape == (20, 9, 3)
        np.testing.assert_array_equal(a.transpose(2, 0, 1), b)


EACH = [
    [["adjust_brightness", 1.7]], [["adjust_contrast", 0.4]], [["adjust_saturation", 1.9]], [["adjust_hue", -0.3]],
    [["posterize", 3]], [["solarize", 100]], [["invert"]], [["autocontrast"]], [["equalize"]],
    [["adjust_sharpness", 2.5]], [["rgb_to_grayscale", 1], ["adjust_contrast", 1.5]], [["permute_channels", 2, 0, 1]],
    [["gaussian_blur", 5, 3, 1.5, 0.7]], [["gaussian_blur", 3, 3, 0.8, 0.8], ["flip", 3]],
    [["rgb_to_grayscale", 1], ["gaussian_blur", 3, 9, 0.8, 2]], [["flip", 1]], [["flip", 2]],
    [["turn", 1]], [["turn", 2]], [["turn", 3]], [["window", -5, -70, 50, 60, 0, 1, 2, 3]],
    [["window", -5, -7, 50, 60, 1]], [["window", -5, -7, 50, 60, 2]], [["window", -5, -7, 50, 60, 3]],
    [["affine", 0, 0, 0.9, 0.4, 1.5, -0.4, 0.8, -3, 0, 0]],
    [["affine", 0, 1, 0.9, 0.4, 1.5, -0.4, 0.8, -3, 9, 70, 0, 0, 7, 8, 9]],
    [["affine", 1, 0, 0.9, 0.4, 1.5, -0.4, 0.8, -3, 0, 0]],
    [["affine", 1, 1, 0.9, 0.4, 1.5, -0.4, 0.8, -3, 0, 0, 0, 0, 7, 8, 9]],
    [["perspective", 1, 0, 0.9, 0.1, 2, -0.1, 0.9, 1, 0.001, -0.002]],
    [["perspective", 0, 1, 0.9, 0.1, 2, -0.1, 0.9, 1, 0.02, -0.05, 0, 0, 7, 8, 9]], [], STEPS,
]  # fmt: skip


@pytest.mark.parametrize("steps", EACH, ids=lambda steps: "-".join(s[0] for s in steps) or "none")
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_the_kernels_of_the_gpu_give_the_same_bits(steps: list[list[Any]], layout: str) -> None:
    op = operator("torchvision", steps=steps)
    given = images() if layout == "HWC" else [np.ascontiguousarray(i.transpose(2, 0, 1)) for i in images()]
    want, _ = apply(op, batch_of(given, layout))
    got, rejects = apply(op, batch_of(given, layout), lane=EmulatedLane())
    assert not rejects
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_on_a_gpu_every_image_goes_its_own_way() -> None:
    """Kinds of steps mixed in one launch, some of them with tables, and images that rest, or end early."""
    codes = np.array([[9, 0, 8], [0, 2, 7], [13, 9, 0], [0, 0, 0], [2, 2, 2], [13, 0, 13]], np.int32)
    numbers = np.zeros((6, 3, 16))
    numbers[:, :, 0] = np.where(codes == 13, 5, 0.3)
    numbers[:, :, 1], numbers[:, :, 2], numbers[:, :, 3] = 3, 1.5, [[0.7], [1], [2], [1], [1], [0.3]]
    args = {"codes": Batch.from_dense(codes, "", Samples.numbered(6)),
            "numbers": Batch.from_dense(numbers.reshape(6, -1), "", Samples.numbered(6))}  # fmt: skip
    op, batch = operator("torchvision", ("codes", "numbers")), batch_of(images() * 2, "HWC")
    want, _ = apply(op, batch, args=args)
    lane = EmulatedLane()
    got, rejects = apply(op, batch, args=args, lane=lane)
    assert not rejects
    assert lane.launched.count("torchvision_step") == 3
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("library", ["torchvision", "pillow"])
@pytest.mark.parametrize("filter_", thinned(["bilinear", "nearest", "bicubic"], 3))
@pytest.mark.parametrize("layout", thinned(["HWC", "CHW"], 2))
def test_resizes_on_a_gpu_give_the_same_bits(library: str, filter_: str, layout: str) -> None:
    given = images() if layout == "HWC" else [np.ascontiguousarray(i.transpose(2, 0, 1)) for i in images()]
    batch = batch_of(given, layout)
    first = 0 if layout == "HWC" else 1
    op = operator("resize", size=[9, 31], roi_start=[3, 2], roi_end=[29, 20], parity=library, interpolation=filter_)
    want, _ = apply(op, batch)
    plan = op.plan(Context(op, "cpu", batch.samples), batch.shapes.astype(np.int64), (first, 2))
    out = want.replace(data=np.full_like(want.data, 77))
    preset_on_gpu(EmulatedLane(), plan, batch, first, out)
    np.testing.assert_array_equal(out.data, want.data)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("means", [0, 1, 3])
def test_floats_on_a_gpu_are_the_same_bits(divide: bool, means: int) -> None:
    batch = batch_of([np.ascontiguousarray(i.transpose(2, 0, 1)) for i in images()], "CHW")
    mean, std = np.linspace(0.1, 0.7, means, dtype=np.float32), np.linspace(0.2, 0.3, means, dtype=np.float32)
    want, got = (Batch.allocate(np.empty, batch.shapes, np.float32, "CHW", batch.samples) for _ in range(2))
    pixels = batch.shapes[:, 1:].prod(axis=1).astype(np.int64)
    channels = batch.shapes[:, 0].astype(np.int64)
    torchvision_cpu.to_floats(batch.data, batch.offsets, channels, pixels, divide, mean, std, want.data, want.offsets)
    to_floats(EmulatedLane(), batch, divide, mean, std, got)
    np.testing.assert_array_equal(want.data, got.data)


def test_every_sample_has_steps_of_its_own() -> None:
    codes = np.array([[7, 0], [0, 0], [14, 7]], np.int32)  # invert; nothing; flip, invert
    numbers = np.zeros((3, 2, 16))
    numbers[2, 0, 0] = 1
    args = {"codes": Batch.from_dense(codes, "", Samples.numbered(3)),
            "numbers": Batch.from_dense(numbers.reshape(3, -1), "", Samples.numbered(3))}  # fmt: skip
    got, rejects = apply(operator("torchvision", ("codes", "numbers")), batch_of(images(), "HWC"), args=args)
    assert not rejects
    first, second, third = images()
    for a, b in zip(got, (255 - first, second, 255 - third[:, ::-1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_samples_that_cannot_be_done_are_rejected_alone() -> None:
    small, large = np.zeros((3, 4, 3), np.uint8), images()[0]
    got, rejects = apply(
        operator("torchvision", steps=[["gaussian_blur", 9, 9, 1, 1]]), batch_of([small, large], "HWC")
    )
    assert [(r.slot, r.code) for r in rejects] == [(0, "bad_shape")]
    assert "half is smaller" in rejects[0].message
    want = functional.gaussian_blur(np.ascontiguousarray(large.transpose(2, 0, 1)), 9, 1.0)
    np.testing.assert_array_equal(got.sample(1).transpose(2, 0, 1), want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": [["sharpen", 2]]}, "'sharpen' is not one of adjust_brightness"),
        ({"steps": [["posterize"]]}, "posterize takes 1 number,"),
        ({"steps": [["solarize", "much"]]}, "solarize takes 1 number,"),
        ({"steps": [["invert"]], "codes": [7]}, "exclude each other"),
        ({"codes": [7]}, "go together"),
    ],
)
def test_wrong_steps_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        operator("torchvision", **arguments)


def test_floats_are_refused() -> None:
    with pytest.raises(SpecError, match="takes uint8"):
        operator("torchvision").infer(Spec((3, 4, 5), DALIDataType.FLOAT, "CHW"))
