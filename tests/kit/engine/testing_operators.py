"""Operators that count, fail, wait and finish late on request, and graphs of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from dali_run.ops.base import Arg, Operator, Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Request
from dali_run.pipelines.graph.builder import GraphBuilder


class Numbers(Operator, name="testing.numbers"):
    """Operator that outputs the index of each sample, as a vector whose length depends on it."""

    inputs = (0, 0)

    def infer(self, *specs: Spec) -> Spec:
        return Spec((None,), DALIDataType.INT64)

    def cpu(self, ctx: Context) -> Batch:
        return Batch.from_list([np.full(1 + i % 3, i) for i in ctx.samples.index.tolist()], "", ctx.samples)


class Work(Operator, name="testing.work"):
    """Operator that computes x + 1, but rejects, raises or requests a retry at chosen values."""

    reject_at: Annotated[int, Arg("reject samples of this value")] = -1
    raise_at: Annotated[int, Arg("raise when this value is in the batch")] = -1
    retry_at: Annotated[int, Arg("the first attempt of this value is wrong")] = -1
    scale: Annotated[int, Arg("factor of the result", per_sample=True)] = 1

    def infer(self, *specs: Spec) -> Spec:
        return specs[0]

    def cpu(self, ctx: Context, x: Batch) -> Batch:
        first = x.data[x.offsets]
        for i in np.flatnonzero(first == self.reject_at).tolist():
            ctx.reject(i, "bad_argument", "rejected on request")
        if (first == self.raise_at).any():
            raise RuntimeError("raised on request")
        scale = ctx.arg("scale", np.int64)
        out = Batch.from_list([(v + 1) * s for v, s in zip(x, scale, strict=True)], "", ctx.samples)
        wrong = np.flatnonzero(first == self.retry_at)
        if len(wrong) and ctx.attempt == 0:
            for i in wrong.tolist():
                out.sample(i)[:] = -99
            ctx.check_later(lambda: wrong)
        return out

    gpu = cpu


class Late(Work, name="testing.late"):
    """Operator like `Work` whose gpu output is a placeholder until the device has finished."""

    output_after_sync = True

    def gpu(self, ctx: Context, x: Batch) -> Batch:
        out = super().gpu(ctx, x)
        return ctx.finish_later(lambda: out) if ctx.device is not None else out

    cpu = gpu


class Waiting(Work, name="testing.waiting"):
    """Operator like `Work` that two threads of a device launch; every second call takes longer."""

    waits = True

    def gpu(self, ctx: Context, x: Batch) -> Batch:
        if int(ctx.samples.position[0]) // 4 % 2 == 0:
            threading.Event().wait(0.003)
        return super().cpu(ctx, x)

    cpu = gpu


class Parity(Operator, name="testing.is_even"):
    """Operator that outputs whether the first element is even."""

    def infer(self, *specs: Spec) -> Spec:
        return Spec((), DALIDataType.BOOL)

    def cpu(self, ctx: Context, x: Batch) -> Batch:
        return Batch.from_dense(x.data[x.offsets] % 2 == 0, "", ctx.samples)


class CountingFeed:
    """Source of samples that are numbered by their position."""

    states: Mapping[int, Any] = {}
    kinds: Mapping[Any, Any] = {}

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        return Samples.numbered(request.n, request.start), {}


def requests(total: int, batch: int) -> Iterator[Request]:
    return (Request(s, min(batch, total - s)) for s in range(0, total, batch))


def compiled(device: str = "cpu", **args: Any) -> Plan:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (y,) = b.add("testing.work", [x], args)
    (z,) = b.add("testing.work", [y], device="gpu" if device == "null" else "auto")
    return compile_graph(b.build({"x": x, "z": z}), Target(device=device))  # type: ignore[arg-type]


def branching(device: str = "cpu") -> Plan:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (even,) = b.add("testing.is_even", [x])
    b.enter(even, True)
    (then,) = b.add("testing.work", [x], {"scale": 10, "reject_at": 8})
    b.leave()
    b.enter(even, False)
    (other,) = b.add("testing.work", [x], {"reject_at": 13})
    b.leave()
    merged = b.merge(even, then, other)
    (z,) = b.add("testing.work", [merged], device="gpu" if device == "null" else "auto")
    return compile_graph(b.build({"x": x, "z": z}), Target(device=device))  # type: ignore[arg-type]
