"""Debug mode: operators run as soon as they are called, so that the program can inspect their data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...ops.base import Spec, Stage
from ...ops.batch import Batch, Samples
from ...ops.errors import JobError, SpecError
from ...ops.gpu.lane import Lane
from ...ops.streams import seed_sequence
from ...ops.types import from_numpy
from ...readers.base import Reader
from ...readers.external_source import ExternalSource, ProgramInput
from ..compile.infer import infer_node
from ..compile.plan import Plan
from ..engine.engine import Request
from ..engine.inputs import numbered
from ..engine.nodes.node_pass import Env, NodePass, one_by_one
from ..engine.nodes.run_nodes import finish_late, run_nodes
from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Node
from .arrays import as_batch
from .data_node import DataNode, EagerBuilder, as_result
from .pipeline import Pipeline
from .reader_facts import meta_of, reader_facts
from .sources.fed import Input
from .sources.source import input_of
from .tensors import TensorList, tensor_list


class DataNodeDebug(DataNode):
    """The output of an operator in debug mode, whose data is already computed."""

    __slots__ = ()

    def get(self) -> TensorList:
        """Return the computed data."""
        assert isinstance(self.builder, Eager)
        return tensor_list(self.builder.batch(self.edge))

    def source(self) -> TensorList:
        """Return the computed data, like `get`."""
        return self.get()


class Fed(ExternalSource, name="_debug.fed"):
    """Operator whose output is a batch that the user's program passed where a DataNode was expected."""


class Eager(EagerBuilder):
    """The graph of one iteration in debug mode, whose operators run while it is built. Created by
    `DebugPipeline.run`."""

    def __init__(self, kept: Kept, request: Request, iteration: int, epoch: int) -> None:
        super().__init__()
        self.kept = kept
        self.request = request
        self.iteration = iteration
        self.epoch = epoch
        self.env: Env = {}
        self.fed: dict[int, Batch] = {}
        self.done = 0
        self.reads = self.settled = False
        self.samples: Samples = numbered(request)

    def ran(self, edge: Edge, device: str) -> DataNode:
        self.run_all()
        return DataNodeDebug(self, edge, device)

    def feed(self, value: Any) -> DataNode:
        batch = as_batch(value, "")
        if len(batch) != len(self.samples):
            raise SpecError(f"the batch has {len(batch)} samples, the pipeline's batches {len(self.samples)}")
        (edge,) = self.add(Fed, [], {})
        self.fed[edge.node] = batch
        return self.ran(edge, "cpu" if batch.on_host else "gpu")

    def batch(self, edge: Edge) -> Batch:
        """Return the computed data of the operator output ``edge``."""
        self.run_all()
        return self.env[edge]

    def run_all(self) -> None:
        """Run the operators that were added to the graph since the last call."""
        while self.done < len(self.nodes):
            at = self.done
            self.done += 1
            self._run(self.nodes[at])

    def _run(self, node: Node) -> None:
        self.kept.check(node)
        if isinstance(node.op, Fed):
            batch = self.fed[node.id].replace(samples=self.samples)
            self.env[Edge(node.id)] = batch
            spec = Spec((None,) * batch.ndim, from_numpy(batch.dtype), batch.layout)
            self.nodes[node.id] = replace(node, specs=(spec,))
            return
        input_specs = [self.nodes[e.node].specs[e.output] for e in node.inputs]
        node = replace(node, specs=infer_node(node, input_specs), stage=self._stage(node))
        self.nodes[node.id] = node
        run = NodePass(samples=self.samples, seeds={node.id: self.kept.seed(node)}, rng=self.kept.rng)
        if isinstance(node.op, Reader):
            source, order = self.kept.source(node)
            run.states = {node.id: source}
            reader_samples = order.samples(self.request.start, self.request.n, source)
            run.reader_samples = {node.id: reader_samples}
            if not self.reads:  # the first reader names the samples
                self.reads, self.samples = True, reader_samples
        elif isinstance(node.op, ProgramInput):
            external = self.kept.input(node)
            batches = external.batches(external.poll(self.iteration, self.epoch))
            self._settle(external.name, len(batches[0]))
            external.state.put(self.request.start, batches)
            run.samples, run.states = self.samples, {node.id: external.state}
        if node.stage == "cpu":
            run_nodes([node], self.env, run)
        else:
            run.device = lane = self.kept.lane
            with lane:
                run_nodes([node], self.env, run)
            lane.synchronize()
            finish_late(run, self.env)
        for d in one_by_one(run.dropped):
            raise JobError(f"{d.node}: sample {d.slot}: {d.code}: {d.message}")

    def _settle(self, name: str, n: int) -> None:
        """Set the number of samples of this iteration to ``n``, the size of the first batch from an external source.
        Cut earlier outputs to ``n`` samples. Raises JobError if another source had a different size."""
        if n != len(self.samples):
            if self.settled:
                raise JobError(f"the inputs of one iteration must have equally many samples: {name} has {n}, operators "
                               f"called before it {len(self.samples)}")  # fmt: skip
            self.request = Request(self.request.start, n)
            self.samples = self.samples.take(slice(n))
            self.env |= {e: b.take(slice(n), self.samples) for e, b in self.env.items()}
        self.settled = True

    def _stage(self, node: Node) -> Stage:
        if self.kept.device_id is None or isinstance(node.op, (Split, Merge)):
            return "cpu"
        if node.device in ("mixed", "gpu"):
            return "cpu" if node.reads_to_gpu else node.device
        on_device = any(not self.env[e].on_host for e in node.inputs)
        return "gpu" if on_device and node.device != "cpu" else "cpu"


