"""keep_if in jobs: samples that are left out on purpose are counted and listed apart from rejects."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import SpecError
from dali_run.pipelines.fleet.run import run as run_on
from dali_run.pipelines.job.data_stats import spec_stats
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import JobResult, prepare, run_job
from dali_run.pipelines.spec.build import load_spec
from dali_run.writers.bytes import files_io
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import ended_at
from tests.kit.writers import digest

SPEC = """\
version: 1
name: few
vars: {data: "", shard: "samples: 5", out: ./out, mean: device, limit: 100}
pipeline: {batch_size: 4, num_threads: 2, device: cpu, seed: 1}
graph:
  - {op: readers.numpy, name: Reader, file_root: "${data}", file_filter: "*.npy", shuffle: full, out: array}
  - {op: get_property, in: array, key: source_info, out: place}
  - {op: reductions.mean, in: array, out: mean}
  - {op: shapes, in: array, out: shape}
  - {op: keep_if, name: Bright, if: "mean > 0.4 and shape[1] >= 3"}
outputs: {array: array, place: place}
write: {writer: files, path: "${out}", shard: {samples: 5}, fields: {array: {encode: npy}, place: {}}}
on_error: {policy: skip, max_errors: 1}
"""
COUNT, BROKEN = 41, 7
JOINED = SPEC.replace("shuffle: full", "shuffle: full,\n     join: {file: keep.txt, missing: leave_out}")
DROPPED = (3, 20, 21, 40)
"""Numbers of the files that the table of `JOINED` does not list."""


def array(i: int) -> np.ndarray:
    rng = np.random.default_rng(i)
    return rng.random((2, int(rng.integers(1, 9))), np.float32) * np.float32(rng.random() * 2)


def kept(i: int) -> bool:
    return bool(array(i).mean(dtype=np.float64) > 0.4 and array(i).shape[1] >= 3)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a killed process loses nothing that was written
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for i in range(COUNT):
        np.save(tmp_path / f"in/{i:03d}.npy", array(i))
    (tmp_path / f"in/{BROKEN:03d}.npy").write_bytes(b"not an array")
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "keep.txt").write_text("".join(f"{i:03d}.npy\n" for i in range(COUNT) if i not in DROPPED))
    return tmp_path


def run(place: Path, out: str = "out", **options: Any) -> JobResult:
    changes = {"data": str(place / "in"), "out": str(place / out), **options.pop("changes", {})}
    return run_job(place / "spec.yaml", changes, **options)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def content(out: Path) -> dict[str, str]:
    """Shards and logs, without what tells how the job was cut or when it ran."""
    return {k: v for k, v in digest(out).items() if not k.startswith(("journal", "manifest", "report", "inputs"))
            and "-of-00003.jsonl" not in k}  # fmt: skip


def test_what_the_condition_leaves_out_is_listed_apart_from_rejects(place: Path) -> None:
    result = run(place)
    assert result.exit_code == 3, result.message
    stay = [i for i in range(COUNT) if kept(i) and i != BROKEN]
    gone = [i for i in range(COUNT) if not kept(i) and i != BROKEN]
    assert 5 < len(gone) < 35
    assert f"wrote {len(stay)} samples" in result.message
    assert f"left out {len(gone)} (see {place / 'out'}/left_out.jsonl), 1 rejected" in result.message
    assert sorted(p.name for p in (place / "out").rglob("*.npy")) == [f"{i:03d}.npy" for i in stay]
    found = {r["key"]: r for r in rows(place / "out/left_out.jsonl")}
    assert sorted(found) == [f"{i:03d}.npy" for i in gone]
    for i in gone:
        row = found[f"{i:03d}.npy"]
        assert row["source"].endswith(f"in/{i:03d}.npy")
        assert (row["operator"], row["condition"]) == ("Bright", "mean > 0.4 and shape[1] >= 3")
        assert row["values"] == {"mean": pytest.approx(array(i).mean(), rel=1e-6), "shape[1]": array(i).shape[1]}
    assert [r["key"] for r in rows(place / "out/rejects.jsonl")] == [f"{BROKEN:03d}.npy"]
    manifest = json.loads((place / "out/manifest.json").read_text())
    assert (manifest["samples"], manifest["rejects"], manifest["left_out"]) == (len(stay), 1, len(gone))
    assert result.report["samples"] == {"read": COUNT, "written": len(stay), "rejected": 1, "left_out": len(gone)}
    assert result.report["left_out"] == {"Bright": len(gone)}
    assert verify(place / "out").sound
    assert run(place).ran is False


def test_what_a_join_leaves_out_is_listed_too(place: Path) -> None:
    (place / "spec.yaml").write_text(JOINED)
    gone = [i for i in range(COUNT) if not kept(i) and i != BROKEN and i not in DROPPED]
    result = run(place)
    assert result.exit_code == 3, result.message
    assert f"left out {len(gone) + len(DROPPED)} (see {place / 'out'}/left_out.jsonl), 1 rejected" in result.message
    found = rows(place / "out/left_out.jsonl")
    assert [r["key"] for r in found[: len(DROPPED)]] == [f"{i:03d}.npy" for i in DROPPED]
    for row in found[: len(DROPPED)]:
        assert row["source"].endswith(f"in/{row['key']}")
        assert (row["position"], row["operator"], row["condition"]) == (-1, "Reader", "has a row in keep.txt")
    assert sorted(r["key"] for r in found[len(DROPPED) :]) == [f"{i:03d}.npy" for i in gone]
    manifest = json.loads((place / "out/manifest.json").read_text())
    assert manifest["left_out"] == len(found)
    assert result.report["samples"]["left_out"] == len(found)
    assert result.report["left_out"] == {"Bright": len(gone), "Reader": len(DROPPED)}
    assert spec_stats(place / "spec.yaml", {"data": str(place / "in")})["left_out"] == result.report["left_out"]
    assert verify(place / "out").sound
    log = (place / "out/left_out.jsonl").read_text()
    (place / "out/left_out.jsonl").write_text(log.partition("\n")[2])
    assert not verify(place / "out").sound


def test_neither_exit_code_nor_budget_counts_what_is_left_out(place: Path) -> None:
    (place / f"in/{BROKEN:03d}.npy").unlink()
    assert run(place, changes={"on_error.max_errors": 0}).exit_code == 0
    assert run(place, "all", changes={"graph.Bright.if": "mean > 9", "on_error.policy": "fail"}).exit_code == 0
    assert len(rows(place / "all/left_out.jsonl")) == COUNT - 1
    assert verify(place / "all").sound


def test_parts_workers_batches_and_devices_write_the_same_bytes(place: Path) -> None:
    (place / "spec.yaml").write_text(JOINED)
    run(place, "whole")
    expected = content(place / "whole")
    run(place, "batches", changes={"pipeline.batch_size": 17, "pipeline.num_threads": 1})
    run(place, "null", device="null")
    for i in (2, 0, 1):
        run(place, "parts", part=(i, 3))
    changes = {"data": str(place / "in"), "out": str(place / "workers")}
    done = run_on(place / "spec.yaml", changes, on="processes:2")
    assert done.exit_code == 3, done.message
    assert done.report["samples"]["left_out"] == len(rows(place / "whole/left_out.jsonl"))
    for other in ("batches", "null", "parts", "workers"):
        assert content(place / other) == expected, other
        assert verify(place / other).sound, verify(place / other).problems


def test_killed_at_any_file_operation(place: Path) -> None:
    (place / "spec.yaml").write_text(JOINED)
    seen = [0]

    def count(operation: str, path: str) -> None:
        seen[0] += 1

    files_io.set_hook(count)
    try:
        run(place, "whole")
    finally:
        files_io.set_hook(None)
    expected = content(place / "whole")
    assert seen[0] > 100
    for at in range(3, seen[0], seen[0] // 6):
        shutil.rmtree(place / "out", ignore_errors=True)
        assert ended_at(at, lambda: run(place).exit_code) == 77
        assert run(place).exit_code == 3
        assert content(place / "out") == expected, f"after a kill at operation {at}"
    assert verify(place / "out").sound


def test_full_shards_hold_their_number_whatever_is_left_out(place: Path) -> None:
    (place / "spec.yaml").write_text(JOINED)
    full = {"write.shard": {"samples": 5, "full": True}, "write.writer": "webdataset"}
    run(place, changes=full)
    manifest = json.loads((place / "out/manifest.json").read_text())
    sizes = [shard["samples"] for shard in manifest["shards"] if shard["files"]]
    assert sizes[:-1] == [5] * (len(sizes) - 1)
    assert len(sizes) == -(-sum(kept(i) and i not in (BROKEN, *DROPPED) for i in range(COUNT)) // 5)
    assert sorted(p.name for p in (place / "out").glob("*.tar")) == [f"few-{k:05d}.tar" for k in range(len(sizes))]
    expected = content(place / "out")
    run(place, "batches", changes={**full, "pipeline.batch_size": 17})
    assert content(place / "batches") == expected
    for at in (30, 45):
        assert ended_at(at, lambda: run(place, "killed", changes=full).exit_code) == 77
    assert run(place, "killed", changes=full).exit_code == 3
    assert content(place / "killed") == expected
    for i in (1, 0):
        run(place, "parts", part=(i, 2), changes=full)
    assert {p.name[:9] for p in (place / "parts").glob("*.tar")} == {"few-00000", "few-00001"}
    assert json.loads((place / "parts/manifest.json").read_text())["samples"] == manifest["samples"]
    for out in ("out", "batches", "killed", "parts"):
        assert verify(place / out).sound, verify(place / out).problems
    (place / "spec.yaml").write_text(SPEC.replace("shard: {samples: 5}", "shard: {full: true}"))
    with pytest.raises(SpecError, match=r"spec\.yaml:\d+:\d+: .*shard: full needs samples"):
        run(place)


@pytest.mark.parametrize("bright", [True, False])
def test_retries_skip_what_was_left_out_and_may_leave_out(place: Path, bright: bool) -> None:
    run(place)
    first = (place / "out/left_out.jsonl").read_bytes()
    np.save(place / f"in/{BROKEN:03d}.npy", np.full((2, 4), bright, np.float32))
    again = retry_failed(place / "out")
    assert again.exit_code == 0, again.message
    assert again.report["samples"] == {"read": 1, "written": int(bright), "rejected": 0, "left_out": int(not bright)}
    assert (place / "out/left_out.jsonl").read_bytes() == first
    assert len(rows(place / "out/left_out-retry-001.jsonl")) == int(not bright)
    verdict = verify(place / "out")
    assert verdict.sound, verdict.problems
    manifest = json.loads((place / "out/manifest.json").read_text())
    assert manifest["samples"] + manifest["left_out"] == COUNT
    assert manifest["rejects"] == 0


def test_additions_leave_out_too(place: Path) -> None:
    (place / f"in/{BROKEN:03d}.npy").unlink()
    run(place)
    for i in range(COUNT, COUNT + 9):
        np.save(place / f"in/{i:03d}.npy", array(i))
    assert run(place, append=True).exit_code == 0
    found = rows(place / "out/left_out-append-001.jsonl")
    assert {r["key"] for r in found} == {f"{i:03d}.npy" for i in range(COUNT, COUNT + 9) if not kept(i)}
    assert verify(place / "out").sound


def test_outputs_at_urls_have_the_log(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("DALI_RUN_STAGING", str(place / "staging"))
    store = fsspec.filesystem("memory")
    run(place, "local")
    url = {"out": "memory://left-out/out", "write.key": "position"}
    for part in (1, 0):
        run(place, changes=url, part=(part, 2))
    assert store.cat_file("/left-out/out/left_out.jsonl") == (place / "local/left_out.jsonl").read_bytes()
    assert verify("memory://left-out/out").sound
    store.pipe_file("/left-out/out/left_out.jsonl", b"")
    assert not verify("memory://left-out/out").sound


def test_what_keep_if_meets_in_other_jobs(place: Path) -> None:
    """Replaced rejects, DALI's random numbers, and branches."""
    whole = {"on_error.policy": "replace"}
    replaced = run(place, "replaced", changes={**whole, "write.fields": {"array": {"encode": "npy"}}})
    gone = len(rows(place / "replaced/left_out.jsonl"))
    assert replaced.report["samples"]["left_out"] == gone == sum(not kept(i) and i != BROKEN for i in range(COUNT))
    assert replaced.report["samples"]["written"] + gone == COUNT, "a reject has a neighbour in its place"
    text = SPEC.replace(
        '  - {op: keep_if, name: Bright, if: "mean > 0.4 and shape[1] >= 3"}',
        """  - {op: random.coin_flip, out: coin}
  - if: $coin
    then:
      - {op: keep_if, name: Bright, if: "mean > 0.4"}
      - {op: copy, in: array, out: array}
    else:
      - {op: copy, in: array, out: array}""",
    )
    (place / "spec.yaml").write_text(text)
    run(place, "branch")
    run(place, "others", changes={"pipeline.batch_size": 32}, device="null")
    assert content(place / "branch") == content(place / "others")
    found = {int(r["key"][:3]) for r in rows(place / "branch/left_out.jsonl")}
    dark = {i for i in range(COUNT) if array(i).mean() <= 0.4}
    assert found < dark
    assert len(found) > len(dark) // 5
    for out in ("replaced", "branch"):
        assert verify(place / out).sound, verify(place / out).problems


