"""RecordIO: MXNet's records, an image with its label or labels, and the index that its readers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops.base import Spec
from ..ops.batch import I64
from ..ops.errors import SpecError
from .base import ENCODED, FieldConfig, Frames, Records, Refused, Shard, ShardFiles, Writer
from .columns import (
    U8,
    Column,
    as_bytes,
    as_floats,
    check_encoded,
    check_field,
    copy,
    is_encoded,
    join,
    starts_of,
    total_of,
)

_MAGIC = 0xCED7230A
_LONGEST = (1 << 29) - 1
"""Bytes of a record: the length shares its word with three bits that say which part of a record this is."""


class RecordIO(Writer, name="recordio", suffix=".rec"):
    """MXNet RecordIO with image headers (flag, label, id), as im2rec writes and DALI's readers.mxnet reads.

    Takes one field of encoded bytes, and at most one field of numbers, the label (a list of several is stored whole,
    as float32).
    """

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


@dataclass(slots=True)
class RecordIOFrames(Frames):
    """All records in one buffer."""

    data: U8
    starts: I64


class RecordIOShard(Shard):
    """One .rec file, and its .idx."""

    def __init__(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._fields = fields
        self._file = files.create(".rec")
        self._index = files.create(".idx")
        self._count = 0

    def frame(self, records: Records) -> RecordIOFrames:
        from . import frames_cpu

        body = self._bodies(records)
        # A magic number inside a record would look like the next one: the record is cut there, and the number left out
        # (dmlc-core's recordio). Readers put it back.
        places, owners = frames_cpu.find_word(body.data, body.starts, body.sizes, np.int64(_MAGIC))
        starts = np.sort(np.concatenate((body.starts, places + 4)))
        ends = np.sort(np.concatenate((body.starts + body.sizes, places)))
        owner = np.sort(np.concatenate((np.arange(len(records)), owners)))
        first = np.concatenate(([True], owner[1:] != owner[:-1]))
        last = np.concatenate((owner[1:] != owner[:-1], [True]))
        part = np.where(first, np.where(last, 0, 1), np.where(last, 3, 2))
        sizes = ends - starts
        framed = 8 + -(-sizes // 4) * 4
        at = starts_of(framed)
        out = np.zeros(int(framed.sum()), np.uint8)
        heads = np.stack((np.full(len(part), _MAGIC), part << 29 | sizes), axis=1).astype("<u4")
        out.view("<u4").reshape(-1)[at // 4] = heads[:, 0]
        out.view("<u4").reshape(-1)[at // 4 + 1] = heads[:, 1]
        copy(out, at + 8, Column(body.data, starts, sizes))
        return RecordIOFrames(np.add.reduceat(framed, np.flatnonzero(first)), out, at[first])

    def _bodies(self, records: Records) -> Column:
        n = len(records)
        head = np.zeros(n, np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")]))
        head["id"] = records.samples.position
        parts: list[Column] = []
        for name, batch in records.fields.items():
            config = self._fields.get(name, FieldConfig())
            check_encoded(name, config, batch)
            if config.encode in ENCODED or (batch.dtype == np.uint8 and batch.ndim == 1):
                parts.append(as_bytes(batch))
                continue
            labels = as_floats(batch)
            single = labels.sizes == 4
            values = labels.data.view("<f4")
            head["label"][single] = values[labels.starts[single] // 4]
            head["flag"] = np.where(single, 0, labels.sizes // 4)
            parts.insert(0, Column(labels.data, labels.starts, np.where(single, 0, labels.sizes)))
        heads = Column(head.view(np.uint8), np.arange(n) * head.itemsize, np.full(n, head.itemsize))
        return join([heads, *parts])

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, RecordIOFrames)
        numbers = np.arange(self._count, self._count + n)
        lines = np.stack((numbers, frames.starts[:n] + self._file.size), axis=1)
        self._index.write((b"%d\t%d\n" * n) % tuple(lines.reshape(-1).tolist()))
        self._count += n
        self._file.write(frames.data[: int(frames.sizes[:n].sum())])
