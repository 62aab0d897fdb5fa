"""readers.listing: read samples that the writer `files` wrote, through its listings."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.context import Context
from ..ops.errors import JobError, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.storage.json_text import parse_json
from ..ops.types import DALIDataType
from .fetch.extents import Groups, expand, one_or_more
from .fetch.remote import local_copy
from .file import FileSet, scalars
from .join.reader import JoiningReader

I64 = npt.NDArray[np.int64]

_NUMBERS: dict[str, tuple[DALIDataType, Any]] = {
    "int": (DALIDataType.INT64, np.int64),
    "float": (DALIDataType.FLOAT, np.float32),
}
_PREFIX = "field:"
"""Prefix of the JSON keys of number fields in a line of a listing; the rest of the key is the field's name."""


def lines_of(path: str) -> list[dict[str, Any]]:
    """Parse a listing, which the writer `files` wrote. Return its lines, each with ``key``, ``files`` and numbers.
    Raises JobError that names a malformed line."""
    try:
        lines = Path(local_copy(path)).read_bytes().splitlines()
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
            texts = [row["key"], *row["files"]]
            if not all(isinstance(t, str) and "\0" not in t for t in texts) or not _is_below(row["files"]):
                raise ValueError
        except (ValueError, LookupError, TypeError):
            raise JobError(f"{path}:{number}: is not a line of the writer files (key, files)") from None
        rows.append(row)
    return rows


def _is_below(names: list[str]) -> bool:
    """Whether all files are below the listing's folder. Others must not be read: anyone may have made the listing."""
    return not any(part in ("", ".", "..") for name in names for part in name.split("/"))


class _ListedFiles(BatchedOrigins):
    """Data set of the reader `Listing`, opened: the samples of all its listings, by number. `Listing.open` creates it;
    see `Source` for its methods and threads."""

    def __init__(self, reader: Listing) -> None:
        paths = expand(one_or_more(reader.path))
        parts = [lines_of(p) for p in paths]
        rows = [row for part in parts for row in part]
        self._paths = paths
        self._files = Groups(np.array([len(p) for p in parts], np.int64))
        self.groups: I64 | None = self._files.counts
        self._keys: list[str] = [row["key"] for row in rows]
        stored = [name for name, kind in reader.fields.items() if kind == "bytes"]
        self._columns = {name: stored.index(name) for name in stored}
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        self._problems: dict[int, str] = {}
        width = len(stored)
        names: list[bytes] = []
        for path, part in zip(paths, parts, strict=True):
            folder = os.fsencode(os.path.dirname(path))
            for row in part:
                if len(row["files"]) != width:
                    self._problems[len(names) // max(width, 1)] = f"lists {len(row['files'])} files for {width} fields"
                listed = [os.path.join(folder, os.fsencode(f)) for f in row["files"]]
                names += [*listed, *[b""] * width][:width]
        self._set = FileSet(None, names)
        for name, kind in reader.fields.items():
            if kind != "bytes":
                self._numbers[name] = self._values(name, kind, rows)
        self._fields = reader.fields

    def _values(self, name: str, kind: str, rows: list[dict[str, Any]]) -> npt.NDArray[Any]:
        values = np.zeros(len(rows), _NUMBERS[kind][1])
        for i, row in enumerate(rows):
            value = row.get(_PREFIX + name)
            if isinstance(value, (int, float)) and (kind == "float" or value == int(value)):
                values[i] = value
            else:
                self._problems.setdefault(i, f"has no {kind} in the field {name!r}")
        return values

    def __len__(self) -> int:
        return len(self._keys)

    def origins_of(self, index: I64) -> list[Origin]:
        found = [(i, *self._files.locate(i)) for i in index.tolist()]
        return [Origin(self._keys[i], self._paths[file], record) for i, file, record in found]

    def fingerprint(self) -> str:
        whole = hashlib.sha256(self._set.fingerprint().encode())
        whole.update("\0".join(self._keys).encode("utf-8", "surrogatepass"))
        for values in self._numbers.values():
            whole.update(values.tobytes())
        return whole.hexdigest()

    def inventory(self) -> InventoryEntries:
        """Inventory of the data set, with one entry per listing file."""
        stats = [os.stat(local_copy(p)) for p in self._paths]
        state = {"size": np.array([s.st_size for s in stats]), "modified": np.array([s.st_mtime_ns for s in stats])}
        return InventoryEntries(b"\0".join(map(os.fsencode, self._paths)), state, self._files.counts)

    def close(self) -> None:
        self._set.close()

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        which = ctx.samples.index
        for i in np.flatnonzero(np.isin(which, list(self._problems))).tolist() if self._problems else ():
            ctx.reject(i, "corrupt_record", f"the line {self._problems[int(which[i])]}")
        width = len(self._columns)
        return tuple(
            scalars(self._numbers[name][which], ctx) if name in self._numbers
            else self._set.read(ctx, which * width + self._columns[name])
            for name in self._fields
        )  # fmt: skip


class Listing(JoiningReader, name="readers.listing"):
    """Read samples that the writer ``files`` wrote, through its listings: one sample per line, with its key, files and
    numbers.

    Outputs: one per field. ``bytes`` gives the content of the sample's file for that field (uint8, 1-D), ``int`` and
    ``float`` the number in the line (int64 or float32, shape (1,)). A line whose files do not match the fields is
    rejected.
    """

    example = "{op: readers.listing, path: out/*.jsonl, fields: {image: bytes, label: int}, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("listings (<shard>.jsonl), or patterns that match them")]
    fields: Annotated[
        dict[str, Any], Arg("types of all fields, in the order in which they were written: {name: bytes, int or float}")
    ]

    @property
    def own_outputs(self) -> int:
        return len(self.fields)

    @property
    def own_names(self) -> tuple[str, ...] | None:
        return tuple(self.fields)

    def check(self) -> None:
        super().check()
        if not one_or_more(self.path) or any(not p or "\0" in p for p in one_or_more(self.path)):
            raise SpecError("path names no listing")
        if not self.fields:
            raise SpecError("fields is empty; name the fields that were written")
        for name, kind in self.fields.items():
            if kind not in ("bytes", *_NUMBERS):
                raise SpecError(f"field {name!r} must be bytes, int or float, got {kind!r}")

    def own_specs(self) -> tuple[Spec, ...]:
        return tuple(
            Spec((None,), DALIDataType.UINT8) if kind == "bytes" else Spec((1,), _NUMBERS[kind][0])
            for kind in self.fields.values()
        )

    def open_records(self) -> _ListedFiles:
        return _ListedFiles(self)
