"""A graph written as YAML and read again is the same graph."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from dali_run.ops.base import Arg, Operator
from dali_run.ops.errors import SpecError
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.conditionals import Merge
from dali_run.pipelines.graph.nodes import Graph
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.spec.to_yaml import to_yaml

from ...kit.specs import VALID

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
MAKE = "{op: example.make, out: [images, flag]}"


class Holder(Operator, name="example.holder"):
    """Arguments of odd types."""

    text: Annotated[str, Arg("any text")] = ""
    real: Annotated[float, Arg("any number")] = 0.0
    anything: Annotated[Any, Arg("anything")] = None
    listed: Annotated[tuple[str, ...], Arg("texts")] = ()

    def cpu(self, ctx: Any, x: Any) -> Any:
        return x


def reread(graph: Graph, tmp_path: Path) -> Graph:
    file = tmp_path / "dumped.yaml"
    file.write_text(to_yaml(graph))
    return load_spec(file).graph


def facts(graph: Graph) -> list[Any]:
    """All that matters of a graph; an expression is told by its names, which the dump may change."""
    rows: list[Any] = []
    for n in graph.nodes:
        fields = {f.name: getattr(n.op, f.name) for f in dataclasses.fields(n.op)}
        if n.op.name == "expr":
            fields = {"inputs": len(n.inputs)}
        rows.append((n.op.name, fields, n.inputs, n.args, n.name, n.device, n.seed, n.scope))
    return [*rows, dict(graph.outputs)]


def check(text: str, tmp_path: Path) -> str:
    (tmp_path / "t.yaml").write_text(text)
    graph = load_spec(tmp_path / "t.yaml").graph
    again = reread(graph, tmp_path)
    assert facts(again) == facts(graph)
    dumped = to_yaml(graph)
    assert to_yaml(again) == dumped
    return dumped


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_configs(config: Path, tmp_path: Path) -> None:
    check(config.read_text(), tmp_path)


def test_the_example(tmp_path: Path) -> None:
    check(VALID, tmp_path)


def test_what_it_looks_like(tmp_path: Path) -> None:
    steps = "{op: example.turn, in: images, count: 2, angle: $flag, size: [3, 4], seed: 5, device: gpu, out: images}"
    text = f"version: 1\ngraph: [{MAKE}, {steps}]\noutputs: {{image/encoded: images}}\n"
    assert check(text, tmp_path) == (
        "version: 1\n"
        "graph:\n"
        "  - {op: example.make, out: [example_make_0, example_make_1]}\n"
        "  - {op: example.turn, in: example_make_0, device: gpu, seed: 5, angle: $example_make_1, size: [3, 4], "
        "count: 2, out: image_encoded}\n"
        "outputs: {image/encoded: image_encoded}\n"
    )


@pytest.mark.parametrize(
    "conditional",
    [
        "{if: $flag, then: [{op: example.turn, in: images, count: 1, out: images}]}",
        "{if: $flag, then: [], else: [{op: example.turn, in: images, count: 1, out: images}]}",
        "{if: $flag, then: [{op: example.turn, in: images, count: 1, out: images}], "
        "else: [{op: example.turn, in: images, count: 2, out: images}]}",
        "{if: $flag, then: [{op: example.make, out: [images, flag]}]}",
        "{if: not flag, then: [{if: $flag, then: [{op: example.turn, in: images, count: 1, out: images}]}]}",
        "{if: $flag, then: [{op: example.turn, in: images, count: 1, out: images}, "
        "{if: $flag, then: [{op: example.turn, in: images, count: 3, out: images}], "
        "else: [{op: example.turn, in: images, count: 2, out: images}]}]}",
    ],
)
def test_conditionals(conditional: str, tmp_path: Path) -> None:
    text = f"version: 1\ngraph:\n  - {MAKE}\n  - {conditional}\noutputs: [images]\n"
    dumped = check(text, tmp_path)
    assert "copy" not in dumped


def test_two_conditionals_of_one_predicate(tmp_path: Path) -> None:
    one = "  - {if: $flag, then: [{op: example.turn, in: images, count: 1, out: images}]}\n"
    dumped = check(f"version: 1\ngraph:\n  - {MAKE}\n{one}{one}outputs: [images]\n", tmp_path)
    assert dumped.count("if: ") == 2


def test_copies_where_names_cannot_be_shared(tmp_path: Path) -> None:
    """Branches that swap two batches, and a batch that is needed as it was before."""
    builder = GraphBuilder()
    images, flag = builder.add("example.make")
    other, _ = builder.add("example.make")
    merged = [builder.merge(flag, images, other), builder.merge(flag, other, images)]
    graph = builder.build({"a": merged[0], "b": merged[1], "c": images})
    text = to_yaml(graph)
    assert text.count("op: copy") == 4
    again = reread(graph, tmp_path)
    for name, branches in (("a", (0, 1)), ("b", (1, 0))):
        end = again.node(again.outputs[name])
        assert isinstance(end.op, Merge)
        sources = []
        for edge in end.inputs:
            node = again.node(edge)
            while node.inputs:
                edge = node.inputs[0]
                node = again.node(edge)
            sources.append(node.id)
        assert tuple(sources) == branches
    assert again.outputs["c"].node == 0


def test_expressions_get_the_names_of_the_spec(tmp_path: Path) -> None:
    builder = GraphBuilder()
    images, flag = builder.add("example.make")
    (result,) = builder.add("expr", [images, flag], {"expr": "max(a, 2) * b + float(a)"})
    graph = builder.build({"result": result, "max": images})
    text = to_yaml(graph)
    assert 'expr: "max(max, 2) * example_make_1 + float(max)"' in text
    again = reread(graph, tmp_path)
    assert again.nodes[1].inputs == (images, flag)
    assert again.outputs == graph.outputs


ODD = ["yes", "012", "1e3", "1:30", "null", "true", "", " ", "a b", "a: b", "#x", "- x", "${env:HOME}", "$flag", "$$x",
       "$${x", "${", "'", '"', "\\", "é", "\U0001f600", "\x07\x1b", "\x7f", "\ufeff", "\n\t", "[x]", "{", "%x", "@x",
       "0.1%", "2001-01-01", "~", "*a", "&a", "!t", "<<", ".nan", "NaN", "0x1F", "./a/b-c_d.e"]  # fmt: skip


def test_odd_texts(tmp_path: Path) -> None:
    builder = GraphBuilder()
    (edge, _) = builder.add("example.make")
    for text in ODD:
        (edge,) = builder.add(
            "example.holder", [edge], {"text": text, "listed": [text, "x"] if "$" not in text else []}
        )
    graph = builder.build({"x": edge})
    again = reread(graph, tmp_path)
    assert [n.op.text for n in again.nodes[1:]] == ODD  # type: ignore[attr-defined]
    assert facts(again) == facts(graph)


@pytest.mark.parametrize("number", [0.5, 1e-5, 1e38, -2.5e-10, 1e22, 3.0, 5e-324])
def test_odd_numbers(number: float, tmp_path: Path) -> None:
    builder = GraphBuilder()
    images, _ = builder.add("example.make")
    (edge,) = builder.add("example.holder", [images], {"real": number, "anything": {"k": [number, None, True, 7]}})
    graph = builder.build({"x": edge})
    assert facts(reread(graph, tmp_path)) == facts(graph)


@pytest.mark.parametrize("value", [print, np.zeros(3), float("nan"), object(), [float("inf")]])
def test_what_is_no_data_is_refused(value: Any) -> None:
    builder = GraphBuilder()
    images, _ = builder.add("example.make")
    (edge,) = builder.add("example.holder", [images], {"anything": value})
    with pytest.raises(SpecError, match=r"example\.holder: argument 'anything' cannot be written as YAML"):
        to_yaml(builder.build({"x": edge}))


def test_sections(tmp_path: Path) -> None:
    builder = GraphBuilder()
    images, _ = builder.add("example.make")
    graph = builder.build({"x": images})
    sections = {"pipeline": {"batch_size": 7, "device": "cpu"}, "on_error": {"policy": "fail", "max_errors": "0.1%"}}
    file = tmp_path / "t.yaml"
    file.write_text(to_yaml(graph, name="yes", sections=sections))
    spec = load_spec(file).spec
    assert (spec.name, spec.pipeline.batch_size, spec.pipeline.device) == ("yes", 7, "cpu")
    assert spec.on_error.max_error_rate == pytest.approx(0.001)
