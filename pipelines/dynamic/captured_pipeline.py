"""The pipeline of a captured loop: the calls of its body as a graph, compiled once, which the engine runs ahead of the
loop, with several batches in flight.

Created by `capture.Loop`, which decides which calls belong to it and which results the program needs.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from ...ops.arrays.copy import Copy
from ...ops.base import Arg, Operator, Spec
from ...ops.batch import Batch as Data
from ...ops.batch import Samples
from ...ops.context import Context
from ...ops.errors import SpecError
from ...ops.types import from_numpy
from ...readers.external_source import ExternalSource, FedBatches
from ..compile.infer import infer_node
from ..compile.place import Target
from ..compile.plan import compile_graph
from ..engine.engine import Engine, Options, Request
from ..engine.inputs import numbered
from ..engine.options import lanes_for
from ..graph.nodes import Edge, Graph, Node
from . import calls
from .rng import RNG, RNGState
from .values import Value

ResultKey = tuple[int, int]
"""Key of a value that the body of a captured loop computes: (number of the call, index of the output). The number is
`ROOT` for values that the loop yields."""
ROOT = -1
QUEUE = 2
"""Capacity of the engine's queue of finished batches, as in pipelines."""
_READER = 1 << 62
"""Seed of the reader's graph node. It differs from all call numbers, which are the other nodes' seeds."""


class CapturedConstant(Operator, name="_captured.constant"):
    """Operator whose output is a constant value of the program; it has no inputs."""

    inputs = (0, 0)
    shared = False

    data: Annotated[Any, Arg("the engine's batch: a sample, or one for each sample of a batch")] = None
    first: Annotated[int, Arg("the position at which batches begin")] = 0

    def infer(self, *specs: Spec) -> Spec:
        data: Data = self.data
        return Spec((None,) * data.ndim, from_numpy(data.dtype), data.layout)

    def cpu(self, ctx: Context) -> Data:
        rows = (ctx.samples.position - self.first) % len(self.data)
        data: Data = self.data.take(rows, ctx.samples)
        if ctx.stage != "cpu":
            data = ctx.device.to_device(data)
        return data

    gpu = cpu


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """One call of an operator in the body of a captured loop, recorded in one iteration to be run ahead in later
    ones."""

    number: int
    """Number of the call; equal calls in different iterations have the same number."""
    name: str
    where: str
    """Line of the program that made the call first, as ``file:line``."""
    plan: calls.CallPlan | None
    """Operator and constant arguments of the call; None if the call only copies a value to another device."""
    to_gpu: bool
    """For a copy to another device, whether this is the GPU. Unused for other calls."""
    inputs: tuple[Any, ...]
    """For each input, (key, whether it is a Batch), or the value itself if it is `invariant`."""
    named: tuple[tuple[str, Any], ...]
    n: int | None
    rng: RNG | None
    at: int
    """Count of random numbers that the loop's body draws from the generator ``rng`` before this call."""


class RngForecast:
    """Prediction of the states that random generators will have in later iterations of a captured loop, so that random
    calls can run ahead. Written by the program's thread, read by the engine's threads."""

    def __init__(self) -> None:
        self._drawing: tuple[RecordedCall, ...] = ()
        self._known: dict[int, tuple[RNG, int, int, int]] = {}

    def expect(self, drawing: Sequence[RecordedCall]) -> None:
        """Set the recorded calls that draw random numbers, for which states are predicted."""
        self._drawing = tuple(drawing)

    def note(self, places: dict[int, tuple[RNG, int, int, int]]) -> None:
        """Update the prediction after an iteration. ``places`` has, for each generator by id(): (generator, iteration,
        number of the first draw of the next iteration, draws per iteration)."""
        self._known = {**self._known, **places}

    def states(self, iteration: int) -> dict[int, calls.State]:
        """Return the predicted generator state for each random call in ``iteration``, by call number."""
        known = self._known
        states: dict[int, calls.State] = {}
        for call in self._drawing:
            rng, last, place, each = known[id(call.rng)]
            at = place + (iteration - last - 1) * each + call.at
            states[call.number] = RNG(state=RNGState(rng.state.key, at & ((1 << 130) - 1))).seven()
        return states


@dataclass(frozen=True, slots=True)
class ReaderInputs:
    """Description of the reader over which a captured loop runs, for the loop's pipeline."""

    op: Any
    source: Any
    order: Any
    first: int
    """Position, in the endless sequence of samples, of the first sample of iteration 0."""
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class ProgramInputs:
    """Marker of a captured loop over a source of the program, which passes batches to `CapturedPipeline.give`."""

    outputs: int


