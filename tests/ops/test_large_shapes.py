"""Extents beyond 32 bits: shapes are kept in 32 bits, where 2^40 is 0 and 2^32 + 5 is 5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import coerce, find, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.pipelines.plugins import load_operators

load_operators()

EXTENTS = (1 << 31, 1 << 32, (1 << 32) + 5, 1 << 40, (1 << 62) + 1)
PER_SAMPLE = ("random.uniform", "random.normal", "random.coin_flip", "random.choice", "zeros", "ones")


def operator(name: str, inputs: tuple[str, ...] = (), **arguments: Any) -> Any:
    cls = find(name)
    op = cls(per_sample=frozenset(inputs), **{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})
    op.check()
    return op


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_generators_refuse_the_sample_alone(name: str, extent: int) -> None:
    samples = Samples.numbered(3)
    inputs = [Batch.from_list([np.array(5)] * 3, "", samples)] * (name == "random.choice")
    for shape in ((extent,), (0, extent), (extent, extent)):
        given = np.full((3, len(shape)), 2)
        given[1] = shape
        ctx = Context(
            operator(name, ("shape",)), "cpu", samples, {"shape": Batch.from_dense(given, "", samples)}, seed=1
        )
        out = ctx.op.cpu(ctx, *inputs)
        assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "too_large")]
        assert out.shapes.tolist() == [[2] * len(shape), [0] * len(shape), [2] * len(shape)]
        ctx = Context(operator(name, shape=shape), "cpu", samples, seed=1)
        ctx.op.cpu(ctx, *inputs)
        assert [r.slot for r in ctx.rejects] == [0, 1, 2]


@pytest.mark.parametrize(
    "shape", [*((72, e) for e in EXTENTS), (72, 0xAAAAAAAAAAAAAAB, 3), (0x10000, 0x10000, 0x10000, 0x10000, 1)]
)
def test_a_product_that_overflows_is_no_fit(shape: tuple[int, ...]) -> None:
    samples = Samples.numbered(2)
    for elements in (72, 0):
        data = Batch.from_list([np.zeros(elements, np.uint8)] * 2, "", samples)
        ctx = Context(operator("reshape", shape=shape), "cpu", samples)
        ctx.op.cpu(ctx, data)
        assert [r.code for r in ctx.rejects] == ["bad_shape"] * 2


@pytest.mark.parametrize("shape", [*((e,) for e in EXTENTS), (0, 1 << 40), (1 << 16, 1 << 16), (-1,), (-3, -4)])
def test_a_constant_has_a_shape_that_can_be(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="must have 0 to 2147483647 elements"):
        operator("constant", idata=[1], shape=shape)


def test_classes_are_counted_with_the_elements() -> None:
    with pytest.raises(ValueError, match="at most"):
        operator("one_hot", num_classes=1 << 31)
    samples = Samples.numbered(3)
    data = Batch.from_list([np.zeros(n, np.int32) for n in (2, 3, 2)], "", samples)
    ctx = Context(operator("one_hot", num_classes=(1 << 31) - 1), "cpu", samples)
    out = ctx.op.cpu(ctx, data)
    assert [r.code for r in ctx.rejects] == ["too_large"] * 3
    assert out.sizes.tolist() == [0, 0, 0]


@pytest.mark.parametrize("extent", [(1 << 24) + 1, *EXTENTS])
@pytest.mark.parametrize(
    ("name", "argument"), [("spectrogram", "nfft"), ("spectrogram", "window_length"), ("power_spectrum", "nfft")]
)
def test_transforms_longer_than_minutes_are_refused(name: str, argument: str, extent: int) -> None:
    """They took all memory, or hung."""
    with pytest.raises(ValueError, match="must be at most 16777216, got"):
        operator(name, **{argument: extent})
