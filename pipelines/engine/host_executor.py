"""HostPart: readers and other kernels that see whole batches, and chunks of batches for the worker threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.batch import I64, Samples
from ...ops.compiled.times import times
from ...ops.context import Helpers
from ...ops.errors import kept
from ...readers.base import Reader
from ...readers.fetch.gpu_reads import RegisteredFiles
from ..compile.plan import Plan
from ..compile.schedule import Step, segments
from ..graph.nodes import Edge, Node
from .batch_budget import BatchBudget
from .batch_merger import BatchMerger
from .cost import chunks, costs
from .errors import out_of_memory
from .hand_over import arriving, hand_on_failed
from .in_flight import InFlightBatch
from .memory.budget import FOR_WORK, Reservation
from .memory.buffer_pool import BufferPool
from .memory.estimate import MemoryEstimate
from .memory.output_slices import OutputSlice, join, peak_without_outputs, whole_outputs
from .nodes.envs import cut, drop, gone
from .nodes.guarded import guarded
from .nodes.node_pass import Env, NodePass
from .nodes.run_nodes import start_early
from .services import Services
from .threads.channel import Channel, Closed
from .threads.clock import Clock
from .threads.latch import Latch
from .threads.workers import Pool

if TYPE_CHECKING:
    from ...ops.gpu.uploads import UploaderByGpu

_SPARE = 0.125
"""Part of the host's budget that arrays of batches may take which wait to be used again; those of readers half of it,
those of chunks twice as much by the depth of the queue. They are on the account, and are let go of where it is full."""


def _ordinary(nbytes: int) -> Any:
    return np.empty(nbytes, np.uint8)


class HostExecutor:
    """One thread takes batches through ``whole`` steps and cuts them into chunks for the workers. Where there is
    nothing to cut, workers take several batches through ``whole`` steps at once."""

    def __init__(
        self, services: Services, budget: BatchBudget, merger: BatchMerger, page_locked: Callable[[int], Any]
    ) -> None:
        """``page_locked`` gives host memory for bytes that are bound for a device."""
        self._services = services
        self._plan, self._options = services.plan, services.options
        self._budget = budget
        self._merger = merger
        self._page_locked = page_locked
        options = services.options
        self.pool = Pool(options.num_threads, "worker")
        spare = int(budget.host.limit * _SPARE)
        has_room = budget.host.has_room
        self._buffers = BufferPool(options.cpu_queue, spare, has_room)
        self._read_buffers = BufferPool(options.cpu_queue, spare // 2, has_room)
        """Of readers that make arrays themselves: videos, sounds, regions."""
        self._chunk_buffers = BufferPool(4 * options.num_threads, 2 * spare // options.cpu_queue, has_room)
        """Of what chunks hold between their operators: decoded pictures, most of all."""
        budget.host.add_cache(self._buffers, self._read_buffers, self._chunk_buffers)
        self.stopped = False
        """Chunks that have not begun end at once. Set by the thread that stops the run."""
        self.charge_batches = True
        """Batches are held on the account; not while the caller's thread computes them, one at a time."""
        self.lender: RegisteredFiles | None = None
        """Lends views of containers that GPUs read by themselves. Set before the threads start."""
        self.uploads: UploaderByGpu | None = None
        """Takes files to GPUs while they are read. Set before the threads start."""
        self._sent = {services.name_of(s): sent(services.plan, s) for s in services.plan.steps}
        """Outputs of the readers of each step that may go to a device while they are read."""
        self._clocks = threading.local()
        self._before: dict[str, Latch[Any]] = {}
        """The last chunks of every step."""
        self._groups = {services.name_of(step): list(groups(step)) for step in services.plan.steps}
        self.reads_at_once = self._reading()
        """Batches that may be read at the same time."""

    def close(self, *, wait: bool) -> None:
        """End the threads, and keep no memory."""
        self.pool.shutdown(wait=wait)
        self._buffers.close()
        self._read_buffers.close()

    def drop_references(self) -> None:
        """The run is over: hold nothing that refers to the engine. In a ring everything of a job would stay until the
        collector comes, and that of several jobs pile up."""
        self.lender = self.uploads = None
        self._page_locked = _ordinary
        self._chunk_buffers.close()

    def _reading(self) -> int:
        """As many as the next queue has room for, the one that waits for room and the one that was just taken. 1
        where a kernel keeps state between batches, or where the thread that reads also cuts batches into chunks: it is
        ahead of the workers anyhow."""
        for step in segments(self._plan.steps)[0]:
            if step.kind != "whole" or any(n.op.per_batch and not isinstance(n.op, Reader) for n in step.nodes):
                return 1
        return min(
            self._options.num_threads,
            self._options.cpu_queue * len(self._plan.target.indices) + 2,
        )

    def run(self, steps: Sequence[Step], inbox: Channel[InFlightBatch] | None, out: Channel[InFlightBatch]) -> None:
        """Take batches through ``steps``, from ``inbox`` or as the schedule has them: the body of a thread."""
        named = [(self._services.name_of(s), s, self._page_locked if self._feeds_device(s) else None) for s in steps]
        if inbox is None and steps and self.reads_at_once > 1:
            self._read_ahead(named, out)
            return
        behind = self._plan.steps.index(steps[-1]) + 1 if steps else 0
        follows = self._plan.steps[behind : behind + 1]
        for it in self._merger.batches() if inbox is None else arriving(inbox, out):
            try:
                parts = iter([it])
                for name, step, staging in named:
                    if step.kind == "whole":
                        self.whole(it, name, step, staging, self.pool)
                    else:
                        parts = self._chunked(name, step, it)
                for part in parts:
                    if follows and part.chunks is None:
                        self._begin(part, follows[0])
                    out.put(part)
            except Closed:
                raise
            except BaseException as e:  # raised where the batch is taken
                hand_on_failed(it, out, e)

    def _begin(self, it: InFlightBatch, step: Step) -> None:
        """Start what threads do of a device step's work, batches before it is its turn."""
        if step.kind != "device" or self._plan.target.device != "gpu":
            return
        run = self._services.node_pass(it, allocate_staging=self._page_locked)
        try:
            it.started = start_early(step.nodes, it.env, run)
            run.reports.finish()
        except Exception as e:
            if not isinstance(e, MemoryError) and not out_of_memory(e):  # of page-locked memory: later, then
                raise
        if it.started:
            self._budget.holds(it)

    # -- whole batches ------------------------------------------------------------------------------------------

    def _read_ahead(self, named: Sequence[tuple[str, Step, Any]], out: Channel[InFlightBatch]) -> None:
        """Have several batches read at once, each by a few threads, and hand them on in order before they are there.
        One batch alone, read by all threads, would make them wait for each other, and for the GIL, at its end."""
        threads, follows = self.pool.count, self._plan.steps[len(named) : len(named) + 1]
        everyone, few = self.pool.slice_of(threads - 1), self.pool.slice_of(threads // self.reads_at_once - 1)
        for it in self._merger.batches():
            first = it.number == self._merger.number
            reading = it.chunks = Latch(1)
            self.pool.do(self._read, named, follows, it, reading, everyone if first else few)
            out.put(it)
            if first:
                reading.wait_done()  # its size says how many others there is room for

    def _read(
        self, named: Sequence[tuple[str, Step, Any]], follows: Sequence[Step], it: InFlightBatch, reading: Latch[Any],
        helpers: Helpers | None,
    ) -> None:  # fmt: skip
        try:
            if self.stopped:
                raise Closed
            for name, step, staging in named:
                self.whole(it, name, step, staging, helpers)
            for step in follows:  # here, many batches at once, and while the bytes are in the cache
                it.next_estimate = self._budget.estimate(it, step)
                self._begin(it, step)
            reading.done()
        except BaseException as e:  # raised where the batch is taken
            reading.fail(kept(e))

    def whole(self, it: InFlightBatch, name: str, step: Step, staging: Any, helpers: Helpers | None) -> None:
        """Take the batch through a ``whole`` step, in this thread with the ``helpers``."""
        began, compiling = time.perf_counter(), times.in_this_thread()
        lender = self.lender.of(it.number) if self.lender is not None and staging is not None else None
        track = name if it.chunks is None else threading.current_thread().name
        again = self._buffers.empty if staging is None else None  # what is not bound for a device
        of = None if self.uploads is None else self.uploads.of
        uploads = {} if of is None else {e: of(it.number, container=c) for e, c in self._sent[name].items()}
        run = self._services.node_pass(it, allocate_staging=staging, lender=lender, uploads=uploads, pool=helpers,
                        allocate=again, observe=self._services.observer(track, it.number))  # fmt: skip
        env = {e: it.env[e] for e in step.needs}
        for nodes, gives, per_batch, reads in self._groups[name]:
            run.reservation = self._reservation() if reads else None
            on_error = self._services.raised if not per_batch else self._not_read if reads else _end_the_run
            env |= guarded(nodes, env, run, gives, on_error)
            if run.dropped:
                drop(env, gone(run.dropped))
        run.reports.finish()
        it.env |= {e: env[e] for e in step.gives}
        it.dropped += run.dropped
        self._budget.forget(it, step)
        if self.charge_batches:
            count = max(1, len(it.everyone))
            credits = self._merger.credits
            credits.sample_bytes = max(credits.sample_bytes, self._budget.holds(it) / count)
            credits.file_bytes = self._budget.held(it)[1] / count
            credits.copied_bytes = self._budget.copied(it) / count
        compiling = times.in_this_thread() - compiling
        self._services.stats.busy(name, time.perf_counter() - began - compiling)

    def _reservation(self) -> Reservation:
        return Reservation(self._budget.host, self._budget.host.limit, fresh=self._read_buffers.empty)

    def _not_read(self, problem: Exception, samples: int) -> Exception | None:
        # Cutting a reader's batch in two would hide nothing else: what it raises ends the run.
        return self._services.raised(problem, samples) if isinstance(problem, MemoryError) else problem

    def _feeds_device(self, step: Step) -> bool:
        """Fetched bytes of this step are uploaded: they belong in page-locked memory."""
        if self._plan.target.device != "gpu":
            return False
        made = {n.id for n in step.nodes}
        return any(e.node in made for s in self._plan.steps if s.kind == "device" for e in s.needs)

    # -- chunks -------------------------------------------------------------------------------------------------

    def _chunked(self, name: str, step: Step, it: InFlightBatch) -> Iterator[InFlightBatch]:
        """The batch, or its parts, with their chunks under way."""
        for part, ahead in self._budget.parts(it, step):
            held = self._budget.held(part)[0] + ahead.kept_total + ahead.copied
            self._budget.host.reserve(part.order, held)
            cost = costs(step, ahead, part.env)
            self._merger.credits.cut(cost, held)
            self._submit_chunks(name, step, part, ahead, cost)
            yield part

    def with_threads(self, name: str, step: Step, it: InFlightBatch) -> None:
        """Take the batch, as a whole, through a ``chunk`` step, and wait for it; it is on the account meanwhile."""
        try:
            for part in self._chunked(name, step, it):
                assert part is it
                assert it.chunks is not None
                it.chunks.wait()
                it.chunks = None
        finally:
            self._budget.release(it.order)

    def alone(self, name: str, step: Step, it: InFlightBatch, env: Env) -> None:
        """Take the batch, as one chunk, through a ``chunk`` step in this thread."""
        with self._budget.host.task(0):
            done = self.computed(step, it, env, it.samples, 0)
        self.join_chunks(name, step, it, [done])

    def _submit_chunks(self, name: str, step: Step, it: InFlightBatch, ahead: MemoryEstimate, cost: I64) -> None:
        before = self._before.get(name)
        if before is not None and before.ended:
            self._services.stats.idle(name, time.perf_counter() - before.ended)
        env = {e: it.env[e] for e in step.needs}
        slots = it.samples.slot
        room = max(1, int(self._budget.host.limit * FOR_WORK) // self._options.num_threads)
        # Other batches are in the pool beside this one: as many as may wait, and the one that the consumer waits for.
        others = 0 if self._options.on_demand or not self.charge_batches else self._options.cpu_queue
        whole = whole_outputs(ahead.outputs, self._buffers.empty)
        peak = peak_without_outputs(ahead.peak, whole)
        cuts = chunks(cost, peak, room, -(-self._options.num_threads // (1 + others)))
        it.chunks = self._before[name] = Latch(len(cuts))
        for k, (a, b) in enumerate(cuts):
            part, here, output = it.samples, env, OutputSlice(whole, a, b)
            if len(cuts) > 1:
                part = part.take(slice(a, b))
                here = cut(env, int(slots[a]), int(slots[b - 1]) + 1)
            self.pool.do(self._chunk, name, step, it, it.chunks, k, here, part, int(peak[a:b].sum()), output)

    def _chunk(
        self, name: str, step: Step, it: InFlightBatch, chunks: Latch[tuple[Env, NodePass]], k: int, env: Env,
        samples: Samples, nbytes: int, output: OutputSlice,
    ) -> None:  # fmt: skip
        try:
            if self.stopped:
                raise Closed
            clock = self._clock()
            with self._budget.host.task(nbytes):
                began = clock.begin()
                done = self.computed(step, it, env, samples, nbytes, output)
            last = chunks.add(k, done)
            if last:
                self.join_chunks(name, step, it, chunks.take())
            self._services.stats.work(name, *clock.end(began))
            if last:
                chunks.done()
        except BaseException as e:  # raised where the batch is taken
            chunks.fail(kept(e))

    def _clock(self) -> Clock:
        """The clock of this worker thread."""
        clock: Clock | None = getattr(self._clocks, "clock", None)
        if clock is None:
            clock = self._clocks.clock = Clock()
        return clock

    def computed(
        self, step: Step, it: InFlightBatch, env: Env, samples: Samples, nbytes: int, output: OutputSlice | None = None
    ) -> tuple[Env, NodePass]:
        """The results of a ``chunk`` step for some samples, and what became of them."""
        reservation = Reservation(self._budget.host, nbytes, output, self._chunk_buffers.empty)
        run = self._services.node_pass(it, samples=samples, reservation=reservation,
                        exclusive=self._budget.host.exclusive,
                        observe=self._services.observer(threading.current_thread().name, it.number))  # fmt: skip
        try:
            return guarded(step.nodes, env, run, step.gives, self._services.raised), run
        finally:
            reservation.close()

    def join_chunks(self, name: str, step: Step, it: InFlightBatch, parts: Sequence[tuple[Env, NodePass]]) -> None:
        """The chunks' results as the batch's."""
        began = time.perf_counter()
        if len(parts) == 1:
            it.env |= parts[0][0]
        else:
            it.env |= {e: join([env[e] for env, _ in parts], self._buffers.empty) for e in step.gives}
        for _, run in parts:
            run.reports.finish()
            it.dropped += run.dropped
        self._budget.forget(it, step)
        if self.charge_batches:
            self._budget.holds(it)
        self._services.stats.busy(name, time.perf_counter() - began)


def sent(plan: Plan, step: Step) -> dict[Edge, bool]:
    """Outputs of the readers of ``step`` that may go to a device while they are read, and whether they come out of
    containers: files of which the host needs the beginnings alone, and all that a device wants of containers, which the
    host sees wherever it goes."""
    if step.kind != "whole" or plan.target.device != "gpu":
        return {}
    readers = {n.id: n.op.maps_files for n in step.nodes if isinstance(n.op, Reader)}
    wanted = {e for s in plan.steps if s.kind == "device" for e in s.needs}
    found = {e: True for e in wanted if readers.get(e.node)}
    if only_heads(plan, step):
        found |= {Edge(k): False for k, maps in readers.items() if not maps}
    return found


def only_heads(plan: Plan, step: Step) -> bool:
    """Files that ``step`` reads go to operators of a device alone that look at their beginnings on the host, and nobody
    else looks at them."""
    read = {Edge(n.id) for n in step.nodes if isinstance(n.op, Reader)}
    if step.kind != "whole" or not read or read & {*plan.graph.outputs.values()} or plan.target.device != "gpu":
        return False
    nodes = [n for s in plan.steps for n in s.nodes if read & {*n.inputs, *n.args.values()}]
    return bool(nodes) and all(
        n.stage == "mixed" and n.op.needs_header_only and not read & {*n.inputs[1:], *n.args.values()} for n in nodes
    )


def groups(step: Step) -> Iterator[tuple[tuple[Node, ...], list[Edge], bool, bool]]:
    """The nodes of a whole step that run together, what they give, whether they see whole batches, and read."""
    for per_batch, group in groupby(step.nodes, lambda n: n.op.per_batch):
        nodes = tuple(group)
        gives = [Edge(n.id, k) for n in nodes for k in range(n.op.num_outputs)]
        yield nodes, gives, per_batch, all(isinstance(n.op, Reader) for n in nodes)


def _end_the_run(problem: Exception, _: int) -> Exception:
    return problem
