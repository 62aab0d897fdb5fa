"""`isolation` and `decode_timeout`: in specs, schema and plans; and a crash before a job has begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from PIL import Image
from rich.console import Console

from dali_run.pipelines.job.run import CLEAN, REJECTS, run_job
from dali_run.pipelines.show.terminal import plan_view
from dali_run.pipelines.spec.json_schema import spec_schema
from dali_run.pipelines.tools.intermediates import inspect_spec
from dali_run.pipelines.tools.preview import check_spec, describe_job
from tests.kit import faulty_decoder

SPEC: dict[str, Any] = {
    "version": 1,
    "pipeline": {"batch_size": 2, "num_threads": 1, "device": "cpu"},
    "graph": [
        {"op": "readers.file", "file_root": "data", "out": ["files", "labels"]},
        {"op": "decoders.image", "in": "files", "out": "images"},
    ],
    "outputs": {"images": "images"},
    "write": {"writer": "numpy", "path": "out"},
}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three PNGs, the first of which kills its decoder where decoders obey."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "class"
    folder.mkdir(parents=True)
    for k in range(3):
        Image.new("RGB", (4, 5), (k, 2, 3)).save(folder / f"{k}.png")
    (folder / "0.png").write_bytes(faulty_decoder.faulty((folder / "0.png").read_bytes(), "SIGSEGV"))
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))
    return path


def shown(plan: Any) -> str:
    console = Console(width=200)
    with console.capture() as text:
        console.print(plan_view(plan))
    return text.get()


def test_plans_say_where_images_are_decoded(spec: Path) -> None:
    plan = describe_job(spec)
    assert plan["isolation"] == {"mode": "auto", "timeout": 30.0}
    assert "Decodes images other than JPEG in separate processes, each in at most 30 s of CPU time" in shown(plan)
    plan = describe_job(spec, {"pipeline.isolation": "all", "pipeline.decode_timeout": "2.5"})
    assert plan["isolation"] == {"mode": "all", "timeout": 2.5}
    assert "Decodes all images in separate processes, each in at most 2.5 s of CPU time" in shown(plan)
    assert "in this process" in shown(describe_job(spec, {"pipeline.isolation": "none"}))
    without = SPEC | {"graph": SPEC["graph"][:1], "outputs": {"files": "files"}}
    spec.write_text(json.dumps(without))
    assert describe_job(spec)["isolation"] is None


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("isolation", "both", "isolation must be auto, all or none, got 'both'"),
        ("isolation", True, "isolation must be auto, all or none, got"),
        ("decode_timeout", 0, "decode_timeout must be a number from 0.01 to 86400, got 0"),
        ("decode_timeout", "1h", "decode_timeout must be a number from 0.01 to 86400, got '1h'"),
        ("decode_timeout", True, "decode_timeout must be a number"),
    ],
)
def test_wrong_values_are_refused_by_the_spec_and_its_schema(spec: Path, key: str, value: Any, text: str) -> None:
    wrong = SPEC | {"pipeline": SPEC["pipeline"] | {key: value}}
    spec.write_text(json.dumps(wrong))
    (problem,) = check_spec(spec)["problems"]
    assert text in problem["text"]
    assert not Draft202012Validator(spec_schema()).is_valid(wrong)
    right = SPEC | {"pipeline": SPEC["pipeline"] | {"isolation": "all", "decode_timeout": 0.5}}
    assert Draft202012Validator(spec_schema()).is_valid(right)


def test_a_crash_while_warming_up_costs_a_file_and_is_counted(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two samples are decoded before the job begins."""
    faulty_decoder.install(monkeypatch)
    result = run_job(spec)
    assert result.exit_code == REJECTS
    (row,) = [json.loads(line) for line in Path("out/rejects.jsonl").read_text().splitlines()]
    assert (row["key"], row["code"], row["operator"]) == ("class/0.png", "decoder_crashed", "decoders.image")
    assert row["message"] == "the png decoder crashed (SIGSEGV) on it, again in a process of its own"
    assert result.report["fallbacks"] == {"decoder process replaced: crashed (SIGSEGV)": 4}
    assert result.report["samples"] == {"read": 3, "written": 2, "rejected": 1}
    assert run_job(spec, {"pipeline.isolation": "none"}, fresh=True).exit_code == CLEAN, "nothing obeys here"


def test_inspect_survives_a_crash(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty_decoder.install(monkeypatch)
    found = inspect_spec(spec, None, 3, tmp_path / "seen")
    assert [(r["key"], r["code"]) for r in found["rejects"]] == [("class/0.png", "decoder_crashed")]
