"""Whole jobs: the same bytes whatever the batches and threads, bad samples, budgets, parts, continuing."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.base import Operator
from dali_run.ops.batch import Batch
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation.processes import Isolation
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError, SpecError
from dali_run.pipelines.job import batches
from dali_run.pipelines.job.run import CLEAN, FAILED, INTERRUPTED, REJECTS, JobResult, Progress, run_job
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.verify import verify

SPEC = """
version: 1
name: job
pipeline: {batch_size: 8, num_threads: 2, device: cpu, seed: 3}
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: decoders.image, in: x, out: x}
  - {op: random_resized_crop, in: x, size: [24, 24], out: x}
  - {op: random.coin_flip, out: mirror}
  - {op: flip, in: x, horizontal: $mirror, out: x}
outputs: {x: x, label: label}
write: {writer: tfrecord, path: OUT, shard: {samples: 10}, fields: {x: {encode: png}, label: {}}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for i in range(37):
        folder = tmp_path / "in" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        size = rng.integers(30, 60, 2)
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(folder / f"{i:02d}.jpg")
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(tmp_path / "in")).replace("OUT", str(tmp_path / "out")))
    return file


def run(spec: Path, out: str = "out", **overrides: Any) -> JobResult:
    keyed = {k.replace("__", "."): v for k, v in overrides.items()}
    return run_job(spec, {"write.path": str(spec.parent / out), **keyed})


def digests(folder: Path) -> dict[str, str]:
    """Digests of all that must be equal between equal jobs: everything but times and the place of writing."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.iterdir()
        if p.suffix in (".tfrecord", ".idx") or p.name == "rejects.jsonl"
    }


def spoil(spec: Path, *names: str) -> None:
    for name in names:
        (spec.parent / "in" / name).write_bytes(b"no picture")


def test_the_same_bytes_for_every_batch_size_and_number_of_threads(spec: Path) -> None:
    assert run(spec).exit_code == CLEAN
    expected = digests(spec.parent / "out")
    assert len([n for n in expected if n.endswith(".tfrecord")]) == 4
    for batch, threads, device in ((1, 1, "cpu"), (7, 2, "cpu"), (64, 3, "null")):
        settings = {"pipeline__batch_size": batch, "pipeline__num_threads": threads, "pipeline__device": device}
        assert run(spec, f"out{batch}", **settings).exit_code == CLEAN
        assert digests(spec.parent / f"out{batch}") == expected


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_bad_samples_cost_a_line_each_and_nothing_else(spec: Path, batch: int) -> None:
    good = run(spec, "good")
    spoil(spec, "a/04.jpg", "b/05.jpg")
    result = run(spec, "bad", pipeline__batch_size=batch)
    assert result.exit_code == REJECTS
    assert result.report["samples"] == {"read": 37, "written": 35, "rejected": 2}
    rows = [json.loads(line) for line in (spec.parent / "bad" / "rejects.jsonl").read_text().splitlines()]
    assert {(r["key"], r["code"], r["operator"]) for r in rows} == {
        ("a/04.jpg", "not_an_image", "decoders.image"),
        ("b/05.jpg", "not_an_image", "decoders.image"),
    }
    assert not verify(spec.parent / "bad").problems
    assert good.report["samples"]["written"] == 37


def test_policy_replace_writes_a_neighbour_and_says_so(spec: Path) -> None:
    spoil(spec, "a/04.jpg")
    result = run(spec, on_error__policy="replace")
    assert result.exit_code == REJECTS
    assert result.report["samples"] == {"read": 37, "written": 37, "rejected": 1}
    (row,) = [json.loads(line) for line in (spec.parent / "out" / "rejects.jsonl").read_text().splitlines()]
    assert row["replaced"] is True
    assert not verify(spec.parent / "out").problems


def test_policy_fail_and_a_spent_budget_end_the_job(spec: Path) -> None:
    spoil(spec, "a/04.jpg", "a/06.jpg")
    failed = run(spec, "fail", on_error__policy="fail")
    assert failed.exit_code == FAILED
    assert "not_an_image" in failed.message
    spent = run(spec, "budget", on_error__max_errors=1)
    assert spent.exit_code == FAILED
    assert "Too many rejected samples: 2 of 30; the limit is max_errors: 1" in spent.message


def test_an_interrupted_job_continues_to_the_same_bytes(spec: Path) -> None:
    run(spec, "whole")

    def interrupt(progress: Progress) -> None:
        if progress.done >= 16:
            raise KeyboardInterrupt

    out = {"write.path": str(spec.parent / "out")}
    assert run_job(spec, out, progress=interrupt).exit_code == INTERRUPTED
    assert not (spec.parent / "out" / "manifest.json").exists()
    again = run_job(spec, out)
    assert again.exit_code == CLEAN
    assert again.report["resumed_from"] == 10
    assert digests(spec.parent / "out") == digests(spec.parent / "whole")
    assert "nothing to do" in run_job(spec, out).message


def test_a_jobs_checkpoint_is_a_position(spec: Path) -> None:
    """Stopped after any batch, it goes on from the last shard's end: what is behind it is neither read nor computed
    again, and nothing but the journal's last line is needed."""
    run(spec, "whole")
    for stop_at in range(1, 38, 3):
        out = spec.parent / f"stopped-{stop_at}"

        def stop(progress: Progress, stop_at: int = stop_at) -> None:
            if progress.done >= stop_at:
                raise KeyboardInterrupt

        changes = {"write.path": str(out), "pipeline.batch_size": 1}
        assert run_job(spec, changes, progress=stop).exit_code == INTERRUPTED
        lines = (out / "journal.jsonl").read_text().splitlines()
        position = json.loads(lines[-1])["positions"][1] if len(lines) > 1 else 0
        result = run(spec, out.name)
        assert result.report.get("resumed_from", 0) == position
        assert result.report["samples"]["read"] == 37 - position
        assert digests(out) == digests(spec.parent / "whole")


