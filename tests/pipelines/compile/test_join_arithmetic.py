"""Joined arithmetic gives the same values, types and layouts as one operator after the other."""

from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
import dali_run.types as types
from dali_run import pipeline_def
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph


def chain(x: Any, y: Any, f: Any) -> tuple[Any, ...]:
    used_twice = x * 2 + 1
    return (
        x + y - 3, (x + 200) * y / 7, -(f * f) + x, ~(x & 15) | y, used_twice, used_twice * f, (x > y) & (f < 0.5),
        x + (y + (x + (y + 1))), (f + 1) ** (f + 2), fn.cast(x + y, dtype=types.FLOAT) * 2, (x - x) - (y - x) - (f - f),
    )  # fmt: skip


def run(fusing: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    from dali_run.pipelines.python import session as pipeline

    def compiled(graph: Any, target: Target, seed: int, **others: Any) -> Any:
        return compile_graph(graph, target, seed, fusing=fusing, **others)

    monkeypatch.setattr(pipeline, "compile_graph", compiled)

    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        x = fn.external_source(
            lambda: np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 20, layout="HW", dtype=types.UINT8
        )
        y = fn.external_source(lambda: np.arange(3, dtype=np.int16) - 1, dtype=types.INT16)
        f = fn.external_source(lambda: np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 1, 2), dtype=types.FLOAT)
        return chain(x, y, f)

    p = pipe()
    return p.run(), [n.op.name for n in p.plan.graph.nodes]


def test_same_results_with_fewer_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, few = run(True, monkeypatch)
    apart, many = run(False, monkeypatch)
    assert few.count("expr") == 12
    assert many.count("expr") > 20
    for a, b in zip(joined, apart, strict=True):
        assert (a.dtype, a.layout(), a.shape()) == (b.dtype, b.layout(), b.shape())
        assert (a.as_array() == b.as_array()).all()
