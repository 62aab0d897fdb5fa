"""Specs: what they mean, and what is said about wrong ones."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.graph.conditionals import Merge, Split
from dali_run.pipelines.graph.nodes import Edge, Graph, Node
from dali_run.pipelines.graph.rules import verify
from dali_run.pipelines.plugins import find_operator
from dali_run.pipelines.spec.build import load_spec
from dali_run.readers.external_source import ProgramInput

from ...kit.specs import VALID, errors, load

MAKE = "{op: example.make, out: [images, flag]}"


def graph_of(steps: str, outputs: str, tmp_path: Path) -> Graph:
    text = f"version: 1\ngraph:\n{steps}\noutputs: {outputs}\n"
    return verify(load(text, tmp_path).graph, "building")


def graph_errors(steps: str, tmp_path: Path, outputs: str = "[images]") -> list[str]:
    return errors(f"version: 1\ngraph:\n  - {MAKE}\n{steps}\noutputs: {outputs}\n", tmp_path)


def node(graph: Graph, name: str) -> Node:
    (found,) = [n for n in graph.nodes if n.name == name]
    return found


# -- what a spec means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "sha256"), [("", False), ("checksums: tree", False), ("checksums: sha256", True)])
def test_checksums_of_an_output(tmp_path: Path, line: str, sha256: bool) -> None:
    text = VALID.replace("write:\n", f"write:\n  {line}\n")
    write = load(text, tmp_path).spec.write
    assert write is not None
    assert write.sha256 is sha256
    if line:
        with pytest.raises(SpecError, match="checksums must be tree or sha256, got 'md5'"):
            load(text.replace(line, "checksums: md5"), tmp_path)


def test_a_whole_spec(tmp_path: Path) -> None:
    built = load(VALID, tmp_path)
    spec, graph = built.spec, verify(built.graph, "building")
    assert (spec.name, spec.version) == ("job-1", 1)
    settings = spec.pipeline
    assert (settings.batch_size, settings.num_threads, settings.device, settings.seed) == (32, "auto", "auto", 7)
    assert (settings.prefetch_cpu, settings.prefetch_gpu, settings.prefetch_asked) == (3, 1, True)
    turned = node(graph, "example.turn").op
    assert (turned.count, turned.size, turned.title) == (2, (4, 6), "in ./data")  # type: ignore[attr-defined]
    assert node(graph, "Source").where == f"{tmp_path}/t.yaml:6:5: step 1 (example.make)"
    assert node(graph, "example.turn_2").where == f"{tmp_path}/t.yaml:11:9: step 4, then step 1 (example.turn)"
    assert set(graph.outputs) == {"half", "flag"}
    assert spec.write is not None
    assert (spec.write.path, spec.write.shard_samples, spec.write.shard_bytes) == ("./data/out", 100, 1 << 30)
    assert built.fields is not None
    assert {n: f.encode for n, f in built.fields.items()} == {"half": "raw", "flag": "auto"}
    assert (spec.on_error.policy, spec.on_error.max_errors) == ("skip", None)
    assert spec.on_error.max_error_rate == pytest.approx(0.001)


def test_defaults(tmp_path: Path) -> None:
    built = load(f"version: 1\ngraph: [{MAKE}]\noutputs: [images]", tmp_path)
    assert built.spec.name == "t"
    assert built.writer is None
    assert built.fields is None
    assert built.graph.outputs == {"images": Edge(0, 0)}
    assert (built.spec.pipeline.prefetch_cpu, built.spec.pipeline.device) == (2, "auto")
    assert built.spec.on_error.max_error_rate is None


@pytest.mark.parametrize(
    ("given", "depths"),
    [
        ("", (2, 2, False)),
        ("prefetch_queue_depth: 2", (2, 2, True)),
        ("prefetch_queue_depth: {cpu_size: 2}", (2, 2, True)),
        ("prefetch_queue_depth: {gpu_size: 3}", (2, 3, False)),
    ],
)
def test_the_depth_of_queues_and_whether_it_was_asked_for(
    tmp_path: Path, given: str, depths: tuple[int, int, bool]
) -> None:
    built = load(f"version: 1\npipeline: {{{given}}}\ngraph: [{MAKE}]\noutputs: [images]", tmp_path)
    settings = built.spec.pipeline
    assert (settings.prefetch_cpu, settings.prefetch_gpu, settings.prefetch_asked) == depths


def test_specs_are_frozen(tmp_path: Path) -> None:
    spec = load(VALID, tmp_path).spec
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]


def test_json_is_the_same(tmp_path: Path) -> None:
    import json

    import yaml

    data = yaml.safe_load(VALID)
    (tmp_path / "t.json").write_text(json.dumps(data, indent=1))
    a, b = load(VALID, tmp_path).graph, load_spec(tmp_path / "t.json").graph
    assert [(n.op, n.inputs, n.args) for n in a.nodes] == [(n.op, n.inputs, n.args) for n in b.nodes]


def test_rebinding_is_as_in_python(tmp_path: Path) -> None:
    steps = f"  - {MAKE}\n" + "  - {op: example.turn, in: images, count: 1, out: images}\n" * 2
    graph = graph_of(steps, "[images]", tmp_path)
    assert [n.inputs for n in graph.nodes] == [(), (Edge(0),), (Edge(1),)]
    assert graph.outputs == {"images": Edge(2)}


def test_argument_inputs_and_plain_dollars(tmp_path: Path) -> None:
    steps = f"  - {MAKE}\n  - {{op: example.turn, in: images, angle: $flag, title: $$flag, count: 1, out: turned}}"
    turned = node(graph_of(steps, "[turned]", tmp_path), "example.turn")
    assert turned.args == {"angle": Edge(0, 1)}
    assert turned.op.per_sample == {"angle"}
    assert turned.op.title == "$flag"  # type: ignore[attr-defined]


def test_unwanted_outputs(tmp_path: Path) -> None:
    graph = graph_of("  - {op: example.make, out: [_, _]}\n  - {op: example.make, out: [_, flag]}", "[flag]", tmp_path)
    assert graph.outputs == {"flag": Edge(1, 1)}


def test_expressions_become_one_node(tmp_path: Path) -> None:
    steps = f"  - {MAKE}\n  - {{op: expr, expr: 'min(images, 7) * flag + images', out: result}}"
    result = node(graph_of(steps, "[result]", tmp_path), "expr")
    assert result.inputs == (Edge(0, 0), Edge(0, 1))
    assert result.op.names == ("images", "flag")  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", ["auto", "cpu", "gpu", "gpu:3", "gpu:0,2", "gpu:all", "null", None])
def test_devices(device: str | None, tmp_path: Path) -> None:
    built = load(VALID, tmp_path, pipeline__device=device)
    assert built.spec.pipeline.device == (device or "null")


@pytest.mark.parametrize("cut", ["limit: 3", "skip: 3"])
@pytest.mark.parametrize("mixed", ["shuffle: full", "shuffle: window", "random_shuffle: true"])
def test_a_part_that_is_cut_before_it_is_shuffled_is_remarked(cut: str, mixed: str, tmp_path: Path) -> None:
    """It is no random part, though it looks like one: the split for validation has the last classes alone."""
    for reader, said in ((f"{mixed}, {cut}", 1), (mixed, 0), (cut, 0), (f"{cut}, shuffle: none", 0)):
        (tmp_path / "t.yaml").write_text(
            f"version: 1\ngraph:\n  - {{op: readers.file, file_root: d, {reader}, out: [x, y]}}\noutputs: {{x: x}}\n"
        )
        notes = [str(n) for n in load_spec(tmp_path / "t.yaml").notes]
        assert len(notes) == said
        assert all("t.yaml:3:5: step 1 (readers.file): skip and limit choose records in stored" in n for n in notes)


PATHS = [
    'graph: [{op: readers.file, file_root: "d\\0", out: [x, y]}]',
    'graph: [{op: readers.file, file_list: "d\\0", out: [x, y]}]',
    'graph: [{op: readers.numpy, file_root: "d\\0", out: x}]',
    'graph: [{op: readers.sequence, file_root: "d\\0", sequence_length: 1, out: x}]',
    'plugins: ["d\\0.py"]\ngraph: [{op: readers.file, file_root: d, out: [x, y]}]',
    'vars: {a: "d\\0"}\ngraph: [{op: readers.file, file_root: "${a}", out: [x, y]}]',
    'write: {writer: tfrecord, path: "d\\0"}\ngraph: [{op: readers.file, file_root: d, out: [x, y]}]',
]


@pytest.mark.parametrize("text", PATHS)
def test_zero_characters_in_paths_are_problems_of_the_spec(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(f"version: 1\n{text}\noutputs: {{x: x}}\n")
    with pytest.raises(SpecError, match=r"t\.yaml:2:\d+: 'd\\x00(\.py)?' contains a zero character"):
        load_spec(tmp_path / "t.yaml")


def test_notes(tmp_path: Path) -> None:
    step = "{op: example.turn, in: images, turn: 3, hint: 2, count: 1, out: images}"
    built = load(f"version: 1\ngraph: [{MAKE}, {step}]\noutputs: [images]", tmp_path)
    assert node(built.graph, "example.turn").op.angle == 3.0  # type: ignore[attr-defined]
    assert [str(n).partition("t.yaml:")[2] for n in built.notes] == [
        "2:81: step 2 (example.turn): argument 'turn' is deprecated; use 'angle'",
        "2:90: step 2 (example.turn): argument 'hint' has no effect: nothing needs it",
    ]


# -- conditionals -----------------------------------------------------------------------------------------------------


def test_conditionals_merge_what_branches_rebind(tmp_path: Path) -> None:
    steps = f"""  - {MAKE}
  - if: $flag
    then:
      - {{op: example.turn, in: images, count: 1, out: images}}
      - {{op: example.turn, in: images, count: 2, out: new}}
    else:
      - {{op: example.turn, in: images, count: 3, out: new}}
