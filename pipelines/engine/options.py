"""Options: how a plan is run. Nothing here changes results."""

from __future__ import annotations

from dataclasses import dataclass

from ...readers.fetch.gpu_reads import RegistrationCache
from ..settings import RunSettings
from .lanes import SharedResources

LANES = 4
"""Batches in flight on a GPU, at the usual prefetch_queue_depth of 2. Two that are computed at once fill each other's
gaps, while another is uploaded and one is planned; more keep each other's uploads waiting (one H200, 1,024 images a
launch: 255k images/s with 2, 275k with 3, 290k with 4, 208k with 6; docs/performance.md has the command)."""
LATE_LANES = 6
"""At most, where outputs come back late (JPEGs that the GPU encoded): these keep their lane until they are on the host
(JPEG to JPEG on that machine: 135k images/s with 4, 152k with 6, and more finished batches that may wait)."""


READ_AHEAD = 6
"""Batches that wait for a GPU in a job, read or being read, at least, where there are threads for it: two more are read
besides, each by two threads at least. With 4 read at once by 16 threads, a launching thread waited for them for two
thirds of the time (JPEG to JPEG on one H200: 126k to 135k images/s; with ``prefetch_queue_depth`` 4, 141k). Single
files to tensors there, 16 threads: 228k with 5 read at once, 255k with 8, 271k with 16, each by one thread."""


def ahead_for(depth: int, threads: int, *, asked: bool = False) -> int:
    """Batches that may wait before a GPU in a job for which ``prefetch_queue_depth`` says ``depth``: as many as were
    ``asked`` for, else more than the default where there are threads for them."""
    return depth if asked else max(depth, min(READ_AHEAD, threads // 2 - 2))


def lanes_for(depth: int, *, late: bool = False) -> int:
    """Batches in flight on a GPU where ``depth`` finished ones may wait after it: a shallow queue holds less. ``late``:
    some outputs are finished after the device is done."""
    return min(depth + 2, LATE_LANES if late else LANES)


@dataclass(frozen=True, kw_only=True)
class Options(RunSettings):
    """How to run a plan; nothing here changes results, but ``rng`` and ``parity``."""

    num_threads: int = 2
    cpu_queue: int = 2
    gpu_queue: int = 2
    lanes: int = LANES
    """Batches in flight on each GPU."""
    to_host: bool = True
    """Bring the outputs of GPU nodes back to the host (writers need them there)."""
    policy: str = "skip"
    """For a sample that fails: ``skip`` drops it, ``fail`` ends the run, ``replace`` takes a neighbour instead."""
    whole_batches: bool = True
    """Batches are handed out as they were asked for; else one that is too large for the memory comes in parts."""
    merge_requests: bool = False
    """Small batches may go onto a device together: results do not depend on the rest of a batch. They are handed
    out together, too, or, as ``whole_batches``, one by one."""
    uploads: RegistrationCache | None = None
    """How other runs of the graph in this process brought the files to the GPU, with which this one goes on; None:
    there were none, and records may be read again."""
    resources: SharedResources | None = None
    """Accounts and lanes that it has in common with other runs in this process, which it may overlap; if any."""
    on_demand: bool = False
    """The schedule has a batch whenever `Engine.request_next` says so, before it is taken, and no sooner."""
    repeats: bool = False
    """The data set is read again and again: what is found out about its records is kept."""
    guest: bool = False
    """The run is part of a program that uses the devices for other things: by default it holds little memory there."""
    inline: bool = False
    """Compute batches that take next to nothing in the thread that asks: it takes less than handing them to another."""
