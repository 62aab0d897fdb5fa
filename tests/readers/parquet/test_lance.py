"""Lance data sets that our writer makes, and those of pylance itself, read by pylance and by readers.lance."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.writers.bytes import files_io
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import Failing, failure
from tests.kit.readers import content, fetch, open_reader
from tests.kit.writers import JOBS, ORIGINS, digest, label, payload, tensor

lance = pytest.importorskip("lance", reason="needs the extra lance")
from dali_run.readers.parquet.lance import Lance  # noqa: E402


def made(root: Path) -> dict[str, str]:
    """Content of all files but those that Lance makes with a time and random names."""
    return {name: content for name, content in digest(root).items() if not name.startswith("_")}


def test_rows_come_back(tmp_path: Path) -> None:
    job = JOBS["lance"]
    job.run(tmp_path / "a")
    job.run(tmp_path / "b", batch=7)
    assert made(tmp_path / "a") == made(tmp_path / "b")
    positions = job.survivors()
    rows = lance.dataset(str(tmp_path / "a")).to_table().to_pylist()
    for position, row in zip(positions, rows, strict=True):
        assert (row["key"], row["image"]) == (ORIGINS.origin(position).key, payload(position).tobytes())
        assert row["label"] == label(position)
        restored = np.frombuffer(row["tensor"], row["tensor/dtype"]).reshape(row["tensor/shape"])
        np.testing.assert_array_equal(restored, tensor(position))
    reader = Lance(
        path=(str(tmp_path / "a"), str(tmp_path / "b")), columns=("label", "image", "tensor/shape"), key="key"
    )
    source = open_reader(reader)
    assert source.groups is not None
    assert source.groups.tolist() == [11, 11, 11, 4] * 2
    order = np.random.default_rng(0).permutation(2 * len(positions))
    (labels, images, shapes), rejects = fetch(reader, source, order)
    assert not rejects
    expected = [positions[i % len(positions)] for i in order]
    assert labels.dense().ravel().tolist() == [label(p) for p in expected]
    assert content(images) == [payload(p).tobytes() for p in expected]
    assert shapes.dense().tolist() == [[2, 3]] * len(expected)


@pytest.mark.parametrize("at", [11, 24, 37, 46])
def test_an_interrupted_job_goes_on(tmp_path: Path, at: int) -> None:
    job = JOBS["lance"]
    job.run(tmp_path / "a")
    files_io.set_hook(Failing(at, errno.EIO, True))
    failure(job, tmp_path / "b")
    files_io.set_hook(None)
    job.run(tmp_path / "b")
    assert made(tmp_path / "a") == made(tmp_path / "b")
    assert verify(tmp_path / "b").sound
    assert lance.dataset(str(tmp_path / "b")).count_rows() == len(job.survivors())


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    job = JOBS["lance"]
    job.run(tmp_path / "a")
    (first, *_) = sorted((tmp_path / "a/data").iterdir())
    raw = first.read_bytes()
    first.write_bytes(raw[:100] + b"\xff" + raw[101:])
    assert {p.file for p in verify(tmp_path / "a").problems} == {f"data/{first.name}"}
    first.write_bytes(raw)
    lance.dataset(str(tmp_path / "a")).delete("label >= 0")
    assert verify(tmp_path / "a").problems[0].message == "lists other data files than the manifest"
    shutil.rmtree(tmp_path / "a/_deletions")
    job.run(tmp_path / "a", fresh=True)
    assert verify(tmp_path / "a").sound
    config = WriteConfig(tmp_path, "x", "lance", url="s3://bucket/x", fields=job.config(tmp_path).fields)
    with pytest.raises(SpecError, match="writes to folders only, not to s3://bucket/x"):
        config.check()
    with pytest.raises(JobError, match="nothing cannot be opened as a Lance data set: Dataset at path"):
        open_reader(Lance(path=str(tmp_path / "nothing"), columns=("a",)))
    with pytest.raises(SpecError, match="there is no column 'imag'; did you mean image"):
        open_reader(Lance(path=str(tmp_path / "a"), columns=("imag",)))


def test_what_lance_wrote(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"t": ["é", None, "b"], "n": pa.array([1, 2, 3], pa.int64()), "v": [[1.0], [], [2.0, 3.0]]})
    lance.write_dataset(table, str(tmp_path / "x"), max_rows_per_file=2)
    lance.dataset(str(tmp_path / "x")).delete("n = 1")
    lance.write_dataset(table, str(tmp_path / "x"), mode="append")
    reader = Lance(path=str(tmp_path / "x"), columns=("t", "n", "v"), key="n")
    source = open_reader(reader)
    (texts, numbers, lists), rejects = fetch(reader, source, range(5))
    assert [(r.slot, r.code) for r in rejects] == [(0, "missing_feature"), (3, "missing_feature")]
    assert content(texts)[1:3] == [b"b", "é".encode()]
    assert numbers.dense().ravel().tolist() == [2, 3, 1, 2, 3]
    assert [v.tolist() for v in lists] == [[], [2, 3], [1], [], [2, 3]]
    assert [source.origin(i).key for i in range(5)] == ["2", "3", "1", "2", "3"]
