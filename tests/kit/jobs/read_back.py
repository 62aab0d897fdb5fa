"""Read outputs with other libraries, or according to their format's description."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow.dataset
import tfrecord
import yaml
from webdataset import autodecode, tariterators


def read_lmdb(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        rows = dict(txn.cursor())
        assert env.stat()["entries"] == len(rows)
        for key, value in rows.items():
            assert txn.get(key) == value  # found by descent in the tree, not by walking the leaves
    return rows


def read_recordio(path: Path) -> list[bytes]:
    """Read the records of a RecordIO file according to dmlc-core's description: magic, flag and length, data, padding;
    parts are joined by the magic number."""
    data, at, out, parts = path.read_bytes(), 0, [], []
    magic = (0xCED7230A).to_bytes(4, "little")
    while at < len(data):
        assert data[at : at + 4] == magic
        word = int.from_bytes(data[at + 4 : at + 8], "little")
        flag, length = word >> 29, word & (1 << 29) - 1
        parts.append(data[at + 8 : at + 8 + length])
        at += 8 + -(-length // 4) * 4
        if flag in (0, 3):
            out.append(magic.join(parts))
            parts = []
    return out


def members(out: Path) -> dict[str, bytes]:
    """Return the members of all archives in a folder, by name."""
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                data = tar.extractfile(member)
                assert data is not None
                assert member.name not in found
                found[member.name] = data.read()
    return found


def read_by_the_field(spec: Any, out: Path) -> None:
    """Read a finished output with the readers that its users have, and assert that every sample has every field of the
    spec (a mapping, or its file), under the name by which these readers look for it."""
    if isinstance(spec, Path):
        spec = yaml.safe_load(spec.read_text())
    fields, writer = spec["outputs"], spec["write"]["writer"]
    manifest = json.loads((out / "manifest.json").read_text())
    shards = [str(out / f["name"]) for s in manifest["shards"] for f in s["files"]]
    main = [p for p in shards if not p.endswith((".idx", ".jsonl"))]
    _READERS.get(writer, lambda *_: None)(main, fields, manifest["samples"])


def _webdataset(paths: list[str], fields: dict[str, Any], samples: int) -> None:
    decode = autodecode.Decoder([autodecode.imagehandler("pil")])
    found = []
    for path in paths:
        with open(path, "rb") as stream:
            members = tariterators.tar_file_expander([{"url": path, "stream": stream}])
            found += [decode(sample) for sample in tariterators.group_by_keys(members)]
    assert len(found) == samples
    decoders = {*autodecode.decoders, "jpg", "jpeg", "png", "webp", "wav", "flac", "mp4", "mp3"}
    for sample in found:
        names = {k for k in sample if not k.startswith("__")}
        assert len(names) == len(fields), f"{names} for {set(fields)}"
        assert decoders.intersection(fields) <= names
        for name in names:
            if name.rpartition(".")[2] in autodecode.decoders:
                assert not isinstance(sample[name], bytes), f"{name} was not decoded"


def _tfrecord(paths: list[str], fields: dict[str, Any], samples: int) -> None:
    found = [r for p in paths for r in tfrecord.tfrecord_loader(p, None)]
    assert len(found) == samples
    assert all(set(fields) <= set(r) for r in found)


def _parquet(paths: list[str], fields: dict[str, Any], samples: int) -> None:
    table = pyarrow.dataset.dataset(paths).to_table()
    assert table.num_rows == samples
    assert set(fields) <= set(table.column_names)


def _lmdb(paths: list[str], _: dict[str, Any], samples: int) -> None:
    assert sum(len(read_lmdb(Path(p).parent)) for p in paths if p.endswith("data.mdb")) == samples


def _numpy(paths: list[str], fields: dict[str, Any], samples: int) -> None:
    for field in fields:
        arrays = [np.load(p) for p in paths if p.endswith(f".{field}.npy")]
        assert sum(map(len, arrays)) == samples


_READERS = {"webdataset": _webdataset, "tfrecord": _tfrecord, "parquet": _parquet, "lmdb": _lmdb, "numpy": _numpy}
