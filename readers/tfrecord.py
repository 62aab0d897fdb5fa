"""readers.tfrecord: read records of TFRecord files, whole or parsed into features."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.context import Context
from ..ops.errors import JobError, RejectCode, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.types import DALIDataType
from .fetch import index_cache
from .fetch.extents import MAX_RECORD, Groups, Mapped, UncheckedRecords, expand, one_or_more, payload, short_names
from .fetch.parallel import spread
from .fetch.remote import local_copy
from .join.reader import JoiningReader
from .records.example import RecordParser, declared

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

_VERSION = 1  # version of the cached index's layout
_LOST = 2  # equals tfrecord_cpu.LOST
_BLOCK = 1 << 22
"""Number of records that are scanned at a time. Arrays of this size are returned to the system when they are freed."""
_THREADS = 16
_SEARCH, _SEARCH_RATIO = 1 << 24, 16
"""Limits on the bytes of an unpacked gzip file that are searched for valid records after damage: at least _SEARCH, and
up to _SEARCH_RATIO times the packed size. Searching takes three times as long as unpacking, and a gzip bomb contains
only damage."""


class _TFRecords(BatchedOrigins):
    """Data set of the reader `TFRecord`, opened: the records of all files, by number."""

    def __init__(self, reader: TFRecord) -> None:
        paths = expand(one_or_more(reader.path))
        self._check = reader.check_crc
        self._parser = RecordParser.of(declared(reader.features)) if reader.features is not None else None
        self._key = RecordParser.of(declared({reader.key: "string"})) if reader.key else None
        self._mapped = Mapped(paths)
        if reader.index_path is not None:
            listed = expand(one_or_more(reader.index_path))
            if len(listed) != len(paths):
                raise JobError(f"{len(listed)} index files for {len(paths)} TFRecord files; give one for each")
            parts = [_listed(p, self._mapped, i) for i, p in enumerate(listed)]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
                parts = list(pool.map(lambda i: _index(self._mapped, i, self._check), range(len(paths))))
        self._files = Groups(np.array([len(p[0]) for p in parts], np.int64))
        self._offsets, self._sizes, self._kinds = index_cache.joined(parts)
        self.groups: I64 | None = self._files.counts
        self._names = short_names(paths)
        if len(self._kinds) and (self._kinds != 0).all():
            first = self.origin(0)
            reason = self._why(0, int(self._kinds[0]))[1]
            raise JobError(f"{first.source}: byte {first.offset}: {reason}; is it a TFRecord file?")

    def __len__(self) -> int:
        return len(self._offsets)

    def origins_of(self, index: I64) -> list[Origin]:
        from .tfrecord_cpu import HEADER, LOST, TRUNCATED

        framed = ~np.isin(self._kinds[index], (LOST, TRUNCATED))
        places = self._offsets[index] - self._mapped.starts[self._files.files(index)] - HEADER * framed
        return self._files.origins(self._mapped.paths, self.keys(index), index, places)

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8: their feature ``key`` if there is one,
        else the names of their files with their numbers."""
        numbered = self._files.numbered(self._names, index)
        if self._key is None:
            return numbered
        offsets, sizes = self._offsets[index], self._sizes[index]
        good = (self._kinds[index] == 0) & ~self._mapped.truncated(offsets)
        return self._key.first_strings(self._mapped.data, offsets, sizes, good, numbered)

    def fingerprint(self) -> str:
        return self._mapped.fingerprint(self._names, self._offsets, self._sizes)

    def inventory(self) -> InventoryEntries:
        return self._mapped.inventory(self._names, self._files.counts)

    def close(self) -> None:
        """Do nothing: the files stay mapped until the last batch that is a view of them is gone."""

    def _why(self, index: int, kind: int) -> tuple[RejectCode, str]:
        from . import tfrecord_cpu as cpu

        size = int(self._sizes[index])
        if kind == cpu.GONE:
            return "read_failed", "the file was cut short while the job ran"
        if kind == cpu.TOO_LARGE:
            return "too_large", f"the record has {size} bytes; at most {MAX_RECORD} are allowed"
        damage = self._mapped.damage.get(self._files.locate(index)[0])
        if kind == cpu.TRUNCATED:
            return "truncated", damage or f"the file ends inside the record; the last {size} bytes are lost"
        if kind == cpu.LOST:
            return "corrupt_record", damage or self._no_record(self._files.locate(index)[0], size)
        if kind == cpu.BAD_LENGTH_CRC:
            return "corrupt_record", "the checksum of the record's length is wrong (check_crc: false reads it anyway)"
        return (
            "corrupt_record",
            f"the checksum of the record's {size} bytes is wrong (check_crc: false reads it anyway)",
        )

    def _no_record(self, file: int, size: int) -> str:
        search = _search(self._mapped, file)
        if size > search:
            return (
                f"no record begins in the {search} bytes from here; the other {size - search} bytes are lost: a packed "
                f"file of {self._mapped.stored[file]} bytes is not searched further"
            )
        return f"no record begins here or in the {size} bytes from here; they are lost"

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        from . import tfrecord_cpu as cpu

        which = ctx.samples.index
        offsets, sizes, kinds = self._offsets[which], self._sizes[which], self._kinds[which]
        self._mapped.will_need(ctx, offsets, sizes)
        data, parser, good = self._mapped.data, self._parser, np.empty(len(which), np.bool_)
        nbytes = cpu.sift(sizes, self._mapped.truncated(offsets), MAX_RECORD, kinds, good)
        extents = parser.extents(len(which)) if parser is not None else None
        records = UncheckedRecords(offsets, sizes, kinds, good, checked=not self._check)

        def check(low: int, high: int) -> None:
            part = slice(low, high)
            cpu.check_records(data, offsets[part], sizes[part], kinds[part], good[part])

        def look(low: int, high: int) -> None:  # checksum and features together, while the bytes are in the caches
            if not records.checked:
                check(low, high)
            if parser is not None and extents is not None:
                parser.find(data, offsets, sizes, good, extents, low, high)

        if ctx.services.allocate_staging is None:  # nothing will be copied
            spread(ctx, len(kinds), nbytes if self._check else 0, look)
            records.checked = True
        elif parser is not None and extents is not None:
            parser.find(data, offsets, sizes, good, extents, 0, len(kinds))
            if not records.checked and (right := parser.sift(extents)) is not None:
                for i in np.flatnonzero(~right).tolist():  # errors of the bytes come before those of the features
                    look(i, i + 1)
        found: tuple[Batch, ...]
        if parser is None or extents is None:
            found = (payload(ctx, data, np.where(good, offsets, 0), np.where(good, sizes, 0), 0, records),)
        else:
            found = parser.take(ctx, data, sizes, good, extents, records)
        if not records.checked:
            spread(ctx, len(kinds), nbytes, check)
        if b"\0" in good.tobytes():
            self._reject(ctx, which, kinds, good)
        return found

    def _reject(self, ctx: Context, records: I64, kinds: npt.NDArray[Any], good: npt.NDArray[np.bool_]) -> None:
        for i in np.flatnonzero(~good).tolist():
            ctx.reject(i, *self._why(int(records[i]), int(kinds[i])))


