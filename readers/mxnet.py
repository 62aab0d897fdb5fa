"""readers.mxnet: read images and labels of MXNet's RecordIO files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.context import Context
from ..ops.errors import JobError, RejectCode, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.types import DALIDataType
from .fetch import index_cache
from .fetch.extents import MAX_RECORD, Groups, Mapped, expand, one_or_more, payload, short_names
from .fetch.remote import local_copy
from .join.reader import JoiningReader

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_VERSION = 1  # version of the cached index's layout
_BLOCK = 1 << 16
_EXACT = 1 << 24
"""Largest n such that float32 represents all whole numbers up to n."""
_THREADS = 16
_COLUMNS = 4
_START, _SIZE, _PARTS, _KIND = range(_COLUMNS)  # equal to the constants of recordio_cpu


class _RecordIORecords(BatchedOrigins):
    """Data set of the reader `MXNet`, opened: the records of all RecordIO files, by number. Offsets of records count
    from the start of the mapped memory."""

    def __init__(self, reader: MXNet) -> None:
        paths = expand(one_or_more(reader.path))
        self._mapped = Mapped(paths)
        if reader.index_path is not None:
            listed = expand(one_or_more(reader.index_path))
            if len(listed) != len(paths):
                raise JobError(f"{len(listed)} index files for {len(paths)} RecordIO files; give one for each")
            parts = [_listed(p, self._mapped, i) for i, p in enumerate(listed)]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
                parts = list(pool.map(lambda i: _index(self._mapped, i), range(len(paths))))
        self._rows = np.concatenate(parts)
        self._files = Groups(np.array([len(p) for p in parts], np.int64))
        self.groups: I64 | None = self._files.counts
        self._names = short_names(paths)
        if len(self) and bool((self._rows[:, _KIND] != 0).all()):
            reason = self._why(0, int(self._rows[0, _KIND]))[1]
            first = self.origin(0)
            raise JobError(f"{first.source}: byte {first.offset}: {reason}; is it a RecordIO file?")

    def __len__(self) -> int:
        return len(self._rows)

    def origins_of(self, index: I64) -> list[Origin]:
        places = self._rows[index, _START] - self._mapped.starts[self._files.files(index)]
        return self._files.origins(self._mapped.paths, self.keys(index), index, places)

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        return self._files.numbered(self._names, index)

    def fingerprint(self) -> str:
        return self._mapped.fingerprint(self._names, self._rows)

    def inventory(self) -> InventoryEntries:
        return self._mapped.inventory(self._names, self._files.counts)

    def close(self) -> None:
        """Do nothing: the files stay mapped until the last batch that is a view of them is gone."""

    def _why(self, index: int, kind: int) -> tuple[RejectCode, str]:
        from . import recordio_cpu as cpu

        damage = self._mapped.damage.get(self._files.locate(index)[0])
        size = int(self._rows[index, _SIZE])
        if kind == cpu.TRUNCATED:
            return "truncated", damage or f"the file ends inside the record; the last {size} bytes are lost"
        if kind == cpu.LOST:
            return "corrupt_record", damage or f"no record begins here or in the {size} bytes from here; they are lost"
        return "corrupt_record", f"the record is no image record: its {size} bytes do not hold the labels that they say"

    def _headers(self, rows: I64, kinds: I64, sizes: I64, staging: Callable[[int], U8]) -> tuple[U8, I64, I64]:
        """Return an array with the records that ``rows`` describe, their offsets in it, and the flags of their headers.
        ``kinds`` is set for records without a header. A record stored in several parts is joined in memory from
        ``staging``."""
        from . import recordio_cpu as cpu

        data, at = self._mapped.data, rows[:, _START] + 8
        if bool(((rows[:, _PARTS] > 1) & (kinds == cpu.GOOD)).any()):
            # the whole batch is copied, because it can be a view of one array only
            room = np.where(kinds == cpu.GOOD, (sizes + 15) // 16 * 16, 0)
            at = np.cumsum(room) - room
            data = staging(int(room.sum()))
            cpu.join(self._mapped.data, rows, at, data)
        flags = np.empty(len(rows), np.int64)
        cpu.read_headers(data, at, sizes, flags, kinds)
        return data, at, flags

    def labels(self, low: int, high: int) -> tuple[npt.NDArray[np.float32], I64]:
        """Labels of the records [low, high) in one array, and the number of labels of each (0 if damaged)."""
        from . import recordio_cpu as cpu

        rows = self._rows[low:high].copy()
        sizes, kinds = rows[:, _SIZE].copy(), rows[:, _KIND].copy()
        kinds[self._mapped.truncated(rows[:, _START]) | (sizes > MAX_RECORD)] = cpu.LOST
        rows[:, _KIND] = kinds
        data, at, flags = self._headers(rows, kinds, sizes, lambda nbytes: np.empty(nbytes, np.uint8))
        labels, _, counts = _labels(data, at, flags, kinds)
        return labels, counts

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        from . import recordio_cpu as cpu

        which = ctx.samples.index
        rows = self._rows.take(which, axis=0)
        sizes, kinds = rows[:, _SIZE].copy(), rows[:, _KIND].copy()
        self._mapped.will_need(ctx, rows[:, _START], sizes)
        gone = self._mapped.truncated(rows[:, _START])
        large = (sizes > MAX_RECORD) & (kinds == cpu.GOOD)
        kinds[gone | large] = cpu.LOST
        rows[:, _KIND] = kinds
        data, at, flags = self._headers(rows, kinds, sizes, ctx.staging)
        good = kinds == cpu.GOOD
        for i in np.flatnonzero(~good).tolist():
            if gone[i]:
                ctx.reject(i, "read_failed", "the file was cut short while the job ran")
            elif large[i]:
                ctx.reject(i, "too_large", f"the record has {int(sizes[i])} bytes; at most {MAX_RECORD} are allowed")
            else:
                ctx.reject(i, *self._why(int(which[i]), int(kinds[i])))
        labels, to, counts = _labels(data, at, flags, kinds)
        skipped = cpu.IMAGE_HEADER + 4 * flags
        offsets, sizes = np.where(good, at + skipped, 0), np.where(good, sizes - skipped, 0)
        if data is self._mapped.data:
            images = payload(ctx, data, offsets, sizes)
        else:
            images = Batch(data, offsets, sizes.astype(np.int32).reshape(-1, 1), "", ctx.samples)
        return images, Batch(labels, to, counts.astype(np.int32).reshape(-1, 1), "", ctx.samples)


def _labels(data: U8, at: I64, flags: I64, kinds: I64) -> tuple[npt.NDArray[np.float32], I64, I64]:
    """Return the labels of the records at ``at`` in one array, and the offset and number of each record's labels."""
    from . import recordio_cpu as cpu

    counts = np.where(kinds == cpu.GOOD, np.maximum(flags, 1), 0)
    to = np.cumsum(counts) - counts
    labels = np.empty(int(counts.sum()), np.float32)
    cpu.read_labels(data, at, flags, kinds, to, labels)
    return labels, to, counts


