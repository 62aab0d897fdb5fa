"""Debug mode: operators run as soon as they are called, and their data can be looked at."""

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
from ..engine.nodes.node_pass import Env, NodePass
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
    """The output of an operator that has run already."""

    __slots__ = ()

    def get(self) -> TensorList:
        """The data."""
        assert isinstance(self.builder, Eager)
        return tensor_list(self.builder.batch(self.edge))

    def source(self) -> TensorList:
        """The data."""
        return self.get()


class Fed(ExternalSource, name="_debug.fed"):
    """Data of the user's that takes the place of a DataNode."""


class Eager(EagerBuilder):
    """The graph of one iteration, run while it is built."""

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
        """The data of ``edge``."""
        self.run_all()
        return self.env[edge]

    def run_all(self) -> None:
        """Run what was added since the last time."""
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
        given = [self.nodes[e.node].specs[e.output] for e in node.inputs]
        node = replace(node, specs=infer_node(node, given), stage=self._stage(node))
        self.nodes[node.id] = node
        run = NodePass(samples=self.samples, seeds={node.id: self.kept.seed(node)}, rng=self.kept.rng)
        if isinstance(node.op, Reader):
            source, order = self.kept.source(node)
            run.states = {node.id: source}
            own = order.samples(self.request.start, self.request.n, source)
            run.reader_samples = {node.id: own}
            if not self.reads:  # the first reader gives the samples their names
                self.reads, self.samples = True, own
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
        if run.dropped:
            d = run.dropped[0]
            raise JobError(f"{d.node}: sample {d.slot}: {d.code}: {d.message}")

    def _settle(self, name: str, n: int) -> None:
        """The first source says how many samples this iteration has; what ran before it loses the others."""
        if n != len(self.samples):
            if self.settled:
                raise JobError(f"the inputs of one iteration must have equally many samples: {name} gave {n}, what was "
                               f"called before it {len(self.samples)}")  # fmt: skip
            self.request = Request(self.request.start, n)
            self.samples = self.samples.take(slice(n))
            self.env |= {e: b.take(slice(n), self.samples) for e, b in self.env.items()}
        self.settled = True

    def _stage(self, node: Node) -> Stage:
        if self.kept.device_id is None or isinstance(node.op, (Split, Merge)):
            return "cpu"
        if node.device in ("mixed", "gpu"):
            return node.device
        on_device = any(not self.env[e].on_host for e in node.inputs)
        return "gpu" if on_device and node.device != "cpu" else "cpu"


class Kept:
    """State that stays from one iteration to the next: data sets, sources, seeds."""

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
        """Data of feed_input for external_sources that have not been called yet."""
        self._known: dict[int, str] = {}

    @property
    def lane(self) -> Any:
        """The stream that everything runs on."""
        if self._lane is None:
            self._lane = Lane(self.device_id or 0)
        return self._lane

    def check(self, node: Node) -> None:
        """Raises RuntimeError where the operators came in another order than in the first iteration."""
        if self._known.setdefault(node.id, node.op.name) != node.op.name:
            raise RuntimeError(f"in debug mode the operators must be the same in every iteration: number {node.id} was "
                               f"{self._known[node.id]} and is now {node.op.name}")  # fmt: skip

    def seed(self, node: Node) -> int:
        """Of a random operator: its own, or by its place."""
        own = node.seed
        return own if own is not None and own >= 0 else int(self._pool[node.id % len(self._pool)])

    def source(self, node: Node) -> tuple[Any, Any]:
        """The data set of a reader, and its order."""
        if node.id not in self._readers:
            assert isinstance(node.op, Reader)
            source = node.op.open()
            groups = getattr(source, "groups", None)
            self._readers[node.id] = source, node.op.order(len(source), self.seed(node), self.batch_size, groups)
            self._names[node.id] = node.name, node.op
        return self._readers[node.id]

    def input(self, node: Node) -> Input:
        """The source of an external_source, or what is fed to an input."""
        if node.id not in self._inputs:
            assert isinstance(node.op, ProgramInput)
            made = self._inputs[node.id] = input_of(node, node.op.state(), self.batch_size)
            for data, layout in self._fed.pop(node.name, ()):
                made.feed(data, layout)
        return self._inputs[node.id]

    def feed(self, name: str, data: Any, layout: str | None) -> None:
        """Data of one batch for the external_source ``name``, which may not have been called yet."""
        found = next((i for i in self._inputs.values() if i.name == name), None)
        if found is None:
            self._fed.setdefault(name, []).append((data, layout))
        elif found.has_source:
            raise RuntimeError(f"{name} has a source: it cannot be fed by feed_input")
        else:
            found.feed(data, layout)

    def inputs(self) -> Mapping[int, Input]:
        """All sources."""
        return self._inputs

    def orders(self) -> Mapping[str, tuple[Reader, Any]]:
        """Readers and their orders, by name."""
        return {name: (op, self._readers[k][1]) for k, (name, op) in self._names.items()}

    def close(self) -> None:
        """Close the data sets and give the GPU's memory back; what is needed again is opened again."""
        for source, _ in self._readers.values():
            source.close()
        self._readers.clear()
        if self._lane is not None:
            self._lane.close()
            self._lane = None


