"""Run a plan: a few threads, bounded channels between them, several batches in flight, ordered delivery.

    merger -> [host steps] -> channel -> [device step] -> channel -> [host steps] -> ... -> delivery

One thread runs ``whole`` steps (on whole batches), and cuts batches for the ``chunk`` step after them into chunks for
the worker pool. It passes a batch on at once; the thread that takes the batch waits for the chunks. If there is no
``chunk`` step, the workers read several batches at once. A ``device`` step launches a batch on a free lane (CUDA
stream) and passes it on at once, too. Another thread completes batches in order: it waits for the device, evaluates the
checks that kernels left, runs failed samples again alone, and only then passes the batch on.

The engine owns the threads and channels. It creates the objects that own the rest: `Services` (shared by all batches),
`BatchBudget` (memory), `BatchMerger` (requests), `HostExecutor` (workers), `OpenLanes` (lanes) and `DeviceExecutor`
(work on lanes). If the caller's thread computes all batches (`caller_thread`), there are no other threads.

Created by `pipelines.python.session` for programs, and by `pipelines.job.batches` for jobs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.errors import DeviceError, without_frames
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
from .errors import as_user_error, ignore_device_errors
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

_REGISTERED_SHARE = 0.5
"""Share of the host's memory budget for files that are registered with CUDA, so that GPUs read them without a copy."""

_REGISTERED_FILES = (1 << 62,)
"""Key in the memory budget, in place of a batch number, for files that are registered with CUDA. The key is larger than
every batch number, so that it never counts as the oldest batch, which is always admitted."""
_STAGING_PIECES = (1 << 62, 1)
"""Key in the memory budget, like `_REGISTERED_FILES`, for page-locked blocks through which files go to the GPU while
they are read."""

_HANG_CHECK_SECONDS = 0.2
"""Seconds between two checks whether a GPU hangs, by a thread that waits for other threads to end."""


