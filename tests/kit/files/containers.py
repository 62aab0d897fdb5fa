"""Small containers of every format."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import lmdb


def masked(data: bytes) -> bytes:
    """Return TFRecord's masked checksum of ``data``: CRC-32C, rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(path: Path, values: list[bytes]) -> None:
    def field(value: bytes) -> bytes:
        return b"\x0a" + bytes([len(value)]) + value

    def example(value: bytes) -> bytes:
        entry = field(b"data") + b"\x12" + bytes([len(field(field(value)))]) + field(field(value))
        return field(field(entry))

    records = [example(v) for v in values]
    lengths = [struct.pack("<Q", len(r)) for r in records]
    path.write_bytes(b"".join(n + masked(n) + r + masked(r) for n, r in zip(lengths, records, strict=True)))


def tar(path: Path, values: list[bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for i, value in enumerate(values):
            info = tarfile.TarInfo(f"{path.stem}-{i}.jpg")
            info.size = len(value)
            archive.addfile(info, io.BytesIO(value))


def database(path: Path, values: list[bytes]) -> None:
    with lmdb.open(str(path), map_size=1 << 20, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        for i, value in enumerate(values):
            txn.put(b"%d" % i, value)


FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tfrecord": (tfrecord, {"op": "readers.tfrecord", "path": "", "features": {"data": "string"}}),
    "webdataset": (
        tar,
        {"op": "readers.webdataset", "paths": "", "ext": ["jpg"], "missing_component_behavior": "error"},
    ),
    "lmdb": (database, {"op": "readers.lmdb", "path": "", "keys": ["?"]}),
}
