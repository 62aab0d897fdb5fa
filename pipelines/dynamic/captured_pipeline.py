"""The pipeline of a captured loop: the calls of its body as a graph, compiled once, which the engine runs ahead of the
loop, many batches at a time.

Nothing here knows the program: `capture` says which calls there are, and which of their results it wants.
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

Place = tuple[int, int]
"""Of a value in a body: the number of the call that makes it, or `ROOT` for the loop's own values; and which output."""
ROOT = -1
QUEUE = 2
"""Finished batches that may wait, as in pipelines."""
_READER = 1 << 62
"""A seed that no call has."""


class CapturedConstant(Operator, name="_captured.held"):
    """A value of the program's that stays the same in every batch."""

    inputs = (0, 0)
    shared = False

    data: Annotated[Any, Arg("the engine's batch: a sample, or one for each sample of a batch")] = None
    first: Annotated[int, Arg("the position at which batches begin")] = 0

    def infer(self, *specs: Spec) -> Spec:
        data: Data = self.data
        return Spec((None,) * data.ndim, from_numpy(data.dtype), data.layout)

    def cpu(self, ctx: Context) -> Data:
        where = (ctx.samples.position - self.first) % len(self.data)
        taken: Data = self.data.take(where, ctx.samples)
        if ctx.stage != "cpu":
            taken = ctx.device.to_device(taken)
        return taken

    gpu = cpu


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """A call of the body."""

    number: int
    """Equal calls of different iterations have one number."""
    name: str
    where: str
    """The program's line, when it was first made."""
    plan: calls.Plan | None
    """None where a value is only moved."""
    to_gpu: bool
    """Where it is moved."""
    inputs: tuple[Any, ...]
    """A `Place` and whether a batch stands there; or an invariant value."""
    named: tuple[tuple[str, Any], ...]
    n: int | None
    rng: RNG | None
    at: int
    """The generator's place before the call, from its place before the first call of the body that draws from it."""


class RngForecast:
    """Where the generators of a body will be. The program's thread writes it, the engine's reads it."""

    def __init__(self) -> None:
        self._drawing: tuple[RecordedCall, ...] = ()
        self._known: dict[int, tuple[RNG, int, int, int]] = {}

    def expect(self, drawing: Sequence[RecordedCall]) -> None:
        """The body's random calls."""
        self._drawing = tuple(drawing)

    def note(self, places: dict[int, tuple[RNG, int, int, int]]) -> None:
        """At the end of an iteration, of each generator by its identity: the iteration, the place before the first
        draw of the next one, and the draws of one iteration."""
        self._known = {**self._known, **places}

    def states(self, iteration: int) -> dict[int, calls.State]:
        """The states of the random calls of ``iteration``, by their numbers."""
        known = self._known
        found: dict[int, calls.State] = {}
        for call in self._drawing:
            rng, last, place, each = known[id(call.rng)]
            at = place + (iteration - last - 1) * each + call.at
            found[call.number] = RNG(state=RNGState(rng.state.key, at & ((1 << 130) - 1))).seven()
        return found


@dataclass(frozen=True, slots=True)
class ReaderInputs:
    """The loop's own values are what a reader reads."""

    op: Any
    source: Any
    order: Any
    first: int
    """The position of the first sample of iteration 0."""
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class ProgramInputs:
    """The loop's own values are what the program gives, batch after batch."""

    outputs: int


@dataclass(frozen=True, slots=True)
class IterationInputs:
    """One iteration: what is known of it before its body runs."""

    values: Mapping[Place, Data]
    states: Mapping[int, calls.State]
    """Those that random calls were made with."""
    made: Collection[int]
    """The calls that were made."""
    samples: Samples


