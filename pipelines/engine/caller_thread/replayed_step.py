"""Replay a device step from its recorded launches.

A batch of a few numbers takes the GPU some microseconds, and `DeviceExecutor` twenty times as long to launch, because
it handles everything that may differ between batches. Here only addresses, samples and random numbers differ: the
shapes equal those of earlier batches that went through `DeviceExecutor` and left a program (`ops.gpu.launch_program`).
Every other batch goes through `DeviceExecutor`, with the same result. Used by `DirectGpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ....ops.batch import Batch, Samples
from ....ops.context import Context
from ....ops.gpu.launch_program import LaunchProgram, programs_of
from ....ops.gpu.launch_recording import count_of, key_of_one
from ....readers.external_source import ExternalSource, FedBatches
from ...compile.schedule import Step
from ...graph.nodes import Edge, Node
from ..batch_budget import BatchBudget
from ..in_flight import InFlightBatch
from ..nodes.node_pass import Env
from ..nodes.recorded_tail import start_of_tail
from ..services import Services
from .contexts import Contexts
from .fast_path import AGAIN, FastPath, TooLargeError

_MAX_CACHED = 16
"""Maximum number of entries of `ReplayedStep._needs`, the cache of the memory that batches need, by their shapes."""
_MAX_COUNTED, _UNTIL_PROGRAM = 256, 4
"""Two limits for recording launches: the number of combinations of a CUDA stream and shapes whose batches are counted,
and the number of batches of one shape after which a recorded program is no longer expected. On each stream, the first
batch is launched, the second recorded, the third replayed."""
_MAX_FAILURES = 8
"""Number of consecutive batches that could not be launched directly (`FastPath`), after which `DeviceExecutor` launches
all batches."""


class LaunchedBatch(NamedTuple):
    """A batch that was launched and is not complete yet. Created by `ReplayedStep.launch`, passed to
    `ReplayedStep.finish`."""

    lane: Any
    timer: Any
    """Object whose ``milliseconds()`` returns the GPU time of the launch; None if nothing was launched on the GPU."""
    sizes: Sequence[tuple[int, int]]
    """For each operator, the bytes that it reads and writes."""
    results: Env
    fed: Sequence[int]
    """For each external source, the bytes that the user's program provided."""
    charged: bool
    """Whether the batch has reserved memory in the budget."""
    inputs: Sequence[Batch]
    """Input batches, referenced so that their memory stays until the device has read it."""


