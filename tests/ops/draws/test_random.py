"""The generators: DALI's numbers with DALI's streams, and the right distributions with ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec, coerce, find, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.draws.numbers import Choice
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType, from_numpy

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "random.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
SEED, BATCH = int(GOLDEN["seed"]), int(GOLDEN["batch"])


def operator(name: str, inputs: tuple[str, ...] = (), **arguments: Any) -> Any:
    cls = find(name)
    op = cls(per_sample=frozenset(inputs), **{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})
    op.check()
    return op


def iteration(number: int) -> Samples:
    slot = np.arange(BATCH, dtype=np.int32)
    position = number * BATCH + slot.astype(np.int64)
    return Samples(slot, position, np.zeros(BATCH, np.int64), position)


def run(op: Any, samples: Samples, *inputs: Batch, rng: str = "philox", **args: Batch) -> tuple[Batch, Context]:
    ctx = Context(op, "cpu", samples, args, seed=SEED, rng=rng)
    return op.cpu(ctx, *inputs), ctx


@pytest.mark.parametrize("number", range(len(CASES)))
def test_equals_dali_with_its_generator(number: int) -> None:
    case, want = CASES[number], GOLDEN[f"out_{number}"]
    op = operator(f"random.{case['op']}", **case["arguments"])
    got = np.concatenate([run(op, iteration(k), rng="dali")[0].dense() for k in range(2)])
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert op.infer() == Spec(want.shape[1:], from_numpy(want.dtype))
    if case["op"] == "normal":  # logarithm and cosine differ by a unit in the last place between libraries
        tolerance = {"float32": 4e-6, "float64": 1e-13}.get(want.dtype.name, 0)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=tolerance)
    elif want.dtype == np.float64:
        np.testing.assert_allclose(got, want, rtol=1e-15)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["list", "rows"])
@pytest.mark.parametrize("p", [None, (0.1, 0.2, 0.7)])
def test_choice_equals_dali_with_its_generator(name: str, p: Any) -> None:
    candidates = np.array([10, 20, 30] if name == "list" else [[10, 11], [20, 21], [30, 31]], np.int16)
    op = Choice(shape=(9,), p=p)
    got = []
    for k in range(2):
        batch = Batch.from_list([candidates] * BATCH, "", iteration(k))
        got.append(run(op, batch.samples, batch, rng="dali")[0].dense())
    np.testing.assert_array_equal(np.concatenate(got), GOLDEN[f"choice_{name}" + "_p" * (p is not None)])


def test_a_sample_does_not_depend_on_its_batch() -> None:
    samples = Samples.numbered(30)
    for name in ("coin_flip", "uniform", "normal"):
        op = operator(f"random.{name}", shape=[7])
        whole, _ = run(op, samples)
        some = np.array([21, 4])
        part, _ = run(op, samples.take(some))
        np.testing.assert_array_equal(part.dense(), whole.dense()[some])
        assert len(np.unique(whole.dense(), axis=0)) > 20  # samples differ from each other


def test_epochs_differ() -> None:
    op = operator("random.uniform")
    first = Samples.numbered(20)
    second = Samples(first.slot, first.position + 20, first.epoch + 1, first.index)
    assert (run(op, first)[0].data != run(op, second)[0].data).all()


def test_distributions() -> None:
    samples = Samples.numbered(100)
    n = 100 * 1000
    flips = run(operator("random.coin_flip", probability=0.3, shape=[1000]), samples)[0].data
    assert abs(flips.mean() - 0.3) < 5 * np.sqrt(0.21 / n)
    values = run(operator("random.uniform", range=[2, 4], shape=[1000]), samples)[0].data
    assert values.min() >= 2
    assert values.max() < 4
    counts = np.histogram(values, 20, (2, 4))[0]
    assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 50  # chi-squared of 19 degrees of freedom
    normal = run(operator("random.normal", mean=3, stddev=2, shape=[1000]), samples)[0].data
    assert abs(normal.mean() - 3) < 5 * 2 / np.sqrt(n)
    assert abs(normal.std() - 2) < 5 * 2 / np.sqrt(2 * n)
    assert abs(((normal - 3) ** 3).mean() / 8) < 5 * np.sqrt(15 / n)
    whole = run(operator("random.uniform", range=[0, 4], dtype="INT32", shape=[1000]), samples)[0].data
    share = np.bincount(whole, minlength=5) / n
    np.testing.assert_allclose(share, [0.125, 0.25, 0.25, 0.25, 0.125], atol=0.01)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 3.0), (0.4, 0.4), (0.01, 0.02), (30.0, 0.5)])
def test_beta_has_its_moments(alpha: float, beta: float) -> None:
    op = operator("random.beta", alpha=alpha, beta=beta, shape=[1000], dtype="FLOAT64")
    values = run(op, Samples.numbered(50))[0].data
    assert ((values >= 0) & (values <= 1)).all()
    total, mean = alpha + beta, alpha / (alpha + beta)
    variance = mean * (1 - mean) / (total + 1)
    assert abs(values.mean() - mean) < 5 * np.sqrt(variance / len(values))
    assert abs(values.var() - variance) < 5 * np.sqrt(((values - mean) ** 4).mean() / len(values))
    third = mean * (alpha + 1) / (total + 1) * (alpha + 2) / (total + 2)  # the raw moment of order 3
    assert abs((values**3).mean() - third) < 5 * (values**3).std() / np.sqrt(len(values))


def test_beta_by_sample() -> None:
    samples = Samples.numbered(3)
    given = Batch.from_dense(np.array([0.5, 200.0, -1.0], np.float32), "", samples)
    out, ctx = run(operator("random.beta", inputs=("alpha",), shape=[50]), samples, alpha=given)
    assert out.dtype == np.float32
    assert out.dense()[1].min() > 0.9
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_argument")]
    alone, _ = run(operator("random.beta", alpha=200.0, shape=[50]), samples.take(slice(1, 2)))
    np.testing.assert_array_equal(alone.sample(0), out.sample(1))


def test_probabilities_of_zero_and_one_are_certain() -> None:
    samples = Samples.numbered(100)
    assert not run(operator("random.coin_flip", probability=0, shape=[1000]), samples)[0].data.any()
    assert run(operator("random.coin_flip", probability=1, shape=[1000]), samples)[0].data.all()


def test_arguments_by_sample() -> None:
    samples = Samples.numbered(3)
    given = Batch.from_dense(np.array([0.0, 1.0, 1.5], np.float32), "", samples)
    out, ctx = run(operator("random.coin_flip", inputs=("probability",), shape=[50]), samples, probability=given)
    assert out.dense()[0].sum() == 0
    assert out.dense()[1].sum() == 50
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_argument")]
    ends = Batch.from_dense(np.array([[0, 1], [5, 6], [2, 2]], np.float32), "", samples)
    out, ctx = run(operator("random.uniform", inputs=("range",), shape=[50]), samples, range=ends)
    assert out.dense()[1].min() >= 5
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_argument")]
    values = Batch.from_dense(np.array([[1, 2], [3, 4], [5, 6]], np.float32), "", samples)
    out, _ = run(operator("random.uniform", inputs=("values",), shape=[50]), samples, values=values)
    assert [sorted(set(row)) for row in out.dense().tolist()] == [[1, 2], [3, 4], [5, 6]]


def test_the_shape_can_come_from_an_input() -> None:
    samples = Samples.numbered(3)
    like = Batch.from_list([np.zeros((k + 1, 2), np.uint8) for k in range(3)], "AB", samples)
    out, _ = run(operator("random.uniform"), samples, like)
    assert out.shapes.tolist() == [[1, 2], [2, 2], [3, 2]]
    assert out.layout == ""
    alone, _ = run(operator("random.uniform", shape=[2, 2]), samples.take(slice(1, 2)))
    np.testing.assert_array_equal(out.sample(1), alone.sample(0))
    shapes = Batch.from_dense(np.array([[2, 0], [3, 1], [-1, 4]], np.int64), "", samples)
    out, ctx = run(operator("random.normal", inputs=("shape",)), samples, shape=shapes)
    assert out.shapes[:2].tolist() == [[2, 0], [3, 1]]
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_argument")]


def test_choice_of_scalars_ragged_lists_and_nothing() -> None:
    samples = Samples.numbered(3)
    below, _ = run(Choice(shape=(200,)), samples, Batch.from_dense(np.array([2, 5, 9], np.int64), "", samples))
    assert below.dtype == np.int64
    assert [int(below.sample(i).max()) for i in range(3)] == [1, 4, 8]
    lists = Batch.from_list([np.arange(k, dtype=np.float32) for k in (4, 0, 2)], "", samples)
    out, ctx = run(Choice(shape=(100,)), samples, lists)
    assert set(out.sample(0)) == {0, 1, 2, 3}
    assert set(out.sample(2)) == {0, 1}
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_argument")]
    rows = Batch.from_list([np.arange(k * 2).reshape(2, k) for k in (1, 2, 3)], "", samples)
    out, _ = run(Choice(), samples, rows)
    assert out.shapes.tolist() == [[1], [2], [3]]
    for i in range(3):
        assert out.sample(i).tolist() in rows.sample(i).tolist()
    weighted, ctx = run(Choice(p=(1.0, 0.0, 0.0, 0.0)), samples, lists)
    assert weighted.sample(0) == 0
    assert [r.slot for r in ctx.rejects] == [1, 2]


@pytest.mark.parametrize("rng", ["philox", "dali"])
@pytest.mark.parametrize("elements", [1, 5, 1300])
def test_choice_scales_the_first_draw_of_each_element(elements: int, rng: str) -> None:
    samples = iteration(1)
    below = np.arange(BATCH, dtype=np.int64) * 77 + 3
    out, ctx = run(Choice(shape=(elements,)), samples, Batch.from_dense(below, "", samples), rng=rng)
    draws = ctx.streams().draws(np.arange(elements) * 257).astype(np.uint64)
    np.testing.assert_array_equal(out.dense(), draws * below[:, None].astype(np.uint64) >> np.uint64(32))


@pytest.mark.parametrize(("shape", "layout"), [(None, "WC"), ((2,), "HWC"), ((2, 3), "")])
def test_choice_keeps_the_names_of_what_it_draws(shape: tuple[int, ...] | None, layout: str) -> None:
    """As DALI 2.4 does it."""
    rows = Batch.from_dense(np.zeros((3, 4, 5, 3), np.uint8), "HWC", Samples.numbered(3))
    op = Choice(shape=shape)
    out, _ = run(op, rows.samples, rows)
    assert out.layout == layout
    drawn = shape or ()
    assert op.infer(Spec((4, 5, 3), DALIDataType.UINT8, "HWC")) == Spec((*drawn, 5, 3), DALIDataType.UINT8, layout)
    assert op.infer(Spec(None, DALIDataType.UINT8, "HWC")) == Spec(None, DALIDataType.UINT8, layout)


@pytest.mark.parametrize("name", ["coin_flip", "uniform", "normal", "beta"])
def test_an_input_gives_its_shape_and_not_its_layout(name: str) -> None:
    """As DALI 2.4 does it."""
    images = Batch.from_dense(np.zeros((3, 4, 5, 3), np.uint8), "HWC", Samples.numbered(3))
    op = operator(f"random.{name}")
    out, _ = run(op, images.samples, images)
    assert out.shapes.tolist() == [[4, 5, 3]] * 3
    assert out.layout == op.infer(Spec((4, 5, 3), DALIDataType.UINT8, "HWC")).layout == ""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("coin_flip", {"dtype": "FLOAT"}),
        ("uniform", {"dtype": "FLOAT16"}),
        ("uniform", {"range": [3, 1]}),
        ("uniform", {"range": [3]}),
        ("uniform", {"range": [0, 1], "values": [1, 2]}),
        ("uniform", {"values": []}),
        ("choice", {"p": [0.5, 0.2]}),
        ("beta", {"alpha": 0.0}),
        ("beta", {"dtype": "INT32"}),
    ],
)
def test_impossible_arguments_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        operator(f"random.{name}", **arguments)


def test_a_shape_given_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="twice"):
        operator("random.uniform", shape=[3]).infer(Spec((2,), DALIDataType.UINT8))


def test_older_names() -> None:
    for old, new in (("coin_flip", "coin_flip"), ("uniform", "uniform"), ("normal_distribution", "normal")):
        assert find(old) is find(f"random.{new}")
