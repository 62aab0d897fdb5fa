"""File name extensions of fields, for tar and file outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..ops.batch import I64, Batch
from .base import FieldConfig, Records
from .columns import Column, Kind, as_bytes, as_decimal, as_npy, check_encoded, copy, elements, kind_of

_BY_ENCODING = {"jpeg": "jpg", "png": "png", "webp": "webp", "npy": "npy"}
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
"""What encoded bytes start with, and at which byte."""
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


def is_one_number(records: Records, name: str) -> bool:
    """Every sample of the field is one number (a scalar, or a list of one as DALI's labels are)."""
    batch = records.fields[name]
    return batch.ndim == 0 or (batch.ndim == 1 and bool((batch.shapes == 1).all()))


def file_columns(records: Records, configs: Mapping[str, FieldConfig]) -> list[tuple[Extensions, Column]]:
    """Each field as a file's content with each record's extension: encoded bytes as they are, one integer as text
    (``cls``), all else as ``npy``. The field's name stands before the extension where two fields could share one."""
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
        elif kind == "int" and is_one_number(records, name) and config.encode == "auto":
            out.append((name, _all(config.extension or "cls", n), as_decimal(elements(batch)[0].astype(np.int64))))
        else:
            out.append((name, _all(config.extension or "npy", n), as_npy(batch)))
    groups = [_group(records.fields[name], configs.get(name, FieldConfig())) for name, _, _ in out]
    return [
        (_below(name, extensions) if groups.count(group) > 1 else extensions, column)
        for (name, extensions, column), group in zip(out, groups, strict=True)
    ]


def _below(name: str, extensions: Extensions) -> Extensions:
    return Extensions(tuple(f"{name}.{e}" for e in extensions.table), extensions.which)


def _group(batch: Batch, config: FieldConfig) -> str:
    """Fields of one group could share an extension: all bytes without one of their own (their content decides), and
    equal extensions. Known without looking at the data, so that it is the same for every batch."""
    if config.extension:
        return config.extension
    kind = kind_of(config, batch.dtype, batch.ndim)
    if kind == "bytes":
        return "encoded"
    return "cls" if kind == "int" and config.encode == "auto" else "npy"
