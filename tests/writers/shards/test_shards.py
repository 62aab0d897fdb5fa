"""The shard protocol: cuts, accounting, refusals, locks, budgets, resume in any pieces."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dali_run.ops.batch import Batch
from dali_run.ops.errors import JobError, SpecError
from dali_run.writers import base
from dali_run.writers.base import FieldConfig
from dali_run.writers.bytes import checksums, files_io
from dali_run.writers.formats import columns
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.journal import differences, read_journal
from dali_run.writers.shards.merge import merge
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.rejects import RejectCounter, RejectLimit, RejectRow
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.retries import half
from tests.kit.jobs.slow import ROOT, start_slow
from tests.kit.writers import JOBS, PARQUET, Job, digest, samples_of


@pytest.mark.parametrize("name", JOBS)
def test_output_does_not_depend_on_batches(tmp_path: Path, name: str) -> None:
    for batch in (1, 4, 7, 64):
        JOBS[name].run(tmp_path / str(batch), batch=batch)
    first, *rest = (digest(tmp_path / str(b)) for b in (1, 4, 7, 64))
    assert all(r == first for r in rest)
    assert set(first) >= {"manifest.json", "journal.jsonl", "rejects.jsonl"}
    assert not [f for f in first if f.startswith(".")]


@pytest.mark.parametrize("name", JOBS)
def test_output_does_not_depend_on_who_writes_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums included: of files that other threads write from the first byte on, or after some small writes."""
    for module in (checksums, base):
        monkeypatch.setattr(module, "BLOCK", 64)
        monkeypatch.setattr(module, "STEP", 128)
    job = replace(JOBS[name], sha256=True)
    job.run(tmp_path / "caller")
    for large in (1, 700):
        monkeypatch.setattr(base, "LARGE", large)
        monkeypatch.setattr(columns, "LOOSE", 0)
        before = set(threading.enumerate())
        path = tmp_path / str(large)
        out = job.run(path)
        assert digest(path) == digest(tmp_path / "caller")
        assert out.written == len(JOBS[name].survivors())
        assert set(threading.enumerate()) <= before
    for info in (i for shard in json.loads((path / "manifest.json").read_text())["shards"] for i in shard["files"]):
        assert info["sha256"] == hashlib.sha256((path / info["name"]).read_bytes()).hexdigest()
    verdict = verify(path, deep=True)
    assert (verdict.sound, verdict.hashed) == (True, verdict.files)


