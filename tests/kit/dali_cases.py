"""Compare this project's operators with recorded results of DALI for single operators (tests/golden/one_step.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.batch import Samples
from tests.kit.long import thinned

from .emulated_lane import EmulatedLane
from .operators import apply, batch_of, operator

GOLDEN = Path(__file__).parents[1] / "golden"


def source(seed: int, low: float, high: float, dtype: str, shape: list[int]) -> np.ndarray:
    """Make an input as one_step.py makes it."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return (random.integers(int(low * 256), int(high * 256), shape) / 256).astype(dtype)
    return random.integers(low, high, shape).astype(dtype)


def cases(file: str, folder: Path = GOLDEN) -> Iterator[tuple[dict[str, Any], list[np.ndarray], list[np.ndarray]]]:
    """Yield the cases in ``<file>.npz``: each case, its inputs, and DALI's outputs."""
    stored = np.load(folder / f"{file}.npz")
    at = dict.fromkeys(stored.files, 0)
    flat = {name: stored[name] for name in stored.files if name != "cases"}
    for number, case in enumerate(json.loads(str(stored["cases"]))):
        wanted = []
        for out in case["outputs"]:
            size = int(np.prod(out["shape"]))
            begin = at[out["dtype"]]
            wanted.append(flat[out["dtype"]][begin : begin + size].reshape(out["shape"]))
            at[out["dtype"]] += size
        inputs = [
            source(10 * number + j, i["low"], i["high"], i["dtype"], i["shape"]) for j, i in enumerate(case["inputs"])
        ]
        yield case, inputs, wanted


def ours(case: dict[str, Any], inputs: list[np.ndarray], lane: Any = None) -> tuple[list[np.ndarray], list[Any]]:
    """Run this project's operator on a case. Return its outputs in order, and the rejects."""
    named = case.get("per_sample", {})
    arguments = dict(case["arguments"])
    seed = arguments.pop("seed", 1)
    op = operator(case["op"], named, **arguments)
    count, outs, rejects = case.get("batch", 1), [], []
    for iteration in range(case.get("iterations", 1)):
        samples = Samples.numbered(count)
        samples = Samples(samples.slot, samples.position + iteration * count, samples.epoch, samples.index)
        given = [
            batch_of([a] * count, i.get("layout") or "", samples) for a, i in zip(inputs, case["inputs"], strict=True)
        ]
        args = {
            k: batch_of([np.array(v["values"], v["dtype"])] * count, v.get("layout") or "", samples)
            for k, v in named.items()
        }
        out, wrong = apply(op, *given, args=args, lane=lane, seed=seed, rng="dali")
        outs += list(out)
        rejects += wrong
    return outs, rejects


def largest_difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference of two results: in levels for integers, relative to the largest value (at least 1)
    for floats. Asserts equal shapes and dtypes."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    off = np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0)
    return float(off / max(1.0, np.abs(want.astype(np.float64)).max(initial=0)) if want.dtype.kind == "f" else off)


def agrees_with_dali(file: str, name: str, least: int) -> None:
    """Assert that operator ``name`` agrees with DALI, in at least ``least`` compared values: floats within 1e-5 of the
    largest, integers within one level, and at most one integer of 500 differs."""
    values = differing = 0
    for case, inputs, wanted in cases(file):
        if case["op"] != name:
            continue
        got, rejects = ours(case, inputs)
        assert not rejects, case
        off = largest_difference(got[0], wanted[0])
        assert off <= (1e-5 if wanted[0].dtype.kind == "f" else 1), (case, off)
        if wanted[0].dtype.kind != "f":
            values, differing = values + wanted[0].size, differing + np.count_nonzero(got[0] != wanted[0])
    assert values > least
    assert differing <= 0.002 * values


def kernels_agree(file: str, name: str) -> None:
    """Assert that the gpu kernels of operator ``name``, run on the CPU, agree with its cpu kernels, within the bounds
    of `agrees_with_dali`."""
    lane = EmulatedLane()
    mine = [(case, inputs) for case, inputs, _ in cases(file) if case["op"] == name]
    for case, inputs in thinned(mine, 3):  # one kernel is compiled per dtype
        (want,), _ = ours(case, inputs)
        (got,), rejects = ours(case, inputs, lane)
        assert not rejects
        assert largest_difference(got, want) <= (1e-5 if want.dtype.kind == "f" else 1), case
    assert lane.launched
