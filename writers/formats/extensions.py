"""File name extensions of fields, for tar and file outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64, Batch
from ..base import FieldConfig, Records
from .columns import Column, Kind, as_bytes, as_decimal, as_npy, check_encoded, copy, elements, kind_of

_BY_ENCODING = {"jpeg": "jpg", "png": "png", "webp": "webp", "npy": "npy", "flac": "flac", "wav": "wav"}
_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\xff\xd8\xff", 0, "jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"WEBP", 8, "webp"),
    (b"GIF8", 0, "gif"),
    (b"BM", 0, "bmp"),
    (b"II*\0", 0, "tiff"),
    (b"MM\0*", 0, "tiff"),
    (b"\0\0\0\x0cjP  ", 0, "jp2"),
    (b"\xff\x4f\xff\x51", 0, "j2k"),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"WAVE", 8, "wav"),
    (b"ftyp", 4, "mp4"),
    (b"\x93NUMPY", 0, "npy"),
)
"""Signatures of encoded bytes, and at which byte they stand."""
_REACH = 16


@dataclass(frozen=True, slots=True)
class Extensions:
    """The extension of each record: ``table[which[i]]``."""

    table: tuple[str, ...]
    which: I64

    def texts(self) -> list[str]:
        """One for each record."""
        return [self.table[k] for k in self.which.tolist()]


def _all(extension: str, n: int) -> Extensions:
    return Extensions((extension,), np.zeros(n, np.int64))


def sniff(column: Column) -> Extensions:
    """The extension of each value by its first bytes; ``bin`` where they are not known."""
    n = len(column)
    heads = np.zeros((n, _REACH), np.uint8)
    at = np.arange(n) * _REACH
    copy(heads.reshape(-1), at, Column(column.data, column.starts, np.minimum(column.sizes, _REACH)))
    found = np.full(n, len(_SIGNATURES))
    for k in range(len(_SIGNATURES)):
        mark, place, _ = _SIGNATURES[k]
        hit = (heads[:, place : place + len(mark)] == np.frombuffer(mark, np.uint8)).all(axis=1)
        found[hit & (found > k)] = k
        if k == 0 and hit.all():  # as almost always
            break
    return Extensions((*(e for _, _, e in _SIGNATURES), "bin"), found)


def single(batch: Batch) -> npt.NDArray[np.bool_]:
    """Which samples are one number (a scalar, or a list of one as DALI's labels are)."""
    if batch.ndim > 1:
        return np.zeros(len(batch), np.bool_)
    flags: npt.NDArray[np.bool_] = batch.sizes == 1
    return flags


def file_columns(
    records: Records, configs: Mapping[str, FieldConfig], apart: Collection[str] = ()
) -> list[tuple[Extensions, Column]]:
    """Each field as a file's content with each record's extension: encoded bytes as they are, one integer as text
    (``cls``), several as ``<field>.npy``, all else as ``npy``. The field's name stands before the extension where two
    fields could share one, and of the fields ``apart`` always. A record's files depend on nothing but the record."""
    out: list[tuple[str, Extensions, Column]] = []
    for name, batch in records.fields.items():
        config = configs.get(name, FieldConfig())
        check_encoded(name, config, batch)
        kind: Kind = kind_of(config, batch.dtype, batch.ndim)
        n = len(batch)
        if kind == "bytes":
            column = as_bytes(batch)
            fixed = config.extension or _BY_ENCODING.get(config.encode, "")
            out.append((name, _all(fixed, n) if fixed else sniff(column), column))
        elif kind == "int" and config.encode == "auto":
            out.append((name, *_integers(name, batch, config)))
        else:
            out.append((name, _all(config.extension or "npy", n), as_npy(batch)))
    groups = [
        name if name in apart else _group(records.fields[name], configs.get(name, FieldConfig())) for name, _, _ in out
    ]
    return [
        (_below(name, extensions) if groups.count(group) > 1 or name in apart else extensions, column)
        for (name, extensions, column), group in zip(out, groups, strict=True)
    ]


def _integers(name: str, batch: Batch, config: FieldConfig) -> tuple[Extensions, Column]:
    """One number as text, several as an array."""
    one = single(batch)
    extensions = Extensions((config.extension or "cls", config.extension or f"{name}.npy"), (~one).astype(np.int64))
    if one.all():
        return extensions, as_decimal(elements(batch)[0].astype(np.int64))
    parts = [as_decimal(elements(batch.take(one))[0].astype(np.int64)), as_npy(batch.take(~one))]
    starts, sizes = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
    for where, part, base in zip((one, ~one), parts, (0, len(parts[0].data)), strict=True):
        starts[where], sizes[where] = part.starts + base, part.sizes
    return extensions, Column(np.concatenate([p.data for p in parts]), starts, sizes)


def _below(name: str, extensions: Extensions) -> Extensions:
    own = f"{name}."
    return Extensions(tuple(e if e.startswith(own) else own + e for e in extensions.table), extensions.which)


def _group(batch: Batch, config: FieldConfig) -> str:
    """Fields of one group could share an extension: all bytes without one of their own (their content decides), and
    equal extensions. Known without looking at the data, so that it is the same for every batch."""
    if config.extension:
        return config.extension
    kind = kind_of(config, batch.dtype, batch.ndim)
    if kind == "bytes":
        return "encoded"
    return "cls" if kind == "int" and config.encode == "auto" else "npy"