def _index(mapped: Mapped, i: int, check: bool) -> tuple[I64, I64, I32]:
    """Return extents and kinds of the records of file ``i``, from the cached index or by scanning the file."""
    start, size = int(mapped.starts[i]), int(mapped.sizes[i])
    path, key = mapped.local[i], (_VERSION, int(mapped.stored[i]), int(mapped.mtimes[i]))
    kind = "tfrecord" if check else "tfrecord-unchecked"
    if not mapped.unpacked[i]:
        cached = index_cache.load(path, kind, *key, columns=3)
        if cached is not None and _inside(cached, size):
            cached[0] += start
            return cached[0], cached[1], cached[2].astype(np.int32)
    offsets, sizes, kinds = _walk(mapped, i, check)
    if i in mapped.damage and (len(kinds) == 0 or kinds[-1] == 0):  # the unpacked bytes end with a whole record
        offsets, sizes, kinds = np.append(offsets, start + size), np.append(sizes, 0), np.append(kinds, np.int32(_LOST))
    if not mapped.unpacked[i]:
        index_cache.store(
            path, kind, *key, columns=[offsets - start if start else offsets, sizes, kinds.astype(np.int64)]
        )
    return offsets, sizes, kinds


def _inside(columns: list[I64], size: int) -> bool:
    """Whether all records that a cached index lists are inside their file of ``size`` bytes, framing included.
    ``columns`` are those of the index."""
    offsets, sizes, kinds = columns
    if not len(offsets) == len(sizes) == len(kinds):
        return False
    for low in range(0, len(offsets), _BLOCK):  # in blocks, which need less memory than the index
        at, nbytes, kind = (column[low : low + _BLOCK] for column in columns)
        framed = np.isin(kind, (0, 1))
        first, last = np.where(framed, at - 12, at), np.where(framed, size - 4, size)
        known = (kind >= 0) & (kind <= 3)
        if not (known & (first >= 0) & (nbytes >= 0) & (at <= last) & (nbytes <= last - at)).all():
            return False
    return True


def _search(mapped: Mapped, i: int) -> int:
    """Return how many bytes of file ``i`` may be searched for records after damage."""
    if not mapped.unpacked[i]:
        return int(mapped.sizes[i])
    return max(_SEARCH, _SEARCH_RATIO * int(mapped.stored[i]))


