"""`plan` forecasts the size and the output of a job as the job then reads and writes them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from dali_run.cli import main as cli
from dali_run.pipelines.job import forecast as forecasts
from dali_run.pipelines.job.forecast import forecast
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.spec.shipped import shipped
from dali_run.pipelines.tools.sample_data import make_sample_data

SPEC = shipped()["lmdb_to_tfrecord"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast") / "data"
    make_sample_data(folder, 32)
    return folder


def test_samples_shards_and_bytes_are_those_of_the_job(data: Path, tmp_path: Path) -> None:
    given = {"data": str(data / "lmdb"), "out": str(tmp_path / "out"), "write.shard.samples": 7}
    counted = forecast(SPEC, given)
    assert counted["samples_per_second"] is counted["seconds"] is counted["bytes"] is None
    found = forecast(SPEC, given, measure=0.05)
    assert not (tmp_path / "out").exists()
    done = run_job(SPEC, given)
    assert done.exit_code == 0
    shards = json.loads((tmp_path / "out/manifest.json").read_text())["shards"]
    assert counted["samples"] == found["samples"] == done.report["samples"]["read"]
    assert counted["shards"] == found["shards"] == len(shards)
    written = sum(f["bytes"] for s in shards for f in s["files"] if f["name"].endswith(".tfrecord"))
    assert found["bytes"] == pytest.approx(written, rel=0.05)  # less what the container adds
    assert found["seconds"] == pytest.approx(found["samples"] / found["samples_per_second"])


def test_shards_by_bytes_need_a_measurement(data: Path, tmp_path: Path) -> None:
    given = {"data": str(data / "lmdb"), "out": str(tmp_path / "out"), "write.shard.samples": 1000,
             "write.shard.bytes": "200KB"}  # fmt: skip
    assert forecast(SPEC, given)["shards"] is None
    found = forecast(SPEC, given, measure=0.05)
    assert run_job(SPEC, given).exit_code == 0
    shards = json.loads((tmp_path / "out/manifest.json").read_text())["shards"]
    assert abs(found["shards"] - len(shards)) <= 1 + len(shards) // 10


def test_what_is_not_known_is_said_with_its_reason(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = forecast(SPEC, {"data": str(tmp_path / "none")})
    assert missing["samples"] is None
    assert "none" in missing["why"]

    looked = threading.Event()

    def slow(*_: Any) -> int:
        looked.wait(200)
        return 1

    monkeypatch.setattr(forecasts, "_count", slow)
    monkeypatch.setattr(forecasts, "MAX_LISTING_SECONDS", 0.05)
    late = forecast(SPEC, {"data": str(data / "lmdb")})
    looked.set()
    assert (late["samples"], late["why"]) == (None, "not counted in 0.05 s")

    def broken(*_: Any) -> int:
        raise ZeroDivisionError  # a bug is a bug

    monkeypatch.setattr(forecasts, "_count", broken)
    with pytest.raises(ZeroDivisionError):
        forecast(SPEC, {"data": str(data / "lmdb")})


def test_plan_says_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(SPEC), "--set", f"data={data / 'lmdb'}"]
    assert cli.main(arguments) == 0
    assert "Reads 24 samples; writes" in capsys.readouterr().out
    assert cli.main([*arguments, "--measure", "--seconds", "0.05"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "measured for 0.05 s:" in said
    assert "so about" in said
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forecast"]["samples"] == 24
    assert cli.main(["plan", str(SPEC), "--set", "data=no-such"]) == 0  # a plan can be made where the data is not
    assert "Samples: unknown" in capsys.readouterr().out


def test_many_machines_follow_from_one(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(SPEC), "--set", f"data={data / 'lmdb'}", "--set", "write.shard.samples=2", "--device", "cpu",
               "--seconds", "0.05", "--nodes", "3"]  # fmt: skip
    assert cli.main([*command, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    found = plan["on_machines"]
    assert found["workers"] == 3
    assert found["parts"] == plan["forecast"]["shards"]
    assert found["seconds"] > plan["forecast"]["seconds"] / 3
    assert found["read_per_second"] > 0
    assert cli.main([*command, "--gpus", "8"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "On 3 machines with 8 GPUs each, 24 workers" in said
    assert "too few shards" in said
    assert "measured without a GPU" in said