class Engine:
    """Computes the batches that ``schedule`` requests, as a plan says. Iterating over the engine yields the finished
    batches, in order.

    Several GPUs get batches in turn. Each GPU has lanes (CUDA streams) and a launching thread of its own. The result of
    a batch does not depend on its GPU. The thread that iterates creates and stops the engine; `abandon` may be called
    by any thread."""

    open_lane: Callable[..., Copies] = staticmethod(open_lane)
    page_locked: Callable[[int], Any] = staticmethod(pinned_empty)
    """Function that allocates page-locked memory. Tests replace it, and also `open_lane`, which opens a CUDA stream of
    a device with its memory."""

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
        """Object that computes all batches in the caller's thread, on one GPU; None if the plan forbids it."""
        self.inline = (
            InlineHost(self.services, self.merger, self.host_executor)
            if options.inline and all(s.kind != "device" for s in plan.steps)
            else None
        )
        """The object that computes batches in the caller's thread, on the host. Set to None when batches take too long:
        from then on worker threads compute them."""
        self.host_executor.charge_batches = self.inline is None
        self.channels: list[Channel[Any]] = []
        self.boxes: dict[str, tuple[Channel[Any] | None, Channel[Any]]] = {}
        """For each step, by its name: the queue from which it takes batches, and the queue into which it puts them. The
        first is None if the step runs in the thread of the previous step."""
        self._before_device: list[Channel[InFlightBatch]] = []
        """The queues from which the threads that launch kernels take batches for devices."""
        self.delivery: Channel[InFlightBatch] = Channel("not begun", 1)
        """The channel in which finished batches wait for the consumer."""
        self._threads: list[threading.Thread] = []
        self._started = False
        self._error: BaseException | None = None
        self.hung = False
        """Whether a GPU of this run hangs: a batch did not finish within ``gpu_timeout``."""
        self._watch: Watch | None = None
        self._delivered: tuple[int, ...] | None = None
        self._undelivered: deque[InFlightBatch] = deque()
        """Batches that were launched as one but must be delivered one at a time; these are waiting to be delivered."""
        self._abandoned: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    # -- properties for reports -------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan that this engine runs."""
        return self.services.plan

    @property
    def options(self) -> Options:
        """The options of the run."""
        return self.services.options

    @property
    def stats(self) -> Stats:
        """The counts and times that the run has recorded so far."""
        return self.services.stats

    @property
    def budgets(self) -> Mapping[str, MemoryBudget]:
        """The memory budgets of the host and the GPUs, by name."""
        return self.budget.budgets

    def name_of(self, step: Step) -> str:
        """Return the name under which statistics list a step."""
        return self.services.name_of(step)

    # -- start and stop
    # ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads of the engine. Iterating over the engine calls this method. If the start fails, each
        attempt to iterate raises the same exception again."""
        if self._started or self.inline is not None:
            return
        self._started = True
        try:
            self._start()
        except BaseException as e:
            self._fail(without_frames(e))
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
            self._set_up_uploads()
        if free:
            gil.lower(id(self))
        self.delivery = self._start_segments(free)
        if free:  # only after all channels exist, which a failure of this thread stops
            self._thread("open", self.lanes.open)
        if free and self.plan.target.device == "gpu":
            self._watch = Watch(self.plan.target.indices, self.options.gpu_timeout, self._hang)
            watch(self._watch)

    def _set_up_uploads(self) -> None:
        """Give the host steps the objects that uploads to GPUs need: registered files, and page-locked blocks."""
        # the callbacks must not refer to self: files stay registered from run to run
        host, stats = self.budget.host, self.stats
        rereads = self.options.uploads is None or self.options.uploads.repeatedly
        way, why = upload_method_for(self.options.upload, self.options.num_threads, repeatedly=rereads)
        self.host_executor.lender = lender_for(
            way,
            self.plan.target.indices,
            int(host.limit * _REGISTERED_SHARE),
            lambda nbytes: host.reserve(_REGISTERED_FILES, nbytes, wait=False),
            lambda way, nbytes: stats.count(stats.uploads, way, nbytes),
            self.options.uploads,
        )
        if self.options.upload != "copy":
            containers = way == "pieces" or (rereads and self.options.upload == "auto")
            self.host_executor.uploads = self._in_pieces(containers, why if way == "copy" else "")

    def _start_segments(self, free: Mapping[int, Any]) -> Channel[InFlightBatch]:
        """Start the threads of all segments (steps that one thread runs), with channels between them. Return the last
        channel, from which batches are delivered. ``free``: the idle lanes of each device step, by its index."""
        inbox: Channel[InFlightBatch] | None = None
        for steps in segments(self.plan.steps):
            name = self.name_of(steps[-1]) if steps else "feed"
            if steps and steps[0].kind == "device":
                assert inbox is not None
                self._before_device.append(inbox)
                outbox = self._channel(name, self.lanes.devices * self.options.gpu_queue)
                launched: Channel[InFlightBatch] = self._channel(
                    f"{name} in flight", self.lanes.devices * self.options.lanes
                )
                its = free[self.plan.steps.index(steps[0])]
                self._thread(name, self.device_executor.launch, name, steps[0], its, inbox, launched)
                self._thread(f"{name} complete", self.device_executor.complete, name, steps[0], its, launched, outbox)
            else:
                # twice as many if some are finished and some in the pool
                depth = self.options.cpu_queue * (2 if steps and steps[-1].kind == "chunk" else 1)
                outbox = self._channel(name, self.lanes.devices * depth)
                self._thread(name, self.host_executor.run, steps, inbox, outbox)
            for step in steps:
                self.boxes[self.name_of(step)] = inbox if step is steps[0] else None, outbox
            inbox = outbox
        assert inbox is not None
        return inbox

    def _in_pieces(self, containers: bool, why: str) -> UploaderByGpu:
        from ...ops.gpu.uploads import UploaderByGpu

        host, device, lanes, stats = self.budget.host, self.budget.device, self.lanes, self.stats
        return UploaderByGpu(
            self.plan.target.indices,
            self.options.num_threads,
            host.limit,
            lambda nbytes: host.reserve(_STAGING_PIECES, nbytes, wait=False),
            lambda: device.limit if lanes.are_open and device is not None else None,
            lambda way, nbytes: stats.count(stats.uploads, way, nbytes),
            containers=containers,
            disabled_reason=why,
        )

    def _staging(self, nbytes: int) -> Any:
        """Allocate host memory for bytes that will be uploaded. The memory is page-locked once the device is open.
        Before, it is ordinary memory, which costs one more copy, so that reading never waits for the device to
        start."""
        return self.page_locked(nbytes) if self.lanes.are_open else np.empty(nbytes, np.uint8)

    def request_next(self) -> None:
        """Request one more batch. Needed for each batch if `Options.on_demand` is set."""
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
            except BaseException as e:  # any exception ends the run, and is raised in the caller's thread
                self._fail(without_frames(e))
            finally:
                for a in args:
                    if isinstance(a, Channel) and a is args[-1]:
                        a.close()

        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as e:
            raise as_user_error(e) from None

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = as_user_error(error)
        self._stop_channels()

    def _hang(self, index: int) -> None:
        """End the run because GPU ``index`` hangs. The threads that wait for this GPU are left waiting."""
        self.hung = True
        self._fail(DeviceError(f"GPU {index} hangs: a batch did not finish within {self.options.gpu_timeout:g} s "
                               "(pipeline.gpu_timeout). This process can no longer use the GPU. Check it with "
                               "`dali-run doctor` and dmesg"))  # fmt: skip

    def _stop_channels(self) -> None:
        self.lanes.stop()
        for channel in self.channels:
            channel.stop()
        for budget in self.budgets.values():
            budget.stop()

    def abandon(self, then: Callable[[], object]) -> None:
        """Stop the run in another thread, and call ``then()`` there afterwards. For destructors, which must not wait:
        the garbage collector may run them in any thread at any moment, for example in a worker for which other threads
        wait, or in a thread that holds the locks of `threading`."""
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
        """End the run soon: nothing new is started. With ``wait``, wait for the threads to end, except for those that
        wait for a GPU that hangs."""
        wait = wait and not self.hung
        self._abandoned.put(None)
        self._stop_channels()
        if self._started:
            gil.restore(id(self))
        if self.services.isolation is not None:
            self.services.isolation.close()
        self.host_executor.stopped = True  # queued chunks then end at once: batches wait for them
        self.host_executor.close(wait=wait)
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                with suppress(RuntimeError):  # the thread could not be started
                    self._join(thread)
        self._close_watched_devices()
        if self.hung:  # closing anything of the GPU would also wait
            return
        if self.host_executor.lender is not None:
            ignore_device_errors(self.host_executor.lender.close)
        self.lanes.lift_limits()
        page_locked_blocks().remove_budget(self.budget.host)
        if wait:
            self.host_executor.drop_references()
            self._undelivered.clear()
            if self.direct is not None:
                self.direct.drop_references()
            for budget in self.budgets.values():
                budget.close()

    def _close_watched_devices(self) -> None:
        """Close the devices. A watched GPU is closed by a thread, which is not waited for if the GPU hangs."""
        if self._watch is None:
            self._close_devices()
        elif not self.hung:
            closing = threading.Thread(target=self._close_devices, name="close", daemon=True)
            closing.start()
            self._join(closing)
            unwatch(self._watch)
            self._watch = None

    def _close_devices(self) -> None:
        if self.host_executor.uploads is not None:
            ignore_device_errors(self.host_executor.uploads.close)
        self.lanes.close()

    def _join(self, thread: threading.Thread) -> None:
        """Wait until ``thread`` has ended. Stop waiting if it may be waiting for a GPU that hangs."""
        while thread.is_alive() and not self.hung:
            thread.join(_HANG_CHECK_SECONDS if self._watch is not None else None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- results ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[InFlightBatch]:
        return self

    def __next__(self) -> InFlightBatch:
        """Return the next finished batch. Raises StopIteration after the last one, the exception that made the batch
        fail (later batches can still be requested), or the error that ended the run."""
        try:
            return self._next()
        except StopIteration:
            raise
        except Exception as e:
            without_frames(e)  # the program may keep the exception for any time
            user_error = as_user_error(e)
            if user_error is e:
                raise
        try:
            raise user_error
        finally:
            del user_error  # otherwise it would refer to this frame, which refers to it

    def _next(self) -> InFlightBatch:
        if self.inline is not None:
            batch = self.inline.take()
            if batch is not None:
                return finished(self.services, batch)
            self.inline, self.host_executor.charge_batches = None, True
        if not self._undelivered:
            self.start()
            self._undelivered.extend(self._taken())
        iteration = self._undelivered.popleft()
        if iteration.problem is not None:
            raise iteration.problem
        return finished(self.services, iteration)

    def _taken(self) -> Sequence[InFlightBatch]:
        """Return the batches of the next launch: one, or several that were launched together. They may have failed.
        Raises StopIteration, and the error that ended the run."""
        if self._delivered is not None:  # the caller has finished with that batch, or keeps its own reference
            self.budget.release(self._delivered)
            self._delivered = None
        fill, unfinished = self.delivery.fill, self.delivery.unfinished
        try:
            iteration = self.direct.take() if self.direct is not None else hand_over.taken(self.delivery)
        except Closed:
            if self._error is not None:
                raise self._error from None
            raise StopIteration from None
        except BaseException as e:  # the caller was interrupted
            self._fail(without_frames(e))
            raise
        fill = fill if self.delivery.unfinished == unfinished else 0
        self.credits.consumer_takes(fill, self.delivery.depth, sum(c.waited_empty for c in self._before_device))
        if iteration.problem is not None:
            self.budget.release_all(iteration.order)
        elif self.direct is None:
            self._delivered = iteration.order
        return (
            iteration.split_by_request() if self.options.whole_batches and len(iteration.requests) > 1 else (iteration,)
        )
