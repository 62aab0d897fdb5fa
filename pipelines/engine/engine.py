"""Engine: runs a plan. A few threads, bounded channels between them, several batches in flight, ordered delivery.

    intake -> [host steps] -> channel -> [device step] -> channel -> [host steps] -> ... -> delivery

One thread takes batches through ``whole`` steps and the ``chunk`` step after them, which it only cuts into chunks for
the worker pool: it hands the batch on at once, and the thread that takes it waits for the chunks. Where there is no
such step, the pool reads, several batches at once, which are handed on as early. ``device`` steps launch a batch on a
free lane and hand it on at once, too; another thread settles batches in order: it waits for the device, looks at the
checks that kernels left, runs failed samples again alone, and only then lets the batch go.

The engine owns the threads and channels. Its parts own the rest: `Services` what all batches share, `BatchBudget` the
memory, `Intake` the schedule, `HostPart` the workers, `OpenLanes` the lanes, and `DevicePart` what is on them. Where
the caller's thread does all of it (`asked`), there are no other threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.errors import DeviceError, kept
from ...ops.gpu.early_init import start_ahead
from ...ops.gpu.lane import page_lock_through, page_locked_blocks, pinned_empty
from ...ops.gpu.watchdog import Watch, unwatch, watch
from ...ops.interfaces import Copies
from ...readers.fetch.gpu_reads import lender_for, upload_method_for
from ..compile.plan import Plan
from ..compile.schedule import Step, segments
from . import hand_over
from .batch_budget import IN_PARTS, BatchBudget
from .batch_merger import BatchMerger
from .caller_thread.direct_gpu import DirectGpu, is_applicable
from .caller_thread.inline_host import InlineHost
from .compile_ahead import clients_of, compile_ahead
from .credits import Credits
from .device.executor import DeviceExecutor
from .device.null_lane import NullLane
from .device.open_lanes import OpenLanes, open_lane
from .errors import as_ours, if_it_works
from .finished import finished
from .host_executor import HostExecutor
from .in_flight import Feed, InFlightBatch, Request
from .memory.budget import MemoryBudget
from .options import Options
from .services import FEWER, Services
from .stats import Stats
from .threads import gil
from .threads.channel import Channel, Closed

if TYPE_CHECKING:
    from ...ops.gpu.uploads import UploaderByGpu

__all__ = [
    "FEWER", "IN_PARTS", "Engine", "Feed", "InFlightBatch", "NullLane", "Options", "Request", "segments",
]  # fmt: skip

_REGISTERED = 0.5
"""Part of the host's budget that files may take which are registered for GPUs to read."""

_REGISTERED_FILES = (1 << 62,)
"""The owner of those on the account: never the oldest batch."""
_PIECES = (1 << 62, 1)
"""The same, of the memory that files are read into which are uploaded meanwhile."""

_LOOK = 0.2
"""Seconds after which a thread that waits for others looks whether they wait for a GPU that hangs."""


