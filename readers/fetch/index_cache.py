"""Cache the indexes of containers on disk, so that each file is scanned once. A cached index is valid only for a file
of the same path, size and modification time.

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
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

WORTHWHILE = 16 << 20
"""Size in bytes from which the index of a container is cached; smaller containers are scanned in no noticeable time."""

_MAGIC = int.from_bytes(b"dalirunx", "little")
_HEADER = 6


def _index_paths(path: str, kind: str) -> list[Path]:
    """Possible paths of the index of ``path``: a hidden file next to it, then one in the user's cache folder."""
    full = os.path.abspath(path)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(os.fsencode(full)).hexdigest()[:40]
    return [
        Path(os.path.dirname(full), f".{os.path.basename(full)}.{kind}-index"),
        Path(home, "dali-run", "index", f"{name}.{kind}-index"),
    ]


def load(path: str, kind: str, version: int, size: int, mtime_ns: int, columns: int) -> list[I64] | None:
    """Return the columns of the cached index of ``path``; None if no index fits its size, time and version. Anyone may
    have written the file with the index, so the caller checks every bound."""
    if size < WORTHWHILE:
        return None
    for place in _index_paths(path, kind):
        with contextlib.suppress(OSError), open(place, "rb") as file:
            index = _read(file, [_MAGIC, version, size, mtime_ns, columns])
            if index is not None:
                return index
    return None


def _read(file: BinaryIO, key: list[int]) -> list[I64] | None:
    """Read the columns of an index file, without a second copy in memory: the columns of a billion records take 24 GB.
    Return None if the file is damaged, or does not begin with ``key``: magic number, version, size and time of the
    container, number of columns."""
    columns, words = key[-1], os.fstat(file.fileno()).st_size // 8
    table = np.fromfile(file, "<i8", _HEADER + columns)
    if len(table) < _HEADER + columns or table[: _HEADER - 1].tolist() != key:
        return None
    lengths = table[_HEADER:].tolist()
    if min(lengths) < 0 or sum(lengths) != words - len(table) or os.fstat(file.fileno()).st_size % 8:
        return None
    found = [np.fromfile(file, "<i8", n) for n in lengths]
    if [len(c) for c in found] != lengths or table[_HEADER - 1] != _crc(table[_HEADER:], *found):
        return None
    return [c.astype(np.int64, copy=False) for c in found]


def _crc(*arrays: I64) -> int:
    crc = 0
    for array in arrays:
        crc = zlib.crc32(array.view(np.uint8).data, crc)
    return crc


def joined(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Concatenate the columns of several indexes, and empty ``parts`` meanwhile, so that at most one column is in
    memory twice."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    found = []
    for column in columns:
        found.append(column[0] if len(column) == 1 else np.concatenate(column))
        column.clear()
    return tuple(found)


def store(path: str, kind: str, version: int, size: int, mtime_ns: int, columns: list[I64]) -> None:
    """Write an index to the first of its possible paths that is writable, atomically. A failure raises nothing: the
    next run scans the container again."""
    if size < WORTHWHILE:
        return
    lengths = np.array([len(c) for c in columns], "<i8")
    body = [lengths, *(np.ascontiguousarray(c, "<i8") for c in columns)]
    header = np.array([_MAGIC, version, size, mtime_ns, len(columns), _crc(*body)], "<i8")
    for place in _index_paths(path, kind):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".dali-run-", dir=place.parent)
        except OSError:
            continue
        try:
            with os.fdopen(handle, "wb") as file:
                for array in (header, *body):
                    file.write(array.view(np.uint8).data)
            os.replace(temporary, place)
        except BaseException as e:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if not isinstance(e, OSError):
                raise
            continue
        return
