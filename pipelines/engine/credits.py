"""Credits: how many requests go into a launch on a device, what a launch may hold there, and the budget of them all.
Where there is no device, requests are joined for the host's workers.

A launch starts as one request of the schedule. It grows, by joining requests, only while the consumer waits for the
device and the budget allows, and shrinks when finished batches wait for the consumer. It is measured in bytes that it
holds at its peak, which the operators estimate from headers and shapes, never in samples.

`Intake` asks how many requests to join, `DevicePart` reports what launches need and asks for their pieces, `Engine`
reports whether the consumer waited, `OpenLanes` and `plan` ask for the budget.
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
"""Bytes that a launch holds at its peak, at most: 2,048 JPEGs of ImageNet or 64 photos of 12 megapixels. The launching
thread takes about as long for each launch (one H200: 374,000 images/s in launches of 2,048, 332,000 of 1,024)."""
SHARES = 3
"""Launches that the budget is shared out to: fewer, larger ones are better than one for each lane, as the launching
thread takes about as long for each (one H100, ``memory_curve.py``: launches of 512 by a fifth of the budget left the
GPU idle, 89,000 images/s)."""
JOB_BYTES = 14 << 30
"""Default budget of a job or benchmark on a GPU: three launches of `LAUNCH_BYTES`. The curve of rate over memory still
rises at 6 GiB (one H100: 54,000, 72,000 and 89,000 images/s with 2, 4 and 5.5 GiB); it was not measured with 14 GiB
(``benchmarks/jobs/memory_curve.py``)."""
GROWN_BYTES = 6 << 30
"""Bytes up to which the budget of a program grows while it does nothing but wait for the device."""
GUEST_BYTES = 2 << 30
"""Default budget inside a user's program, or what two of its batches need if that is more: four batches of 256 JPEGs of
ImageNet at their peak."""
GUEST_SHARE = 0.1
"""Share of a GPU's memory that the default budget inside a program may take."""
FREE_SHARE, JOB_FREE_SHARE = 0.5, 0.8
"""Share of the free memory that the default budget may take inside a program, and in a job."""
SAMPLE_BYTES = 256 << 10
"""Bytes that a sample counts at least: the threads and records of a small one cost as much as those of a picture of
0.03 megapixels."""
COPIED_BYTES = 128 << 20
"""Bytes of files that a launch joins at most if they are copied through page-locked memory that is made for them:
1,024 JPEGs of ImageNet. Some twenty such buffers are made before a run is at its full speed, which takes long."""
STARVED = 0.5
"""Share of the time for which the launching thread waits for batches to be read, from which the budget of a program
does not grow: memory is not what it waits for."""
GROWTH = 1.5
"""Factor by which the budget of a program grows, and shrinks."""
GROW_AFTER, SHRINK_AFTER = 4, 2
"""Launches in a row for which the consumer waited, after which launches grow, and for which it did not and the queue
was full, after which they shrink: every program waits for its first batches."""
SLACK = 0.85
"""Share of the budget that estimates may come to: blocks of memory are up to an eighth larger than what is asked for,
and a program holds a batch or two that it has taken."""


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """Bytes that a run may hold on a GPU, and why."""

    first: int
    """The budget before a batch is known."""
    most: int
    """The budget if one batch needs more; no allocation goes beyond it."""
    reason: str


def gpu_budget(memory: Memory, free: int, total: int, *, guest: bool) -> GpuBudget:
    """The budget on a GPU that has ``total`` bytes, of which ``free`` are free. ``guest``: inside a user's program."""
    if memory.gpu is not None:
        given = memory.gpu_bytes(free)
        return GpuBudget(given, given, "pipeline.memory.gpu")
    if guest:
        most = max(1, int(min(GUEST_SHARE * total, FREE_SHARE * free)))
        return GpuBudget(min(GUEST_BYTES, most), min(GROWN_BYTES, most), "beside a program")
    most = max(1, min(JOB_BYTES, int(JOB_FREE_SHARE * free)))
    return GpuBudget(most, most, "three launches of the largest size")


def described(lanes: int) -> str:
    """The default budget of a job on a GPU, in words."""
    return (
        f"up to {size(JOB_BYTES)} and {JOB_FREE_SHARE:.0%} of what is free, "
        f"launches of up to {size(LAUNCH_BYTES)} at their peak on {lanes} lanes"
    )