"""
    graph = graph_of(steps, "[images, new]", tmp_path)
    merges = [n for n in graph.nodes if isinstance(n.op, Merge)]
    assert len(merges) == 2
    images, new = (graph.node(graph.outputs[k]) for k in ("images", "new"))
    then, otherwise = (graph.node(e) for e in images.inputs)
    assert then.op.count == 1  # type: ignore[attr-defined]
    assert isinstance(otherwise.op, Split)
    assert [graph.node(e).op.count for e in new.inputs] == [2, 3]  # type: ignore[attr-defined]


def test_nested_conditionals(tmp_path: Path) -> None:
    steps = f"""  - {MAKE}
  - if: $flag
    then:
      - if: "flag and not flag"
        then: [{{op: example.turn, in: images, count: 1, out: images}}]
    else:
      - {{op: example.make, out: [images, _]}}
"""
    graph = graph_of(steps, "[images]", tmp_path)
    scopes = {n.name: len(n.scope) for n in graph.nodes}
    assert scopes["example.turn"] == 2
    assert scopes["example.make_2"] == 1
    assert graph.node(graph.outputs["images"]).scope == ()


def test_what_one_branch_defines_is_unusable_after(tmp_path: Path) -> None:
    steps = """  - if: $flag
    then: [{op: example.turn, in: images, count: 1, out: extra}]
  - {op: example.turn, in: extra, count: 1, out: images}
