"""keep_if: which samples of a batch a condition leaves out, and with which values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.formulas import expression
from dali_run.ops.formulas.keep_if import KeepIf


def call(condition: str, **values: Any) -> tuple[Context, Batch]:
    """The context and the output of one call for samples of these values, one array or list of arrays a name."""
    n = len(next(iter(values.values())))
    samples = Samples.numbered(n)
    op = KeepIf(condition=condition, names=tuple(values))
    op.check()
    ctx = Context(op, "cpu", samples)
    batches = [Batch.from_list([np.asarray(v) for v in column], "", samples) for column in values.values()]
    return ctx, op.cpu(ctx, *batches)


def test_numpy_decides_which_samples_stay() -> None:
    rng = np.random.default_rng(0)
    width, ratio = rng.integers(1, 600, 500).astype(np.int32), rng.random(500).astype(np.float32)
    ratio[::50] = np.nan
    ctx, kept = call("width >= 256 and not (ratio > 0.5 or ratio != ratio)", width=width, ratio=ratio)
    wanted = (width >= 256) & ~((ratio > 0.5) | np.isnan(ratio))
    np.testing.assert_array_equal(kept.data, wanted)
    assert ctx.left_out is not None
    slots, values = ctx.left_out
    np.testing.assert_array_equal(slots, np.flatnonzero(~wanted))
    np.testing.assert_array_equal(values["width"], width[~wanted])
    np.testing.assert_array_equal(values["ratio"], ratio[~wanted])
    assert not ctx.rejects


def test_a_list_of_one_number_is_a_number_and_others_are_rejected() -> None:
    ctx, kept = call("score > 2", score=[[1.0], [3.0], [4.0, 5.0], np.zeros(0)])
    assert ctx.left_out is not None
    assert ctx.left_out[0].tolist() == [0]
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_shape"), (3, "bad_shape")]
    assert "has the shape 2, and a condition takes one number" in ctx.rejects[0].message
    assert kept.data.tolist() == [False, True, True, True]


def test_nothing_is_left_out_where_the_condition_holds() -> None:
    assert call("a", a=[True, True])[0].left_out is None


def test_elements_are_names_of_their_own() -> None:
    tree = expression.parse("min(shape[0], shape[-1]) >= 64 and boxes[0,1] < shape[0]")
    assert expression.names(tree) == ("shape[0]", "shape[-1]", "boxes[0, 1]")
    assert expression.element("boxes[0, 1]") == ("boxes", (0, 1))
    assert expression.element("shape") == ("shape", ())
    assert expression.renamed("a[1] * 2 + abs(a)", {"a[1]": "b", "a": "c"}) == "b * 2 + abs(c)"
    for text in ("shape[0:1]", "shape[i]", "shape[1.0]", "f(x)[0]", "shape[True]", "shape[()]"):
        with pytest.raises(SpecError, match=r"an index in an expression is a whole number|there is no function"):
            expression.parse(text)
