"""random_resized_crop and random_crop_generator: DALI's windows, resampled as resize does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.images.random_resized_crop import RandomCropGenerator, RandomResizedCrop
from dali_run.ops.types import DALIDataType, DALIInterpType

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "random_resized_crop.npz")


def samples_of(iteration: int, batch: int) -> Samples:
    slot = np.arange(batch, dtype=np.int32)
    position = iteration * batch + slot.astype(np.int64)
    return Samples(slot, position, np.zeros(batch, np.int64), position)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("small", {"size": (14, 17)}),
        ("large", {"size": (30,), "random_area": (0.3, 0.6), "interp_type": DALIInterpType.INTERP_CUBIC}),
    ],
)
def test_equals_dali_with_its_generator(name: str, arguments: Any) -> None:
    op = RandomResizedCrop(**arguments)
    op.check()
    batch = int(GOLDEN["batch"])
    for iteration in range(2):
        samples = samples_of(iteration, batch)
        images = Batch.from_list([GOLDEN["image"]] * batch, "HWC", samples)
        out = op.cpu(Context(op, "cpu", samples, seed=int(GOLDEN["seed"]), rng="dali"), images)
        want = GOLDEN[name][iteration * batch : (iteration + 1) * batch]
        difference = np.abs(out.dense().astype(int) - want)
        assert difference.max() <= 1
        assert np.count_nonzero(difference) <= want.size // 500


def test_the_generator_draws_the_windows_of_the_crop() -> None:
    samples = Samples.numbered(20)
    image = np.random.default_rng(0).integers(0, 256, (47, 61, 3)).astype(np.uint8)
    crop, generator = RandomResizedCrop(size=(9, 9)), RandomCropGenerator()
    shapes = Batch.from_list([np.array([47, 61, 3], np.int64)] * 20, "", samples)
    anchor, shape = generator.cpu(Context(generator, "cpu", samples, seed=5), shapes)
    assert anchor.dtype == shape.dtype == np.int32
    plan = crop.plan(Context(crop, "cpu", samples, seed=5), np.tile(np.array([47, 61, 3]), (20, 1)), (0, 2))
    np.testing.assert_array_equal(plan.lo, anchor.dense())
    np.testing.assert_array_equal(plan.hi, anchor.dense() + shape.dense())
    images = Batch.from_list([image] * 20, "HWC", samples)
    out = crop.cpu(Context(crop, "cpu", samples, seed=5), images)
    some = images.take(np.array([7, 2]))  # a sample's window does not depend on its batch
    again = crop.cpu(Context(crop, "cpu", some.samples, seed=5), some)
    np.testing.assert_array_equal(again.sample(0), out.sample(7))
    np.testing.assert_array_equal(again.sample(1), out.sample(2))


def test_shapes_of_another_length_are_rejected() -> None:
    samples = Samples.numbered(2)
    ragged = Batch(np.array([47, 61, 9, 9, 9, 9]), np.array([0, 2]), np.array([[2], [4]], np.int32), "", samples)
    op = RandomCropGenerator()
    ctx = Context(op, "cpu", samples, seed=5)
    anchor, shape = op.cpu(ctx, ragged)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_shape")]
    assert (anchor.sample(0) + shape.sample(0) <= [47, 61]).all()


def test_images_without_pixels_stay_so() -> None:
    op = RandomResizedCrop(size=(4, 4))
    images = Batch.from_list([np.zeros((0, 5, 3), np.uint8), np.ones((6, 5, 3), np.uint8)], "HWC", Samples.numbered(2))
    out = op.cpu(Context(op, "cpu", images.samples), images)
    assert out.shapes.tolist() == [[0, 0, 3], [4, 4, 3]]
    assert (out.sample(1) == 1).all()


def test_sequences_share_a_window_and_volumes_are_refused() -> None:
    op = RandomResizedCrop(size=(4, 4))
    frames = np.random.default_rng(0).integers(0, 256, (2, 9, 8, 3)).astype(np.uint8)
    frames[1] = frames[0]
    batch = Batch.from_list([frames], "FHWC", Samples.numbered(1))
    out = op.cpu(Context(op, "cpu", batch.samples), batch).sample(0)
    np.testing.assert_array_equal(out[0], out[1])
    assert op.infer(Spec((2, 9, 8, 3), DALIDataType.UINT8, "FHWC")).shape == (2, 4, 4, 3)
    with pytest.raises(SpecError, match="volumes"):
        op.infer(Spec((2, 9, 8, 3), DALIDataType.UINT8, "DHWC"))


@pytest.mark.parametrize(
    "arguments",
    [{"size": (1, 2, 3)}, {"size": (4,), "random_area": (0.5, 0.1)}, {"size": (4,), "random_area": (1, 2, 3)}],
)
def test_impossible_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(SpecError):
        RandomResizedCrop(**arguments).check()
