"""The schema: valid itself, takes every spec that builds, and underlines what does not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dali_run.ops.base import operators, parameters
from dali_run.ops.errors import SpecError
from dali_run.pipelines.problems import Problems
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.spec.expressions import EXPRESSIONS
from dali_run.pipelines.spec.json_schema import DIALECT, spec_schema
from dali_run.pipelines.spec.text import read
from tests.kit.jobs.hostile_specs import mutated

from ...kit.specs import VALID

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(schema)))


def problems(validator: jsonschema.Draft202012Validator, data: Any) -> list[str]:
    return [e.message for e in validator.iter_errors(data)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_configs_are_valid(config: Path, validator: jsonschema.Draft202012Validator) -> None:
    assert problems(validator, yaml.safe_load(config.read_text())) == []


def test_the_example_is_valid(validator: jsonschema.Draft202012Validator) -> None:
    assert problems(validator, yaml.safe_load(VALID)) == []


def test_examples_of_operators_are_valid(validator: jsonschema.Draft202012Validator) -> None:
    for op in operators().values():
        if op.example:
            data = {"version": 1, "graph": [yaml.safe_load(op.example)], "outputs": ["x"]}
            assert problems(validator, data) == [], op.name


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": "example.trun", "in": "images", "out": "x"},
        {"op": "example.turn", "in": "images", "out": "x"},
        {"op": "example.turn", "in": "images", "count": "one", "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1, "angel": 1, "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1, "angle": 400, "out": "x"},
        {"op": "example.turn", "in": "images", "count": "$flag", "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1, "size": [1, 2, 3], "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1, "size": [0, 2], "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1, "dtype": "FLOAT9", "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1, "device": "mixed", "out": "x"},
        {"op": "example.turn", "count": 1, "out": "x"},
        {"op": "example.turn", "in": "images", "count": 1},
        {"op": "expr", "in": "images", "expr": "images", "out": "x"},
        {"if": "$flag"},
        {"if": "$flag", "then": [{"op": "nothing", "out": "x"}]},
        {"then": []},
        3,
    ],
)
def test_wrong_steps_are_underlined(wrong: Any, validator: jsonschema.Draft202012Validator) -> None:
    data = yaml.safe_load(VALID)
    data["graph"].append(wrong)
    assert problems(validator, data) != []


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        ("version", 2), ("pipeline", {"batch_size": 0}), ("pipeline", {"threads": 1}), ("pipeline", {"device": "tpu"}),
        ("outputs", {}), ("write", {"writer": "tfrecrd", "path": "x"}), ("write", {"writer": "tfrecord"}),
        ("write", {"writer": "tfrecord", "path": "x", "nothing": 1}), ("on_error", {"policy": "ignore"}),
        ("write", {"writer": "tfrecord", "path": "x", "fields": {"half": {"encode": "jpg"}}}), ("more", 1),
    ],
)  # fmt: skip
def test_wrong_sections_are_underlined(section: str, wrong: Any, validator: jsonschema.Draft202012Validator) -> None:
    assert problems(validator, {**yaml.safe_load(VALID), section: wrong}) != []


def test_what_builds_validates(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    rng = random.Random(3)
    file = tmp_path / "t.yaml"
    built = 0
    for _ in range(200):
        content = mutated(VALID, rng)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        try:
            load_spec(file)
        except SpecError:
            continue
        built += 1
        data = read(file, Problems())
        assert data is not None
        assert problems(validator, data.to_python()) == [], content
    assert built > 10


def test_one_operator() -> None:
    defs = spec_schema()["$defs"]
    schema = {"$schema": DIALECT, **defs["op.example.turn"], "$defs": defs}
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"op": "example.turn", "in": "a", "out": "b", "count": "${n}", "angle": "$angles"})
    assert not validator.is_valid({"op": "example.turn", "in": "a", "out": "b", "count": 1.5})
    assert schema["properties"]["size"]["default"] == [8, 8]
    assert schema["properties"]["dtype"]["default"] == "UINT8"


def test_every_operator_has_a_schema_with_every_argument() -> None:
    defs = spec_schema()["$defs"]
    for name, op in operators().items():
        if not name.startswith("_") and name not in EXPRESSIONS:
            step = defs[f"op.{name}"]
            idle = {n for n, p in parameters(op).items() if p.arg.ignored}  # taken, but not offered
            assert set(parameters(op)) - idle <= set(step["properties"]), name
            assert {f"^{n}$" for n in idle} == set(step.get("patternProperties", ())), name
            assert not idle & set(step["properties"]), name