class Kept:
    """State that a pipeline in debug mode keeps between iterations: open data sets, external sources, seeds. Owned by
    `DebugPipeline`."""

    def __init__(self, batch_size: int, seed: int, device_id: int | None, rng: str) -> None:
        self.batch_size = batch_size
        self.device_id = device_id
        self.rng = rng
        self._lane: Any = None
        self._pool = seed_sequence(seed, 1024)
        self._readers: dict[int, tuple[Any, Any]] = {}
        self._names: dict[int, tuple[str, Reader]] = {}
        self._inputs: dict[int, Input] = {}
        self._fed: dict[str, list[tuple[Any, str | None]]] = {}
        """Data (and layout) passed to feed_input, by the name of an external_source that was not yet called."""
        self._known: dict[int, str] = {}

    @property
    def lane(self) -> Any:
        """The GPU lane (CUDA stream and memory) on which all operators run; opened at the first use."""
        if self._lane is None:
            self._lane = Lane(self.device_id or 0)
        return self._lane

    def check(self, node: Node) -> None:
        """Raise RuntimeError if ``node`` is not the operator that the first iteration called at this position."""
        if self._known.setdefault(node.id, node.op.name) != node.op.name:
            raise RuntimeError(f"in debug mode the operators must be the same in every iteration: number {node.id} was "
                               f"{self._known[node.id]} and is now {node.op.name}")  # fmt: skip

    def seed(self, node: Node) -> int:
        """Return the seed of a random operator: the seed that it was given, or one that depends on its position in the
        graph."""
        seed = node.seed
        return seed if seed is not None and seed >= 0 else int(self._pool[node.id % len(self._pool)])

    def source(self, node: Node) -> tuple[Any, Any]:
        """Return the open data set of a reader, and its order of samples."""
        if node.id not in self._readers:
            assert isinstance(node.op, Reader)
            source = node.op.open()
            self._readers[node.id] = source, node.op.order_of(source, self.seed(node), self.batch_size)
            self._names[node.id] = node.name, node.op
        return self._readers[node.id]

    def input(self, node: Node) -> Input:
        """Return the `Input` of an external_source, or of another operator that the program feeds."""
        if node.id not in self._inputs:
            assert isinstance(node.op, ProgramInput)
            created = self._inputs[node.id] = input_of(node, node.op.state(), self.batch_size)
            for data, layout in self._fed.pop(node.name, ()):
                created.feed(data, layout)
        return self._inputs[node.id]

    def feed(self, name: str, data: Any, layout: str | None) -> None:
        """Store the data of one batch for the external_source ``name``, which may not have been called yet."""
        fed_input = next((i for i in self._inputs.values() if i.name == name), None)
        if fed_input is None:
            self._fed.setdefault(name, []).append((data, layout))
        elif fed_input.has_source:
            raise RuntimeError(f"{name} has a source: it cannot be fed by feed_input")
        else:
            fed_input.feed(data, layout)

    def inputs(self) -> Mapping[int, Input]:
        """Return the inputs that the program feeds, by the id of their node."""
        return self._inputs

    def orders(self) -> Mapping[str, tuple[Reader, Any]]:
        """Return each reader with its order of samples, by the reader's name."""
        return {name: (op, self._readers[k][1]) for k, (name, op) in self._names.items()}

    def close(self) -> None:
        """Close the data sets and free the GPU memory. Later calls open both again if needed."""
        for source, _ in self._readers.values():
            source.close()
        self._readers.clear()
        if self._lane is not None:
            self._lane.close()
            self._lane = None


