"""Host steps: readers and other kernels that see whole batches, and chunks of batches for the worker threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NoReturn

from ...ops.batch import Samples
from ...ops.context import Helpers
from ...ops.gpu.lane import pinned_empty
from ...readers.base import Reader
from ...readers.fetch.direct_storage import KvikioFiles
from ...readers.fetch.gpu_reads import RegisteredFiles
from ..compile.plan import Plan
from ..compile.schedule import Step, segments
from ..graph.nodes import Edge, Node
from .admission import FOR_WORK, Admission, Options
from .channel import Channel, Closed
from .in_flight import Feed, Iteration, Request
from .latch import Chunks
from .memory.budget import Allowance
from .memory.estimate import Foresight, runs
from .memory.reuse import Recycler
from .memory.shared_outputs import Band, join, whole_outputs
from .nodes import Env, Run, bytes_of, cut, drop, guarded
from .stats import Stats
from .workers import Pool

_CHUNK = 8
"""Samples a chunk: few enough for a decoded chunk to stay in the L2 cache, enough to hide the cost of a task."""

_LAUNCH = 1024
"""Samples that are launched together where batches are smaller (one H200: 85k images/s in batches of 256, 141k of 512,
195k of 1024; with later kernels 270k of 1024, 180k of 2048)."""

_SPARE = 0.125
"""Part of the host's budget that arrays may take, besides, which wait to be used again."""


