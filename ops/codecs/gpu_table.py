"""Rows of the decoder table that run on a GPU, and how images are dealt to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

import numpy as np

from ..batch import I64, Batch
from ..gpu.lane import Lane
from . import costs
from .costs import Costs
from .decoder_table import DecodeJob, Decoder, deal, rows_of
from .formats import FORMATS
from .threaded_decode import ThreadedDecode, thread_count


class GpuDecoder(Decoder):
    """A row that decodes on a GPU. Images that fail its checks there are decoded again, by the rows of the host."""

    needs_files = True
    """Whether the encoded images must be on the device."""

    @abstractmethod
    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> GpuWork | None:
        """Prepare the images ``indices`` on the host, in ``threads`` of the CPU or at once; return the work for the
        device, or None if the ``threads`` have it all."""

    def seconds(self, job: DecodeJob, indices: I64) -> Costs | None:
        """Seconds that each of the images takes if it is decoded serially: by one lane of the GPU, and by one thread of
        the CPU. None for rows that decode an image in parallel."""
        return None


class GpuWork(ABC):
    """Work of a `GpuDecoder` for one batch, prepared on the host. Used by the thread that launches."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return 0

    @abstractmethod
    def launch(self, job: DecodeJob, lane: Lane, files: Batch, out: Batch) -> I64:
        """Enqueue the work: out of ``files`` to ``out``, both on the device. Return the images that the row turned out
        not to take."""

    def finish(self, job: DecodeJob) -> None:  # noqa: B027 (most have nothing to do)
        """Enqueue what must come after all other work of the batch."""


@cache
def gpu_rows() -> tuple[GpuDecoder, ...]:
    """The rows that run on a GPU, by formats."""
    return tuple(rows_of(f.gpu_rows for f in FORMATS))


def deal_to_gpu(job: DecodeJob, indices: I64, rows: Sequence[GpuDecoder]) -> list[I64]:
    """The images ``indices`` by the row of a GPU that takes them, without those that threads of the CPU should decode
    (`costs.stragglers`): an array for each row."""
    dealt = deal(job, indices, rows)
    if not job.headers.odd:  # JPEGs alone
        return dealt
    serial = [(k, found) for k, row in enumerate(rows)
              if len(dealt[k]) and (found := row.seconds(job, dealt[k])) is not None]  # fmt: skip
    if not serial:
        return dealt
    gpu, cpu = (np.concatenate([found[side] for _, found in serial]) for side in range(2))
    moved = costs.stragglers(gpu, cpu, len(job.batch) - len(gpu), thread_count())
    kept, at = list(dealt), 0
    for k, (seconds, _) in serial:
        kept[k] = dealt[k][~moved[at : at + len(seconds)]]
        at += len(seconds)
    return kept
