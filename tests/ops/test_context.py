"""Arguments as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.pipelines.plugins import load_operators
from tests.kit.operators import operator

load_operators()


def context(name: str, op: str, given: Any, **constants: Any) -> Context:
    """Four samples of which argument ``name`` is an input."""
    samples = Samples.numbered(4)
    batch = given if isinstance(given, Batch) else Batch.from_dense(np.asarray(given), "", samples)
    return Context(operator(op, (name,), **constants), "cpu", samples, {name: batch})


def test_a_constant_is_one_row_for_all_samples() -> None:
    ctx = Context(operator("crop_mirror_normalize", mirror=1, mean=[1, 2]), "cpu", Samples.numbered(4))
    for name, dtype in (("mirror", np.int32), ("mean", np.float32), ("crop_w", np.float64)):
        rows = ctx.rows(name, dtype)
        assert len(rows) == 1
        assert rows.dtype == dtype
        np.testing.assert_array_equal(np.repeat(rows, 4, axis=0), ctx.arg(name, dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
@pytest.mark.parametrize("case", ["packed", "in other order", "with gaps", "shared", "one element each", "read-only"])
def test_an_input_has_a_row_for_each_sample(dtype: Any, case: str) -> None:
    samples, numbers = Samples.numbered(4), np.array([3, 0, 1, 2, 9, 9, 9], dtype)
    offsets = {"in other order": [3, 2, 0, 1], "with gaps": [0, 2, 3, 6], "shared": [2, 2, 2, 2]}.get(
        case, [0, 1, 2, 3]
    )
    shapes = np.ones((4, 1), np.int32) if case == "one element each" else np.empty((4, 0), np.int32)
    numbers.flags.writeable = case != "read-only"
    ctx = context("mirror", "crop_mirror_normalize", Batch(numbers, np.array(offsets), shapes, "", samples))
    rows = ctx.rows("mirror", np.int32)
    assert rows.dtype == np.int32
    assert rows.flags.writeable
    np.testing.assert_array_equal(rows, numbers[offsets])
    np.testing.assert_array_equal(ctx.arg("mirror", np.int32), numbers[offsets])
    assert not ctx.rejects


def test_lists_have_a_row_for_each_sample() -> None:
    ctx = context("mean", "crop_mirror_normalize", np.arange(12, dtype=np.float32).reshape(4, 3))
    np.testing.assert_array_equal(ctx.rows("mean"), np.arange(12).reshape(4, 3))