class DebugPipeline(Pipeline):
    """A pipeline whose definition runs anew in every iteration."""

    def __init__(self, definition: Callable[[], Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._function = definition
        self._settings.check_batch_size()
        self._kept = Kept(self.max_batch_size, self._settings.run_seed, self._target_device(), self._settings.run.rng)
        self._number = 0
        self._ahead: tuple[TensorList, ...] | None = None
        """A batch that was made before it was asked for."""

    def _target_device(self) -> int | None:
        target = self._target()  # one operator at a time has no use for a second GPU
        return None if target.device == "cpu" else target.index

    def build(self) -> None:
        """Nothing to do: the definition is run by `run`."""

    def run(self, cuda_stream: Any = None, /, **pipeline_inputs: Any) -> tuple[TensorList, ...]:
        """Run the definition. Raises what it raises."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return ahead
        for name, data in pipeline_inputs.items():
            self.feed_input(name, data)
        eager = Eager(
            self._kept, Request(self._session.next, self.max_batch_size), self._session.iteration, self._session.epoch
        )
        from .data_node import pop_builder, push_builder
        from .pipeline import _current

        _current.append(self)
        push_builder(eager)
        try:
            outputs = self._definition.several(self._function())
            batches = [eager.batch(as_result(o).edge) for o in outputs]
        finally:
            pop_builder()
            _current.pop()
        session = self._session
        session.next += eager.request.n
        session.taken = session.next
        session.iteration += 1
        made = tuple(tensor_list(b) for b in batches)
        self._number = len(made)
        self._session.check_outputs(made)
        return made

    def feed_input(
        self, data_node: DataNode | str, data: Any, layout: str | None = None, cuda_stream: Any = None,
        use_copy_kernel: bool = False,
    ) -> None:  # fmt: skip
        """As `Pipeline.feed_input`, also before the external_source was called for the first time."""
        del cuda_stream, use_copy_kernel
        name = data_node if isinstance(data_node, str) else data_node.builder.nodes[data_node.edge.node].name
        self._kept.feed(name, data, layout)

    def input_feed_count(self, input_name: str) -> int:
        """1: nothing runs ahead. Raises KeyError for a name that no external_source had in the runs so far."""
        names = [i.name for i in self._kept.inputs().values()]
        if self._session.iteration and input_name not in names:
            raise KeyError(
                f"{input_name!r} is no external_source of this pipeline; it has: {', '.join(names) or 'none'}"
            )
        return 1

    def _define(self) -> None:
        raise RuntimeError("in debug mode there is no graph: build the pipeline without debug=True for its graph, its "
                           "YAML, to serialise it, and for checkpoints")  # fmt: skip

    @property
    def plan(self) -> Plan:
        """Always raises RuntimeError: the debug mode has no plan."""
        self._define()
        raise AssertionError

    @property
    def output_names(self) -> tuple[str, ...]:
        """Keys of the dict that the definition returned; empty without."""
        return tuple(self._definition.names or ())

    @property
    def num_outputs(self) -> int:
        """Outputs of the last run."""
        return self._number

    def schedule_run(self) -> None:
        """Nothing runs ahead in debug mode."""

    _prefetch = _run_once = schedule_run

    def outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """As `run`."""
        return self.run()

    share_outputs = _outputs = outputs

    def reset(self) -> None:
        """Begin a new epoch of the sources."""
        self._session.iteration = 0
        self._session.epoch += 1
        for i in self._kept.inputs().values():
            i.reset()

    def close(self) -> None:
        """Close the data sets and give the GPU's memory back."""
        self._kept.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_kept") and not ending():  # at the end modules go, too, and the system closes files
            self.close()

    def reader_meta(self, name: str | None = None) -> dict[str, Any]:
        """As `Pipeline.reader_meta`. Where nothing has run yet, the definition runs for the first batch, which the next
        `run` then gives. Raises SpecError."""
        if not self._number:
            self._ahead = self.run()
        return meta_of({n: reader_facts(op, order) for n, (op, order) in self._kept.orders().items()}, name)