def test_a_changed_job_is_refused_with_the_difference_named(spec: Path) -> None:
    run(spec)
    with pytest.raises(JobError, match="seed"):
        run(spec, pipeline__seed=4)
    (spec.parent / "in" / "a" / "new.jpg").write_bytes((spec.parent / "in" / "a" / "00.jpg").read_bytes())
    with pytest.raises(JobError, match="inputs"):
        run(spec)
    assert run_job(spec, {"write.path": str(spec.parent / "out")}, fresh=True).exit_code == CLEAN


def test_a_job_is_the_same_whether_the_package_was_installed_or_not(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spec)

    def version(package: str) -> str:
        if package == "dali-run":
            raise PackageNotFoundError(package)
        return importlib.metadata.version(package)

    monkeypatch.setattr("dali_run.pipelines.job.run.version", version)
    assert run(spec).exit_code == CLEAN


def test_parts_of_several_machines_make_the_same_data_set(spec: Path) -> None:
    run(spec, "whole")
    out = {"write.path": str(spec.parent / "parts")}
    for i in (2, 0, 1):
        assert run_job(spec, out, part=(i, 3)).exit_code == CLEAN
    records = {}
    for name in ("whole", "parts"):
        folder = spec.parent / name
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["samples"] == 37
        files = [f["name"] for s in manifest["shards"] for f in s["files"] if f["name"].endswith(".tfrecord")]
        records[name] = b"".join((folder / f).read_bytes() for f in files)
    assert records["whole"] == records["parts"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"pipeline.seed": 43}, "identity.seed"),
        ({"write.shard.samples": 11}, "write.shard.samples"),
        (3, "whole: was 37, now 3"),
    ],
)
def test_a_part_of_another_job_is_refused_before_it_computes(spec: Path, other: Any, said: str) -> None:
    """A slip on the second machine; the parts could never be joined."""
    out = {"write.path": str(spec.parent / "parts")}
    assert run_job(spec, out, part=(1, 3)).exit_code == CLEAN
    before = digests(spec.parent / "parts")
    told: list[Progress] = []
    changed, limit = (other, None) if isinstance(other, dict) else ({}, other)
    with pytest.raises(JobError, match=rf"a part of another job \(journal-00001-of-00003.*(\n.*)*{said}"):
        run_job(spec, {**out, **changed}, part=(0, 3), limit=limit, progress=told.append)
    assert not told
    assert digests(spec.parent / "parts") == before
    for part in ((0, 3), (2, 3)):
        assert run_job(spec, out, part=part).exit_code == CLEAN


