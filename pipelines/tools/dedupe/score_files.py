"""Rows of score files, a block at a time: Parquet, JSON Lines, or .npy with hashes alone. `deduplicate` calls it.

Blocks are Arrow tables; no Python object is made of a row.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....ops.base import nearest
from ....ops.errors import JobError, SpecError
from ....ops.storage.json_text import parse_json
from ....readers.fetch.extents import expand
from ....readers.fetch.remote import local_copy
from ....readers.parquet.blocks import errors, one_line, wrong_sizes
from ..datasets import written_files

Kind = Literal["hash", "key", "number"]
"""Type that a column of scores must have: hash (64-bit integers), key (texts), or number (any numbers)."""
_WORDS = {"hash": "integers of 64 bits (uint64 or int64)", "key": "texts", "number": "numbers"}
_SUFFIXES = {".parquet": "Parquet", ".jsonl": "JSON Lines", ".ndjson": "JSON Lines", ".npy": ".npy"}
_BLOCK_ROWS = 1 << 17
"""Number of rows to read at a time. Row groups of a Parquet file are joined until they have this many rows."""
_BLOCK_BYTES = 8 << 20
_TYPED = 1000
"""Number of lines of a JSON file that decide the types of its columns: whether hashes are unsigned, and numbers
integers."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one score file (a file with keys, hashes and scores of samples)."""

    place: str
    """Path of the file and position of these rows in the file, for messages."""
    line: str
    """The word that messages use for a row: ``row`` or ``line``."""
    start: int
    """Number of the first of these rows in the file, counted from 1."""
    table: Any
    """Arrow table with the requested columns: hashes as uint64, keys as large_string, numbers as float64, or as
    integers if the file has them."""

    def name(self, i: int) -> str:
        """Return file and number of row ``i`` of the block, as text for messages."""
        return f"{self.place}: {self.line} {self.start + i}"


class ScoreFile(ABC):
    """A file with one row of keys, hashes and scores per sample. Subclasses read one format each."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the file's columns."""

    @abstractmethod
    def blocks(self, wanted: dict[str, Kind]) -> Iterator[Block]:
        """Yield the file's rows in their order, with the columns ``wanted``. Raises JobError for values that cannot be
        read."""

    def check(self, wanted: dict[str, Kind]) -> None:
        """Raise SpecError if one of the columns ``wanted`` is missing."""
        for name in wanted:
            if name not in self.columns:
                known = self.columns
                raise SpecError(f"{self.path}: there is no column {name!r}{nearest(name, known)}; "
                                f"columns: {', '.join(known) or 'none'}")  # fmt: skip


