"""The status of a job while it runs, and its report over time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dali_run.pipelines.job import live
from dali_run.pipelines.job.live import statuses
from dali_run.pipelines.job.run import Progress, run_job
from dali_run.pipelines.tools.sample_data import make_sample_data

SPEC = """\
version: 1
name: small
pipeline: {batch_size: 2, num_threads: 2, device: cpu}
graph:
  - {op: readers.file, name: Reader, file_root: ./data/train, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, size: [24, 24], out: images}
outputs: {image: images, label: labels}
write: {writer: tfrecord, path: ./out, shard: {samples: 8}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    make_sample_data(folder / "data", 32)
    (folder / "spec.yaml").write_text(SPEC.replace("./data", str(folder / "data")))
    return folder


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "dali-run" / "live"


def run(place: Path, out: Path, **more: Any) -> Any:
    return run_job(place / "spec.yaml", {"write.path": str(out)}, **more)


def test_a_job_says_what_it_does(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[dict[str, Any]] = []

    def look(progress: Progress) -> None:
        seen.append({**progress.status()})

    assert statuses() == []
    run(place, out, progress=look)
    assert [s["state"] for s in seen] == ["preparing"] + ["running"] * 12
    assert [s["done"] for s in seen[1:]] == list(range(2, 25, 2))
    for status in seen[1:]:
        assert [o["name"] for o in status["operators"]] == ["Reader", "decoders.image", "resize"]
        assert all(0 <= q["fill"] <= q["depth"] for q in status["queues"])
        assert set(status["loads"]) == {"reading", "cpu", "write"}
        assert status["memory"]["host_limit"] > status["memory"]["host"] >= 0
    left = statuses(out)
    assert [s["state"] for s in left] == ["finished"]
    assert left[0]["done"] == left[0]["total"] == 24
    assert left[0]["message"].startswith("wrote 24 samples")
    assert statuses(f"{out}/../out") == left == statuses()
    assert statuses(tmp_path / "elsewhere") == []


def test_the_status_is_no_part_of_the_output(place: Path, tmp_path: Path, state: Path) -> None:
    run(place, tmp_path / "a")
    for child in state.iterdir():
        child.unlink()
    state.rmdir()
    state.write_text("no folder")  # nothing can be told: that is no reason to end a job
    assert run(place, tmp_path / "b").exit_code == 0
    with_status, without = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "ab")
    assert set(with_status) == set(without)
    same = [name for name in with_status if name not in ("report.json", "journal.jsonl", "inputs.gz")]
    assert len(same) == 8
    assert all(with_status[name] == without[name] for name in same)


def test_parts_have_a_status_each(place: Path, tmp_path: Path) -> None:
    for i in (1, 0, 2):
        run(place, tmp_path / "out", part=(i, 3))
    assert [(s["part"], s["done"]) for s in statuses(tmp_path / "out")] == [([i, 3], 8) for i in range(3)]
    shutil.rmtree(tmp_path / "out")  # a job of other parts is refused
    run(place, tmp_path / "out")
    assert [(s["part"], s["done"]) for s in statuses(tmp_path / "out")] == [(None, 24)]


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt, "interrupted"), (ZeroDivisionError, "failed")])
def test_how_a_job_ended(place: Path, tmp_path: Path, error: type[BaseException], state: str) -> None:
    def stop(progress: Progress) -> None:
        if progress.done >= 8:
            raise error("enough")

    if error is KeyboardInterrupt:
        assert run(place, tmp_path / "out", progress=stop).exit_code == 130
    else:
        with pytest.raises(error):
            run(place, tmp_path / "out", progress=stop)
    assert [s["state"] for s in statuses(tmp_path / "out")] == [state]


def test_a_process_that_is_gone_is_lost(place: Path, tmp_path: Path, state: Path) -> None:
    run(place, tmp_path / "out")
    path = next(state.glob("*.json"))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    status = json.loads(path.read_text())
    for changes, expected in (
        ({"pid": gone.pid}, "lost"),
        ({"pid": os.getpid()}, "running"),
        ({"host": "another", "pid": gone.pid}, "running"),
        ({"host": "another", "written": status["written"] - 3600}, "lost"),
    ):
        path.write_text(json.dumps({**status, "state": "running", **changes}))
        assert [s["state"] for s in statuses(tmp_path / "out")] == [expected]
    path.write_text("{torn")
    assert statuses(tmp_path / "out") == []


def test_a_report_over_time_is_bounded(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_ROWS", 8)
    recorders: list[live.Recorder] = []
    begin = live.Recorder.__init__

    def made(self: live.Recorder, *given: Any) -> None:
        begin(self, *given)
        recorders.append(self)
        self.interval = 1e-6

    monkeypatch.setattr(live.Recorder, "__init__", made)
    report = run(place, tmp_path / "out", progress=lambda p: [r.record() for r in recorders for _ in range(9)]).report
    found = report["over_time"]
    n = len(found["seconds"])
    assert 4 <= n <= 11
    assert recorders[0].interval > 1e-6
    columns = [found["samples"], found["rejected"], *(q["fill"] for q in found["queues"].values()),
               *found["operators"].values(), *found["memory"].values()]  # fmt: skip
    assert {len(c) for c in columns} == {n}
    for rising in (found["seconds"], found["samples"], *found["operators"].values()):
        assert rising == sorted(rising)
    assert found["samples"][-1] == 24
    assert found["operators"]["resize"][-1] > 0
