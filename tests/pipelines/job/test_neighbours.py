"""Good samples of another type, rank, length or layout cost themselves, and nothing that their neighbours are: whatever
the batches, threads, parts and processes."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dali_run.pipelines.fleet.run import run
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import REJECTS, run_job
from dali_run.writers.shards.verify import verify
from tests.kit.fake_cupy import faked
from tests.kit.jobs.odd_samples import KINDS, WRITERS, N, expected, rejects, write_spec, write_tar
from tests.kit.long import examples
from tests.kit.writers import digest


def outcome(place: Path, kind: str, writer: str, batch: int, threads: int, out: str) -> dict[str, str]:
    """Run a job; its files."""
    result = run_job(write_spec(place, kind, writer, batch, threads, out))
    assert result.exit_code in (0, REJECTS), result.message
    return digest(place / out)


@pytest.mark.parametrize("kind", KINDS)
def test_the_odd_sample_alone_is_rejected(kind: str, tmp_path: Path) -> None:
    """Each writer with another batch size and number of threads, and at other places; all writers with batches of 1.
    Writers see the outputs of decoders as all others: two of them do."""
    sizes = [(7, 2), (16, 1), (20, 2), (40, 1)]
    writers = WRITERS[: examples(len(WRITERS), 2)] if "file" in KINDS[kind][0] else WRITERS
    for turn, (writer, odd) in enumerate(product(writers, (0, 12, N - 1))):
        if odd != 12 and turn % 4:
            continue
        write_tar(tmp_path / "in.tar", KINDS[kind][0], odd)
        name = f"{writer}-{odd}"
        alone = outcome(tmp_path, kind, writer, 1, 1, name)
        found = rejects(tmp_path / name)
        assert [r[0] for r in found] == expected(kind, writer, odd), (writer, odd, found[:3])
        assert not any(code == "internal" for _, code, _ in found)
        batch, threads = sizes[turn % len(sizes)]
        assert outcome(tmp_path, kind, writer, batch, threads, f"{name}-{batch}") == alone, (writer, odd, batch)
        assert verify(tmp_path / name).sound, writer


@pytest.mark.parametrize("kind", ["rank", "type", "length", "one number", "types of branches"])
@pytest.mark.parametrize("writer", [w for w in ("numpy", "parquet") if w in WRITERS])
def test_parts_have_the_schema_of_the_whole(kind: str, writer: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "in.tar", KINDS[kind][0], 12)
    whole = outcome(tmp_path, kind, writer, 16, 1, "whole")
    spec = write_spec(tmp_path, kind, writer, 7, 2, "parts")
    for part in (1, 0):
        run_job(spec, part=(part, 2))
    there = digest(tmp_path / "parts")
    assert {k: v for k, v in there.items() if k in whole and k.startswith("odd-")} == {
        k: v for k, v in whole.items() if k.startswith("odd-")
    }
    assert there["rejects.jsonl"] == whole["rejects.jsonl"]
    assert verify(tmp_path / "parts").sound
    schemas = [json.loads((tmp_path / name / "manifest.json").read_text()).get("schema") for name in ("whole", "parts")]
    assert schemas[0] == schemas[1]
    assert schemas[0]["first_sample"] == "000"


def test_processes_leave_the_folder_of_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "in.tar", KINDS["rank"][0], 12)
    whole = outcome(tmp_path, "rank", "numpy", 16, 1, "whole")
    result = run(write_spec(tmp_path, "rank", "numpy", 16, 1, "processes"), on="processes:2")
    assert result.exit_code == REJECTS, result.message
    assert digest(tmp_path / "processes") == whole
    assert result.report["schema"]["first_sample"] == "000"


@pytest.mark.parametrize("kind", ["rank", "a list of sizes", "types of branches"])
def test_a_gpu_rejects_the_same_samples(kind: str, tmp_path: Path) -> None:
    """On the stand-in for CuPy, with kernels run on the CPU."""
    write_tar(tmp_path / "in.tar", KINDS[kind][0], 12)
    with faked(memory=True):
        result = run_job(write_spec(tmp_path, kind, "numpy", 16, 2, "out"), device="gpu")
    assert result.exit_code == REJECTS, result.message
    assert [r[0] for r in rejects(tmp_path / "out")] == [12]


def test_a_retry_goes_by_what_the_first_run_decided(tmp_path: Path) -> None:
    """The first record is read again after it was repaired, and is then of another rank than the data set."""
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(6):
        np.save(folder / f"{i}.npy", np.full((2, 3), i, np.float32))
    good = (folder / "0.npy").read_bytes()
    (folder / "0.npy").write_bytes(good[:30])
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: 1\nname: again\npipeline: {batch_size: 4, device: cpu}\ngraph:\n"
        f"  - {{op: readers.file, file_root: {folder}, files: {[f'{i}.npy' for i in range(6)]}, out: [file, label]}}\n"
        "  - {op: decoders.numpy, in: file, out: x}\noutputs: {x: x}\n"
        f"write: {{writer: numpy, path: {tmp_path}/out, shard: {{samples: 3}}, fields: {{x: {{}}}}}}\n"
        "on_error: {policy: skip, max_errors: 2}\n"
    )
    assert run_job(spec).exit_code == REJECTS
    np.save(folder / "0.npy", np.zeros((2, 3, 1), np.float32))
    assert retry_failed(tmp_path / "out", spec).exit_code == REJECTS
    assert [(r[0], r[1]) for r in rejects(tmp_path / "out")] == [(0, "bad_shape")]
    (folder / "0.npy").write_bytes(good)
    assert retry_failed(tmp_path / "out", spec).exit_code == 0
    assert verify(tmp_path / "out").sound
