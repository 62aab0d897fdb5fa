"""split in jobs: one part, or all parts one by one; what is added later moves no sample."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import load_spec, run_job
from dali_run.ops.errors import SpecError
from dali_run.pipelines.fleet.run import run
from dali_run.pipelines.job.retry import retry_failed
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import ended_at
from tests.kit.writers import digest

SPEC = """\
version: 1
name: arrays
vars: {data: "", out: ""}
pipeline: {batch_size: 4, num_threads: 2, device: cpu, seed: 1}
graph:
  - {op: readers.numpy, name: Reader, file_root: "${data}", file_filter: "*.npy", shuffle: full,
     split: {train: 0.6, val: 0.4, seed: 7}, out: array}
  - {op: random.uniform, range: [0.0, 1.0], out: draw}
outputs: {array: array, draw: draw}
write: {writer: files, path: "${out}", shard: {samples: 5}, fields: {array: {encode: npy}, draw: {encode: npy}}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    (tmp_path / "in").mkdir()
    add(tmp_path, range(30))
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def add(place: Path, numbers: Any) -> None:
    for i in numbers:
        np.save(place / f"in/{i:03d}.npy", np.full((2, 2), i, np.float32))


def job(place: Path, out: str = "out", changes: dict[str, Any] | None = None, **options: Any) -> Any:
    return run(place / "spec.yaml", {"data": str(place / "in"), "out": str(place / out), **(changes or {})}, **options)


def keys(out: Path) -> set[str]:
    return {json.loads(line)["key"] for path in out.glob("arrays-*.jsonl") for line in path.read_text().splitlines()}


def shards(out: Path) -> dict[str, str]:
    return {k: v for k, v in digest(out).items() if not k.startswith(("journal", "manifest", "report", "inputs"))}


def test_a_job_without_use_writes_every_part_to_its_own_folder(place: Path) -> None:
    result = job(place)
    assert result.exit_code == 0, result.message
    train, val = keys(place / "out/train"), keys(place / "out/val")
    assert not train & val
    assert len(train | val) == 30
    assert len(train) > len(val) > 4
    assert result.report["samples"]["written"] == 30
    assert {k: v["written"] for k, v in result.report["splits"].items()} == {"train": len(train), "val": len(val)}
    assert "train: wrote" in result.message
    assert verify(place / "out/train").sound
    assert verify(place / "out/val").sound
    assert job(place).ran is False
    alone = {"graph.Reader.use": "val"}
    job(place, "alone", alone)
    job(place, "workers", alone, on="processes:2")
    assert shards(place / "alone") == shards(place / "workers") == shards(place / "out/val")
    for part in (1, 0):
        run_job(place / "spec.yaml", data=place / "in", out=place / "parts", num_shards=2, shard_id=part)
    assert keys(place / "parts/train") == train


def test_additions_move_no_sample(place: Path) -> None:
    job(place)
    before = {name: shards(place / "out" / name) for name in ("train", "val")}
    add(place, [*range(100, 120), 999])
    assert job(place, append=True).exit_code == 0
    job(place, "anew")
    for name in ("train", "val"):
        after = shards(place / "out" / name)
        assert before[name].items() <= after.items(), "nothing that was written has changed"
        assert keys(place / "out" / name) == keys(place / "anew" / name)
        assert verify(place / "out" / name).sound
    assert len(keys(place / "out/train") | keys(place / "out/val")) == 51


def test_killed_and_retried(place: Path) -> None:
    job(place, "whole")
    assert ended_at(60, lambda: job(place).exit_code) == 77
    assert ended_at(60, lambda: job(place).exit_code) == 77
    assert job(place).exit_code == 0
    for name in ("train", "val"):
        assert shards(place / "out" / name) == shards(place / "whole" / name)
    victim = sorted(keys(place / "out/val"))[0]
    good = (place / "in" / victim).read_bytes()
    (place / "in" / victim).write_bytes(b"broken")
    assert job(place, "broken").exit_code == 3
    (place / "in" / victim).write_bytes(good)
    assert retry_failed(place / "broken/val").exit_code == 0
    assert keys(place / "broken/val") == keys(place / "out/val")


def test_programs_read_one_part(place: Path) -> None:
    changes = {"data": str(place / "in"), "out": "out", "graph.Reader.use": "val"}
    pipe = load_spec(place / "spec.yaml", changes)
    size = pipe.epoch_size("Reader")
    found = set()
    for _ in range(-(-size // 4)):
        found |= {int(np.asarray(a).ravel()[0]) for a in pipe.run()[0]}
    job(place)
    assert found == {int(k[:3]) for k in keys(place / "out/val")}
    assert size == len(found)


def test_a_part_without_samples_is_an_empty_output(place: Path) -> None:
    (place / "spec.yaml").write_text(SPEC.replace("train: 0.6, val: 0.4", "train: 0.999999999, val: 0.000000001"))
    result = job(place)
    assert result.exit_code == 0, result.message
    assert [v["written"] for v in result.report["splits"].values()] == [30, 0]
    assert verify(place / "out/val").sound


def test_readers_must_agree(place: Path) -> None:
    other = '  - {op: readers.numpy, name: Other, file_root: "${data}", file_filter: "*.npy", out: b}\n'
    (place / "spec.yaml").write_text(
        SPEC.replace("  - {op: random", f"{other}  - {{op: random").replace("draw: draw", "draw: b")
    )
    with pytest.raises(SpecError, match="needs the same parts at all readers"):
        job(place)
