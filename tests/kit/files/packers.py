"""Pack JPEGs into one container: TFRecord, tar, LMDB, RecordIO."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb
import numpy as np

from dali_run.ops.storage.crc32c_cpu import masked_crc32c


def _tfrecord(contents: Iterable[bytes], root: Path) -> None:
    def varint(n: int) -> bytes:
        out = bytearray()
        while n >= 128:
            out.append(n & 127 | 128)
            n >>= 7
        return bytes([*out, n])

    def field(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(body)) + body

    with (root / "images.tfrecord").open("wb") as out:
        for i, content in enumerate(contents):
            features = {b"image": field(1, field(1, content)), b"label": field(3, field(1, varint(i % 10)))}
            record = field(1, b"".join(field(1, field(1, k) + field(2, v)) for k, v in features.items()))
            length = struct.pack("<Q", len(record))
            for part in (length, record):
                out.write(part + struct.pack("<I", masked_crc32c(np.frombuffer(part, np.uint8), 0, len(part))))


def _tar(contents: Iterable[bytes], root: Path) -> None:
    with tarfile.open(root / "images.tar", "w") as tar:
        for i, content in enumerate(contents):
            for name, body in ((f"{i:06d}.jpg", content), (f"{i:06d}.cls", str(i % 10).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))


def _lmdb(contents: Iterable[bytes], root: Path) -> None:
    with lmdb.open(str(root / "images.lmdb"), map_size=1 << 34) as env, env.begin(write=True) as transaction:
        for i, content in enumerate(contents):
            transaction.put(f"{i:08d}".encode(), content)


def _recordio(contents: Iterable[bytes], root: Path) -> None:
    with (root / "images.rec").open("wb") as out, (root / "images.idx").open("w") as index:
        for i, content in enumerate(contents):
            index.write(f"{i}\t{out.tell()}\n")
            record = struct.pack("<IfQQ", 0, float(i % 10), i, 0) + content
            out.write(struct.pack("<II", 0xCED7230A, len(record)) + record + bytes(-len(record) % 4))


PACKERS: dict[str, Callable[[Iterable[bytes], Path], None]] = {
    "tfrecord": _tfrecord, "tar": _tar, "lmdb": _lmdb, "recordio": _recordio,
}  # fmt: skip