class HostSteps(Admission):
    """One thread says who is in a batch, takes it through ``whole`` steps and cuts it into chunks for the workers.
    Where there is nothing to cut, workers take several batches through ``whole`` steps at once."""

    def __init__(
        self, plan: Plan, feed: Feed, schedule: Iterator[Request], options: Options, stats: Stats | None
    ) -> None:
        super().__init__(plan, feed, options, stats)
        self._schedule = schedule
        self._pool = Pool(options.num_threads, "worker")
        self._recycler = Recycler(options.cpu_queue, largest=int(self.host.limit * _SPARE) // options.cpu_queue)
        self._stopped = False
        self._before: dict[str, Chunks[Any]] = {}
        """The last chunks of every step."""
        self._groups = {name: list(groups(step)) for name, step in self._named}
        self.reads_at_once = self._reading()
        """Batches that may be read at the same time."""
        self._number = 0
        """Of the first batch that the threads make."""
        self._sample_bytes = 0.0
        """Of a sample, in that batch that was read where they are largest."""
        self._together = (
            options.together
            and any(s.kind == "device" for s in plan.steps)
            and all(isinstance(n.op, Reader) for n in plan.graph.nodes if n.op.per_batch)
            and not (options.whole_batches and len(plan.target.indices) > 1)  # which take turns, batch by batch
        )
        """Small batches may go onto the device together."""
        self._room_for = 0
        """Samples that one launch may hold, once that is known."""
        self._draws = options.rng != "dali" and any(n.op.random for n in plan.graph.nodes)
        self._lender: RegisteredFiles | KvikioFiles | None = None
        """Lends views of containers that GPUs read by themselves."""

    @staticmethod
    def page_locked(nbytes: int) -> Any:
        """Host memory for bytes that are bound for a device."""
        return pinned_empty(nbytes)

    def _reading(self) -> int:
        """As many as the queue behind has room for, the one that waits for room and the one that was just taken. 1
        where a kernel keeps state between batches, or where the thread that reads also cuts batches into chunks: it is
        ahead of the workers anyhow."""
        for step in segments(self.plan.steps)[0]:
            if step.kind != "whole" or any(n.op.per_batch and not isinstance(n.op, Reader) for n in step.nodes):
                return 1
        return min(self.options.num_threads, self.options.cpu_queue * len(self.plan.target.indices) + 2)

    def _scheduled(self) -> Iterator[Iteration]:
        for number, asked in enumerate(self._requests(), self._number):
            request = Request(asked[0].start, sum(r.n for r in asked))
            self.host.hold((number,), int(self._sample_bytes * request.n))
            samples, per_reader = self.feed.samples(request)
            if self._draws:
                _ = samples.keys  # worked out here, where the caches are full of such things, not of images
            yield Iteration((number,), request, samples, per_reader, samples, asked=asked)

    def _requests(self) -> Iterator[tuple[Request, ...]]:
        """The schedule, small batches together: to launch one takes the host as long as to launch a large one. What is
        launched at a time is a small part of what was before, so that a short run keeps all threads and GPUs busy, and
        a power of two of batches, so that buffers come in few sizes: to make one that is page-locked takes long."""
        schedule, before = iter(self._schedule), 0
        for request in schedule:
            most = min(_LAUNCH, self._room_for, before // (4 * len(self.plan.target.indices)))
            count = most // max(1, request.n) if self._together else 1
            asked = request, *islice(schedule, (1 << max(1, count).bit_length() - 1) - 1)
            before += sum(r.n for r in asked)
            yield asked

    def _taken(self, channel: Channel[Iteration]) -> Iteration:
        """The next batch, when its chunks are done, or one of them has failed. Raises Closed."""
        it = channel.get()
        if it.chunks is not None:
            began = time.perf_counter()
            try:
                it.chunks.wait()
            except Closed:
                raise
            except BaseException as e:
                it.problem = e
            it.chunks = None
            channel.waited_empty += time.perf_counter() - began
        return it

    def _arriving(self, inbox: Channel[Iteration], out: Channel[Iteration]) -> Iterator[Iteration]:
        """Batches as they come. One that has failed is handed on, behind those before it, and is the last."""
        while True:
            it = self._taken(inbox)
            if it.problem is not None:
                out.put(it)
                raise Closed
            yield it

    @staticmethod
    def _end_with(it: Iteration, out: Channel[Iteration], problem: BaseException) -> NoReturn:
        """The run ends with this batch, which is handed on behind those before it, and with what was raised. Raises
        Closed."""
        if isinstance(problem, Closed):
            raise problem
        it.problem, it.chunks = problem, None  # not all of them are in the pool
        out.put(it)
        raise Closed

    def _host(self, steps: Sequence[Step], inbox: Channel[Iteration] | None, out: Channel[Iteration]) -> None:
        named = [(self.name_of(s), s, self.page_locked if self._feeds_device(s) else None) for s in steps]
        if inbox is None and steps and self.reads_at_once > 1:
            self._read_ahead(named, out)
            return
        for it in self._scheduled() if inbox is None else self._arriving(inbox, out):
            try:
                parts = iter([it])
                for name, step, staging in named:
                    if step.kind == "whole":
                        self._whole(it, name, step, staging, self._pool)
                    else:
                        parts = self._chunked(name, step, it)
                for part in parts:
                    out.put(part)
            except BaseException as e:  # raised where the batch is taken
                self._end_with(it, out, e)

    # -- whole batches ------------------------------------------------------------------------------------------

    def _read_ahead(self, named: Sequence[tuple[str, Step, Any]], out: Channel[Iteration]) -> None:
        """Have several batches read at once, each by a few threads, and hand them on in order before they are there.
        One batch alone, read by all threads, would make them wait for each other, and for the GIL, at its end."""
        threads, follows = self._pool.count, self.plan.steps[len(named) : len(named) + 1]
        everyone, few = self._pool.some(threads - 1), self._pool.some(threads // self.reads_at_once - 1)
        for it in self._scheduled():
            first = it.number == self._number
            reading = it.chunks = Chunks(1)
            self._pool.do(self._read, named, follows, it, reading, everyone if first else few)
            out.put(it)
            if first:
                reading.settle()  # its size says how many others there is room for

    def _read(
        self, named: Sequence[tuple[str, Step, Any]], follows: Sequence[Step], it: Iteration, reading: Chunks[Any],
        helpers: Helpers | None,
    ) -> None:  # fmt: skip
        try:
            if self._stopped:
                raise Closed
            for name, step, staging in named:
                self._whole(it, name, step, staging, helpers)
            for step in follows:  # here, many batches at once, and while the bytes are in the cache
                it.ahead = self._foresee(it, step)
            reading.done()
        except BaseException as e:  # raised where the batch is taken
            reading.fail(e)

    def _whole(self, it: Iteration, name: str, step: Step, staging: Any, helpers: Helpers | None) -> None:
        began = time.perf_counter()
        lender = self._lender.of(it.number) if self._lender is not None and staging is not None else None
        track = name if it.chunks is None else threading.current_thread().name
        run = self._run(it, allocate_staging=staging, lender=lender, pool=helpers,
                        observe=self._observer(track, it.number))  # fmt: skip
        env = {e: it.env[e] for e in step.needs}
        for nodes, gives, per_batch, reads in self._groups[name]:
            run.allowance = Allowance(self.host, self.host.limit) if reads else None
            on_error = self._raised if not per_batch else self._not_read if reads else _end_the_run
            env |= guarded(nodes, env, run, gives, on_error)
            if run.dropped:
                drop(env, {d.slot for d in run.dropped})
        it.env |= {e: env[e] for e in step.gives}
        it.dropped += run.dropped
        self._forget(it, step)
        if not self.inline:
            self._sample_bytes = max(self._sample_bytes, self._holds(it) / max(1, len(it.everyone)))
        self.stats.busy(name, time.perf_counter() - began)

    def _not_read(self, problem: Exception, samples: int) -> Exception | None:
        # Cutting a reader's batch in two would hide nothing else: what it raises ends the run.
        return self._raised(problem, samples) if isinstance(problem, MemoryError) else problem

    def _feeds_device(self, step: Step) -> bool:
        """Fetched bytes of this step are uploaded: they belong in page-locked memory."""
        if self.plan.target.device != "gpu":
            return False
        made = {n.id for n in step.nodes}
        return any(e.node in made for s in self.plan.steps if s.kind == "device" for e in s.needs)

    # -- chunks -------------------------------------------------------------------------------------------------

    def _chunked(self, name: str, step: Step, it: Iteration) -> Iterator[Iteration]:
        """The batch, or its parts, with their chunks under way."""
        for part, ahead in self._parts(it, step):
            held = bytes_of(b for b in part.env.values() if b.on_host)
            self.host.hold(part.order, held + 2 * ahead.held)  # twice: chunks are put together
            self._submit_chunks(name, step, part, ahead)
            yield part

    def _submit_chunks(self, name: str, step: Step, it: Iteration, ahead: Foresight) -> None:
        before = self._before.get(name)
        if before is not None and before.ended:
            self.stats.idle(name, time.perf_counter() - before.ended)
        env = {e: it.env[e] for e in step.needs}
        slots = it.samples.slot
        room = max(1, int(self.host.limit * FOR_WORK) // self.options.num_threads)
        cuts = list(runs(ahead.peak, room, _CHUNK)) or [(0, 0)]
        it.chunks = self._before[name] = Chunks(len(cuts))
        whole = whole_outputs(step, len(it.samples), self._recycler.empty) if len(cuts) > 1 else []
        for k, (a, b) in enumerate(cuts):
            part, here, band = it.samples, env, Band(whole, a, b)
            if len(cuts) > 1:
                part = part.take(slice(a, b))
                here = cut(env, int(slots[a]), int(slots[b - 1]) + 1)
            self._pool.do(self._chunk, name, step, it, it.chunks, k, here, part, int(ahead.peak[a:b].sum()), band)

    def _chunk(
        self, name: str, step: Step, it: Iteration, chunks: Chunks[tuple[Env, Run]], k: int, env: Env,
        samples: Samples, nbytes: int, band: Band,
    ) -> None:  # fmt: skip
        try:
            if self._stopped:
                raise Closed
            with self.host.work(nbytes):
                done = self._computed(step, it, env, samples, nbytes, band)
            if chunks.add(k, done):
                self._join_chunks(name, step, it, [part for part in chunks.parts if part is not None])
                chunks.done()
        except BaseException as e:  # raised where the batch is taken
            chunks.fail(e)

    def _computed(
        self, step: Step, it: Iteration, env: Env, samples: Samples, nbytes: int, band: Band | None = None
    ) -> tuple[Env, Run]:
        allowance = Allowance(self.host, nbytes, band)
        run = self._run(it, samples=samples, allowance=allowance, alone=self.host.alone,
                        observe=self._observer(threading.current_thread().name, it.number))  # fmt: skip
        try:
            return guarded(step.nodes, env, run, step.gives, self._raised), run
        finally:
            allowance.close()

    def _join_chunks(self, name: str, step: Step, it: Iteration, parts: Sequence[tuple[Env, Run]]) -> None:
        began = time.perf_counter()
        if len(parts) == 1:
            it.env |= parts[0][0]
        else:
            it.env |= {e: join([env[e] for env, _ in parts], self._recycler.empty) for e in step.gives}
        for _, run in parts:
            it.dropped += run.dropped
        self._forget(it, step)
        if not self.inline:
            self._holds(it)
        self.stats.busy(name, time.perf_counter() - began)


def groups(step: Step) -> Iterator[tuple[tuple[Node, ...], list[Edge], bool, bool]]:
    """The nodes of a whole step that run together, what they give, and whether they see whole batches, and read."""
    for per_batch, group in groupby(step.nodes, lambda n: n.op.per_batch):
        nodes = tuple(group)
        gives = [Edge(n.id, k) for n in nodes for k in range(n.op.num_outputs)]
        yield nodes, gives, per_batch, all(isinstance(n.op, Reader) for n in nodes)


def _end_the_run(problem: Exception, _: int) -> Exception:
    return problem