class BodyGraph:
    """The graph of a body, so far."""

    def __init__(self, root: ReaderInputs | ProgramInputs, first: int) -> None:
        self.nodes: list[Node] = []
        self.edges: dict[Place, Edge] = {}
        self.refused: dict[int, str] = {}
        """Calls that the loop makes by itself, and why."""
        self._specs: dict[Edge, Spec] = {}
        self._on_gpu: set[Edge] = set()
        self._first = first
        op = root.op if isinstance(root, ReaderInputs) else ExternalSource(arity=root.outputs)
        self._root = op
        made = self._add(op, (), {}, "cpu", _READER)
        if isinstance(root, ReaderInputs) and root.on_gpu:
            made = [self._moved(e, True) for e in made]
        self.edges |= {(ROOT, k): e for k, e in enumerate(made)}

    def _add(
        self, op: Operator, inputs: Sequence[Edge], args: Mapping[str, Edge], stage: Any, seed: int | None = None
    ) -> list[Edge]:
        number = len(self.nodes)
        node = Node(number, op, tuple(inputs), dict(args), f"{op.name}_{number + 1}", device=stage, seed=seed)
        specs = infer_node(node, [self._specs[e] for e in inputs])
        self.nodes.append(node)
        made = [Edge(number, k) for k in range(op.num_outputs)]
        self._specs |= zip(made, specs, strict=True)
        if stage != "cpu" and not op.output_after_sync:
            self._on_gpu |= set(made)
        return made

    def _moved(self, edge: Edge, to_gpu: bool) -> Edge:
        if (edge in self._on_gpu) == to_gpu:
            return edge
        return self._add(Copy(num_inputs=1), [edge], {}, "gpu" if to_gpu else "cpu")[0]

    def root_in(self, graph: Graph) -> int:
        """The number of the root in ``graph``, which was made of this one; -1 where nothing needs it."""
        return next((node.id for node in graph.nodes if node.op is self._root), -1)

    def add(self, call: RecordedCall) -> None:
        """A call, unless the pipeline cannot make it."""
        try:
            found = [self._edge(r) for r in call.inputs]
            named = {name: self._edge(r) for name, r in call.named}
            if any(e is None for e in (*found, *named.values())):
                return  # it needs a call that was refused
            inputs = [e for e in found if e is not None]
            if call.plan is None:
                self.edges[call.number, 0] = self._moved(inputs[0], call.to_gpu)
                return
            if call.n is None:
                raise SpecError("it makes one tensor; batch_size= makes a batch")
            args = {name: self._moved(e, False) for name, e in named.items() if e is not None}
            made = self._add(call.plan.op, inputs, args, call.plan.stage, call.number)
        except SpecError as e:
            self.refused[call.number] = str(e)
            return
        self.edges |= {(call.number, k): e for k, e in enumerate(made)}

    def _edge(self, ref: Any) -> Edge | None:
        if isinstance(ref, Value):
            data = ref.held()
            return self._add(CapturedConstant(data=data, first=self._first), (), {}, "cpu" if data.on_host else "gpu")[
                0
            ]
        place, many = ref
        if not many:
            raise SpecError("it takes one tensor for all samples; batch_size= makes a batch")
        return self.edges.get(place)


