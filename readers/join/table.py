"""Tables of labels and texts by key: CSV, TSV, JSON Lines, JSON, Parquet; an index of sorted hashes in NumPy arrays."""

from __future__ import annotations

import csv
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.arrays.json_values import Path
from ...ops.base import nearest
from ...ops.errors import JobError, SpecError
from ...ops.kernels import Kernels
from ..fetch import index_cache
from ..fetch.extents import Mapped, expand, one_or_more
from ..fetch.remote import local_copy
from .argument import Join

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

_rows: Any = Kernels(".rows_cpu", __package__)

_BLOCK = 1 << 20
"""Number of table rows per block, when the table is indexed."""
_VERSION = 2  # version of the cached index
_MAX_COUNTED = 1 << 28
"""Largest number of bytes before a row that are scanned to find the row's line number for a message."""
_ROWS_PER_BUCKET = 8
_DELIMITED, _LINE, _ELEMENT, _MEMBER = range(4)  # rows_cpu's syntaxes
_AT_END = 7  # rows_cpu.AT_END
_PROBLEMS = (
    "", "a quoted field does not end; `quotes: false` if quotes are ordinary characters",
    "text follows the closing quote of a field; `quotes: false` if quotes are ordinary characters",
    "has another number of fields than there are columns", "is not JSON, or not an object", "has no key",
    "has a key of more than 65,536 bytes",
)  # fmt: skip
_DELIMITERS = {"csv": ",", "tsv": "\t", "parquet": ","}
_SYNTAXES = {"csv": _DELIMITED, "tsv": _DELIMITED, "parquet": _DELIMITED, "jsonl": _LINE}


@dataclass(frozen=True, slots=True)
class _Row:
    """Settings for reading a table's rows, passed to the compiled loops of `rows_cpu`."""

    syntax: int
    delimiter: int
    quote: int
    count: int
    """Number of fields of a delimited row; -1 for any number."""
    key_column: I64
    key_path: Path
    columns: I64
    """Index of the column of each joined field; -1 for JSON."""
    paths: Path
    ends: I64
    """End in ``paths`` of each joined field's JSON path, after a leading 0."""

    @property
    def key(self) -> tuple[Any, ...]:
        path = self.key_path
        return (self.syntax, self.delimiter, self.quote, self.count, self.key_column, path.names, path.cuts,
                path.indices)  # fmt: skip

    @property
    def fields(self) -> tuple[Any, ...]:
        path = self.paths
        return (self.syntax, self.delimiter, self.quote, self.columns, path.names, path.cuts, path.indices, self.ends)


