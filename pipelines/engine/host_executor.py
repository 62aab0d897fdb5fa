"""Run the host's steps: whole batches in one or several threads, and chunks of batches in the worker threads.

Used by `Engine`, and by the classes of `caller_thread` for batches that need the regular path.
"""

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
from ...ops.errors import without_frames
from ...readers.base import Reader
from ...readers.fetch.gpu_reads import RegisteredFiles
from ..compile.plan import Plan
from ..compile.schedule import Step, segments
from ..graph.nodes import Edge, Node
from .batch_budget import BatchBudget
from .batch_merger import BatchMerger
from .cost import chunks, costs
from .errors import out_of_memory
from .hand_over import arriving, put_failed
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
    from ...ops.gpu.uploads import Content, UploaderByGpu

_CACHE_SHARE = 0.125
"""Share of the host's memory budget for arrays that are cached for reuse. Readers' arrays may take half of this. Arrays
of chunks may take twice as much, divided by the depth of the queue. Cached arrays count against the budget, and are
freed if it is full."""


def _pageable(nbytes: int) -> Any:
    return np.empty(nbytes, np.uint8)


class HostExecutor:
    """Runs the steps of one engine that are computed on the host. Created and closed by `Engine`.

    One thread runs steps of kind ``whole``, which need entire batches, and cuts batches into chunks for the worker
    threads. If no step works on chunks, the workers run ``whole`` steps of several batches at once."""

    def __init__(
        self, services: Services, budget: BatchBudget, merger: BatchMerger, page_locked: Callable[[int], Any]
    ) -> None:
        """``page_locked(nbytes)`` allocates page-locked host memory for bytes that will be uploaded to a device."""
        self._services = services
        self._plan, self._options = services.plan, services.options
        self._budget = budget
        self._merger = merger
        self._page_locked = page_locked
        options = services.options
        self.pool = Pool(options.num_threads, "worker")
        cache_bytes = int(budget.host.limit * _CACHE_SHARE)
        has_room = budget.host.has_room
        blocks = options.cpu_queue + 2  # all batches may be free at once: in the queue, computed, and at the consumer
        self._buffers = BufferPool(blocks, cache_bytes, has_room)
        self._read_buffers = BufferPool(blocks, cache_bytes // 2, has_room)
        """Pool of the arrays in which some readers return their data: videos, audio, regions of images."""
        self._chunk_buffers = BufferPool(4 * options.num_threads, 2 * cache_bytes // options.cpu_queue, has_room)
        """Pool of the arrays that operators of a chunk pass to each other, mostly decoded images."""
        budget.host.add_cache(self._buffers, self._read_buffers, self._chunk_buffers)
        self.stopped = False
        """Whether chunks that still wait for a worker are to be discarded. Set by the thread that stops the run."""
        self.charge_batches = True
        """Whether batches reserve memory in the budget. False while the caller's thread computes them one at a time."""
        self.lender: RegisteredFiles | None = None
        """Provider of arrays over mapped container files that GPUs read without a copy on the host; None if there is
        none. Set before the threads start."""
        self.uploads: UploaderByGpu | None = None
        """Uploads files to GPUs while other files are still being read; None if a batch is copied to the GPU in one
        piece. Set before the threads start."""
        self._uploadable = {services.name_of(s): uploadable(services.plan, s) for s in services.plan.steps}
        """For each step, by its name: the outputs of its readers that may be uploaded while they are read, as
        `uploadable` returns them."""
        self._clocks = threading.local()
        self._last_chunks: dict[str, Latch[Any]] = {}
        """For each step, by its name: the latch (a counter of finished chunks) for the step's last batch. It opens when
        all chunks are done."""
        self._groups = {services.name_of(step): list(groups(step)) for step in services.plan.steps}
        self.concurrent_reads = self._max_concurrent_reads()
        """Maximum number of batches that are read at the same time."""

    def close(self, *, wait: bool) -> None:
        """End the worker threads, with ``wait`` after waiting for them, and free the memory that is cached."""
        self.pool.shutdown(wait=wait)
        self._buffers.close()
        self._read_buffers.close()

    def drop_references(self) -> None:
        """Drop all references to the engine, because the run is over. Otherwise a reference cycle would keep the memory
        of a job until the garbage collector runs, and that of several jobs would add up."""
        self.lender = self.uploads = None
        self._page_locked = _pageable
        self._chunk_buffers.close()

    def _max_concurrent_reads(self) -> int:
        """Return the number of batches to read at the same time: the capacity of the next queue, plus one that waits
        for room in it and one that was just taken. Return 1 if a kernel keeps state between batches, or if the reading
        thread also cuts batches into chunks: it is then ahead of the workers anyway."""
        for step in segments(self._plan.steps)[0]:
            if step.kind != "whole" or any(n.op.per_batch and not isinstance(n.op, Reader) for n in step.nodes):
                return 1
        return min(
            self._options.num_threads,
            self._options.cpu_queue * len(self._plan.target.indices) + 2,
        )

    def run(self, steps: Sequence[Step], inbox: Channel[InFlightBatch] | None, out: Channel[InFlightBatch]) -> None:
        """Take batches from ``inbox`` or, if that is None, from the requests; run ``steps`` for them, and put them into
        ``out``. The body of a thread."""
        named = [(self._services.name_of(s), s, self._page_locked if self._feeds_device(s) else None) for s in steps]
        if inbox is None and steps and self.concurrent_reads > 1:
            self._read_ahead(named, out)
            return
        next_index = self._plan.steps.index(steps[-1]) + 1 if steps else 0
        next_steps = self._plan.steps[next_index : next_index + 1]
        for it in self._merger.batches() if inbox is None else arriving(inbox, out):
            try:
                parts = iter([it])
                for name, step, staging in named:
                    if step.kind == "whole":
                        self.run_whole(it, name, step, staging, self.pool)
                    else:
                        parts = self._chunked(name, step, it)
                for part in parts:
                    if next_steps and part.chunks is None:
                        self._start_early(part, next_steps[0])
                    out.put(part)
            except Closed:
                raise
            except BaseException as e:  # raised when the batch is taken
                put_failed(it, out, e)

    def _start_early(self, it: InFlightBatch, step: Step) -> None:
        """Start the work of host threads for the next device step, before the batch is launched there."""
        if step.kind != "device" or self._plan.target.device != "gpu":
            return
        run = self._services.node_pass(it, staging=self._page_locked)
        try:
            it.started = start_early(step.nodes, it.env, run)
            run.reports.finish()
        except Exception as e:
            if not isinstance(e, MemoryError) and not out_of_memory(
                e
            ):  # without page-locked memory the work starts later
                raise
        if it.started:
            self._budget.update_reservation(it)

    # -- whole batches ------------------------------------------------------------------------------------------

    def _read_ahead(self, named: Sequence[tuple[str, Step, Any]], out: Channel[InFlightBatch]) -> None:
        """Read several batches at once, each with a few threads, and put them into ``out`` in order, even before they
        are completely read. If all threads read one batch, they would wait for each other at its end."""
        threads, next_steps = self.pool.count, self._plan.steps[len(named) : len(named) + 1]
        all_threads, some_threads = (
            self.pool.slice_of(threads - 1),
            self.pool.slice_of(threads // self.concurrent_reads - 1),
        )
        for it in self._merger.batches():
            first = it.number == self._merger.number
            reading = it.chunks = Latch(1)
            self.pool.do(self._read, named, next_steps, it, reading, all_threads if first else some_threads)
            out.put(it)
            if first:
                reading.wait_done()  # its size tells how many other batches there is room for

    def _read(
        self, named: Sequence[tuple[str, Step, Any]], next_steps: Sequence[Step], it: InFlightBatch,
        reading: Latch[Any], helpers: Helpers | None,
    ) -> None:  # fmt: skip
        try:
            if self.stopped:
                raise Closed
            for name, step, staging in named:
                self.run_whole(it, name, step, staging, helpers)
            for step in next_steps:  # several threads do this at once, with the bytes in the processor's cache
                it.next_estimate = self._budget.estimate(it, step)
                self._start_early(it, step)
            reading.done()
        except BaseException as e:  # raised when the batch is taken
            reading.fail(without_frames(e))

    def run_whole(self, it: InFlightBatch, name: str, step: Step, staging: Any, helpers: Helpers | None) -> None:
        """Run a ``whole`` step for the batch in this thread; kernels may also use the threads of ``helpers``.
        ``staging``: function that allocates memory for bytes to be uploaded; None if the bytes stay on the host."""
        began, compiling = time.perf_counter(), times.in_this_thread()
        lender = self.lender.of(it.number) if self.lender is not None and staging is not None else None
        track = name if it.chunks is None else threading.current_thread().name
        allocate = self._buffers.empty if staging is None else None  # for arrays that stay on the host
        uploads_of = None if self.uploads is None else self.uploads.of
        uploads = (
            {}
            if uploads_of is None
            else {e: uploads_of(it.number, content) for e, content in self._uploadable[name].items()}
        )
        run = self._services.node_pass(it, staging=staging, lender=lender, uploads=uploads, pool=helpers,
                        allocate=allocate, observe=self._services.observer(track, it.number))  # fmt: skip
        env = {e: it.env[e] for e in step.needs}
        for nodes, gives, per_batch, reads in self._groups[name]:
            run.reservation = self._reservation() if reads else None
            on_error = self._services.raised if not per_batch else self._read_error if reads else _fatal
            env |= guarded(nodes, env, run, gives, on_error)
            if run.dropped:
                drop(env, gone(run.dropped))
        run.reports.finish()
        it.env |= {e: env[e] for e in step.gives}
        it.dropped += run.dropped
        self._budget.drop_unneeded(it, step)
        if self.charge_batches:
            count = max(1, len(it.all_samples))
            credits = self._merger.credits
            credits.sample_bytes = max(credits.sample_bytes, self._budget.update_reservation(it) / count)
            credits.file_bytes = self._budget.held_bytes(it)[1] / count
            credits.copied_bytes = self._budget.copied_bytes(it) / count
        compiling = times.in_this_thread() - compiling
        self._services.stats.busy(name, time.perf_counter() - began - compiling)

    def _reservation(self) -> Reservation:
        return Reservation(self._budget.host, self._budget.host.limit, fresh=self._read_buffers.empty)

    def _read_error(self, problem: Exception, samples: int) -> Exception | None:
        # Halving a reader's batch would not isolate anything: other exceptions of a reader end the run.
        return self._services.raised(problem, samples) if isinstance(problem, MemoryError) else problem

    def _feeds_device(self, step: Step) -> bool:
        """Return whether bytes that this step reads, into page-locked memory, are uploaded to a device."""
        if self._plan.target.device != "gpu":
            return False
        ids = {n.id for n in step.nodes}
        return any(e.node in ids for s in self._plan.steps if s.kind == "device" for e in s.needs)

    # -- chunks -------------------------------------------------------------------------------------------------

    def _chunked(self, name: str, step: Step, it: InFlightBatch) -> Iterator[InFlightBatch]:
        """Reserve memory for the batch, queue its chunks for the workers, and yield it. If the batch is too large,
        yield parts of the batch in the same way."""
        for part, estimate in self._budget.parts(it, step):
            held = self._budget.held_bytes(part)[0] + estimate.kept_total + estimate.copied
            self._budget.host.reserve(part.order, held)
            cost = costs(step, estimate, part.env)
            self._merger.credits.record_cut(cost, held)
            self._submit_chunks(name, step, part, estimate, cost)
            yield part

    def with_threads(self, name: str, step: Step, it: InFlightBatch) -> None:
        """Run a ``chunk`` step for the batch with the worker threads, and wait until they are done. Only for that time
        does the batch reserve memory in the budget."""
        try:
            for part in self._chunked(name, step, it):
                assert part is it
                assert it.chunks is not None
                it.chunks.wait()
                it.chunks = None
        finally:
            self._budget.release(it.order)

    def compute_alone(self, name: str, step: Step, it: InFlightBatch, env: Env) -> None:
        """Run a ``chunk`` step for the batch in this thread, without cutting the batch into chunks."""
        with self._budget.host.task(0):
            result = self.compute(step, it, env, it.samples, 0)
        self.join_chunks(name, step, it, [result])

    def _submit_chunks(self, name: str, step: Step, it: InFlightBatch, estimate: MemoryEstimate, cost: I64) -> None:
        before = self._last_chunks.get(name)
        if before is not None and before.ended:
            self._services.stats.idle(name, time.perf_counter() - before.ended)
        env = {e: it.env[e] for e in step.needs}
        slots = it.samples.slot
        room = max(1, int(self._budget.host.limit * FOR_WORK) // self._options.num_threads)
        # Other batches share the pool with this one: as many as may wait, and the one that the consumer waits for.
        others = 0 if self._options.on_demand or not self.charge_batches else self._options.cpu_queue
        whole = whole_outputs(estimate.outputs, self._buffers.empty)
        peak = peak_without_outputs(estimate.peak, whole)
        cuts = chunks(cost, peak, room, -(-self._options.num_threads // (1 + others)))
        it.chunks = self._last_chunks[name] = Latch(len(cuts))
        for k, (a, b) in enumerate(cuts):
            part, inputs, output = it.samples, env, OutputSlice(whole, a, b)
            if len(cuts) > 1:
                part = part.take(slice(a, b))
                inputs = cut(env, int(slots[a]), int(slots[b - 1]) + 1)
            self.pool.do(self._chunk, name, step, it, it.chunks, k, inputs, part, int(peak[a:b].sum()), output)

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
                result = self.compute(step, it, env, samples, nbytes, output)
            is_last = chunks.add(k, result)
            if is_last:
                self.join_chunks(name, step, it, chunks.take())
            self._services.stats.work(name, *clock.end(began))
            if is_last:
                chunks.done()
        except BaseException as e:  # raised when the batch is taken
            chunks.fail(without_frames(e))

    def _clock(self) -> Clock:
        """Return the object that measures the time of this worker thread."""
        clock: Clock | None = getattr(self._clocks, "clock", None)
        if clock is None:
            clock = self._clocks.clock = Clock()
        return clock

    def compute(
        self, step: Step, it: InFlightBatch, env: Env, samples: Samples, nbytes: int, output: OutputSlice | None = None
    ) -> tuple[Env, NodePass]:
        """Run a ``chunk`` step for some samples. Return the results, and the `NodePass` that computed them. ``nbytes``:
        memory that is already reserved. ``output``: the part of the batch's output arrays for these samples."""
        reservation = Reservation(self._budget.host, nbytes, output, self._chunk_buffers.empty)
        run = self._services.node_pass(it, samples=samples, reservation=reservation,
                        exclusive=self._budget.host.exclusive,
                        observe=self._services.observer(threading.current_thread().name, it.number))  # fmt: skip
        try:
            return guarded(step.nodes, env, run, step.gives, self._services.raised), run
        finally:
            reservation.close()

    def join_chunks(self, name: str, step: Step, it: InFlightBatch, parts: Sequence[tuple[Env, NodePass]]) -> None:
        """Join the results of a batch's chunks, and add them to the batch."""
        began = time.perf_counter()
        if len(parts) == 1:
            it.env |= parts[0][0]
        else:
            it.env |= {e: join([env[e] for env, _ in parts], self._buffers.empty) for e in step.gives}
        for _, run in parts:
            run.reports.finish()
            it.dropped += run.dropped
        self._budget.drop_unneeded(it, step)
        if self.charge_batches:
            self._budget.update_reservation(it)
        self._services.stats.busy(name, time.perf_counter() - began)


def uploadable(plan: Plan, step: Step) -> dict[Edge, Content]:
    """Return the reader outputs of ``step`` that may be uploaded while they are read, with their content. These are:
    single files, if the host needs only the first bytes of each; records in containers, if a device reads them (the
    host can still read the mapped files); outputs of readers with ``device: gpu``, if only a device reads them."""
    if step.kind != "whole" or plan.target.device != "gpu":
        return {}
    readers = {n.id: n.op.maps_files for n in step.nodes if isinstance(n.op, Reader)}
    needed = {e for s in plan.steps if s.kind == "device" for e in s.needs}
    outputs: dict[Edge, Content] = {e: "records" for e in needed if readers.get(e.node)}
    if needs_headers_only(plan, step):
        outputs |= {Edge(k): "files" for k, maps in readers.items() if not maps}
    direct = (Edge(n.id) for n in step.nodes if n.reads_to_gpu)
    return outputs | {e: "arrays" for e in direct if e in needed and _is_read_by_device_only(plan, e)}


def _is_read_by_device_only(plan: Plan, edge: Edge) -> bool:
    """Return whether only kernels on a device read the batch at ``edge``, none on the host."""
    nodes = [n for n in plan.graph.nodes if edge in n.reads]
    return edge not in plan.graph.outputs.values() and all(
        n.stage == "gpu" and edge in (n.inputs[:1] if n.op.host_arguments else n.inputs) for n in nodes
    )


def needs_headers_only(plan: Plan, step: Step) -> bool:
    """Return whether the files that ``step`` reads are needed only on a device, except for their first bytes with the
    header, which operators read on the host."""
    read = {Edge(n.id) for n in step.nodes if isinstance(n.op, Reader)}
    if step.kind != "whole" or not read or read & {*plan.graph.outputs.values()} or plan.target.device != "gpu":
        return False
    nodes = [n for s in plan.steps for n in s.nodes if read & {*n.inputs, *n.args.values()}]
    return bool(nodes) and all(
        n.stage == "mixed" and n.op.needs_header_only and not read & {*n.inputs[1:], *n.args.values()} for n in nodes
    )


def groups(step: Step) -> Iterator[tuple[tuple[Node, ...], list[Edge], bool, bool]]:
    """Yield groups of nodes of a ``whole`` step that run together, each as a tuple: nodes, their outputs, whether the
    nodes must see whole batches, whether all are readers."""
    for per_batch, group in groupby(step.nodes, lambda n: n.op.per_batch):
        nodes = tuple(group)
        gives = [Edge(n.id, k) for n in nodes for k in range(n.op.num_outputs)]
        yield nodes, gives, per_batch, all(isinstance(n.op, Reader) for n in nodes)


def _fatal(problem: Exception, _: int) -> Exception:
    return problem