def _walk(mapped: Mapped, i: int, check: bool) -> tuple[I64, I64, I32]:
    """Scan file ``i`` for records, valid and damaged. Return their offsets, sizes and kinds."""
    from .tfrecord_cpu import walk

    at, stop, search = int(mapped.starts[i]), int(mapped.starts[i] + mapped.sizes[i]), _search(mapped, i)
    blocks: list[tuple[Any, ...]] = []
    found = 0
    while at < stop and (left := mapped.records_left(i, found)):
        most = min(_BLOCK, left, (stop - at) // 16 + 2)  # the framing alone has 16 bytes per record
        offsets, sizes, kinds = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int32)
        n, at, search = walk(mapped.data, at, stop, search, check, offsets, sizes, kinds)
        blocks.append((offsets[:n].copy(), sizes[:n].copy(), kinds[:n].copy()))
        found += n
    if not blocks:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    offsets, sizes, kinds = index_cache.joined(blocks)
    return offsets, sizes, kinds


def framed(path: str) -> tuple[I64, I64]:
    """Offsets and sizes of the records of the file ``path``, framing included. Raises JobError if the file is damaged
    or is not a TFRecord file."""
    mapped = Mapped([path])
    start, size = int(mapped.starts[0]), int(mapped.sizes[0])
    offsets, sizes, kinds = _walk(mapped, 0, True)
    wrong = np.flatnonzero(kinds != 0)
    if mapped.damage or len(wrong):
        at = max(int(offsets[wrong[0]]) - start - 12, 0) if len(wrong) else size
        raise JobError(f"{path}: the bytes from {at} on are damaged, or are not a TFRecord")
    return offsets - start - 12, sizes + 16


def _listed(path: str, mapped: Mapped, i: int) -> tuple[I64, I64, I32]:
    """Read an index file of DALI's tfrecord2idx, with lines of offset and length, framing included."""
    start, size = int(mapped.starts[i]), int(mapped.sizes[i])
    try:
        text = Path(local_copy(path)).read_bytes()
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    try:
        rows = [(int(a), int(b)) for a, b in (line.split() for line in text.splitlines() if line.strip())]
        table = np.array(rows, np.int64).reshape(-1, 2)
    except (ValueError, OverflowError):
        lines = text.splitlines()
        bad = next(k for k, line in enumerate(lines) if line.strip() and not _two_numbers(line))
        raise JobError(f"{path}:{bad + 1}: needs an offset and a length, got {lines[bad][:100]!r}") from None
    wrong = (table[:, 0] < 0) | (table[:, 1] < 16) | (table[:, 0] > size) | (table[:, 1] > size - table[:, 0])
    if wrong.any():
        row = table[np.flatnonzero(wrong)[0]].tolist()
        raise JobError(f"{path}: offset {row[0]} and length {row[1]} do not lie in {mapped.paths[i]} ({size} bytes)")
    return table[:, 0] + start + 12, table[:, 1] - 16, np.zeros(len(table), np.int32)


def _two_numbers(line: bytes) -> bool:
    parts = line.split()
    return len(parts) == 2 and all(p.isdigit() and len(p) < 19 for p in parts)


class TFRecord(JoiningReader, name="readers.tfrecord"):
    """Read records of TFRecord files (also gzip'ed ones). Checksums are checked; missing indexes are made.

    Outputs: with ``features`` (of tf.train.Example) one per feature, in their order: strings as bytes (uint8, 1-D),
    numbers as float32 or int64 of the feature's shape. Without ``features``, the record's bytes.
    """

    maps_files = True
    aliases = ("tfrecord_reader", "readers._tfrecord")
    example = (
        "{op: readers.tfrecord, path: train-*.tfrecord, features: {image/encoded: string, image/class/label: int64}, "
        "out: [jpegs, labels]}"
    )

    path: Annotated[str | tuple[str, ...], Arg("files, or patterns that match them")]
    index_path: Annotated[str | tuple[str, ...] | None, Arg("tfrecord2idx's index of each file")] = None
    features: Annotated[
        dict[str, Any] | None,
        Arg("name: type, or name: {dtype: string|float|int64, shape: [..], default: .., var_len: true}"),
    ] = None
    key: Annotated[str | None, Arg("bytes feature that holds the samples' keys (the writer's option key)")] = None
    check_crc: Annotated[bool, Arg("check every record's checksums; false leaves its bytes to a GPU")] = True
    use_o_direct: Annotated[bool, Arg("read past the page cache", ignored="files are mapped")] = False

    @property
    def own_outputs(self) -> int:
        return 1 if self.features is None else len(self.features)

    @property
    def own_names(self) -> tuple[str, ...] | None:
        return None if self.features is None else tuple(self.features)

    def check(self) -> None:
        super().check()
        if self.features is not None and not declared(self.features):
            raise SpecError("features is empty; name some, or leave it out for whole records")
        if not one_or_more(self.path) or any(not p or "\0" in p for p in one_or_more(self.path)):
            raise SpecError("path names no file")

    def own_specs(self) -> tuple[Spec, ...]:
        if self.features is None:
            return (Spec((None,), DALIDataType.UINT8),)
        return tuple(f.spec for f in declared(self.features).values())

    def open_records(self) -> _TFRecords:
        return _TFRecords(self)
