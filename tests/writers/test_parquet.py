"""Parquet shards read back by pyarrow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Batch
from dali_run.ops.errors import SpecError
from dali_run.writers.base import FieldConfig, make_writer
from dali_run.writers.config import WriteConfig
from dali_run.writers.shards import Output
from tests.writers.helpers import JOBS, ORIGINS, label, payload, samples_of, tensor
from tests.writers.test_faults import inject

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
    types = {"key": "string", "image": "binary", "label": "int64", "tensor": "binary",
             "tensor/shape": "list<element: int64>", "tensor/dtype": "string"}  # fmt: skip
    assert {f.name: str(f.type) for f in table.schema} == types
    for position, row in zip(job.survivors(), table.to_pylist(), strict=True):
        assert row["key"] == ORIGINS.origin(position).key
        assert row["image"] == payload(position).tobytes()
        assert row["label"] == label(position)
        restored = np.frombuffer(row["tensor"], row["tensor/dtype"]).reshape(row["tensor/shape"])
        np.testing.assert_array_equal(restored, tensor(position))


def write(path: Path, values: list[np.ndarray], **options: object) -> list[object]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    samples = samples_of(np.arange(len(values)))
    config = WriteConfig(path, "x", "parquet", options, samples=2, fields={"v": FieldConfig()})
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


def test_errors_while_pyarrow_writes(tmp_path: Path) -> None:
    import errno

    assert inject("parquet", tmp_path, errno.ENOSPC, True, 7) >= 6


def test_options() -> None:
    with pytest.raises(SpecError, match="no field 'w'"):
        make_writer("parquet", {"lists": ["w"]}).check({"v": FieldConfig()}, {})
    with pytest.raises(SpecError, match="already the name"):
        make_writer("parquet", {"key": "v"}).check({"v": FieldConfig()}, {})
