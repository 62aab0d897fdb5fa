"""readers.parquet: read columns of Parquet files, by name."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Arg, Spec
from ...ops.batch import Batch, BatchedOrigins, Origin
from ...ops.context import Context
from ...ops.errors import JobError, SpecError
from ...ops.storage.inventory import InventoryEntries
from ..fetch.extents import MAX_RECORD, Groups, Mapped, expand, one_or_more, payload, short_names
from ..fetch.parallel import spread
from ..join.reader import JoiningReader
from .blocks import CUT_SHORT, Blocks, FileFacts, ParquetFiles, Unreadable, errors, one_line
from .columns import ColumnValues, ReadableColumn, resolve

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_THREADS = 16
_ROOM_FOR_KEYS = 16 << 20
_MISSING = "give nulls: empty for a value of no elements, or leave the column out"


class _ParquetRecords(BatchedOrigins):
    """Data set of the reader `Parquet`, opened: the rows of all its files, by number."""

    def __init__(self, reader: Parquet) -> None:
        paths = expand(one_or_more(reader.path))
        names = [*reader.columns, *([reader.key] if reader.key else [])]
        self._empty_nulls = reader.nulls == "empty"
        self._mapped = Mapped(paths)
        files = ParquetFiles(self._mapped)
        with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
            facts = list(pool.map(lambda i: files.look(i, names), range(len(paths))))
        if not any(t.columns for t in facts):  # no file has rows that can be read
            for path, t in zip(paths, facts, strict=True):
                if t.hint:
                    raise SpecError(f"{path}: {t.hint}")
            if facts[0].problem:
                raise JobError(f"{paths[0]}: {facts[0].problem}; is it a Parquet file?")
        nothing = tuple(ReadableColumn(name, "bytes", np.dtype(np.uint8), (name,)) for name in names)
        # the columns of most files: a damaged first file must not determine those of the others
        given = Counter(t.columns for t in facts if t.columns)
        self._model = given.most_common(1)[0][0] if given else nothing
        for t in facts:
            _compare(t, self._model)
        self._facts = facts
        n = len(reader.columns)
        columns, keys = [t.columns[:n] for t in facts], [t.columns[n:] for t in facts]
        self._blocks = Blocks(files, facts, columns, reader.cache_size, reader.check_crc)
        self._keys = Blocks(files, facts, keys, _ROOM_FOR_KEYS, reader.check_crc) if reader.key else None
        self._key = reader.key or ""
        self._files = Groups(np.array([sum(t.rows) or bool(t.problem) for t in facts], np.int64))
        self.groups: I64 | None = self._files.counts
        self._names = short_names(paths)

    def __len__(self) -> int:
        return int(self._files.counts.sum())

    def origins_of(self, index: I64) -> list[Origin]:
        return self._files.origins(self._mapped.paths, self.keys(index), index)

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        given = self._files.numbered(self._names, index)
        if self._keys is None:
            return given
        return [other if own is None else own for own, other in zip(self._own_keys(index), given, strict=True)]

    def _own_keys(self, index: I64) -> list[bytes | None]:
        """Keys of the records ``index`` from the key column; None for a record whose key is null or cannot be read."""
        assert self._keys is not None
        found: list[bytes | None] = []
        for group, block, row in zip(*(a.tolist() for a in self._keys.locate(index)), strict=True):
            values = Unreadable("corrupt_record", "") if self._problem(group) else self._keys.get(group, block)
            if isinstance(values, Unreadable) or values[0].missing[row]:
                found.append(None)
                continue
            start, count = int(values[0].starts[row]), int(values[0].counts[row])
            value = values[0].data[start : start + count]
            found.append(value.tobytes() if value.dtype == np.uint8 else ",".join(map(str, value.tolist())).encode())
        return found

    def _problem(self, group: int) -> str:
        return self._facts[int(self._blocks.file[group])].problem

    def fingerprint(self) -> str:
        return self._mapped.fingerprint(self._names, self._blocks.file, self._blocks.rows)

    def inventory(self) -> InventoryEntries:
        return self._mapped.inventory(self._names, self._files.counts, f"column {self._key}" if self._key else "")

    def close(self) -> None:
        """Do nothing: the files stay mapped until the last block that is a view of them is gone."""

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        blocks = self._blocks
        group, block, row = blocks.locate(ctx.samples.index)
        good = self._reject_lost(ctx, group)
        wanted, which = np.unique(np.stack((group, block), axis=1)[good], axis=0, return_inverse=True)
        places = np.flatnonzero(good)
        owners = [places[which.reshape(-1) == k] for k in range(len(wanted))]
        found: list[tuple[ColumnValues, ...] | Unreadable] = [Unreadable("internal", "")] * len(wanted)
        alone = len(wanted) == 1

        def read(low: int, high: int) -> None:
            for k in range(low, high):
                got = blocks.get(int(wanted[k, 0]), int(wanted[k, 1]))
                rows = row[owners[k]]
                found[k] = got if isinstance(got, Unreadable) else tuple(_rows(v, rows, alone) for v in got)

        spread(ctx, len(wanted), int(blocks.bytes[wanted[:, 0]].sum()), read)
        parts: list[tuple[I64, tuple[ColumnValues, ...]]] = []
        for at, got in zip(owners, found, strict=True):
            if isinstance(got, Unreadable):
                for i in at.tolist():
                    ctx.reject(i, got.code, got.message)
            else:
                reject_missing(ctx, at, self._columns(), got, self._empty_nulls)
                parts.append((at, got))
        n = len(ctx.samples)
        return tuple(
            batch_of_rows(ctx, n, where, [(at, values[c]) for at, values in parts])
            for c, where in enumerate(self._columns())
        )

    def _columns(self) -> tuple[ReadableColumn, ...]:
        return self._model[: len(self._model) - (self._keys is not None)]

    def _reject_lost(self, ctx: Context, group: I64) -> npt.NDArray[np.bool_]:
        """Reject the rows of unreadable files. Return which of the rows remain, as a mask."""
        files = self._blocks.file[group]
        gone = self._mapped.truncated(self._mapped.starts[files])
        good = np.ones(len(group), np.bool_)
        for i, file in enumerate(files.tolist()):
            facts = self._facts[file]
            if gone[i]:
                ctx.reject(i, "read_failed", CUT_SHORT)
            elif facts.problem:
                ctx.reject(i, facts.code, facts.problem)
            good[i] = not gone[i] and not facts.problem
        return good


def reject_missing(
    ctx: Context, at: I64, columns: Sequence[ReadableColumn], values: Sequence[ColumnValues], empty_nulls: bool
) -> None:
    """Reject rows with a null, unless nulls are to be output as empty values. Also reject rows with values that are too
    large for a batch."""
    for where, found in zip(columns, values, strict=True):
        name = f"column {where.name!r}"
        for k in np.flatnonzero(found.counts > MAX_RECORD).tolist():
            count = int(found.counts[k])
            ctx.reject(int(at[k]), "too_large", f"{name} holds {count} elements; at most {MAX_RECORD} are allowed")
        for k in [] if empty_nulls else np.flatnonzero(found.missing).tolist():
            ctx.reject(int(at[k]), "missing_feature", f"{name} is null{_outside(where)}; {_MISSING}")


def _outside(where: ReadableColumn) -> str:
    """Hint for the message about a null in an image column: the image may be in a file outside of the Parquet file."""
    return " (its bytes: the image itself may lie in a file of its own)" if where.path[-1] == "bytes" else ""


def _compare(facts: FileFacts, model: Sequence[ReadableColumn]) -> None:
    """Compare a file's columns with ``model``, those of most files. Other types are a problem in ``facts``."""
    for mine, first in zip(facts.columns, model, strict=False):
        if (mine.dtype, mine.kind == "list") != (first.dtype, first.kind == "list") and not facts.problem:
            facts.code = "missing_feature"
            facts.problem = f"column {mine.name!r} holds {_type_text(mine)} here, {_type_text(first)} in most files"


