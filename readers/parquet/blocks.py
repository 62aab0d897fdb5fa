"""Decode rows of Parquet files block by block, with pyarrow from the mapped files, and cache blocks within a byte
limit.

A block is a row group, or a part of a row group that is too large to be held as a whole. `reader` calls this module.
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.errors import RejectCode, SampleError, SpecError
from ..fetch.extents import FREE_UNPACKED, MAX_RATIO, Mapped
from .columns import ColumnValues, ReadableColumn, resolve, values_of
from .pages import walk_pages

I64 = npt.NDArray[np.int64]

BLOCK = 64 << 20
"""Size in bytes of a block: rows of a row group that are decoded and cached together. Taken from the sizes in the
file's footer."""
CUT_SHORT = "the file was cut short while the job ran"
_MOST_ROWS = 2**31 - 1
_FOOTERS = 256
"""Number of parsed footers that are cached; parsing another one costs a millisecond."""
_STREAMS = 4
"""Number of large row groups that stay open. Reading one of them can continue after the block that was read last."""


@dataclass(slots=True)
class FileFacts:
    """Facts from the footer of one Parquet file. Created by `ParquetFiles.look`."""

    rows: list[int] = field(default_factory=list)
    """Number of rows of each row group of the file."""
    wanted: list[int] = field(default_factory=list)
    """For each row group, the unpacked bytes of the columns that are to be read."""
    columns: tuple[ReadableColumn, ...] = ()
    code: RejectCode = "corrupt_record"
    problem: str = ""
    """Reason for which none of the file's rows can be read; empty if they can."""
    hint: str = ""
    """Message if not the file but the reader's arguments are wrong; empty otherwise."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Placeholder for a block that cannot be read, with the reason."""

    code: RejectCode
    message: str


Block = tuple[ColumnValues, ...] | Unreadable


def errors() -> tuple[type[BaseException], ...]:
    """Return the types of the errors that pyarrow raises for files that it cannot read."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, pa.ArrowMemoryError)


def one_line(error: BaseException) -> str:
    """Return the text of a pyarrow error on one line."""
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


class ParquetFiles:
    """The memory-mapped Parquet files of a reader, and their footers. Several threads may call it."""

    def __init__(self, mapped: Mapped) -> None:
        self.mapped = mapped
        self._footers: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def content(self, i: int) -> memoryview:
        """Return the bytes of file ``i``, mapped, without a copy."""
        start, size = int(self.mapped.starts[i]), int(self.mapped.sizes[i])
        return memoryview(self.mapped.data[start : start + size].data)

    def footer(self, i: int) -> Any:
        """Return pyarrow's metadata of file ``i``, parsed from its footer. Raises the errors that `errors` lists."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._lock:
            found = self._footers.get(i)
            if found is not None:
                self._footers.move_to_end(i)
                return found
        found = pq.read_metadata(pa.BufferReader(self.content(i)))
        with self._lock:
            self._footers[i] = found
            while len(self._footers) > _FOOTERS:
                self._footers.popitem(last=False)
        return found

    def look(self, i: int, names: Sequence[str]) -> FileFacts:
        """Read the footer of file ``i``, and return facts about the columns ``names``."""
        facts = FileFacts()
        if i in self.mapped.damage:
            facts.problem = self.mapped.damage[i]
            return facts
        try:
            meta = self.footer(i)
            facts.rows = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
            schema = meta.schema.to_arrow_schema()
        except errors() as e:
            facts.rows, facts.problem = [], f"its footer cannot be read: {one_line(e)}"
            return facts
        if wrong := wrong_sizes(self.content(i), meta):
            facts.rows, facts.problem = [], f"its footer is damaged: {wrong}"
            return facts
        if any(not 0 <= n <= _MOST_ROWS for n in facts.rows) or sum(facts.rows) != meta.num_rows:
            facts.rows, facts.problem = [], "its footer is damaged: numbers of rows that do not add up"
            return facts
        if not any(facts.rows):  # pandas gives columns without values any type
            facts.rows = []
            return facts
        try:
            facts.columns = tuple(resolve(schema, n) for n in names)
        except SpecError as e:
            facts.code, facts.problem, facts.hint = "missing_feature", str(e), str(e)
            return facts
        leaves = leaves_of(meta, facts.columns)
        for g, rows in enumerate(facts.rows):
            group = meta.row_group(g)
            sizes = sum(max(0, group.column(k).total_uncompressed_size) for k in leaves)
            facts.wanted.append(sizes + 8 * rows * len(leaves))
        return facts


