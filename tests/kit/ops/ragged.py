"""Cases of tests/golden/ragged_cases.py: ragged batches through one operator, with DALI's results."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.base import coerce, find, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context

GOLDEN = Path(__file__).parents[2] / "golden"


class Cases:
    """The cases of a file with DALI's results, and their arrays."""

    def __init__(self, path: Path) -> None:
        stored = np.load(path)
        self.cases: list[dict[str, Any]] = json.loads(str(stored["cases"]))
        self._arrays = {name: stored[name] for name in stored.files if name != "cases"}
        at = dict.fromkeys(self._arrays, 0)
        for case in self.cases:  # offset of each batch, in the order in which they were stored
            batches = [*case["inputs"], *case["per_sample"].values()]
            batches += [out for step in case.get("outputs", ()) for out in step]
            for batch in batches:
                batch["at"] = at[batch["dtype"]]
                at[batch["dtype"]] += sum(int(np.prod(s, dtype=np.int64)) for s in batch["shapes"])

    def arrays(self, batch: dict[str, Any]) -> list[np.ndarray]:
        """Return the samples of one input batch of a case."""
        flat, at, out = self._arrays[batch["dtype"]], batch["at"], []
        for shape in batch["shapes"]:
            size = int(np.prod(shape, dtype=np.int64))
            out.append(flat[at : at + size].reshape(shape))
            at += size
        return out

    def steps(self, case: dict[str, Any]) -> list[list[list[np.ndarray]]]:
        """Return DALI's results for a case: [iteration][output][sample]."""
        return [[self.arrays(out) for out in step] for step in case["outputs"]]


@functools.cache
def cases(name: str) -> Cases:
    """Return the cases of ``name``.npz."""
    return Cases(GOLDEN / f"{name}.npz")


def labels(name: str) -> list[str]:
    """Return a test id for each case in ``name``.npz."""
    return [f"{i}-{c['op']}" for i, c in enumerate(cases(name).cases)]


def samples_of(step: int, batch: int) -> Samples:
    """Return the samples of iteration ``step`` of a pipeline with one batch size."""
    at = np.arange(batch, dtype=np.int64)
    return Samples(at.astype(np.int32), at + step * batch, np.zeros(batch, np.int64), at + step * batch)


def call(
    stored: Cases, case: dict[str, Any], step: int = 0, stage: str = "cpu", device: Any = None, seed: int | None = None
) -> tuple[tuple[Batch, ...], Context]:
    """Run this project's operator on a case, with DALI's random numbers."""
    cls = find(case["op"])
    constants = {k: coerce(parameter(cls, k), v) for k, v in case["arguments"].items()}
    op = cls(per_sample=frozenset(case["per_sample"]), num_inputs=len(case["inputs"]), **constants)
    op.check()
    given = [stored.arrays(x) for x in case["inputs"]]
    args = {k: stored.arrays(x) for k, x in case["per_sample"].items()}
    n = case.get("batch") or len([*given, *args.values()][0])
    samples = samples_of(step, n)
    layouts = [*case["layouts"], *[""] * len(given)]
    inputs = [Batch.from_list(x, lay, samples) for x, lay in zip(given, layouts, strict=False)]
    batches = {k: Batch.from_list(x, "", samples) for k, x in args.items()}
    ctx = Context(op, stage, samples, args=batches, seed=case["seed"] if seed is None else seed, rng="dali",
                  device=device)  # type: ignore[arg-type]  # fmt: skip
    return outputs_of(op.kernel(stage)(ctx, *inputs)), ctx  # type: ignore[arg-type]
