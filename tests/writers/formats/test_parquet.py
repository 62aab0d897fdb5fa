"""Parquet shards read back by pyarrow."""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Batch
from dali_run.ops.errors import JobError, SpecError
from dali_run.writers.base import FieldConfig, Records, find_writer, make_writer
from dali_run.writers.bytes import files_io
from dali_run.writers.bytes.written import WrittenShard
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import inject
from tests.kit.writers import JOBS, ORIGINS, digest, label, payload, samples_of, tensor

pytest.importorskip("pyarrow", reason="needs the extra parquet")


def test_rows(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    job = JOBS["parquet"]
    job.run(tmp_path)
    shards = sorted(tmp_path.glob("*.parquet"))
    assert [s.name for s in shards] == [f"train-{k:05d}-of-00004.parquet" for k in range(4)]
    assert pq.ParquetFile(shards[0]).metadata.num_row_groups == 3  # 11 rows by fives, whatever the batches were
    table = pa.concat_tables([pq.read_table(s) for s in shards])
    types = {"key": "string", "image": "binary", "label": "int32", "tensor": "binary",
             "tensor/shape": "list<element: int64>", "tensor/dtype": "string"}  # fmt: skip
    assert {f.name: str(f.type) for f in table.schema} == types
    for position, row in zip(job.survivors(), table.to_pylist(), strict=True):
        assert row["key"] == ORIGINS.origin(position).key
        assert row["image"] == payload(position).tobytes()
        assert row["label"] == label(position)
        restored = np.frombuffer(row["tensor"], row["tensor/dtype"]).reshape(row["tensor/shape"])
        np.testing.assert_array_equal(restored, tensor(position))


def write(path: Path, values: list[np.ndarray], encode: str = "auto", **options: object) -> list[object]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    samples = samples_of(np.arange(len(values)))
    config = WriteConfig(path, "x", "parquet", options, samples=2, fields={"v": FieldConfig(encode)})
    with Output.open(config, {}, total=len(values)) as out:
        out.add(0, len(values), samples, {"v": Batch.from_list(values, "", samples)})
        out.finish()
    rows: list[object] = pa.concat_tables([pq.read_table(p) for p in sorted(path.glob("*.parquet"))])["v"].to_pylist()
    return rows


def test_numbers_and_lists(tmp_path: Path) -> None:
    lists = [np.array(v, np.float32) for v in ([1, 2], [3], [4], [], [5, 6, 7])]
    assert write(tmp_path / "a", lists) == [[1, 2], [3], [4], [], [5, 6, 7]]
    ones = [np.array([k], np.int32) for k in range(5)]
    assert write(tmp_path / "b", ones) == [0, 1, 2, 3, 4]
    assert write(tmp_path / "c", ones, lists=["v"]) == [[0], [1], [2], [3], [4]]
    assert write(tmp_path / "d", lists[1:]) == [3, 4]
    rejects = [json.loads(line) for line in (tmp_path / "d/rejects.jsonl").read_text().splitlines()]
    assert [r["position"] for r in rejects] == [2, 3]
    assert "option lists: [v]" in rejects[0]["message"]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "bool"])