@dataclass(frozen=True, slots=True)
class IterationInputs:
    """Results that the pipeline has computed ahead for one iteration of a captured loop."""

    values: Mapping[ResultKey, Data]
    states: Mapping[int, calls.State]
    """State of the random generator with which the pipeline ran each random call, by call number."""
    made: Collection[int]
    """Numbers of the calls that the pipeline has run."""
    samples: Samples


class BodyGraph:
    """Graph of a captured loop body, while the recorded calls are added to it. Used by `CapturedPipeline` only."""

    def __init__(self, root: ReaderInputs | ProgramInputs, first: int) -> None:
        self.nodes: list[Node] = []
        self.edges: dict[ResultKey, Edge] = {}
        self.refused: dict[int, str] = {}
        """Reasons why calls are not in the graph, by call number. The loop's body runs these calls itself."""
        self._specs: dict[Edge, Spec] = {}
        self._on_gpu: set[Edge] = set()
        self._first = first
        op = root.op if isinstance(root, ReaderInputs) else ExternalSource(arity=root.outputs)
        self._root = op
        outputs = self._add(op, (), {}, "cpu", _READER)
        if isinstance(root, ReaderInputs) and root.on_gpu:
            outputs = [self._moved(e, True) for e in outputs]
        self.edges |= {(ROOT, k): e for k, e in enumerate(outputs)}

    def _add(
        self, op: Operator, inputs: Sequence[Edge], args: Mapping[str, Edge], stage: Any, seed: int | None = None
    ) -> list[Edge]:
        number = len(self.nodes)
        node = Node(number, op, tuple(inputs), dict(args), f"{op.name}_{number + 1}", device=stage, seed=seed)
        specs = infer_node(node, [self._specs[e] for e in inputs])
        self.nodes.append(node)
        outputs = [Edge(number, k) for k in range(op.num_outputs)]
        self._specs |= zip(outputs, specs, strict=True)
        if stage != "cpu" and not op.output_after_sync:
            self._on_gpu |= set(outputs)
        return outputs

    def _moved(self, edge: Edge, to_gpu: bool) -> Edge:
        if (edge in self._on_gpu) == to_gpu:
            return edge
        return self._add(Copy(num_inputs=1), [edge], {}, "gpu" if to_gpu else "cpu")[0]

    def root_in(self, graph: Graph) -> int:
        """Return the id of the node, in the compiled ``graph``, that provides the values that the loop yields; -1 if no
        node needs it."""
        return next((node.id for node in graph.nodes if node.op is self._root), -1)

    def add(self, call: RecordedCall) -> None:
        """Add a recorded call to the graph, or to ``refused`` if a pipeline cannot run it."""
        try:
            input_edges = [self._edge(r) for r in call.inputs]
            named = {name: self._edge(r) for name, r in call.named}
            if any(e is None for e in (*input_edges, *named.values())):
                return  # an input comes from a call that is not in the graph
            inputs = [e for e in input_edges if e is not None]
            if call.plan is None:
                self.edges[call.number, 0] = self._moved(inputs[0], call.to_gpu)
                return
            if call.n is None:
                raise SpecError("it makes one tensor; batch_size= makes a batch")
            args = {name: self._moved(e, False) for name, e in named.items() if e is not None}
            output_edges = self._add(call.plan.op, inputs, args, call.plan.stage, call.number)
        except SpecError as e:
            self.refused[call.number] = str(e)
            return
        self.edges |= {(call.number, k): e for k, e in enumerate(output_edges)}

    def _edge(self, ref: Any) -> Edge | None:
        if isinstance(ref, Value):
            data = ref.computed_data()
            return self._add(CapturedConstant(data=data, first=self._first), (), {}, "cpu" if data.on_host else "gpu")[
                0
            ]
        place, is_batch = ref
        if not is_batch:
            raise SpecError("it takes one tensor for all samples; batch_size= makes a batch")
        return self.edges.get(place)


