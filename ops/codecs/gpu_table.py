"""Decoders that run on a GPU, and the assignment of images to them."""

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
    """Decoder that runs on a GPU. If an image fails its checks there, decoders on the CPU decode the image again."""

    needs_files = True
    """Whether the encoded files must be in device memory."""

    @abstractmethod
    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> GpuWork | None:
        """Prepare on the host the decoding of the images ``indices``; CPU ``threads`` may help. Return the work for the
        device, or None if the ``threads`` decode all of these images."""

    def seconds(self, job: DecodeJob, indices: I64) -> Costs | None:
        """Return the seconds that each image takes on one warp of the GPU and on one thread of the CPU. Return None if
        this decoder decodes an image with many warps in parallel."""
        return None


class GpuWork(ABC):
    """Work of a `GpuDecoder` for one batch, prepared on the host. Used by the thread that launches kernels."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the prepared work occupies."""
        return 0

    @abstractmethod
    def launch(self, job: DecodeJob, lane: Lane, files: Batch, out: Batch) -> I64:
        """Enqueue the decoding of ``files`` into ``out``, both on the device. Return the indices of images that this
        decoder could not decode, for other decoders."""

    def finish(self, job: DecodeJob) -> None:  # noqa: B027 (most rows have nothing to do)
        """Enqueue work that must come after all other work of the batch. Most decoders have none."""


@cache
def gpu_rows() -> tuple[GpuDecoder, ...]:
    """Return the decoders that run on a GPU, in the order of their formats."""
    return tuple(rows_of(f.gpu_rows for f in FORMATS))


def deal_to_gpu(job: DecodeJob, indices: I64, rows: Sequence[GpuDecoder]) -> list[I64]:
    """Assign images to GPU decoders: return, for each decoder of ``rows``, the ``indices`` that it decodes. Slow images
    that CPU threads should decode, so that the batch ends sooner (`costs.stragglers`), are not assigned."""
    dealt = deal(job, indices, rows)
    if not job.headers.unusual:  # only plain JPEGs
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