def _type_text(where: ReadableColumn) -> str:
    if where.kind in ("bytes", "text"):
        return "bytes"
    return f"{'lists of ' if where.kind == 'list' else ''}{where.dtype.name}"


def _rows(values: ColumnValues, rows: I64, alone: bool) -> ColumnValues:
    """Return the values of the given ``rows`` of a block. They are copied, so that the block can be freed, unless the
    block holds all rows of the batch (``alone``)."""
    picked = ColumnValues(values.data, values.starts[rows], values.counts[rows], values.missing[rows])
    if alone:
        return picked
    ends = np.cumsum(picked.counts)
    out = np.empty(int(ends[-1]) if len(ends) else 0, values.data.dtype)
    _copy(picked, out, ends - picked.counts)
    return ColumnValues(out, ends - picked.counts, picked.counts, picked.missing)


def _copy(values: ColumnValues, out: npt.NDArray[Any], at: I64) -> None:
    from ..fetch.extents_cpu import copy_extents

    size = values.data.itemsize
    copy_extents(
        np.ascontiguousarray(values.data).view(np.uint8), np.ascontiguousarray(values.starts) * size,
        np.ascontiguousarray(values.counts) * size, out.view(np.uint8), np.ascontiguousarray(at) * size,
    )  # fmt: skip


