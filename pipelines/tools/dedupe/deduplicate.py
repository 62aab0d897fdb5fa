"""Choose the rows of score files to keep: one of each cluster of duplicates. `dali-run dedupe` calls it.

Memory holds one column of hashes at a time (8 bytes per row, 20 more while rows are compared), and the keys of 4
million clusters. So the keys are read several times: to check that they are unique, to choose the rows of each 4
million clusters, and to write the list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.errors import JobError, SpecError
from ....ops.kernels import Kernels
from ....ops.scores.clusters import MAX_DISTANCE, MAX_ROWS, Clusters
from .score_files import Block, Kind, ScoreFile, score_files

_loops: Any = Kernels("....ops.scores.encoded_cpu", __package__)

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
EXACT, NEAR = "content_hash", "phash"
"""Default names of the columns of content hashes and of perceptual hashes."""
_PENDING = 1 << 20
"""Number of rows that are collected in memory before all but the best row of each cluster of duplicates are dropped."""
_CLUSTERS = 1 << 22
"""Number of clusters of duplicates whose best rows are found in one pass over the files, to limit memory."""


@dataclass(frozen=True, slots=True)
class DedupeOptions:
    """Options of one deduplication: columns to use, and the largest distance between hashes of duplicates."""

    exact: str | None = None
    """Name of the column of content hashes. Rows with equal ones are duplicates."""
    near: str | None = None
    """Name of the column of perceptual hashes. Rows that differ in at most ``distance`` bits are duplicates."""
    distance: int = 4
    key: str = "key"
    """Name of the column of keys, which identify samples."""
    best: str | None = None
    """Name of a column of numbers, or None. The row with the largest number is kept of each cluster; for None, the row
    whose key sorts first."""
    keys: str | None = None
    """Path of a text file with one key per line, for hashes in a .npy file, which has no keys."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Result of a deduplication: the clusters of duplicate rows, and which rows to keep. A row is one sample of a score
    file; rows are numbered over all files."""

    files: list[ScoreFile]
    options: DedupeOptions
    """The options of the deduplication, with default columns filled in."""
    roots: I32
    """For each row, the number of its cluster of duplicates: the smallest row number in that cluster. int32[n]."""
    sizes: I64
    """Number of rows of each cluster, at the index of the cluster's number; 0 at other indices. int64[n]."""
    keep: npt.NDArray[np.bool_]
    """For each row, whether it is kept. bool[n]."""
    exact: int
    """Number of rows left out because of equal content hashes."""
    near: int
    """Number of other rows left out, because of similar perceptual hashes."""

    def summary(self) -> dict[str, Any]:
        """Return the counts that the command prints, such as the number of kept rows."""
        return {
            "rows": len(self.roots), "kept": int(np.count_nonzero(self.keep)), "exact": self.exact, "near": self.near,
            "clusters": int(np.count_nonzero(self.sizes > 1)), "largest": int(self.sizes.max(initial=0)),
            "distance": self.options.distance if self.options.near else None,
        }  # fmt: skip

    def rows(self, wanted: dict[str, Kind]) -> Iterator[tuple[int, Block]]:
        """Yield the rows of all files, as (number of the first row over all files, block of rows). Blocks have the
        columns ``wanted``."""
        return _numbered(self.files, wanted)


def deduplicate(
    paths: list[str], options: DedupeOptions, progress: Callable[[str], None] | None = None
) -> Duplicates:  # fmt: skip
    """Find the duplicates among the rows of the score files at ``paths``. ``progress`` is called with lines of text.

    Raises SpecError for missing columns, JobError for files that cannot be read and for keys that are not unique.
    """
    if not 0 <= options.distance <= MAX_DISTANCE:
        raise SpecError(f"--distance must be 0 to {MAX_DISTANCE} bits, got {options.distance}")
    files = score_files(paths, options.keys)
    options = _with_columns(files, options)
    wanted: dict[str, Kind] = {options.key: "key"}
    wanted |= {name: "hash" for name in (options.exact, options.near) if name}
    wanted |= {options.best: "number"} if options.best else {}
    for file in files:
        file.check(wanted)
    say = progress or (lambda _: None)
    say("reading keys")
    n = _check_keys(files, options.key)
    clusters, exact, near = Clusters(n), 0, 0
    if options.exact:
        say(f"comparing {n:,} content hashes ({options.exact})")
        exact = clusters.join(_hashes(files, options.exact, n))[0]
    if options.near:
        say(f"comparing {n:,} perceptual hashes ({options.near})")
        near = sum(clusters.join(_hashes(files, options.near, n), options.distance, progress))
    roots = clusters.roots()
    sizes = np.bincount(roots, minlength=n)
    say("choosing rows")
    keep = sizes[roots] == 1
    several = np.flatnonzero(sizes > 1)
    for first in range(0, len(several), _CLUSTERS):
        some = several[first : first + _CLUSTERS]
        keep[_best_rows(files, options, roots, sizes, int(some[0]), int(some[-1]))] = True
    return Duplicates(files, options, roots, sizes, keep, exact, near)


