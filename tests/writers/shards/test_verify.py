"""verify finds every flipped bit and every cut, in every file of an output, and names the record where it can."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dali_run.writers.shards.verify import verify
from tests.kit.jobs.retries import half
from tests.kit.writers import JOBS, PARQUET, Job, walk

WRITERS = ["tfrecord", "lmdb", "webdataset", "numpy", "files", "recordio", PARQUET]


@pytest.mark.parametrize("name", JOBS)
def test_sound_outputs(tmp_path: Path, name: str) -> None:
    JOBS[name].run(tmp_path)
    verdict = verify(tmp_path)
    assert [str(p) for p in verdict.problems] == []
    assert (verdict.samples, verdict.rejects) == (37, 3)


@pytest.mark.parametrize("name", WRITERS)
def test_flipped_bits_and_cuts_are_found(tmp_path: Path, name: str) -> None:
    JOBS[name].run(tmp_path)
    rng = np.random.default_rng(0)
    files = [p for p in walk(tmp_path) if p.name != "report.json" and p.stat().st_size]
    for k in range(60):
        path = files[int(rng.integers(len(files)))]
        good = path.read_bytes()
        bad = bytearray(good)
        if k % 4 == 0:
            del bad[int(rng.integers(len(bad))) :]
        else:
            bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        problems = verify(tmp_path).problems
        assert problems, f"change {k} of {path.name} was not found"
        top = str(path.relative_to(tmp_path))
        assert any(p.file == top or p.file in ("manifest.json", "rejects.jsonl", "journal.jsonl") for p in problems)
        path.write_bytes(good)
    assert verify(tmp_path).sound


def test_the_damaged_record_is_named(tmp_path: Path) -> None:
    JOBS["tfrecord"].run(tmp_path)
    shard = tmp_path / "train-00001-of-00004.tfrecord"
    offsets = [tuple(map(int, line.split())) for line in shard.with_suffix(".idx").read_text().splitlines()]
    data = bytearray(shard.read_bytes())
    start, length = offsets[3]
    data[start + length // 2] ^= 4
    shard.write_bytes(data)
    assert [str(p) for p in verify(tmp_path).problems] == [
        f"{shard.name}: its content is not what was written (crc32c and tree differ)",
        f"{shard.name}, record 3 at byte {start}: its {length - 16} bytes are damaged (CRC-32C differs)",
    ]
    data[start + 2] ^= 1
    shard.write_bytes(data)
    messages = [str(p) for p in verify(tmp_path).problems]
    assert (
        f"record 3 at byte {start}: the record's length is damaged; {len(data) - start} bytes cannot be read"
        in messages[1]
    )
    assert "holds 3 records, 11 were written" in messages[2]


def test_missing_foreign_and_unfinished(tmp_path: Path) -> None:
    job = JOBS["webdataset"]
    half(job, tmp_path)
    assert ["not finished" in str(p) for p in verify(tmp_path).problems] == [True]
    job.run(tmp_path)
    shutil.copy(tmp_path / "train-00000-of-00004.tar", tmp_path / "train-00007-of-00004.tar")
    (tmp_path / "train-00002-of-00004.tar").unlink()
    messages = [str(p) for p in verify(tmp_path).problems]
    assert any("train-00002-of-00004.tar: cannot be read: No such file" in m for m in messages)
    assert any("train-00007-of-00004.tar: looks like a shard, but" in m for m in messages)
    assert "no output of dali-run" in str(verify(tmp_path / "nowhere").problems[0])


def test_long_names_in_tar(tmp_path: Path) -> None:
    from dali_run.ops.batch import Batch, Origin
    from dali_run.writers.base import FieldConfig
    from dali_run.writers.shards.config import WriteConfig
    from dali_run.writers.shards.output import Output
    from tests.kit.writers import samples_of

    class Long:
        def origin(self, index: int) -> Origin:
            return Origin("d" * 180 + "/" + "k" * 150 + str(index), "")

    base = samples_of(np.arange(3))
    samples = type(base)(base.slot, base.position, base.epoch, base.index, Long())
    config = WriteConfig(tmp_path, "x", "webdataset", fields={"label": FieldConfig()})
    with Output.open(config, {}, total=3) as out:
        out.add(0, 3, samples, {"label": Batch.from_dense(np.arange(3), "", samples)})
        out.finish()
    assert verify(tmp_path).sound


def test_progress_is_told(tmp_path: Path) -> None:
    Job("tfrecord", total=5, samples=2).run(tmp_path)
    told: list[tuple[int, int]] = []
    verdict = verify(tmp_path, lambda done, total: told.append((done, total)))
    sizes = [sum(p.stat().st_size for p in tmp_path.glob(f"train-{k:05d}-of-00003*")) for k in range(3)]
    assert verdict.bytes == sum(sizes)
    assert [total for _, total in told] == [verdict.bytes] * 3
    assert [done for done, _ in told] == [0, *np.cumsum(sizes)[:2].tolist()]