"""
    (line,) = graph_errors(steps, tmp_path)
    assert line == (
        "6:28: step 3 (example.turn): 'extra' is defined only in the `then` branch of step 2 (if); "
        "define it also in `else`, or before the conditional"
    )


def test_branches_of_different_types(tmp_path: Path) -> None:
    steps = """  - if: $flag
    then: [{op: example.turn, in: images, count: 1, dtype: FLOAT, out: images}]
"""
    (line,) = graph_errors(steps, tmp_path)
    assert line.startswith("4:5: step 2 (if): 'images': the branches of a conditional give different types")


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("{if: $flag}", "needs `then:`"),
        ("{if: 3, then: []}", "`if` must be $name or an expression"),
        ("{if: $flag, then: {}}", "`then` must be a list of steps"),
        ("{if: $flag, then: [], elif: []}", "there is no key 'elif'"),
        ("{if: $flg, then: []}", "there is no batch 'flg'; did you mean flag?"),
        ("{if: flag >, then: []}", "is not an expression"),
        (
            "{if: $flag, then: [{op: example.turn, in: images, out: x}]}",
            "step 2, then step 1 (example.turn): needs argument",
        ),
        ("{if: $flag, then: [], else: [3]}", "step 2, else step 1: a step is a mapping"),
    ],
)
def test_wrong_conditionals(step: str, reason: str, tmp_path: Path) -> None:
    (line,) = graph_errors(f"  - {step}", tmp_path)
    assert reason in line


# -- everything wrong at once -----------------------------------------------------------------------------------------


def test_all_errors_at_once_without_noise(tmp_path: Path) -> None:
    text = """\
version: 2
name: my job
pipeline: {batch_size: 0, num_thread: 3, device: tpu, seed: yes}
graph:
  - {op: example.make, out: [images, flag]}
  - {op: example.trun, in: images, whatever: $flag, out: turned}
  - {op: example.turn, in: turned, count: one, angel: 3, out: turned}
  - {op: example.turn, in: imags, count: 1, size: [1, 0], angle: $flg, out: other}
  - {op: example.turn, in: [images, images], count: 1, device: mixed, out: [a, a]}
  - {op: expr, expr: "turned + unknown", out: sum}
