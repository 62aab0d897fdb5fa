"""File name extensions of fields, for tar and file outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64, Batch
from ...ops.codecs.formats import FORMATS, SUFFIXES
from ..base import FieldConfig, Records
from .columns import Column, Kind, as_bytes, as_decimal, as_npy, check_encoded, copy, elements, kind_of

_BY_ENCODING = {f.name: f.suffixes[0][1:] for f in FORMATS} | {
    "npy": "npy",
    "flac": "flac",
    "wav": "wav",
    "text": "txt",
}
_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    *((s.mark, s.at, (s.suffix or f.suffixes[0])[1:]) for f in FORMATS for s in f.signatures),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"WAVE", 8, "wav"),
    (b"ftyp", 4, "mp4"),
    (b"\x93NUMPY", 0, "npy"),
)
"""Signatures by which encoded bytes are recognized, each as (bytes, their offset in the file, extension)."""
_REACH = 16
_TEXT = {
    "cls", "cls2", "class", "count", "csv", "html", "id", "index", "inx", "json", "md", "text", "transcript", "txt",
    "xml", "yaml",
}  # fmt: skip
KNOWN = _TEXT | {
    *(suffix[1:] for suffix in SUFFIXES), "j2k", "npy", "npz", "wav", "flac", "ogg", "opus", "mp3", "m4a", "aac", "mp4",
    "mkv", "webm", "mov", "avi", "bin", "msg",
}  # fmt: skip
"""File name extensions by which readers choose a decoder. A field with such a name becomes a tar member or file with
this extension."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """File name extension of each record: record i has ``table[which[i]]``."""

    table: tuple[str, ...]
    which: I64

    def texts(self) -> list[str]:
        """Return the extension of each record as text."""
        return [self.table[k] for k in self.which.tolist()]


def _all(extension: str, n: int) -> Extensions:
    return Extensions((extension,), np.zeros(n, np.int64))


def sniff(column: Column) -> Extensions:
    """Return the extension that fits the first bytes of each value; ``bin`` if they are unknown."""
    n = len(column)
    heads = np.zeros((n, _REACH), np.uint8)
    at = np.arange(n) * _REACH
    copy(heads.reshape(-1), at, Column(column.data, column.starts, np.minimum(column.sizes, _REACH)))
    found = np.full(n, len(_SIGNATURES))
    for k in range(len(_SIGNATURES)):
        mark, place, _ = _SIGNATURES[k]
        hit = (heads[:, place : place + len(mark)] == np.frombuffer(mark, np.uint8)).all(axis=1)
        found[hit & (found > k)] = k
        if k == 0 and hit.all():  # the usual case
            break
    return Extensions((*(e for _, _, e in _SIGNATURES), "bin"), found)


def single(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return whether each sample is one number (a scalar, or a list of one like DALI's labels), bool[n]."""
    if batch.ndim > 1:
        return np.zeros(len(batch), np.bool_)
    flags: npt.NDArray[np.bool_] = batch.sizes == 1
    return flags


def file_columns(
    records: Records, configs: Mapping[str, FieldConfig], apart: Collection[str] = ()
) -> list[tuple[Extensions, Column]]:
    """Return, for each field, the file name extension and the content of each record's file.

    Encoded bytes are stored unchanged, one integer as text (``cls``), several as ``<field>.npy``, anything else as
    ``npy``. A field named like an extension of its content (``jpg``, ``txt``, ``npy``) has that extension. The field's
    name comes before the extension if two fields could have the same one, and always for the fields ``apart``. The
    files of a record do not depend on other records."""
    out: list[tuple[Extensions, Column]] = []
    prefixed = _prefixed({k: b for k, b in records.fields.items() if k not in apart}, configs)
    for name, batch in records.fields.items():
        config = configs.get(name, FieldConfig())
        check_encoded(name, config, batch)
        kind: Kind = kind_of(config, batch.dtype, batch.ndim)
        declared = config.extension if name in apart else _declared(name, config, kind)
        n = len(batch)
        if kind == "bytes":
            column = as_bytes(batch)
            fixed = declared or _BY_ENCODING.get(config.encode, "")
            extensions = _all(fixed, n) if fixed else sniff(column)
        elif kind == "int" and config.encode == "auto":
            extensions, column = _integers(name, batch, config, declared)
        else:
            extensions, column = _all(declared or "npy", n), as_npy(batch)
        out.append((_below(name, extensions) if name in apart or name in prefixed else extensions, column))
    return out


