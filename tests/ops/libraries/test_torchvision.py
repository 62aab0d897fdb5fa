"""The operator torchvision: steps of both layouts, samples of their own, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.transforms import functional

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
