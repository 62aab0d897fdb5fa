"""Options of a run: how an engine runs a plan. Except for ``rng`` and ``parity``, they do not change results."""

from __future__ import annotations

from dataclasses import dataclass

from ...readers.fetch.gpu_reads import RegistrationCache
from ..settings import RunSettings
from .lanes import SharedResources

LANES = 4
"""Number of batches in flight on a GPU if prefetch_queue_depth is 2, the default.

Two that are computed at once fill each other's gaps, while another is uploaded and one is planned. More would delay
each other's uploads (one H200, 1,024 images per launch: 255k images/s with 2, 275k with 3, 290k with 4, 208k with 6;
docs/performance.md has the command)."""
LATE_LANES = 6
"""Maximum number of batches in flight on a GPU if outputs exist only after the device has finished, such as JPEGs that
the GPU encodes. These batches keep their lane (CUDA stream) until the outputs are on the host (JPEG to JPEG on that
machine: 135k images/s with 4, 152k with 6, and more finished batches that may wait)."""


READ_AHEAD = 6
"""Minimum number of batches that a job with a GPU reads ahead, if there are threads for it. Two more are read in
addition, each by two threads at least. With only 4 read at once by 16 threads, the thread that launches kernels waited
two thirds of the time (JPEG to JPEG on one H200: 126k to 135k images/s; with ``prefetch_queue_depth`` 4, 141k). Single
files to tensors there, 16 threads: 228k with 5 read at once, 255k with 8, 271k with 16, each by one thread."""


def read_ahead_depth(depth: int, threads: int, *, asked: bool = False) -> int:
    """Return the number of batches of a job that may wait for a GPU: ``depth`` if the user set ``prefetch_queue_depth``
    (``asked``); otherwise more, if there are threads to read them."""
    return depth if asked else max(depth, min(READ_AHEAD, threads // 2 - 2))


def lanes_for(depth: int, *, late: bool = False) -> int:
    """Return the number of batches in flight on a GPU if the queue of finished batches holds ``depth``; it is lower for
    a short queue. ``late``: some outputs exist only after the device has finished."""
    return min(depth + 2, LATE_LANES if late else LANES)


@dataclass(frozen=True, kw_only=True)
class Options(RunSettings):
    """Settings with which an engine runs a plan. Only ``rng`` and ``parity`` change results."""

    num_threads: int = 2
    cpu_queue: int = 2
    gpu_queue: int = 2
    lanes: int = LANES
    """Number of batches in flight on each GPU, each on a lane (CUDA stream) of its own."""
    to_host: bool = True
    """Whether outputs of GPU nodes are copied to the host, where writers need them."""
    policy: str = "skip"
    """Treatment of samples that fail: ``skip`` drops the sample, ``fail`` ends the run, ``replace`` puts a copy of a
    neighbour in its place."""
    whole_batches: bool = True
    """Whether batches are delivered as they were requested. If False, a batch that is too large for the memory is
    delivered in parts."""
    merge_requests: bool = False
    """Whether several small requests for batches may be merged into one launch. This requires that the result of a
    sample does not depend on the rest of its batch. With ``whole_batches`` the batches are delivered one by one,
    otherwise as one."""
    uploads: RegistrationCache | None = None
    """Facts about the upload of files to the GPU that earlier runs of the graph in this process have found. If None,
    there are none, and the run assumes that records may be read again."""
    resources: SharedResources | None = None
    """Memory budgets and lanes (CUDA streams) that this run shares with the job's other runs, or None."""
    copies: int = 0
    """Number of copies of a large output sample that the consumer of the run makes, for example to write the sample.
    Batches reserve memory for them."""
    on_demand: bool = False
    """Whether the caller requests each batch with `Engine.request_next`, before it takes that batch."""
    repeats: bool = False
    """Whether the data set is read repeatedly, so that facts about its records are worth keeping."""
    guest: bool = False
    """Whether the run is part of a program that also uses the GPUs for other things. By default it then holds little
    GPU memory."""
    inline: bool = False
    """Whether the calling thread itself computes batches that take almost no time, because passing them to another
    thread would take longer."""
