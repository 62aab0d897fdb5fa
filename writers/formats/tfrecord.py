"""The TFRecord writer: serialised Examples, each framed with its length and two masked CRC-32Cs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.batch import I64
from ...ops.errors import SpecError
from ..base import FieldConfig, Frames, Records, Shard, ShardFiles, Writer
from ..bytes import sidecar
from ..bytes.scatter_gather import ScatteredRecords
from ..bytes.written import Problem, WrittenShard, map_file
from .columns import check_field, examples, features, keys_of, pairs, starts_of


class TFRecord(Writer, name="tfrecord", suffix=".tfrecord"):
    """Examples in TFRecord files, for TensorFlow, DALI, tfrecord.

    Bytes (encoded images) are stored as bytes features, integers as int64, floats as float, and arrays as three
    features: ``<field>`` (bytes), ``<field>/shape`` and ``<field>/dtype``.
    """

    independent = True

    index: Annotated[bool, Arg("also write <shard>.idx, lines 'offset length', for DALI's reader")] = True
    key: Annotated[str, Arg("store the samples' keys as a bytes feature of this name; empty for none")] = ""

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        if self.key in fields:
            raise SpecError(f"option key: {self.key!r} is already the name of a field")

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return TFRecordShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        from ...ops.storage.crc32c_cpu import masked_crc32c

        name = shard.file(".tfrecord")
        data = map_file(shard.root / name)
        raw = data.data
        at = count = 0
        starts: list[tuple[int, int]] = []
        while at < len(data):
            where = f"record {count} at byte {at}"
            if at + 16 > len(data):
                yield Problem(name, where, f"{len(data) - at} bytes are left, too few for a record")
                break
            length, crc = struct.unpack_from("<QI", raw, at)
            if masked_crc32c(data, at, at + 8) != crc or at + 16 + length > len(data):
                yield Problem(name, where, f"the record's length is damaged; {len(data) - at} bytes cannot be read")
                break
            if masked_crc32c(data, at + 12, at + 12 + length) != struct.unpack_from("<I", raw, at + 12 + length)[0]:
                yield Problem(name, where, f"its {length} bytes are damaged (CRC-32C differs)")
            starts.append((at, length + 16))
            at += length + 16
            count += 1
        yield from shard.count(name, count)
        if shard.options.get("index", True):
            index = shard.file(".idx")
            if sidecar.read(shard.root / index) != b"".join(b"%d %d\n" % s for s in starts):
                yield Problem(index, "", "does not say where the records are")


_LISTED = 32
"""Number of batches whose lines are written to the index together, because writing one batch's lines takes longer than
making them."""


@dataclass(slots=True)
class TFRecordFrames(Frames):
    """Records of a batch with the framing of TFRecord (lengths and CRCs); large values are not copied."""

    records: ScatteredRecords


class TFRecordShard(Shard):
    """One TFRecord file, and its index."""

    def __init__(self, writer: TFRecord, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._key = writer.key.encode()
        self._fields = fields
        self._file = files.create(".tfrecord")
        self._index = files.create(".idx") if writer.index else None
        self._unlisted: list[I64] = []
        """Sizes in bytes of the records that are in the file, but not yet in its index."""

    def frame(self, records: Records) -> TFRecordFrames:
        from ..bytes import frames_cpu

        parts = features(records.fields, self._fields)
        if self._key:
            parts.append((self._key, 10, keys_of(records.samples)))
        scattered = examples(parts, len(records), around=(12, 4))
        frames_cpu.put_tfrecord_frames(
            scattered.own, scattered.starts, scattered.ends, scattered.cuts, scattered.addresses, scattered.sizes
        )  # fmt: skip
        return TFRecordFrames(scattered.totals, scattered)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, TFRecordFrames)
        self._file.write(frames.records.io_vector(n))
        self._unlisted.append(frames.sizes[:n])
        if len(self._unlisted) == _LISTED:
            self._list()

    def close(self) -> None:
        self._list()

    def _list(self) -> None:
        """Write the lines of the records in ``_unlisted`` to the index, which lacks them so far."""
        if self._index is not None and self._unlisted:
            sizes = np.concatenate(self._unlisted)
            starts = starts_of(sizes)
            starts += self._file.size - int(starts[-1] + sizes[-1])
            self._index.write(pairs(starts, sizes, " "))
        self._unlisted = []
