"""readers.cifar: records of 3,073 bytes, a label and an image of 3 x 32 x 32."""

from typing import Annotated

import numpy as np

from dali_run.ops.base import Arg, Spec
from dali_run.ops.batch import Batch, Origin
from dali_run.ops.errors import JobError
from dali_run.ops.types import DALIDataType
from dali_run.readers.base import Reader
from dali_run.readers.fetch.extents import Groups, Mapped, expand, short_names

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


class Records:
    """An open data set, `dali_run.readers.base.Source`: mapped files, out of which a batch is gathered at once."""

    def __init__(self, path):
        paths = expand([path])
        self._mapped = Mapped(paths)
        wrong = np.flatnonzero(self._mapped.sizes % RECORD)
        if len(wrong):
            raise JobError(f"{paths[wrong[0]]} is not a CIFAR file: its size is not a multiple of {RECORD} bytes")
        self._files = Groups(self._mapped.sizes // RECORD)
        self._names = short_names(paths)
        self.groups = self._files.counts

    def __len__(self):
        return int(self.groups.sum())

    def origin(self, index):
        """Return the key of one record, and its file, number and offset, for keys and reject logs."""
        file, record = self._files.locate(index)
        return Origin(f"{self._names[file]}/{record:06d}", self._mapped.paths[file], record, record * RECORD)

    def fingerprint(self):
        """Return a hash of the files: a job is continued only if it is unchanged."""
        return self._mapped.fingerprint(self._names)

    def inventory(self):
        """Return the files with their sizes, times and numbers of records: `run --append` finds new ones by it."""
        return self._mapped.inventory(self._names, self.groups)

    def close(self):
        """Close nothing: the mapping ends with the last batch that uses it."""

    def fetch(self, ctx):
        """Return images and labels of the records ``ctx.samples.index``, without Python code per sample."""
        index = ctx.samples.index
        files = self._files.files(index)
        starts = self._mapped.starts[files] + (index - self._files.firsts[files]) * RECORD
        for i in np.flatnonzero(self._mapped.truncated(starts)).tolist():
            ctx.reject(i, "read_failed", "the file was cut short while the job ran")
        rows = self._mapped.data[starts[:, None] + np.arange(RECORD)]
        images = np.ascontiguousarray(rows[:, 1:]).reshape(-1, *SHAPE)
        return (Batch.from_dense(images, "CHW", ctx.samples),
                Batch.from_dense(rows[:, 0].astype(np.int32), "", ctx.samples))  # fmt: skip


class Cifar(Reader, name="readers.cifar"):
    """Read CIFAR-10's binary files: uint8 images (CHW, 3 x 32 x 32) and int32 labels."""

    num_outputs = 2
    example = "{op: readers.cifar, path: ./data_batch_*.bin, out: [images, labels]}"

    path: Annotated[str, Arg("file, or pattern of files")]

    def infer(self, *specs):
        return Spec(SHAPE, DALIDataType.UINT8, "CHW"), Spec((), DALIDataType.INT32)

    def open(self):
        return Records(self.path)