def alternatives(name: str, seen: Collection[str]) -> list[str]:
    """Return all extensions that files of the field ``name`` can have if some files have the extensions ``seen``. Bytes
    get an extension by their content, integers by their number. Empty if no other extension is possible."""
    own = f"{name}." if any(e.startswith(f"{name}.") for e in seen) else ""
    by_content = [own + e for e in (*dict.fromkeys(e for _, _, e in _SIGNATURES), "bin")]
    if not set(seen) <= {*by_content, f"{name}.npy"}:
        return [f"{name}.npy"] if own + "cls" in seen else []
    return [] if set(seen) <= {own + "npy", f"{name}.npy"} else by_content


def _declared(name: str, config: FieldConfig, kind: Kind) -> str:
    """Return the extension that a field's configuration names, or else the field's name if that is a possible extension
    of its content; otherwise an empty text."""
    if config.extension:
        return config.extension
    low = name.lower()
    if config.encode in _BY_ENCODING:
        known = low in (_TEXT if config.encode == "text" else (_BY_ENCODING[config.encode], config.encode))
    elif kind == "bytes":
        known = low in KNOWN
    else:
        known = low in _TEXT if kind == "int" and config.encode == "auto" else low == "npy"
    return name if known else ""


def _prefixed(fields: Mapping[str, Batch], configs: Mapping[str, FieldConfig]) -> set[str]:
    """Return the fields whose files need the field's name before the extension, because two fields could have the same
    extension. It is decided without the data, so that the result is equal for every batch."""
    declared: list[str] = []
    groups: dict[str, str] = {}
    possible: dict[str, Collection[str]] = {}
    for name, batch in fields.items():
        config = configs.get(name, FieldConfig())
        kind = kind_of(config, batch.dtype, batch.ndim)
        if extension := _declared(name, config, kind):
            declared.append(extension)
            possible[name] = (extension,)
        elif kind == "bytes":
            groups[name] = "encoded"
            by_content = (*(e for _, _, e in _SIGNATURES), "bin")
            possible[name] = (_BY_ENCODING[config.encode],) if config.encode in _BY_ENCODING else by_content
        else:
            groups[name] = "cls" if kind == "int" and config.encode == "auto" else "npy"
            possible[name] = (groups[name],)
    shared = {g for g, count in Counter(groups.values()).items() if count > 1}
    taken = Counter(declared)
    return {
        name
        for name, extensions in possible.items()
        if groups.get(name) in shared or any(taken[e] > (name not in groups) for e in extensions)
    }


def _integers(name: str, batch: Batch, config: FieldConfig, declared: str) -> tuple[Extensions, Column]:
    """Return extensions and contents of the files of a field of integers: one number as text, several as an array."""
    one = single(batch)
    extensions = Extensions((declared or "cls", config.extension or f"{name}.npy"), (~one).astype(np.int64))
    if one.all():
        return extensions, as_decimal(elements(batch)[0].astype(np.int64))
    parts = [as_decimal(elements(batch.take(one))[0].astype(np.int64)), as_npy(batch.take(~one))]
    starts, sizes = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
    for where, part, base in zip((one, ~one), parts, (0, len(parts[0].data)), strict=True):
        starts[where], sizes[where] = part.starts + base, part.sizes
    return extensions, Column(np.concatenate([p.data for p in parts]), starts, sizes)


def _below(name: str, extensions: Extensions) -> Extensions:
    own = f"{name}."
    table = tuple(e if e == name or e.startswith(own) else own + e for e in extensions.table)
    return Extensions(table, extensions.which)