class CapturedPipeline:
    """A running pipeline that makes the calls of a captured loop ahead of the user's program. Created and stopped by
    `capture.Loop`; used by the program's thread."""

    def __init__(
        self, root: ReaderInputs | ProgramInputs, body: Sequence[RecordedCall], wanted: Collection[ResultKey],
        forecast: RngForecast, n: int, start: int, num_threads: int, device_id: int | None,
    ) -> None:  # fmt: skip
        """Compile the recorded calls ``body`` for batches of ``n`` samples, and run them from iteration ``start`` on.
        ``wanted`` are the keys of the results to return. Raises SpecError if the calls cannot be compiled."""
        first = root.first if isinstance(root, ReaderInputs) else 0
        graph = BodyGraph(root, first)
        for call in body:
            graph.add(call)
        self.refused = graph.refused
        self.made = frozenset(number for number, _ in graph.edges)
        """Numbers of the calls that this pipeline runs."""
        self._n, self._root = n, root
        self.iteration = start
        """Number of the iteration whose results `take` returns next."""
        places = [p for p in wanted if p in graph.edges] or [(ROOT, 0)]
        self.gives = frozenset(places)
        self._forecast = forecast
        gpu = any(node.device in ("gpu", "mixed") for node in graph.nodes)
        target = Target("gpu", (device_id or 0,), auto_mixed=False) if gpu else Target("cpu")
        outputs = {str(k): graph.edges[p] for k, p in enumerate(places)}
        plan = compile_graph(Graph(tuple(graph.nodes), outputs), target)
        self.plan = plan
        self._edges = {p: plan.graph.outputs[str(k)] for k, p in enumerate(places)}
        forecast.expect([c for c in body if c.rng is not None and c.number in self.made])
        reads = isinstance(root, ReaderInputs)
        options = Options(
            num_threads=num_threads, cpu_queue=QUEUE, gpu_queue=QUEUE, lanes=lanes_for(QUEUE), to_host=False,
            rng="dali", isolation="none", merge_requests=reads, on_demand=not reads, repeats=reads,
            guest=True,
        )  # fmt: skip
        self._fed = FedBatches()
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        feed = _Feed(graph.root_in(plan.graph), self._fed, root)
        schedule = _endless(start, n, forecast) if reads else _asked(self._requests)
        self._engine = Engine(plan, feed, schedule, options)
        self._engine.start()

    def give(self, iteration: int, outputs: tuple[Data, ...]) -> None:
        """For a loop over a source, pass the source's values for ``iteration`` to the pipeline. Must be called in the
        order of iterations."""
        start = iteration * self._n
        self._fed.put(start, outputs)
        self._requests.put(Request(start, len(outputs[0]), self._forecast.states(iteration)))
        self._engine.request_next()

    def take(self) -> IterationInputs | None:
        """Return the next iteration's results; None if a sample failed. Raises the error that ended the pipeline."""
        it = next(self._engine)
        at, self.iteration = self.iteration, self.iteration + 1
        assert it.request.start == at * self._n
        if any(not d.kept for d in it.dropped):
            return None
        named: dict[int, Samples] = {}

        def placed(batch: Data) -> Data:
            """Return the batch with its samples numbered from 0, also if it was computed together with others."""
            of = id(batch.samples)
            if of not in named:
                slot = batch.samples.slot
                named[of] = batch.samples if slot[0] == 0 else replace(batch.samples, slot=slot - slot[0])
            return batch if named[of] is batch.samples else batch.replace(samples=named[of])

        values = {place: placed(it.env[edge]) for place, edge in self._edges.items()}
        states = {} if not it.draws else next(s for low, _, s in it.draws if low == int(it.all_samples.slot[0]))
        return IterationInputs(values, states, self.made, it.all_samples)

    def stop(self) -> None:
        """Stop the engine and wait for its threads."""
        self._requests.put(None)
        self._engine.stop()

    def abandon(self, then: Callable[[], object]) -> None:
        """Tell the engine to stop, without waiting for it, and have it call ``then()`` afterwards. For destructors."""
        self._requests.put(None)
        self._engine.abandon(then)


class _Feed:
    """Object from which the engine gets the samples of each batch. It has no reference to the program's reader, because
    deleting the reader has to stop the engine."""

    def __init__(self, number: int, fed: FedBatches, root: ReaderInputs | ProgramInputs) -> None:
        """``number`` is the id of the graph node for the values that the loop yields."""
        self.states: Mapping[int, Any] = {number: root.source if isinstance(root, ReaderInputs) else fed}
        self.kinds: Mapping[Edge, Spec] = {}  # empty: as in DALI, each batch has its own types
        self._number, self._root = number, root

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the samples of the batch for ``request``, and those of each reader's node by node id."""
        root = self._root
        if isinstance(root, ProgramInputs):
            return numbered(request), {}
        samples: Samples = root.order.samples(root.first + request.start, request.n, root.source)
        return samples, {self._number: samples}


def _endless(start: int, n: int, forecast: RngForecast) -> Iterator[Request]:
    for iteration in itertools.count(start):
        yield Request(iteration * n, n, forecast.states(iteration))


def _asked(requests: queue.SimpleQueue[Request | None]) -> Iterator[Request]:
    while (request := requests.get()) is not None:
        yield request
