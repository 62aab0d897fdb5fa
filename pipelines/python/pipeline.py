"""Pipeline: DALI's class. A graph written in Python is compiled and run by the same engine as a YAML spec."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self

from ...ops.base import parameters
from ...ops.errors import SpecError
from ...ops.types import DALIDataType
from ..compile.place import Target
from ..compile.plan import Plan, assign_seeds
from ..compile.prune import prune
from ..graph.as_dot import to_dot
from ..graph.as_json import dump_pipeline, parse_pipeline
from ..graph.builder import GraphBuilder
from ..graph.conditionals import Split
from ..graph.nodes import KEPT, Edge
from ..settings import RunSettings
from ..user_warnings import warn
from .api_type import ApiCheck, PipelineAPIType
from .checkpoints import check_checkpoint, dump_checkpoint, parse_checkpoint
from .data_node import DataNode, pipelines_being_built, pop_builder, push_builder
from .definition import Definition
from .reader_facts import meta_of, reader_facts
from .session import Session
from .settings import OperatorConcurrency, Settings, StreamPolicy
from .sources.fed import Input
from .tensors import TensorList

__all__ = ["OperatorConcurrency", "Pipeline", "StreamPolicy"]


P = ParamSpec("P")


def _takes_what(
    other: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that gives a constructor the signature and docstring of the function ``other``."""

    def like(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        method.__doc__ = other.__doc__
        return method

    return like


class Pipeline:
    """A data-processing graph and the engine that runs it. For one thread at a time, except `feed_input`.

    Define it with `pipeline_def`, as a context manager with `set_outputs`, or in a subclass with `define_graph`. A
    pipeline consists of ``Settings`` (the arguments), ``Definition`` (the graph) and ``Session`` (the running engine).
    """

    @_takes_what(Settings.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._settings = Settings(*arguments, **settings)
        self._definition = Definition(self._settings.run.parity)
        self._session = Session(self._settings)
        self._api = ApiCheck()
        if type(self).iter_setup is not Pipeline.iter_setup:
            self._session.set_up_by(self.iter_setup)

    def _shown(self) -> tuple[str, dict[str, Any], dict[str, DataNode] | None]:
        """Return the pipeline's class name, settings and outputs for display. The pipeline is not defined, built or run
        for that."""
        own, defined = self._settings, self._definition
        settings = {"batch_size": own.batch_size, "num_threads": own.num_threads, "device_id": own.device_id,
                    "seed": own.seed}  # fmt: skip
        if defined.outputs is None:
            return type(self).__name__, settings, None
        names = defined.names or [f"output {i}" for i in range(len(defined.outputs))]
        return type(self).__name__, settings, dict(zip(names, defined.outputs, strict=True))

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} has threads and open files: it cannot be pickled or copied; create "
                        "one in each process, or send the result of serialize()")  # fmt: skip

    def __repr__(self) -> str:
        from .shown import as_text

        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        from .shown import as_html

        return as_html(*self._shown())

    # -- definition ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.push_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.pop_current()

    @staticmethod
    def current() -> Pipeline | None:
        """Return the pipeline whose graph is being built; None outside of a definition."""
        return building[-1] if (building := pipelines_being_built()) else None

    @staticmethod
    def push_current(pipeline: Pipeline) -> None:
        """Make ``pipeline`` the one whose graph is being built, until `pop_current`."""
        pipelines_being_built().append(pipeline)
        push_builder(pipeline._definition.builder)

    @staticmethod
    def pop_current() -> None:
        """Undo the last `push_current`: the earlier pipeline is the current one again."""
        pipelines_being_built().pop()
        pop_builder()

    def define_graph(self) -> Any:
        """Call operators and return the outputs. Subclasses override this method to define their graph."""
        raise NotImplementedError("override define_graph, or use set_outputs or pipeline_def")

    def set_outputs(self, *output_data_nodes: Any) -> None:
        """Set the outputs; numbers and arrays become constants. Raises TypeError for anything else."""
        if self._session.built is not None:
            raise RuntimeError("the pipeline is already built: its outputs cannot be changed")
        with self:
            self._definition.set_outputs(output_data_nodes)

    def define_outputs(self, result: Any) -> None:
        """Set the outputs to the result of a definition: one value, several, or a dict of values by name."""
        self.set_outputs(*self._definition.several(result))

    def add_sink(self, edge: DataNode) -> None:
        """Keep ``edge`` and the operators that it depends on in the graph, although no output needs them."""
        self._definition.add_sink(edge)

    def _define(self) -> None:
        if self._definition.outputs is None:
            with self:
                result = self.define_graph()
            self.define_outputs(result)

    def _named_outputs(self) -> dict[str, Edge]:
        self._define()
        return self._definition.named_outputs()

    def _target(self) -> Target:
        return self._settings.target()

    def build(self) -> None:
        """Compile the graph, open the data sets and start worker processes; the first run does this if needed."""
        if self._session.built is not None:
            return
        restored = None if self._settings.checkpoint is None else parse_checkpoint(self._settings.checkpoint)
        if restored is not None:
            self._settings.run_seed = restored["seed"]
        self._settings.check_batch_size()
        graph = self._definition.builder.build(self._named_outputs())
        self._session.build(graph, self._target(), self.num_outputs)
        if restored is not None:
            with self._session.undone():
                self._restore(restored)

    def start_py_workers(self) -> None:
        """Start the processes of parallel external_sources. With the start method ``fork``, call this before the
        program uses a GPU."""
        self.build()
        self._session.start_workers()

    @property
    def plan(self) -> Plan:
        """The compiled graph: its steps and devices."""
        self.build()
        return self._session.plan

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a run."""
        self._define()
        assert self._definition.outputs is not None
        return len(self._definition.outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs: keys of the dict that the definition returned, or the spec's names; else empty."""
        self._define()
        return tuple(self._definition.names or ())

    def output_dtype(self) -> list[DALIDataType | None]:
        """Return the declared type of each output; None for an output that may have any type."""
        return self._each(self._settings.output_dtype)

    def output_ndim(self) -> list[int | None]:
        """Return the declared number of dimensions of each output; None for an output that may have any number."""
        return self._each(self._settings.output_ndim)

    def output_layout(self) -> list[str | None]:
        """Return the declared layout of each output; None for an output that may have any layout."""
        return self._each(self._settings.output_layout)

    def _each(self, value: Any) -> list[Any]:
        return list(value) if isinstance(value, (list, tuple)) else [value] * self.num_outputs

    def reader_meta(self, name: str | None = None) -> dict[str, Any]:
        """Return a dict with sizes and sharding of the reader ``name``, or such dicts of all readers by name. Raises
        SpecError if there is no such reader."""
        self.build()
        self._session.open()
        assert self._session.sources is not None
        return meta_of({n: reader_facts(op, order) for _, n, op, _, order in self._session.sources.readers}, name)

    def epoch_size(self, name: str | None = None) -> Any:
        """Return the number of samples in an epoch of the reader ``name``, over all shards and with padding, or of all
        readers by name."""
        meta = self.reader_meta(name)
        if name is not None:
            return meta["epoch_size_padded"]
        return {k: m["epoch_size_padded"] for k, m in meta.items()}

    def save_graph_to_dot_file(
        self, filename: str | os.PathLike[str], *, show_tensors: bool = False, show_ids: bool | None = None,
        use_colors: bool = False,
    ) -> None:  # fmt: skip
        """Write the graph as a Graphviz file, optionally with tensors as nodes (``show_tensors``) and stages in
        colors."""
        del show_ids
        Path(filename).write_text(to_dot(self.plan.graph, show_tensors=show_tensors, use_colors=use_colors))

    # -- running ------------------------------------------------------------------------------------------------

    def iter_setup(self) -> None:
        """Feed the next iteration with `feed_input`; overridden in subclasses and called before every iteration. An
        override raises StopIteration at the end of the data."""

    def schedule_run(self) -> None:
        """Start the next iteration without waiting for it; the first call starts enough iterations to fill the queue.
        Raises RuntimeError if the program called `run` before."""
        self._api.check(PipelineAPIType.SCHEDULED)
        self.build()
        self._session.schedule()

    def run(self, cuda_stream: Any = None, /, **pipeline_inputs: Any) -> tuple[TensorList, ...]:
        """Return the next batch: one TensorList per output. Named inputs are fed to the external_sources of these
        names.

        Raises StopIteration if a source has ended (until `reset`), KeyError for an unknown input, RuntimeError if
        inputs are named although batches are prefetched, or if the program called `schedule_run`.
        """
        self.build()
        session = self._session
        if pipeline_inputs:
            if self._settings.exec_pipelined and self._settings.deepest_queue > 1:
                raise RuntimeError("run(name=data) needs a pipeline with prefetch_queue_depth=1 or "
                                   "exec_pipelined=False: otherwise prefetched batches come first")  # fmt: skip
            for name, data in pipeline_inputs.items():
                self.feed_input(name, data)
        with self._api.scope(PipelineAPIType.BASIC):
            if session.can_feed() or session.in_flight == 0:
                self.schedule_run()
            return self.outputs(cuda_stream)

    def outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """Return the outputs of the oldest scheduled iteration. Raises StopIteration if there is none."""
        return self.share_outputs(cuda_stream)

    def share_outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """Return the outputs of the oldest scheduled iteration, like `outputs`. Batches are never overwritten: they
        stay valid as long as they are referenced."""
        del cuda_stream  # outputs are complete when they are returned
        self._api.check(PipelineAPIType.SCHEDULED)
        return self._session.take()

    def release_outputs(self) -> None:
        """Do nothing: memory is freed with the last reference to a batch."""
        self._api.check(PipelineAPIType.SCHEDULED)

    # Names that iterators of 2019 to 2022, written by hand for DALI, use.

    def _prefetch(self) -> None:
        """Schedule iterations until the queue is full."""
        self.build()
        self._session.prefetch()

    def _run_once(self) -> None:
        """Schedule one iteration."""
        self.build()
        self._session.schedule_one()

    def _run(self) -> None:
        self._say_renamed("schedule_run")
        self.schedule_run()

    def _outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        return self._session.take()

    def _share_outputs(self) -> tuple[TensorList, ...]:
        self._say_renamed("share_outputs")
        return self.share_outputs()

    def _release_outputs(self) -> None:
        self._say_renamed("release_outputs")
        self.release_outputs()

    def _start_py_workers(self) -> None:
        self.start_py_workers()

    def _check_api_type_scope(self, type: PipelineAPIType) -> contextlib.AbstractContextManager[None]:
        return self._api.scope(type)

    def _check_api_type(self, type: PipelineAPIType) -> None:
        self._api.check(type)

    def _say_renamed(self, name: str) -> None:
        warn(f"Pipeline._{name} is DALI's old name for {name}", Warning)

    def output_stream(self) -> int:
        """Return the CUDA stream on which outputs are complete: the default stream, because outputs are complete before
        they are returned."""
        return 0

    def reset(self) -> None:
        """Begin a new epoch of the sources, if the last one has ended."""
        self._session.reset()

    def empty(self) -> bool:
        """Return whether all scheduled iterations have been returned to the program."""
        return self._session.in_flight == 0

    def feed_input(
        self, data_node: DataNode | str, data: Any, layout: str | None = None, cuda_stream: Any = None,
        use_copy_kernel: bool = False,
    ) -> None:  # fmt: skip
        """Pass the next batch to an external_source without a source: an array (N, ...) or a list of arrays. It is
        copied, unless the external_source has ``no_copy``.

        With ``blocking=True`` a run waits for it, in another thread. Raises KeyError if the name is not an
        external_source, RuntimeError if that has its own source.
        """
        del cuda_stream, use_copy_kernel
        fed_input = self._input(data_node)
        if fed_input.has_source:
            raise RuntimeError(f"{fed_input.name} has a source: it cannot be fed by feed_input")
        fed_input.feed(data, layout)

    def input_feed_count(self, input_name: str) -> int:
        """Return the number of batches that the program must feed to the input before the first run."""
        self._input(input_name)
        return self._settings.deepest_queue if self._settings.exec_pipelined else 1

    def _input(self, node: DataNode | str) -> Input:
        self.build()
        return self._session.input(node)

    def executor_statistics(self) -> dict[str, dict[str, Any]]:
        """Return, for every operator: calls, samples, bytes in and out, seconds on CPU and GPU, and DALI's memory
        sizes.

        ``real_memory_size`` and ``reserved_memory_size`` are the average bytes of all outputs of one call;
        ``remembered_bytes`` is the size of what the operator caches for the next epoch (setting ``remember``).
        """
        table, remembered = {}, self._session.remembered()
        for name, n in self._session.stats.nodes.items():
            memory = [n.bytes_out // max(n.calls, 1)]
            table[name] = {
                "calls": n.calls, "samples": n.samples, "bytes_in": n.bytes_in, "bytes_out": n.bytes_out,
                "cpu_seconds": n.cpu_seconds, "gpu_seconds": n.gpu_seconds,
                "real_memory_size": memory, "max_real_memory_size": memory,
                "reserved_memory_size": memory, "max_reserved_memory_size": memory,
                "remembered_bytes": remembered.get(name, 0),
            }  # fmt: skip
        return table

    def external_source_shm_statistics(self) -> dict[str, list[int]]:
        """Return the size in bytes of each shared-memory block of parallel external_sources, in total and per
        sample."""
        sizes = self._session.shared_memory()
        return {"capacities": sizes, "per_sample_capacities": [s // self._settings.batch_size for s in sizes]}

    def close(self) -> None:
        """Stop the threads and processes and close the data sets."""
        engine, close_inputs = self._session.let_go()
        if engine is not None:
            engine.stop()
        close_inputs()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        session = getattr(self, "_session", None)
        # at exit, modules are gone and the system closes files
        if session is None or session.sources is None or ending():
            return
        engine, close_inputs = session.let_go()
        if engine is not None:
            engine.abandon(close_inputs)
        else:
            close_inputs()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def checkpoint(self, filename: str | os.PathLike[str] | None = None) -> bytes:
        """Return the state after the last returned batch, as JSON: positions, of constant size. Pass it to the
        constructor of an equal pipeline to continue from there. The state is also written to the file ``filename``, if
        given."""
        return self.checkpoint_with({}, filename)

    def checkpoint_with(self, extra: Mapping[str, Any], filename: str | os.PathLike[str] | None = None) -> bytes:
        """Return a checkpoint like `checkpoint` that also contains ``extra``, the state of a framework's iterator."""
        plan = self.plan
        self._session.open()
        assert self._session.sources is not None
        data = dump_checkpoint(
            graph=plan.graph,
            seed=self._settings.run_seed,
            position=self._session.taken,
            iteration=max(0, self._session.iteration - (0 if self._session.self_driven else self._session.in_flight)),
            epoch=self._session.epoch,
            readers={name: order for _, name, _, _, order in self._session.sources.readers},
            extra=extra,
        )
        if filename is not None:
            Path(filename).write_bytes(data)
        return data

    def _restore(self, state: Mapping[str, Any]) -> None:
        assert self._session.built is not None
        check_checkpoint(state, self._session.built.graph)
        self._session.taken = self._session.next = state["position"]
        self._session.iteration, self._session.epoch = state["iteration"], state["epoch"]
        for i in self._session.inputs.values():
            if i.has_source and not i.is_function:
                warn(f"{i.name}: its source is an iterable, which is read from the start up to the checkpoint; use a "
                     "callable that takes SampleInfo or BatchInfo")  # fmt: skip
            i.skip(self._session.iteration)

    @property
    def is_restored_from_checkpoint(self) -> bool:
        """Whether the pipeline continues from a checkpoint."""
        return self._settings.checkpoint is not None

    @property
    def restored_extra(self) -> Mapping[str, Any]:
        """State of the framework's iterator, from the checkpoint with which this pipeline was created."""
        if self._settings.checkpoint is None:
            return {}
        extra: Mapping[str, Any] = parse_checkpoint(self._settings.checkpoint)["extra"]
        return extra

    # -- as text ------------------------------------------------------------------------------------------------

    def serialize(self, define_graph: Any = None, filename: str | os.PathLike[str] | None = None) -> bytes:
        """Return the graph and the arguments of this pipeline as JSON; external_sources lose their source.

        Raises SpecError for arguments that JSON cannot represent (Python functions).
        """
        if define_graph is not None:
            if not callable(define_graph):
                raise TypeError(
                    f"define_graph must be callable, got {define_graph!r}; serialize(filename=...) writes a file"
                )
            if self._definition.outputs is not None:
                raise RuntimeError("define_graph must not be given where set_outputs was called")
            with self:
                result = define_graph()
            self.set_outputs(*(result if isinstance(result, (tuple, list)) else (result,)))
        data = dump_pipeline(self._definition.builder.build(self._named_outputs()), self._settings.arguments())
        if filename is not None:
            Path(filename).write_bytes(data)
        return data

    @classmethod
    def deserialize(
        cls, serialized_pipeline: bytes | str | None = None, filename: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Pipeline:  # fmt: skip
        """Create and build a pipeline from the text of a serialized pipeline, of dali-run or DALI. ``kwargs`` replace
        its arguments.

        Raises ValueError unless exactly one of text and file is given, SpecError for a text that cannot be read."""
        if (serialized_pipeline is None) == (filename is None):
            raise ValueError("pass either serialized_pipeline or filename")
        data = Path(filename).read_bytes() if filename is not None else serialized_pipeline
        assert data is not None
        builder, edges, arguments = _parsed(data)
        pipeline = cls(**{**arguments, **kwargs})
        pipeline._definition.adopt(builder, edges)
        pipeline.build()
        return pipeline

    def deserialize_and_build(self, serialized_pipeline: bytes | str) -> None:
        """Replace this pipeline's graph by that of a serialized pipeline, and build it."""
        builder, edges, _ = _parsed(serialized_pipeline)
        self._definition.adopt(builder, edges)
        self.build()

    def to_yaml(self, names: Sequence[str] | None = None) -> str:
        """Return the graph and the settings as the text of a spec, with outputs called ``names`` (or as in the
        definition's dict). Settings for Python only are omitted: ``output_dtype`` and similar, processes, checkpoints.

        Raises SpecError for Python functions.
        """
        from ..graph.conditionals import without_conditions
        from ..spec.to_yaml import to_yaml

        edges = self._named_outputs()
        keys = [n for n in edges if not n.startswith(KEPT)]
        own = names if names is not None else self._definition.names
        called = list(own) if own is not None else [f"output{k}" for k in keys]
        if len(called) != len(keys):
            raise SpecError(f"{len(called)} names for {len(keys)} outputs")
        graph = self._definition.builder.build({c: edges[k] for c, k in zip(called, keys, strict=True)})
        if self._settings.seed is not None and any(isinstance(n.op, Split) for n in graph.nodes):
            # YAML lists branches in another order, which determines the seeds: so these are written explicitly.
            graph = prune(graph)
            seeds = assign_seeds(graph, self._settings.seed)
            graph = replace(graph, nodes=tuple(replace(n, seed=seeds.get(n.id, n.seed)) for n in graph.nodes))
        sections = {"pipeline": self._settings.section(), "on_error": {"policy": self._settings.on_error}}
        return to_yaml(without_conditions(graph), sections=sections)

    # -- settings -----------------------------------------------------------------------------------------------

    @property
    def max_batch_size(self) -> int:
        """Largest number of samples per batch; 0 if it was not set."""
        return self._settings.batch_size

    batch_size = max_batch_size

    @property
    def num_threads(self) -> int:
        """Number of CPU worker threads."""
        return self._settings.num_threads

    @property
    def device_id(self) -> int | tuple[int, ...] | None:
        """Number of the GPU, a tuple of numbers for several GPUs, or None for the CPU alone."""
        return self._settings.device_id

    @property
    def seed(self) -> int | None:
        """The seed; None if it was drawn at random."""
        return self._settings.seed

    @property
    def exec_pipelined(self) -> bool:
        """Whether consecutive iterations overlap in time."""
        return self._settings.exec_pipelined

    @property
    def exec_async(self) -> bool:
        """Whether iterations run concurrently with the program."""
        return self._settings.exec_async

    @property
    def exec_separated(self) -> bool:
        """Whether CPU and GPU stages have queues with different numbers of batches."""
        return isinstance(self._settings.prefetch, Mapping)

    @property
    def exec_dynamic(self) -> bool:
        """Whether GPU results may be inputs of CPU operators. Always true, unless the program switched it off."""
        return self._settings.exec_dynamic

    @property
    def prefetch_queue_depth(self) -> int | Mapping[str, int]:
        """The constructor's argument ``prefetch_queue_depth``: number of batches that are computed ahead."""
        return self._settings.prefetch

    @property
    def cpu_queue_size(self) -> int:
        """Number of batches that CPU stages compute ahead."""
        return self._settings.cpu_queue_size

    @property
    def gpu_queue_size(self) -> int:
        """Number of batches that GPU stages compute ahead."""
        return self._settings.gpu_queue_size

    @property
    def set_affinity(self) -> bool:
        """The constructor's argument ``set_affinity``, without effect: the system assigns threads to cores."""
        return self._settings.set_affinity

    @property
    def max_streams(self) -> int:
        """DALI's old setting ``max_streams``: always -1."""
        return -1

    @property
    def default_cuda_stream_priority(self) -> int:
        """DALI's old setting ``default_cuda_stream_priority``: always 0."""
        return 0

    @property
    def stream_policy(self) -> Any:
        """The constructor's argument ``stream_policy``, without effect: there is one CUDA stream per batch in
        flight."""
        return self._settings.stream_policy

    @property
    def concurrency(self) -> Any:
        """The constructor's argument ``concurrency``, without effect: operators of several batches run at the same
        time."""
        return self._settings.concurrency

    @property
    def enable_memory_stats(self) -> bool:
        """The constructor's argument ``enable_memory_stats``, without effect: statistics are always collected."""
        return self._settings.memory_stats

    @property
    def py_num_workers(self) -> int:
        """Number of worker processes for parallel external_sources."""
        return self._settings.py_num_workers

    @property
    def py_start_method(self) -> str:
        """Start method of the worker processes for parallel external_sources: fork or spawn."""
        return self._settings.py_start_method

    @property
    def settings(self) -> RunSettings:
        """Settings that DALI does not have, such as rng, parity and isolation."""
        return self._settings.run

    def enable_api_check(self, enable: bool) -> None:
        """Enable (the default) or disable the check that `run`, iterators and `schedule_run` are not mixed."""
        self._api.wanted = enable


def _parsed(data: bytes | str) -> tuple[GraphBuilder, dict[str, Edge], dict[str, Any]]:
    """Parse a serialized pipeline (JSON as `serialize` writes it, or DALI's protobuf) into its graph, its outputs by
    name, and the arguments of Pipeline. Raises SpecError."""
    if isinstance(data, str) or data.lstrip()[:1] in (b"{", b""):
        return parse_pipeline(data)
    from ..spec.dali_file import graph_of

    return graph_of(data)


def _signature() -> inspect.Signature:
    """Return the constructor's signature, with every setting of a run (`RunSettings`) as a separate argument."""
    arguments = list(inspect.signature(Settings.__init__).parameters.values())[1:-1]
    kind = inspect.Parameter.KEYWORD_ONLY
    settings = [inspect.Parameter(n, kind, default=p.default) for n, p in parameters(RunSettings).items()]
    return inspect.Signature([*arguments, *settings])


Pipeline.__signature__ = _signature()  # type: ignore[attr-defined]
