"""Execute: run a plan. A few threads, bounded channels between them, several batches in flight, ordered delivery.

    schedule -> [host steps] -> channel -> [device step] -> channel -> [host steps] -> ... -> delivery

One thread takes batches through ``whole`` steps and the ``chunk`` step after them, which it only cuts into chunks for
the worker pool: it hands the batch on at once, and who takes it waits for the chunks. ``device`` steps launch a batch
on a free lane and hand it on at once, too; another thread settles batches in order: waits for the device, looks at the
checks that kernels left, runs failed samples again alone, and only then lets the batch go.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np

from ..ops.batch import Batch, Origin, Samples, concat
from ..ops.device import Lane, gpu_count, pinned_empty
from ..ops.errors import DeviceError, JobError
from ..ops.isolation import TIMEOUT, Mode, isolated
from ..readers.lost_pages import lost_files
from .channel import Channel, Closed
from .chunks import Chunks
from .compile import Plan
from .graph import Edge, Node
from .place import Target
from .pool import Pool
from .run_nodes import Dropped, Env, Run, cut, drop, finish_late, guarded, merge
from .schedule import Step
from .stats import Stats

_CHUNK = 8
"""Samples a chunk: few enough for a decoded chunk to stay in the L2 cache, enough to hide the cost of a task."""


_SWITCH_INTERVAL = 2e-4
"""Seconds after which a thread that wants the GIL gets it, while a GPU is fed."""


@dataclass(frozen=True, slots=True)
class Request:
    """Positions [start, start + n) of the order, as one batch."""

    start: int
    n: int


@dataclass(slots=True)
class Iteration:
    """One batch on its way through the steps."""

    number: int
    request: Request
    samples: Samples
    """Those still in it."""
    reader_samples: Mapping[int, Samples]
    everyone: Samples
    """Those it began with."""
    env: Env = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    replaced: bool = False
    """Copies of other samples stand in the places of the dropped ones."""
    chunks: Chunks[tuple[Env, Run]] | None = None
    """Work on it that is under way in the pool."""
    lane: Any = None
    launched: Future[Run] | None = None
    """The launch on a device that is under way."""

    def origin_of(self, dropped: Dropped) -> Origin:
        """Where a dropped sample came from."""
        return self.everyone.origin(int(np.searchsorted(self.everyone.slot, dropped.slot)))

    def position_of(self, dropped: Dropped) -> int:
        """Position of a dropped sample."""
        return int(self.everyone.position[np.searchsorted(self.everyone.slot, dropped.slot)])

    def outputs(self, plan: Plan) -> dict[str, Batch]:
        """The batches that leave the graph, by name."""
        return {name: self.env[edge] for name, edge in plan.graph.outputs.items()}


class Feed(Protocol):
    """Where samples come from: the open data sets of the plan's readers, and their orders."""

    states: Mapping[int, Any]
    """What per_batch nodes keep between iterations, by node id (open data sets)."""

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Who is in the batch: the iteration's samples, and each reader's own."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a plan; nothing here changes results."""

    num_threads: int = 2
    cpu_queue: int = 2
    gpu_queue: int = 2
    lanes: int = 3
    """Batches in flight on each GPU."""
    to_host: bool = True
    """Bring the outputs of GPU nodes back to the host (writers need them there)."""
    policy: str = "skip"
    """What a sample that fails costs: ``skip`` itself, ``fail`` the run, ``replace`` takes a neighbour's place."""
    rng: str = "philox"
    isolation: Mode = "auto"
    """Which decoders run in processes of their own."""
    decode_timeout: float = TIMEOUT
    """Seconds of CPU time that one of those may take for an image."""
    inline: bool = False
    """Compute batches that take next to nothing in the thread that asks: it takes less than handing them to another."""


_QUICK, _PROMPT = 5e-4, 2e-3
"""Seconds of CPU time, and seconds in all, that a batch may take in the thread that asks. Every hand-over to another
thread costs 10 to 50 us, and with Python's one lock, what takes so little hardly runs beside the thread that waits."""

_PATIENCE = 4
"""Batches that may take longer (first ones compile kernels, files are not in the page cache) before threads start."""


