"""Options of a run: how a plan is run. They do not change results."""

from __future__ import annotations

from dataclasses import dataclass

from ...readers.fetch.gpu_reads import RegistrationCache
from ..settings import RunSettings
from .lanes import SharedResources

LANES = 4
"""Number of batches in flight on a GPU, with the default prefetch_queue_depth of 2. Two that are computed at once fill
each other's gaps, while another is uploaded and one is planned; more keep each other's uploads waiting (one H200, 1,024
images per launch: 255k images/s with 2, 275k with 3, 290k with 4, 208k with 6; docs/performance.md has the command)."""
LATE_LANES = 6
"""Maximum number of batches in flight if outputs exist only after the device is done (JPEGs that the GPU encoded):
these keep their lane until they are on the host (JPEG to JPEG on that machine: 135k images/s with 4, 152k with 6, and
more finished batches that may wait)."""


READ_AHEAD = 6
"""Minimum number of batches of a job that wait for a GPU, read or being read, if there are threads for it: two more are
read in addition, each by two threads at least. With 4 read at once by 16 threads, a launching thread waited for them
two thirds of the time (JPEG to JPEG on one H200: 126k to 135k images/s; with ``prefetch_queue_depth`` 4, 141k). Single
files to tensors there, 16 threads: 228k with 5 read at once, 255k with 8, 271k with 16, each by one thread."""


def read_ahead_depth(depth: int, threads: int, *, asked: bool = False) -> int:
    """Return the number of batches of a job that may wait for a GPU: ``depth`` if the user set ``prefetch_queue_depth``
    (``asked``), otherwise more if there are threads for them."""
    return depth if asked else max(depth, min(READ_AHEAD, threads // 2 - 2))


def lanes_for(depth: int, *, late: bool = False) -> int:
    """Return the number of batches in flight on a GPU after which ``depth`` finished ones may wait: a short queue holds
    fewer. ``late``: some outputs exist only after the device is done."""
    return min(depth + 2, LATE_LANES if late else LANES)


@dataclass(frozen=True, kw_only=True)
class Options(RunSettings):
    """How to run a plan. Only ``rng`` and ``parity`` change results."""

    num_threads: int = 2
    cpu_queue: int = 2
    gpu_queue: int = 2
    lanes: int = LANES
    """Number of batches in flight on each GPU."""
    to_host: bool = True
    """Copy the outputs of GPU nodes to the host, where writers need them."""
    policy: str = "skip"
    """Policy for samples that fail: ``skip`` drops it, ``fail`` ends the run, ``replace`` puts a neighbour in
    its place."""
    whole_batches: bool = True
    """Deliver batches as they were requested; if False, a batch that is too large for the memory is delivered in
    parts."""
    merge_requests: bool = False
    """Merge small requests into one launch: results do not depend on the rest of a batch. They are also delivered
    together, or one by one with ``whole_batches``."""
    uploads: RegistrationCache | None = None
    """Findings of earlier runs of the graph in this process about how files reach the GPU, which this run continues;
    None if there were none, and records may be read again."""
    resources: SharedResources | None = None
    """Memory budgets and lanes that this run shares with others in this process; None if it shares none."""
    on_demand: bool = False
    """Requests come one at a time: each call of `Engine.request_next` adds one batch to the schedule, before that batch
    is taken."""
    repeats: bool = False
    """The data set is read repeatedly: facts that are found out about its records are kept."""
    guest: bool = False
    """The run is part of a program that also uses the devices for other things: by default it holds little memory
    there."""
    inline: bool = False
    """Compute batches that take almost no time in the calling thread: that takes less time than passing them to another
    thread."""
