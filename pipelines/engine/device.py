"""DevicePart: batches are launched on a free lane and handed on at once; another thread settles them, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ...ops.batch import Samples
from ...ops.codecs.on_host import CUDA as BATCHED
from ...ops.errors import DeviceError, JobError
from ...ops.gpu.lane import Lane, free_memory, gpu_count, limit_pool
from ...ops.interfaces import Copies
from ..compile.place import Target
from ..compile.schedule import Step
from ..graph.nodes import Edge
from .batch_budget import FOR_WORK, BatchBudget
from .channel import Channel, Closed
from .hand_over import arriving, end_with
from .in_flight import Iteration
from .intake import Intake
from .lanes import FreeLanes, OwnLanes, SharedLanes
from .latch import Latch
from .memory.budget import Ledger
from .memory.estimate import Foresight, runs
from .more_lanes import MOST, Change, MoreLanes
from .nodes import Env, Run, bytes_of, drop, finish_late, gone
from .null_device import DeviceTimer, NullLane
from .out_of_memory import REMEDY, OnDevice, out_of_memory
from .services import Services
from .workers import Pool

_AHEAD, _LATE = 8, 0.1
"""Batches more that are read ahead, one by one, while batches wait for pictures that threads of the host decode, for
that part of the time: one slow picture then holds its batch for as long as several others take."""

_FEW = 0.01
"""Part of the pictures that other decoders take from which the rest may wait for those."""

_MODEST = 1 / 12
"""Part of the budgets that batches may take which a program did not ask to go together."""


class DevicePart:
    """Launching and settling; the lanes of every device."""

    def __init__(
        self, services: Services, budget: BatchBudget, intake: Intake, reads_at_once: int,
        open_lane: Callable[[Target, int], Copies],
    ) -> None:  # fmt: skip
        self._services = services
        self._plan, self._options = services.plan, services.options
        self._budget = budget
        self._intake = intake
        self._reads_at_once = reads_at_once
        self._open_lane = open_lane
        self.lanes: list[Copies] = []
        self._free_lanes: list[FreeLanes] = []
        self.devices = len(services.plan.target.indices)
        self._limited: list[int] = []
        """Devices that are held to a budget."""
        self._open = threading.Event()
        self._stopped = False
        if any(s.kind == "device" for s in services.plan.steps):
            beside = self._options.beside
            budget.device = Ledger(0) if beside is None else beside.accounts.of(self._plan, "device", 0)
        self._to_host = {id(s): [e for e in s.gives if self._wanted_on_host(e)] for s in services.plan.steps}
        """The edges of each step that are wanted on the host."""

    def wanted_on_host(self, step: Step) -> Sequence[Edge]:
        """The edges of a step that are brought to the host."""
        return self._to_host[id(step)]

    @property
    def is_open(self) -> bool:
        """All lanes are there: memory can be page-locked without waiting for the device to start."""
        return self._open.is_set()

    def free_lanes(self) -> list[FreeLanes]:
        """Where one step will find its free lanes, of each device; they come with `open`. With lanes in common, a step
        could take all of them and wait for the next, which waits for a lane."""
        found: list[FreeLanes] = []
        if self._options.beside is not None:
            found += self._options.beside.lanes.of(self._plan, len(self._free_lanes) // self.devices, self.devices)
        else:
            found += [OwnLanes("lanes", max(MOST, self._options.lanes)) for _ in self._plan.target.indices]
        self._free_lanes += found
        return found

    def open(self) -> None:
        """Open the lanes: the body of a thread. A GPU takes some tenths of a second to start, in which batches are
        read. Raises DeviceError."""
        pool = None if self._options.beside is None else self._options.beside.lanes
        if pool is None:
            self._open_all()
        else:
            with pool.opening:
                if id(self._plan) not in pool.lanes:
                    self._open_all()
                    pool.lanes[id(self._plan)] = self.lanes
                self.lanes = pool.lanes[id(self._plan)]
        self._open.set()

    def _open_all(self) -> None:
        count = len(self._plan.target.indices)
        for number, free in enumerate(self._free_lanes):
            index = self._plan.target.indices[number % count]
            lanes = [self._open_lane(self._plan.target, index) for _ in range(self._options.lanes)]
            self.lanes += lanes
            if index not in self._limited:
                self._limit(index)
            for lane in lanes:
                free.put(lane)

    def _limit(self, index: int) -> None:
        """Hold the pool of device ``index`` to the budget; all of them are on one account."""
        gpu = self._plan.target.device == "gpu"
        budget = self._options.memory.gpu_bytes(free_memory(index) if gpu else NullLane.free_memory)
        if gpu and self._options.beside is not None:
            self._options.beside.lanes.limit(index, budget)
        elif gpu:
            limit_pool(index, self, budget)
        self._limited.append(index)
        assert self._budget.device is not None
        self._budget.device.limit += budget

    def stop(self) -> None:
        """Wake the threads that wait for a lane with Closed."""
        self._stopped = True
        self._open.set()
        for free in self._free_lanes:
            free.stop()

    def close(self) -> None:
        """Give lanes and pools back; no thread uses them any more."""
        if self._options.beside is not None:
            for free in self._free_lanes:
                assert isinstance(free, SharedLanes)
                free.give_back(lambda lane: if_it_works(lane.synchronize))
            return
        for lane in self.lanes:
            if_it_works(lane.close)

    def lift_limits(self) -> None:
        """Let others use the memory of the devices again."""
        if self._plan.target.device == "gpu" and self._options.beside is None:
            for index in self._limited:
                limit_pool(index, self, None)

    # -- launching ----------------------------------------------------------------------------------------------

    def launch(
        self, name: str, step: Step, lanes: list[FreeLanes], inbox: Channel[Iteration], out: Channel[Iteration]
    ) -> None:
        """Launch batches on free ``lanes``: the body of a thread."""
        count = launcher_count(step)
        # one launcher alone is this thread: handing a batch to another takes as long as a few launches
        launchers = [Pool(count, f"{name} {k}") for k in range(len(lanes))] if len(lanes) * count > 1 else []
        most, looked, waited = inbox.depth + _AHEAD, time.perf_counter(), self._services.waited
        more = [MoreLanes(self._options.lanes, time.perf_counter) for _ in lanes]
        try:
            for whole in arriving(inbox, out):
                self._open.wait()  # before that the budget is not known
                if self._stopped:
                    raise Closed
                now = time.perf_counter()
                if self._services.waited - waited > _LATE * (now - looked) and inbox.depth < most:
                    inbox.deepen()
                    looked, waited = now, self._services.waited
                try:
                    for it, ahead in self._budget.parts(whole, step):
                        self._make_room(it, ahead)
                        device = it.number % len(lanes)
                        it.lane, it.launched = self._free_lane(lanes[device], more[device], it, out), Latch(1)
                        if launchers:
                            launchers[device].do(self._launch_one, name, step, it, it.lane, it.launched)
                        else:
                            self._launch_one(name, step, it, it.lane, it.launched)
                        out.put(it)
                except BaseException as e:  # raised where the batch is taken
                    end_with(whole, out, e)
        finally:
            for launcher in launchers:
                launcher.shutdown()

    def _free_lane(self, lanes: FreeLanes, more: MoreLanes, it: Iteration, out: Channel[Iteration]) -> Copies:
        """A free lane for the batch, waiting for one. Where that takes long, one more is tried."""
        began = time.perf_counter()
        lane = lanes.get()
        if not self._waits_for_few():
            return lane
        change = more.launched(len(it.samples), time.perf_counter() - began, self._room_for_more())
        if change is Change.ONE_MORE:
            another = self._open_lane(self._plan.target, lane.index)
            self.lanes.append(another)
            out.deepen()
            lanes.put(another)
        elif change is Change.ONE_LESS:
            self.lanes[:] = [k for k in self.lanes if k is not lane]
            lanes.drop(lane)
            lane.close()
            lane = lanes.get()
        return lane

    def _waits_for_few(self) -> bool:
        """Some pictures take other decoders than the one that decodes a whole batch at once: the rest of their batch
        may wait for them while the GPU has little to do."""
        counts = self._services.stats.decoders
        total = sum(list(counts.values()))
        return total > 0 and total - counts.get(BATCHED, 0) >= _FEW * total

    def _room_for_more(self) -> bool:
        """A batch more would fit into the memory."""
        assert self._budget.device is not None
        return all(
            ledger.used <= ledger.limit * (1 - 2 / max(4, len(self.lanes)))
            for ledger in (self._budget.device, self._budget.host)
        )

    def begin(self, name: str, step: Step, it: Iteration, lane: Copies) -> None:
        """Launch a batch on a free ``lane``; it is to be `finish`ed in its turn by the same thread: so this waits for
        no other's end."""
        for _, ahead in self._budget.parts(it, step):
            self._make_room(it, ahead, wait=False)
            it.lane, it.launched = lane, Latch(1)
            self._launch_one(name, step, it, lane, it.launched)

    def _make_room(self, it: Iteration, ahead: Foresight, *, wait: bool = True) -> None:
        """Wait until the device, and the host for what comes back, have room for the batch."""
        assert self._budget.device is not None
        room = self._budget.device.limit // (self._options.lanes * self.devices)
        at_once, kept = ahead.at_once, ahead.held
        it.cuts = [(0, len(ahead.peak))]
        if at_once > room:
            it.cuts = list(runs(ahead.peak, max(1, room), len(ahead.peak)))
            at_once = max(int(ahead.peak[a:b].sum()) for a, b in it.cuts)
        self._budget.device.hold(it.order, at_once if len(it.cuts) <= 1 else at_once + kept, wait=wait)
        here = bytes_of(b for b in it.env.values() if b.on_host) + kept
        if self._intake.together:
            self._intake.launch_room = self._fitting(len(ahead.peak), at_once, here)
        self._budget.host.hold(it.order, here, wait=wait)

    def _fitting(self, samples: int, there: int, here: int) -> int:
        """Samples that could be launched together, where ``samples`` hold so many bytes on the device and on the host:
        as many as there is room for in all places that batches in flight have, or, where a program does other things
        with the device, a small part of that."""
        assert self._budget.device is not None
        lanes = self._options.lanes * self.devices
        in_flight = lanes + self._options.gpu_queue * self.devices + self._reads_at_once
        on_device, on_host = self._budget.device.limit / lanes, self._budget.host.limit * (1 - FOR_WORK) / in_flight
        if self._options.whole_batches:
            on_device, on_host = (
                min(on_device, self._budget.device.limit * _MODEST),
                min(on_host, self._budget.host.limit * _MODEST),
            )
        return int(samples * min(on_device / max(1, there), on_host / max(1, here)))

    def _launch_one(self, name: str, step: Step, it: Iteration, lane: Copies, launched: Latch[Run]) -> None:
        try:
            launched.add(0, self._launch_whole(name, step, it, lane))
            launched.done()
        except BaseException as e:  # raised where the batch is settled
            launched.fail(e)

    def _launch_whole(self, name: str, step: Step, it: Iteration, lane: Copies) -> Run:
        began = time.perf_counter()
        run = self._launch_on(it, step, lane, {e: it.env[e] for e in step.needs}, it.samples, 0)
        ended = time.perf_counter()
        self._services.stats.busy(name, ended - began)
        self._services.stats.span("launch", threading.current_thread().name, began, ended, it.number)
        return run

    def _launch_on(self, it: Iteration, step: Step, lane: Copies, env: Env, samples: Samples, attempt: int) -> Run:
        on_gpu = self._plan.target.device == "gpu"
        timer = DeviceTimer(cast("Lane", lane), self._services.stats, it.number) if on_gpu else None
        run = self._services.run(it, samples=samples, device=lane, attempt=attempt, mark_device=timer,
                                 mark_whole=None if timer is None else timer.whole,
                                 begun={} if attempt else it.begun,
                        allocate=None if timer else lane.empty,
                        observe=None if timer else self._services.observer("gpu (emulated)", it.number))  # fmt: skip
        with lane:
            run.results = self._on(lane, step).run_cut(env, run, it.cuts if attempt == 0 else [])
        it.begun = {}
        run.timer = timer
        return run

    def _on(self, lane: Copies, step: Step) -> OnDevice:
        return OnDevice(
            step.nodes,
            step.gives,
            self._to_host[id(step)],
            lane,
            self.lanes,
            self._device_error,
            self._services.fell_back,
        )

    def _wanted_on_host(self, edge: Edge) -> bool:
        if self._options.to_host and edge in self._plan.graph.outputs.values():
            return True
        return any(edge in s.needs for s in self._plan.steps if s.kind != "device")

    def _device_error(self, problem: Exception, samples: int) -> Exception | None:
        ours = as_ours(problem)
        return ours if isinstance(ours, DeviceError) else self._services.raised(problem, samples)

    # -- settling -----------------------------------------------------------------------------------------------

    def settle(
        self, name: str, step: Step, lanes: list[FreeLanes], inbox: Channel[Iteration], out: Channel[Iteration]
    ) -> None:
        """Wait for launched batches, in order, and give their lanes back: the body of a thread."""
        for it in arriving(inbox, out):
            try:
                lane = self.finish(it, step)
                lanes[it.number % len(lanes)].put(lane)
                self._budget.holds(it)
                out.put(it)
            except BaseException as e:  # raised where the batch is taken
                end_with(it, out, e)

    def finish(self, it: Iteration, step: Step) -> Copies:
        """Wait for a launched batch; the lane that is free now. Raises what was raised as it was launched."""
        assert it.launched is not None
        assert it.lane is not None
        it.launched.wait()
        run, lane = it.launched.parts[0], it.lane
        assert run is not None
        results = self._settled(it, step, lane, run, 0)
        it.launched = it.lane = None
        it.env |= results
        it.dropped += run.dropped
        self._budget.forget(it, step)
        return lane

    def _settled(self, it: Iteration, step: Step, lane: Copies, run: Run, attempt: int) -> Env:
        """The results of a launched batch, once the device is done and every check has passed. Samples that fail a
        check run again alone, on the decoder's next lane; their results take the place of the wrong ones."""
        lane.synchronize()
        if run.timer is not None:
            run.timer.read()
        wrong = {int(s) for check in run.checks for s in check()} - gone(run.dropped)
        results: Env = run.results
        if run.late:
            finish_late(run, results, self._on(lane, step).retried)
        if not wrong:
            return results
        self._services.stats.count(
            self._services.stats.fallbacks, f"device check failed: attempt {attempt + 2}", len(wrong)
        )
        slots = sorted(wrong)
        again = run.samples.take(np.isin(run.samples.slot, slots))
        env = {e: b.take(np.flatnonzero(np.isin(b.samples.slot, slots))) for e, b in it.env.items() if e in step.needs}
        redo = self._launch_on(it, step, lane, env, again, attempt + 1)
        redone = self._settled(it, step, lane, redo, attempt + 1)
        run.dropped += redo.dropped
        drop(results, wrong)
        on = self._on(lane, step)
        with lane:
            joined = {e: on.joined([results[e], redone[e]]) for e in results}
        lane.synchronize()
        return joined


