"""Recorded results of DALI in tests/golden, and helpers to compare with them: operators, batches and kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.base import Operator, outputs_of
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.pipelines.plugins import load_operators

from .operators import batch_of as batch_of
from .operators import operator as operator

load_operators()

FOLDER = Path(__file__).parents[1] / "golden"
RANGES = {"uint8": (0, 256), "bool": (0, 2), "int8": (-128, 128), "float32": (-1000, 1000)}
"""Ranges of input values by dtype, equal to those of golden/several_inputs.py."""


@dataclass(frozen=True)
class Case:
    """One call of an operator, and DALI's result."""

    number: int
    op: str
    arguments: dict[str, Any]
    inputs: list[Batch]
    tensors: dict[str, Batch]
    wanted: list[tuple[str, np.ndarray]]
    """Layout and values of each output."""

    def __str__(self) -> str:
        given = ", ".join(f"{b.dtype}{b.shapes[0].tolist()} {b.layout}" for b in self.inputs)
        return f"case {self.number}: {self.op}({given}) {self.arguments} {list(self.tensors)}"

    @property
    def operator(self) -> Any:
        """Return the operator with the case's arguments, checked."""
        return operator(self.op, tuple(self.tensors), **self.arguments)

    def run(self, lane: Any = None) -> list[Batch]:
        """Run this project's kernel on the case, and assert that it rejects nothing."""
        outputs, rejects = apply(self.operator, *self.inputs, args=self.tensors, lane=lane)
        assert not rejects, (str(self), rejects)
        return outputs


def source(seed: int, k: int, dtype: str, shape: list[int]) -> np.ndarray:
    """Return input ``k`` of case ``seed``, as golden/several_inputs.py makes it."""
    low, high = RANGES.get(dtype, (0 if dtype.startswith("u") else -1000, 1000))
    values = np.random.default_rng([seed, k]).integers(low, high, shape)
    return (values / 8).astype(dtype) if dtype.startswith("float") else values.astype(dtype)


def cases(name: str) -> Iterator[Case]:
    """Yield the cases of golden/``name``.npz (made by several_inputs.make)."""
    file = np.load(FOLDER / f"{name}.npz")
    at = dict.fromkeys(file.files, 0)
    for number, case in enumerate(json.loads(str(file["cases"]))):
        wanted = []
        for layout, dtype, shape in case["outputs"]:
            size = int(np.prod(shape))
            wanted.append((layout, file[dtype][at[dtype] : at[dtype] + size].reshape(shape)))
            at[dtype] += size
        inputs = [
            batch_of([source(number, k, dtype, shape)], layout)
            for k, (layout, dtype, shape) in enumerate(case["inputs"])
        ]
        tensors = {
            k: batch_of([np.array(v["values"], v["dtype"])], v.get("layout", "")) for k, v in case["tensors"].items()
        }
        yield Case(number, case["op"], case["arguments"], inputs, tensors, wanted)


def apply(
    op: Operator, *inputs: Batch, args: dict[str, Batch] | None = None, lane: Any = None, n: int = 1
) -> tuple[list[Batch], list[Any]]:
    """Call an operator's kernel: the cpu kernel without a ``lane``; with ``n`` samples if there are no inputs."""
    stage: Any = "cpu" if lane is None else "gpu"
    given = [*inputs, *(args or {}).values()]
    ctx = Context(op, stage, given[0].samples if given else Samples.numbered(n), args or {}, device=lane)
    return list(outputs_of(op.kernel(stage)(ctx, *inputs))), ctx.rejects