class Table:
    """An open table of a `join`: finds the row of a key, and reads the fields of rows. Used by several threads at once.

    Memory: 17 bytes per row (hash, offset, and the buckets of hashes), twice that while it is opened. The rows
    themselves stay in the mapped files; Parquet files are first written to a temporary CSV file.
    """

    def __init__(self, join: Join) -> None:
        """Open the table's files and index their rows. Raises SpecError for columns that do not exist, JobError for
        files and rows that cannot be read."""
        self.join = join
        self.paths = expand(one_or_more(join.file))
        self._stats = [os.stat(local_copy(p)) for p in self.paths]
        converted = [_as_csv(p, join) for p in self.paths] if join.format == "parquet" else self.paths
        self._mapped = Mapped(converted, named=self.paths)
        if join.format == "parquet":
            for path in converted:
                os.unlink(path)
        for i, damage in self._mapped.damage.items():
            raise JobError(f"{self.paths[i]}: {damage}")
        self._data: U8 = self._mapped.data
        self._firsts: I64 = self._mapped.starts
        self._stops: I64 = self._mapped.starts + self._mapped.sizes
        self.skipped = 0
        """Number of malformed rows that were left out."""
        self._first_skipped = ""
        rows = [self._syntax(i) for i in range(len(self.paths))]
        self._row = rows[0][0]
        for path, (other, _) in zip(self.paths, rows, strict=True):
            if other.key_column.tolist() != self._row.key_column.tolist() or other.syntax != self._row.syntax \
                    or other.columns.tolist() != self._row.columns.tolist():  # fmt: skip
                raise JobError(f"{path}: its columns are in another order than those of {self.paths[0]}")
        self._open([begin for _, begin in rows])

    def __len__(self) -> int:
        return len(self._offsets)

    def fingerprint(self) -> str:
        """Hash that identifies the table's files: of their names, sizes and modification times."""
        told = [(os.path.basename(p), s.st_size, s.st_mtime_ns) for p, s in zip(self.paths, self._stats, strict=True)]
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def state(self) -> dict[str, I64]:
        """Sizes in bytes and modification times in ns of the table's files, for the inventory."""
        return {"size": np.array([s.st_size for s in self._stats]),
                "modified": np.array([s.st_mtime_ns for s in self._stats])}  # fmt: skip

    def find(self, keys: list[bytes]) -> I64:
        """Return the offset of the row of each key, as `fields` takes it; -1 for a key that the table does not have.
        Raises JobError if a file of the table was cut since it was opened: its rows would seem to be missing."""
        for i in np.flatnonzero(self._mapped.truncated(self._mapped.starts)).tolist():
            raise JobError(f"{self.paths[i]}: the table was cut while it was read; start the job again")
        text = np.frombuffer(bytearray(b"".join(keys) + b"\0"), np.uint8)
        sizes = np.fromiter(map(len, keys), np.int64, len(keys))
        found = np.empty(len(keys), np.int64)
        _rows.find_rows(
            self._data, *self._row.key, self._firsts, self._stops, self._hashes, self._offsets, self._buckets,
            self._shift, self.join.duplicates == "last", text, np.cumsum(sizes) - sizes, sizes, self.join.part, found,
        )  # fmt: skip
        return found

    def fields(self, rows: I64) -> tuple[U8, npt.NDArray[np.int64]]:
        """Return the table's bytes, and where in them the fields of ``rows`` are: start, size and kind of each field,
        [N, fields, 3]."""
        values = np.empty((len(rows), len(self.join.fields), 3), np.int64)
        _rows.read_fields(self._data, *self._row.fields, self._firsts, self._stops, rows, values)
        return self._data, values

    def place(self, row: int) -> str:
        """Text for messages with the place of a row: file and line, or file and byte if the row is far down. For
        Parquet, file and number of the row."""
        i = int(np.searchsorted(self._firsts, row, side="right")) - 1
        if row - self._firsts[i] > _MAX_COUNTED:
            return f"{self.paths[i]}: byte {row - int(self._firsts[i])}"
        before = self._data[int(self._firsts[i]) : row]
        if self.join.format == "parquet":
            return f"{self.paths[i]}: row {int(np.count_nonzero(before == 10)) - 1}"
        return f"{self.paths[i]}:{int(np.count_nonzero(before == 10)) + 1}"

    def lacks(self, key: bytes) -> str:
        """Reason, for messages, for which the sample with this key has no row in the table."""
        skipped = f" ({self.skipped} malformed rows were skipped, the first: {self._first_skipped})"
        name = ", ".join(one_or_more(self.join.file))
        return f"{name} has no row for {key.decode('utf-8', 'backslashreplace')!r}{skipped if self.skipped else ''}"

    def some_keys(self, n: int) -> list[str]:
        """Return the keys of ``n`` rows as examples for messages: the first in the order of their hashes."""
        return [self._key_at(int(row)).decode("utf-8", "backslashreplace") for row in self._offsets[:n].tolist()]

    # -- opening --------------------------------------------------------------------------------------------------

    def _syntax(self, i: int) -> tuple[_Row, int]:
        """Return the settings for reading the rows of file ``i``, and the offset of its first row."""
        join, path = self.join, self.paths[i]
        at, stop = int(self._firsts[i]), int(self._stops[i])
        at += 3 if self._data[at : min(at + 3, stop)].tobytes() == b"\xef\xbb\xbf" else 0  # byte order mark
        nothing = Path.of()[0]
        if join.format in _DELIMITERS:
            names = list(join.columns)
            if not names:
                end = int(_rows.end_of_line(self._data, at, stop))
                names, at = _header(self._data[at:end].tobytes(), join, path), min(end + 1, stop)
            wanted = [_column(name, names, path) for name in (join.key, *join.fields)]
            delimiter = ord(join.delimiter or _DELIMITERS[join.format])
            row = _Row(_DELIMITED, delimiter, ord('"') if join.quotes else -1, len(names), np.array(wanted[:1]),
                       nothing, np.array(wanted[1:], np.int64), nothing, np.zeros(len(wanted), np.int64))  # fmt: skip
            return row, at
        syntax = _LINE
        if join.format == "json":
            at = self._enter(i, at, stop)
            syntax = _ELEMENT if self._data[at] == ord("[") else _MEMBER
            at += 1
        if not join.key and syntax != _MEMBER:
            raise SpecError(f"{path}: join needs key, the path to the key in a row")
        paths, ends = Path.of(*join.fields)
        none = np.full(len(join.fields), -1, np.int64)
        row = _Row(syntax, 0, -1, -1, np.array([-1]), Path.of(join.key)[0] if join.key else nothing, none, paths, ends)
        return row, at

    def _enter(self, i: int, at: int, stop: int) -> int:
        """Return the offset of the JSON array or object with the table's rows in the text at [at, stop)."""
        from ...ops.arrays import json_cpu

        path = Path.of(self.join.rows)[0]
        for name, step in zip(pairwise(path.cuts.tolist()), path.indices.tolist(), strict=True):
            at = int(json_cpu.enter(self._data, at, stop, path.names, *name, step))
            if at < 0:
                raise JobError(f"{self.paths[i]}: has no value at {self.join.rows}")
        at = int(json_cpu.skip_space(self._data, at, stop))
        if at >= stop or self._data[at] not in b"[{":
            raise JobError(f"{self.paths[i]}: needs an array or an object of rows at {self.join.rows}")
        return at

    def _open(self, begins: list[int]) -> None:
        """Build the index from keys to rows, or load it from the cache. ``begins``: offset of each file's first row."""
        kind = f"join-{hashlib.sha256(repr((self.join.digest, self.join.malformed)).encode()).hexdigest()[:12]}"
        single = self.paths[0] if len(self.paths) == 1 and self.join.format != "parquet" else ""
        key = (_VERSION, self._stats[0].st_size, self._stats[0].st_mtime_ns)
        cached = index_cache.load(self._mapped.local[0], kind, *key, columns=2) if single else None
        if cached is not None and self._is_sound(*cached):
            hashes, self._offsets = cached[0].view(np.uint64), cached[1]
        else:
            parts = [part for i, begin in enumerate(begins) for part in self._walk(i, begin)]
            hashes, offsets = index_cache.joined(parts) if parts else (np.empty(0, np.uint64), np.empty(0, np.int64))
            order = np.argsort(hashes, kind="stable")  # rows with equal hashes stay in their order
            hashes = hashes[order]
            self._offsets = offsets[order]
            del order, offsets
        self._hashes: U64 = hashes
        bits = max(0, int(len(hashes) // _ROWS_PER_BUCKET).bit_length())
        self._shift = 64 - bits
        limits = np.arange(1, 1 << bits, dtype=np.uint64) << np.uint64(self._shift % 64)
        self._buckets: I64 = np.concatenate(([0], np.searchsorted(hashes, limits), [len(hashes)])).astype(np.int64)
        if not len(hashes):
            raise JobError(f"{self.paths[0]}: the table has no rows")
        if self.join.duplicates == "error":
            self._check_distinct()
        if cached is None and single and not self.skipped:
            index_cache.store(self._mapped.local[0], kind, *key, columns=[hashes.view(np.int64), self._offsets])

    def _is_sound(self, hashes: I64, offsets: I64) -> bool:
        """Whether a cached index is valid: all offsets are inside the file, and hashes are sorted."""
        values = hashes.view(np.uint64)
        return len(hashes) == len(offsets) and bool(
            (values[1:] >= values[:-1]).all() and (offsets >= 0).all() and (offsets < self._stops[0]).all()
        )

    def _walk(self, i: int, begin: int) -> Iterator[tuple[U64, I64]]:
        """Iterate over the rows of file ``i`` from offset ``begin`` on. Yields arrays of the rows' hashes and offsets,
        block by block."""
        state = np.zeros(5, np.int64)
        state[0] = begin
        while state[1] != _AT_END:
            most = min(_BLOCK, (int(self._stops[i]) - int(state[0])) // 2 + 2)  # a row has a byte and a separator
            hashes, rows = np.empty(most, np.uint64), np.empty(most, np.int64)
            n = _rows.index_rows(self._data, *self._row.key, int(self._stops[i]), self.join.part, hashes, rows, state)
            yield hashes[:n].copy(), rows[:n].copy()
            if state[1] not in (0, _AT_END):
                self._refuse(int(state[1]), int(state[2]))

    def _refuse(self, problem: int, row: int) -> None:
        """Handle a malformed row: count it, if such rows are to be skipped, else raise JobError."""
        is_error = self.join.malformed == "error" or self._row.syntax in (_ELEMENT, _MEMBER)
        if not is_error and self._first_skipped:  # the line number of a row is counted from the file's beginning
            self.skipped += 1
            return
        text = f"{self.place(row)}: {_PROBLEMS[problem]}"
        if is_error:
            skip = "" if self._row.syntax in (_ELEMENT, _MEMBER) else " (join: malformed: skip leaves such rows out)"
            raise JobError(f"{text}{skip}")
        self.skipped += 1
        self._first_skipped = text

    def _key_at(self, row: int) -> bytes:
        """Return the key of a row, or the part of the key that is compared."""
        values, scratch, state = np.zeros((1, 3), np.int64), np.empty(1 << 16, np.uint8), np.zeros(2, np.int64)
        stop = int(_rows.stop_of(row, self._firsts, self._stops))
        _rows.read_key(self._data, *self._row.key, row, stop, values, scratch, state)
        cut = np.zeros(2, np.int64)
        _rows.cut_key(scratch, 0, int(state[1]), self.join.part, cut)
        return scratch[int(cut[0]) : int(cut[0] + cut[1])].tobytes()

    def _check_distinct(self) -> None:
        """Check that no two rows have the same key. Raises JobError."""
        for k in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]).tolist():
            first, second = sorted(self._offsets[k : k + 2].tolist())
            key = self._key_at(first)
            if key == self._key_at(second):
                raise JobError(
                    f"{self.place(first)} and {self.place(second)} have one key, {key.decode('utf-8', 'replace')!r}; "
                    "join: duplicates: first or last chooses one of them"
                )


def _header(line: bytes, join: Join, path: str) -> list[str]:
    """Return the names of the columns in ``line``, the first line of a table."""
    try:
        text = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise JobError(f"{path}:1: the names of the columns are not UTF-8") from None
    delimiter = join.delimiter or _DELIMITERS[join.format]
    try:
        names = next(csv.reader([text], delimiter=delimiter)) if join.quotes else text.split(delimiter)
    except csv.Error as e:
        raise JobError(f"{path}:1: the names of the columns cannot be read: {e}") from None
    if not text or not names:
        raise JobError(f"{path}:1: names no columns")
    return names


def _column(name: str, names: list[str], path: str) -> int:
    if names.count(name) != 1:
        if name in names:
            raise SpecError(f"{path}: has several columns {name!r}")
        raise SpecError(f"{path}: has no column {name!r}{nearest(name, names)}; its columns: {', '.join(names[:20])} "
                        "(join: columns names those of a file without a header)")  # fmt: skip
    return names.index(name)


def _as_csv(path: str, join: Join) -> str:
    """Write the key and joined columns of a Parquet file to a temporary CSV file, and return its path."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    names = list(dict.fromkeys((join.key, *join.fields)))
    handle, temporary = tempfile.mkstemp(prefix="dali-run-", suffix=".csv")
    try:
        with os.fdopen(handle, "wb") as out, pq.ParquetFile(local_copy(path)) as file:
            for name in names:
                _column(name, file.schema_arrow.names, path)
            schema = pa.schema([file.schema_arrow.field(n) for n in names])
            for field in schema:
                if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                    raise SpecError(f"{path}: column {field.name!r} is {field.type}; a join takes texts and numbers")
            with pc.CSVWriter(out, schema) as writer:
                for batch in file.iter_batches(columns=names):
                    writer.write_batch(batch.select(names))
    except (pa.ArrowException, OSError) as e:
        os.unlink(temporary)
        raise JobError(f"{path}: cannot be read as Parquet: {' '.join(str(e).split())}") from None
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary
