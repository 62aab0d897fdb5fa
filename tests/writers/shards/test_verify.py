"""verify finds every flipped bit and every cut, in every file of an output, and names the record where it can."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import SpecError
from dali_run.ops.storage.inventory import Inputs, InventoryEntries
from dali_run.writers.base import Writer, find_writer, writers
from dali_run.writers.bytes.written import WrittenShard
from dali_run.writers.shards.journal import read_journal
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.retries import half, retry
from tests.kit.writers import JOBS, PARQUET, Job, walk

WRITERS = ["tfrecord", "lmdb", "webdataset", "numpy", "files", "recordio", "mds", PARQUET]


@pytest.mark.parametrize("name", JOBS)
def test_sound_outputs(tmp_path: Path, name: str) -> None:
    JOBS[name].run(tmp_path)
    verdict = verify(tmp_path)
    assert [str(p) for p in verdict.problems] == []
    assert (verdict.samples, verdict.rejects) == (37, 3)


@pytest.mark.parametrize("name", WRITERS)
def test_flipped_bits_and_cuts_are_found(tmp_path: Path, name: str) -> None:
    pieces = InventoryEntries(b"a.jpg\0b.jpg", {"size": np.array([3, 4])}, np.array([1, 1]))
    JOBS[name].run(tmp_path, inputs=lambda: Inputs({"Reader": pieces}, "0123"))
    rng = np.random.default_rng(0)
    files = [p for p in walk(tmp_path) if p.name != "report.json" and p.stat().st_size]
    assert tmp_path / "inputs.gz" in files
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
    for content in (b"", b"[]", (tmp_path / "report.json").read_bytes()[:-4], None):  # of a report, the form is checked
        good = (tmp_path / "report.json").read_bytes()
        (tmp_path / "report.json").write_bytes(content or b"")
        assert [p.file for p in verify(tmp_path).problems] == ["report.json"]
        (tmp_path / "report.json").write_bytes(good)
    (tmp_path / "inputs.gz").rename(tmp_path / ".inputs")
    assert [p.file for p in verify(tmp_path).problems] == ["inputs.gz"]
    (tmp_path / ".inputs").rename(tmp_path / "inputs.gz")
    verdict = verify(tmp_path)
    assert verdict.sound
    assert verdict.unchecked == ["report.json: no checksum covers it, because it holds times"]


@pytest.mark.parametrize("name", WRITERS)
def test_files_that_no_journal_lists_are_named(tmp_path: Path, name: str) -> None:
    """Whatever their names are: a pattern over the folder would read them."""
    JOBS[name].run(tmp_path)
    retry(JOBS[name], tmp_path, still_bad={17})
    shard = next(
        p for p in walk(tmp_path) if p.name.startswith("train-00000") or p.parent.name.startswith("train-00000")
    )
    suffix = shard.suffix
    names = [f"train-append-001-00000-of-00001{suffix}", f"train-retry-002-00000-of-00001{suffix}", f"other{suffix}",
             f"below/{shard.name}", f"journal-00000-of-00002{suffix}", "README"]  # fmt: skip
    for foreign in names:
        place = tmp_path / foreign
        place.parent.mkdir(exist_ok=True)
        shutil.copy(shard, place)
        assert [p.file for p in verify(tmp_path).problems] == [foreign]
        place.unlink()
    (tmp_path / f"link{suffix}").symlink_to(shard)
    assert [p.file for p in verify(tmp_path).problems] == [f"link{suffix}"]
    (tmp_path / f"link{suffix}").unlink()
    (tmp_path / ".DS_Store").write_bytes(b"")
    if name == "lmdb":
        (shard.parent / "lock.mdb").write_bytes(b"")
    assert verify(tmp_path).sound


@pytest.mark.parametrize("name", ["tfrecord", "webdataset", "recordio"])
def test_a_wrong_index_with_fitting_checksums_is_found(tmp_path: Path, name: str) -> None:
    JOBS[name].run(tmp_path)
    contents = read_journal(tmp_path / "journal.jsonl")
    assert contents is not None
    shard = WrittenShard(tmp_path, contents.entries[0], contents.header["write"]["options"], sound=True)
    index = tmp_path / shard.file(".idx")
    lines = index.read_bytes().splitlines(keepends=True)
    for wrong in (lines[:-1], [*lines[:-2], lines[-1], lines[-2]], [*lines[:-1], lines[-1].replace(b"1", b"2")]):
        index.write_bytes(b"".join(wrong))
        assert [p.file for p in find_writer(name).walk(shard)] == [index.name]
    index.write_bytes(b"".join(lines))
    assert not list(find_writer(name).walk(shard))


def test_records_that_no_writer_reads_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {n: cls for n, cls in writers().items() if cls.__module__.startswith("dali_run.")}
    assert not [n for n, cls in ours.items() if not any("walk" in vars(c) for c in cls.__mro__[:-2])]
    JOBS["tfrecord"].run(tmp_path)
    monkeypatch.delattr(ours["tfrecord"], "walk")
    (first, _) = verify(tmp_path).unchecked
    assert first == "the records of 4 of 4 shards: the writer tfrecord does not read what it wrote"

    def unknown(name: str) -> type[Writer]:
        raise SpecError(f"there is no writer {name!r}")

    (first, _) = verify(tmp_path, writer_of=unknown).unchecked
    assert "no writer 'tfrecord'" in first


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
    assert "not an output of dali-run" in str(verify(tmp_path / "nowhere").problems[0])


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


def test_a_folder_of_outputs_names_them(tmp_path: Path) -> None:
    """A job that splits its samples writes an output per part, and its spec names the folder above."""
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").touch()
        (tmp_path / name / "x-00000.tar").touch()
    (problem,) = verify(tmp_path).problems
    assert str(problem).endswith(f"verify {tmp_path / 'train'} and {tmp_path / 'val'}")
