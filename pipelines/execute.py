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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np

from ..ops.batch import Batch, Origin, Samples
from ..ops.device import Lane, free_memory, gpu_count, limit_pool, pinned_empty
from ..ops.errors import DeviceError, JobError
from ..ops.isolation import TIMEOUT, Mode, isolated
from ..readers.base import Reader
from ..readers.lost_pages import lost_files
from .bands import Band, join, whole_outputs
from .channel import Channel, Closed
from .chunks import Chunks
from .compile import Plan
from .foresight import Foresight, foresee, runs
from .graph import Edge, Node
from .memory import Allowance, Ledger, Memory
from .on_device import OnDevice
from .place import Target
from .pool import Pool
from .recycle import Recycler
from .run_nodes import MORE_MEMORY, Dropped, Env, Run, bytes_of, cut, drop, finish_late, guarded
from .schedule import Step
from .stats import Stats
from .units import size

_CHUNK = 8
"""Samples a chunk: few enough for a decoded chunk to stay in the L2 cache, enough to hide the cost of a task."""

_FOR_WORK = 0.25
"""Part of the host's budget that is kept free for chunks while workers are busy with them."""

_SPARE = 0.125
"""Part of the host's budget that arrays may take, besides, which wait to be used again."""

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

    order: tuple[int, ...]
    """Number of the batch, and of its part where it was cut; memory accounts go by it."""
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
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Places [a, b) of the samples that go onto the device at a time."""

    @property
    def number(self) -> int:
        """Of the batch."""
        return self.order[0]

    def part(self, k: int, low: int, high: int) -> Iteration:
        """Part ``k``: the slots [low, high), as an iteration of its own."""
        inside = slice(*np.searchsorted(self.everyone.slot, (low, high)).tolist())
        everyone = self.everyone.take(inside)
        samples = self.samples.take((self.samples.slot >= low) & (self.samples.slot < high))
        readers = {i: s.take((s.slot >= low) & (s.slot < high)) for i, s in self.reader_samples.items()}
        dropped = [d for d in self.dropped if low <= d.slot < high]
        request = Request(self.request.start + low - int(self.everyone.slot[0]), high - low)
        return Iteration((*self.order, k), request, samples, readers, everyone, cut(self.env, low, high), dropped)

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
    memory: Memory = field(default_factory=Memory)
    """What the run may hold."""
    whole_batches: bool = True
    """Batches are handed out as they were asked for; else one that is too large for the memory comes in parts."""
    inline: bool = False
    """Compute batches that take next to nothing in the thread that asks: it takes less than handing them to another."""


_QUICK, _PROMPT = 1e-3, 4e-3
"""Seconds of CPU time, and seconds in all, that a batch may take in the thread that asks. Every hand-over to another
thread costs 10 to 50 us, foreseeing memory more, and with Python's one lock, what takes so little hardly runs beside
the thread that waits."""

_PATIENCE = 16
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
        self.host = Ledger(options.memory.host_bytes(), for_work=_FOR_WORK)
        """The account of host memory."""
        self._recycler = Recycler(options.cpu_queue, largest=int(self.host.limit * _SPARE) // options.cpu_queue)
        self.isolation = isolated(options.isolation, options.decode_timeout, self._fell_back)
        self._free_lanes: list[Channel[Any]] = []
        self._devices = len(plan.target.indices)
        self._limited: list[int] = []
        """Devices that are held to a budget."""
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
        self._divisible: list[Step] = []
        """Steps before which a batch can be cut: nothing needs all of it from there on."""
        for step in reversed(plan.steps):
            if any(n.op.per_batch for n in step.nodes):
                break
            self._divisible.append(step)
        self._groups = {name: list(groups(step)) for name, step in self._named}
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
        self.device: Ledger | None = None
        """The account of the GPUs' memory, once there are any."""
        self._read_bytes = 0
        """Of the largest batch that was read."""
        self._handed_out: tuple[int, ...] | None = None

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

    @staticmethod
    def page_locked(nbytes: int) -> Any:
        """Host memory for bytes that are bound for a device."""
        return pinned_empty(nbytes)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = as_ours(error)
        self._stop_channels()

    def _stop_channels(self) -> None:
        for free in self._free_lanes:
            free.stop()
        for channel in self.channels:
            channel.stop()
        for ledger in self.ledgers.values():
            ledger.stop()

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """The accounts of memory, by name."""
        return {"host": self.host} if self.device is None else {"host": self.host, "gpu": self.device}

    def _fell_back(self, reason: str, samples: int = 1) -> None:
        self.stats.count(self.stats.fallbacks, reason, samples)

    def stop(self) -> None:
        """End the run promptly: nothing new is started, threads are waited for."""
        self._stop_channels()
        if self.isolation is not None:
            self.isolation.close()
        self._stopped = True  # chunks that nobody has begun end at once, instead of never: batches wait for them
        self._pool.shutdown(wait=True)
        for thread in self._threads:
            if thread is not threading.current_thread():
                with suppress(RuntimeError):  # it could not be started
                    thread.join()
        for lane in self.lanes:
            lane.synchronize()
        if self.plan.target.device == "gpu":
            for index in self._limited:
                limit_pool(index, self, None)

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
        if self._handed_out is not None:  # whoever took it is done with it, or holds it on their own account
            self._release(self._handed_out)
        try:
            iteration = self._taken(self.delivery)
        except Closed:
            if self._error is not None:
                raise self._error from None
            raise StopIteration from None
        except BaseException as e:
            self._fail(e)
            ours = as_ours(e)
            if ours is e:
                raise
            raise ours from None
        self._handed_out = iteration.order
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
            self.host.hold((number,), self._read_bytes)
            samples, per_reader = self.feed.samples(request)
            yield Iteration((number,), request, samples, per_reader, samples)

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
            parts = iter([it])
            for name, step, staging in named:
                if step.kind == "whole":
                    self._whole(it, name, step, staging)
                else:
                    parts = self._chunked(name, step, it)
            for part in parts:
                out.put(part)

    def _run(self, iteration: Iteration, **extra: Any) -> Run:
        return Run(
            samples=extra.pop("samples", iteration.samples),
            seeds=self.plan.seeds,
            rng=self.options.rng,
            states=self.feed.states,
            isolation=self.isolation,
            count=self._fell_back,
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
        if isinstance(problem, MemoryError) and samples > 1:
            self._fell_back(FEWER, samples)
        return None

    def _not_read(self, problem: Exception, samples: int) -> Exception | None:
        # Cutting a reader's batch in two would hide nothing else: what it raises ends the run.
        return self._raised(problem, samples) if isinstance(problem, MemoryError) else problem

    def _whole(self, it: Iteration, name: str, step: Step, staging: Any) -> None:
        began = time.perf_counter()
        run = self._run(it, allocate_staging=staging, pool=self._pool, observe=self._observer(name, it.number))
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
            self._read_bytes = max(self._read_bytes, self._holds(it))
        self.stats.busy(name, time.perf_counter() - began)

    def _holds(self, it: Iteration) -> int:
        """Put what the batch holds on the account; bytes on the host."""
        held = {"host": bytes_of(b for b in it.env.values() if b.on_host)}
        held["gpu"] = bytes_of(it.env.values()) - held["host"]
        for name, ledger in self.ledgers.items():
            ledger.hold(it.order, held[name], wait=False)
        return held["host"]

    def _release(self, order: tuple[int, ...]) -> None:
        for ledger in self.ledgers.values():
            ledger.release(order)

    def _run_inline(self) -> Iteration | None:
        """The next batch, computed by the caller; None where threads should do it from now on."""
        request = next(self._schedule)
        if not self._light and (request.n > _CHUNK or self._slow > _PATIENCE):
            self._schedule = chain((request,), self._schedule)
            self.inline = False
            return None
        began, worked = time.perf_counter(), time.thread_time()
        samples, per_reader = self.feed.samples(request)
        it = Iteration((self._number,), request, samples, per_reader, samples)
        self._number += 1
        for name, step in self._named:
            if step.kind == "whole":
                self._whole(it, name, step, None)
            else:
                env = {e: it.env[e] for e in step.needs}
                with self.host.work(0):
                    done = self._computed(step, it, env, it.samples, 0)
                self._join_chunks(name, step, it, [done])
        slow = time.thread_time() - worked > _QUICK or time.perf_counter() - began > _PROMPT
        self._slow += 1 if slow else -(self._slow > 0)
        return it

    def _feeds_device(self, step: Step) -> bool:
        """Fetched bytes of this step are uploaded: they belong in page-locked memory."""
        if self.plan.target.device != "gpu":
            return False
        made = {n.id for n in step.nodes}
        return any(e.node in made for s in self.plan.steps if s.kind == "device" for e in s.needs)

    def _chunked(self, name: str, step: Step, it: Iteration) -> Iterator[Iteration]:
        """The batch, or its parts, with their chunks under way."""
        for part, ahead in self._parts(it, step):
            held = bytes_of(b for b in part.env.values() if b.on_host)
            self.host.hold(part.order, held + 2 * int(ahead.kept.sum()))  # twice: chunks are put together
            self._submit_chunks(name, step, part, ahead)
            yield part

    def _submit_chunks(self, name: str, step: Step, it: Iteration, ahead: Foresight) -> None:
        before = self._before.get(name)
        if before is not None and before.ended:
            self.stats.idle(name, time.perf_counter() - before.ended)
        env = {e: it.env[e] for e in step.needs}
        slots = it.samples.slot
        room = max(1, int(self.host.limit * _FOR_WORK) // self.options.num_threads)
        cuts = list(runs(ahead.peak, room, _CHUNK)) or [(0, 0)]
        it.chunks = self._before[name] = Chunks(len(cuts))
        whole = whole_outputs(step, len(it.samples), self._recycler.empty) if len(cuts) > 1 else []
        for k, (a, b) in enumerate(cuts):
            part, here, band = it.samples, env, Band(whole, a, b)
            if len(cuts) > 1:
                part = part.take(slice(a, b))
                here = cut(env, int(slots[a]), int(slots[b - 1]) + 1)
            self._pool.do(self._chunk, name, step, it, it.chunks, k, here, part, int(ahead.peak[a:b].sum()), band)

    def _parts(self, it: Iteration, step: Step) -> Iterator[tuple[Iteration, Foresight]]:
        """The batch, less the samples that alone are over the budget, and what the step will hold for it; in parts
        where it is too large and may come so."""
        ahead = self._foresee(it, step)
        ledger = self.host if step.kind == "chunk" or self.device is None else self.device
        over = np.flatnonzero(ahead.sure > ledger.limit) if ledger is self.host else np.empty(0, np.int64)
        if len(over):
            for slot, nbytes in zip(it.samples.slot[over].tolist(), ahead.sure[over].tolist(), strict=True):
                message = (f"it takes {size(nbytes)} of memory, the budget is {size(ledger.limit)} "
                           f"(pipeline.memory.host); {MORE_MEMORY}")  # fmt: skip
                it.dropped.append(Dropped(slot, ahead.greediest, "too_large", message))
            self._drop(it)
            ahead = self._foresee(it, step)
        cuts = []
        if not self.options.whole_batches and step in self._divisible:
            sizes = 2 * ahead.kept
            if ledger is not self.host:
                sizes = np.maximum(sizes, (ahead.peak / ledger.limit * self.host.limit).astype(np.int64))
            cuts = list(runs(sizes, max(1, self.host.limit // 4), max(1, len(sizes))))
        if len(cuts) <= 1:
            yield it, ahead
            return
        self._fell_back(IN_PARTS, len(it.samples))
        slots = it.samples.slot
        borders = [int(it.everyone.slot[0]), *(int(slots[a]) for a, _ in cuts[1:]), int(it.everyone.slot[-1]) + 1]
        parts = [it.part(k, borders[k], borders[k + 1]) for k in range(len(cuts))]
        for part in parts:
            self._holds(part)
        self._release(it.order)
        for part, (a, b) in zip(parts, cuts, strict=True):
            yield part, Foresight(ahead.peak[a:b], ahead.kept[a:b], ahead.sure[a:b], ahead.greediest)

    def _foresee(self, it: Iteration, step: Step) -> Foresight:
        env = {e: it.env[e] for e in step.needs}
        return foresee(step.nodes, step.gives, env, it.samples, self.plan.target.device == "null")

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

    def _forget(self, it: Iteration, step: Step) -> None:
        """Drop the samples that failed from all batches, and the batches that nobody will read again."""
        if it.dropped:
            self._drop(it)
        wanted = self._wanted[self.name_of(step)]
        for edge in [e for e in it.env if e not in wanted]:
            del it.env[edge]

    @staticmethod
    def _drop(it: Iteration) -> None:
        gone = {d.slot for d in it.dropped}
        drop(it.env, gone)
        it.samples = it.samples.take(~np.isin(it.samples.slot, list(gone)))

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
                for it, ahead in self._parts(self._taken(inbox), step):
                    self._make_room(it, ahead)
                    device = it.number % len(lanes)
                    it.lane = lanes[device].get()
                    it.launched = launchers[device].submit(self._launch_whole, name, step, it)
                    out.put(it)

    def _make_room(self, it: Iteration, ahead: Foresight) -> None:
        """Wait until the device, and the host behind it, have room for the batch."""
        assert self.device is not None
        room = self.device.limit // (self.options.lanes * self._devices)
        it.cuts = list(runs(ahead.peak, max(1, room), max(1, len(ahead.peak))))
        kept = int(ahead.kept.sum())
        at_once = max((int(ahead.peak[a:b].sum()) for a, b in it.cuts), default=0)
        self.device.hold(it.order, at_once if len(it.cuts) <= 1 else at_once + kept)
        self.host.hold(it.order, bytes_of(b for b in it.env.values() if b.on_host) + kept)

    def _launch_whole(self, name: str, step: Step, it: Iteration) -> Run:
        began = time.perf_counter()
        run = self._launch_on(it, step, it.lane, {e: it.env[e] for e in step.needs}, it.samples, 0)
        self.stats.busy(name, time.perf_counter() - began)
        return run

    def _launch_on(self, it: Iteration, step: Step, lane: Any, env: Env, samples: Samples, attempt: int) -> Run:
        timer = DeviceTimer(lane, self.stats) if self.plan.target.device == "gpu" else None
        run = self._run(it, samples=samples, device=lane, attempt=attempt, mark_device=timer,
                        allocate=None if timer else lane.empty,
                        observe=None if timer else self._observer("gpu (emulated)", it.number))  # fmt: skip
        with lane:
            run.results = self._on(lane, step).run_cut(env, run, it.cuts if attempt == 0 else [])
        run.timer = timer
        return run

    def _on(self, lane: Any, step: Step) -> OnDevice:
        to_host = [e for e in step.gives if self._wanted_on_host(e)]
        return OnDevice(step.nodes, step.gives, to_host, lane, self.lanes, self._device_error, self._fell_back)

    def _wanted_on_host(self, edge: Edge) -> bool:
        if self.options.to_host and edge in self.plan.graph.outputs.values():
            return True
        return any(edge in s.needs for s in self.plan.steps if s.kind != "device")

    def _device_error(self, problem: Exception, samples: int) -> Exception | None:
        ours = as_ours(problem)
        return ours if isinstance(ours, DeviceError) else self._raised(problem, samples)

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
            self._holds(it)
            out.put(it)

    def _settled(self, it: Iteration, step: Step, lane: Any, run: Run, attempt: int) -> Env:
        """The results of a launched batch, once the device is done and every check has passed. Samples that fail a
        check run again alone, on the decoder's next lane; their results take the place of the wrong ones."""
        lane.synchronize()
        on = self._on(lane, step)
        if run.timer is not None:
            run.timer.read()
        wrong = sorted({int(s) for check in run.checks for s in check()} - {d.slot for d in run.dropped})
        results: Env = run.results
        finish_late(run, results, on.retried)
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
            joined = {e: on.joined([results[e], redone[e]]) for e in results}
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


def groups(step: Step) -> Iterator[tuple[tuple[Node, ...], list[Edge], bool, bool]]:
    """The nodes of a whole step that run together, what they give, and whether they see whole batches, and read."""
    for per_batch, group in groupby(step.nodes, lambda n: n.op.per_batch):
        nodes = tuple(group)
        gives = [Edge(n.id, k) for n in nodes for k in range(n.op.num_outputs)]
        yield nodes, gives, per_batch, all(isinstance(n.op, Reader) for n in nodes)


def launcher_count(step: Step) -> int:
    """Threads that launch a device step. Where a kernel's launch waits (JPEG engines), another goes on meanwhile (one
    H200: 24k images/s instead of 16k); else two would only contend for the GIL (100k instead of 115k)."""
    return 2 if any(n.op.waits for n in step.nodes) else 1


FEWER = "out of memory: fewer samples at a time"
IN_PARTS = "over the memory budget: batch in parts"


def as_ours(problem: BaseException) -> BaseException:
    """What ends a run, in words for its user: want of memory and failures of a device are not bugs."""
    kind = type(problem).__name__
    if kind in ("CUDARuntimeError", "CUDADriverError", "OutOfMemoryError"):  # the context may be lost
        return DeviceError(f"the GPU failed: {problem}")
    if isinstance(problem, MemoryError):
        return JobError(f"out of memory: {str(problem) or 'an allocation failed'}; lower pipeline.batch_size, "
                        "prefetch_queue_depth or memory.host, so that less is held at a time")  # fmt: skip
    return problem


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

    free_memory = 1 << 62
    """Bytes that there are."""

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

    def holds(self, batch: Batch) -> bool:
        return True

    def wait(self) -> None:
        pass

    def give_back(self, *, mine: bool) -> None:
        pass

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