def is_light(plan: Plan) -> bool:
    """Nothing in the plan reads, decodes or runs code of the user's: all of it is arithmetic on a few numbers."""
    light = all(s.kind == "whole" for s in plan.steps)
    return light and all(not n.op.per_batch or n.op.name == "external_source" for n in plan.graph.nodes)


class Engine:
    """Runs a plan over the requests of ``schedule``; iterate over it for the finished batches, in order.

    With several GPUs, batches are dealt to them in turns. Each has lanes and a launching thread of its own; what a
    batch becomes does not depend on where, and batches are settled in their order.
    """

    def __init__(
        self, plan: Plan, feed: Feed, schedule: Iterator[Request], options: Options, stats: Stats | None = None
    ) -> None:
        self.plan = plan
        self.feed = feed
        self.options = options
        self.stats = stats or Stats()
        self._schedule = schedule
        self._error: BaseException | None = None
        self._pool = Pool(options.num_threads, "worker")
        self.isolation = isolated(options.isolation, options.decode_timeout, self._fell_back)
        self._free_lanes: list[Channel[Any]] = []
        self._devices = len(plan.target.indices)
        self.lanes: list[Any] = []
        self.channels: list[Channel[Any]] = []
        self.boxes: dict[str, tuple[Channel[Any] | None, Channel[Any]]] = {}
        """The channels before and after every step; None where one thread goes from the step before to this one."""
        self.delivery: Channel[Iteration]
        """Where finished batches wait to be taken."""
        self._stopped = False
        self._before: dict[str, Chunks[Any]] = {}
        """The last chunks of every step."""
        self._names = {id(s): f"{i:02d}:{s.name}" for i, s in enumerate(plan.steps)}
        wanted = set(plan.graph.outputs.values())
        self._wanted: dict[str, set[Edge]] = {}
        """What is needed after every step."""
        self._named = [(self.name_of(s), s) for s in plan.steps]
        for step in reversed(plan.steps):
            self._wanted[self.name_of(step)] = wanted
            wanted = wanted | set(step.needs)
        self._threads: list[threading.Thread] = []
        self._started = False
        self._light = is_light(plan)
        self.inline = options.inline and all(s.kind != "device" for s in plan.steps)
        """Batches are computed in the caller's thread, so far."""
        self._slow = 0
        """Batches that took too long for that, less those that did not."""
        self._number = 0
        """Of the first batch that the threads make."""

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; iterating does it by itself."""
        if self._started or self.inline:
            return
        self._started = True
        lanes = {i: self._open_lanes() for i, s in enumerate(self.plan.steps) if s.kind == "device"}
        if lanes:
            # The launching thread lets go of the GIL hundreds of times a batch; with Python's 5 ms, readers' threads
            # keep it waiting longer than it works (one H200, batch 1024: 135k images/s with 5 ms, 173k with 0.2 ms).
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        here: Channel[Iteration] | None = None
        for steps in segments(self.plan.steps):
            name = self.name_of(steps[-1]) if steps else "feed"
            if steps and steps[0].kind == "device":
                assert here is not None
                there = self._channel(name, self._devices * self.options.gpu_queue)
                settling: Channel[Iteration] = self._channel(f"{name} in flight", self._devices * self.options.lanes)
                free = lanes[self.plan.steps.index(steps[0])]
                self._thread(name, self._launch, name, steps[0], free, here, settling)
                self._thread(f"{name} settle", self._settle, name, steps[0], free, settling, there)
            else:
                # twice as many where some are finished and some in the pool
                depth = self.options.cpu_queue * (2 if steps and steps[-1].kind == "chunk" else 1)
                there = self._channel(name, self._devices * depth)
                self._thread(name, self._host, steps, here, there)
            for step in steps:
                self.boxes[self.name_of(step)] = here if step is steps[0] else None, there
            here = there
        assert here is not None
        self.delivery = here

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
                self._fail(e)
            finally:
                for a in args:
                    if isinstance(a, Channel) and a is args[-1]:
                        a.close()

        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

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
        self._free_lanes += found
        return found

    @staticmethod
    def open_lane(target: Target, index: int) -> Any:
        """A lane of device ``index``. Raises DeviceError for a GPU that is not there."""
        if target.device == "null":
            return NullLane(index)
        if index >= gpu_count():
            raise DeviceError(f"GPU {index} was asked for, this machine has {gpu_count()}; run `dali-run doctor`, or "
                              "use device: cpu")  # fmt: skip
        return Lane(index)

    @staticmethod
    def page_locked(nbytes: int) -> Any:
        """Host memory for bytes that are bound for a device."""
        return pinned_empty(nbytes)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._stop_channels()

    def _stop_channels(self) -> None:
        for free in self._free_lanes:
            free.stop()
        for channel in self.channels:
            channel.stop()

    def _fell_back(self, reason: str) -> None:
        self.stats.count(self.stats.fallbacks, reason)

    def stop(self) -> None:
        """End the run promptly: nothing new is started, threads are waited for."""
        self._stop_channels()
        if self.isolation is not None:
            self.isolation.close()
        self._stopped = True  # chunks that nobody has begun end at once, instead of never: batches wait for them
        self._pool.shutdown(wait=True)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for lane in self.lanes:
            lane.synchronize()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Iteration]:
        return self

    def __next__(self) -> Iteration:
        """The next finished batch. Raises StopIteration at the end of the schedule, or what ended the run."""
        if self.inline:
            iteration = self._run_inline()
            if iteration is not None:
                return self._finish(iteration)
        self.start()
        try:
            iteration = self._taken(self.delivery)
        except Closed:
            if self._error is not None:
                raise self._error from None
            raise StopIteration from None
        except BaseException as e:
            self._fail(e)
            raise
        return self._finish(iteration)

    def _finish(self, iteration: Iteration) -> Iteration:
        if gone := lost_files():
            self._lose(iteration, gone)
        for d in iteration.dropped:
            self.stats.count(self.stats.rejected, d.code)
        if iteration.dropped and self.options.policy == "fail":
            d = iteration.dropped[0]
            at = iteration.origin_of(d)
            raise JobError(f"{at.source or at.key}: {d.node}: {d.code}: {d.message} (on_error policy is fail)")
        if iteration.dropped and self.options.policy == "replace":
            replace_dropped(iteration, self.plan.graph.outputs.values())
        return iteration

    def _lose(self, iteration: Iteration, files: frozenset[str]) -> None:
        """Leave out the samples from ``files``: zeros may have been read in the place of their bytes."""
        names = {
            slot: self.plan.graph.nodes[node].name
            for node, samples in iteration.reader_samples.items()
            for i, slot in enumerate(samples.slot.tolist())
            if samples.origin(i).source in files
        }
        why = "the file was cut short, or could not be read, while the job ran"
        # what zeros were refused for is not the cause
        iteration.dropped = [d for d in iteration.dropped if d.slot not in names]
        iteration.dropped += [Dropped(slot, name, "read_failed", why) for slot, name in names.items()]
        drop(iteration.env, set(names))
        iteration.samples = iteration.samples.take(~np.isin(iteration.samples.slot, list(names)))

    # -- steps --------------------------------------------------------------------------------------------------

    def name_of(self, step: Step) -> str:
        """What a step is called in statistics."""
        return self._names[id(step)]

    def _scheduled(self) -> Iterator[Iteration]:
        for number, request in enumerate(self._schedule, self._number):
            samples, per_reader = self.feed.samples(request)
            yield Iteration(number, request, samples, per_reader, samples)

    def _taken(self, channel: Channel[Iteration]) -> Iteration:
        """The next batch, when its chunks are done. Raises what one of them raised."""
        it = channel.get()
        if it.chunks is not None:
            began = time.perf_counter()
            it.chunks.wait()
            it.chunks = None
            channel.waited_empty += time.perf_counter() - began
        return it

    def _arriving(self, channel: Channel[Iteration]) -> Iterator[Iteration]:
        while True:
            yield self._taken(channel)

    def _host(self, steps: Sequence[Step], inbox: Channel[Iteration] | None, out: Channel[Iteration]) -> None:
        named = [(self.name_of(s), s, self.page_locked if self._feeds_device(s) else None) for s in steps]
        for it in self._scheduled() if inbox is None else self._arriving(inbox):
            for name, step, staging in named:
                if step.kind == "whole":
                    self._whole(it, name, step, staging)
                else:
                    self._submit_chunks(name, step, it)
            out.put(it)

    def _run(self, iteration: Iteration, **extra: Any) -> Run:
        return Run(
            samples=extra.pop("samples", iteration.samples),
            seeds=self.plan.seeds,
            rng=self.options.rng,
            states=self.feed.states,
            isolation=self.isolation,
            reader_samples=iteration.reader_samples,
            emulate=self.plan.target.device == "null",
            **extra,
        )

    def _observer(self, track: str, number: int) -> Callable[[Node, int, int, int, float, float], None]:
        def observe(node: Node, samples: int, taken: int, given: int, began: float, ended: float) -> None:
            self.stats.called(node, samples, taken, given, ended - began)
            self.stats.span(node.name, track, began, ended, number)

        return observe

    def _raised(self, problem: Exception, samples: int) -> Exception | None:
        if self.options.policy == "fail" and samples <= 1:
            return JobError(f"{type(problem).__name__}: {problem}")
        return None

    def _whole(self, it: Iteration, name: str, step: Step, staging: Any) -> None:
        began = time.perf_counter()
        run = self._run(it, allocate_staging=staging, pool=self._pool, observe=self._observer(name, it.number))
        env = {e: it.env[e] for e in step.needs}
        for per_batch, group in groupby(step.nodes, lambda n: n.op.per_batch):
            nodes = tuple(group)
            gives = [Edge(n.id, k) for n in nodes for k in range(n.op.num_outputs)]
            # Cutting a reader's batch in two would hide nothing: what it raises ends the run.
            on_error = _end_the_run if per_batch else self._raised
            env |= guarded(nodes, env, run, gives, on_error)
            if run.dropped:
                drop(env, {d.slot for d in run.dropped})
        it.env |= {e: env[e] for e in step.gives}
        it.dropped += run.dropped
        self._forget(it, step)
        self.stats.busy(name, time.perf_counter() - began)

    def _run_inline(self) -> Iteration | None:
        """The next batch, computed by the caller; None where threads should do it from now on."""
        request = next(self._schedule)
        if not self._light and (request.n > _CHUNK or self._slow > _PATIENCE):
            self._schedule = chain((request,), self._schedule)
            self.inline = False
            return None
        began, worked = time.perf_counter(), time.thread_time()
        samples, per_reader = self.feed.samples(request)
        it = Iteration(self._number, request, samples, per_reader, samples)
        self._number += 1
        for name, step in self._named:
            if step.kind == "whole":
                self._whole(it, name, step, None)
            else:
                run = self._run(it, observe=self._observer("caller", it.number))
                env = {e: it.env[e] for e in step.needs}
                self._join_chunks(name, step, it, [(guarded(step.nodes, env, run, step.gives, self._raised), run)])
        slow = time.thread_time() - worked > _QUICK or time.perf_counter() - began > _PROMPT
        self._slow += 1 if slow else -(self._slow > 0)
        return it

    def _feeds_device(self, step: Step) -> bool:
        """Fetched bytes of this step are uploaded: they belong in page-locked memory."""
        if self.plan.target.device != "gpu":
            return False
        made = {n.id for n in step.nodes}
        return any(e.node in made for s in self.plan.steps if s.kind == "device" for e in s.needs)

    def _submit_chunks(self, name: str, step: Step, it: Iteration) -> None:
        before = self._before.get(name)
        if before is not None and before.ended:
            self.stats.idle(name, time.perf_counter() - before.ended)
        env = {e: it.env[e] for e in step.needs}
        slots = it.samples.slot
        lows = range(0, max(len(slots), 1), _CHUNK)
        it.chunks = self._before[name] = Chunks(len(lows))
        for k, low in enumerate(lows):
            part, here = it.samples, env
            if len(lows) > 1:
                part = part.take(slice(low, low + _CHUNK))
                here = cut(env, int(part.slot[0]), int(part.slot[-1]) + 1)
            self._pool.do(self._chunk, name, step, it, it.chunks, k, here, part)

    def _chunk(
        self, name: str, step: Step, it: Iteration, chunks: Chunks[tuple[Env, Run]], k: int, env: Env, samples: Samples
    ) -> None:
        try:
            if self._stopped:
                raise Closed
            run = self._run(it, samples=samples, observe=self._observer(threading.current_thread().name, it.number))
            if chunks.add(k, (guarded(step.nodes, env, run, step.gives, self._raised), run)):
                self._join_chunks(name, step, it, [part for part in chunks.parts if part is not None])
                chunks.done()
        except BaseException as e:  # raised where the batch is taken
            chunks.fail(e)

    def _join_chunks(self, name: str, step: Step, it: Iteration, parts: Sequence[tuple[Env, Run]]) -> None:
        began = time.perf_counter()
        if len(parts) == 1:
            it.env |= parts[0][0]
        else:
            it.env |= {e: concat([env[e] for env, _ in parts]) for e in step.gives}
        for _, run in parts:
            it.dropped += run.dropped
        self._forget(it, step)
        self.stats.busy(name, time.perf_counter() - began)

    def _forget(self, it: Iteration, step: Step) -> None:
        """Drop the samples that failed from all batches, and the batches that nobody will read again."""
        if it.dropped:
            gone = {d.slot for d in it.dropped}
            drop(it.env, gone)
            it.samples = it.samples.take(~np.isin(it.samples.slot, list(gone)))
        wanted = self._wanted[self.name_of(step)]
        for edge in [e for e in it.env if e not in wanted]:
            del it.env[edge]

    # -- the device ---------------------------------------------------------------------------------------------

    def _launch(
        self, name: str, step: Step, lanes: list[Channel[Any]], inbox: Channel[Iteration], out: Channel[Iteration]
    ) -> None:
        with ExitStack() as stack:
            launchers = [
                stack.enter_context(ThreadPoolExecutor(launcher_count(step), thread_name_prefix=f"{name} {k}"))
                for k in range(len(lanes))
            ]
            while True:
                it = self._taken(inbox)
                device = it.number % len(lanes)
                it.lane = lanes[device].get()
                it.launched = launchers[device].submit(self._launch_whole, name, step, it)
                out.put(it)

    def _launch_whole(self, name: str, step: Step, it: Iteration) -> Run:
        began = time.perf_counter()
        run = self._launch_on(it, step, it.lane, {e: it.env[e] for e in step.needs}, it.samples, 0)
        self.stats.busy(name, time.perf_counter() - began)
        return run

    def _launch_on(self, it: Iteration, step: Step, lane: Any, env: Env, samples: Samples, attempt: int) -> Run:
        timer = DeviceTimer(lane, self.stats) if self.plan.target.device == "gpu" else None
        run = self._run(it, samples=samples, device=lane, attempt=attempt, mark_device=timer,
                        observe=None if timer else self._observer("gpu (emulated)", it.number))  # fmt: skip
        with lane:
            results = guarded(step.nodes, env, run, step.gives, self._device_error)
            for edge in step.gives:
                if self._wanted_on_host(edge):
                    results[edge] = lane.to_host(results[edge])
        run.results = results
        run.timer = timer
        return run

    def _wanted_on_host(self, edge: Edge) -> bool:
        if self.options.to_host and edge in self.plan.graph.outputs.values():
            return True
        return any(edge in s.needs for s in self.plan.steps if s.kind != "device")

    def _device_error(self, problem: Exception, samples: int) -> Exception | None:
        kind = type(problem).__name__
        if kind == "OutOfMemoryError":
            import cupy

            for lane in self.lanes:
                lane.stream.synchronize()
            cupy.get_default_memory_pool().free_all_blocks()
            self.stats.count(self.stats.fallbacks, "out of GPU memory: batch halved")
            return DeviceError(f"one sample does not fit into GPU memory: {problem}") if samples <= 1 else None
        if kind == "CUDARuntimeError":  # sticky: the context is lost
            return DeviceError(f"the GPU failed: {problem}")
        return self._raised(problem, samples)

    def _settle(
        self, name: str, step: Step, lanes: list[Channel[Any]], inbox: Channel[Iteration], out: Channel[Iteration]
    ) -> None:
        while True:
            it = inbox.get()
            assert it.launched is not None
            run, lane = it.launched.result(), it.lane
            results = self._settled(it, step, lane, run, 0)
            it.launched = it.lane = None
            lanes[it.number % len(lanes)].put(lane)
            it.env |= results
            it.dropped += run.dropped
            self._forget(it, step)
            out.put(it)

    def _settled(self, it: Iteration, step: Step, lane: Any, run: Run, attempt: int) -> Env:
        """The results of a launched batch, once the device is done and every check has passed. Samples that fail a
        check run again alone, on the decoder's next lane; their results take the place of the wrong ones."""
        lane.synchronize()
        if run.timer is not None:
            run.timer.read()
        wrong = sorted({int(s) for check in run.checks for s in check()} - {d.slot for d in run.dropped})
        results: Env = run.results
        finish_late(run, results)
        if not wrong:
            return results
        self.stats.count(self.stats.fallbacks, f"device check failed: attempt {attempt + 2}", len(wrong))
        again = run.samples.take(np.isin(run.samples.slot, wrong))
        env = {e: b.take(np.flatnonzero(np.isin(b.samples.slot, wrong))) for e, b in it.env.items() if e in step.needs}
        redo = self._launch_on(it, step, lane, env, again, attempt + 1)
        redone = self._settled(it, step, lane, redo, attempt + 1)
        run.dropped += redo.dropped
        drop(results, set(wrong))
        with lane:
            joined = {e: merge([results[e], redone[e]]) for e in results}
        lane.synchronize()
        return joined