outputs: {x: other, y: sum, z: nothing}
write: {writer: tfrecrd, shard: {samples: many}, fields: {x: {encode: jpg}, q: {}}}
on_error: {policy: ignore, max_errors: 200%}
extra: 1
"""
    lines = [re.sub(r"(known: )array_record, .*|( or example.*)", r"\1...", line) for line in errors(text, tmp_path)]
    assert lines == [
        "1:10: version must be 1, got 2",
        "2:7: name must be letters, digits, '.', '_' and '-', got 'my job'",
        "3:24: pipeline: batch_size must be an integer from 1 to 1048576, got 0",
        "3:27: pipeline: there is no key 'num_thread'; did you mean num_threads? (known: num_threads, "
        "prefetch_queue_depth, batch_size, device, seed, rng, parity, batching, isolation, decode_timeout, "
        "gpu_timeout, memory, upload, remember)",
        "3:50: pipeline: device must be auto, cpu, gpu, gpu:N, gpu:N,N, gpu:all or null, got 'tpu'",
        '3:61: yes is a switch in YAML 1.1 and text in YAML 1.2; write true, or quote it ("yes") if text is meant',
        "6:10: step 2 (example.trun): there is no operator 'example.trun'; did you mean example.turn...",
        "7:43: step 3 (example.turn): argument 'count': needs an integer, got 'one'",
        "7:48: step 3 (example.turn): has no argument 'angel'; did you mean angle?",
        "8:28: step 4 (example.turn): there is no batch 'imags'; did you mean images?",
        "8:51: step 4 (example.turn): argument 'size': must be at least 1, got 0",
        "8:66: step 4 (example.turn): there is no batch 'flg'; did you mean flag?",
        "9:5: step 5 (example.turn): cannot run on mixed; it has kernels for cpu, gpu",
        "9:80: step 5 (example.turn): `out` names 'a' twice; every output needs a name of its own (or _)",
        "10:22: step 6 (expr): there is no batch 'unknown'; known here: images, flag, turned, other, a",
        "11:32: outputs: z: there is no batch 'nothing'; known here: images, flag, turned, other, a, sum",
        "12:8: write: needs `path:`, where the shards go",
        "12:17: write: there is no writer 'tfrecrd'; did you mean tfrecord or recordio? (known: ...",
        "12:43: write.shard: samples must be an integer of at least 1, got 'many'",
        "12:71: write.fields.x: encode must be auto, raw, npy, keep, text, jpeg, png, webp, avif, flac or wav, "
        "got 'jpg'; write jpeg",
        "12:77: write.fields.q: there is no output 'q'; outputs: x, y, z",
        "13:20: on_error: policy must be fail, skip or replace, got 'ignore'; write skip",
        "13:40: on_error: max_errors must be a count (10) or a share (0.1%), got '200%'",
        "14:1: there is no key 'extra' "
        "(known: version, name, vars, plugins, pipeline, graph, outputs, write, on_error)",
    ]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("3", "a step is a mapping with `op:` or `if:`, got 3"),
        ("{in: images, out: x}", "step 2: needs `op:`"),
        ("{op: 5, out: x}", "op must be an operator's name, got 5"),
        ("{op: example.turn, in: images, count: 1}", "needs `out:`"),
        ("{op: example.turn, in: images, count: 1, out: [a, b]}", "has 1 output, but `out` names 2"),
        ("{op: example.make, out: a}", "has 2 outputs, but `out` names 1 (write _ for"),
        ("{op: example.turn, out: a, count: 1}", "takes 1 input, got 0"),
        ("{op: example.turn, in: $images, count: 1, out: a}", "takes names without $: write images"),
        ("{op: example.turn, in: images, count: 1, out: lambda}", "is a Python keyword"),
        ("{op: example.turn, in: images, count: 1, out: a b}", "must be a name"),
        ("{op: example.turn, in: images, count: 1, out: {a: b}}", "`out` must be a name"),
        ("{op: example.turn, in: images, count: 1, name: [x], out: a}", "name must be text, got a list"),
        ("{op: example.turn, in: images, count: 1, seed: -2, out: a}", "seed must be an integer"),
        ("{op: example.turn, in: images, count: 1, device: gpu:1, out: a}", "device must be auto, cpu, mixed or gpu"),
        ("{op: example.turn, in: images, count: $flag, out: a}", "'count' must be a constant"),
        ("{op: example.turn, in: images, count: 1, size: [$flag, 3], out: a}", "$flag is inside a list"),
        ("{op: example.turn, in: images, count: 1, title: $1, out: a}", "'$1' is not the name of a batch; write $$"),
        ("{op: example.turn, in: images, count: 1, angle: 500, out: a}", "'angle': must be at most 360, got 500"),
        ("{op: example.turn, in: images, count: 1, size: [1, 2, 3], out: a}", "'size': needs 2 values, got 3"),
        ("{op: example.turn, in: images, count: 1, dtype: FLOAT99, out: a}", "'dtype': 'FLOAT99' is not a data type"),
        ("{op: example.turn, in: images, count: null, out: a}", "'count': needs an integer, got nothing"),
        ("{op: example.turn, in: images, count: 1, fill: 3, out: a}", "fill needs an angle"),
        ("{op: example.turn, in: flag, count: 1, out: a}", "takes images, got numbers"),
        ("{op: python_function, in: images, out: a}", "operators of its own in `plugins:`"),
        ("{op: expr, expr: images +, out: a}", "is not an expression"),
        ("{op: expr, expr: 2 * 3, out: a}", "names no batch"),
        ("{op: expr, out: a}", "needs argument 'expr'"),
        ("{op: expr, expr: [1], out: a}", "expr must be text, got a list"),
        ("{op: expr, expr: images, scale: 2, out: a}", "has no argument 'scale'"),
        ("{op: expr, expr: images, in: flag, out: a}", "remove `in:`"),
        ("{op: expr, expr: flag + flag, out: a}", "no such operation on bool"),
        ("{op: _conditional.merge, in: [images, images], out: a}", "there is no operator '_conditional.merge'"),
    ],
)  # fmt: skip
def test_wrong_steps(step: str, reason: str, tmp_path: Path) -> None:
    (line,) = graph_errors(f"  - {step}", tmp_path)
    assert line.startswith("4:")
    assert reason in line


def test_a_wrong_name_is_told_beside_its_wrong_value(tmp_path: Path) -> None:
    value, name = sorted(
        graph_errors('  - {op: example.turn, in: images, count: 1, angel: "${no}", out: a}', tmp_path)
    )[::-1]
    assert "there is no variable 'no'" in value
    assert "has no argument 'angel'; did you mean angle?" in name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1, 2]", "is not a spec: a spec is a mapping"),
        ("{a: 1}", "is not a spec: it has none of the keys version"),
        ("{version: 1, graph: [], outputs: [a]}", "graph must be a list of steps, got none"),
        ("{version: 1, graph: 3, outputs: [images]}", "graph must be a list of steps, got 3"),
        (f"{{version: 1, graph: [{MAKE}]}}", "needs `outputs:`"),
        (f"{{graph: [{MAKE}], outputs: [images]}}", "needs `version: 1`"),
        (f"{{version: true, graph: [{MAKE}], outputs: [images]}}", "version must be 1, got True"),
        (f"{{version: 1, graph: [{MAKE}], outputs: []}}", "outputs: must be a mapping"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images, images]}}", "'images' is listed twice"),
        (f"{{version: 1, graph: [{MAKE}], outputs: {{../x: images}}}}", "'../x' is not a valid name for an output"),
        (f"{{version: 1, graph: [{MAKE}], outputs: {{x: $images}}}}", "takes names without $: write images"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images], pipeline: 3}}", "pipeline must be a mapping, got 3"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images], vars: [3]}}", "vars must be a mapping"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images], vars: {{a b: 3}}}}", "is not a valid name for a variable"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images], plugins: my.py}}", "plugins must be a list"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images], plugins: [os]}}", "a plugin is a Python file"),
        (f"{{version: 1, graph: [{MAKE}], outputs: [images], plugins: [no.py]}}", "there is no plugin"),
    ],
)
def test_wrong_sections(text: str, reason: str, tmp_path: Path) -> None:
    assert any(reason in line for line in errors(text, tmp_path))


def test_stages_that_cannot_be(tmp_path: Path) -> None:
    steps = """  - {op: random.uniform, device: gpu, out: drawn}
  - {op: expr, expr: "drawn * 2", device: gpu, out: angles}
  - {op: example.turn, in: images, count: 1, angle: $angles, out: images}