class ReplayedStep:
    """A step on a device for small batches. Its kernel launches are recorded once and repeated for later batches of the
    same shapes. The inputs come from the user's program or were computed on the host. Created by `DirectGpu`; used by
    the caller's thread only."""

    def __init__(self, services: Services, budget: BatchBudget, name: str, step: Step, to_host: Sequence[Edge]) -> None:
        """``to_host``: the outputs of the step (edges of the graph) that are copied to the host."""
        self._services, self._budget, self._name, self._step = services, budget, name, step
        sources = [n for n in step.nodes if isinstance(n.op, ExternalSource) and n.stage == "gpu"]
        self._nodes = [n for n in step.nodes if n not in sources]
        ids, on_host = {n.id for n in self._nodes}, {n.id for n in self._nodes if n.op.shape_only}
        self._fed = [Edge(n.id, k) for n in sources for k in range(n.op.num_outputs)]
        read = dict.fromkeys(e for n in self._nodes for e in n.inputs if e.node not in ids)
        self._replayable = list(step.nodes[start_of_tail(step.nodes) :]) == self._nodes
        """Whether the kernel launches of all operators can be recorded and then replayed together, as one program."""
        replayed = [n for n in self._nodes if n.op.replayable]
        self._operators = FastPath(services, self._nodes, step.gives)
        self._launches_directly = self._operators.is_applicable and (len(self._nodes) == 1 or not replayed)
        """Whether the operators can be launched one by one without error isolation (`FastPath`)."""
        self.is_applicable = (
            (self._replayable or self._launches_directly)
            and all(e in self._fed or e in step.needs for e in read)
            and all(e.node in on_host for e in to_host)
            and services.stats.spans is None  # traces need a span for every kernel
        )
        """Whether batches of this step may be launched by this class; if not, `DeviceExecutor` launches them all."""
        if not self.is_applicable:
            return
        self._sources: list[tuple[Node, FedBatches]] = [(n, services.feed.states[n.id]) for n in sources]
        self._read = [(self._fed.index(e) if e in self._fed else -1, e) for e in read]
        """For each input batch of the operators: its index among the batches that the user's program provides (`_fed`),
        or -1 if the host computed it; and its edge (the node output that it is)."""
        self._passed_through = [(k, e) for k, e in enumerate(self._fed) if e in step.gives]
        """Batches of the user's program that are also outputs of the step, unchanged: for each, its index in `_fed` and
        its edge in the graph."""
        self._key = (self._nodes[0].id, len(step.nodes)) if self._nodes else (-1, 0)
        self._last: list[Batch] = []
        self._keys: list[Any] = []
        """For each input of the last batch: the part of the cache key that describes this input, from `key_of_one`."""
        self._needs: dict[Any, tuple[int, int] | None] = {}
        """Cache: bytes that a batch needs on the device and on the host, by its shapes; None for shapes so large that
        the batch must be cut."""
        self._seen: dict[int, int] = {}
        """Number of batches so far, by a hash of their lane (CUDA stream with memory) and shapes."""
        self._failures = 0
        self._contexts = Contexts(services)

    def launch(self, it: InFlightBatch, lane: Any) -> LaunchedBatch | None:
        """Launch the batch on ``lane``. Return None, with nothing launched, if the batch must be left to
        `DeviceExecutor`, which isolates errors."""
        samples = it.samples
        if it.draws or it.dropped or not len(samples.slot):
            return None
        fed, nbytes = list[Batch](), list[int]()
        for _, state in self._sources:
            outputs = state.whole(it.request.start, len(samples.slot))
            if outputs is None:
                return None
            fed += outputs
            nbytes.append(outputs[0].nbytes if len(outputs) == 1 else sum(b.nbytes for b in outputs))
        if any(
            fed[k].on_host for k, _ in self._passed_through
        ):  # checked before anything is launched, which would be wasted
            return None
        launch_state = LaunchedBatch(lane, None, (), {}, nbytes, False, ())
        if self._nodes:
            launched = self._launched(it, lane, fed, nbytes)
            if launched is None:
                return None
            launch_state = launched
        for k, edge in self._passed_through:
            batch = fed[k]
            launch_state.results[edge] = batch.with_data(batch.data, samples, batch.nbytes)
        return launch_state

    def _launched(
        self, it: InFlightBatch, lane: Any, fed: Sequence[Batch], nbytes: Sequence[int]
    ) -> LaunchedBatch | None:
        inputs = []
        for k, edge in self._read:
            batch = fed[k] if k >= 0 else it.env[edge]
            if k < 0 and batch.samples is not it.samples:
                return None
            inputs.append(batch)
        shapes = self._shapes_of(inputs, lane, it.samples)
        program = programs_of(lane).find(self._key, shapes) if self._replayable else None
        need = None if program is None and not self._is_direct(lane, shapes) else self._need(it, shapes)
        if need is None:
            return None
        timer: Any = None
        sizes: Sequence[tuple[int, int]] = []
        try:
            if program is not None:
                results = self._run(program, lane, inputs, it)
                timer, sizes = None if program.is_free else program, program.bytes
            else:
                timer, sizes = lane, []
                results = self._run_directly(lane, fed, it, sizes)
        except TooLargeError:
            results = None
        except Exception:  # most likely a lack of memory, for which the regular path is prepared
            self._services.fell_back(AGAIN, len(it.samples.slot))
            results = None
        if results is None:
            self._failures += program is None
            return None
        on_device, on_host = need
        if on_device and self._budget.device is not None:
            self._budget.device.reserve(it.order, on_device, wait=False)
        if on_host:
            self._budget.host.reserve(it.order, on_host, wait=False)
        return LaunchedBatch(lane, timer, sizes, results, nbytes, bool(on_device or on_host), inputs)

    def _is_direct(self, lane: Any, shapes: Any) -> bool:
        """Return whether a batch of ``shapes`` is launched operator by operator, neither recorded nor replayed. True
        for the first batch of these shapes, and if there is no recorded program after `_UNTIL_PROGRAM` batches."""
        if not self._launches_directly or self._failures > _MAX_FAILURES:
            return False
        if not self._replayable:
            return True
        key = hash((id(lane), shapes))
        if len(self._seen) > _MAX_COUNTED:
            self._seen.clear()
        seen = self._seen[key] = self._seen.get(key, -1) + 1
        return not 0 < seen <= _UNTIL_PROGRAM

    def _shapes_of(self, inputs: list[Batch], lane: Any, samples: Samples) -> Any:
        """Return the cache key for the shapes of ``inputs``, as `key_of` does. If an input is the same object as for
        the last batch, its part of the key is reused."""
        last, keys = self._last, self._keys
        if len(last) != len(inputs):
            self._keys = [key_of_one(lane, b) for b in inputs]
        else:
            for k, batch in enumerate(inputs):
                if batch is not last[k]:
                    keys[k] = key_of_one(lane, batch)
        self._last = inputs
        return (count_of(samples), *self._keys)

    def drop_references(self) -> None:
        """Drop all references to input batches: the run is over."""
        self._last, self._keys = [], []

    def _need(self, it: InFlightBatch, shapes: Any) -> tuple[int, int] | None:
        """Return the bytes on the device and on the host that a batch of ``shapes`` needs, from the cache or from
        `BatchBudget.unsplit_need`. None if the batch must be cut."""
        if shapes not in self._needs:
            if len(self._needs) >= _MAX_CACHED:
                self._needs.clear()
            self._needs[shapes] = self._budget.unsplit_need(it, self._step)
        return self._needs[shapes]

    def _run(self, program: LaunchProgram, lane: Any, inputs: Sequence[Batch], it: InFlightBatch) -> Env | None:
        samples, env, contexts = it.samples, it.env, self._contexts
        if program.is_free:
            return program.run(lane, inputs, samples, _no_context)
        if not program.changes:
            with lane:
                return program.run(lane, inputs, samples, _no_context, timed=True)
        results = None
        try:
            with lane:
                results = program.run(
                    lane, inputs, samples, lambda node: contexts.of(node, "gpu", it, env, lane), timed=True
                )
        finally:
            if results is None:
                contexts.discard()
            else:
                contexts.accept()
        return results

    def _run_directly(
        self, lane: Any, fed: Sequence[Batch], it: InFlightBatch, sizes: list[tuple[int, int]]
    ) -> Env | None:  # fmt: skip
        """Launch the operators one by one, without isolating samples that fail, and return their results. Return None
        if a kernel produced anything besides its outputs."""
        samples, env = it.samples, dict(it.env)
        for edge, batch in zip(self._fed, fed, strict=True):
            if batch.on_host:
                return None
            env[edge] = batch.with_data(batch.data, samples, batch.nbytes)
        with lane:
            watch = lane.stopwatch()
            watch.begin()
            moved = self._operators.run(it, env, lane)
            watch.end()
        if moved is None:
            return None
        self._failures = 0
        sizes += [(taken, given) for taken, given, _ in moved]
        return {e: env[e] for e in self._step.gives}

    def finish(self, it: InFlightBatch, launch_state: LaunchedBatch) -> None:
        """Wait until the GPU has finished the batch, and add its results to ``it.env``."""
        milliseconds = 0.0
        if launch_state.timer is not None:
            with launch_state.lane.gpu:
                launch_state.lane.synchronize()
                timer = launch_state.lane.stopwatch() if launch_state.timer is launch_state.lane else launch_state.timer
                milliseconds = timer.milliseconds()
        if launch_state.charged:
            self._budget.release(it.order)
        it.env |= launch_state.results
        self._services.stats.note(
            self._record_times, len(it.samples.slot), launch_state.sizes, milliseconds / 1e3, launch_state.fed
        )

    def _record_times(self, samples: int, sizes: Sequence[tuple[int, int]], seconds: float, fed: Sequence[int]) -> None:
        """Record how long a batch took. Only the total GPU time is measured. It is divided among the operators in
        proportion to their times when they ran one by one."""
        stats = self._services.stats
        for (node, _), given in zip(self._sources, fed, strict=True):
            stats.called(node, samples, 0, given, 0.0, device=True)
        alone = [stats.node(n).gpu_seconds for n in self._nodes]
        total = sum(alone)
        for node, (taken, given), own in zip(self._nodes, sizes, alone, strict=True):
            share = own / total if total else 1 / len(alone)
            stats.called(node, samples, taken, given, seconds * share, device=True)


def _no_context(node: Node) -> Context:
    raise AssertionError(f"{node.name} needs no context: nothing changes between its launches")
