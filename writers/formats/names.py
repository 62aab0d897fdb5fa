"""Derive names of records from the samples' keys: safe paths inside the output, and unique."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64
from .columns import Column, from_values

_PLAIN = re.compile(
    r"(?:[A-Za-z0-9_@+=~#-][A-Za-z0-9_.@+=~#-]{0,120}/){0,4}[A-Za-z0-9_@+=~#-][A-Za-z0-9_.@+=~#-]{0,120}"
)
"""Keys that can be used as relative paths without any change."""
COMMON = re.compile(
    r"((?:[A-Za-z0-9_@+=~#-][A-Za-z0-9_.@+=~#-]{0,120}/){0,4}[A-Za-z0-9_@+=~#-]{1,120})(?:\.[A-Za-z0-9]{1,8})?"
)
"""Keys that webdataset accepts once their extension is removed; the first group is the key without extension.
(`tar_cpu.common_sizes` is the same rule for whole batches.)"""
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LONGEST_PART = 200
_LONGEST = 1000


def safe_path(key: str) -> str:
    """Turn ``key`` into a relative path that stays below its root: no empty, ``.``, ``..`` or hidden parts, no control
    characters, no backslashes (which separate folders on other systems), bounded lengths."""
    if _PLAIN.fullmatch(key):
        return key
    parts = [_safe_part(p) for p in key.split("/") if p not in ("", ".")]
    path = "/".join(parts) or "_"
    if len(path.encode()) > _LONGEST:
        path = _shorten(path.replace("/", "_"), _LONGEST_PART)
    return path


def _safe_part(part: str) -> str:
    part = _UNSAFE.sub("_", part)
    if part.startswith("."):
        part = "_" + part[1:]
    return _shorten(part, _LONGEST_PART)


def _shorten(text: str, limit: int) -> str:
    """Shorten ``text`` to at most ``limit`` bytes of UTF-8; a digest in it keeps shortened texts distinct."""
    data = text.encode()
    if len(data) <= limit:
        return text
    digest = hashlib.sha256(data).hexdigest()[:16]
    return data[: limit - 17].decode(errors="ignore") + "~" + digest


def split_extension(path: str) -> tuple[str, str]:
    """Return a path without its last extension, and the extension (with its dot; empty if there is none)."""
    folder, slash, base = path.rpartition("/")
    stem, dot, extension = base.rpartition(".")
    if not dot or not stem or len(extension) > 8:
        return path, ""
    return folder + slash + stem, dot + extension


def webdataset_key(key: str) -> str:
    """Turn ``key`` into webdataset's ``__key__``: without extension, and without further dots in the base name, because
    its readers split there; no white space, because index files split there."""
    common = COMMON.fullmatch(key)
    if common is not None:
        return common[1]
    path = split_extension(safe_path(key))[0]
    folder, slash, base = path.rpartition("/")
    return re.sub(r"\s", "_", folder + slash + base.replace(".", "_"))


def make_unique(names: Sequence[str], positions: Sequence[int], taken: Container[str]) -> list[str]:
    """Return ``names`` with the sample's position appended to names that are in ``taken`` or occur twice."""
    out: list[str] = []
    here: set[str] = set()
    for name, position in zip(names, positions, strict=True):
        unique, k = name, 0
        while unique in here or unique in taken:
            unique = f"{name}~{position}" + (f"-{k}" if k else "")
            k += 1
        here.add(unique)
        out.append(unique)
    return out


class UsedNames:
    """The names in use in a shard, so that all of its records get distinct names."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()
        self._columns: list[Column] = []
        self._names: set[str] | None = None
        """All names in use. Created when two hashes first collide, because equal names are rare."""

    def unique(self, names: Column, positions: I64) -> Column:
        """Return ``names``, with the sample's position appended if they are used or occur twice. Changes nothing."""
        hashes = _hashes(names).tolist()
        if len(set(hashes)) == len(hashes) and self._hashes.isdisjoint(hashes):
            return names
        if self._names is None:
            self._names = set()
            for column in self._columns:
                self._names.update(texts(column))
            self._columns.clear()
        unique = make_unique(texts(names), positions.tolist(), self._names)
        return from_values([n.encode("utf-8", "surrogateescape") for n in unique])

    def add(self, names: Column) -> None:
        """Mark these names as used in the shard."""
        self._hashes.update(_hashes(names).tolist())
        if self._names is None:
            self._columns.append(names)
        else:
            self._names.update(texts(names))


def texts(names: Column) -> list[str]:
    """Return the names as a list of texts."""
    return [names.value(i).decode("utf-8", "surrogateescape") for i in range(len(names))]


def _hashes(names: Column) -> npt.NDArray[np.uint64]:
    from .tar_cpu import hash_names

    hashes: npt.NDArray[np.uint64] = hash_names(names.data, names.starts, names.sizes)
    return hashes
