"""Specs run: expressions and conditionals give what the same lines of Python give, and so do their dumps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Operator, Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.graph.nodes import Graph
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.spec.to_yaml import to_yaml

load_operators()
TOTAL = 60


class Count(Operator, name="running.count"):
    """The number of each sample, as int32."""

    inputs = (0, 0)

    def infer(self, *specs: Spec) -> Spec:
        return Spec((), DALIDataType.INT32)

    def cpu(self, ctx: Context) -> Batch:
        return Batch.from_dense(ctx.samples.index.astype(np.int32), "", ctx.samples)


class CountingFeed:
    states: Mapping[int, Any] = {}
    kinds: Mapping[Any, Any] = {}

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        return Samples.numbered(request.n, request.start), {}


def requests(batch: int) -> Iterator[Request]:
    return (Request(s, min(batch, TOTAL - s)) for s in range(0, TOTAL, batch))


def results(graph: Graph, device: str, batch: int) -> dict[str, list[Any]]:
    plan = compile_graph(graph, Target(device))  # type: ignore[arg-type]
    found: dict[str, list[Any]] = {name: [] for name in graph.outputs}
    with Engine(plan, CountingFeed(), requests(batch), Options()) as engine:
        for iteration in engine:
            for name, out in iteration.outputs(plan).items():
                found[name] += [np.asarray(v).tolist() for v in out]
    return found


def python(n: int) -> dict[str, Any]:
    """The results that the spec below describes."""
    x, y, z = n, n * 0.5, n
    if n % 2 == 0:
        x = x * 10
        if n % 3 == 0:
            y = x + 0.25
            x = x + 1
        else:
            z = -n
    else:
        x = x + 100
        z = z // 2
    return {"x": x, "y": y, "z": z, "s": x + y + z}


SPEC = """\
version: 1
graph:
  - {op: running.count, out: n}
  - {op: expr, expr: "n + 0", out: x}
  - {op: expr, expr: "n * 0.5", out: y}
  - {op: expr, expr: "+n", out: z}
  - if: n % 2 == 0
    then:
      - {op: expr, expr: "x * 10", out: x}
      - {op: expr, expr: "n % 3 == 0", out: third}
      - if: $third
        then:
          - {op: expr, expr: "x + 0.25", out: y}
          - {op: expr, expr: "x + 1", out: x}
        else:
          - {op: expr, expr: "-n", out: z}
    else:
      - {op: expr, expr: "x + 100", out: x}
      - {op: expr, expr: "z // 2", out: z}
  - {op: expr, expr: "x + y + z", out: s}
outputs: [x, y, z, s]
"""


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_conditionals_and_expressions(device: str, batch: int, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(SPEC)
    graph = load_spec(file).graph
    want = {k: [python(n)[k] for n in range(TOTAL)] for k in "xyzs"}
    assert results(graph, device, batch) == want
    file.write_text(to_yaml(graph))
    assert results(load_spec(file).graph, device, batch) == want


def test_swapped_branches_survive_the_dump(tmp_path: Path) -> None:
    text = """\
version: 1
graph:
  - {op: running.count, out: n}
  - {op: expr, expr: "n + 1", out: a}
  - {op: expr, expr: "n * 2", out: b}
  - if: n > 30
    then:
      - {op: expr, expr: "a * 1", out: t}
      - {op: copy, in: b, out: a}
      - {op: copy, in: t, out: b}
  - {op: expr, expr: "a * 1000 + b", out: c}
outputs: {c: c, a: a}
"""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    graph = load_spec(file).graph
    want = [(n + 1) * 1000 + n * 2 if n <= 30 else n * 2000 + n + 1 for n in range(TOTAL)]
    assert results(graph, "cpu", 8)["c"] == want
    file.write_text(to_yaml(graph))
    assert results(load_spec(file).graph, "cpu", 8)["c"] == want


def program(rng: random.Random, depth: int, indent: str) -> tuple[list[str], list[str]]:
    """Random steps over the batches a, b, c: as YAML and as Python."""
    spec: list[str] = []
    code: list[str] = []
    for _ in range(rng.randint(1, 4)):
        x, y, out = (rng.choice("abc") for _ in range(3))
        k = rng.randint(2, 5)
        if depth < 3 and rng.random() < 0.45:
            spec.append(
                f"{indent}- if: {x} % {k} == {rng.randrange(k)}" if rng.random() < 0.7 else f"{indent}- if: {x} > {y}"
            )
            code.append(f"if {spec[-1].split('if: ')[1]}:")
            for key in ("then", "else"):
                inner_spec, inner_code = program(rng, depth + 1, indent + "    ")
                if key == "else" and rng.random() < 0.4:
                    continue
                spec += [f"{indent}  {key}:", *inner_spec]
                code += (["else:"] if key == "else" else []) + [f"  {line}" for line in inner_code]
        else:
            text = rng.choice([f"({x} + {y}) % 1009", f"({x} * {k} + 1) % 1009", f"max({x}, {y})", f"{x} // {k}"])
            spec.append(f'{indent}- {{op: expr, expr: "{text}", out: {out}}}')
            code.append(f"{out} = {text}")
    return spec, code


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    spec, code = program(random.Random(seed), 0, "  ")
    start = "".join(f'  - {{op: expr, expr: "n + {i}", out: {name}}}\n' for i, name in enumerate("abc"))
    file = tmp_path / "t.yaml"
    lines = "\n".join(spec)
    file.write_text(f"version: 1\ngraph:\n  - {{op: running.count, out: n}}\n{start}{lines}\noutputs: [a, b, c]\n")
    want: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for n in range(TOTAL):
        names = {"a": n, "b": n + 1, "c": n + 2}
        exec("\n".join(code), {"max": max}, names)
        for name, value in names.items():
            want[name].append(value)
    graph = load_spec(file).graph
    assert results(graph, "cpu", 16) == want
    file.write_text(to_yaml(graph))
    assert results(load_spec(file).graph, "null", 25) == want
