"""Facts that kernels tell for the report count once for each sample, however often its batch has to be tried."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pytest

from dali_run.ops.base import Arg, Operator
from dali_run.ops.batch import Batch
from dali_run.ops.context import Context
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine.caller_thread.fast_path import FastHostStep
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
from dali_run.pipelines.engine.stats import Stats
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators

load_operators()
BATCH, COUNT = 6, 8


class OutOfMemoryError(Exception):
    """As CuPy's."""


class Telling(Operator, name="testing.telling"):
    """Tells of its samples."""

    def cpu(self, ctx: Context, x: Batch) -> Batch:
        """Two facts."""
        ctx.fell_back("told", len(ctx.samples))
        ctx.decoded_by("somebody", len(ctx.samples), 1.0)
        ctx.waited_for("somebody", 1.0)
        return x

    gpu = cpu


class Stumbling(Operator, name="testing.stumbling"):
    """Fails in one of many ways."""

    how: Annotated[str, Arg("exception, memory, device memory, reject or check")] = "reject"
    most: Annotated[int, Arg("samples that it takes at a time, if it minds them")] = 2
    bad: Annotated[int, Arg("the first sample that it cannot take, one in seven, if it minds that")] = 3

    def cpu(self, ctx: Context, x: Batch) -> Batch:
        """Its input, or not."""
        bad = np.flatnonzero(ctx.samples.position % 7 == self.bad)
        if self.how == "exception" and len(bad):
            raise ValueError("not this one")
        if self.how == "memory" and len(ctx.samples) > self.most:
            raise MemoryError
        if self.how == "device memory" and len(ctx.samples) > self.most:
            raise OutOfMemoryError
        if self.how == "reject":
            for i in bad.tolist():
                ctx.reject(i, "bad_argument", "not this one")
        return x

    gpu = cpu


def told(device: str, how: str, inline: bool) -> tuple[Stats, int]:
    """Of some batches; and how many samples were dropped."""
    b = GraphBuilder()
    (x,) = b.add("random.uniform", [], {"shape": [3]})
    on = {} if device == "cpu" else {"device": "gpu"}
    (x,) = b.add("testing.telling", [x], **on)
    (x,) = b.add("testing.stumbling", [x], {"how": how}, **on)
    plan = compile_graph(b.build({"x": x}), Target() if device == "cpu" else Target("null"))
    with Sources(plan, BATCH) as sources:
        requests = (Request(k * BATCH, BATCH) for k in range(COUNT))
        with Engine(plan, EndlessFeed(sources), requests, Options(inline=inline)) as engine:
            return engine.stats, sum(len(it.dropped) for it in engine)


CASES = [
    *(("cpu", how, inline) for how in ("exception", "memory", "reject", "no") for inline in (False, True)),
    *(("null", how, False) for how in ("exception", "device memory", "reject", "no")),
]


@pytest.mark.parametrize(("device", "how", "inline"), CASES)
def test_facts_count_once(device: str, how: str, inline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[bool] = []
    run = FastHostStep.run

    def watched(self: FastHostStep, *args: object) -> bool:
        plain.append(run(self, *args))  # type: ignore[arg-type]
        return plain[-1]

    monkeypatch.setattr(FastHostStep, "run", watched)
    stats, dropped = told(device, how, inline)
    assert dropped == (0 if how in ("memory", "device memory", "no") else len(range(3, BATCH * COUNT, 7)))
    assert stats.fallbacks["told"] == BATCH * COUNT
    assert stats.decoders == {"somebody": BATCH * COUNT}
    assert bool(plain) == inline
    if inline and how in ("exception", "memory"):
        assert not all(plain)