def test_shards_hold_ranges_of_positions(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    job.run(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [s["positions"] for s in manifest["shards"]] == [[0, 12], [12, 24], [24, 36], [36, 40]]
    assert [s["samples"] + s["rejects"] for s in manifest["shards"]] == [12, 12, 12, 4]
    assert (manifest["samples"], manifest["rejects"]) == (37, 3)
    assert manifest["shards"][0]["first_key"] == "n00/img.0000.JPEG"
    rejects = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [r["position"] for r in rejects] == [4, 17, 30]
    assert list(rejects[0]) == ["position", "key", "source", "record", "offset", "operator", "code", "message"]
    assert rejects[0]["message"] == "ends\nearly"
    assert json.loads((tmp_path / "report.json").read_text()) == {"took": 1.5}


def test_shards_by_bytes_end_after_the_record_that_fills_them(tmp_path: Path) -> None:
    JOBS["tfrecord_bytes"].run(tmp_path)
    shards = sorted(tmp_path.glob("*.tfrecord"))
    assert shards[0].name == "train-00000.tfrecord"
    lengths = [[int(line.split()[1]) for line in s.with_suffix(".idx").read_text().splitlines()] for s in shards]
    for sizes in lengths[:-1]:
        assert sum(sizes) >= 20000 > sum(sizes[:-1])


def test_unknown_totals_leave_the_count_out(tmp_path: Path) -> None:
    replace(JOBS["tfrecord"], known_total=False).run(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.tfrecord")) == [f"train-{k:05d}.tfrecord" for k in range(4)]


ALL_WRITERS = ["tfrecord", "lmdb", "webdataset", "numpy", "files", "recordio", "mds", "litdata"]


@pytest.mark.parametrize("writer", [*ALL_WRITERS, PARQUET])
def test_empty_data_sets_and_empty_shards(tmp_path: Path, writer: str) -> None:
    fields = ("label",) if writer == "numpy" else ("image", "label")
    Job(writer, total=0, fields=fields).run(tmp_path / "none")
    assert json.loads((tmp_path / "none/manifest.json").read_text())["samples"] == 0
    job = Job(writer, total=15, samples=1, fields=fields)  # shards 4 holds a reject only
    job.run(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("train-*-of-00015*"))) % 15 == 0


def test_trailing_rejects_by_bytes_need_no_shard(tmp_path: Path) -> None:
    config = WriteConfig(tmp_path, "x", "tfrecord", bytes=1, fields={"a": FieldConfig()})
    samples = samples_of([0])
    rows = [RejectRow(p, "k", "s", -1, -1, "op", "truncated", "m") for p in (1, 2)]
    with Output.open(config, {}, total=3) as out:
        out.add(0, 3, samples, {"a": Batch.from_dense(np.array([5]), "", samples)}, rows)
        out.finish()
    assert [p.name for p in tmp_path.glob("*.tfrecord")] == ["x-00000.tfrecord"]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [(s["samples"], s["rejects"], len(s["files"])) for s in manifest["shards"]] == [(1, 0, 2), (0, 2, 0)]
    assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 2


# -- the finished, the changed, the foreign ---------------------------------------------------------------------------


def test_a_finished_job_is_left_alone(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    job.run(tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    with Output.open(job.config(tmp_path), {"seed": 1}, total=job.total) as out:
        assert out.finished
        assert out.resume_from == job.total
        assert (out.written, out.rejected) == (37, 3)
        out.finish({"took": 9})
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == times


def test_a_changed_job_is_refused_with_the_difference(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    job.run(tmp_path, identity={"seed": 1, "versions": {"dali-run": "1.0", "pillow": "11"}})
    before = digest(tmp_path, report=True)
    changed = {"seed": 2, "versions": {"dali-run": "1.0", "numpy": "2"}}
    with pytest.raises(JobError) as e:
        job.run(tmp_path, identity=changed)
    message = str(e.value)
    assert "identity.seed: was 1, now 2" in message
    assert 'identity.versions.pillow: was "11", is gone' in message
    assert "identity.versions.numpy: is new" in message
    assert "--fresh" in message
    for other, words in (
        (replace(job, samples=13), "write.shard.samples: was 12, now 13"),
        (replace(job, writer="lmdb"), 'write.writer: was "tfrecord", now "lmdb"'),
        (replace(job, fields=("image", "label")), "write.fields.tensor"),
        (replace(job, total=41), r"range: was \[0, 40\], now \[0, 41\]"),
        (replace(job, options={"index": False}), "write.options.index: is new: false"),
    ):
        with pytest.raises(JobError, match=words):
            other.run(tmp_path, identity={"seed": 1, "versions": {"dali-run": "1.0", "pillow": "11"}})
    assert digest(tmp_path, report=True) == before


def test_fresh_starts_anew_and_removes_what_was_ours(tmp_path: Path) -> None:
    JOBS["files"].run(tmp_path / "out")
    JOBS["tfrecord"].run(tmp_path / "expected")
    JOBS["tfrecord"].run(tmp_path / "out", fresh=True)
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        p.name for p in (tmp_path / "expected").iterdir()
    )


def test_fresh_leaves_other_peoples_files(tmp_path: Path) -> None:
    JOBS["tfrecord"].run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    JOBS["lmdb"].run(tmp_path, fresh=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_fresh_does_not_follow_a_journal_out_of_the_directory(tmp_path: Path) -> None:
    from dali_run.writers.shards.journal import _line

    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "out"
    JOBS["tfrecord"].run(out)
    lines = (out / "journal.jsonl").read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[1])
    del entry["crc32c"]
    entry["files"][0]["name"] = "../victim"
    (out / "journal.jsonl").write_bytes(lines[0] + _line(entry))
    with pytest.raises(JobError, match="outside of"):
        JOBS["tfrecord"].run(out, fresh=True)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["train-00000-of-00004.tfrecord", "manifest.json", "report.json", "train-00002.idx"])
def test_files_of_somebody_else_are_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(JobError, match="already holds"):
        JOBS["tfrecord"].run(tmp_path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "theirs")]


def test_the_files_writer_wants_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("theirs")
    with pytest.raises(JobError, match="is not empty"):
        JOBS["files"].run(tmp_path)


def test_missing_and_cut_shards_are_noticed_on_resume(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    half(job, tmp_path)
    shard = tmp_path / "train-00001-of-00004.tfrecord"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(JobError, match=f"train-00001.*has {len(data) - 1} bytes instead of {len(data)}"):
        job.run(tmp_path)
    shard.unlink()
    with pytest.raises(JobError, match=r"train-00001.*is missing"):
        job.run(tmp_path)
    shard.write_bytes(data)
    job.run(tmp_path)


def test_leaving_early_is_resumable_and_tidy(tmp_path: Path) -> None:
    job = JOBS["lmdb"]
    job.run(tmp_path / "expected")
    half(job, tmp_path / "out")
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".")]
    with Output.open(job.config(tmp_path / "out"), {"seed": 1}, total=job.total) as out:
        assert out.resume_from == 24
        with pytest.raises(JobError, match="ended at position 24 of 40"):
            out.finish()
    job.run(tmp_path / "out")
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")


def test_damage_in_the_journal_is_named(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    half(job, tmp_path)
    journal = tmp_path / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    good = bytes(data)
    data[good.index(b'"shard":') + 12] ^= 1
    journal.write_bytes(data)
    with pytest.raises(JobError, match=r"line at byte .* is damaged"):
        job.run(tmp_path)
    for cut in (1, 20, len(good.splitlines()[-1])):  # a torn last line is what a kill leaves
        journal.write_bytes(good[:-cut])
        contents = read_journal(journal)
        assert contents is not None
        assert len(contents.entries) == 1
    journal.write_bytes(b'{"some": "other"}\n{"file": 1}\n')
    with pytest.raises(JobError, match="damaged"):
        job.run(tmp_path)


def test_differences_are_named_one_by_one() -> None:
    old = {"a": 1, "b": {"c": [1, 2], "d": None}, "e": True}
    new = {"a": 1, "b": {"c": [1, 3], "x": 1}, "e": 1}
    assert differences(old, new) == [
        "b.c: was [1, 2], now [1, 3]", "b.d: was null, is gone", "b.x: is new: 1", "e: was true, now 1",
    ]  # fmt: skip


# -- accounting -------------------------------------------------------------------------------------------------------


def test_every_position_is_accounted_for_exactly_once(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    samples, fields, rows = job.batch(0, 5)
    for k, (start, stop, rejects) in enumerate(
        [(0, 6, rows), (0, 5, []), (0, 5, rows * 2), (1, 5, rows), (0, 4, rows)]
    ):
        with (
            pytest.raises(JobError, match="internal"),
            Output.open(job.config(tmp_path / str(k)), {}, total=40) as out,
        ):
            out.add(start, stop, samples, fields, rejects)


def test_names_and_limits_are_checked(tmp_path: Path) -> None:
    good = JOBS["tfrecord"].config(tmp_path)
    for change, words in (({"name": "../x"}, "file names"), ({"samples": 0}, "at least 1"), ({"fields": {}}, "empty")):
        with pytest.raises(SpecError, match=words):
            replace(good, **change).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "samples", "most"),
    [("1%", 75, 1), ("1%", 100, 1), ("1%", 101, 2), ("0.1%", 1, 1), ("0%", 1_000_000, 0), ("100%", 3, 3), ("1%", 0, 0),
     *((f"{k}%", 100, k) for k in range(101)), *((f"{k / 10}%", 1000, k) for k in range(0, 1001, 7))],
)  # fmt: skip
def test_shares_are_rounded_up_to_whole_samples(share: str, samples: int, most: int) -> None:
    assert RejectLimit.parse(share).max_rejects(samples) == most
    counter = RejectCounter(RejectLimit.parse(share), samples)
    row = RejectRow(0, "k", "s", 0, -1, "op", "corrupt_data", "damaged")
    counter.add(most, [row] * most)
    with pytest.raises(JobError, match=f"of {samples}, that is {most}:"):
        counter.add(1, [row])


def test_budget_by_count_and_share(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    job.run(tmp_path / "expected")
    with pytest.raises(
        JobError, match=r"Too many rejected samples: 3 of \d+; the limit is .*max_errors: 2.*3 truncated; the first: "
    ):
        job.run(tmp_path / "out", reject_limit=RejectLimit.parse(2))
    assert (tmp_path / "out/rejects.jsonl").read_text().count("\n") >= 2
    with pytest.raises(JobError, match=r"max_errors: 5% of 40, that is 2"):
        job.run(tmp_path / "out", reject_limit=RejectLimit.parse("5%"))
    job.run(tmp_path / "out", reject_limit=RejectLimit.parse("7.5%"))
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")


def test_budget_values() -> None:
    assert RejectLimit.parse("0.1%") == RejectLimit(share=0.001)
    assert RejectLimit.parse(0.25) == RejectLimit(share=0.25)
    assert RejectLimit.parse("12") == RejectLimit(count=12)
    assert RejectLimit.parse(None) == RejectLimit()
    for bad in ("many", "-1%", -1, 1.5, True, "200%"):
        with pytest.raises(ValueError, match=r"count \(20\)"):
            RejectLimit.parse(bad)


def test_a_share_of_an_unknown_total_is_checked_late() -> None:
    rows = [RejectRow(p, "k", "s", -1, -1, "op", "truncated", "m") for p in range(10)]
    counter = RejectCounter(RejectLimit(share=0.005), None)
    counter.add(500, rows)
    counter.add(499, [])
    with pytest.raises(JobError):
        counter.add(1, [])
    early = RejectCounter(RejectLimit(share=0.005), None)
    early.add(20, rows)
    with pytest.raises(JobError):
        early.finish()
    known = RejectCounter(RejectLimit(share=0.005), 2000)
    known.add(20, rows)
    known.finish()


# -- locks ------------------------------------------------------------------------------------------------------------


def test_a_second_job_is_kept_out(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    with Output.open(job.config(tmp_path), {"seed": 1}, total=40):
        with pytest.raises(JobError, match="another job of this process"):
            job.run(tmp_path)
        code = (
            "import sys; from pathlib import Path; from tests.kit.writers import JOBS\n"
            "JOBS['tfrecord'].run(Path(sys.argv[1]))"
        )
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
        assert f"being written by process {os.getpid()} on" in other.stderr
    job.run(tmp_path)
    assert not (tmp_path / ".dali-run.lock").exists()


def test_a_dead_owners_lock_is_no_obstacle(tmp_path: Path) -> None:
    with start_slow("tfrecord", tmp_path, hold=True) as process:
        while not (tmp_path / "journal.jsonl").exists():
            assert process.poll() is None
        with pytest.raises(JobError, match=f"process {process.pid} on"):
            JOBS["tfrecord"].run(tmp_path)
        process.kill()
        process.wait()
    assert (tmp_path / ".dali-run.lock").exists()
    JOBS["tfrecord"].run(tmp_path)
    assert not (tmp_path / ".dali-run.lock").exists()


# -- parts ------------------------------------------------------------------------------------------------------------


def run_part(job: Job, path: Path, part: tuple[int, int]) -> None:
    config = job.config(path)
    mine = config.part_range(range(job.total), part)
    with Output.open(config, {}, start=mine.start, total=len(mine), whole=job.total, part=part) as out:
        for at in range(out.resume_from, mine.stop):
            out.add(at, at + 1, *job.batch(at, at + 1))
        out.finish()


def part_files(n: int) -> set[str]:
    kinds = (("journal", "jsonl"), ("rejects", "jsonl"), ("manifest", "json"))
    return {f"{k}-{i:05d}-of-{n:05d}.{e}" for i in range(n) for k, e in kinds}


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("name", ["tfrecord", "files", "lmdb"])
def test_parts_write_one_data_set(tmp_path: Path, name: str, n: int) -> None:
    job = JOBS[name]
    if name == "files":
        job = replace(job, options={"key": "position"})
    job.run(tmp_path / "expected")
    for i in reversed(range(n)):
        run_part(job, tmp_path / "out", (i, n))
        assert (tmp_path / "out/manifest.json").exists() == (i == 0)  # the last to finish publishes
    output_files = {"journal.jsonl", "manifest.json"}
    expected = {k: v for k, v in digest(tmp_path / "expected").items() if k not in output_files}
    found = digest(tmp_path / "out")
    assert {k: v for k, v in found.items() if k not in part_files(n) | output_files} == expected
    assert set(found) == set(expected) | part_files(n) | {"manifest.json"}
    assert verify(tmp_path / "out").sound
    one, all_ = (json.loads((tmp_path / d / "manifest.json").read_text()) for d in ("expected", "out"))
    assert {k: all_[k] for k in ("shards", "samples", "rejects", "bytes", "positions", "rejects_file")} == {
        k: one[k] for k in ("shards", "samples", "rejects", "bytes", "positions", "rejects_file")
    }


def test_the_last_part_merges_even_if_it_was_killed_before(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    for i in (0, 1):
        run_part(job, tmp_path, (i, 2))
    merged = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "rejects.jsonl").unlink()
    run_part(job, tmp_path, (1, 2))
    assert (tmp_path / "manifest.json").read_bytes() == merged
    assert verify(tmp_path).sound


def test_parts_without_shard_sizes_and_by_bytes(tmp_path: Path) -> None:
    for name in ("one_shard", "tfrecord_bytes"):
        for i in range(3):
            run_part(JOBS[name], tmp_path / name, (i, 3))
        assert verify(tmp_path / name).sound
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert (manifest["samples"], manifest["rejects"]) == (37, 3)
    assert len(list((tmp_path / "one_shard").glob("train-*-of-00003.tfrecord"))) == 3


def test_a_job_cut_otherwise_is_refused(tmp_path: Path) -> None:
    run_part(JOBS["tfrecord"], tmp_path / "parts", (0, 2))
    for act in (lambda: run_part(JOBS["tfrecord"], tmp_path / "parts", (1, 3)),
                lambda: JOBS["tfrecord"].run(tmp_path / "parts", fresh=True)):  # fmt: skip
        with pytest.raises(JobError, match="holds a job that runs in 2 parts"):
            act()
    JOBS["tfrecord"].run(tmp_path / "one")
    with pytest.raises(JobError, match="in one piece"):
        run_part(JOBS["tfrecord"], tmp_path / "one", (0, 2))


def test_parts_never_overwrite_each_others_files(tmp_path: Path) -> None:
    run_part(JOBS["files"], tmp_path, (0, 2))
    before = digest(tmp_path)
    with pytest.raises(JobError, match=r"two parts of the job write .*; use the writer's option key: position"):
        run_part(JOBS["files"], tmp_path, (1, 2))
    after = digest(tmp_path)
    assert {k: after[k] for k in before} == before


def test_parts_begin_at_shards(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    with pytest.raises(SpecError, match="inside a shard"):
        Output.open(job.config(tmp_path / "other"), {}, start=7, total=3, whole=40, part=(1, 2))


# -- any cut, any interruption ----------------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    writer=st.sampled_from(["tfrecord", "numpy", "lmdb"]),
    total=st.integers(0, 40),
    samples=st.none() | st.integers(1, 45),
    limit=st.none() | st.integers(1, 4000),
    known=st.booleans(),
    bad=st.booleans(),
    runs=st.lists(st.lists(st.integers(1, 20), max_size=5), max_size=4),
)
def test_any_cut_into_batches_and_runs_gives_the_same_bytes(
    writer: str, total: int, samples: int | None, limit: int | None, known: bool, bad: bool, runs: list[list[int]]
) -> None:
    job = Job(writer, total, samples, limit, fields=("label",), known_total=known, bad=bad)
    root = Path(tempfile.mkdtemp())
    try:
        job.run(root / "expected", batch=7)
        path = root / "out"
        done = 0
        for batches in runs:
            with Output.open(job.config(path), {"seed": 1}, total=total if known else None) as out:
                assert out.resume_from <= done
                at = out.resume_from
                for n in batches:
                    stop = min(at + n, total)
                    if out.finished or stop == at:
                        break
                    out.add(at, stop, *job.batch(at, stop))
                    assert out.written + out.rejected == stop
                    at = stop
                done = max(done, at)
        job.run(path, batch=3)
        assert digest(path) == digest(root / "expected")
    finally:
        shutil.rmtree(root)


def test_complete_shards_are_published_when_the_job_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LARGE", 1)
    slow, sync = threading.Event(), files_io.File.sync
    later = waits_for(slow, sync)

    def held(file: files_io.File) -> None:  # the journal is made durable at once
        (later if "train" in Path(file.path).name else sync)(file)

    monkeypatch.setattr(files_io.File, "sync", held)
    job, path = JOBS["tfrecord"], tmp_path / "out"
    out = Output.open(job.config(path), {"seed": 1}, total=job.total)
    out.add(0, 30, *job.batch(0, 30))  # two shards, and the beginning of the third
    assert out.written == 28
    assert not list(path.glob("train-*"))  # they are not durable yet
    slow.set()
    out.abort()
    assert [p.name for p in sorted(path.glob("*.tfrecord"))] == [f"train-0000{k}-of-00004.tfrecord" for k in (0, 1)]
    assert not list(path.glob(".train*"))
    monkeypatch.undo()
    job.run(path)
    job.run(tmp_path / "expected")
    assert digest(path) == digest(tmp_path / "expected")


def waits_for(event: threading.Event, work: Any) -> Any:
    def waiting(*arguments: Any) -> None:
        assert event.wait(60)
        work(*arguments)

    return waiting


def test_merge_is_a_step_of_its_own_too(tmp_path: Path) -> None:
    job = JOBS["tfrecord"]
    job.run(tmp_path / "whole")
    config = job.config(tmp_path / "out")

    def part(i: int, shape: tuple[int, ...] | None = None) -> None:
        positions = config.part_range(range(job.total), (i, 2))
        with Output.open(config, {"seed": 1}, start=positions.start, total=len(positions), whole=job.total,
                         part=(i, 2)) as out:  # fmt: skip
            out.add(positions.start, positions.stop, *job.batch(positions.start, positions.stop))
            out.finish({})

    with pytest.raises(JobError, match="no such folder"):
        merge(tmp_path / "out")
    part(1)
    with pytest.raises(JobError, match="of 2 parts these are not finished: 0"):
        merge(tmp_path / "out")
    part(0)
    expected = digest(tmp_path / "out")
    for name in ("manifest.json", "rejects.jsonl"):  # as if no part had seen the other's
        (tmp_path / "out" / name).unlink()
    assert "run dali-run merge" in str(verify(tmp_path / "out").problems[0])
    for _ in range(2):
        assert merge(tmp_path / "out") == 2
        assert digest(tmp_path / "out") == expected
    assert verify(tmp_path / "out").sound
    with pytest.raises(JobError, match="no job in parts"):
        merge(tmp_path / "whole")


def test_parts_of_arrays_agree_on_their_shape(tmp_path: Path) -> None:
    """Each part knows only its own samples; the one that merges sees that they do not fit."""
    job = replace(JOBS["numpy"], fields=("tensor",), bad=False)
    config = job.config(tmp_path)
    for i in range(2):
        positions = config.part_range(range(job.total), (i, 2))
        samples, fields, _ = job.batch(positions.start, positions.stop)
        if i == 1:
            fields = {"tensor": Batch.from_dense(np.zeros((len(samples), 4), np.float32), "", samples)}
        with Output.open(config, {"seed": 1}, start=positions.start, total=len(positions), whole=job.total,
                         part=(i, 2)) as out:  # fmt: skip
            out.add(positions.start, positions.stop, samples, fields)
            if i == 0:
                out.finish({})
            else:
                with pytest.raises(JobError, match=r"(?s)have other shapes than those of .*resize, crop or pad"):
                    out.finish({})
