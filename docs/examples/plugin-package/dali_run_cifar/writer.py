"""The writer ``cifar``: files that readers.cifar reads."""

from dataclasses import dataclass

import numpy as np

from dali_run.ops.errors import SpecError
from dali_run.writers.base import Frames, Refused, Shard, Writer

from .reader import RECORD, SHAPE


class CifarFiles(Writer, name="cifar", suffix=".bin"):
    """CIFAR-10's binary format: the fields ``label`` (a number) and ``image`` (uint8, CHW, 3 x 32 x 32)."""

    def check(self, fields, specs):
        if set(fields) != {"image", "label"}:
            raise SpecError(f"the cifar writer takes the fields image and label, got {', '.join(fields)}")
        if specs["image"].shape not in (None, SHAPE):
            raise SpecError(f"image must be 3 x 32 x 32, got {specs['image']}")

    def refuse(self, records, carry):
        labels = records.fields["label"].dense()
        wrong = np.flatnonzero((labels < 0) | (labels > 255)).tolist()
        return [Refused(i, "bad_argument", f"a label takes one byte, {labels[i]} does not fit") for i in wrong]

    def open(self, files, fields):
        return CifarShard(files)

    @classmethod
    def walk(cls, shard):
        """Check a shard, after `dali-run verify` has compared its checksums."""
        name = shard.file(".bin")
        yield from shard.count(name, (shard.root / name).stat().st_size // RECORD)


@dataclass(slots=True)
class CifarFrames(Frames):
    """Framed bytes of a batch: one row of 3,073 bytes per record."""

    rows: np.ndarray


class CifarShard(Shard):
    """One shard, which is one file."""

    def __init__(self, files):
        self._file = files.create(".bin")

    def frame(self, records):
        labels = records.fields["label"].dense().reshape(-1, 1).astype(np.uint8)
        rows = np.concatenate([labels, records.fields["image"].dense().reshape(-1, RECORD - 1)], axis=1)
        return CifarFrames(np.full(len(rows), RECORD, np.int64), rows)

    def append(self, frames, n):
        self._file.write(frames.rows[:n].reshape(-1))
