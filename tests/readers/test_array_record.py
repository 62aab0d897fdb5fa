"""ArrayRecord files that our writer makes, read by array_record and by readers.array_record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import JobError
from dali_run.pipelines.tools.datasets import example_fields
from dali_run.writers.shards.verify import verify
from tests.kit.readers import content, fetch, open_reader
from tests.kit.writers import JOBS, ORIGINS, digest, label, payload

module = pytest.importorskip("array_record.python.array_record_module", reason="needs the extra array-record")
from dali_run.readers.streaming.array_record import ArrayRecord  # noqa: E402

FEATURES = {"image": "string", "label": "int64"}


def test_records_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JOBS["array_record"]
    job.run(tmp_path / "a")
    job.run(tmp_path / "b", batch=7)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert verify(tmp_path / "a").sound
    positions = job.survivors()
    files = sorted((tmp_path / "a").glob("*.array_record"))
    records = [r for f in files for r in module.ArrayRecordReader(str(f)).read_all()]
    assert [example_fields(r)["image"] for r in records] == [payload(p).tobytes() for p in positions]
    reader = ArrayRecord(path=f"{tmp_path}/a/*.array_record", features=FEATURES, key="key")
    source = open_reader(reader)
    order = np.random.default_rng(0).permutation(len(positions))
    (images, labels), rejects = fetch(reader, source, order)
    assert not rejects
    assert content(images) == [payload(positions[i]).tobytes() for i in order]
    assert labels.dense().ravel().tolist() == [label(positions[i]) for i in order]
    keys = [ORIGINS.origin(positions[i]).key for i in order]
    with monkeypatch.context() as patch:
        patch.setattr(type(source), "_read", None)  # fetched records are not read again for their keys
        assert [o.key for o in source.origins_of(order)] == keys
    assert [source.origin(int(i)).key for i in order] == keys
    whole = ArrayRecord(path=str(files[0]))
    assert content(fetch(whole, open_reader(whole), range(3))[0][0]) == records[:3]


def test_damage_costs_the_records_that_it_touches(tmp_path: Path) -> None:
    job = JOBS["array_record"]
    job.run(tmp_path)
    path = sorted(tmp_path.glob("*.array_record"))[1]
    raw = path.read_bytes()
    at = raw.index(payload(job.survivors()[12]).tobytes()[:20])
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 255]) + raw[at + 1 :])
    reader = ArrayRecord(path=f"{tmp_path}/*.array_record", features=FEATURES)
    source = open_reader(reader)
    _, rejects = fetch(reader, source, range(len(source)))
    assert [(r.slot, r.code) for r in rejects] == [(12, "corrupt_record")]
    for data in (b"", b"no records", raw[: len(raw) // 2]):
        path.write_bytes(data)
        with pytest.raises(JobError, match="cannot be opened as an ArrayRecord file"):
            open_reader(reader)
