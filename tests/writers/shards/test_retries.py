"""Rejected samples tried again: added to the output, in any number of rounds, through kills."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import JobError
from dali_run.writers.bytes import files_io
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.rejects import RejectRow
from dali_run.writers.shards.retries import check_same_job, next_retry
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.retries import retry
from tests.kit.writers import JOBS, PARQUET, digest, samples_of


def rejected(path: Path) -> list[int]:
    return [json.loads(line)["position"] for line in (path / "rejects.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["tfrecord", "lmdb", "webdataset_bytes", "numpy", "files", "litdata", PARQUET])
def test_repaired_samples_are_added(tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    job.run(tmp_path)
    shards = {k: v for k, v in digest(tmp_path).items() if k.startswith("train")}
    assert rejected(tmp_path) == [4, 17, 30]
    retry(job, tmp_path, still_bad={17})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["samples"], manifest["rejects"], manifest["stages"]) == (39, 1, 1)
    assert rejected(tmp_path) == [17]
    verdict = verify(tmp_path)
    assert [str(p) for p in verdict.problems] == []
    assert (verdict.samples, verdict.rejects) == (39, 1)
    after = digest(tmp_path)
    assert {k: after[k] for k in shards} == shards
    assert any(k.startswith("train-retry-001-00000") for k in after)
    retry(job, tmp_path, still_bad=set())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["samples"], manifest["rejects"], manifest["stages"]) == (40, 0, 2)
    assert rejected(tmp_path) == []
    assert verify(tmp_path).sound
    assert verify(tmp_path).samples == 40


def test_values_of_the_added_shard(tmp_path: Path) -> None:
    from tests.kit.jobs.read_back import read_lmdb
    from tests.kit.writers import payload

    JOBS["lmdb"].run(tmp_path)
    retry(JOBS["lmdb"], tmp_path, still_bad={4})
    rows = read_lmdb(tmp_path / "train-retry-001-00000-of-00001.lmdb")
    assert rows == {b"%010d" % p: payload(p).tobytes() for p in (17, 30)}  # keys tell the place in the whole job


def test_interrupted_retries_go_on(tmp_path: Path) -> None:
    job = replace(JOBS["tfrecord"], samples=1)
    job.run(tmp_path / "a")
    job.run(tmp_path / "b")
    retry(job, tmp_path / "a", {30})
    begun = next_retry(tmp_path / "b").retry
    retry(job, tmp_path / "b", {30}, stop=1, batch=1)
    assert "not finished" in str(verify(tmp_path / "b").problems[0])
    assert next_retry(tmp_path / "b").retry == begun
    retry(job, tmp_path / "b", {30}, batch=1)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


class Stop(BaseException):
    """Passes through everything that handles errors, as far as an exception can."""


class StopAt:
    def __init__(self, at: int) -> None:
        self.at, self.n = at, 0

    def __call__(self, operation: str, path: str) -> int | None:
        self.n += 1
        if self.n >= self.at:
            raise Stop
        return 2000


@pytest.mark.parametrize("name", ["tfrecord", "files"])
def test_killed_while_retrying(tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    job.run(tmp_path / "expected")
    retry(job, tmp_path / "expected", {17})
    expected = digest(tmp_path / "expected")
    at = 0
    while True:
        at += 4 if name == "tfrecord" else 9
        path = tmp_path / str(at)
        job.run(path)
        files_io.set_hook(StopAt(at))
        try:
            retry(job, path, {17})
        except Stop:
            files_io.set_hook(None)
            if next_retry(path).retry.number == 1:  # else it was published, and only tidying was left
                retry(job, path, {17})
            (path / ".dali-run.lock").unlink(missing_ok=True)
            assert digest(path) == expected, f"after a stop at operation {at}"
        else:
            assert at > 30
            break
        finally:
            files_io.set_hook(None)


def test_nothing_to_retry(tmp_path: Path) -> None:
    replace(JOBS["tfrecord"], bad=False).run(tmp_path)
    assert next_retry(tmp_path).rows == ()


def test_what_cannot_be_retried(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="not a finished output"):
        next_retry(tmp_path)
    job = JOBS["tfrecord"]
    job.run(tmp_path, identity={"seed": 1, "inputs": "a"})
    write = job.config(tmp_path).identity()
    check_same_job(tmp_path, {"seed": 1, "inputs": "b"}, write)
    with pytest.raises(JobError, match=r"identity\.seed: was 1, now 2"):
        check_same_job(tmp_path, {"seed": 2, "inputs": "b"}, write)
    pending = next_retry(tmp_path)
    samples = samples_of([4, 18])
    with (
        pytest.raises(JobError, match="account"),
        Output.open(job.config(tmp_path), {}, total=3, addition=pending.retry) as out,
    ):
        out.add(0, 2, samples, {k: job.batch(0, 0)[1][k] for k in job.fields})


def test_fresh_removes_retries(tmp_path: Path) -> None:
    job = JOBS["webdataset"]
    job.run(tmp_path / "expected")
    job.run(tmp_path / "out")
    retry(job, tmp_path / "out", set())
    job.run(tmp_path / "out", fresh=True)
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")


@pytest.mark.parametrize("name", ["rejects.jsonl", "rejects-retry-001.jsonl", "rejects-before-retry-001.jsonl",
                                  "journal-retry-001.jsonl", "manifest.json"])  # fmt: skip
def test_damage_to_the_logs_is_found(tmp_path: Path, name: str) -> None:
    JOBS["tfrecord"].run(tmp_path)
    retry(JOBS["tfrecord"], tmp_path, {17})
    good = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(20):
        bad = bytearray(good)
        bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
        (tmp_path / name).write_bytes(bad)
        assert not verify(tmp_path).sound
    (tmp_path / name).write_bytes(good)
    assert verify(tmp_path).sound


def test_rows_are_rows() -> None:
    row = RejectRow(1, "k", "s", 2, 3, "op", "truncated", "m")
    assert RejectRow(**json.loads(row.line())) == row