@pytest.mark.parametrize("setting", [{"pipeline.rng": "dali"}, {"on_error.policy": "replace"}])
def test_where_results_depend_on_batches_they_are_cut_alike(spec: Path, setting: dict[str, Any]) -> None:
    spoil(spec, "a/04.jpg", "a/08.jpg", "b/09.jpg", "b/19.jpg", "a/20.jpg", "b/29.jpg", "a/30.jpg")
    setting = {**setting, "pipeline.batch_size": 7}

    def out(name: str) -> dict[str, Any]:
        return {**setting, "write.path": str(spec.parent / name)}

    assert run_job(spec, out("whole")).exit_code == REJECTS
    for done in (14, 28):  # shards of 10: continues inside of a batch
        run_job(spec, out("again"), progress=interrupter(done))
    assert run_job(spec, out("again")).exit_code == REJECTS
    for i in (1, 0):
        assert run_job(spec, out("parts"), part=(i, 2)).exit_code == REJECTS
    whole = digests(spec.parent / "whole")
    assert digests(spec.parent / "again") == whole
    parts = digests(spec.parent / "parts")
    assert {k: v for k, v in parts.items() if k in whole} == whole
    assert not verify(spec.parent / "again").problems
    with pytest.raises(JobError, match="batch_size: was 7, now 8"):
        run_job(spec, {**out("again"), "pipeline.batch_size": 8})


def test_another_policy_is_another_job_where_it_decides_what_is_written(spec: Path) -> None:
    assert run(spec).exit_code == CLEAN
    assert run(spec, on_error__policy="fail").exit_code == CLEAN
    with pytest.raises(JobError, match="replace: was false, now true"):
        run(spec, on_error__policy="replace")


