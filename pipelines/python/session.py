"""Session: the running state of a built pipeline: data sets, inputs, worker processes, engine and counters. Owned by
`Pipeline`."""

from __future__ import annotations

import contextlib
import itertools
import queue
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ...ops.errors import JobError
from ...ops.types import DALIDataType
from ...readers.base import Reader
from ...readers.external_source import ExternalSource
from ..compile.place import Target
from ..compile.plan import Plan, compile_graph
from ..engine.engine import Engine, InFlightBatch, Options, Request
from ..engine.inputs import EndlessFeed, Sources
from ..engine.nodes.node_pass import Loss
from ..engine.options import lanes_for, read_ahead_depth
from ..engine.stats import Stats
from ..graph.nodes import Edge, Graph
from ..user_warnings import warn
from .data_node import DataNode
from .settings import Settings
from .sources.fed import Input
from .sources.processes import ParallelSource, WorkerPool
from .sources.source import SourceInput, input_of
from .tensors import TensorList, tensor_list


class Session:
    """The running state of one `Pipeline`, which owns it: open data sets, the engine, positions. The engine computes
    batches ahead as far as its queues allow. Only the program's thread uses the fields."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.built: Plan | None = None
        self.sources: Sources | None = None
        self.stats = Stats()
        self.started = self.taken = 0
        """Positions, in the order of samples, of the last returned batch: of its first sample, and after its last
        sample."""
        self.dropped: list[Loss] = []
        """Samples that are missing in the last returned batch, with the reasons."""
        self.next = 0
        """Position, in the order of samples, of the next batch to schedule."""
        self.iteration = 0
        """Number of the next batch to schedule, counted from the start of its epoch."""
        self.epoch = 0
        self.in_flight = 0
        """Number of batches that are scheduled and not yet returned."""
        self.prefetched = False
        self.ended = False
        self._opened = False
        self._closed = False
        self._opened_inputs: dict[str, Input] = {}
        self._workers: WorkerPool | None = None
        self._engine: Engine | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._edges: list[Edge] = []
        """Outputs of the pipeline in their order, each as an edge of the compiled graph."""
        self._outputs = 0
        """Number of the pipeline's outputs."""
        self._promised = False
        """Whether arguments of the pipeline declare types, dimensions or layouts of the outputs, to be checked."""
        self._setup: Callable[[], Callable[[], None] | None] = lambda: None
        self._own_setup = False

    def set_up_by(self, method: Callable[[], None]) -> None:
        """Register the bound method ``method`` of the pipeline, to be called before every iteration. The reference is
        weak, so that threads do not keep the pipeline alive."""
        self._setup = weakref.WeakMethod(method)
        self._own_setup = True

    # -- building -----------------------------------------------------------------------------------------------

    def build(self, graph: Graph, target: Target, outputs: int) -> None:
        """Compile the graph and, unless a reader has ``lazy_init``, open the data sets."""
        self._outputs = outputs
        promoting = self._settings.promote_to_gpu
        self.built = compile_graph(graph, target, self._settings.run_seed, promoting=promoting)
        self._say_unused()
        if not any(isinstance(n.op, Reader) and n.op.lazy_init for n in self.built.graph.nodes):
            with self.undone():
                self.open()

    def _say_unused(self) -> None:
        for node in self.plan.graph.nodes:
            if isinstance(node.op, ExternalSource) and node.op.source is not None:
                idle = sorted(set(range(node.op.num_outputs)) - self._used(node.id))
                if idle:
                    listed = ", ".join(map(str, idle))
                    warn(f"{node.name}: the source returns {node.op.num_outputs} outputs, of which {listed} "
                         "(counted from 0) are not used; make the source return only the others", Warning)  # fmt: skip

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Return a context manager that undoes the building of the pipeline if its body raises. The program can then
        build again."""
        try:
            yield
        except BaseException:
            self._close_inputs()
            self.built = None
            raise

    def _close_inputs(self) -> None:
        workers, sources = self._workers, self.sources
        self._workers = self.sources = None
        self._opened = False
        self._opened_inputs.clear()
        if workers is not None:
            workers.close()
        if sources is not None:
            sources.close()

    @property
    def plan(self) -> Plan:
        """The compiled graph: its steps and devices."""
        assert self.built is not None
        return self.built

    def open(self) -> None:
        """Open the data sets and start worker processes, if not yet done. Raises RuntimeError if the pipeline was
        closed."""
        plan = self.plan  # building the plan may have opened them
        if self._closed:
            raise RuntimeError(
                "the pipeline is closed: its threads have ended and its data sets are closed; create a new one"
            )
        if self._opened:
            return
        self._opened = True
        try:
            self._open(plan)
        except BaseException:
            self._close_inputs()
            raise

    def _open(self, plan: Plan) -> None:
        self.sources = Sources(plan, self._settings.batch_size)
        for node in plan.graph.nodes:
            if node.id in self.sources.states and not isinstance(node.op, Reader):
                state = self.sources.states[node.id]
                fed_input = input_of(node, state, self._settings.batch_size, self._used(node.id))
                self._opened_inputs[node.name] = fed_input
        if self._settings.checkpointing:
            for i in self._opened_inputs.values():
                i.say_if_lost()
        self.start_workers()

    def _used(self, node: int) -> set[int]:
        """Return the indices of the outputs of node number ``node`` that other nodes or the program need."""
        graph = self.plan.graph
        edges = [e for n in graph.nodes for e in (*n.inputs, *n.args.values())] + [*graph.outputs.values()]
        return {e.output for e in edges if e.node == node}

    @property
    def inputs(self) -> dict[str, Input]:
        """The inputs of the graph for which the program feeds data or passes a source, by name."""
        self.open()
        return self._opened_inputs

    def start_workers(self) -> None:
        """Start the worker processes of parallel external_sources, if not yet done."""
        self.open()
        parallel = [i for i in self.inputs.values() if isinstance(i, SourceInput) and i.op.parallel and i.has_source]
        if not parallel or self._workers is not None or self._settings.py_num_workers < 1:
            return
        parallel_sources = [
            ParallelSource(i.name, i.op.source, i.op.arity, i.op.batch, i.op.batch_info, i.wants_info, i.is_function,
                           i.op.cycle)
            for i in parallel
        ]  # fmt: skip
        depths, settings = {i.name: i.op.prefetch_queue_depth for i in parallel}, self._settings
        self._workers = WorkerPool(parallel_sources, settings.batch_size, depths, settings.py_num_workers,
                                   settings.py_start_method, settings.py_callback_pickler)  # fmt: skip
        for i in parallel:
            i.workers = self._workers

    def shared_memory(self) -> list[int]:
        """Return the sizes in bytes of the shared-memory blocks of parallel external_sources."""
        return self._workers.capacities() if self._workers is not None else []

    # -- running ------------------------------------------------------------------------------------------------

    @property
    def self_driven(self) -> bool:
        """Whether no batch needs data from the program, so that the engine computes batches ahead on its own."""
        return not self.inputs and not self._own_setup

    def engine(self) -> Engine:
        """Return the running engine; the first call starts it."""
        if self._engine is None:
            plan = self.plan
            self.open()
            assert self.sources is not None
            options = Options(
                num_threads=self._settings.num_threads,
                cpu_queue=self._read_ahead(plan),
                gpu_queue=self._settings.gpu_queue_size,
                lanes=lanes_for(self._settings.gpu_queue_size),
                to_host=False,
                policy=self._settings.on_error,
                **self._settings.run.shared(),
                merge_requests=self.self_driven and self._settings.run.rng == "philox",
                on_demand=not self.self_driven or _is_launched(plan),
                repeats=True,
                guest=True,
                inline=True,
            )
            outputs = plan.graph.outputs
            self._edges = [outputs[str(i)] for i in range(self._outputs)]
            promises = self._settings.output_dtype, self._settings.output_ndim, self._settings.output_layout
            self._promised = any(p is not None for p in promises)
            schedule = _endless(self.next, self._settings.batch_size) if self.self_driven else _asked(self._requests)
            self._engine = Engine(plan, EndlessFeed(self.sources), schedule, options, self.stats)
            self._engine.start()
        return self._engine

    def remembered(self) -> dict[str, int]:
        """Return the number of bytes that each operator caches for the next epoch, by its name; empty if caching is
        off."""
        cache = None if self._engine is None else self._engine.services.remembered
        return {} if cache is None else {n.name: cache.nbytes(n.op) for n in self.plan.graph.nodes}

    def _read_ahead(self, plan: Plan) -> int:
        """Return the largest number of batches to read before the GPU needs them. Several batches are read at the same
        time."""
        depth, ahead = self._settings.cpu_queue_size, plan.target.device == "gpu" and self.self_driven
        return read_ahead_depth(depth, self._settings.num_threads, asked=not ahead)

    def schedule_one(self) -> None:
        """Get the program's data for one more batch, and schedule that batch."""
        if self.ended:
            return
        engine = self.engine()
        if self.self_driven:
            self.in_flight += 1
            engine.request_next()
            return
        try:
            setup = self._setup()
            if setup is not None:
                setup()
            inputs = [*self._opened_inputs.values()]
            polled = [i.poll(self.iteration, self.epoch) for i in inputs]
        except StopIteration:
            self.ended = True
            return
        batches = [i.batches(data) for i, data in zip(inputs, polled, strict=True)]
        n = len(batches[0][0]) if batches else self._settings.batch_size
        if len(batches) > 1 and any(len(b[0]) != n for b in batches):
            listed = ", ".join(f"{i.name} has {len(b[0])}" for i, b in zip(inputs, batches, strict=True))
            raise JobError(f"the inputs of one iteration must have equally many samples: {listed}")
        for i, outputs in zip(inputs, batches, strict=True):
            i.state.put(self.next, outputs)
        self._requests.put(Request(self.next, n))
        self.next += n
        self.iteration += 1
        self.in_flight += 1
        engine.request_next()

    def can_feed(self) -> bool:
        """Return whether every input has data from the program for one more batch."""
        for i in self.inputs.values():
            if not i.ready:
                return self._own_setup
        return True

    def schedule(self) -> None:
        """Start the next iteration without waiting for it; the first call starts enough iterations to fill the
        queue."""
        if self.prefetched or not self._settings.exec_pipelined:
            self.schedule_one()
        else:
            self.prefetch()

    def prefetch(self) -> None:
        """Start iterations until the queue is full, a fed input has no more data, or the sources end."""
        for k in range(self.in_flight, self._settings.deepest_queue):
            if k and not self.can_feed():
                break
            self.schedule_one()
        self.prefetched = True

    def take(self) -> tuple[TensorList, ...]:
        """Remove the oldest scheduled iteration, and return its outputs. Raises StopIteration if none is scheduled, and
        the error of the iteration if it failed."""
        if self.in_flight == 0:
            raise StopIteration
        try:
            iteration: InFlightBatch = next(self.engine())
        except BaseException:
            self.in_flight -= 1
            raise
        self.in_flight -= 1
        self.started = iteration.request.start
        self.taken = iteration.request.start + iteration.request.n
        self.dropped = iteration.dropped
        env = iteration.env
        result = tuple([tensor_list(env[edge]) for edge in self._edges])
        if self._promised:
            self.check_outputs(result)
        return result

    def reset(self) -> None:
        """Begin a new epoch of the sources, if the last one has ended."""
        if not self.ended:
            return
        self.ended = False
        self.prefetched = False
        self.iteration = 0
        self.epoch += 1
        for i in self.inputs.values():
            i.reset()

    def input(self, node: DataNode | str) -> Input:
        """Return the `Input` for ``node``, a DataNode or the name of an external_source. Raises KeyError, TypeError."""
        if not isinstance(node, (str, DataNode)):
            raise TypeError(f"an input is given by its name or its DataNode, got {node!r}")
        name = node if isinstance(node, str) else node.builder.nodes[node.edge.node].name
        if name not in self.inputs:
            known = ", ".join(self.inputs) or "none"
            raise KeyError(f"{name!r} is not an external_source of this pipeline that an output needs; it has: {known}")
        return self.inputs[name]

    def check_outputs(self, outputs: tuple[TensorList, ...]) -> None:
        """Raise RuntimeError if outputs differ from the types, dimensions or layouts that the pipeline's arguments
        declare."""
        checks: list[tuple[str, Any, Any]] = [
            ("dtype", self._settings.output_dtype, lambda t: t.dtype),
            ("ndim", self._settings.output_ndim, lambda t: t.batch.ndim),
            ("layout", self._settings.output_layout, lambda t: t.layout()),
        ]
        for trait, declared, of in checks:
            if declared is None:
                continue
            each = list(declared) if isinstance(declared, (list, tuple)) else [declared] * len(outputs)
            if len(each) != len(outputs):
                raise RuntimeError(f"output_{trait} has {len(each)} entries for {len(outputs)} outputs")
            for i, (want, output) in enumerate(zip(each, outputs, strict=True)):
                if want is not None and of(output) != want:
                    got, need = (_shown(v) for v in (of(output), want))
                    raise RuntimeError(f"output {i} has {trait} {got}; output_{trait} requires {need}")

    def let_go(self) -> tuple[Engine | None, Callable[[], None]]:
        """Detach the engine from the session, and return (engine, close). The caller stops the engine, then calls
        ``close()`` to close its inputs."""
        self._closed = self._opened
        engine, workers, sources = self._engine, self._workers, self.sources
        self._engine = self._workers = self.sources = None
        if engine is not None:
            self._requests.put(None)

        def close_inputs() -> None:
            if workers is not None:
                workers.close()
            if sources is not None:
                sources.close()

        return engine, close_inputs


# Generators that the engine's threads use must not refer to the pipeline, which stops the threads when it is deleted.


def _is_launched(plan: Plan) -> bool:
    """Return whether the whole graph runs on a GPU, without data from the CPU. No CPU work can then be done ahead."""
    return all(n.stage == "gpu" and (n.inputs or n.op.replayable) for n in plan.graph.nodes)


def _endless(start: int, batch_size: int) -> Iterator[Request]:
    for at in itertools.count(start, batch_size):
        yield Request(at, batch_size)


def _asked(requests: queue.SimpleQueue[Request | None]) -> Iterator[Request]:
    while (request := requests.get()) is not None:
        yield request


def _shown(value: Any) -> str:
    return value.name if isinstance(value, DALIDataType) else repr(value)
