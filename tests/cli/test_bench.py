"""The commands bench and tune: what they print, write and end with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dali_run.cli import main as cli

from ..kit.measured_here import measure_here

QUICK = ["--seconds", "0.05", "--repeats", "1", "--warm-up", "1"]
SPEC = """\
version: 1
pipeline: {batch_size: 4, num_threads: 1, device: cpu}
graph:
  - {op: random.uniform, out: x}
outputs: {x: x}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process for each measurement."""
    measure_here(monkeypatch)


def test_bench_shows_and_writes_results(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, page = tmp_path / "now.json", tmp_path / "now.html"
    sweep = ["--sweep", "batch_size=4,8", "--no-limits"]
    assert cli.main(["bench", spec, *QUICK, *sweep, "--report", str(out), "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    for expected in ("batch_size=4", "batch_size=8", "random.uniform", "To go faster: "):
        assert expected in printed
    report = json.loads(out.read_text())
    assert report["schema_version"] == 2
    assert report["limits_gb_per_second"] is None
    assert "batch_size=8" in page.read_text()

    for r in report["results"]:
        r["samples_per_second"]["median"] *= 1000
    old = tmp_path / "old.json"
    old.write_text(json.dumps(report))
    measure_here(monkeypatch)
    assert cli.main(["bench", spec, *QUICK, "--sweep", "batch_size=8", "--baseline", str(old)]) == 1
    said = capsys.readouterr().err
    assert "batch_size=8: " in said
    assert "1 setting compared with the baseline" in said
    assert (
        cli.main(["bench", spec, *QUICK, "--sweep", "batch_size=8", "--baseline", str(old), "--fail-below", "0"]) == 0
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("apart", [["--sweep"], []])
def test_several_keys_are_swept_by_one_option_or_by_two(spec: str, tmp_path: Path, apart: list[str]) -> None:
    out = tmp_path / "now.json"
    sweep = ["--sweep", "batch_size=4,8", *apart, "prefetch_queue_depth=2", "--sweep", "batch_size=8,2"]
    assert cli.main(["bench", *sweep, spec, *QUICK, "--no-limits", "--report", str(out)]) == 0
    labels = [r["setting"] for r in json.loads(out.read_text())["results"]]
    assert labels == [f"batch_size={b} prefetch_queue_depth=2" for b in (4, 8, 2)]


@pytest.mark.parametrize(
    "options",
    [["--sweep", "batch_size"], ["--sweep", "batch_size=1,,2"], ["--peer", "other"], ["--peer-python", "dali"],
     ["--sweep", "no_such_key=1"], ["--baseline", "no-such-file"], ["--fail-below", "0.9"], ["num_threads=1"],
     ["--suite", "imagenet", "--data", "no-such-folder"]],
)  # fmt: skip
def test_wrong_options_of_bench_end_with_2(spec: str, options: list[str]) -> None:
    assert cli.main(["bench", spec, *QUICK, *options]) == 2


@pytest.mark.usefixtures("here")
def test_tune_writes_settings_that_bench_takes(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = tmp_path / "tuned.yaml"
    fixed = ["--set", "pipeline.rng=dali"]  # fewer measurements: the batch size stays
    assert cli.main(["tune", spec, *fixed, "--seconds", "0.02", "--warm-up", "0", "-o", str(tuned), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert yaml.safe_load(tuned.read_text()) == {"pipeline": found["settings"]}
    assert found["settings"]["batch_size"] == 4
    assert cli.main(["bench", spec, *QUICK, "--settings", str(tuned)]) == 0
    assert "as in the spec" in capsys.readouterr().out
