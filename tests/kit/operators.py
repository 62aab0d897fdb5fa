"""Operators under test: create them from plain arguments, call them on batches, build them from their own `example`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from dali_run.ops.base import Operator, coerce, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.pipelines.plugins import find_operator
from dali_run.pipelines.spec.expressions import EXPRESSIONS


def operator(name: str, per_sample: Sequence[str] = (), **arguments: Any) -> Any:
    """Create operator ``name`` with ``arguments`` as in YAML; the arguments ``per_sample`` are passed as inputs."""
    cls = find_operator(name)  # whatever was imported before
    op = cls(per_sample=frozenset(per_sample), **{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})
    op.check()
    return op


def batch_of(arrays: Sequence[Any], layout: str = "", samples: Samples | None = None) -> Batch:
    """Return a ragged batch of arrays of one dtype and number of dimensions."""
    numbered = Samples.numbered(len(arrays)) if samples is None else samples
    return Batch.from_list([np.asarray(a) for a in arrays], layout, numbered)


def apply(
    op: Any, *inputs: Batch, args: Mapping[str, Batch] | None = None, lane: Any = None, **context: Any
) -> tuple[Any, list[Any]]:
    """Call an operator's cpu kernel, or, on ``lane``, its gpu kernel. Return its result and the rejects."""
    stage = "cpu" if lane is None else "gpu"
    ctx = Context(op, stage, inputs[0].samples, args=dict(args or {}), **context)
    if lane is not None:
        ctx.device = lane
    return op.kernel(stage)(ctx, *inputs), ctx.rejects


def arguments_of_example(cls: type[Operator]) -> dict[str, Any]:
    """Create the operator of ``cls.example``. Arguments that the example passes as inputs (``$name``) keep their
    defaults, or are 1 if they have none."""
    step = yaml.safe_load(cls.example)
    key = EXPRESSIONS[cls.name].key if cls.name in EXPRESSIONS else ""
    given = {EXPRESSIONS[cls.name].argument if k == key else k: v for k, v in step.items()}
    return {k: v for k, v in given.items() if k not in ("op", "in", "out", "name", "device", "seed")}


def of_example(cls: type[Operator]) -> Any:
    """Create the operator of ``cls.example``. Arguments that the example passes as inputs (``$name``) keep their
    defaults, or are 1 if they have none."""
    kept = arguments_of_example(cls)
    given = {k: v for k, v in kept.items() if not (isinstance(v, str) and v.startswith("$"))}
    try:
        return operator(cls.name, **given)
    except SpecError:
        return operator(cls.name, **{k: given.get(k, 1) for k in kept})
