"""readers.lance: columns of Lance data sets, by name, through the package pylance (extra ``lance``)."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Arg, Spec
from ...ops.batch import Batch, BatchedOrigins, Origin
from ...ops.context import Context
from ...ops.errors import JobError, SampleError, SpecError
from ...ops.storage.inventory import InventoryEntries
from ..fetch.extents import Groups, one_or_more
from ..join.reader import JoiningReader
from .columns import ColumnValues, ReadableColumn, resolve, values_of
from .reader import batch_of_rows, reject_missing

I64 = npt.NDArray[np.int64]


def open_dataset(path: str) -> Any:
    """Open the Lance data set at ``path``, a folder or a URL of Lance. Raises SpecError without pylance, JobError."""
    if importlib.util.find_spec("lance") is None:
        raise SpecError("readers.lance needs pylance: pip install 'dali-run[lance]'")
    import lance

    try:
        return lance.dataset(path)
    except (OSError, ValueError) as e:
        raise JobError(f"{path} cannot be opened as a Lance data set: {_first_line(e)}") from None


def columns_of(path: str) -> tuple[list[ReadableColumn], list[str]]:
    """Return the columns of the Lance data set at ``path`` that can be read, and error messages for the others. Raises
    SpecError without pylance, JobError."""
    schema = open_dataset(path).schema
    found, refused = [], []
    for name in schema.names:
        try:
            found.append(resolve(schema, name))
        except SpecError as e:
            refused.append(str(e))
    return found, refused


def _first_line(error: Exception) -> str:
    """Return the first line of a Lance error's message, without positions in the source code of Lance."""
    return str(error).partition("\n")[0].partition(", /")[0]


class _LanceRows(BatchedOrigins):
    """Data set of the reader `Lance`, opened: the rows of all its Lance data sets, numbered one after the other."""

    def __init__(self, reader: Lance) -> None:
        self._paths = list(one_or_more(reader.path))
        self._sets = [open_dataset(p) for p in self._paths]
        self._empty_nulls = reader.nulls == "empty"
        self._key = reader.key
        self._columns: tuple[ReadableColumn, ...] = ()
        for path, data in zip(self._paths, self._sets, strict=True):
            try:
                found = tuple(resolve(data.schema, n) for n in (*reader.columns, *filter(None, [self._key])))
            except SpecError as e:
                raise SpecError(f"{path}: {e}") from None
            if self._columns and found != self._columns:
                raise JobError(f"{path}: its columns have other types than those of {self._paths[0]}")
            self._columns = found
        self._own = len(reader.columns)
        fragments = [(i, f) for i, data in enumerate(self._sets) for f in data.get_fragments()]
        self._fragments = [f"{i}/{f.data_files()[0].path}" for i, f in fragments]
        self._sizes = np.array([sum(d.file_size_bytes or 0 for d in f.data_files()) for _, f in fragments], np.int64)
        self._files = Groups(np.array([f.count_rows() for _, f in fragments], np.int64))
        self.groups: I64 | None = self._files.counts
        self._starts = np.cumsum([0, *(data.count_rows() for data in self._sets)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _taken(self, index: I64, columns: Sequence[ReadableColumn]) -> list[tuple[I64, list[ColumnValues]]]:
        """Read ``columns`` of the rows ``index``. Return for each Lance data set the positions in ``index`` of its
        rows, and the columns' values. Raises SampleError."""
        owner = np.searchsorted(self._starts, index, side="right") - 1
        names = list(dict.fromkeys(c.path[0] for c in columns))
        found = []
        for i in np.unique(owner).tolist():
            at = np.flatnonzero(owner == i)
            try:
                table = self._sets[i].take((index[at] - self._starts[i]).tolist(), columns=names)
            except (OSError, ValueError) as e:
                raise SampleError("read_failed", f"{self._paths[i]}: {_first_line(e)}") from None
            found.append((at, [values_of(table.column(c.path[0]), c) for c in columns]))
        return found

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the rows ``index``, as `origin` returns them, in UTF-8."""
        given = self._files.numbered(self._fragments, index)
        if self._key:
            try:
                taken = self._taken(index, self._columns[-1:])
            except SampleError:
                return given
            for at, (values,) in taken:
                for k, start, count, missing in zip(at.tolist(), values.starts.tolist(), values.counts.tolist(),
                                                    values.missing.tolist(), strict=True):  # fmt: skip
                    value = values.data[start : start + count]
                    if not missing:
                        own = (
                            value.tobytes() if value.dtype == np.uint8 else ",".join(map(str, value.tolist())).encode()
                        )
                        given[k] = own
        return given

    def origins_of(self, index: I64) -> list[Origin]:
        owners = [(self._paths[int(owner)], name) for owner, _, name in (f.partition("/") for f in self._fragments)]
        places = [f"{path}/{name}" for path, name in owners]
        return self._files.origins(places, self.keys(index), index)

    def fingerprint(self) -> str:
        told = (self._fragments, self._sizes.tolist(), self._files.counts.tolist())
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def inventory(self) -> InventoryEntries:
        return InventoryEntries("\0".join(self._fragments).encode(), {"size": self._sizes}, self._files.counts,
                                f"column {self._key}" if self._key else "")  # fmt: skip

    def close(self) -> None:
        """Do nothing: data sets are closed when nothing uses them any longer."""

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        columns, n = self._columns[: self._own], len(ctx.samples)
        try:
            taken = self._taken(ctx.samples.index, columns)
        except SampleError as e:
            taken = []
            for i in range(n):
                ctx.reject(i, e.code, str(e))
        for at, values in taken:
            reject_missing(ctx, at, columns, values, self._empty_nulls)
        return tuple(batch_of_rows(ctx, n, where, [(at, v[k]) for at, v in taken]) for k, where in enumerate(columns))


class Lance(JoiningReader, name="readers.lance"):
    """Read columns of Lance data sets (extra ``lance``), in the order of their rows.

    Outputs: one for each column, 1-D each: binary and text as bytes (uint8), a number or a list of numbers as numbers
    (uint8 as int32, dates and times as integers). ``a.b`` is field b of struct a; images stored as ``{bytes, path}``
    give their bytes.
    """

    example = "{op: readers.lance, path: train.lance, columns: [image, label], key: key, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("data sets: folders, or URLs as Lance takes them")]
    columns: Annotated[tuple[str, ...], Arg("names of columns")]
    key: Annotated[str | None, Arg("column that names the samples; data file and row by default")] = None
    nulls: Annotated[Literal["reject", "empty"], Arg("a row that lacks a value is rejected, or gets an empty one")] = (
        "reject"
    )

    @property
    def own_outputs(self) -> int:
        return len(self.columns)

    def check(self) -> None:
        super().check()
        if importlib.util.find_spec("lance") is None:
            raise SpecError("readers.lance needs pylance: pip install 'dali-run[lance]'")
        if not self.columns or not all(self.columns):
            raise SpecError("columns names none")

    def own_specs(self) -> tuple[Spec, ...]:
        return (Spec((None,)),) * len(self.columns)

    def open_records(self) -> _LanceRows:
        return _LanceRows(self)
