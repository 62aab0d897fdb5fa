"""readers.sequence: sequences of frames, which are image files; each folder is a stream."""

from __future__ import annotations

import hashlib
import os
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin, Samples
from ..ops.codecs.decoders import Image
from ..ops.context import Context, KernelServices
from ..ops.errors import JobError
from ..ops.storage.inventory import InventoryEntries
from ..ops.types import DALIDataType, DALIImageType
from .base import Reader
from .file import FileSet, list_folder, matcher, subdirectories

I64 = npt.NDArray[np.int64]


class _Streams(BatchedOrigins):
    """Data set of the reader `Sequence`, opened: the frame sequences of all streams, and the files of their frames."""

    groups: I64 | None = None

    def __init__(self, reader: Sequence) -> None:
        root = reader.file_root
        folders = subdirectories(root, matcher(None, case_sensitive=True))
        names: list[bytes] = []
        starts: list[int] = []
        reach = (reader.sequence_length - 1) * reader.stride + 1
        for folder in folders:
            frames = sorted(list_folder(os.path.join(os.fsencode(root), folder)))
            starts += range(len(names), len(names) + len(frames) - reach + 1, reader.step)
            names += [folder + b"/" + frame for frame in frames]
        if not starts:
            raise JobError(f"file_root {root} has no folder of {reach} frames, which a sequence needs")
        self._files = FileSet(root, names)
        self._reader = reader
        self._starts: I64 = np.array(starts, np.int64)
        self._decoder = Image(output_type=reader.image_type)

    def __len__(self) -> int:
        return len(self._starts)

    def origins_of(self, index: npt.NDArray[np.int64]) -> list[Origin]:
        return self._files.origins_of(self._starts[index])

    def fingerprint(self) -> str:
        return hashlib.sha256(self._files.fingerprint().encode() + self._starts.tobytes()).hexdigest()

    def inventory(self) -> InventoryEntries:
        return self._files.inventory()

    def close(self) -> None:
        self._files.close()

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        n, length = len(ctx.samples), self._reader.sequence_length
        frames = self._starts[ctx.samples.index, None] + np.arange(length) * self._reader.stride
        services = KernelServices(pool=ctx.services.pool, isolation=ctx.services.isolation)
        inner = Context(self._decoder, "cpu", Samples.numbered(n * length), services=services)
        decoded = self._decoder.cpu(inner, self._files.read(inner, frames.reshape(-1))).packed()
        bad = np.zeros(n, np.bool_)
        for r in inner.rejects:
            i, k = divmod(r.slot, length)
            ctx.reject(i, r.code, f"frame {k} ({self._files.origin(int(frames[i, k])).key}): {r.message}")
            bad[i] = True
        shapes = decoded.shapes.reshape(n, length, 3)
        for i in np.flatnonzero((shapes != shapes[:, :1]).any(axis=(1, 2)) & ~bad).tolist():
            k = int(np.flatnonzero((shapes[i] != shapes[i, 0]).any(axis=1))[0])
            ctx.reject(i, "bad_shape", f"frame {k} is {shapes[i, k].tolist()}, the first frame {shapes[i, 0].tolist()}")
            bad[i] = True
        out = np.concatenate([np.full((n, 1), length), shapes[:, 0]], axis=1).astype(np.int32)
        out[bad] = 0
        return (Batch(decoded.data, decoded.offsets[::length], out, "FHWC", ctx.samples),)


class Sequence(Reader, name="readers.sequence"):
    """Read sequences of frames: ``file_root/<stream>/<frame>``, image files that `decoders.image` supports, sorted by
    name.

    The output is uint8, FHWC. A sequence starts at every ``step``-th frame of a stream and takes every ``stride``-th
    frame from there; sequences that would reach beyond the end of the stream are left out. DALI has deprecated this
    reader: use readers.video for videos.
    """

    aliases = ("sequence_reader",)
    example = "{op: readers.sequence, file_root: ./streams, sequence_length: 8, out: frames}"
    shuffles_list: ClassVar[bool] = True

    file_root: Annotated[str, Arg("folder of folders of frames")]
    sequence_length: Annotated[int, Arg("frames per sequence", ge=1)]
    image_type: Annotated[DALIImageType, Arg("colour space of the output")] = DALIImageType.RGB
    step: Annotated[int, Arg("frames between the starts of two sequences", ge=1)] = 1
    stride: Annotated[int, Arg("frames between two frames of a sequence", ge=1)] = 1

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        channels = 1 if self.image_type is DALIImageType.GRAY else 3
        if self.image_type is DALIImageType.ANY_DATA:
            return (Spec((self.sequence_length, None, None, None), DALIDataType.UINT8, "FHWC"),)
        return (Spec((self.sequence_length, None, None, channels), DALIDataType.UINT8, "FHWC"),)

    def open(self) -> _Streams:
        return _Streams(self)
