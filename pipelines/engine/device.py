"""Device steps: batches are launched on a free lane and handed on at once; another thread settles them, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...ops.batch import Samples
from ...ops.errors import DeviceError, JobError
from ...ops.gpu.lane import Lane, free_memory, gpu_count, limit_pool
from ..compile.place import Target
from ..compile.plan import Plan
from ..compile.schedule import Step
from ..graph.nodes import Edge
from .admission import FOR_WORK, Options
from .channel import Channel
from .host import HostSteps
from .in_flight import Feed, Iteration, Request
from .latch import Chunks
from .memory.budget import Ledger
from .memory.estimate import Foresight, runs
from .nodes import Env, Run, bytes_of, drop, finish_late
from .null_device import DeviceTimer, NullLane
from .out_of_memory import REMEDY, OnDevice, out_of_memory
from .stats import Stats
from .workers import Pool

_MODEST = 1 / 12
"""Part of the budgets that batches may take which a program did not ask to go together."""


class DeviceSteps(HostSteps):
    """Launching and settling. The lanes of every device, and its account of memory."""

    def __init__(
        self, plan: Plan, feed: Feed, schedule: Iterator[Request], options: Options, stats: Stats | None
    ) -> None:
        super().__init__(plan, feed, schedule, options, stats)
        self.lanes: list[Any] = []
        self._free_lanes: list[Channel[Any]] = []
        self._devices = len(plan.target.indices)
        self._limited: list[int] = []
        """Devices that are held to a budget."""
        self._to_host = {id(s): [e for e in s.gives if self._wanted_on_host(e)] for s in plan.steps}
        """What each step gives that is wanted on the host."""

    def _open_lanes(self) -> list[Channel[Any]]:
        """Free lanes of each device, of one step's own: with common ones, a step could take all of them and wait for
        the next, which waits for a lane."""
        found: list[Channel[Any]] = []
        for index in self.plan.target.indices:
            lanes = [self.open_lane(self.plan.target, index) for _ in range(self.options.lanes)]
            free: Channel[Any] = Channel("lanes", len(lanes))
            for lane in lanes:
                free.put(lane)
            self.lanes += lanes
            found.append(free)
            if self.device is None or index not in self._limited:
                self._limit(index)
        self._free_lanes += found
        return found

    def _limit(self, index: int) -> None:
        """Hold the pool of device ``index`` to the budget; all of them are on one account."""
        gpu = self.plan.target.device == "gpu"
        budget = self.options.memory.gpu_bytes(free_memory(index) if gpu else NullLane.free_memory)
        if gpu:
            limit_pool(index, self, budget)
        self._limited.append(index)
        if self.device is None:
            self.device = Ledger(0)
        self.device.limit += budget

    @staticmethod
    def open_lane(target: Target, index: int) -> Any:
        """A lane of device ``index``. Raises DeviceError for a GPU that is not there."""
        if target.device == "null":
            return NullLane(index)
        if index >= gpu_count():
            raise DeviceError(f"GPU {index} was asked for, this machine has {gpu_count()}; run `dali-run doctor`, or "
                              "use device: cpu")  # fmt: skip
        return Lane(index)

    # -- launching ----------------------------------------------------------------------------------------------

    def _launch(
        self, name: str, step: Step, lanes: list[Channel[Any]], inbox: Channel[Iteration], out: Channel[Iteration]
    ) -> None:
        count = launcher_count(step)
        # one launcher alone is this thread: handing a batch to another takes as long as a few launches
        launchers = [Pool(count, f"{name} {k}") for k in range(len(lanes))] if len(lanes) * count > 1 else []
        try:
            for whole in self._arriving(inbox, out):
                try:
                    for it, ahead in self._parts(whole, step):
                        self._make_room(it, ahead)
                        device = it.number % len(lanes)
                        it.lane, it.launched = lanes[device].get(), Chunks(1)
                        if launchers:
                            launchers[device].do(self._launch_one, name, step, it, it.launched)
                        else:
                            self._launch_one(name, step, it, it.launched)
                        out.put(it)
                except BaseException as e:  # raised where the batch is taken
                    self._end_with(whole, out, e)
        finally:
            for launcher in launchers:
                launcher.shutdown()

    def _make_room(self, it: Iteration, ahead: Foresight) -> None:
        """Wait until the device, and the host behind it, have room for the batch."""
        assert self.device is not None
        room = self.device.limit // (self.options.lanes * self._devices)
        at_once, kept = ahead.at_once, ahead.held
        it.cuts = [(0, len(ahead.peak))]
        if at_once > room:
            it.cuts = list(runs(ahead.peak, max(1, room), len(ahead.peak)))
            at_once = max(int(ahead.peak[a:b].sum()) for a, b in it.cuts)
        self.device.hold(it.order, at_once if len(it.cuts) <= 1 else at_once + kept)
        here = bytes_of(b for b in it.env.values() if b.on_host) + kept
        if self._together:
            self._room_for = self._fitting(len(ahead.peak), at_once, here)
        self.host.hold(it.order, here)

    def _fitting(self, samples: int, there: int, here: int) -> int:
        """Samples that could be launched together, where ``samples`` hold so many bytes on the device and on the host:
        as many as there is room for in all places that batches in flight have, or, where a program does other things
        with the device, a small part of that."""
        assert self.device is not None
        lanes = self.options.lanes * self._devices
        in_flight = lanes + self.options.gpu_queue * self._devices + self.reads_at_once
        on_device, on_host = self.device.limit / lanes, self.host.limit * (1 - FOR_WORK) / in_flight
        if self.options.whole_batches:
            on_device, on_host = min(on_device, self.device.limit * _MODEST), min(on_host, self.host.limit * _MODEST)
        return int(samples * min(on_device / max(1, there), on_host / max(1, here)))

    def _launch_one(self, name: str, step: Step, it: Iteration, launched: Chunks[Run]) -> None:
        try:
            launched.add(0, self._launch_whole(name, step, it))
            launched.done()
        except BaseException as e:  # raised where the batch is settled
            launched.fail(e)

    def _launch_whole(self, name: str, step: Step, it: Iteration) -> Run:
        began = time.perf_counter()
        run = self._launch_on(it, step, it.lane, {e: it.env[e] for e in step.needs}, it.samples, 0)
        ended = time.perf_counter()
        self.stats.busy(name, ended - began)
        self.stats.span("launch", threading.current_thread().name, began, ended, it.number)
        return run

    def _launch_on(self, it: Iteration, step: Step, lane: Any, env: Env, samples: Samples, attempt: int) -> Run:
        timer = DeviceTimer(lane, self.stats, it.number) if self.plan.target.device == "gpu" else None
        run = self._run(it, samples=samples, device=lane, attempt=attempt, mark_device=timer,
                        allocate=None if timer else lane.empty,
                        observe=None if timer else self._observer("gpu (emulated)", it.number))  # fmt: skip
        with lane:
            run.results = self._on(lane, step).run_cut(env, run, it.cuts if attempt == 0 else [])
        run.timer = timer
        return run

    def _on(self, lane: Any, step: Step) -> OnDevice:
        return OnDevice(
            step.nodes, step.gives, self._to_host[id(step)], lane, self.lanes, self._device_error, self._fell_back
        )

    def _wanted_on_host(self, edge: Edge) -> bool:
        if self.options.to_host and edge in self.plan.graph.outputs.values():
            return True
        return any(edge in s.needs for s in self.plan.steps if s.kind != "device")

    def _device_error(self, problem: Exception, samples: int) -> Exception | None:
        ours = as_ours(problem)
        return ours if isinstance(ours, DeviceError) else self._raised(problem, samples)

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(
        self, name: str, step: Step, lanes: list[Channel[Any]], inbox: Channel[Iteration], out: Channel[Iteration]
    ) -> None:
        for it in self._arriving(inbox, out):
            assert it.launched is not None
            try:
                it.launched.wait()
                run, lane = it.launched.parts[0], it.lane
                assert run is not None
                results = self._settled(it, step, lane, run, 0)
                it.launched = it.lane = None
                lanes[it.number % len(lanes)].put(lane)
                it.env |= results
                it.dropped += run.dropped
                self._forget(it, step)
                self._holds(it)
                out.put(it)
            except BaseException as e:  # raised where the batch is taken
                self._end_with(it, out, e)

    def _settled(self, it: Iteration, step: Step, lane: Any, run: Run, attempt: int) -> Env:
        """The results of a launched batch, once the device is done and every check has passed. Samples that fail a
        check run again alone, on the decoder's next lane; their results take the place of the wrong ones."""
        lane.synchronize()
        if run.timer is not None:
            run.timer.read()
        wrong = {int(s) for check in run.checks for s in check()} - {d.slot for d in run.dropped}
        results: Env = run.results
        if run.late:
            finish_late(run, results, self._on(lane, step).retried)
        if not wrong:
            return results
        self.stats.count(self.stats.fallbacks, f"device check failed: attempt {attempt + 2}", len(wrong))
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


def launcher_count(step: Step) -> int:
    """Threads that launch a device step. Where a kernel's launch waits (JPEG engines), another goes on meanwhile (one
    H200: 24k images/s instead of 16k); else two would only contend for the GIL (100k instead of 115k)."""
    return 2 if any(n.op.waits for n in step.nodes) else 1


def as_ours(problem: BaseException) -> BaseException:
    """What ends a run, in words for its user: want of memory and failures of a device are not bugs."""
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