def test_stats_and_plan_tell_what_is_left_out(place: Path) -> None:
    stats = spec_stats(place / "spec.yaml", {"data": str(place / "in")})
    assert stats["left_out"] == {"Bright": sum(not kept(i) and i != BROKEN for i in range(COUNT))}
    assert (stats["corrupt"], len(stats["rejects"])) == (1, 1)
    plan = prepare(place / "spec.yaml", {"data": str(place / "in")}).plan.describe()
    assert [o["selects"] for o in plan["operators"] if o["op"] == "keep_if"] == [
        "keeps samples with mean > 0.4 and shape[1] >= 3"
    ]


def test_verify_finds_changes_of_the_log(place: Path) -> None:
    run(place)
    log = place / "out/left_out.jsonl"
    whole = log.read_bytes()
    for damaged in (whole[:-5], b"".join(whole.splitlines(keepends=True)[1:]), whole.replace(b"mean", b"meam", 1), b""):
        log.write_bytes(damaged)
        assert not verify(place / "out").sound
    log.unlink()
    assert any(p.file == "left_out.jsonl" for p in verify(place / "out").problems)


PARTS = """\
version: 1
name: parts
pipeline: {{batch_size: 3, num_threads: 2, device: cpu}}
graph:
  - {{op: readers.numpy, name: Reader, file_root: "{data}", file_filter: "*.npy", out: array}}
  - {{op: reductions.mean, in: array, out: mean}}
  - {{op: keep_if, name: Array, if: "mean > 0.4"}}
  - {{op: split_samples, in: array, out: row}}
  - {{op: reductions.mean, in: row, out: of_row}}
  - {{op: keep_if, name: Row, if: "of_row > 0.5"}}
outputs: {{row: row}}
write: {{writer: files, path: "{out}", shard: {{samples: 4}}, fields: {{row: {{encode: npy}}}}}}
"""