def wrong_sizes(data: memoryview, meta: Any) -> str:
    """Check the size statistics in the footer ``meta`` of the file ``data``. Return the problem if pyarrow would end
    the process on reading a column with them; an empty text if they are valid."""
    from .footer_cpu import COLUMNS, DEFINITION, ENCRYPTED, REPETITION, UNENCODED, size_statistics

    size = int.from_bytes(data[-8:-4], "little")
    rows = np.zeros((meta.num_row_groups * meta.num_columns, COLUMNS), np.int64)
    found = size_statistics(np.frombuffer(data[-8 - size : -8], np.uint8), rows)
    if found != len(rows):
        return "not all columns of its row groups are there"
    if rows[:, ENCRYPTED].any():
        return "a column is encrypted"
    leaves = [meta.schema.column(k) for k in range(meta.num_columns)]
    by_leaf = rows.reshape(meta.num_row_groups, meta.num_columns, COLUMNS)
    for which, levels in (
        (REPETITION, [c.max_repetition_level for c in leaves]),
        (DEFINITION, [c.max_definition_level for c in leaves]),
    ):
        lengths = by_leaf[:, :, which]
        if ((lengths != 0) & (lengths != np.array(levels, np.int64) + 1)).any():
            return "a histogram of levels has a wrong length"
    if by_leaf[:, [c.physical_type != "BYTE_ARRAY" for c in leaves], UNENCODED].any():
        return "a column of numbers tells the size of its texts"
    return ""


def leaves_of(meta: Any, columns: Sequence[ReadableColumn]) -> list[int]:
    """Return the indices of ``columns`` among the leaves (columns of plain values) of the Parquet schema."""
    wanted = {c.leaf for c in columns}
    inside = tuple(w + "." for w in wanted)
    paths = [meta.schema.column(k).path for k in range(meta.num_columns)]
    return [k for k, path in enumerate(paths) if path in wanted or path.startswith(inside)]