def labels_of(paths: Sequence[str]) -> tuple[int, bool, bool]:
    """Read the labels of the RecordIO files ``paths``. Return the number of records, whether all labels are whole
    numbers, and whether a record has several labels. Raises JobError."""
    records = MXNet(path=tuple(paths)).open_records()
    whole, several = True, False
    for low in range(0, len(records), _BLOCK):
        labels, counts = records.labels(low, min(low + _BLOCK, len(records)))
        whole &= bool((np.isfinite(labels) & (labels == np.rint(labels)) & (np.abs(labels) <= _EXACT)).all())
        several |= bool((counts > 1).any())
    return len(records), whole, several


def _index(mapped: Mapped, i: int) -> I64:
    """Return a row of facts (see `recordio_cpu`) per record of file ``i``, from the cached index or by a scan."""
    from .recordio_cpu import LOST, walk

    start, size = int(mapped.starts[i]), int(mapped.sizes[i])
    path, key = mapped.local[i], (_VERSION, int(mapped.stored[i]), int(mapped.mtimes[i]))
    if not mapped.unpacked[i]:
        cached = index_cache.load(path, "recordio", *key, columns=1)
        if cached is not None and _inside(cached[0], size):
            return _located(mapped, i, cached[0] + start)
    blocks = [np.empty((0, _COLUMNS), np.int64)]
    at, found, search = start, 0, size // 4 + 1  # as many parts as a file can have
    while at < start + size and (left := mapped.records_left(i, found)):
        rows = np.empty((min(_BLOCK, left), _COLUMNS), np.int64)
        n, at, search = walk(mapped.data, at, start + size, search, rows)
        blocks.append(rows[:n].copy())
        found += n
    rows = np.concatenate(blocks)
    if i in mapped.damage and (len(rows) == 0 or rows[-1, _KIND] == 0):
        rows = np.concatenate([rows, [[start + size, 0, 0, LOST]]])
    if not mapped.unpacked[i] and bool((rows[:, _KIND] == 0).all()):
        index_cache.store(path, "recordio", *key, columns=[rows[:, _START] - start])
    return rows