class Engine:
    """Runs a plan over the requests of ``schedule``; iterate over it for the finished batches, in order.

    With several GPUs, batches are dealt to them in turns. Each has lanes and a launching thread of its own; what a
    batch becomes does not depend on where, and batches are settled in their order.
    """

    open_lane: Callable[..., Copies] = staticmethod(open_lane)
    page_locked: Callable[[int], Any] = staticmethod(pinned_empty)
    """Replaced by tests."""

    def __init__(
        self, plan: Plan, feed: Feed, schedule: Iterator[Request], options: Options, stats: Stats | None = None
    ) -> None:
        if plan.target.device == "gpu":
            start_ahead(plan.target.indices)
        compile_ahead(clients_of(plan))
        self.services = Services(plan, feed, options, stats)
        self.budget = BatchBudget(self.services)
        devices = len(plan.target.indices) if any(s.kind == "device" for s in plan.steps) else 0
        self.credits = Credits(options, self.budget, devices)
        self.merger = BatchMerger(self.services, self.budget, self.credits, schedule)
        self.host_executor = HostExecutor(self.services, self.budget, self.merger, self._staging)
        self.lanes = OpenLanes(self.services, self.budget, self.credits, self.open_lane)
        self.device_executor = DeviceExecutor(self.services, self.budget, self.credits, self.lanes)
        self.direct = (
            DirectGpu(self.services, self.budget, self.merger, self.host_executor, self.device_executor)
            if is_applicable(plan, options)
            else None
        )
        """Makes all batches in the caller's thread, where it can."""
        self.inline = (
            InlineHost(self.services, self.merger, self.host_executor)
            if options.inline and all(s.kind != "device" for s in plan.steps)
            else None
        )
        """Makes them there, so far."""
        self.host_executor.charge_batches = self.inline is None
        self.channels: list[Channel[Any]] = []
        self.boxes: dict[str, tuple[Channel[Any] | None, Channel[Any]]] = {}
        """The channels before and after every step; None where one thread goes from the step before to this one."""
        self._before_device: list[Channel[InFlightBatch]] = []
        """The channels from which batches are launched."""
        self.delivery: Channel[InFlightBatch] = Channel("not begun", 1)
        """Where finished batches wait to be taken."""
        self._threads: list[threading.Thread] = []
        self._started = False
        self._error: BaseException | None = None
        self.hung = False
        """A GPU of it does not come to an end."""
        self._watch: Watch | None = None
        self._handed_out: tuple[int, ...] | None = None
        self._undelivered: deque[InFlightBatch] = deque()
        """Batches that came together and were not handed out yet."""
        self._abandoned: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    # -- parts, for reports -------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan that it runs."""
        return self.services.plan

    @property
    def options(self) -> Options:
        """How it runs."""
        return self.services.options

    @property
    def stats(self) -> Stats:
        """Counts and times so far."""
        return self.services.stats

    @property
    def budgets(self) -> Mapping[str, MemoryBudget]:
        """The accounts of memory, by name."""
        return self.budget.budgets

    def name_of(self, step: Step) -> str:
        """The name of a step in statistics."""
        return self.services.name_of(step)

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; iterating does it by itself. What it raises is raised by each attempt to iterate, too."""
        if self._started or self.inline is not None:
            return
        self._started = True
        try:
            self._start()
        except BaseException as e:
            self._fail(kept(e))
            self.direct = None
            self.delivery.stop()
            raise

    def _start(self) -> None:
        self._thread("abandoned", self._stop_when_abandoned)
        if self.plan.target.device == "gpu":
            self.budget.host.add_cache(page_locked_blocks())
            page_locked_blocks().add_budget(self.budget.host)
            page_lock_through(self.plan.target.indices[0])
        if self.direct is not None:
            self.direct.open()
            return
        free = {i: self.lanes.for_step() for i, s in enumerate(self.plan.steps) if s.kind == "device"}
        if free and self.plan.target.device == "gpu":
            host, stats = self.budget.host, self.stats  # and not self: files stay registered from run to run
            again = self.options.uploads is None or self.options.uploads.repeatedly
            way, why = upload_method_for(self.options.upload, self.options.num_threads, repeatedly=again)
            self.host_executor.lender = lender_for(
                way,
                self.plan.target.indices,
                int(host.limit * _REGISTERED),
                lambda nbytes: host.reserve(_REGISTERED_FILES, nbytes, wait=False),
                lambda way, nbytes: stats.count(stats.uploads, way, nbytes),
                self.options.uploads,
            )
            if self.options.upload != "copy":
                containers = way == "pieces" or (again and self.options.upload == "auto")
                self.host_executor.uploads = self._in_pieces(containers, why if way == "copy" else "")
        if free:
            gil.lower(id(self))
        here: Channel[InFlightBatch] | None = None
        for steps in segments(self.plan.steps):
            name = self.name_of(steps[-1]) if steps else "feed"
            if steps and steps[0].kind == "device":
                assert here is not None
                self._before_device.append(here)
                there = self._channel(name, self.lanes.devices * self.options.gpu_queue)
                settling: Channel[InFlightBatch] = self._channel(
                    f"{name} in flight", self.lanes.devices * self.options.lanes
                )
                its = free[self.plan.steps.index(steps[0])]
                self._thread(name, self.device_executor.launch, name, steps[0], its, here, settling)
                self._thread(f"{name} complete", self.device_executor.complete, name, steps[0], its, settling, there)
            else:
                # twice as many where some are finished and some in the pool
                depth = self.options.cpu_queue * (2 if steps and steps[-1].kind == "chunk" else 1)
                there = self._channel(name, self.lanes.devices * depth)
                self._thread(name, self.host_executor.run, steps, here, there)
            for step in steps:
                self.boxes[self.name_of(step)] = here if step is steps[0] else None, there
            here = there
        assert here is not None
        self.delivery = here
        if free:  # when there are all channels that its failure would stop
            self._thread("open", self.lanes.open)
        if free and self.plan.target.device == "gpu":
            self._watch = Watch(self.plan.target.indices, self.options.gpu_timeout, self._hang)
            watch(self._watch)

    def _in_pieces(self, containers: bool, why: str) -> UploaderByGpu:
        from ...ops.gpu.uploads import UploaderByGpu

        host, device, lanes, stats = self.budget.host, self.budget.device, self.lanes, self.stats
        return UploaderByGpu(
            self.plan.target.indices,
            self.options.num_threads,
            host.limit,
            lambda nbytes: host.reserve(_PIECES, nbytes, wait=False),
            lambda: device.limit if lanes.are_open and device is not None else None,
            lambda way, nbytes: stats.count(stats.uploads, way, nbytes),
            containers=containers,
            disabled_reason=why,
        )

    def _staging(self, nbytes: int) -> Any:
        """Memory for bytes that are bound for a device: page-locked once that is open. Until then nothing waits for
        it, and what is read is copied once more."""
        return self.page_locked(nbytes) if self.lanes.are_open else np.empty(nbytes, np.uint8)

    def request_next(self) -> None:
        """The schedule has one more batch (`Options.on_demand`)."""
        if self.direct is not None:
            self.direct.request_next()

    def _channel(self, name: str, depth: int) -> Channel[Any]:
        channel: Channel[Any] = Channel(name, depth)
        self.channels.append(channel)
        return channel

    def _thread(self, name: str, target: Callable[..., None], *args: Any) -> None:
        def body() -> None:
            try:
                target(*args)
            except Closed:
                pass
            except BaseException as e:  # whatever it is, the run ends with it, in the caller's thread
                self._fail(kept(e))
            finally:
                for a in args:
                    if isinstance(a, Channel) and a is args[-1]:
                        a.close()

        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as e:
            raise as_ours(e) from None

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = as_ours(error)
        self._stop_channels()

    def _hang(self, index: int) -> None:
        """GPU ``index`` does not come to an end. Threads that wait for it are left to wait."""
        self.hung = True
        self._fail(DeviceError(f"GPU {index} has not ended a batch within {self.options.gpu_timeout:g} s "
                               "(pipeline.gpu_timeout) and counts as hung; this process cannot use it any more. "
                               "`dali-run doctor` and dmesg show how the GPU is"))  # fmt: skip

    def _stop_channels(self) -> None:
        self.lanes.stop()
        for channel in self.channels:
            channel.stop()
        for budget in self.budgets.values():
            budget.stop()

    def abandon(self, then: Callable[[], object]) -> None:
        """`stop`, and then ``then()``, for destructors: it waits for nothing. Garbage may be collected by any thread
        at any moment: by a worker that others wait for, or in the midst of `threading`, under its locks."""
        if self._started:
            self._abandoned.put(then)
        else:
            self.stop(wait=False)
            then()

    def _stop_when_abandoned(self) -> None:
        then = self._abandoned.get()
        if then is not None:
            self.stop()
            then()

    def stop(self, *, wait: bool = True) -> None:
        """End the run promptly: nothing new is started, threads are waited for, but those that wait for a GPU that
        hangs."""
        wait = wait and not self.hung
        self._abandoned.put(None)
        self._stop_channels()
        if self._started:
            gil.restore(id(self))
        if self.services.isolation is not None:
            self.services.isolation.close()
        self.host_executor.stopped = (
            True  # chunks that have not begun end at once, instead of never: batches wait for them
        )
        self.host_executor.close(wait=wait)
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                with suppress(RuntimeError):  # it could not be started
                    self._join(thread)
        if self._watch is None:
            self._close_devices()
        elif not self.hung:
            closing = threading.Thread(target=self._close_devices, name="close", daemon=True)
            closing.start()
            self._join(closing)
            unwatch(self._watch)
            self._watch = None
        if self.hung:  # to let go of anything of it would wait, too
            return
        if self.host_executor.lender is not None:
            if_it_works(self.host_executor.lender.close)
        self.lanes.lift_limits()
        page_locked_blocks().remove_budget(self.budget.host)
        if wait:
            self.host_executor.drop_references()
            self._undelivered.clear()
            if self.direct is not None:
                self.direct.drop_references()
            for budget in self.budgets.values():
                budget.close()

    def _close_devices(self) -> None:
        if self.host_executor.uploads is not None:
            if_it_works(self.host_executor.uploads.close)
        self.lanes.close()

    def _join(self, thread: threading.Thread) -> None:
        """Wait for the end of a thread, unless a GPU hangs that it waits for."""
        while thread.is_alive() and not self.hung:
            thread.join(_LOOK if self._watch is not None else None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- what came of it ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[InFlightBatch]:
        return self

    def __next__(self) -> InFlightBatch:
        """The next finished batch. Raises StopIteration at the end of the schedule; what made a batch fail, after which
        the next ones can be asked for; or what ended the run."""
        try:
            return self._next()
        except StopIteration:
            raise
        except Exception as e:
            kept(e)  # and for as long as the program likes
            ours = as_ours(e)
            if ours is e:
                raise
        try:
            raise ours
        finally:
            del ours  # or it would hold this frame, which holds it

    def _next(self) -> InFlightBatch:
        if self.inline is not None:
            made = self.inline.take()
            if made is not None:
                return finished(self.services, made)
            self.inline, self.host_executor.charge_batches = None, True
        if not self._undelivered:
            self.start()
            self._undelivered.extend(self._taken())
        iteration = self._undelivered.popleft()
        if iteration.problem is not None:
            raise iteration.problem
        return finished(self.services, iteration)

    def _taken(self) -> Sequence[InFlightBatch]:
        """The batches that came next, together; they may have failed. Raises StopIteration, and what ended the run."""
        if self._handed_out is not None:  # the caller has finished with it, or keeps its own reference
            self.budget.release(self._handed_out)
            self._handed_out = None
        fill, unfinished = self.delivery.fill, self.delivery.unfinished
        try:
            iteration = self.direct.take() if self.direct is not None else hand_over.taken(self.delivery)
        except Closed:
            if self._error is not None:
                raise self._error from None
            raise StopIteration from None
        except BaseException as e:  # the caller is interrupted
            self._fail(kept(e))
            raise
        fill = fill if self.delivery.unfinished == unfinished else 0
        self.credits.taken(fill, self.delivery.depth, sum(c.waited_empty for c in self._before_device))
        if iteration.problem is not None:
            self.budget.release_all(iteration.order)
        elif self.direct is None:
            self._handed_out = iteration.order
        return (
            iteration.split_by_request() if self.options.whole_batches and len(iteration.requests) > 1 else (iteration,)
        )