def score_files(paths: Sequence[str], keys: str | None) -> list[ScoreFile]:
    """Return the score files at ``paths``: files, patterns, URLs, or folders. A folder stands for the score files or
    shards in it. ``keys``: a text file with one key per line, for a .npy file.

    Raises SpecError for other kinds of files, JobError for files that are not there.
    """
    names = list(itertools.chain.from_iterable(map(_files_of, expand(paths))))
    kinds = {_SUFFIXES.get(Path(n).suffix) for n in names}
    for name in names:
        if Path(name).suffix not in _SUFFIXES:
            raise SpecError(f"{name} is not a file of scores: give .parquet, .jsonl or .npy")
    if len(kinds) > 1:
        raise SpecError(f"scores are {' and '.join(sorted(map(str, kinds)))}; give files of one kind")
    twice = {n for n in names if names.count(n) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise SpecError(f"{min(twice)} is named twice; every row would be its own duplicate")
    if kinds == {".npy"} and len(names) > 1:
        raise SpecError(f"got {len(names)} .npy files; give one file of hashes, and its keys by --keys")
    if keys is not None and kinds != {".npy"}:
        raise SpecError(f"--keys is for .npy files; the keys of {names[0]} are one of its columns (--key COLUMN)")
    if importlib.util.find_spec("pyarrow") is None:
        raise SpecError("dedupe needs pyarrow: pip install 'dali-run[parquet]'")
    return [_opened(n, keys) for n in names]


def _files_of(path: str) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    if (folder / "manifest.json").is_file():
        names = [name for _, _, files in written_files(folder) for name in files]
    else:
        names = sorted(p.name for p in folder.iterdir() if p.is_file())
    for suffix in (".parquet", ".jsonl"):
        if found := [str(folder / n) for n in names if n.endswith(suffix)]:
            return found
    raise SpecError(f"{path} has no files of scores (.parquet, .jsonl)")


def _opened(path: str, keys: str | None) -> ScoreFile:
    suffix = Path(path).suffix
    if suffix == ".npy":
        return NpyScores(path, keys)
    return ParquetScores(path) if suffix == ".parquet" else JsonScores(path)


def as_wanted(table: Any, wanted: dict[str, Kind], place: str, line: str, start: int) -> Block:
    """Return the rows in ``table`` as a block, with the columns ``wanted``, converted to these types. Raises JobError
    for columns of other types, and for rows without a value."""
    import pyarrow as pa
    import pyarrow.types as kinds

    for name, kind in wanted.items():
        column, number = table.column(name), table.schema.get_field_index(name)
        given = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        good = {
            "hash": given in (pa.uint64(), pa.int64()),
            "key": kinds.is_string(given) or kinds.is_large_string(given) or kinds.is_integer(given),
            "number": kinds.is_integer(given) or kinds.is_floating(given) or kinds.is_boolean(given),
        }[kind]
        if not good:
            raise JobError(f"{place}: column {name!r} is {column.type}; it must hold {_WORDS[kind]}")
        if column.null_count and kind != "number":
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise JobError(f"{place}: {line} {start + row} has no {name!r}; every row needs one")
        if kind == "hash":
            chunks = [np.frombuffer(c.buffers()[1], np.uint64)[c.offset : c.offset + len(c)] for c in column.chunks]
            column = pa.chunked_array([pa.array(c) for c in chunks], pa.uint64())
        else:
            whole = kind == "number" and kinds.is_integer(given)  # float64 does not hold all integers
            column = column.cast(pa.large_string() if kind == "key" else given if whole else pa.float64())
        table = table.set_column(number, name, column)
    return Block(place, line, start, table.select(list(wanted)))


class ParquetScores(ScoreFile):
    """A Parquet file of scores, as written by the ``parquet`` writer and by pandas, polars or Spark."""

    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        super().__init__(path)
        try:
            local = local_copy(path)
            self._file = pq.ParquetFile(local, page_checksum_verification=True)
            wrong = wrong_sizes(np.memmap(local, np.uint8, "c").data, self._file.metadata)
        except errors() as e:
            raise JobError(f"{path}: its footer cannot be read: {one_line(e)}") from None
        if wrong:
            raise JobError(f"{path}: its footer is damaged: {wrong}")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._file.schema_arrow.names)

    def blocks(self, wanted: dict[str, Kind]) -> Iterator[Block]:
        meta, groups, rows, start = self._file.metadata, list[int](), 0, 1
        for g in range(meta.num_row_groups):
            groups.append(g)
            rows += meta.row_group(g).num_rows
            if rows >= _BLOCK_ROWS or g == meta.num_row_groups - 1:
                for table in self._tables(groups, list(wanted)):
                    yield as_wanted(table, wanted, self.path, "row", start)
                    start += len(table)
                groups, rows = [], 0

    def _tables(self, groups: list[int], names: list[str]) -> Iterator[Any]:
        try:
            yield self._file.read_row_groups(groups, columns=names, use_threads=False)
        except errors():
            for g in groups:  # find the one that fails
                try:
                    yield self._file.read_row_group(g, columns=names, use_threads=False)
                except errors() as e:
                    raise JobError(f"{self.path}: row group {g} cannot be read: {one_line(e)}") from None