def interrupter(done: int) -> Callable[[Progress], None]:
    """Ctrl-C after ``done`` samples."""

    def interrupt(progress: Progress) -> None:
        if progress.done >= done:
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize(("reader", "words"), [
    ("file, file_root: nowhere", "file_root nowhere: there is no such folder"),
    ("tfrecord, path: nowhere", "there is no file nowhere"),
    ("tfrecord, path: in", "in is not a file; give the files in it, as in/[*]"),
])  # fmt: skip
def test_inputs_that_are_not_there_are_named_with_their_step(
    spec: Path, reader: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    outputs = "[x, label]" if reader.startswith("file") else "x"
    spec.write_text(f"version: 1\ngraph:\n  - {{op: readers.{reader}, out: {outputs}}}\noutputs: {{x: x}}\n"
                    "write: {writer: tfrecord, path: out}\n")  # fmt: skip
    with pytest.raises(JobError, match=rf"spec\.yaml:3:5: step 1 \(readers\.\w+\): {words}"):
        run_job(spec)


def test_one_sample_is_one(spec: Path) -> None:
    out = spec.parent / "out"
    for message in (
        f"wrote 1 sample to {out}",
        f"{out} is complete already (1 sample); nothing to do. --fresh starts over",
    ):
        assert run_job(spec, {"write.path": str(out)}, limit=1).message == message


def test_a_part_that_does_not_exist_is_refused(spec: Path) -> None:
    with pytest.raises(SpecError, match="from 0 to 2"):
        run_job(spec, part=(3, 3))


def test_what_a_reader_drops_is_missing_in_everything_that_is_computed_beside_it(tmp_path: Path) -> None:
    names = [f"{i:02d}.bin" for i in range(20)]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    absent = [3, 4, 11]
    lines = [f"{name}{'.gone' if i in absent else ''} {i}" for i, name in enumerate(names)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
version: 1
name: job
pipeline: {{batch_size: 8, num_threads: 2, device: cpu, seed: 3}}
graph:
  - {{op: readers.file, file_list: {tmp_path}/list.txt, out: [x, label]}}
  - {{op: random.uniform, range: [0, 1], out: u}}
  - {{op: expr, expr: label * 10 + u, out: sum}}
outputs: {{label: label, u: u, sum: sum}}
write: {{writer: numpy, path: {tmp_path}/out, fields: {{label: {{}}, u: {{}}, sum: {{}}}}}}
""")
    assert run_job(spec).exit_code == REJECTS
    label, u, total = (
        np.load(tmp_path / "out" / f"job-00000-of-00001.{k}.npy").reshape(-1) for k in ("label", "u", "sum")
    )
    assert label.tolist() == [i for i in range(20) if i not in absent]
    np.testing.assert_allclose(total, label * 10 + u, rtol=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [r["position"] for r in rows] == absent


class Picky(Operator, name="test_job.picky"):
    """Has a bug that some samples meet."""

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        if np.isin(data.dense(), (5, 6, 17)).any():
            raise ZeroDivisionError("a bug")
        return data


def test_an_exception_of_a_light_operator_costs_the_samples_that_meet_it(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02d}").write_bytes(b"x")
    (tmp_path / "list.txt").write_text("\n".join(f"{i:02d} {i}" for i in range(20)))
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
version: 1
name: job
pipeline: {{batch_size: 8, num_threads: 2, device: cpu}}
graph:
  - {{op: readers.file, file_list: {tmp_path}/list.txt, out: [x, label]}}
  - {{op: test_job.picky, in: label, out: picked}}
  - {{op: random.uniform, range: [0, 1], out: u}}
  - {{op: expr, expr: picked + u, out: sum}}
outputs: {{label: label, u: u, sum: sum}}
write: {{writer: numpy, path: {tmp_path}/out, fields: {{label: {{}}, u: {{}}, sum: {{}}}}}}
""")
    assert run_job(spec).exit_code == REJECTS
    arrays = (np.load(tmp_path / "out" / f"job-00000-of-00001.{k}.npy").reshape(-1) for k in ("label", "u", "sum"))
    label, u, total = arrays
    assert label.tolist() == [i for i in range(20) if i not in (5, 6, 17)]
    np.testing.assert_allclose(total, label + u, rtol=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [(r["position"], r["code"]) for r in rows] == [(5, "internal"), (6, "internal"), (17, "internal")]
    assert "ZeroDivisionError: a bug" in rows[0]["message"]


def test_a_failure_while_the_last_shard_is_published_ends_the_job_with_a_report(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Output, report: Any) -> None:
        raise JobError("No space left on device")

    monkeypatch.setattr(Output, "finish", full)
    result = run(spec)
    assert (result.exit_code, result.message) == (FAILED, "No space left on device")
    assert result.report["samples"]["read"] == 37


def test_an_interrupted_warm_up_leaves_no_process(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Isolation] = []

    def interrupted(*args: Any) -> float:
        isolation = next(a for a in args if isinstance(a, Isolation))
        png = memoryview(picture.getvalue())
        isolation.decode(png, probe(png), True, 10**6)
        found.append(isolation)
        assert isolation.pids
        raise KeyboardInterrupt

    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    with monkeypatch.context() as m:
        m.setattr(batches, "warm_up", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(spec)
    assert found[0].pids == []
    assert run(spec).exit_code == CLEAN


def test_large_records_are_written_inside_the_memory_budget_or_refused(tmp_path: Path) -> None:
    """pyarrow has three copies of a record while it writes it: batches reserve them, too."""
    pytest.importorskip("pyarrow")
    (tmp_path / "in").mkdir()
    for k in range(3):
        (tmp_path / "in" / f"{k}.bin").write_bytes(bytes([k]) * (4 << 20))

    def job(writer: str, host: str, steps: str = "") -> dict[str, Any]:
        spec = tmp_path / "spec.yaml"
        spec.write_text(f"""
version: 1
name: job
pipeline: {{batch_size: 1, device: cpu, memory: {{host: {host}}}}}
graph: [{{op: readers.file, file_root: {tmp_path}, file_filters: ["*.bin"], out: [x, _]}}{steps}]
outputs: {{x: x}}
write: {{writer: {writer}, path: {tmp_path / (writer + host)}, shard: {{samples: 2}}, fields: {{x: {{}}}}}}
on_error: {{policy: skip, max_errors: 100%}}
""")
        return run_job(spec, {}).report

    for writer, host, written in (("parquet", "40MiB", 3), ("parquet", "15MiB", 0), ("tfrecord", "15MiB", 3)):
        report = job(writer, host)
        assert report["samples"]["written"] == written
        if writer == "parquet":
            assert 16 << 20 <= report["memory"]["host_peak_bytes"] <= 40 << 20
    cut = job("parquet", "41MiB", ", {op: slice, in: x, axes: [0], start: 0, shape: 9, out: x}")
    assert cut["memory"]["host_peak_bytes"] < 16 << 20  # only outputs are copied
    (row, *_) = (tmp_path / "parquet15MiB" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(row)["code"] == "too_large"
    assert "a record of 4.0 MiB takes 16 MiB of memory while it is written as parquet" in json.loads(row)["message"]