def _with_columns(files: list[ScoreFile], options: DedupeOptions) -> DedupeOptions:
    """Return ``options``; if the user named no columns of hashes, with the default columns that all ``files`` have.
    Raises SpecError if only some files have one."""
    if options.exact or options.near:
        return options
    if not files[0].columns:
        return replace(options, near=NEAR)
    found: dict[str, str | None] = {}
    for name in (EXACT, NEAR):
        there, lacking = ([f.path for f in files if (name in f.columns) is yes] for yes in (True, False))
        if there and lacking:
            raise SpecError(f"{lacking[0]} has no column {name!r}, which {there[0]} has; name the columns to compare "
                            "by --exact or --near")  # fmt: skip
        found[name] = name if there else None
    if not any(found.values()):
        raise SpecError(f"{files[0].path} has no column {EXACT!r} or {NEAR!r}; name one by --exact or --near. "
                        f"Columns: {', '.join(files[0].columns)}")  # fmt: skip
    return replace(options, exact=found[EXACT], near=found[NEAR])


def _numbered(files: list[ScoreFile], wanted: dict[str, Kind]) -> Iterator[tuple[int, Block]]:
    first = 0
    for file in files:
        for block in file.blocks(wanted):
            yield first, block
            first += len(block.table)


def _hashes(files: list[ScoreFile], name: str, n: int) -> U64:
    """Return the hashes in the column ``name`` of all files, ``n`` rows in total."""
    out, end = np.empty(n, np.uint64), 0
    for first, block in _numbered(files, {name: "hash"}):
        end = first + len(block.table)
        if end <= n:
            out[first:end] = block.table.column(0).to_numpy()
    if end != n:
        raise JobError(f"the files had {n:,} rows, then {end:,}: they change while they are read")
    return out


def _key_hashes(column: Any) -> U64:
    """Return the XXH64 hash of each text in an Arrow column of large_string."""
    parts = []
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        content = np.array(np.frombuffer(data, np.uint8)) if data is not None else np.empty(0, np.uint8)
        out = np.empty(len(chunk), np.uint64)
        _loops.content_hash(content, ends[:-1].copy(), np.diff(ends), out)  # loops take writable arrays
        parts.append(out)
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _check_keys(files: list[ScoreFile], name: str) -> int:
    """Return the number of rows in all files. Raises JobError if a key occurs twice."""
    hashes = np.concatenate([_key_hashes(b.table.column(0)) for _, b in _numbered(files, {name: "key"})] or
                            [np.empty(0, np.uint64)])  # fmt: skip
    if len(hashes) > MAX_ROWS:
        raise JobError(f"{len(hashes):,} rows are more than {MAX_ROWS:,}; split them by their first hash bits")
    hashes.sort()
    twice = hashes[1:][hashes[1:] == hashes[:-1]]
    n = len(hashes)
    del hashes
    if len(twice):
        _find_twice(files, name, twice)
    return n


def _find_twice(files: list[ScoreFile], name: str, hashes: U64) -> None:
    """Raise JobError if a key occurs twice. Only keys whose hash is among ``hashes`` are compared, as text, in a second
    pass over the files."""
    seen: dict[str, str] = {}
    for _, block in _numbered(files, {name: "key"}):
        column = block.table.column(0)
        for i in np.flatnonzero(np.isin(_key_hashes(column), hashes)).tolist():
            key, place = column[i].as_py(), block.name(i)
            if key in seen:
                raise JobError(f"{place}: the key {key!r} is that of {seen[key]}, too; keys must be unique (name "
                               "another column by --key, or give each file of scores once)")  # fmt: skip
            seen[key] = place


