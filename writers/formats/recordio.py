"""The RecordIO writer: MXNet's records, each an image with its label or labels, and the index that its readers need."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops.base import Spec
from ...ops.batch import I64
from ...ops.errors import SpecError
from ..base import ENCODED, FieldConfig, Frames, Records, Refused, Shard, ShardFiles, Writer
from ..bytes import sidecar
from ..bytes.scatter_gather import ScatteredRecords
from ..bytes.written import Problem, WrittenShard, map_file
from .columns import (
    Column,
    address,
    as_bytes,
    as_floats,
    check_encoded,
    check_field,
    constant,
    copy,
    is_encoded,
    join,
    pairs,
    starts_of,
    total_of,
)

_MAGIC = 0xCED7230A
_LONGEST = (1 << 29) - 1
"""Largest size of a record in bytes: three bits of the 32-bit word with the length tell the kind of the part."""


class RecordIO(Writer, name="recordio", suffix=".rec"):
    """MXNet RecordIO with image headers (flag, label, id), as im2rec writes and DALI's readers.mxnet reads.

    Takes one field of encoded bytes, and at most one field of numbers, the label (a list of several is stored whole, as
    float32).
    """

    independent = True

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        encoded = [n for n, c in fields.items() if c.encode in ENCODED or is_encoded(specs.get(n, Spec()))]
        if len(encoded) != 1 or len(fields) > 2:
            raise SpecError(
                "the recordio writer takes one field of encoded bytes (encode: jpeg, png, webp or keep) and at most "
                f"one label, got {', '.join(f'{n} ({c.encode})' for n, c in fields.items())}"
            )

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        total = total_of([b.sizes * b.dtype.itemsize for b in records.fields.values()]) + 24
        return [
            Refused(i, "too_large", f"a RecordIO record holds at most {_LONGEST} bytes, this one has {int(total[i])}")
            for i in np.flatnonzero(total > _LONGEST).tolist()
        ]

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return RecordIOShard(files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        name = shard.file(".rec")
        data = map_file(shard.root / name)
        at = 0
        starts: list[int] = []
        while at < len(data):
            where = f"record {len(starts)} at byte {at}"
            if at + 8 > len(data):
                yield Problem(name, where, f"{len(data) - at} bytes are left, too few for a record")
                break
            magic, word = struct.unpack_from("<II", data.data, at)
            length = word & (1 << 29) - 1
            if magic != _MAGIC or at + 8 + length > len(data):
                yield Problem(name, where, f"the record's head is damaged; {len(data) - at} bytes cannot be read")
                break
            if word >> 29 in (0, 1):
                starts.append(at)
            at += 8 + -(-length // 4) * 4
        yield from shard.count(name, len(starts))
        index = shard.file(".idx")
        if sidecar.read(shard.root / index) != b"".join(b"%d\t%d\n" % pair for pair in enumerate(starts)):
            yield Problem(index, "", "does not say where the records are")


@dataclass(slots=True)
class RecordIOFrames(Frames):
    """Records of a batch in RecordIO's form, split into parts where needed; large values are not copied."""

    records: ScatteredRecords
    """Parts of all records, each with its header."""
    parts: I64
    """Index in ``records`` of the first part of each record, and the number of parts, [N + 1]."""


class RecordIOShard(Shard):
    """One RecordIO file (.rec), and its index (.idx)."""

    def __init__(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._fields = fields
        self._file = files.create(".rec")
        self._index = files.create(".idx")
        self._count = 0

    def frame(self, records: Records) -> RecordIOFrames:
        from ..bytes import frames_cpu

        head, value = self._bodies(records)
        # A magic number inside a record would look like the next record: the record is split there, without the number
        # (dmlc-core's recordio). Readers put it back.
        word, n = np.int64(_MAGIC), len(records)
        in_head, head_owners = frames_cpu.find_word(*address(head), word)
        in_value, value_owners = frames_cpu.find_word(*address(value), word)
        owners = np.concatenate((head_owners, value_owners))
        order = np.argsort(owners, kind="stable")
        places = np.concatenate((in_head, head.sizes[value_owners] + in_value))[order]
        counts = np.bincount(owners, minlength=n) + 1
        parts = np.concatenate(([0], np.cumsum(counts)))
        owner = np.repeat(np.arange(n), counts)
        first, last = np.zeros(len(owner), bool), np.zeros(len(owner), bool)
        first[parts[:-1]] = last[parts[1:] - 1] = True
        starts, ends = np.zeros(len(owner), np.int64), (head.sizes + value.sizes)[owner]
        starts[~first], ends[~last] = places + 4, places
        sizes = ends - starts
        # per part: magic number, length, its bytes of the head, zeros after it; the value is not copied
        small = np.clip(head.sizes[owner] - starts, 0, sizes)
        large = sizes - small
        here = 8 + small + -sizes % 4
        at = starts_of(here)
        own = np.zeros(int(here.sum()), np.uint8)
        kind = np.where(first, np.where(last, 0, 1), np.where(last, 3, 2))
        marks = np.stack((np.full(len(kind), _MAGIC), kind << 29 | sizes), axis=1).astype("<u4").view(np.uint8)
        copy(own, at, Column(marks.reshape(-1), np.arange(len(marks)) * 8, np.full(len(marks), 8)))
        inside = np.minimum(starts, head.sizes[owner])
        copy(own, at + 8, Column(head.data, head.starts[owner] + inside, small))
        base, values, _ = address(value)
        addresses = base + values[owner] + starts - inside
        scattered = ScatteredRecords(
            own, at, at + here, (at + 8 + small)[None], addresses[None], large[None], (value.data,)
        )
        return RecordIOFrames(np.add.reduceat(here + large, parts[:-1]), scattered, parts)

    def _bodies(self, records: Records) -> tuple[Column, Column]:
        """Return the image header with labels, and the image's bytes, of each record."""
        n = len(records)
        head = np.zeros(n, np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")]))
        head["id"] = records.samples.position
        parts: list[Column] = []
        values: list[Column] = []
        for name, batch in records.fields.items():
            config = self._fields.get(name, FieldConfig())
            check_encoded(name, config, batch)
            if config.encode in ENCODED or (batch.dtype == np.uint8 and batch.ndim == 1):
                values.append(as_bytes(batch))
                continue
            labels = as_floats(batch)
            single = labels.sizes == 4
            numbers = labels.data.view("<f4")
            head["label"][single] = numbers[labels.starts[single] // 4]
            head["flag"] = np.where(single, 0, labels.sizes // 4)
            parts.append(Column(labels.data, labels.starts, np.where(single, 0, labels.sizes)))
        heads = Column(head.view(np.uint8), np.arange(n) * head.itemsize, np.full(n, head.itemsize))
        # one, unless types were unknown before the run
        return join([heads, *parts]), values[0] if len(values) == 1 else join([constant(b"", n), *values])

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, RecordIOFrames)
        numbers = np.arange(self._count, self._count + n)
        self._index.write(pairs(numbers, starts_of(frames.sizes[:n]) + self._file.size, "\t"))
        self._count += n
        self._file.write(frames.records.io_vector(int(frames.parts[n])))
