"""Decide how many requests for batches one launch on a device computes, and how much memory one launch and all
launches together may hold. Without a device, decide how many requests are merged for the host's workers.

At first, a launch computes one request. Later launches merge more requests, but only while the consumer waits for the
device and the budget allows; they merge fewer when finished batches wait for the consumer. The size of a launch is its
peak of memory in bytes, which operators estimate from headers and shapes, never its number of samples.

Called by `BatchMerger` (how many requests to merge), `DeviceExecutor` (what launches need, and how to cut them),
`Engine` (whether the consumer waited), `OpenLanes` and `plan` (the budget).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...ops.batch import I64
from ...ops.errors import JobError
from ..limits import Memory
from ..wording import size
from .batch_budget import BatchBudget
from .cost import CHUNK, SAMPLE, runs
from .memory.budget import FOR_WORK
from .memory.estimate import MemoryEstimate
from .options import Options

LAUNCH_BYTES = 4608 << 20
"""Maximum bytes of GPU memory that one launch of kernels uses at its peak: enough for 2,048 JPEGs of ImageNet or 64
photos of 12 megapixels. Launches are large because a small one takes almost as much CPU time (one H200: 374,000
images/s in launches of 2,048, 332,000 of 1,024)."""
SHARES = 3
"""Number of launches that share the GPU memory budget. Few large launches are better than one per CUDA stream, because
a small one takes almost as much CPU time (one H100, ``memory_curve.py``: launches of 512 by a fifth of the budget left
the GPU idle, 89,000 images/s)."""
JOB_BYTES = 14 << 30
"""Default GPU budget in bytes of a job or benchmark: three launches of `LAUNCH_BYTES`. The rate still rises with the
budget at 6 GiB (one H100: 54,000, 72,000 and 89,000 images/s with 2, 4 and 5.5 GiB); it was not measured with 14 GiB
(``benchmarks/jobs/memory_curve.py``)."""
GROWN_BYTES = 6 << 30
"""Maximum bytes of the GPU budget of a run inside a user's program. The budget grows while the program does nothing but
wait for the device."""
GUEST_BYTES = 2 << 30
"""Default GPU budget in bytes inside a user's program: enough for four batches of 256 JPEGs of ImageNet at their peak.
The budget is larger if two batches of the program need more."""
GUEST_SHARE = 0.1
"""Maximum share of a GPU's total memory for the default budget inside a user's program."""
FREE_SHARE, JOB_FREE_SHARE = 0.5, 0.8
"""Maximum share of the GPU's free memory for the default budget: inside a user's program, and in a job."""
SAMPLE_BYTES = 256 << 10
"""Minimum bytes that count for a sample when launches are sized: a small sample costs as much overhead as an image of
0.03 megapixels."""
COPIED_BYTES = 128 << 20
"""Maximum bytes of files in one launch if the files are first copied into page-locked memory: 1,024 JPEGs of ImageNet.
A run at full speed needs some twenty such buffers, which take long to allocate."""
STARVED = 0.5
"""Limit on the share of time for which the thread that launches kernels waits for batches to be read. Above it, the GPU
budget of a user's program does not grow, because more memory would not make the program faster."""
GROWTH = 1.5
"""Factor by which the GPU budget of a user's program grows or shrinks at a time."""
GROW_AFTER, SHRINK_AFTER = 4, 2
"""Numbers of consecutive launches after which the size of launches changes. Launches grow after the consumer waited for
the first number of them. They shrink after the second number, if the consumer never waited and the queue was full. Both
are above one, because every program waits for its first batches."""
SLACK = 0.85
"""Share of the GPU budget that launches may take by their memory estimates. The rest is needed because allocated blocks
are up to an eighth larger than requested, and because a program still holds a batch or two that it has taken."""


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """Limits in bytes of what a run may hold on one GPU, and the reason for them. Created by `gpu_budget`."""

    initial: int
    """Bytes of the budget before the size of a batch is known."""
    maximum: int
    """Bytes to which the budget may grow if one batch needs more than `initial`; no allocation exceeds it."""
    reason: str


def gpu_budget(memory: Memory, free: int, total: int, *, guest: bool) -> GpuBudget:
    """Return the budget on a GPU that has ``total`` bytes of memory, of which ``free`` are free. ``guest``: the run is
    part of a user's program, which needs GPU memory itself."""
    if memory.gpu is not None:
        user_value = memory.gpu_bytes(free)
        return GpuBudget(user_value, user_value, "pipeline.memory.gpu")
    if guest:
        maximum = max(1, int(min(GUEST_SHARE * total, FREE_SHARE * free)))
        return GpuBudget(min(GUEST_BYTES, maximum), min(GROWN_BYTES, maximum), "beside a program")
    maximum = max(1, min(JOB_BYTES, int(JOB_FREE_SHARE * free)))
    return GpuBudget(maximum, maximum, "three launches of the largest size")