class Blocks:
    """Reads and caches the requested columns of all files, in blocks of rows. Thread-safe; owned by its reader."""

    def __init__(
        self,
        files: ParquetFiles,
        facts: Sequence[FileFacts],
        columns: Sequence[tuple[ReadableColumn, ...]],
        capacity: int,
        check: bool,
    ) -> None:
        """``columns``: columns to read, for each file; ``capacity``: bytes of blocks that are cached; ``check``:
        whether the checksums of pages are checked."""
        self._files = files
        self._columns = columns
        self._check = check
        self._capacity = capacity
        numbers = [range(len(t.rows)) if t.rows or not t.problem else (-1,) for t in facts]
        self.file: I64 = np.repeat(np.arange(len(facts)), [len(n) for n in numbers])
        self.number: I64 = np.array([g for n in numbers for g in n], np.int64)
        """Number of each row group within its file; -1 for a file with unknown row groups, which counts as one row."""
        self.rows: I64 = np.array([r for t in facts for r in (t.rows or ([1] if t.problem else []))], np.int64)
        self.firsts: I64 = np.cumsum(self.rows) - self.rows
        self.bytes: I64 = np.array(
            [w for t in facts for w in (t.wanted or [0] * (len(t.rows) or bool(t.problem)))], np.int64
        )
        cuts = np.maximum(1, -(-self.bytes // BLOCK))
        self.step: I64 = np.maximum(1, -(-self.rows // cuts))
        """Number of rows per block in each row group; the last block may have fewer."""
        self._kept: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._streaming = threading.Lock()

    def locate(self, index: I64) -> tuple[I64, I64, I64]:
        """Return for each of the records ``index``: row group, block in the row group, row in the block."""
        group = np.searchsorted(self.firsts, index, side="right") - 1
        row = index - self.firsts[group]
        return group, row // self.step[group], row % self.step[group]

    def get(self, group: int, block: int) -> Block:
        """Return block number ``block`` of the row group ``group``, counted over the row groups of all files."""
        key = group, block
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        try:
            if self.step[group] >= self.rows[group]:
                return self._keep(key, self._whole(group))
            return self._part(group, block)
        except SampleError as e:
            bad = Unreadable(e.code, str(e))
        except errors() as e:
            bad = Unreadable("corrupt_record", f"{self._name(group)} cannot be decoded: {one_line(e)}")
        return self._keep(key, Unreadable("read_failed", CUT_SHORT) if self._is_cut_short(group) else bad)

    def _is_cut_short(self, group: int) -> bool:
        """Whether the file of a row group was truncated after it was mapped. If so, the end of its last page reads as
        zeros, without any error."""
        mapped = self._files.mapped
        return bool(mapped.truncated(mapped.starts[self.file[group : group + 1]])[0])

    def _name(self, group: int) -> str:
        return f"row group {self.number[group]}"

    def _keep(self, key: tuple[int, int], block: Block) -> Block:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = block
                self._size += _size_of(block)
            while self._size > self._capacity and len(self._kept) > 1:
                self._size -= _size_of(self._kept.popitem(last=False)[1])
        return block

    def _open(self, group: int) -> tuple[Any, list[str]]:
        """Open the file of the row group ``group``. Return pyarrow's file, and the names of the leaves (columns of
        plain values) to read. Raises SampleError if the row group must not be unpacked."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file, number = int(self.file[group]), int(self.number[group])
        meta, data = self._files.footer(file), self._files.content(file)
        columns = self._columns[file]
        by_words = self._examine(meta.row_group(number), leaves_of(meta, columns), columns, data)
        opened = pq.ParquetFile(
            pa.BufferReader(data), metadata=meta, read_dictionary=by_words, pre_buffer=False,
            page_checksum_verification=self._check,
        )  # fmt: skip
        return opened, list(dict.fromkeys(c.leaf for c in columns))

    def _examine(
        self, group: Any, leaves: Sequence[int], columns: Sequence[ReadableColumn], data: memoryview
    ) -> list[str]:
        """Check the pages of a row group. Return the columns to read as dictionary indices; their values might take too
        much memory. Raises SampleError for damage and for values that unpack to absurdly many bytes."""
        by_words = []
        kinds = {c.leaf: c.kind for c in columns}
        for k in leaves:
            chunk = group.column(k)
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset is not None and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            stop = start + chunk.total_compressed_size
            name = f"column {chunk.path_in_schema}"
            if not 0 <= start <= stop <= len(data):
                raise SampleError("corrupt_record", f"{name}: bytes {start} to {stop} are not in the file")
            pages = walk_pages(data, start, stop, chunk.num_values)
            stated, packed = chunk.total_uncompressed_size, chunk.total_compressed_size
            if pages.unpacked > 2 * max(0, stated) + (1 << 20):
                raise SampleError(
                    "corrupt_record", f"{name}: pages of {pages.unpacked} bytes, the footer says {stated}"
                )
            kind = kinds.get(chunk.path_in_schema, "list")
            if kind == "list" and 8 * pages.values > max(FREE_UNPACKED, MAX_RATIO * packed):
                raise SampleError("too_large", f"{name}: {packed} bytes unpack to {pages.values} values, more than "
                                  f"{MAX_RATIO} times their size")  # fmt: skip
            if kind in ("bytes", "text") and pages.words * pages.dictionary > 4 * pages.unpacked + BLOCK:
                by_words.append(chunk.path_in_schema)
        return by_words

    def _whole(self, group: int) -> Block:
        file = int(self.file[group])
        self._will_need(group)
        opened, leaves = self._open(group)
        table = opened.read_row_group(int(self.number[group]), columns=leaves, use_threads=False)
        return self._take(table, int(self.rows[group]), self._columns[file], group)

    def _will_need(self, group: int) -> None:
        """Ask the system to read the requested columns of a row group into the page cache at once (madvise)."""
        from ..fetch.extents_cpu import will_need

        file = int(self.file[group])
        meta = self._files.footer(file)
        size, base = int(self._files.mapped.sizes[file]), int(self._files.mapped.starts[file])
        chunks = [meta.row_group(int(self.number[group])).column(k) for k in leaves_of(meta, self._columns[file])]
        low = np.clip(np.array([c.data_page_offset for c in chunks], np.int64), 0, size)
        sizes = np.clip(np.array([c.total_compressed_size for c in chunks], np.int64), 0, size - low)
        will_need(self._files.mapped.data, low + base, sizes, mmap.PAGESIZE)

    def _take(self, table: Any, rows: int, columns: tuple[ReadableColumn, ...], group: int) -> Block:
        if self._is_cut_short(group):
            raise SampleError("read_failed", CUT_SHORT)
        if table.num_rows != rows:
            raise SampleError("truncated", f"{self._name(group)} has {table.num_rows} rows, its footer says {rows}")
        return tuple(values_of(table.column(c.path[0]), c) for c in columns)

    def _part(self, group: int, block: int) -> Block:
        """Return block number ``block`` of a large row group, whose blocks can only be read one after the other."""
        with self._streaming:
            with self._lock:
                kept = self._kept.get((group, block))
            if kept is not None:
                return kept
            stream = self._streams.pop(group, None)
            if stream is None or stream.at > block:
                opened, leaves = self._open(group)
                number, step = int(self.number[group]), int(self.step[group])
                stream = _Stream(
                    opened.iter_batches(step, row_groups=[number], columns=leaves, use_threads=False), step
                )
            columns = self._columns[int(self.file[group])]
            while True:
                at, left = stream.at, int(self.rows[group]) - stream.at * stream.step
                table = stream.next()
                made = self._keep((group, at), self._take(table, min(stream.step, left), columns, group))
                if at == block:
                    break
            self._streams[group] = stream
            while len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)
            return made


class _Stream:
    """A large row group that is read in order, ``step`` rows at a time."""

    def __init__(self, batches: Iterator[Any], step: int) -> None:
        self.at = 0
        """Number of the next block to be read."""
        self.step = step
        self._batches = batches
        self._left: Any = None

    def next(self) -> Any:
        """Return the next block of rows as an Arrow table; it has fewer rows at the end of the row group. pyarrow's own
        batches may be smaller."""
        import pyarrow as pa

        parts, rows = ([], 0) if self._left is None else ([self._left], self._left.num_rows)
        schema = None if self._left is None else self._left.schema
        while rows < self.step:
            batch = next(self._batches, None)
            if batch is None:
                break
            part = pa.Table.from_batches([batch])
            schema = part.schema
            parts.append(part)
            rows += part.num_rows
        self.at += 1
        if schema is None:
            raise SampleError("truncated", "the row group ends before its rows do")
        table = pa.concat_tables(parts) if parts else schema.empty_table()
        self._left = table.slice(self.step) if table.num_rows > self.step else table.slice(0, 0)
        return table.slice(0, self.step)


def _size_of(block: Block) -> int:
    return 0 if isinstance(block, Unreadable) else sum(v.nbytes for v in block)