"""
    steps += "  - {op: example.turn, in: images, count: 1, angle: $angles, out: images}\n"
    lines = graph_errors(steps, tmp_path)
    assert len(lines) == 2
    assert lines[0].startswith("6:5: step 4 (example.turn): argument 'angle' comes from the GPU")
    assert lines[1].startswith("7:5: step 5 (example.turn): argument 'angle' comes from the GPU")


# -- variables and --set ----------------------------------------------------------------------------------------------


def with_vars(variables: str, title: str) -> str:
    step = f"{{op: example.turn, in: images, count: 1, title: {title}, out: turned}}"
    return f"version: 1\nvars: {variables}\ngraph: [{MAKE}, {step}]\noutputs: [turned]\n"


def title_of(variables: str, title: str, tmp_path: Path, **overrides: Any) -> str:
    built = load(with_vars(variables, title), tmp_path, **overrides)
    return node(built.graph, "example.turn").op.title  # type: ignore[attr-defined, no-any-return]


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DALI_RUN_TESTING", "here")
    assert title_of("{a: x}", '"<${a}>"', tmp_path) == "<x>"
    assert title_of('{a: x, b: "${a}${a}"}', '"${b}"', tmp_path) == "xx"
    assert title_of("{n: 3, t: true, f: 0.5}", '"${n} ${t} ${f}"', tmp_path) == "3 true 0.5"
    assert title_of("{}", '"${env:DALI_RUN_TESTING}"', tmp_path) == "here"
    assert title_of("{}", '"$${a} costs 5$"', tmp_path) == "${a} costs 5$"
    assert title_of("{a: 'yes'}", "'${a}'", tmp_path) == "yes"


@pytest.mark.parametrize(
    ("variables", "title", "reason"),
    [
        ("{data: x}", '"${dta}"', "there is no variable 'dta'; did you mean data?"),
        ("{}", '"${dta}"', "`vars:` defines none"),
        ('{a: "${b}", b: "${a}"}', "x", "in a circle: a -> b -> a"),
        ("{a: [1]}", '"x${a}"', "is a list and cannot be inserted into text"),
        ("{}", '"${env:DALI_RUN_NOT_SET}"', "is not set"),
        ("{a: x}", '"${a"', "without closing it"),
        ("{a: yes}", '"${a}"', "is a switch"),
        ("{a: 3}", '"${a}"', "argument 'title': needs a text, got 3"),
    ],
)
def test_wrong_variables(variables: str, title: str, reason: str, tmp_path: Path) -> None:
    (line,) = errors(with_vars(variables, title), tmp_path)
    assert reason in line


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ('"${{v{0}}}${{v{0}}}"', "longer than"),
        ('["${{v{0}}}", "${{v{0}}}"]', "variables expand to more than 50000 values"),
        ('["${{v{0}}}"]', "or 100 levels"),
        ('"${{v{0}}}"', "over more than 100 steps"),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_variables_cannot_explode(template: str, reason: str, backwards: bool, tmp_path: Path) -> None:
    defined = ["v0: xxxx", *(f"v{i}: {template.format(i - 1)}" for i in range(1, 300))]
    text = with_vars(f"{{{', '.join(defined[::-1] if backwards else defined)}}}", "x")
    if reason == "over more than 100 steps" and not backwards:
        load(text, tmp_path)  # each is known when the next one is read
        return
    assert any(reason in line or "over more than 100 steps" in line for line in errors(text, tmp_path))


def test_overrides(tmp_path: Path) -> None:
    built = load(VALID, tmp_path, root="/mnt/x y", times="5", pipeline__batch_size="16", pipeline__seed=3,
                 write__shard__samples="7", write__path="p", name="other", on_error__policy="fail")  # fmt: skip
    spec = built.spec
    assert (spec.pipeline.batch_size, spec.pipeline.seed, spec.name, spec.on_error.policy) == (16, 3, "other", "fail")
    assert spec.write is not None
    assert (spec.write.path, spec.write.shard_samples) == ("p", 7)
    assert node(built.graph, "example.turn").op.count == 5  # type: ignore[attr-defined]
    assert title_of("{a: 1}", '"<${a}>"', tmp_path, a="*.jpg: [%d") == "<*.jpg: [%d>"
    assert load(VALID, tmp_path, size="[9, 8]").spec.vars["size"] == [9, 8]
    assert load(f"version: 1\ngraph: [{MAKE}]\noutputs: [images]", tmp_path, pipeline__seed="9").spec.pipeline.seed == 9


def test_overrides_of_steps(tmp_path: Path) -> None:
    text = VALID.replace("- {op: example.turn, in: images, count: 1", "- {op: example.turn, name: inner, in: images")
    assert "inner" in text
    changes = {"graph.inner.count": 5, "graph.inner.size": '[3, "${times}"]', "graph.example.make.name": "Maker"}
    graph = load(text, tmp_path, **changes).graph
    assert (node(graph, "inner").op.count, node(graph, "inner").op.size) == (5, (3, 2))  # type: ignore[attr-defined]
    assert node(graph, "example.turn").op.count == 2  # type: ignore[attr-defined]
    assert node(graph, "Maker")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("roof", "x", "--set roof:1:1: the spec has no variable or section named 'roof'; did you mean root?"),
        ("pipeline.batch", "3", "did you mean pipeline.batching or pipeline.batch_size"),
        ("pipeline.batch_size", "many", "--set pipeline.batch_size:1:1: pipeline: batch_size must be an integer"),
        ("pipeline.batch_size.x", "3", "the spec has no variable"),
        ("graph.1", "3", "the spec has no variable"),
        ("vars.new", "3", "the spec has no variable"),
        ("graph.example.turn.count", "3", "2 steps match 'example.turn': give the intended one a unique `name:`"),
        ("graph.example.tur.count", "3", "there is no step 'example.tur' in the graph; did you mean example.turn?"),
        ("graph.Source.counts", "3", "--set graph.Source.counts:1:1: step 1 (example.make)"),
        ("times", "yes", "--set times:1:1: yes is a switch"),
        ("times", "[1, 2", "--set times:2:1: is not valid YAML"),
    ],
)
def test_wrong_overrides(key: str, value: str, reason: str, tmp_path: Path) -> None:
    lines = errors(VALID, tmp_path, **{key: value})
    assert len(lines) == 1
    assert reason in lines[0]


# -- writing ----------------------------------------------------------------------------------------------------------


def writing(write: str, tmp_path: Path) -> list[str]:
    return errors(f"version: 1\ngraph: [{MAKE}]\noutputs: {{i: images, f: flag}}\nwrite: {write}\n", tmp_path)


def test_bytes_that_are_handed_on_may_be_kept(tmp_path: Path) -> None:
    """Of another file, of a plugin's operator, and of parts of samples."""
    (tmp_path / "mine.py").write_text(
        "from dali_run.ops.base import Operator\n"
        "class HandOn(Operator, name='hand_on'):\n"
        "    def infer(self, *specs): return specs[0]\n"
        "    def cpu(self, ctx, data): return data\n"
    )
    steps = (
        "- {op: readers.file, file_root: ., out: [x, label]}",
        "- {op: get_property, in: x, key: source_info, out: path}",
        "- {op: io.file.read, in: path, out: read}",
        "- {op: hand_on, in: x, out: handed}",
        "- {op: split_samples, in: x, size: 10, out: part}",
        "- {op: decoders.image, in: x, out: image}",
    )

    def text(field: str) -> str:
        return "\n".join([
            f"version: 1\nplugins: [{tmp_path}/mine.py]\ngraph:", *steps, f"outputs: {{f: {field}}}",
            "write: {writer: tfrecord, path: o, fields: {f: {encode: keep}}}\n",
        ])  # fmt: skip

    for field in ("x", "read", "handed", "part"):
        (tmp_path / "spec.yaml").write_text(text(field))
        load_spec(tmp_path / "spec.yaml")
    (line,) = errors(text("image"), tmp_path)
    assert "encode: auto, with extension:" in line


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        ("{path: x}", "needs `writer:`"),
        ("{writer: 3, path: x}", "writer must be the name of a format"),
        ("{writer: tfrecord, path: 3}", "path must be text, got 3"),
        ("{writer: tfrecord, path: x, indx: 3}", "writer tfrecord has no option 'indx'"),
        ("{writer: tfrecord, path: x, fields: {i: {encode: keep}}}", "keep writes the bytes that were read"),
        ("{writer: tfrecord, path: x, fields: {i: {encode: raw, quality: 3}}}", "quality has no effect"),
        ("{writer: tfrecord, path: x, fields: {i: {encode: raw, speed: 3}}}", "there is no key 'speed'"),
        ("{writer: tfrecord, path: x, fields: {i: 3}}", "i must be a mapping, got 3"),
        ("{writer: tfrecord, path: x, shard: {bytes: 1 parsec}}", "must be a number of bytes such as"),
    ],
)  # fmt: skip
def test_wrong_writing(write: str, reason: str, tmp_path: Path) -> None:
    (line,) = writing(write, tmp_path)
    assert line.startswith("4:")
    assert reason in line


