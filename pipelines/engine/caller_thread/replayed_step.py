"""Rehearsed: batches for which all launches of a device step are known, without what finds them out.

A batch of a few numbers takes the GPU some microseconds, and the way through `DevicePart` twenty times as long: it
looks for what may differ from batch to batch. Here nothing differs but addresses, samples and drawn numbers, because
the shapes are those of batches that went that way and left a program (`ops.gpu.launch_program`). Whatever is
otherwise goes that way again, with the same result.
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

_KEPT = 16
"""Shapes of batches of which the memory is remembered."""
_SEEN, _TURNS = 256, 4
"""Shapes and lanes that are counted, and batches of a shape that make a program: a lane's first is launched, the second
recorded, the third repeated."""
_MAX_FAILURES = 8
"""Batches in a row that were launched as they are, and then the other way all the same."""


class LaunchedBatch(NamedTuple):
    """A batch on its way."""

    lane: Any
    timer: Any
    """Of what was launched: asked for `milliseconds`; None where the device has nothing to do."""
    sizes: Sequence[tuple[int, int]]
    """Bytes that each operator takes and gives."""
    results: Env
    fed: Sequence[int]
    """Bytes that each source gave."""
    held: bool
    """It is on the account."""
    inputs: Sequence[Batch]
    """Held until the device is done with them."""


class ReplayedStep:
    """A device step whose inputs are fed, or made on the host; the program's thread owns it."""

    def __init__(self, services: Services, budget: BatchBudget, name: str, step: Step, to_host: Sequence[Edge]) -> None:
        """``to_host`` are the edges of the step that are wanted on the host."""
        self._services, self._budget, self._name, self._step = services, budget, name, step
        sources = [n for n in step.nodes if isinstance(n.op, ExternalSource) and n.stage == "gpu"]
        self._nodes = [n for n in step.nodes if n not in sources]
        made, on_host = {n.id for n in self._nodes}, {n.id for n in self._nodes if n.op.shape_only}
        self._fed = [Edge(n.id, k) for n in sources for k in range(n.op.num_outputs)]
        read = dict.fromkeys(e for n in self._nodes for e in n.inputs if e.node not in made)
        self._repeat = list(step.nodes[start_of_tail(step.nodes) :]) == self._nodes
        """They may become a program."""
        repeated = [n for n in self._nodes if n.op.replayable]
        self._operators = FastPath(services, self._nodes, step.gives)
        self._plain = self._operators.is_applicable and (len(self._nodes) == 1 or not repeated)
        """They may be launched as they are."""
        self.is_applicable = (
            (self._repeat or self._plain)
            and all(e in self._fed or e in step.needs for e in read)
            and all(e.node in on_host for e in to_host)
            and services.stats.spans is None  # which are of single kernels
        )
        """Its batches may be launched here."""
        if not self.is_applicable:
            return
        self._sources: list[tuple[Node, FedBatches]] = [(n, services.feed.states[n.id]) for n in sources]
        self._read = [(self._fed.index(e) if e in self._fed else -1, e) for e in read]
        """The batches that operators take: which one was fed, or -1 where the host made it."""
        self._passed = [(k, e) for k, e in enumerate(self._fed) if e in step.gives]
        """Those that are outputs themselves."""
        self._key = (self._nodes[0].id, len(step.nodes)) if self._nodes else (-1, 0)
        self._last: list[Batch] = []
        self._keys: list[Any] = []
        """`key_of_one` of the last inputs."""
        self._holds: dict[Any, tuple[int, int] | None] = {}
        """Bytes that a batch of these shapes holds on the device and on the host; None where they are too many."""
        self._seen: dict[int, int] = {}
        """How often shapes came to a lane."""
        self._in_vain = 0
        self._contexts = Contexts(services)

    def begin(self, it: InFlightBatch, lane: Any) -> LaunchedBatch | None:
        """Launch the batch; None, and nothing is done, where there is no program for it."""
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
        if any(fed[k].on_host for k, _ in self._passed):  # before anything is launched: it would be in vain
            return None
        begun = LaunchedBatch(lane, None, (), {}, nbytes, False, ())
        if self._nodes:
            launched = self._launched(it, lane, fed, nbytes)
            if launched is None:
                return None
            begun = launched
        for k, edge in self._passed:
            batch = fed[k]
            begun.results[edge] = batch.with_data(batch.data, samples, batch.nbytes)
        return begun

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
        program = programs_of(lane).find(self._key, shapes) if self._repeat else None
        held = None if program is None and not self._goes_plainly(lane, shapes) else self._held(it, shapes)
        if held is None:
            return None
        timer: Any = None
        sizes: Sequence[tuple[int, int]] = []
        try:
            if program is not None:
                results = self._run(program, lane, inputs, it)
                timer, sizes = None if program.is_free else program, program.bytes
            else:
                timer, sizes = lane, []
                results = self._run_plainly(lane, fed, it, sizes)
        except TooLargeError:
            results = None
        except Exception:  # memory, most likely; the other way is prepared for it
            self._services.fell_back(AGAIN, len(it.samples.slot))
            results = None
        if results is None:
            self._in_vain += program is None
            return None
        there, here = held
        if there and self._budget.device is not None:
            self._budget.device.reserve(it.order, there, wait=False)
        if here:
            self._budget.host.reserve(it.order, here, wait=False)
        return LaunchedBatch(lane, timer, sizes, results, nbytes, bool(there or here), inputs)

    def _goes_plainly(self, lane: Any, shapes: Any) -> bool:
        """Batches of ``shapes`` are launched as they are: for the first time, or where there is no program although
        they came often enough for one."""
        if not self._plain or self._in_vain > _MAX_FAILURES:
            return False
        if not self._repeat:
            return True
        key = hash((id(lane), shapes))
        if len(self._seen) > _SEEN:
            self._seen.clear()
        seen = self._seen[key] = self._seen.get(key, -1) + 1
        return not 0 < seen <= _TURNS

    def _shapes_of(self, inputs: list[Batch], lane: Any, samples: Samples) -> Any:
        """`key_of` the inputs; those that are given again and again are not looked at."""
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
        """Hold no batch any more."""
        self._last, self._keys = [], []

    def _held(self, it: InFlightBatch, shapes: Any) -> tuple[int, int] | None:
        """`BatchBudget.unsplit_need` for batches of ``shapes``."""
        if shapes not in self._holds:
            if len(self._holds) >= _KEPT:
                self._holds.clear()
            self._holds[shapes] = self._budget.unsplit_need(it, self._step)
        return self._holds[shapes]

    def _run(self, program: LaunchProgram, lane: Any, given: Sequence[Batch], it: InFlightBatch) -> Env | None:
        samples, env, contexts = it.samples, it.env, self._contexts
        if program.is_free:
            return program.run(lane, given, samples, _no_context)
        if not program.changes:
            with lane:
                return program.run(lane, given, samples, _no_context, timed=True)
        found = None
        try:
            with lane:
                found = program.run(
                    lane, given, samples, lambda node: contexts.of(node, "gpu", it, env, lane), timed=True
                )
        finally:
            if found is None:
                contexts.forget()
            else:
                contexts.counts()
        return found

    def _run_plainly(
        self, lane: Any, fed: Sequence[Batch], it: InFlightBatch, sizes: list[tuple[int, int]]
    ) -> Env | None:  # fmt: skip
        """The results of the operators' own launches; None where one has more to say than these."""
        samples, env = it.samples, dict(it.env)
        for edge, batch in zip(self._fed, fed, strict=True):
            if batch.on_host:
                return None
            env[edge] = batch.with_data(batch.data, samples, batch.nbytes)
        with lane:
            watch = lane.stopwatch()
            watch.begin()
            found = self._operators.run(it, env, lane)
            watch.end()
        if found is None:
            return None
        self._in_vain = 0
        sizes += [(taken, given) for taken, given, _ in found]
        return {e: env[e] for e in self._step.gives}

    def finish(self, it: InFlightBatch, begun: LaunchedBatch) -> None:
        """Wait for the batch."""
        milliseconds = 0.0
        if begun.timer is not None:
            with begun.lane.gpu:
                begun.lane.synchronize()
                timer = begun.lane.stopwatch() if begun.timer is begun.lane else begun.timer
                milliseconds = timer.milliseconds()
        if begun.held:
            self._budget.release(it.order)
        it.env |= begun.results
        self._services.stats.note(self._took, len(it.samples.slot), begun.sizes, milliseconds / 1e3, begun.fed)

    def _took(self, samples: int, sizes: Sequence[tuple[int, int]], seconds: float, fed: Sequence[int]) -> None:
        """Take down a batch: the time of its kernels is dealt out by what each took when they ran one by one."""
        stats = self._services.stats
        for (node, _), given in zip(self._sources, fed, strict=True):
            stats.called(node, samples, 0, given, 0.0, device=True)
        alone = [stats.node(n).gpu_seconds for n in self._nodes]
        total = sum(alone)
        for node, (taken, given), own in zip(self._nodes, sizes, alone, strict=True):
            share = own / total if total else 1 / len(alone)
            stats.called(node, samples, taken, given, seconds * share, device=True)


def _no_context(node: Node) -> Context:
    raise AssertionError(f"nothing changes that {node.name} would need one for")
