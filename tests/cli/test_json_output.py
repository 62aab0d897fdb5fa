"""Commands print with --json exactly the fields of their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from dali_run.cli import main as cli
from dali_run.pipelines.tools.json_output.outputs import OUTPUTS
from dali_run.pipelines.tools.json_output.schema import output_schema
from dali_run.pipelines.tools.sample_data import make_sample_data
from docs.json_page import json_page

from ..kit.jobs.small_spec import small_spec
from ..kit.measured_here import measure_here


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sample data, a spec, and its finished output with one reject."""
    folder = tmp_path_factory.mktemp("json")
    make_sample_data(folder / "data", 8, 0)
    (folder / "data" / "train" / "shapes" / "bad.jpg").write_text("no picture")
    np.save(folder / "hashes.npy", np.array([3, 1 << 40, 1], np.uint64))
    (folder / "spec.yaml").write_text(small_spec(folder / "data" / "train", folder / "out"))
    assert cli.main(["run", str(folder / "spec.yaml"), "--quiet"]) == 3
    (folder / "program.py").write_text("import nvidia.dali.fn as fn\nfn.nothing(1)\n")
    (folder / "sound.yaml").write_text(small_spec(folder / "data" / "val", folder / "sound"))
    assert cli.main(["run", str(folder / "sound.yaml"), "--quiet"]) == 0
    bench = ["bench", str(folder / "sound.yaml"), "--sweep", "batch_size=2", *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        measure_here(patch)
        assert cli.main([*bench, "--report", str(folder / "before.json")]) == 0
    return folder


def strict(schema: Any) -> Any:
    """The schema, under which no object has fields that are not named."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**{key: strict(one) for key, one in schema.items()}, **closed}


def check(name: str, printed: str) -> Any:
    """The printed JSON, once it has proved to be as the schema says, with nothing besides."""
    found = json.loads(printed)
    validator = jsonschema.Draft202012Validator(strict(output_schema(name)))
    wrong = next(validator.iter_errors(found), None)
    while wrong is not None and wrong.context:  # of alternatives, what the first one, which is the rich one, lacks
        wrong = wrong.context[0]
    assert wrong is None, f"{wrong.json_path}: {wrong.message[:500]}"
    return found


@pytest.mark.parametrize("name", OUTPUTS)
def test_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(output_schema(name))
    assert f"| `{name}` |" in json_page()


QUICK = ("--seconds", "0.1", "--repeats", "1", "--no-limits")
CASES: list[tuple[str, list[str], int | None]] = [
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
    ("dedupe", ["dedupe", "{}/hashes.npy", "--out", "{}/keep.txt"], 0),
    ("configs", ["configs"], 0),
    ("doctor", ["doctor"], 0),
    ("port", ["port", "{}/program.py"], 1),
    ("sample-data", ["sample-data", "{}/data", "--count", "8"], 0),
    ("top", ["top"], 0),
    ("serve-model", ["serve-model", "quickstart", "{}/models", "--set", "pipeline.device=cpu", "--force"], 0),
    ("bench", ["bench", "{}/spec.yaml", *QUICK], 0),
    ("run", ["run", "{}/spec.yaml", "--fresh", "--on", "processes:2", "--set", "write.path={}/by-workers"], 3),
    ("retry-failed", ["retry-failed", "{}/sound"], 0),
    ("retry-failed", ["retry-failed", "{}/none"], 2),
    ("plan", ["plan", "{}/spec.yaml", "--nodes", "2", "--gpus", "1", "--seconds", "0.02"], 0),
    ("plan", ["plan", "{}/spec.yaml", "--device", "null"], 0),
    ("stats", ["stats", "{}/data/audio", "--limit", "2"], 0),
    ("configs-name", ["configs", "quickstart"], 0),
    ("sample-data", ["sample-data", "{}/more", "--count", "8"], 0),
    ("bench", ["bench", "{}/spec.yaml", "--sweep", "batch_size=2,4", *QUICK, "--baseline", "{}/before.json"], None),
    ("bench", ["bench", "{}/spec.yaml", *QUICK, "--peer", "dali", "--peer-python", "dali=/bin/false"], None),
]
"""The schema, the command, its exit code (None: any)."""


@pytest.mark.parametrize(("name", "arguments", "code"), CASES)
def test_output_is_what_its_schema_says(
    name: str, arguments: list[str], code: int | None, place: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_here(monkeypatch)
    command = [a.format(place) for a in arguments] + ["--json"]
    found_code = cli.main(command)
    out = capfd.readouterr().out
    assert code in (found_code, None), out[:500]
    check(name, out)


def test_tune(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """With speeds that are given: measuring takes long."""
    from dali_run.pipelines.bench import tune

    monkeypatch.setattr(tune, "_measured", lambda _base, point, _repeats: float(point["batch_size"]))
    assert cli.main(["tune", str(place / "spec.yaml"), "-o", str(place / "tuned.yaml"), "--json"]) == 0
    check("tune", capfd.readouterr().out)


def test_warm(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """As if all were compiled: compiling takes long."""
    from dali_run.pipelines.job import warm

    monkeypatch.setattr(warm, "missing", lambda _loops: [])
    assert cli.main(["warm", str(place / "spec.yaml"), "--device", "cpu", "--json"]) == 0
    check("warm", capfd.readouterr().out)


def test_parts_that_are_merged(place: Path, capfd: Any) -> None:
    spec = str(place / "spec.yaml")
    for i in range(2):
        command = ["run", spec, "--set", f"write.path={place}/parts", "--num-shards", "2", "--shard-id", str(i), "-q"]
        assert cli.main(command) in (0, 3)
    assert cli.main(["merge", str(place / "parts"), "--json"]) == 0
    check("merge", capfd.readouterr().out)


def test_the_report_on_disk(place: Path) -> None:
    found = check("report", (place / "out" / "report.json").read_text())
    assert found["decoders"].keys() == found["decoder_times"].keys()
    assert any(times["busy_seconds"] > 0 for times in found["decoder_times"].values())


def test_the_report_of_a_job_that_is_resumed(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from dali_run.pipelines.job.run import run_job

    spec, moved = (
        place / "spec.yaml",
        {"write.path": str(place / "resumed"), "write.shard.samples": 1, "pipeline.batch_size": 1},
    )

    def stop(progress: Any) -> None:
        if progress.done >= 2:
            raise KeyboardInterrupt

    assert run_job(spec, moved, progress=stop).exit_code == 130
    capfd.readouterr()
    assert cli.main(["run", str(spec), *(f"--set={k}={v}" for k, v in moved.items()), "--json"]) == 3
    assert check("run", capfd.readouterr().out)["report"]["resumed_from"] > 0


def test_the_page_says_what_may_be_missing() -> None:
    assert "| `schema_version` | integer |" in json_page()
    assert "| `resumed_from` | integer; may be missing |" in json_page()


def test_every_command_with_json_is_described() -> None:
    import inspect

    described = {name.split()[0] for name, _ in OUTPUTS.values()}
    with_json = {m.NAME for m in cli.COMMANDS if "json" in inspect.signature(m.command).parameters}
    assert with_json <= described
    assert {name for name, *_ in CASES} | {"tune", "warm", "merge", "report"} == set(OUTPUTS)  # those have own tests
