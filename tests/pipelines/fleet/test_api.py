"""dali_run.run_job: a job as one call, its typed report, and what it raises."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dali_run
from dali_run import JobError, Report, SpecError, run_job

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "thumbs",
    "vars": {"data": "./nowhere", "out": "./nowhere", "size": 8},
    "pipeline": {"batch_size": 4, "num_threads": 2, "device": "cpu"},
    "graph": [
        {"op": "readers.file", "name": "Reader", "file_root": "${data}", "out": ["jpegs", "labels"]},
        {"op": "decoders.image", "in": "jpegs", "out": "images"},
        {"op": "resize", "in": "images", "size": ["${size}", "${size}"], "out": "images"},
    ],
    "outputs": {"image": "images", "label": "labels"},
    "write": {"writer": "numpy", "path": "${out}", "shard": {"samples": 3}},
    "on_error": {"policy": "skip", "max_errors": 2},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for i in range(7):
        folder = tmp_path / "in" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((12, 10, 3), 30 * i, np.uint8)).save(folder / f"{i}.jpg")
    return tmp_path / "in"


def spoil(data: Path, *names: str) -> None:
    for name in names:
        (data / name).write_bytes(b"no picture")


def test_a_job_in_one_call(data: Path, tmp_path: Path) -> None:
    out, seen = str(tmp_path / "out"), []
    report = run_job(SPEC, data=data, out=out, size=6, progress=seen.append)
    assert isinstance(report, Report)
    assert (report.name, report.path, report.exit_code, report.clean, report.ran) == ("thumbs", out, 0, True, True)
    assert (report.read, report.written, report.rejected) == (7, 7, 0)
    assert seen[-1].done == seen[-1].total == 7
    assert {o.name: (o.op, o.runs_on, o.samples) for o in report.operators}["resize"] == ("resize", "cpu", 7)
    assert report.seconds > 0
    assert report.bottleneck
    assert dict(report.data) == json.loads((tmp_path / "out" / "report.json").read_text())
    shards = report.shards()
    assert len([s for s in shards if s.endswith("image.npy")]) == 3
    assert all(Path(s).is_file() for s in shards)
    assert sum(len(np.load(s)) for s in shards if s.endswith("image.npy")) == 7
    assert np.load(next(s for s in shards if s.endswith("image.npy"))).shape == (3, 6, 6, 3)
    assert report.rejects() == []
    assert dataclasses.is_dataclass(report)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.read = 0  # type: ignore[misc]
    again = run_job(SPEC, data=data, out=out, size=6)
    assert (again.ran, again.written, again.exit_code) == (False, 7, 0)


def test_of_a_file_with_values_by_their_path(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(SPEC))
    changes = {"write.path": str(tmp_path / "out"), "pipeline.batch_size": 3}
    report = run_job(file, changes, data=data, limit=5, num_shards=1)
    assert report.read == 5
    assert report.path == str(tmp_path / "out")


def test_rejects_within_the_budget_are_a_result(data: Path, tmp_path: Path) -> None:
    spoil(data, "a/2.jpg")
    report = run_job(SPEC, data=data, out=tmp_path / "out")
    assert (report.exit_code, report.clean, report.written, report.rejected) == (3, False, 6, 1)
    (reject,) = report.rejects()
    assert reject["source"].endswith("a/2.jpg")
    assert reject["operator"] == "decoders.image"


def test_a_failed_job_raises_and_the_same_call_continues_it(data: Path, tmp_path: Path) -> None:
    good = {p: p.read_bytes() for p in data.rglob("*.jpg")}
    spoil(data, *(str(p.relative_to(data)) for p in sorted(good)[4:]))
    with pytest.raises(JobError, match="max_errors"):
        run_job(SPEC, data=data, out=tmp_path / "out")


def test_parts_of_a_job(data: Path, tmp_path: Path) -> None:
    first = run_job(SPEC, data=data, out=tmp_path / "out", num_shards=2, shard_id=0)
    with pytest.raises(JobError, match="no manifest yet"):
        first.manifest()
    second = run_job(SPEC, data=data, out=tmp_path / "out", num_shards=2, shard_id=1)
    assert first.written + second.written == 7
    assert sum(s["samples"] for s in second.manifest()["shards"]) == 7


@pytest.mark.parametrize("as_mapping", [True, False])
def test_by_several_processes(as_mapping: bool, data: Path, tmp_path: Path) -> None:
    alone = run_job(SPEC, data=data, out=tmp_path / "alone")
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(SPEC))
    report = run_job(SPEC if as_mapping else file, data=data, out=tmp_path / "out", on="processes:2")
    assert (report.written, report.clean, report.name) == (7, True, "thumbs")
    assert [Path(s).read_bytes() for s in report.shards()] == [Path(s).read_bytes() for s in alone.shards()]
    with pytest.raises(SpecError, match="leave out num_shards"):
        run_job(SPEC, data=data, out=tmp_path / "out", on="processes:2", num_shards=2)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: s["graph"][2].update(op="resise"), r"^step 3 \(resise\): there is no operator 'resise'"),
        (lambda s: s.pop("write"), "there is no `write:` section"),
        (lambda s: s.update(plugins=["gone.py"]), "there is no plugin .*gone.py"),
    ],
)
def test_what_is_wrong_with_a_mapping_names_no_file(
    change: Callable[[dict[str, Any]], Any], problem: str, tmp_path: Path
) -> None:
    spec = json.loads(json.dumps(SPEC))
    change(spec)
    with pytest.raises(SpecError, match=problem) as caught:
        run_job(spec, out=tmp_path / "out")
    assert "job.json" not in str(caught.value)


def test_interrupted(data: Path, tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="interrupted after"):
        run_job(SPEC, data=data, out=tmp_path / "out", progress=stop)
    report = run_job(SPEC, data=data, out=tmp_path / "out")
    assert sum(s["samples"] for s in report.manifest()["shards"]) == 7


def test_the_report_shows_itself(data: Path, tmp_path: Path) -> None:
    report = run_job(SPEC, {"graph.Reader.name": "<Reader>"}, data=data, out=tmp_path / "out")
    html = report._repr_html_()
    assert "&lt;Reader&gt;" in html
    assert "<Reader>" not in html
    assert "data=" not in repr(report)
    assert "run_job" in dir(dali_run)