def test_samples_and_their_parts_are_left_out(place: Path) -> None:
    (place / f"in/{BROKEN:03d}.npy").unlink()
    (place / "parts.yaml").write_text(PARTS.format(data=place / "in", out=place / "out"))
    result = run_job(place / "parts.yaml")
    assert result.exit_code == 0, result.message
    whole = [i for i in range(COUNT) if i != BROKEN and array(i).mean(dtype=np.float64) > 0.4]
    of_row = {(i, k): array(i)[k].mean(dtype=np.float64) > 0.5 for i in whole for k in range(2)}
    found = rows(place / "out/left_out.jsonl")
    assert len([r for r in found if r["operator"] == "Array"]) == COUNT - 1 - len(whole)
    assert {(int(r["key"][:3]), r["part"]) for r in found if r["operator"] == "Row"} == {
        k for k, stays in of_row.items() if not stays
    }
    assert len(list((place / "out").rglob("*.npy"))) == sum(of_row.values())
    assert result.report["left_out"] == {"Array": COUNT - 1 - len(whole), "Row": len(of_row) - sum(of_row.values())}
    assert verify(place / "out").sound, verify(place / "out").problems


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("mean >", r"spec\.yaml:10:\d+: .*'mean >' is not an expression"),
        ("meen > 0.4", r"spec\.yaml:10:\d+: .*there is no batch 'meen'; did you mean mean"),
        ("draws > 3", r"draws is .*a condition takes one number per sample; write an element, such as draws\[0\]"),
        ("draws[0]", "the condition is a number of type FLOAT, and must be true or false; compare it"),
        ("draws[0] and draws[1:] > 2", "an index in an expression is a whole number"),
        ("1 < 2", "names no batch"),
    ],
)
def test_a_wrong_condition_is_an_error_at_its_place(place: Path, condition: str, message: str) -> None:
    text = SPEC.replace("{op: shapes, in: array, out: shape}", "{op: random.uniform, shape: 3, out: draws}")
    text = text.replace("mean > 0.4 and shape[1] >= 3", condition)
    (place / "spec.yaml").write_text(text)
    with pytest.raises(SpecError, match=message):
        load_spec(place / "spec.yaml", {"data": str(place / "in")})


@pytest.mark.gpu
def test_values_of_a_gpu_decide_like_those_of_the_cpu(place: Path) -> None:
    text = SPEC.replace("in: array, out: mean}", "in: on_gpu, out: mean}").replace(
        "  - {op: reductions.mean", "  - {op: copy, device: gpu, in: array, out: on_gpu}\n  - {op: reductions.mean"
    )
    (place / "spec.yaml").write_text(text)
    assert run(place, "gpu", device="gpu").exit_code == 3
    (place / "spec.yaml").write_text(SPEC)
    run(place, "cpu")
    assert content(place / "gpu") == content(place / "cpu")