def segments(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps that one thread takes a batch through: host steps up to one whose chunks must be waited for, or a
    device step. The first segment, which also asks for batches, is of the host, even if there is nothing to do."""
    found: list[tuple[Step, ...]] = [()]
    for step in steps:
        last = found[-1]
        if step.kind == "device" or (last and last[-1].kind != "whole"):
            found.append((step,))
        else:
            found[-1] = (*last, step)
    return found


def launcher_count(step: Step) -> int:
    """Threads that launch a device step. Where a kernel's launch waits (JPEG engines), another goes on meanwhile (one
    H200: 24k images/s instead of 16k); else two would only contend for the GIL (100k instead of 115k)."""
    return 2 if any(n.op.waits for n in step.nodes) else 1


def _end_the_run(problem: Exception, _: int) -> Exception:
    return problem


class DeviceTimer:
    """Events around every kernel of one launch; read after the lane is synchronised."""

    def __init__(self, lane: Lane, stats: Stats) -> None:
        self._lane, self._stats = lane, stats
        self._marks: list[tuple[Node, int, int, int, Any, Any]] = []
        self._open: Any = None

    def __call__(self, node: Node, samples: int, taken: int, given: int, after: bool) -> None:
        event = self._lane.mark()
        if after:
            self._marks.append((node, samples, taken, given, self._open, event))
        else:
            self._open = event

    def read(self) -> None:
        """Hand the times to the statistics."""
        for node, samples, taken, given, begin, end in self._marks:
            self._stats.called(node, samples, taken, given, self._lane.seconds_between(begin, end), device=True)
        self._marks.clear()


class NullLane:
    """In the place of a GPU: host memory, CPU kernels, the same steps and threads around them."""

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def __enter__(self) -> NullLane:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def empty(self, n: int, dtype: Any) -> Any:
        return np.empty(n, dtype)

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def to_host(self, batch: Batch) -> Batch:
        return batch

    def synchronize(self) -> None:
        pass


def replace_dropped(iteration: Iteration, edges: Iterable[Edge]) -> None:
    """Put a copy of the nearest good sample in the place of every dropped one, in all outputs alike."""
    good = iteration.samples.slot
    if len(good) == 0:
        return
    slots = np.sort(np.concatenate([good, np.array([d.slot for d in iteration.dropped], good.dtype)]))
    right = np.searchsorted(good, slots).clip(0, len(good) - 1)
    left = (right - 1).clip(0)
    nearest = np.where(np.abs(good[left] - slots) <= np.abs(good[right] - slots), left, right)
    iteration.samples = iteration.everyone.take(np.searchsorted(iteration.everyone.slot, slots))
    iteration.replaced = True
    for edge in dict.fromkeys(edges):
        iteration.env[edge] = iteration.env[edge].take(nearest, iteration.samples)
