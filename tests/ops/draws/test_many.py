"""Batches of many random numbers are drawn by loops and kernels of their own: the numbers are those of few."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from dali_run.ops.batch import Samples
from dali_run.ops.context import Context
from dali_run.ops.draws import numbers
from dali_run.ops.draws.normal_cpu import standard_normal

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import batch_of, operator

SAMPLES = Samples.numbered(3)
SHAPES = batch_of([np.array(s, np.int32) for s in ([2000], [0], [2600])], "", SAMPLES)
ENDS = batch_of([np.array(e, np.float32) for e in ([-1, 1], [0, 3], [100, 260])], "", SAMPLES)
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("random.uniform", {"range": [-3.0, 0.7]}, {}),
    ("random.uniform", {"dtype": "UINT8"}, {"range": ENDS}),
    ("random.uniform", {"range": [0.0, 9.5], "dtype": "INT16"}, {}),
    ("random.uniform", {"values": [3.5, -1.0, 300.0], "dtype": "UINT8"}, {}),
    ("random.uniform", {}, {"values": ENDS}),
    ("random.coin_flip", {"probability": 0.3}, {}),
    ("random.coin_flip", {"dtype": "UINT8"},
     {"probability": batch_of([np.float32(p) for p in (0.2, 0.5, 1)], "", SAMPLES)}),
    ("random.normal", {"mean": 3.0, "stddev": 2.0}, {}),
    ("random.normal", {"dtype": "INT16"}, {"stddev": batch_of([np.float32(s) for s in (20, 3, 400)], "", SAMPLES)}),
]  # fmt: skip
IDS = [f"{name}-{k}" for k, (name, _, _) in enumerate(CASES)]


def drawn(name: str, arguments: dict[str, Any], given: dict[str, Any], rng: str, lane: Any = None) -> Any:
    op = operator(name, ["shape", *given], **arguments)
    stage: Any = "cpu" if lane is None else "gpu"
    ctx = Context(op, stage, SAMPLES, args={"shape": SHAPES, **given}, seed=77, rng=rng)
    if lane is not None:
        ctx.device = lane
    out = op.kernel(stage)(ctx)
    assert not ctx.rejects
    return out


def few(monkeypatch: pytest.MonkeyPatch, *call: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(numbers, "_MIN_DIRECT", 1 << 60)
        return drawn(*call)


@pytest.mark.parametrize("rng", ["philox", "dali"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_loops_draw_the_same(case: Any, rng: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, got = few(monkeypatch, *case, rng), drawn(*case, rng)
    assert got.dtype == expected.dtype
    for have, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(have, want)


def compare(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    assert got.shapes.tolist() == [[2000], [0], [2600]]
    for have, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("rng", ["philox", "dali"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_kernel_draws_the_same(case: Any, rng: str) -> None:
    lane = EmulatedLane()
    compare(drawn(*case, rng, lane), drawn(*case, rng))
    assert lane.launched


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_on_a_gpu(case: Any) -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        got = lane.to_host(drawn(*case, "philox", lane))
        lane.synchronize()
    compare(got, drawn(*case, "philox"))


def words() -> Any:
    """Pairs of draws: the ends and their neighbours, powers of two and theirs, and others."""
    powers = 1 << np.arange(32, dtype=np.int64)
    ends = np.unique(np.concatenate([powers - 1, powers, powers + 1, (1 << 32) - powers, [0]]) & 0xFFFFFFFF)
    first, second = np.meshgrid(ends, ends)
    other = np.random.default_rng(3).integers(0, 1 << 32, (2, 20_000))
    return np.concatenate([[first.ravel(), second.ravel()], other], axis=1).astype(np.uint32)


def test_normal_numbers_are_those_of_the_formula() -> None:
    first, second = words()
    got = all_normal(first, second)
    u, v = (w.astype(np.float32).astype(np.float64) * 2.0**-32 for w in (first, second))
    u, v = np.where(u == 0, v, u), np.where(u == 0, u, v)
    radius = np.sqrt(-2 * np.log(np.maximum(u, np.finfo(np.float32).tiny)))
    turn = v % 1
    want = radius * np.cos(2 * np.pi * turn)
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= 2.5e-7 * np.maximum(radius, 1e-3)).all()


@numba.njit
def all_normal(first: Any, second: Any) -> Any:
    out = np.empty(len(first), np.float32)
    for k in range(len(first)):
        out[k] = standard_normal(first[k], second[k])
    return out
