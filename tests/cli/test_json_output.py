"""Commands print with --json exactly the fields of their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dali_run.cli import main as cli
from dali_run.pipelines.tools.json_output import OUTPUTS, as_page, output_schema
from dali_run.pipelines.tools.sample_data import make_sample_data

from ..kit.small_spec import small_spec


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sample data, a spec, and its finished output with one reject."""
    folder = tmp_path_factory.mktemp("json")
    make_sample_data(folder / "data", 8, 0)
    (folder / "data" / "train" / "shapes" / "bad.jpg").write_text("no picture")
    (folder / "spec.yaml").write_text(small_spec(folder / "data" / "train", folder / "out"))
    assert cli.main(["run", str(folder / "spec.yaml"), "--quiet"]) == 3
    (folder / "program.py").write_text("import nvidia.dali.fn as fn\n")
    return folder


@pytest.mark.parametrize("name", OUTPUTS)
def test_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(output_schema(name))
    assert f"| `{name}` |" in as_page()


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("run", ["run", "{}/spec.yaml", "--fresh"], 3),
        ("run", ["run", "{}/none.yaml"], 2),
        ("validate", ["validate", "{}/spec.yaml", "{}/none.yaml"], 2),
        ("plan", ["plan", "{}/spec.yaml"], 0),
        ("init", ["init", "{}/data/val", "-o", "{}/made.yaml", "--force"], 0),
        ("inspect", ["inspect", "{}/spec.yaml", "-n", "2", "--out", "{}/look"], 0),
        ("inspect-data", ["inspect", "{}/data/tfrecord", "-n", "1"], 0),
        ("verify", ["verify", "{}/out"], 0),
        ("retry-failed", ["retry-failed", "{}/out", "--spec", "{}/spec.yaml"], 3),
        ("convert", ["convert", "{}/data/tfrecord", "{}/converted", "--to", "webdataset", "--fresh"], 0),
        ("ops", ["ops"], 0),
        ("ops-name", ["ops", "resize"], 0),
        ("ops-like", ["ops", "--like", "GaussianBlur"], 0),
        ("plan", ["plan", "{}/spec.yaml", "--measure", "--seconds", "0.02"], 0),
        ("stats", ["stats", "{}/data/train", "--limit", "4"], None),
        ("stats", ["stats", "{}/spec.yaml"], 3),
        ("configs", ["configs"], 0),
        ("doctor", ["doctor"], 0),
        ("port", ["port", "{}/program.py"], 0),
        ("sample-data", ["sample-data", "{}/data", "--count", "8"], 0),
        ("top", ["top"], 0),
        ("serve-model", ["serve-model", "quickstart", "{}/models", "--set", "pipeline.device=cpu", "--force"], 0),
        ("bench", ["bench", "{}/spec.yaml", "--seconds", "0.1", "--repeats", "1", "--no-limits"], 0),
    ],
)
def test_output_is_what_its_schema_says(
    name: str, arguments: list[str], code: int | None, place: Path, capfd: Any
) -> None:
    command = [a.format(place) for a in arguments] + ["--json"]
    found_code = cli.main(command)
    out = capfd.readouterr().out
    assert code in (found_code, None), out
    found = json.loads(out)
    jsonschema.validate(found, output_schema(name), cls=jsonschema.Draft202012Validator)


def undeclared(found: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Fields that the schema does not name, though it names others of the same object."""
    if "anyOf" in schema:
        return min((undeclared(found, one, where) for one in schema["anyOf"]), key=len)
    if isinstance(found, list) and "items" in schema:
        return [x for one in found for x in undeclared(one, schema["items"], where + "[]")]
    if not isinstance(found, dict):
        return []
    if isinstance(every := schema.get("additionalProperties"), dict):
        return [x for k, one in found.items() for x in undeclared(one, every, f"{where}.{k}")]
    if "properties" not in schema:
        return []
    known = schema["properties"]
    return [f"{where}.{k}" for k in found if k not in known] + [
        x for k, one in found.items() if k in known for x in undeclared(one, known[k], f"{where}.{k}")
    ]


def test_tune(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """With speeds that are given: measuring takes long."""
    from dali_run.pipelines.bench import tune

    monkeypatch.setattr(tune, "_measured", lambda _base, point, _repeats: float(point["batch_size"]))
    assert cli.main(["tune", str(place / "spec.yaml"), "-o", str(place / "tuned.yaml"), "--json"]) == 0
    jsonschema.validate(json.loads(capfd.readouterr().out), output_schema("tune"))


def test_warm(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """As if all were compiled: compiling takes long."""
    from dali_run.pipelines.job import warm

    monkeypatch.setattr(warm, "missing", lambda _loops: [])
    assert cli.main(["warm", str(place / "spec.yaml"), "--device", "cpu", "--json"]) == 0
    jsonschema.validate(json.loads(capfd.readouterr().out), output_schema("warm"))


def test_parts_that_are_merged(place: Path, capfd: Any) -> None:
    spec = str(place / "spec.yaml")
    for i in range(2):
        command = ["run", spec, "--set", f"write.path={place}/parts", "--num-shards", "2", "--shard-id", str(i), "-q"]
        assert cli.main(command) in (0, 3)
    assert cli.main(["merge", str(place / "parts"), "--json"]) == 0
    jsonschema.validate(json.loads(capfd.readouterr().out), output_schema("merge"))


def test_the_report_on_disk(place: Path) -> None:
    found = json.loads((place / "out" / "report.json").read_text())
    jsonschema.validate(found, output_schema("report"))
    assert not undeclared(found, output_schema("report"))
    assert found["decoders"].keys() == found["decoder_times"].keys()
    assert found["decoder_times"]["cpu"]["busy_seconds"] > 0


def test_every_command_with_json_is_described() -> None:
    import inspect

    described = {name.split()[0] for name, _ in OUTPUTS.values()}
    with_json = {m.NAME for m in cli.COMMANDS if "json" in inspect.signature(m.command).parameters}
    assert with_json <= described