class DebugPipeline(Pipeline):
    """A pipeline in debug mode: every iteration runs the definition again, and operators run when they are called."""

    def __init__(self, definition: Callable[[], Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._function = definition
        self._settings.check_batch_size()
        self._kept = Kept(self.max_batch_size, self._settings.run_seed, self._target_device(), self._settings.run.rng)
        self._number = 0
        self._ahead: tuple[TensorList, ...] | None = None
        """Outputs of the batch that `reader_meta` computed before the first `run`, which `run` returns next; None if
        there are none."""

    def _target_device(self) -> int | None:
        target = self._target()  # operators run one at a time and cannot use a second GPU
        return None if target.device == "cpu" else target.index

    def build(self) -> None:
        """Do nothing: in debug mode each `run` runs the definition."""

    def run(self, cuda_stream: Any = None, /, **pipeline_inputs: Any) -> tuple[TensorList, ...]:
        """Run the pipeline's definition and return its outputs. Exceptions in the definition propagate."""
        if self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        for name, data in pipeline_inputs.items():
            self.feed_input(name, data)
        eager = Eager(
            self._kept, Request(self._session.next, self.max_batch_size), self._session.iteration, self._session.epoch
        )
        from .data_node import pipelines_being_built, pop_builder, push_builder

        pipelines_being_built().append(self)
        push_builder(eager)
        try:
            outputs = self._definition.several(self._function())
            batches = [eager.batch(as_result(o).edge) for o in outputs]
        finally:
            pop_builder()
            pipelines_being_built().pop()
        session = self._session
        session.next += eager.request.n
        session.started, session.taken = eager.request.start, session.next
        session.iteration += 1
        tensor_lists = tuple(tensor_list(b) for b in batches)
        self._number = len(tensor_lists)
        self._session.check_outputs(tensor_lists)
        return tensor_lists

    def feed_input(
        self, data_node: DataNode | str, data: Any, layout: str | None = None, cuda_stream: Any = None,
        use_copy_kernel: bool = False,
    ) -> None:  # fmt: skip
        """Feed data like `Pipeline.feed_input`, also before the external_source is called for the first time."""
        del cuda_stream, use_copy_kernel
        name = data_node if isinstance(data_node, str) else data_node.builder.nodes[data_node.edge.node].name
        self._kept.feed(name, data, layout)

    def input_feed_count(self, input_name: str) -> int:
        """Return 1, because debug mode prefetches nothing. Raises KeyError for a name that no external_source had in
        earlier runs."""
        names = [i.name for i in self._kept.inputs().values()]
        if self._session.iteration and input_name not in names:
            raise KeyError(
                f"{input_name!r} is not an external_source of this pipeline; it has: {', '.join(names) or 'none'}"
            )
        return 1

    def _define(self) -> None:
        raise RuntimeError("in debug mode there is no graph: build the pipeline without debug=True for its graph, its "
                           "YAML, serialization and checkpoints")  # fmt: skip

    @property
    def plan(self) -> Plan:
        """Raise RuntimeError: the debug mode has no plan."""
        self._define()
        raise AssertionError

    @property
    def output_names(self) -> tuple[str, ...]:
        """Keys of the dict that the definition returned; empty if it returned no dict."""
        return tuple(self._definition.names or ())

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the last run."""
        return self._number

    def schedule_run(self) -> None:
        """Do nothing: debug mode prefetches nothing, and `outputs` runs the iteration."""

    _prefetch = _run_once = schedule_run

    def outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """Run the iteration and return its outputs, like `run`."""
        return self.run()

    share_outputs = _outputs = outputs

    def reset(self) -> None:
        """Begin a new epoch of the external sources."""
        self._session.iteration = 0
        self._session.epoch += 1
        for i in self._kept.inputs().values():
            i.reset()

    def close(self) -> None:
        """Close the data sets and free the GPU memory."""
        self._kept.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_kept") and not ending():  # at exit, modules are gone and the system closes files
            self.close()

    def reader_meta(self, name: str | None = None) -> dict[str, Any]:
        """Return reader facts like `Pipeline.reader_meta`. Before the first run, this runs the definition for the first
        batch; the next `run` returns that batch. Raises SpecError."""
        if not self._number:
            self._ahead = self.run()
        return meta_of({n: reader_facts(op, order) for n, (op, order) in self._kept.orders().items()}, name)
