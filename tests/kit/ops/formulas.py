"""Evaluate formulas on numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.formulas.arithmetic import Expr


def calculate(text: str, *batches: Batch, rejects: list[Any] | None = None) -> Batch:
    op = Expr(expr=text)
    op.check()
    ctx = Context(op, "cpu", batches[0].samples)
    out = op.cpu(ctx, *batches)
    if rejects is None:
        assert not ctx.rejects
    else:
        rejects.extend(ctx.rejects)
    return out


def batch(*arrays: Any, dtype: Any = None, layout: str = "") -> Batch:
    return Batch.from_list([np.array(a, dtype) for a in arrays], layout, Samples.numbered(len(arrays)))