def open_lane(target: Target, index: int) -> Copies:
    """A lane of device ``index``. Raises DeviceError for a GPU that is not there."""
    if target.device == "null":
        return NullLane(index)
    if index >= gpu_count():
        raise DeviceError(f"GPU {index} was asked for, this machine has {gpu_count()}; run `dali-run doctor`, or "
                          "use device: cpu")  # fmt: skip
    return Lane(index)


def if_it_works(end: Callable[[], object]) -> None:
    """Call ``end``, and ignore that a failed device fails again: the caller has already been told."""
    try:
        end()
    except Exception as e:
        if as_ours(e) is e:
            raise


def launcher_count(step: Step) -> int:
    """Threads that launch a device step. Where a kernel's launch waits (JPEG engines), another goes on meanwhile (one
    H200: 24k images/s instead of 16k); else two would only contend for the GIL (100k instead of 115k)."""
    return 2 if any(n.op.waits for n in step.nodes) else 1


def as_ours(problem: BaseException) -> BaseException:
    """The error that ends a run, in words for its user: lack of memory and failures of a device are not bugs."""
    kind = type(problem).__name__
    if kind == "OutOfMemoryError" or out_of_memory(problem):
        return DeviceError(f"the GPU's memory does not suffice: {problem}; {REMEDY}")
    if kind in ("CUDARuntimeError", "CUDADriverError"):
        return DeviceError(f"the GPU failed: {problem}; this process cannot use it any more. CUDA_LAUNCH_BLOCKING=1 "
                           "shows which kernel went astray, `dali-run doctor` and dmesg how the GPU is")  # fmt: skip
    if isinstance(problem, MemoryError):
        return JobError(f"out of memory: {str(problem) or 'an allocation failed'}; lower pipeline.batch_size, "
                        "prefetch_queue_depth or memory.host, so that less is held at a time")  # fmt: skip
    return problem