class Credits:
    """The rule of one run. The reading, the launching and the consumer's thread call it; each number has one writer,
    and a late value costs accuracy, nothing else."""

    def __init__(self, options: Options, budget: BatchBudget, devices: int) -> None:
        """``devices``: how many GPUs, or what stands in for one, work on batches; 0 if workers do it all."""
        self._options, self._budget, self._devices = options, budget, devices
        self.first = self.most = 0
        """Bytes of the budget on each device at first, and those up to which a batch that needs it, or a consumer that
        waits, raises it. Set by the thread that opens devices."""
        self.join = 1
        """Requests that go into a launch, as far as there is room for them. Set by the consumer's thread; for a job on
        the host by the one that takes the schedule."""
        self.sample_bytes = 0.0
        """Bytes of host memory per sample in the largest batch that was read so far. Set by readers' threads."""
        self.copied_bytes = 0.0
        """Bytes per sample of the last batch that was read which are copied to a device as a whole: none once a GPU is
        open that gets files in pieces. Set by readers' threads."""
        self.sample_cost = 0.0
        """Cost per sample of the last batch that workers got. Set by the thread that cuts batches."""
        self._fits = 1
        """Requests for which there was room. Set by the thread that takes the schedule."""
        self._on_device = self._on_host = 0.0
        """Bytes per sample of the last launch at its peak. Set by the launching thread."""
        self.file_bytes = 0.0
        """Bytes of device memory per sample of the last batch that was read. Set by readers' threads."""
        self._need = 0
        """Bytes of the last launch at its peak. Set by the launching thread."""
        self._demand = 0
        self._since, self._starved = time.perf_counter(), 0.0
        self._steady = devices == 0 and not options.whole_batches
        """A job's host takes as much at a time as there is room for: nobody waits for a batch, and what a batch costs
        the reading and the writing thread comes less often."""

    @property
    def limit(self) -> int:
        """Bytes that launches may hold on each device, by their estimates; 0 until a device is open."""
        return 0 if self._budget.device is None else self._budget.device.limit // self._devices

    # -- joining requests -----------------------------------------------------------------------------------------

    def taken(self, fill: int, depth: int, starved: float) -> None:
        """The consumer asks for a launch: ``fill`` of the ``depth`` places for finished ones are filled. ``starved``:
        seconds for which the launching thread has waited for batches to be read, so far."""
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
                self._budgeted(GROWTH * self.limit)
            self._since, self._starved = now, starved
            self.join, self._demand = min(2 * self.join, 2 * self._fits), 0
        elif self._demand <= -SHRINK_AFTER:
            self.join, self._demand = max(self.join // 2, 1), 0
            self._budgeted(max(self.limit / GROWTH, 2 * min(self._need, LAUNCH_BYTES)))

    def requests(self, samples: int) -> int:
        """The number of requests, of ``samples`` each, that the next launch takes."""
        room = self.room() if self._devices else self._host_room()
        if not room:  # nothing was launched so far
            return 1
        self._fits = max(1, int(room / max(1, samples)))
        if self._steady:
            self.join = min(2 * self.join, self._fits)
        found = min(self.join, self._fits)
        step = max(1, (1 << found.bit_length() - 1) // 4)  # few sizes, so that buffers are used again
        return found // step * step

    def _host_room(self) -> float:
        """Samples that the host's workers may get at a time: a chunk of the largest size for each thread, or one where
        a batch is only read, as far as the budget has room for all that waits; 0 before anything is known of them."""
        if not self.sample_bytes:
            return 0
        host = self._budget.host.limit * (1 - FOR_WORK) / (self._options.cpu_queue + 2)
        work = self._options.num_threads * CHUNK / self.sample_cost if self.sample_cost else 0
        return min(work or CHUNK / (self.sample_bytes + SAMPLE), host / max(self._on_host, self.sample_bytes))

    def cut(self, cost: I64, held: int) -> None:
        """Workers get samples of ``cost``, of which a batch holds ``held`` bytes on the host."""
        if len(cost):
            self.sample_cost, self._on_host = float(cost.sum()) / len(cost), held / len(cost)

    def room(self) -> float:
        """Samples that a launch may join; 0 before the first launch."""
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

    def launch(self, ahead: MemoryEstimate, on_device: int, on_host: int) -> tuple[int, list[tuple[int, int]]]:
        """Bytes that a launch holds on its device at the peak, and the places [a, b) of its samples that go there at a
        time: all of them, or pieces, one after the other, if it is larger than a launch may be or than half of the
        budget, so that two are on the device at a time. ``ahead`` is its estimate; ``on_device`` and ``on_host`` are
        the bytes that it holds already."""
        n = max(1, len(ahead.peak))
        if not self._on_device:
            self._check(ahead)
        self._on_device, self._on_host = (on_device + ahead.peak_total) / n, (on_host + ahead.kept_total) / n
        need = on_device + ahead.peak_total
        self._need = need
        if 2 * min(need, LAUNCH_BYTES) > self.limit:
            self._budgeted(2 * min(need, LAUNCH_BYTES))
        room = min(LAUNCH_BYTES, self.limit // 2)
        if need <= room or len(ahead.peak) <= 1:
            return need, [(0, len(ahead.peak))]
        work = np.maximum(ahead.peak - ahead.kept, 0)
        room = max(room - on_device - ahead.kept_total, room // 4)
        cuts = list(_pieces(work, room))
        return on_device + ahead.kept_total + max(int(work[a:b].sum()) for a, b in cuts), cuts

    def _check(self, ahead: MemoryEstimate) -> None:
        """Raises JobError if the budget that was given is less than any sample of the first batch takes."""
        least = int(ahead.peak.min(initial=1 << 62)) if len(ahead.peak) else 0
        if self._options.memory.gpu is not None and least > self.limit:
            raise JobError(
                f"pipeline.memory.gpu leaves {size(self.limit)} of GPU memory, and one sample takes {size(least)}: "
                f"give at least {-(-int(least / SLACK) >> 20)}MiB, or run with --device cpu"
            )

    def _budgeted(self, nbytes: float) -> None:
        """Have a budget of ``nbytes`` on each device, within its bounds."""
        if self._budget.device is not None and self.most:
            bounded = max(SLACK * self.first, min(nbytes, SLACK * self.most))
            self._budget.device.limit = int(bounded) * self._devices


def _pieces(work: I64, room: int) -> Iterator[tuple[int, int]]:
    """Places that cut samples of ``work`` bytes into the fewest runs of at most ``room``, all of about one size."""
    count = max(1, -(-int(work.sum()) // max(1, room)))
    yield from runs(work, min(max(1, room), int(work.sum()) // count + int(work.max(initial=0))))
