"""readers.listing: what the writer files wrote, sample by sample; and listings that somebody else made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.listing import Listing
from tests.kit.writers import JOBS, label, payload, tensor

FIELDS = {"image": "bytes", "label": "int", "tensor": "bytes"}


def read(reader: Listing) -> tuple[list[str], list[list[Any]], dict[int, str]]:
    """Keys, the fields of each sample, and the messages of rejected ones."""
    reader.check()
    source = reader.open()
    at = np.arange(len(source))
    samples = Samples(at.astype(np.int32), at, np.zeros(len(at), np.int64), at, source)
    ctx = Context(op=reader, stage="cpu", samples=samples, source=source)
    batches = source.fetch(ctx)
    keys = [source.origin(i).key for i in range(len(source))]
    rows = [[np.asarray(b.sample(i)) for b in batches] for i in range(len(source))]
    return keys, rows, {r.slot: r.message for r in ctx.rejects}


def test_samples_come_back_with_keys_files_and_numbers(tmp_path: Path) -> None:
    job = JOBS["files"]
    job.run(tmp_path)
    keys, rows, rejects = read(Listing(path=f"{tmp_path}/train-*.jsonl", fields=FIELDS))
    assert not rejects
    assert keys[:2] == ["n00/img.0000.JPEG", "same/name.jpg"]
    for position, (image, number, array) in zip(job.survivors(), rows, strict=True):
        assert image.tobytes() == payload(position).tobytes()
        assert number.tolist() == [label(position)]
        assert array.tobytes().endswith(tensor(position).tobytes())


def test_what_is_missing_costs_its_sample(tmp_path: Path) -> None:
    lines = [
        {"key": "a", "files": ["a.jpg"], "field:label": 1},
        {"key": "b", "files": ["gone.jpg"], "field:label": 2},
        {"key": "c", "files": ["a.jpg"]},
        {"key": "d", "files": [], "field:label": 4},
        {"key": "e", "files": ["a.jpg"], "field:label": 4.5},
    ]
    (tmp_path / "a.jpg").write_bytes(b"picture")
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys, rows, rejects = read(Listing(path=str(tmp_path / "x.jsonl"), fields={"image": "bytes", "label": "int"}))
    assert keys == list("abcde")
    assert rows[0][0].tobytes() == b"picture"
    assert sorted(rejects) == [1, 2, 3, 4]
    assert "No such file" in rejects[1]
    assert "has no int in the field 'label'" in rejects[2]
    assert "lists 0 files for 1 fields" in rejects[3]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"key": 1, "files": []}', b'{"files": ["a"]}', b'{"key": "a", "files": ["../a"]}',
             b'{"key": "a", "files": ["/etc/passwd"]}', b'{"key": "a\\u0000", "files": []}', b"[" * 100_000],
)  # fmt: skip
def test_other_lines_are_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"key": "a", "files": []}\n' + line + b"\n")
    with pytest.raises(JobError, match=r"x\.jsonl:2: is not a line of the writer files"):
        Listing(path=str(tmp_path / "x.jsonl"), fields={"label": "int"}).open()


def test_fields_are_checked() -> None:
    for fields, words in (({}, "fields is empty"), ({"a": "text"}, "must be bytes, int or float")):
        with pytest.raises(SpecError, match=words):
            Listing(path="x.jsonl", fields=fields).check()