def test_every_output_is_written_by_default(tmp_path: Path) -> None:
    text = f"version: 1\ngraph: [{MAKE}]\noutputs: {{i: images, f: flag}}\nwrite: {{writer: tfrecord, path: x}}\n"
    built = load(text, tmp_path)
    assert built.fields is not None
    assert set(built.fields) == set(built.graph.outputs) == {"i", "f"}
    assert built.writer is not None
    assert built.writer.name == "tfrecord"


def test_encodings_become_nodes(tmp_path: Path) -> None:
    text = (
        f"version: 1\ngraph: [{MAKE}]\noutputs: {{i: images, j: images}}\n"
        "write: {writer: tfrecord, path: x, fields: {i: {encode: jpeg, quality: 77}, j: {encode: raw}}}\n"
    )
    built = load(text, tmp_path)
    encoded = built.graph.node(built.graph.outputs["i"])
    assert (encoded.op.name, encoded.op.format, encoded.op.quality) == ("encoders.image", "jpeg", 77)  # type: ignore[attr-defined]
    assert encoded.inputs == (Edge(0),)
    assert encoded.where.endswith("t.yaml:4:45: write.fields.i")
    assert built.graph.outputs["j"] == Edge(0)
    wrong = text.replace("quality: 77", "quality: 101").replace("encode: raw", "encode: png, sped: 3")
    lines = errors(wrong, tmp_path)
    assert "quality must be an integer from 1 to 100" in lines[0]
    assert "write.fields.j: has no argument 'sped'" in lines[1]


