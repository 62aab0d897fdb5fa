"""batch_permutation against DALI's results (tests/golden/make_permutations.py)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Samples
from dali_run.ops.context import Context

from ...kit.golden import operator

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "permutations.npz")
SETTINGS = json.loads(str(GOLDEN["settings"]))


def drawn(n: int, iteration: int, seed: int, rng: str, **arguments: bool) -> list[int]:
    samples = Samples.numbered(n)
    samples = dataclasses.replace(
        samples, position=samples.position + iteration * n, index=samples.index + iteration * n
    )
    op = operator("batch_permutation", **arguments)
    return op.cpu(Context(op, "cpu", samples, seed=seed, rng=rng)).data.tolist()


def test_equal_to_dali() -> None:
    at = 0
    for setting in SETTINGS:
        arguments = {k: v for k, v in setting.items() if k not in ("batch", "seed")}
        n, iterations = setting["batch"], 3
        for k in range(iterations):
            want = GOLDEN["values"][at : at + n].tolist()
            assert drawn(n, k, setting["seed"], "dali", **arguments) == want, (setting, k)
            at += n
    assert at == len(GOLDEN["values"]) > 1000


@pytest.mark.parametrize("n", [1, 2, 9, 70001])
def test_our_own_stream(n: int) -> None:
    order = drawn(n, 0, 7, "philox")
    assert sorted(order) == list(range(n))
    moved = drawn(n, 0, 7, "philox", no_fixed_points=True)
    assert sorted(moved) == list(range(n))
    assert n == 1 or all(a != i for i, a in enumerate(moved))
    repeated = drawn(n, 0, 7, "philox", allow_repetitions=True, no_fixed_points=True)
    assert n == 1 or all(a != i for i, a in enumerate(repeated))
    if n > 2:
        assert drawn(n, 1, 7, "philox") != order
        assert 0 <= min(repeated) <= max(repeated) < n


def test_those_that_were_dropped_are_not_drawn() -> None:
    samples = Samples.numbered(9).take(np.array([1, 4, 5, 8]))
    op = operator("batch_permutation")
    assert sorted(op.cpu(Context(op, "cpu", samples, seed=3)).data.tolist()) == [1, 4, 5, 8]