def _best_rows(files: list[ScoreFile], options: DedupeOptions, roots: I32, sizes: I64, low: int, high: int) -> I64:
    """Return the numbers of the best rows, which are kept: one per cluster with several rows, for clusters with numbers
    from ``low`` to ``high``."""
    import pyarrow as pa

    wanted: dict[str, Kind] = {options.key: "key"}
    wanted |= {options.best: "number"} if options.best else {}
    kinds = {"cluster": pa.int32(), "value": pa.float64(), "rest": pa.float64(), "key": pa.large_string(),
             "row": pa.int64()}  # fmt: skip
    found, waiting = pa.schema(kinds).empty_table(), []
    for first, block in _numbered(files, wanted):
        own = roots[first : first + len(block.table)]
        rows = np.flatnonzero((own >= low) & (own <= high) & (sizes[own] > 1))
        if not len(rows):
            continue
        table = block.table.take(pa.array(rows))
        values = _sortable(table.column(options.best)) if options.best else np.zeros((2, len(rows)))
        columns = own[rows], *values, table.column(options.key), rows + first
        waiting.append(pa.table(dict(zip(kinds, columns, strict=True))))
        if sum(map(len, waiting)) > _PENDING:
            found, waiting = _first_of_each(pa.concat_tables([found, *waiting])), []
    best: I64 = _first_of_each(pa.concat_tables([found, *waiting])).column("row").to_numpy()
    return best


def _sortable(column: Any) -> npt.NDArray[np.float64]:
    """Return the numbers in an Arrow column as two arrays to sort by, [2, N]: by the first and, among equal values, by
    the second. Integers above 2^53, which float64 cannot represent, thus keep their order. Missing numbers and NaN come
    first."""
    missing, numbers = column.is_null().to_numpy(), column.fill_null(0).to_numpy()
    numbers = numbers.astype({"i": np.int64, "u": np.uint64}.get(numbers.dtype.kind, np.float64))
    parts = np.zeros((2, len(numbers)))
    parts[0] = numbers
    large = (np.abs(parts[0]) >= 2.0**53) & np.isfinite(parts[0])
    coarse = numbers[large] // 2048 * 2048
    parts[0, large], parts[1, large] = coarse, numbers[large] - coarse
    parts[0, missing | np.isnan(parts[0])] = -np.inf
    return parts


def _first_of_each(table: Any) -> Any:
    """Return the best row of each cluster: the largest value and, among equal values, the smallest key."""
    import pyarrow.compute as pc

    by = [("cluster", "ascending"), ("value", "descending"), ("rest", "descending"), ("key", "ascending")]
    order = pc.sort_indices(table, sort_keys=by).to_numpy()
    clusters = table.column("cluster").to_numpy()[order]
    return table.take(order[np.flatnonzero(np.diff(clusters, prepend=-1))]).combine_chunks()


def write_keys(found: Duplicates, out: Path) -> None:
    """Write the keys of the rows to keep to the file ``out``: as Parquet with the column ``key``, or as text lines.

    Raises JobError for a key with a line break, which a text file cannot hold.
    """
    with _replaced(out) as temporary:
        write = _write_parquet if out.suffix == ".parquet" else _write_lines
        write(temporary, _kept_keys(found))


def _kept_keys(found: Duplicates) -> Iterator[Any]:
    """Yield the keys of the rows to keep, as Arrow arrays."""
    import pyarrow as pa

    for first, block in found.rows({found.options.key: "key"}):
        column = block.table.column(0)
        yield column.filter(pa.array(found.keep[first : first + len(column)])).combine_chunks()


def _write_parquet(path: Path, keys: Iterator[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, pa.schema({"key": pa.string()}), compression="zstd") as writer:
        for column in keys:
            writer.write_table(pa.table({"key": column.cast(pa.string())}))


def _write_lines(path: Path, keys: Iterator[Any]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    with open(path, "wb") as file:
        for column in keys:
            broken = pc.match_substring_regex(column, r"[\r\n]").to_numpy(zero_copy_only=False)
            if broken.any():
                key = column[int(np.flatnonzero(broken)[0])].as_py()
                raise JobError(f"the key {key!r} has more than one line; write .parquet instead of .txt")
            lines = pc.binary_join_element_wise(column, *(pa.scalar(t, column.type) for t in ("", "\n")))
            if len(lines):
                _, offsets, data = lines.buffers()
                ends = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
                file.write(memoryview(data)[int(ends[0]) : int(ends[-1])])


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Context manager with the path of a temporary file. The file is renamed to ``path`` at the end, or removed after
    an exception."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as e:
        raise JobError(f"{path} cannot be written: {e.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