# -- plugins ----------------------------------------------------------------------------------------------------------

PLUGIN = """
from typing import Any
from dali_run.ops.base import Operator

class Mine(Operator, name="example.{name}"):
    def cpu(self, ctx: Any, x: Any) -> Any:
        return x

(__import__("pathlib").Path(__file__).parent / "ran").write_text("yes")
"""


def test_plugins_are_found_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN.replace("{name}", "mine"))
    text = f"version: 1\nplugins: [mine.py]\ngraph: [{MAKE}, {{op: example.mine, in: images, out: x}}]\noutputs: [x]\n"
    assert [n.op.name for n in load(text, tmp_path).graph.nodes] == ["example.make", "example.mine"]
    load(text, tmp_path)  # a second time, the operators are there already


def test_plugins_of_wrong_specs_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(PLUGIN.replace("{name}", "later"))
    text = (
        f"version: 3\nplugins: [later.py]\ngraph: [{MAKE}, {{op: example.later, in: images, out: x}}]\noutputs: [x]\n"
    )
    (line,) = errors(text, tmp_path)  # and nothing about operators that the plugin may hold
    assert "version must be 1" in line
    assert not (tmp_path / "ran").exists()


def test_plugins_that_raise(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    text = f"version: 1\nplugins: [bad.py]\ngraph: [{MAKE}]\noutputs: [images]\n"
    (line,) = errors(text, tmp_path)
    assert line.startswith("2:11: plugin")
    assert "ZeroDivisionError: division by zero" in line


def test_installed_plugins_are_asked_for_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    from dali_run.pipelines import plugins as registry

    def fail() -> None:
        raise RuntimeError("broken package")

    class Point:
        name, value = "theirs", "their.ops"
        load = staticmethod(fail)

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Point] if group == "dali_run.plugins" else []
    )
    registry.load_installed_plugins.cache_clear()
    try:
        (line,) = graph_errors("  - {op: their.op, in: images, out: x}", tmp_path)
    finally:
        registry.load_installed_plugins.cache_clear()
    assert "there is no operator 'their.op'" in line
    assert "plugin theirs (their.ops) cannot be imported: RuntimeError: broken package" in line


def test_errors_are_spec_errors(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path / "missing.yaml")
    with pytest.raises(SpecError, match="directory"):
        load_spec(os.fspath(tmp_path))


def test_dtype_names(tmp_path: Path) -> None:
    for name, dtype in (("FLOAT16", DALIDataType.FLOAT16), ("float32", DALIDataType.FLOAT)):
        steps = f"  - {MAKE}\n  - {{op: example.turn, in: images, count: 1, dtype: {name}, out: x}}"
        assert node(graph_of(steps, "[x]", tmp_path), "example.turn").op.dtype is dtype  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["external_source", "experimental.inputs.video"])
def test_jobs_have_no_program_that_feeds_them(name: str, tmp_path: Path) -> None:
    assert issubclass(find_operator(name), ProgramInput)
    text = f"version: 1\ngraph:\n  - {{op: {name}, name: x, out: fed}}\noutputs: {{x: fed}}\n"
    if name.endswith("video"):
        text = text.replace("name: x", "name: x, sequence_length: 2")
    load(text, tmp_path)
    with pytest.raises(SpecError, match=r"3:.* is fed by a Python program"):
        load(text + "write: {writer: numpy, path: out, fields: {x: {}}}\n", tmp_path)
