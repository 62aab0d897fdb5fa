"""Outputs, read by other libraries or after their descriptions."""

from __future__ import annotations

import tarfile
from pathlib import Path

import lmdb


def read_lmdb(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        rows = dict(txn.cursor())
        assert env.stat()["entries"] == len(rows)
        for key, value in rows.items():
            assert txn.get(key) == value  # by descent, not by walking the leaves
    return rows


def read_recordio(path: Path) -> list[bytes]:
    """After dmlc-core's description: magic, flag and length, data, padding; parts are joined by the magic number."""
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
    """The members of all archives in a folder, by their names."""
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                data = tar.extractfile(member)
                assert data is not None
                assert member.name not in found
                found[member.name] = data.read()
    return found
