"""Building: the graph of a pipeline, as it is written down in Python, and its compilation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...ops.base import Operator
from ...ops.errors import SpecError
from ...ops.gpu.lane import gpu_count
from ...ops.types import DALIDataType
from ...readers.base import Reader
from ..compile.place import Target
from ..compile.plan import Plan, compile_graph
from ..engine.inputs import Sources
from ..graph.as_dot import to_dot
from ..graph.builder import GraphBuilder, parity_defaults
from ..graph.nodes import KEPT, Edge
from .data_node import DataNode, as_node, pop_builder, push_builder
from .settings import Settings, say_once
from .sources.processes import ParallelSource, WorkerPool
from .sources.source import Input

if TYPE_CHECKING:
    from .pipeline import Pipeline


_current: list[Any] = []


class Building(Settings):
    """A pipeline up to the moment at which it could run: operators are called, outputs set, data sets opened."""

    def _prepare(self) -> None:
        super()._prepare()
        self._builder = GraphBuilder(defaults=parity_defaults(self._run.parity))
        self._outputs: list[DataNode] | None = None
        self._sinks: list[DataNode] = []
        self._names: list[str] | None = None
        self._plan: Plan | None = None
        self._sources: Sources | None = None
        self._opened = False
        self._own_inputs: dict[str, Input] = {}
        self._workers: WorkerPool | None = None

    def __enter__(self) -> Self:
        self.push_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.pop_current()

    @staticmethod
    def current() -> Pipeline | None:
        """The pipeline whose graph is being built."""
        return _current[-1] if _current else None

    @staticmethod
    def push_current(pipeline: Building) -> None:
        """Make ``pipeline`` the current one."""
        _current.append(pipeline)
        push_builder(pipeline._builder)

    @staticmethod
    def pop_current() -> None:
        """Go back to the pipeline before."""
        _current.pop()
        pop_builder()

    def define_graph(self) -> Any:
        """Overridden in subclasses: call operators and return the outputs."""
        raise NotImplementedError("override define_graph, or use set_outputs or pipeline_def")

    def set_outputs(self, *output_data_nodes: Any) -> None:
        """Set the outputs; numbers and arrays become constants. Raises TypeError for anything else."""
        if self._plan is not None:
            raise RuntimeError("the pipeline is built already: its outputs cannot be changed")
        outputs = []
        with self:
            for i, node in enumerate(output_data_nodes):
                if isinstance(node, (list, tuple)) and any(isinstance(n, DataNode) for n in node):
                    raise TypeError(f"output {i} is a list of DataNodes: return them one by one (return a, b)")
                try:
                    outputs.append(as_node(node))
                except TypeError as e:
                    raise TypeError(f"output {i} of the pipeline: {e}") from None
        self._outputs = outputs

    def define_outputs(self, result: Any) -> None:
        """Set the outputs to what a definition returned: one value, several, or a dict of them by name."""
        if isinstance(result, Mapping):
            self._names = [str(k) for k in result]
            result = tuple(result.values())
        self.set_outputs(*(result if isinstance(result, (tuple, list)) else (result,)))

    def add_sink(self, edge: DataNode) -> None:
        """Keep ``edge`` and what it depends on, although no output needs it."""
        self._sinks.append(edge)

    def _define(self) -> None:
        if self._outputs is None:
            with self:
                result = self.define_graph()
            self.define_outputs(result)

    def _named_outputs(self) -> dict[str, Edge]:
        """The edges that leave the graph: outputs by number, then sinks."""
        self._define()
        assert self._outputs is not None
        nodes = [*self._outputs, *self._sinks]
        edges = [n.edge if n.builder is self._builder else self._builder.adopt(n.builder, n.edge) for n in nodes]
        edges += self._builder.sinks
        return {str(i) if i < len(self._outputs) else f"{KEPT}{i}": e for i, e in enumerate(edges)}

    def build(self) -> None:
        """Compile the graph, open the data sets and start worker processes; the first run does it by itself."""
        if self._plan is not None:
            return
        self._check_batch_size()
        self._plan = compile_graph(self._builder.build(self._named_outputs()), self._target(), self._run_seed)
        if not any(isinstance(n.op, Reader) and n.op.lazy_init for n in self._plan.graph.nodes):
            self._open()

    def _open(self) -> None:
        """Open the data sets and start worker processes, once."""
        plan = self.plan  # building it may have opened them
        if self._opened:
            return
        self._opened = True
        self._sources = Sources(plan, self._batch_size)
        for node in plan.graph.nodes:
            if node.id in self._sources.states and not isinstance(node.op, Reader):
                self._own_inputs[node.name] = Input.of(node, self._sources.states[node.id], self._batch_size)
        if self._checkpointing:
            for i in self._own_inputs.values():
                i.say_if_lost()
        self.start_py_workers()

    @property
    def _inputs(self) -> dict[str, Input]:
        """The external_sources by their names."""
        self._open()
        return self._own_inputs

    def _target(self) -> Target:
        if self._device_id is None:
            return Target("cpu")
        wanted = (self._device_id,) if isinstance(self._device_id, int) else self._device_id
        if gpu_count() == 0:
            say_once("device_id", f"GPU {self._device_id} was asked for, but this machine has no GPU that can be used "
                     "(`dali-run doctor` says why); the pipeline runs on the CPU")  # fmt: skip
            return Target("cpu")
        return Target("gpu", wanted, auto_mixed=False)

    def start_py_workers(self) -> None:
        """Start the processes of parallel external_sources; call it before anything touches a GPU when they fork."""
        self.build()
        self._open()
        parallel = [i for i in self._inputs.values() if i.op.parallel and i.has_source]
        if not parallel or self._workers is not None or self._py_num_workers < 1:
            return
        given = [
            ParallelSource(i.name, i.op.source, i.op.arity, i.op.batch, i.op.batch_info, i.wants_info, i.is_function,
                           i.op.cycle)
            for i in parallel
        ]  # fmt: skip
        depths = {i.name: i.op.prefetch_queue_depth for i in parallel}
        self._workers = WorkerPool(given, self._batch_size, depths, self._py_num_workers, self._py_start_method,
                                   self._py_callback_pickler)  # fmt: skip
        for i in parallel:
            i.workers = self._workers

    @property
    def plan(self) -> Plan:
        """The compiled graph."""
        self.build()
        assert self._plan is not None
        return self._plan

    @property
    def num_outputs(self) -> int:
        """How many outputs a run gives."""
        self._define()
        assert self._outputs is not None
        return len(self._outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs: keys of the dict that the definition returned, or a spec's; empty without."""
        self._define()
        return tuple(self._names or ())

    def output_dtype(self) -> list[DALIDataType | None]:
        """The types that the outputs must have; None where any is allowed."""
        return self._each(self._output_dtype)

    def output_ndim(self) -> list[int | None]:
        """The numbers of dimensions that the outputs must have; None where any is allowed."""
        return self._each(self._output_ndim)

    def output_layout(self) -> list[str | None]:
        """The layouts that the outputs must have; None where any is allowed."""
        return self._each(self._output_layout)

    def _each(self, value: Any) -> list[Any]:
        return list(value) if isinstance(value, (list, tuple)) else [value] * self.num_outputs

    def reader_meta(self, name: str | None = None) -> dict[str, Any]:
        """Sizes and sharding of the reader ``name``, or of all by name. Raises SpecError where
        there is no such reader."""
        self.build()
        self._open()
        assert self._sources is not None
        return meta_of({n: reader_facts(op, order) for _, n, op, _, order in self._sources.readers}, name)

    def epoch_size(self, name: str | None = None) -> Any:
        """Samples of an epoch of the reader ``name``, over all shards and with padding, or of all readers by name."""
        meta = self.reader_meta(name)
        if name is not None:
            return meta["epoch_size_padded"]
        return {k: m["epoch_size_padded"] for k, m in meta.items()}

    def save_graph_to_dot_file(
        self, filename: str | os.PathLike[str], *, show_tensors: bool = False, show_ids: bool | None = None,
        use_colors: bool = False,
    ) -> None:  # fmt: skip
        """Write the graph as a Graphviz file, with tensors as nodes and stages in colours where asked."""
        del show_ids
        Path(filename).write_text(to_dot(self.plan.graph, show_tensors=show_tensors, use_colors=use_colors))


def meta_of(metas: dict[str, dict[str, Any]], name: str | None) -> dict[str, Any]:
    """The facts of reader ``name``, or those of all by name. Raises SpecError where there is no such reader."""
    if name is None:
        return metas
    if name not in metas:
        raise SpecError(f"there is no reader {name!r} that an output needs; there are: {', '.join(metas) or 'none'}")
    return metas[name]


def reader_facts(op: Operator, order: Any) -> dict[str, Any]:
    """What `Pipeline.reader_meta` says of a reader."""
    assert isinstance(op, Reader)
    return {
        "epoch_size": order.epoch_size,
        "epoch_size_padded": order.epoch_size_padded() if op.pad_last_batch else order.epoch_size,
        "number_of_shards": op.num_shards,
        "shard_id": op.shard_id,
        "pad_last_batch": int(op.pad_last_batch),
        # where every epoch is a fresh order of all records, a shard keeps its place
        "stick_to_shard": int(op.stick_to_shard or op.shuffle_after_epoch or op.shuffle == "full"),
    }