def test_numbers_keep_their_type(tmp_path: Path, dtype: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = [np.array([k, k + 1] if k else [1], dtype) for k in range(3)]
    assert write(tmp_path, values, lists=["v"]) == [v.tolist() for v in values]
    (shard, _) = sorted(tmp_path.glob("*.parquet"))
    assert pq.read_schema(shard).field("v").type.value_type == pa.from_numpy_dtype(np.dtype(dtype))


def test_texts(tmp_path: Path) -> None:
    values = [np.frombuffer(v, np.uint8).copy() for v in ("é".encode(), b"\xff\xfe", b"", b"plain")]
    assert write(tmp_path / "a", values, "text") == ["é", "", "plain"]
    (row,) = [json.loads(line) for line in (tmp_path / "a/rejects.jsonl").read_text().splitlines()]
    assert (row["position"], row["code"]) == (1, "encode_failed")
    assert row["message"] == "field 'v' is not text in UTF-8; encode: auto keeps the bytes as they are"
    assert write(tmp_path / "b", values) == [v.tobytes() for v in values]


def test_features_of_hugging_face_and_their_card(tmp_path: Path) -> None:
    """The data set as `datasets` shows it, by its card and by the shards alone."""
    job = JOBS["parquet_card"]
    job.run(tmp_path / "a")
    job.run(tmp_path / "b", batch=7)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert verify(tmp_path / "a").sound
    job.run(tmp_path / "b", fresh=True)
    card = tmp_path / "b/README.md"
    card.write_text(card.read_text().replace("train", "test"))
    assert [p.file for p in verify(tmp_path / "b").problems] == ["README.md"]
    datasets = pytest.importorskip("datasets")
    positions = job.survivors()
    for place in ({"path": str(tmp_path / "a")}, {"path": "parquet", "data_files": f"{tmp_path}/a/*.parquet"}):
        loaded = datasets.load_dataset(**place, cache_dir=str(tmp_path / "cache"), split="train")
        assert loaded.features["label"].names == ["a", "b: c"]
        raw = loaded.cast_column("image", datasets.Image(decode=False))
        assert [row["bytes"] for row in raw["image"]] == [payload(p).tobytes() for p in positions]


def test_row_groups_end_by_bytes(tmp_path: Path) -> None:
    """Whatever the batches: the same row groups, of no more than a few bytes."""
    import pyarrow.parquet as pq

    job = replace(JOBS["parquet"], samples=None, options={"row_group": 7, "row_group_bytes": 9000})
    job.run(tmp_path / "a", batch=5)
    job.run(tmp_path / "b", batch=40)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    meta = pq.read_metadata(tmp_path / "a/train-00000-of-00001.parquet")
    rows = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
    assert sum(rows) == len(job.survivors())
    assert max(rows) == 7
    assert len(set(rows[:-1])) > 1


def test_long_columns_are_cut_into_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's arrays of bytes hold 2 GiB at most; here 100 bytes."""
    JOBS["parquet"].run(tmp_path / "a", batch=40)
    monkeypatch.setattr("dali_run.writers.formats.arrow._PIECE", 100)
    JOBS["parquet"].run(tmp_path / "b", batch=40)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_verify_reads_every_row_group(tmp_path: Path) -> None:
    """Also where the checksum of the file was made of damaged bytes."""
    JOBS["parquet"].run(tmp_path)
    shard = min(tmp_path.glob("*.parquet"))
    good = shard.read_bytes()
    raw = bytearray(good)
    at = raw.index(payload(6).tobytes()[:40])
    raw[at + 20] ^= 1
    shard.write_bytes(raw)
    assert [str(p) for p in verify(tmp_path).problems] == [
        f"{shard.name}: its content is not what was written (crc32c and tree differ)"
    ]
    walk = find_writer("parquet").walk
    assert not list(walk(WrittenShard(tmp_path, {"samples": 11, "files": [{"name": shard.name}]}, {}, sound=False)))
    with pytest.raises((ValueError, OSError), match="CRC checksum"):
        list(walk(WrittenShard(tmp_path, {"samples": 11, "files": [{"name": shard.name}]}, {}, sound=True)))


def test_errors_while_pyarrow_writes(tmp_path: Path) -> None:
    assert inject("parquet", tmp_path, errno.ENOSPC, True, 7) >= 6


def test_nothing_is_said_about_shards_that_were_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pyarrow closes files when they are collected, and would write to them."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    job = JOBS["parquet"]
    with Output.open(job.config(tmp_path / "a"), {}, total=job.total) as out:
        out.add(0, 10, *job.batch(0, 10))  # and no more
    files_io.set_hook(lambda operation, path: fail() if operation == "write" and "00001" in path else None)
    try:
        with pytest.raises(JobError, match="ENOSPC"):
            job.run(tmp_path / "b")
    finally:
        files_io.set_hook(None)
    gc.collect()
    assert not said
    assert capsys.readouterr().err == ""


def fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the disk")


def test_options() -> None:
    with pytest.raises(SpecError, match="no field 'w'"):
        make_writer("parquet", {"lists": ["w"]}).check({"v": FieldConfig()}, {})
    with pytest.raises(SpecError, match="already the name"):
        make_writer("parquet", {"key": "v"}).check({"v": FieldConfig()}, {})


def test_a_record_that_fills_a_row_group_is_not_copied() -> None:
    samples = samples_of(np.arange(2))
    writer = make_writer("parquet", {"row_group_bytes": 1000})
    for size, shared in ((1000, True), (999, False)):
        batch = Batch.from_list([np.full(size, k, np.uint8) for k in (1, 2)], "", samples)
        table = writer.table_of(Records(samples, {"v": batch}), {"v": FieldConfig()}, {}).table
        addresses = [chunk.buffers()[2].address for chunk in table["v"].chunks]
        first = batch.data.ctypes.data
        assert (addresses == [first + at for at in batch.offsets.tolist()]) == shared
        assert table["v"].to_pylist() == [b"\1" * size, b"\2" * size]
