"""Several processes that measure together. No test depends on how fast anything is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.errors import SpecError
from dali_run.pipelines.bench.measure import Measurement
from dali_run.pipelines.bench.run import Bench, run_bench, run_in_process
from dali_run.pipelines.bench.several import measure_together, resources_of
from dali_run.pipelines.bench.view import bench_html, bench_view
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.fleet import machine
from dali_run.pipelines.fleet.job_message import WorkerResources

SPEC = """\
version: 1
pipeline: {batch_size: 2, device: cpu, num_threads: 1}
plugins: [note.py]
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: noted, in: label, out: label}
outputs: {x: x, label: label}
"""
NOTE = """\
import os
from dali_run.ops.base import Operator

class Noted(Operator, name="noted"):
    \"\"\"Notes of which process looks at which samples.\"\"\"

    def infer(self, inputs):
        return inputs

    def cpu(self, ctx, x):
        with open(os.environ["NOTES"], "a") as notes:
            for value in x.data.ravel().tolist():
                notes.write(f"{os.getpid()} {value}\\n")
        return x
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    for i in range(8):
        folder = tmp_path / "in" / f"{i}"
        folder.mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), 10 * i, np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "note.py").write_text(NOTE)
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(tmp_path / "in")))
    return file


def measurement(spec: Path, on: str = "") -> Measurement:
    return Measurement(str(spec), {}, 0.05, 1, on=on)


def test_each_process_begins_at_its_part_of_one_order(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    monkeypatch.setenv("NOTES", str(alone))
    run_in_process(measurement(spec), "measure")
    order = [int(line.split()[1]) for line in alone.read_text().splitlines()]
    monkeypatch.setenv("NOTES", str(both))
    found = run_in_process(measurement(spec, "processes:2"), "measure")
    by: dict[str, list[int]] = {}
    for line in both.read_text().splitlines():
        pid, value = line.split()
        by.setdefault(pid, []).append(int(value))
    assert len(by) == 2
    assert sorted(values[:4] for values in by.values()) == sorted((order[:4], order[4:8]))
    assert sorted(order[:8]) == list(range(8))
    workers = found["report"]["workers"]
    assert [w["name"] for w in workers] == ["process 0", "process 1"]
    assert sum(w["samples"] for w in workers) == found["report"]["samples"]["read"] > 0
    assert found["samples_per_second"] > 0


def test_the_results_can_be_shown(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    report = run_bench(Bench({"spec": measurement(spec, "processes:2")}, repeats=1))
    assert bench_view(report)
    assert "Samples per second" in bench_html(report)
    assert report["results"][0]["samples_per_second"]["median"] > 0


def test_one_that_fails_ends_all_and_says_which(spec: Path) -> None:
    """Without a place for its notes, the operator raises in every process."""
    bad = Measurement(str(spec), {"on_error.policy": "fail"}, 0.05, 1)
    found = measure_together(bad, [WorkerResources("first", 1, 0.5), WorkerResources("second", 1, 0.5)], 60)
    assert found["error"].startswith("first: ")
    assert "NOTES" in found["error"]


def test_who_measures_alone_and_who_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "pci_address", lambda gpu: "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert resources_of("", Target("cpu")) == []
    assert resources_of("", Target("gpu", (1,))) == []
    assert [s.visible for s in resources_of("", Target("gpu", (0, 2)))] == ["0", "2"]
    assert [s.visible for s in resources_of("processes:2", Target("gpu", (1,)))] == ["1", "1"]
    assert len(resources_of("processes:3", Target("cpu"))) == 3


def test_a_place_that_does_not_exist(spec: Path) -> None:
    with pytest.raises(SpecError, match="processes:N"):
        run_bench(Bench({"spec": measurement(spec, "ray")}))