def framed(path: str) -> I64:
    """Offsets of the records of the file ``path``. Raises JobError if the file is damaged or is not RecordIO."""
    mapped = Mapped([path])
    rows = _index(mapped, 0)
    starts: I64 = rows[:, _START] - mapped.starts[0]
    wrong = np.flatnonzero(rows[:, _KIND] != 0)
    if len(wrong):
        raise JobError(f"{path}: the bytes from {starts[wrong[0]]} on are damaged, or are not a RecordIO record")
    return starts


def _inside(offsets: I64, size: int) -> bool:
    return bool(len(offsets) > 0 and offsets[0] == 0 and (np.diff(offsets) >= 8).all() and offsets[-1] <= size - 8)


def _located(mapped: Mapped, i: int, starts: I64) -> I64:
    from .recordio_cpu import locate

    rows = np.empty((len(starts), _COLUMNS), np.int64)
    end = int(mapped.starts[i] + mapped.sizes[i])
    locate(mapped.data, starts, np.full(len(starts), end, np.int64), rows)
    return rows


def _listed(path: str, mapped: Mapped, i: int) -> I64:
    """Read an index file of im2rec or rec2idx: lines of key and offset. Records are sorted by offset, as in DALI."""
    size = int(mapped.sizes[i])
    try:
        lines = Path(local_copy(path)).read_bytes().splitlines()
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    offsets = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdigit() or len(words[1]) > 18:
            raise JobError(f"{path}:{number}: needs a key and an offset, got {line[:100]!r}")
        offset = int(words[1])
        if offset > size - 8:
            raise JobError(f"{path}:{number}: offset {offset} does not lie in {mapped.paths[i]} ({size} bytes)")
        offsets.append(offset)
    return _located(mapped, i, np.sort(np.array(offsets, np.int64)) + mapped.starts[i])


class MXNet(JoiningReader, name="readers.mxnet"):
    """Read images and labels of MXNet's RecordIO files, with or without their index.

    Outputs: the image's bytes (uint8, 1-D) and its labels (float32, 1-D: one, or as many as the record has).
    """

    maps_files = True
    aliases = ("mxnet_reader", "readers._mxnet")
    example = "{op: readers.mxnet, path: train.rec, index_path: train.idx, random_shuffle: true, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("files, or patterns that match them")]
    index_path: Annotated[str | tuple[str, ...] | None, Arg("index of each file: lines of key and offset")] = None

    @property
    def own_outputs(self) -> int:
        return 2

    def check(self) -> None:
        super().check()
        if not one_or_more(self.path) or any(not p or "\0" in p for p in one_or_more(self.path)):
            raise SpecError("path names no file")

    def own_specs(self) -> tuple[Spec, ...]:
        return Spec((None,), DALIDataType.UINT8), Spec((None,), DALIDataType.FLOAT)

    def open_records(self) -> _RecordIORecords:
        return _RecordIORecords(self)
