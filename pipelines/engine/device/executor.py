"""Launch batches on free lanes without waiting for the device, and complete them in order in another thread.

Used by `Engine`, and by `DirectGpu` in the caller's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

import numpy as np

from ....ops.batch import Samples
from ....ops.errors import DeviceError, without_frames
from ....ops.gpu.lane import Lane
from ....ops.interfaces import Copies
from ...compile.schedule import Step
from ...graph.nodes import Edge
from ..batch_budget import BatchBudget
from ..credits import Credits
from ..errors import as_user_error, ignore_device_errors
from ..hand_over import arriving, put_failed
from ..in_flight import InFlightBatch
from ..lanes import FreeLanes
from ..memory.estimate import MemoryEstimate
from ..nodes.envs import drop, gone
from ..nodes.node_pass import Env, NodePass
from ..nodes.run_nodes import finish_late
from ..services import Services
from ..threads.channel import Channel, Closed
from ..threads.latch import Latch
from ..threads.workers import Pool
from .open_lanes import OpenLanes
from .out_of_memory import OnDevice
from .timer import DeviceTimer


class DeviceExecutor:
    """Launches the steps of a run that are computed on a device, and waits for their results. Created by `Engine`;
    `launch` runs in one thread and `complete` in another."""

    def __init__(self, services: Services, budget: BatchBudget, credits: Credits, lanes: OpenLanes) -> None:
        self._services = services
        self._plan, self._options = services.plan, services.options
        self._budget = budget
        self._credits = credits
        self.lanes = lanes
        self._to_host = {id(s): [e for e in s.gives if self._wanted_on_host(e)] for s in services.plan.steps}
        """For each step on a device, by its ``id()``: the outputs (edges of the graph) that are copied to the host."""

    def wanted_on_host(self, step: Step) -> Sequence[Edge]:
        """Return the outputs (edges of the graph) of a step on a device that are copied to the host."""
        return self._to_host[id(step)]

    # -- launching ----------------------------------------------------------------------------------------------

    def launch(
        self, name: str, step: Step, free: list[FreeLanes], inbox: Channel[InFlightBatch], out: Channel[InFlightBatch]
    ) -> None:
        """Take batches from the channel ``inbox``, launch each on one of the ``free`` lanes (CUDA streams), and put it
        into the channel ``out``. The body of a thread."""
        # with one device, this thread launches: passing a batch to another thread takes as long as a few launches
        launchers = [Pool(1, f"{name} {k}") for k in range(len(free))] if len(free) > 1 else []
        try:
            for whole in arriving(inbox, out):
                self.lanes.wait()
                if self.lanes.stopped:
                    raise Closed
                try:
                    for it, estimate in self._budget.parts(whole, step):
                        self._make_room(it, estimate)
                        device = it.number % len(free)
                        it.lane = free[device].get()
                        it.launched = Latch(1)
                        if launchers:
                            try:
                                launchers[device].do(self._launch_one, name, step, it, it.lane, it.launched)
                            except Exception as e:  # no thread could be started
                                it.launched.fail(without_frames(e))
                        else:
                            self._launch_one(name, step, it, it.lane, it.launched)
                        out.put(it)
                except Closed:
                    raise
                except BaseException as e:  # raised when the batch is taken
                    put_failed(whole, out, e)
        finally:
            for launcher in launchers:
                launcher.shutdown()

    def launch_now(self, name: str, step: Step, it: InFlightBatch, lane: Copies) -> None:
        """Launch a batch on the free ``lane`` in the caller's thread, without waiting for another batch. The same
        thread later calls `finish` for it."""
        for _, estimate in self._budget.parts(it, step):
            self._make_room(it, estimate, wait=False)
            it.lane, it.launched = lane, Latch(1)
            self._launch_one(name, step, it, lane, it.launched)

    def _make_room(self, it: InFlightBatch, estimate: MemoryEstimate, *, wait: bool = True) -> None:
        """Reserve device memory for the batch, and host memory for its results; with ``wait``, wait for memory."""
        assert self._budget.device is not None
        on_host, on_device = self._budget.held_bytes(it)
        need, it.cuts = self._credits.launch(estimate, on_device, on_host)
        it.estimated_outputs = estimate.outputs
        self._budget.device.reserve(it.order, need, wait=wait)
        self._budget.host.reserve(it.order, on_host + estimate.kept_total, wait=wait)

    def _launch_one(self, name: str, step: Step, it: InFlightBatch, lane: Copies, launched: Latch[NodePass]) -> None:
        try:
            launched.add(0, self._launch_whole(name, step, it, lane))
            launched.done()
        except BaseException as e:  # raised when the batch is completed
            launched.fail(without_frames(e))

    def _launch_whole(self, name: str, step: Step, it: InFlightBatch, lane: Copies) -> NodePass:
        began = time.perf_counter()
        run = self._launch_on(it, step, lane, {e: it.env[e] for e in step.needs}, it.samples, 0)
        ended = time.perf_counter()
        self._services.stats.busy(name, ended - began)
        self._services.stats.span("launch", threading.current_thread().name, began, ended, it.number)
        return run

    def _launch_on(
        self, it: InFlightBatch, step: Step, lane: Copies, env: Env, samples: Samples, attempt: int
    ) -> NodePass:
        on_gpu = self._plan.target.device == "gpu"
        timer = DeviceTimer(cast("Lane", lane), self._services.stats, it.number) if on_gpu else None
        run = self._services.node_pass(it, samples=samples, device=lane, attempt=attempt, mark_device=timer,
                                 mark_whole=None if timer is None else timer.whole,
                                 started={} if attempt else it.started,
                        allocate=None if timer else lane.empty,
                        observe=None if timer else self._services.observer("gpu (emulated)", it.number))  # fmt: skip
        with lane:
            run.results = self._on(lane, step).run_cut(env, run, it.cuts if attempt == 0 else [], it.estimated_outputs)
        run.reports.finish()
        it.started = {}
        run.timer = timer
        return run

    def _on(self, lane: Copies, step: Step) -> OnDevice:
        return OnDevice(
            step.nodes,
            step.gives,
            self._to_host[id(step)],
            lane,
            self.lanes.all,
            self._device_error,
            self._services.fell_back,
        )

    def _wanted_on_host(self, edge: Edge) -> bool:
        if self._options.to_host and edge in self._plan.graph.outputs.values():
            return True
        return any(edge in s.needs for s in self._plan.steps if s.kind != "device")

    def _device_error(self, problem: Exception, samples: int) -> Exception | None:
        ours = as_user_error(problem)
        return ours if isinstance(ours, DeviceError) else self._services.raised(problem, samples)

    # -- completing ---------------------------------------------------------------------------------------------

    def complete(
        self, name: str, step: Step, free: list[FreeLanes], inbox: Channel[InFlightBatch], out: Channel[InFlightBatch]
    ) -> None:
        """Wait for launched batches in order, add their results, free their lanes (CUDA streams). A thread's body."""
        for it in arriving(inbox, out):
            lane = it.lane
            assert lane is not None
            try:
                self.finish(it, step)
            except BaseException as e:  # raised when the batch is taken
                self._give_up(it)
                free[it.number % len(free)].put(lane)
                if isinstance(e, Closed):
                    raise
                put_failed(it, out, e)
                continue
            self._budget.update_reservation(it)
            out.put(it)
            free[it.number % len(free)].put(lane)  # only now: a launched batch that nobody takes keeps its lane

    def _give_up(self, it: InFlightBatch) -> None:
        """Free the lane (CUDA stream) of a launched batch that has failed, after the device has finished its work."""
        lane, it.lane, it.launched, it.started = it.lane, None, None, {}
        if lane is not None:
            ignore_device_errors(lane.synchronize)

    def finish(self, it: InFlightBatch, step: Step) -> None:
        """Wait until the device has finished a launched batch, add the results to the batch, and free its lane (CUDA
        stream). Raises the exception that the launch raised."""
        assert it.launched is not None
        assert it.lane is not None
        it.launched.wait()
        run, lane = it.launched.parts[0], it.lane
        assert run is not None
        results = self._completed(it, step, lane, run, 0)
        it.launched = it.lane = None
        it.env |= results
        it.dropped += run.dropped
        self._budget.drop_unneeded(it, step)

    def _completed(self, it: InFlightBatch, step: Step, lane: Copies, run: NodePass, attempt: int) -> Env:
        """Return the results of a launched batch, after the device has finished and every check has passed. Samples
        that fail a check are computed again alone, with the next decoder in the list; the new results replace
        theirs."""
        lane.synchronize()
        if run.timer is not None:
            run.timer.read()
        wrong = {int(s) for check in run.checks for s in check()} - gone(run.dropped)
        results: Env = run.results
        if run.late_outputs:
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
        redone = self._completed(it, step, lane, redo, attempt + 1)
        run.dropped += redo.dropped
        drop(results, wrong)
        on = self._on(lane, step)
        with lane:
            joined = {e: on.joined([results[e], redone[e]]) for e in results}
        lane.synchronize()
        return joined
