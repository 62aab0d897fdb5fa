"""The compiled loop for expressions gives what NumPy's functions give one after the other, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.formulas import arithmetic, expression
from dali_run.ops.formulas.arithmetic import Expr, evaluate
from dali_run.ops.formulas.expression_plan import BLOCK, planned

FLOATS = np.array([0, -0.0, 0.5, -0.5, 1.5, -2.5, 0.49999997, 254.5, 255.5, 3e9, -3e9, 2147483520, 1e-40, 1e38, -1e38,
                   np.inf, -np.inf, np.nan], np.float32)  # fmt: skip
WHOLE = np.array([0, 1, -1, 2, -2, 7, -7, 127, 128, 255, 256, 32767, 40000, 2**31 - 1, -(2**31), 16777217])
TYPES = (np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.int32, np.float32)


def values(dtype: Any, n: int, seed: int) -> np.ndarray:
    """The numbers of a type that matter, in an order of their own, and others."""
    random = np.random.default_rng(seed)
    if dtype == np.float32:
        edges, others = FLOATS, random.normal(0, 300, n).astype(np.float32)
    else:
        edges = WHOLE.astype(np.int32).astype(dtype)
        others = random.integers(-(2**31), 2**31, n).astype(np.int32).astype(dtype)
    return np.where(random.random(n) < 0.5, edges[random.integers(0, len(edges), n)], others)


def calculated(op: Expr, *batches: Batch) -> Batch:
    ctx = Context(op, "cpu", batches[0].samples)
    out = op.cpu(ctx, *batches)
    assert not ctx.rejects
    return out


OF_ANY = ["a * 1.5 + 2", "a / 3", "a < b", "a >= b", "a == b", "a != b", "float(a) * b", "a > 100", "3 <= a"]
OF_NUMBERS = ["uint8(a * 0.37)", "int32(a / b)", "bool(a)", "int8(b)", "min(a * 1.0, b)", "max(a, 0.25)", "rsqrt(a)",
              "clamp(a * 1.0, -3.5, 7.25)", "fabs(a)", "floor(a)", "ceil(b)", "sqrt(a)", "-(a * 0.5)", "abs(a * 0.5)",
              "uint16(int16(a)) + 0.5", "(a - 3.0) * (b + 2.0) / (a + b * 1.0)", "(a < b) & (a != 7)"]  # fmt: skip
OF_WHOLE = ["a + int32(b)", "a - 100000", "a * 100003", "int32(a) // b", "int32(a) // 7", "-int32(a)", "abs(int32(a))",
            "min(int32(a), b)", "max(a, 3000000)", "clamp(int32(a), -5, 300)", "int32(a) & b", "int32(a) | 6",
            "int32(a) ^ b", "uint8(int32(a) + 5)", "bool(int32(a))"]  # fmt: skip


@pytest.mark.parametrize("kind", range(len(TYPES)))
def test_results_are_those_of_numpy_to_the_bit(kind: int) -> None:
    done = 0
    for second in TYPES:
        a, b = values(TYPES[kind], 2 * BLOCK + 77, 1), values(second, 2 * BLOCK + 77, 2)
        bools = np.bool_ in (a.dtype, b.dtype)
        floats = "f" in (a.dtype.kind + b.dtype.kind)
        for text in [*OF_ANY, *([] if bools else OF_NUMBERS), *([] if bools or floats else OF_WHOLE)]:
            what = expression.typed(expression.parse(text), {"a": a.dtype, "b": b.dtype})
            if planned(what, ("a", "b"), (a.dtype, b.dtype)) is None:
                continue
            done += 1
            with np.errstate(all="ignore"):
                expected = evaluate(what, {"a": a, "b": b})
            batches = [Batch.from_dense(x[None], "", Samples.numbered(1)) for x in (a, b)]
            (found,) = list(calculated(Expr(expr=text), *batches))
            assert found.dtype == expected.dtype, text
            nan = np.isnan(expected) if expected.dtype.kind == "f" else np.zeros(len(expected), bool)
            assert not nan.any() or np.isnan(found[nan]).all(), (text, a.dtype, b.dtype)
            wrong = np.flatnonzero(~nan & (found.view(f"u{found.itemsize}") != expected.view(f"u{found.itemsize}")))
            assert not len(wrong), (text, a[wrong[:3]], b[wrong[:3]], found[wrong[:3]], expected[wrong[:3]])
    assert done >= 60


@pytest.mark.parametrize("small", [(), (1,), (3,), (1, 1, 3), (7, 1), (7, 3), (1, 7, 3), (5, 7, 3)])
@pytest.mark.parametrize("gaps", [False, True])
def test_inputs_broadcast_along_any_axes(small: tuple[int, ...], gaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the loop where they repeat after some elements, else by NumPy; the loop is not asked where it cannot."""
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (6, 5, 7, 3)).astype(np.uint8)
    others = random.normal(0, 1, (6, *small)).astype(np.float32)
    batches = [Batch.from_dense(x, "", Samples.numbered(6)) for x in (images, others)]
    expected = images * others.reshape(6, *(1,) * (3 - len(small)), *small)
    if gaps:
        where = np.array([4, 0, 5])
        batches, expected = [b.take(where, Samples.numbered(3)) for b in batches], expected[where]
    calls: list[bool] = []
    real = arithmetic._compiled
    monkeypatch.setattr(arithmetic, "_compiled", lambda *a: calls.append(real(*a)) or calls[-1])
    np.testing.assert_array_equal(calculated(Expr(expr="a * b"), *batches).dense(), expected)
    assert calls == [small != (7, 1)], "by the loop"


def test_an_input_that_repeats_after_more_than_a_block_is_left_to_numpy() -> None:
    wide = np.arange(3 * 2 * (BLOCK + 1), dtype=np.float32).reshape(3, 2, -1)
    row = np.arange(3 * (BLOCK + 1), dtype=np.float32).reshape(3, -1)
    batches = [Batch.from_dense(x, "", Samples.numbered(3)) for x in (wide, row)]
    np.testing.assert_array_equal(calculated(Expr(expr="a - b"), *batches).dense(), wide - row[:, None])