def batch_of_rows(ctx: Context, n: int, where: ReadableColumn, parts: Sequence[tuple[I64, ColumnValues]]) -> Batch:
    """Make one batch of ``n`` rows of the column ``where``. ``parts`` are indices in the batch, with the values of
    these rows. Rejected rows are empty."""
    counts = np.zeros(n, np.int64)
    for at, values in parts:
        counts[at] = np.where(values.missing, 0, np.minimum(values.counts, MAX_RECORD))
    if len(parts) == 1:
        at, values = parts[0]
        starts = np.zeros(n, np.int64)
        starts[at] = np.where(counts[at] == 0, 0, values.starts)
        data = np.ascontiguousarray(values.data)
        if data.dtype == np.uint8:
            return payload(ctx, data, starts, counts)
        return Batch(data, starts, counts.astype(np.int32).reshape(-1, 1), "", ctx.samples)
    capacity = (counts + 15) // 16 * 16 if where.dtype == np.uint8 else counts
    ends = np.cumsum(capacity)
    places = ends - capacity
    total = int(ends[-1]) if n else 0
    out: npt.NDArray[Any] = ctx.staging(total) if where.dtype == np.uint8 else np.empty(total, where.dtype)
    for at, values in parts:
        _copy(ColumnValues(values.data, values.starts, counts[at], values.missing), out, places[at])
    return Batch(out, places, counts.astype(np.int32).reshape(-1, 1), "", ctx.samples)


def columns_of(path: str, names: Sequence[str] = ()) -> tuple[list[ReadableColumn], list[str]]:
    """Return the readable columns of a Parquet file (all or ``names``), and error messages for the others. Raises
    JobError if it is not a Parquet file, SpecError without pyarrow."""
    Parquet(path=path, columns=("?",)).check()
    files = ParquetFiles(Mapped([path]))
    try:
        schema = files.footer(0).schema.to_arrow_schema()
    except errors() as e:
        raise JobError(f"{path}: its footer cannot be read: {one_line(e)}; is it a Parquet file?") from None
    found, refused = [], []
    for name in dict.fromkeys(names or schema.names):
        try:
            found.append(resolve(schema, name))
        except SpecError as e:
            refused.append(str(e))
    return found, refused


class Parquet(JoiningReader, name="readers.parquet"):
    """Read columns of Parquet files (extra ``parquet``), including those of Hugging Face datasets with their images.

    Outputs: one per column, 1-D each: binary and text as bytes (uint8), a number or a list of numbers as numbers (uint8
    as int32, dates and times as integers). ``a.b`` is field b of struct a; images stored as ``{bytes, path}`` give
    their bytes. Row groups are decoded one at a time and cached: with ``shuffle: full`` and more data than the cache
    holds, use small row groups.
    """

    example = "{op: readers.parquet, path: train-*.parquet, columns: [image, label], out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("files, or patterns that match them")]
    columns: Annotated[tuple[str, ...], Arg("names of the columns to read")]
    key: Annotated[str | None, Arg("column with the samples' keys; by default keys are file and row")] = None
    nulls: Annotated[Literal["reject", "empty"], Arg("reject rows with null values, or output empty values")] = "reject"
    check_crc: Annotated[bool, Arg("check the checksums of pages that have one")] = True
    cache_size: Annotated[int, Arg("bytes of decoded row groups that are cached", ge=0)] = 1 << 28

    @property
    def own_outputs(self) -> int:
        return len(self.columns)

    def check(self) -> None:
        super().check()
        if importlib.util.find_spec("pyarrow") is None:
            raise SpecError("readers.parquet needs pyarrow: pip install 'dali-run[parquet]'")
        if not self.columns or not all(self.columns):
            raise SpecError("columns is empty; name the columns to read")
        if not one_or_more(self.path) or any(not p or "\0" in p for p in one_or_more(self.path)):
            raise SpecError("path names no file")

    def own_specs(self) -> tuple[Spec, ...]:
        return (Spec((None,)),) * len(self.columns)

    def open_records(self) -> _ParquetRecords:
        return _ParquetRecords(self)
