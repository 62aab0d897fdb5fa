"""Indexes of containers on disk, so that a file is walked once. A cached index is believed only for the very file.

Layout: little-endian int64: magic, version, file size, modification time (ns), number of columns, CRC-32 of the rest,
then the length of each column, then the columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

WORTHWHILE = 16 << 20
"""Bytes of a container from which on its index is kept; smaller ones are walked faster than one can see."""

_MAGIC = int.from_bytes(b"dalirunx", "little")
_HEADER = 6


def _places(path: str, kind: str) -> list[Path]:
    """Where the index of ``path`` may lie: hidden beside it, else in the user's cache."""
    full = os.path.abspath(path)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(os.fsencode(full)).hexdigest()[:40]
    return [
        Path(os.path.dirname(full), f".{os.path.basename(full)}.{kind}-index"),
        Path(home, "dali-run", "index", f"{name}.{kind}-index"),
    ]


def load(path: str, kind: str, version: int, size: int, mtime_ns: int, columns: int) -> list[I64] | None:
    """The columns of the cached index of ``path``, or None where there is none for this size, time and version.

    The numbers come from a file that anyone may have written: the caller checks every bound.
    """
    if size < WORTHWHILE:
        return None
    for place in _places(path, kind):
        with contextlib.suppress(OSError):
            raw = place.read_bytes()
            body = _HEADER + columns
            if len(raw) < 8 * body or len(raw) % 8:
                continue
            table = np.frombuffer(raw, "<i8").astype(np.int64)
            *key, crc = table[:_HEADER].tolist()
            lengths = table[_HEADER:body].tolist()
            if key != [_MAGIC, version, size, mtime_ns, columns] or crc != zlib.crc32(raw[8 * _HEADER :]):
                continue
            if min(lengths) < 0 or sum(lengths) != len(table) - body:
                continue
            return np.split(table[body:], np.cumsum(lengths)[:-1])
    return None


def store(path: str, kind: str, version: int, size: int, mtime_ns: int, columns: list[I64]) -> None:
    """Keep an index where one may be written; written whole or not at all. Failure is no error, only slower."""
    if size < WORTHWHILE:
        return
    lengths = np.array([len(c) for c in columns], "<i8")
    body = b"".join(np.ascontiguousarray(c, "<i8").tobytes() for c in (lengths, *columns))
    header = np.array([_MAGIC, version, size, mtime_ns, len(columns), zlib.crc32(body)], "<i8").tobytes()
    for place in _places(path, kind):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".dali-run-", dir=place.parent)
        except OSError:
            continue
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(header + body)
            os.replace(temporary, place)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            continue
        return