class JsonScores(ScoreFile):
    """A JSON Lines file of scores: one object per line."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._local = local_copy(path)
        self._values: dict[str, tuple[type | None, bool]] = {}
        """For each column, the type of its values (None for several types), and whether one of them is negative."""
        for number, text in itertools.islice(self._lines(), _TYPED):
            for name, value in self._parsed(number, text).items():
                kind, negative = self._values.get(name, (type(value), False))
                negative |= isinstance(value, int) and value < 0
                self._values[name] = (kind if value is None or kind is type(value) else None, negative)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._values)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number, text) of each line that is not blank; numbers count from 1."""
        try:
            with open(self._local, "rb") as file:
                yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
        except OSError as e:
            raise JobError(f"{self.path} cannot be read: {e.strerror}") from None

    def _parsed(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            row = parse_json(text)
        except ValueError as e:
            raise JobError(f"{self.path}:{number}: is not JSON: {e}") from None
        if not isinstance(row, dict):
            raise JobError(f"{self.path}:{number}: holds {type(row).__name__}; each line must be an object")
        return row

    def blocks(self, wanted: dict[str, Kind]) -> Iterator[Block]:
        done = 0
        try:
            for table in self._tables(wanted):
                yield as_wanted(table, wanted, self.path, "line", done + 1)
                done += len(table)
        except errors() as e:
            self._explain(wanted)
            if not self._widen(wanted):
                raise JobError(f"{self.path}: cannot be read: {one_line(e)}") from None
            for block in self.blocks(wanted):  # again, after the rows that were delivered
                stop = block.start - 1 + len(block.table)
                if stop > done:
                    skipped = max(done - (block.start - 1), 0)
                    yield replace(block, start=block.start + skipped, table=block.table.slice(skipped))

    def _tables(self, wanted: dict[str, Kind]) -> Iterator[Any]:
        """Yield the file's rows as Arrow tables, with columns of the types that its first lines have."""
        import pyarrow as pa
        import pyarrow.json as pj

        fields = {}
        for name, kind in wanted.items():
            found, negative = self._values.get(name, (None, False))
            integer = pa.int64() if negative else pa.uint64()
            number = pa.int64() if found is int else pa.bool_() if found is bool else pa.float64()
            fields[name] = {"key": pa.string(), "hash": integer, "number": number}[kind]
        options = pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
        with pj.open_json(self._local, pj.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES), options) as rows:
            for batch in rows:
                yield pa.Table.from_batches([batch])

    def _widen(self, wanted: dict[str, Kind]) -> bool:
        """Read columns of numbers as float64 from now on, because a later line has another type than the first ones.
        Return whether this changes the type of any column."""
        narrow = [n for n, kind in wanted.items() if kind == "number" and self._values.get(n, (None, 0))[0] is not None]
        self._values |= dict.fromkeys(narrow, (None, False))
        return bool(narrow)

    def _explain(self, wanted: dict[str, Kind]) -> None:
        """Find the first line with a value of a wrong type, and raise JobError for it."""
        for number, text in self._lines():
            row = self._parsed(number, text)
            for name, kind in wanted.items():
                value = row.get(name)
                usual, negative = self._values.get(name, (None, False))
                low = -(1 << 63) if negative else 0
                good = {
                    "hash": type(value) is int and low <= value < low + (1 << 64),
                    "key": isinstance(value, str),
                    "number": value is None or type(value) in (int, float, usual),
                }[kind]
                if not good:
                    shown = f"a {type(value).__name__}" if isinstance(value, (list, dict)) else json.dumps(value)[:80]
                    raise JobError(f"{self.path}:{number}: {name!r} is {shown}; it must hold {_WORDS[kind]}")


class NpyScores(ScoreFile):
    """Hashes of samples in a .npy file. Their keys are the lines of a text file or, without one, the row numbers from 0
    on."""

    def __init__(self, path: str, keys: str | None) -> None:
        super().__init__(path)
        try:
            self._hashes = np.load(local_copy(path), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as e:
            raise JobError(f"{path} cannot be read: {one_line(e)}") from None
        if self._hashes.ndim != 1 or self._hashes.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
            raise JobError(f"{path} holds {self._hashes.dtype} of shape {list(self._hashes.shape)}; it must hold one "
                           f"axis of {_WORDS['hash']}")  # fmt: skip
        self._keys = keys

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def check(self, wanted: dict[str, Kind]) -> None:
        """Raise SpecError if ``wanted`` has a column of numbers, because the file contains only hashes. A column of
        hashes may have any name."""
        if numbers := [name for name, kind in wanted.items() if kind == "number"]:
            raise SpecError(f"{self.path} holds hashes alone, no column {numbers[0]!r}; use Parquet or JSON Lines")

    def blocks(self, wanted: dict[str, Kind]) -> Iterator[Block]:
        import pyarrow as pa

        first, n = 0, len(self._hashes)
        key = next((name for name, kind in wanted.items() if kind == "key"), None)
        texts = self._texts() if key is not None and self._keys is not None else None
        while first < n:
            keys = None if texts is None else next(texts, None)
            if texts is not None and keys is None:
                break
            count = _BLOCK_ROWS if keys is None else len(keys)
            part = np.ascontiguousarray(self._hashes[first : first + count])
            if keys is None:
                keys = pa.array(np.arange(first, first + len(part))).cast(pa.string())
            if len(keys) != len(part):
                first += len(keys)
                break
            table = pa.table({name: keys if kind == "key" else pa.array(part) for name, kind in wanted.items()})
            yield as_wanted(table, wanted, self.path, "row", first + 1)
            first += len(part)
        if texts is not None and (first != n or next(texts, None) is not None):
            raise JobError(f"{self._keys} has {'fewer' if first < n else 'more'} lines than {self.path} has hashes "
                           f"({n:,}); give one key per line")  # fmt: skip

    def _texts(self) -> Iterator[Any]:
        """Yield the lines of the text file of keys, as Arrow arrays."""
        import pyarrow as pa
        import pyarrow.csv as pc

        reading = pc.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=["key"])
        lines = pc.ParseOptions(delimiter="\x1f", quote_char=False, ignore_empty_lines=False)
        texts = pc.ConvertOptions(column_types={"key": pa.string()}, strings_can_be_null=False)
        try:
            with pc.open_csv(local_copy(str(self._keys)), reading, lines, texts) as batches:
                for batch in batches:
                    yield batch.column(0)
        except errors() as e:
            raise JobError(f"{self._keys} cannot be read: {one_line(e)}") from None