class CapturedPipeline:
    """A captured loop's pipeline, at work."""

    def __init__(
        self, root: ReaderInputs | ProgramInputs, body: Sequence[RecordedCall], wanted: Collection[Place],
        forecast: RngForecast, n: int, start: int, num_threads: int, device_id: int | None,
    ) -> None:  # fmt: skip
        """The calls of ``body`` for batches of ``n`` from iteration ``start`` on; the results at the places ``wanted``
        are handed out. Raises SpecError where they make no pipeline."""
        first = root.first if isinstance(root, ReaderInputs) else 0
        drawn = BodyGraph(root, first)
        for call in body:
            drawn.add(call)
        self.refused = drawn.refused
        self.made = frozenset(number for number, _ in drawn.edges)
        """The calls that it makes."""
        self._n, self._root = n, root
        self.iteration = start
        """The next one to be taken."""
        places = [p for p in wanted if p in drawn.edges] or [(ROOT, 0)]
        self.gives = frozenset(places)
        self._forecast = forecast
        gpu = any(node.device in ("gpu", "mixed") for node in drawn.nodes)
        target = Target("gpu", (device_id or 0,), auto_mixed=False) if gpu else Target("cpu")
        outputs = {str(k): drawn.edges[p] for k, p in enumerate(places)}
        plan = compile_graph(Graph(tuple(drawn.nodes), outputs), target)
        self.plan = plan
        self._edges = {p: plan.graph.outputs[str(k)] for k, p in enumerate(places)}
        forecast.expect([c for c in body if c.rng is not None and c.number in self.made])
        reads = isinstance(root, ReaderInputs)
        options = Options(
            num_threads=num_threads, cpu_queue=QUEUE, gpu_queue=QUEUE, lanes=lanes_for(QUEUE), to_host=False,
            rng="dali", isolation="none", together=reads, asked=not reads, repeats=reads,
            guest=True,
        )  # fmt: skip
        self._fed = FedBatches()
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        feed = _Feed(drawn.root_in(plan.graph), self._fed, root)
        schedule = _endless(start, n, forecast) if reads else _asked(self._requests)
        self._engine = Engine(plan, feed, schedule, options)
        self._engine.start()

    def give(self, iteration: int, outputs: tuple[Data, ...]) -> None:
        """The loop's own values of an ``iteration``, which come in order."""
        start = iteration * self._n
        self._fed.put(start, outputs)
        self._requests.put(Request(start, len(outputs[0]), self._forecast.states(iteration)))
        self._engine.ask()

    def take(self) -> IterationInputs | None:
        """The next iteration; None where a sample of it failed. Raises what ended the pipeline."""
        it = next(self._engine)
        at, self.iteration = self.iteration, self.iteration + 1
        assert it.request.start == at * self._n
        if any(not d.kept for d in it.dropped):
            return None
        named: dict[int, Samples] = {}

        def placed(batch: Data) -> Data:
            """With places counted from 0, also where several batches went together."""
            of = id(batch.samples)
            if of not in named:
                slot = batch.samples.slot
                named[of] = batch.samples if slot[0] == 0 else replace(batch.samples, slot=slot - slot[0])
            return batch if named[of] is batch.samples else batch.replace(samples=named[of])

        values = {place: placed(it.env[edge]) for place, edge in self._edges.items()}
        states = {} if not it.draws else next(s for low, _, s in it.draws if low == int(it.everyone.slot[0]))
        return IterationInputs(values, states, self.made, it.everyone)

    def stop(self) -> None:
        """End the threads."""
        self._requests.put(None)
        self._engine.stop()

    def abandon(self, then: Callable[[], object]) -> None:
        """`stop`, and then ``then()``, for destructors: waits for nothing."""
        self._requests.put(None)
        self._engine.abandon(then)


class _Feed:
    """The engine's source of samples. It must not hold the reader, whose end stops the engine."""

    def __init__(self, number: int, fed: FedBatches, root: ReaderInputs | ProgramInputs) -> None:
        """``number`` is the root's in the graph."""
        self.states: Mapping[int, Any] = {number: root.source if isinstance(root, ReaderInputs) else fed}
        self.kinds: Mapping[Edge, Spec] = {}  # as in DALI, every batch has types of its own
        self._number, self._root = number, root

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """The samples of the batch at ``request``."""
        root = self._root
        if isinstance(root, ProgramInputs):
            return numbered(request), {}
        found: Samples = root.order.samples(root.first + request.start, request.n, root.source)
        return found, {self._number: found}


def _endless(start: int, n: int, forecast: RngForecast) -> Iterator[Request]:
    for iteration in itertools.count(start):
        yield Request(iteration * n, n, forecast.states(iteration))


def _asked(requests: queue.SimpleQueue[Request | None]) -> Iterator[Request]:
    while (request := requests.get()) is not None:
        yield request