def described(lanes: int) -> str:
    """Return a text that describes the default GPU memory budget of a job with ``lanes`` lanes (CUDA streams)."""
    return (
        f"up to {size(JOB_BYTES)} and {JOB_FREE_SHARE:.0%} of what is free, "
        f"launches of up to {size(LAUNCH_BYTES)} at their peak on {lanes} lanes"
    )


class Credits:
    """Decides how many samples one launch of kernels computes, and how much GPU memory one run may use. Created by
    `Engine`; called by the reading, the launching and the consumer's thread. Each number is written by one thread only;
    if another thread reads an old value, only accuracy suffers."""

    def __init__(self, options: Options, budget: BatchBudget, devices: int) -> None:
        """``devices``: number of GPUs (or null devices) that compute batches; 0 if the worker threads of the host
        compute everything."""
        self._options, self._budget, self._devices = options, budget, devices
        self.initial = self.maximum = 0
        """Bytes of the GPU budget on each device: at the start, and at most. The budget is raised for a batch that
        needs more, or for a consumer that waits. Both are set by the thread that opens devices."""
        self.join = 1
        """Number of requests to merge into one launch, if memory has room for them. Set by the consumer's thread; in a
        job on the host, by the thread that takes requests."""
        self.sample_bytes = 0.0
        """Maximum bytes of host memory per sample, over the batches read so far. Set by readers' threads."""
        self.copied_bytes = 0.0
        """Bytes per sample that are copied to a device in one piece, in the last batch that was read. 0 once a GPU is
        open and files are uploaded to it in pieces. Set by readers' threads."""
        self.sample_cost = 0.0
        """Cost per sample, in the unit of `engine.cost`, of the last batch that was cut for the worker threads. Set by
        the thread that cuts batches."""
        self._fits = 1
        """Number of requests for which memory had room in the last launch. Set by the thread that takes requests."""
        self._on_device = self._on_host = 0.0
        """Bytes per sample at the peak of the last launch, on device and host. Set by the thread that launches."""
        self.file_bytes = 0.0
        """Bytes of device memory per sample for the files of the batch read last. Set by readers' threads."""
        self._need = 0
        """Bytes that the last launch held on the device at its peak. Set by the launching thread."""
        self._demand = 0
        self._since, self._starved = time.perf_counter(), 0.0
        self._steady = devices == 0 and not options.whole_batches
        """Whether to merge as many requests as memory has room for, as a job on the host does. Nobody waits for single
        batches of such a job, and each batch costs the reading and the writing thread a fixed time."""

    @property
    def limit(self) -> int:
        """Bytes that all launches together may hold on each device, by their estimates; 0 until a device is open."""
        return 0 if self._budget.device is None else self._budget.device.limit // self._devices

    # -- joining requests -----------------------------------------------------------------------------------------

    def consumer_takes(self, fill: int, depth: int, starved: float) -> None:
        """Record that the consumer takes the batches of one launch, and adapt the size of later launches. ``fill``:
        number of finished launches in the queue, which has room for ``depth``. ``starved``: seconds for which the
        thread that launches kernels has waited, so far, for batches to be read."""
        if self._steady:
            return
        if fill == 0:
            self._demand = max(self._demand, 0) + 1
        elif fill >= depth:
            self._demand = min(self._demand, 0) - 1
        else:
            self._demand = 0
        if self._demand >= GROW_AFTER:
            now = time.perf_counter()
            if self.join >= self._fits and starved - self._starved < STARVED * (now - self._since):
                self._set_budget(GROWTH * self.limit)
            self._since, self._starved = now, starved
            self.join, self._demand = min(2 * self.join, 2 * self._fits), 0
        elif self._demand <= -SHRINK_AFTER:
            self.join, self._demand = max(self.join // 2, 1), 0
            self._set_budget(max(self.limit / GROWTH, 2 * min(self._need, LAUNCH_BYTES)))

    def requests(self, samples: int) -> int:
        """Return the number of requests to merge into the next launch; each has ``samples`` samples."""
        room = self.room() if self._devices else self._host_room()
        if not room:  # nothing was launched so far
            return 1
        self._fits = max(1, int(room / max(1, samples)))
        if self._steady:
            self.join = min(2 * self.join, self._fits)
        count = min(self.join, self._fits)
        step = max(1, (1 << count.bit_length() - 1) // 4)  # few different sizes, so that buffers can be reused
        return count // step * step

    def _host_room(self) -> float:
        """Return the maximum number of samples in a batch for the host's worker threads; 0 if the size of a sample is
        not known yet. Such a batch gives each thread one chunk of the largest size, or is one chunk if batches are only
        read. All waiting batches together must fit into the budget."""
        if not self.sample_bytes:
            return 0
        host = self._budget.host.limit * (1 - FOR_WORK) / (self._options.cpu_queue + 2)
        work = self._options.num_threads * CHUNK / self.sample_cost if self.sample_cost else 0
        return min(work or CHUNK / (self.sample_bytes + SAMPLE), host / max(self._on_host, self.sample_bytes))

    def record_cut(self, cost: I64, held: int) -> None:
        """Record that a batch was cut into chunks for worker threads. ``cost``: cost of each sample. ``held``: bytes
        that the batch holds on the host."""
        if len(cost):
            self.sample_cost, self._on_host = float(cost.sum()) / len(cost), held / len(cost)

    def room(self) -> float:
        """Return the number of samples that a launch may have in all; 0 before the first launch."""
        if not self._on_device:
            return 0
        lanes = self._options.lanes
        launch = min(self.limit / SHARES, LAUNCH_BYTES)
        fits = launch / max(self._on_device, SAMPLE_BYTES)
        in_flight = (lanes + self._options.gpu_queue) * self._devices + self._options.cpu_queue + 2
        host = self._budget.host.limit * (1 - FOR_WORK) / in_flight
        fits = min(fits, host / max(self._on_host, self.sample_bytes, 1))
        return min(fits, COPIED_BYTES / self.copied_bytes) if self.copied_bytes else fits

    # -- launches -------------------------------------------------------------------------------------------------

    def launch(self, estimate: MemoryEstimate, on_device: int, on_host: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the peak of device memory in bytes that a launch needs, and the ranges [a, b) of samples to compute
        one after the other. Usually there is one range. A launch that needs more than `LAUNCH_BYTES`, or more than half
        of the budget, is cut into several. ``estimate``: memory that the launch will need. ``on_device`` and
        ``on_host``: bytes that it already holds."""
        n = max(1, len(estimate.peak))
        if not self._on_device:
            self._check(estimate)
        self._on_device, self._on_host = (on_device + estimate.peak_total) / n, (on_host + estimate.kept_total) / n
        need = on_device + estimate.peak_total
        self._need = need
        if 2 * min(need, LAUNCH_BYTES) > self.limit:
            self._set_budget(2 * min(need, LAUNCH_BYTES))
        room = min(LAUNCH_BYTES, self.limit // 2)
        if need <= room or len(estimate.peak) <= 1:
            return need, [(0, len(estimate.peak))]
        work = np.maximum(estimate.peak - estimate.kept, 0)
        room = max(room - on_device - estimate.kept_total, room // 4)
        cuts = list(_even_runs(work, room))
        return on_device + estimate.kept_total + max(int(work[a:b].sum()) for a, b in cuts), cuts

    def _check(self, estimate: MemoryEstimate) -> None:
        """Raise JobError if the user set a budget that is too small for any single sample of the first batch."""
        smallest = int(estimate.peak.min(initial=1 << 62)) if len(estimate.peak) else 0
        if self._options.memory.gpu is not None and smallest > self.limit:
            raise JobError(
                f"pipeline.memory.gpu leaves {size(self.limit)} of GPU memory, and one sample takes {size(smallest)}: "
                f"set it to at least {-(-int(smallest / SLACK) >> 20)}MiB, or run with --device cpu"
            )

    def _set_budget(self, nbytes: float) -> None:
        """Set the budget on each device to ``nbytes``, limited to the range from `initial` to `maximum`."""
        if self._budget.device is not None and self.maximum:
            bounded = max(SLACK * self.initial, min(nbytes, SLACK * self.maximum))
            self._budget.device.limit = int(bounded) * self._devices


def _even_runs(work: I64, room: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges [a, b) that cut samples of ``work`` bytes each into the fewest ranges of at most ``room`` bytes,
    all of about equal size."""
    count = max(1, -(-int(work.sum()) // max(1, room)))
    yield from runs(work, min(max(1, room), int(work.sum()) // count + int(work.max(initial=0))))
