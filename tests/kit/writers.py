"""Jobs small enough to run hundreds of times: samples of every kind that writers take, made from their positions."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Origin, Samples
from dali_run.writers.base import FieldConfig
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.rejects import RejectRow


class Keys:
    """Keys of samples like those of a folder of images; some are hostile, some occur twice."""

    def origin(self, index: int) -> Origin:
        if index % 7 == 3:
            return Origin(f"../../../etc/passwd{index % 2}", "hostile")
        if index % 4 == 1:
            return Origin("same/name.jpg", "twice")
        return Origin(f"n{index % 3:02d}/img.{index:04d}.JPEG", f"/data/n{index % 3:02d}", offset=index)


ORIGINS = Keys()


def samples_of(positions: Any) -> Samples:
    at = np.asarray(positions, np.int64)
    return Samples(np.arange(len(at), dtype=np.int32), at, np.zeros(len(at), np.int64), at, ORIGINS)


def payload(position: int, large: bool = True) -> np.ndarray:
    rng = np.random.default_rng(position)
    size = int(rng.integers(0, 9000 if large and position % 3 == 0 else 300))
    data = rng.integers(0, 256, size, np.uint8)
    data[: len(b"\xff\xd8\xff")] = np.frombuffer(b"\xff\xd8\xff", np.uint8)[: len(data)]
    if size > 64:  # the bytes that RecordIO has to escape, aligned behind its 24-byte header
        data[8:12] = np.frombuffer((0xCED7230A).to_bytes(4, "little"), np.uint8)
    return data


def label(position: int) -> int:
    return position * 37 % 1000 - 3


def tensor(position: int) -> np.ndarray:
    return np.random.default_rng(position + 10**6).standard_normal((2, 3)).astype(np.float32)


def is_bad(position: int) -> bool:
    return position % 13 == 4


def bytes_batch(samples: Samples) -> Batch:
    return Batch.from_list([payload(int(p)) for p in samples.position], "", samples) if len(samples) else empty(samples)


def empty(samples: Samples) -> Batch:
    return Batch(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros((0, 1), np.int32), "", samples)


def label_batch(samples: Samples) -> Batch:
    values = np.array([[label(int(p))] for p in samples.position], np.int32).reshape(-1, 1)
    return Batch.from_dense(values, "", samples)


def tensor_batch(samples: Samples) -> Batch:
    rows = [tensor(int(p)) for p in samples.position]
    return Batch.from_dense(np.stack(rows) if rows else np.zeros((0, 2, 3), np.float32), "HW", samples)


@dataclass(frozen=True)
class Job:
    """The samples of a job, and how they are cut into shards."""

    writer: str
    total: int = 40
    samples: int | None = 12
    bytes: int | None = None
    options: Mapping[str, Any] | None = None
    fields: tuple[str, ...] = ("image", "label", "tensor")
    known_total: bool = True
    bad: bool = True
    sha256: bool = False

    def config(self, path: Path) -> WriteConfig:
        encode = {"image": FieldConfig("keep"), "label": FieldConfig(), "tensor": FieldConfig()}
        return WriteConfig(
            path,
            "train",
            self.writer,
            self.options or {},
            self.samples,
            self.bytes,
            {k: encode[k] for k in self.fields},
            sha256=self.sha256,
        )

    def batch(self, start: int, stop: int) -> tuple[Samples, dict[str, Batch], list[RejectRow]]:
        positions = np.arange(start, stop)
        bad = np.array([self.bad and is_bad(int(p)) for p in positions], bool)
        samples = samples_of(positions[~bad])
        make = {"image": bytes_batch, "label": label_batch, "tensor": tensor_batch}
        rows = []
        for p in positions[bad].tolist():
            origin = ORIGINS.origin(p)
            rows.append(
                RejectRow(
                    p, origin.key, origin.source, origin.record, origin.offset, "decode", "truncated", "ends\nearly"
                )
            )
        return samples, {k: make[k](samples) for k in self.fields}, rows

    def run(self, path: Path, batch: int = 5, identity: Mapping[str, Any] | None = None, **options: Any) -> Output:
        total = self.total if self.known_total else None
        with Output.open(self.config(path), identity or {"seed": 1}, total=total, **options) as out:
            at = out.resume_from
            while at < self.total:
                stop = min(at + batch, self.total)
                out.add(at, stop, *self.batch(at, stop))
                at = stop
            out.finish({"took": 1.5})
        return out

    def survivors(self) -> list[int]:
        return [p for p in range(self.total) if not (self.bad and is_bad(p))]


JOBS: dict[str, Job] = {
    "tfrecord": Job("tfrecord"),
    "tfrecord_bytes": Job("tfrecord", samples=None, bytes=20000, options={"key": "key"}),
    "tfrecord_both": Job("tfrecord", samples=12, bytes=9000, known_total=False),
    "lmdb": Job("lmdb", fields=("image",)),
    "lmdb_keys": Job("lmdb", options={"key": "sample"}),
    "lmdb_bytes": Job("lmdb", samples=None, bytes=30000),
    "webdataset": Job("webdataset"),
    "webdataset_bytes": Job("webdataset", samples=None, bytes=20000),
    "numpy": Job("numpy", fields=("label", "tensor")),
    "numpy_bytes": Job("numpy", samples=None, bytes=300, fields=("label", "tensor")),
    "files": Job("files"),
    "recordio": Job("recordio", fields=("image", "label")),
    "mds": Job("mds"),
    "mds_bytes": Job("mds", samples=None, bytes=20000, known_total=False),
    "litdata": Job("litdata"),
    "one_shard": Job("tfrecord", samples=None),
}


HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
PARQUET = pytest.param("parquet", marks=pytest.mark.skipif(not HAS_PYARROW, reason="needs the extra parquet"))
PARQUET_CARD = pytest.param("parquet_card", marks=PARQUET.marks)
"""Names of these jobs, for `pytest.mark.parametrize`."""
if HAS_PYARROW:
    JOBS["parquet"] = Job("parquet", options={"row_group": 5})
    CARD = {"features": {"image": "image", "label": ["a", "b: c"]}, "key": "", "row_group": 5}
    JOBS["parquet_card"] = Job("parquet", options=CARD, fields=("image", "label"))
    JOBS["parquet_bytes"] = Job("parquet", samples=None, bytes=20000)


HAS_LANCE = importlib.util.find_spec("lance") is not None
if HAS_LANCE:
    JOBS["lance"] = Job("lance")
HAS_ARRAY_RECORD = importlib.util.find_spec("array_record") is not None
if HAS_ARRAY_RECORD:
    JOBS["array_record"] = Job("array_record")


def walk(root: Path) -> Iterator[Path]:
    return (p for p in sorted(root.rglob("*")) if p.is_file())


def digest(root: Path, *, report: bool = False) -> dict[str, str]:
    """Return SHA-256 of every file below ``root`` (of the report, which contains times, only on request)."""
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in walk(root)
        if report or p.name != "report.json"
    }
