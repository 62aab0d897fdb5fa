"""Pipeline: DALI's class. A graph written in Python, compiled and run by the same engine as a YAML spec."""

from __future__ import annotations

import enum
import itertools
import os
import queue
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from ..ops.base import Operator
from ..ops.device import gpu_count
from ..ops.errors import JobError, SpecError
from ..ops.isolation import TIMEOUT, Mode
from ..ops.types import DALIDataType, Library
from ..readers.base import Reader
from .checkpoints import check_checkpoint, dump_checkpoint, parse_checkpoint
from .compile import Plan, assign_seeds, compile_graph
from .data_node import DataNode, as_node, pop_builder, push_builder
from .dot import to_dot
from .execute import Engine, Iteration, Options, Request
from .feed import EndlessFeed, Sources
from .functions import install_ops
from .graph import Edge, GraphBuilder, Split, parity_defaults
from .memory import memory_of
from .place import Target
from .prune import prune
from .serialize import dump_pipeline, parse_pipeline
from .sources import Input
from .stats import Stats
from .tensors import TensorList, tensor_list
from .workers import ParallelSource, WorkerPool

install_ops()

_current: list[Pipeline] = []
_said: set[str] = set()


class StreamPolicy(enum.Enum):
    """DALI's choice of CUDA streams; accepted without effect: there is one for each batch in flight."""

    SINGLE = 1
    PER_BACKEND = 2
    PER_OPERATOR = 3


class OperatorConcurrency(enum.Enum):
    """DALI's choice of what runs at the same time; accepted without effect: operators of several batches do."""

    NONE = 0
    BACKEND = 1
    FULL = 2


def say_once(name: str, why: str) -> None:
    """Warn that an argument of Pipeline means nothing here, once a process."""
    if name not in _said:
        _said.add(name)
        warnings.warn(f"Pipeline argument {name!r} has no effect: {why}", UserWarning, stacklevel=4)


class Pipeline:
    """A data-processing graph and the engine that runs it.

    Use `pipeline_def`, or a Pipeline as context manager with `set_outputs`, or a subclass with `define_graph`.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        num_threads: int | None = None,
        device_id: int | Sequence[int] | None = None,
        seed: int | None = None,
        exec_pipelined: bool = True,
        prefetch_queue_depth: int | Mapping[str, int] = 2,
        exec_async: bool = True,
        bytes_per_sample: int = 0,
        set_affinity: bool = False,
        max_streams: int | None = None,
        default_cuda_stream_priority: int | None = None,
        *,
        enable_memory_stats: bool = False,
        enable_checkpointing: bool = False,
        checkpoint: bytes | str | None = None,
        py_num_workers: int = 1,
        py_start_method: str = "fork",
        py_callback_pickler: Any = None,
        output_dtype: Any = None,
        output_ndim: Any = None,
        output_layout: Any = None,
        exec_dynamic: bool | None = None,
        experimental_exec_dynamic: bool | None = None,
        stream_policy: Any = None,
        concurrency: Any = None,
        on_error: str = "fail",
        rng: str = "philox",
        isolation: str = "auto",
        decode_timeout: float = TIMEOUT,
        parity: str = "dali",
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """``device_id`` may name several GPUs, which is not DALI's either: batches are dealt to them in turns, and
        come in order, the same as from one; those that stay on a GPU are on the GPU of their turn.

        ``on_error`` and ``rng`` are not DALI's: what a sample that fails costs (fail | skip | replace), and which
        random numbers are drawn (philox: a function of the sample; dali: DALI's own, bit for bit). Nor is
        ``isolation``, which image decoders run in processes of their own (auto: all but JPEG's | all | none), so that
        a file that crashes one, or takes more than ``decode_timeout`` seconds of CPU time, fails as a sample.
        ``parity`` says whose filters, sizes and colours operators have where they are not told (dali | torchvision |
        opencv | pillow). ``memory`` is what a run may hold: ``{"host": "4GiB", "gpu": "50%"}``.

        Raises ValueError for impossible sizes.
        """
        if batch_size is None or batch_size < 1:
            raise ValueError(f"batch_size must be set to a positive number, got {batch_size}")
        if num_threads is not None and num_threads < 1 and num_threads != -1:
            raise ValueError(f"num_threads must be positive, got {num_threads}")
        if output_ndim is not None:
            for n in output_ndim if isinstance(output_ndim, Sequence) else [output_ndim]:
                if n is not None and n < 0:
                    raise ValueError(f"output_ndim must not be negative, got {n}")
        if isolation not in get_args(Mode):
            raise ValueError(f"isolation must be one of {', '.join(get_args(Mode))}, got {isolation!r}")
        if parity not in get_args(Library):
            raise ValueError(f"parity must be one of {', '.join(get_args(Library))}, got {parity!r}")
        if not 0 < decode_timeout <= 86400:
            raise ValueError(f"decode_timeout must be seconds, above 0, got {decode_timeout}")
        self._batch_size = batch_size
        self._num_threads = num_threads if num_threads and num_threads > 0 else len(os.sched_getaffinity(0))
        self._device_id = _checked_devices(device_id)
        self._seed = seed if seed is not None and seed >= 0 else None
        self._run_seed = self._seed if self._seed is not None else secrets.randbits(31)
        self._prefetch = _checked_depth(prefetch_queue_depth)
        self._exec_pipelined = exec_pipelined
        self._exec_async = exec_async
        self._set_affinity = set_affinity
        self._exec_dynamic = exec_dynamic if exec_dynamic is not None else experimental_exec_dynamic
        self._memory_stats = enable_memory_stats
        self._checkpointing = enable_checkpointing or checkpoint is not None
        self._checkpoint = checkpoint
        self._py_num_workers = py_num_workers
        self._py_start_method = py_start_method
        self._py_callback_pickler = py_callback_pickler
        self._output_dtype = output_dtype
        self._output_ndim = output_ndim
        self._output_layout = output_layout
        self._on_error = on_error
        self._rng = rng
        self._memory = dict(memory or {})
        memory_of(self._memory)
        self._isolation = cast(Mode, isolation)
        self._decode_timeout = decode_timeout
        self._parity = cast(Library, parity)
        _say_ignored(bytes_per_sample, max_streams, default_cuda_stream_priority, stream_policy, concurrency,
                     set_affinity)  # fmt: skip
        self._builder = GraphBuilder(defaults=parity_defaults(self._parity))
        self._outputs: list[DataNode] | None = None
        self._sinks: list[DataNode] = []
        self._names: list[str] | None = None
        self._plan: Plan | None = None
        self._sources: Sources | None = None
        self._engine: Engine | None = None
        self._inputs: dict[str, Input] = {}
        self._workers: WorkerPool | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._stats = Stats()
        self._taken = 0
        """Position behind the last batch that was handed out."""
        self._next = 0
        """Position of the next batch that is scheduled."""
        self._iteration = 0
        """Of the next batch that is scheduled, in its epoch."""
        self._epoch = 0
        self._in_flight = 0
        """Batches scheduled and not handed out."""
        self._prefetched = False
        self._ended = False

    # -- building -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Pipeline:
        Pipeline.push_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        Pipeline.pop_current()

    @staticmethod
    def current() -> Pipeline | None:
        """The pipeline whose graph is being built."""
        return _current[-1] if _current else None

    @staticmethod
    def push_current(pipeline: Pipeline) -> None:
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
        return {str(i) if i < len(self._outputs) else f"sink{i}": e for i, e in enumerate(edges)}

    def build(self) -> None:
        """Compile the graph, open the data sets and start worker processes; the first run does it by itself."""
        if self._plan is not None:
            return
        restored = None if self._checkpoint is None else parse_checkpoint(self._checkpoint)
        if restored is not None:
            self._run_seed = restored["seed"]
        self._plan = compile_graph(self._builder.build(self._named_outputs()), self._target(), self._run_seed)
        self._sources = Sources(self._plan, self._batch_size)
        for node in self._plan.graph.nodes:
            if node.id in self._sources.states and not isinstance(node.op, Reader):
                self._inputs[node.name] = Input.of(node, self._sources.states[node.id], self._batch_size)
        self.start_py_workers()
        if restored is not None:
            self._restore(restored)

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

    # -- running ------------------------------------------------------------------------------------------------

    @property
    def _self_driven(self) -> bool:
        """Nothing has to be asked of the program before a batch: the engine runs ahead as far as its queues let it."""
        return not self._inputs and type(self).iter_setup is Pipeline.iter_setup

    def _start(self) -> Engine:
        if self._engine is None:
            plan = self.plan
            assert self._sources is not None
            options = Options(
                num_threads=self._num_threads,
                cpu_queue=self.cpu_queue_size,
                gpu_queue=self.gpu_queue_size,
                lanes=self.gpu_queue_size + 1,
                to_host=False,
                policy=self._on_error,
                rng=self._rng,
                memory=memory_of(self._memory),
                isolation=self._isolation,
                decode_timeout=self._decode_timeout,
                inline=True,
            )
            schedule = _endless(self._next, self._batch_size) if self._self_driven else _asked(self._requests)
            self._engine = Engine(plan, EndlessFeed(self._sources), schedule, options, self._stats)
            self._engine.start()
        return self._engine

    def iter_setup(self) -> None:
        """Overridden in subclasses: called before every iteration, to `feed_input`. Raise StopIteration at the end."""

    def _schedule_one(self) -> None:
        """Ask for the data of one more batch and put it on its way."""
        if self._ended:
            return
        self._start()
        if self._self_driven:
            self._in_flight += 1
            return
        try:
            self.iter_setup()
            polled = {name: i.poll(self._iteration, self._epoch) for name, i in self._inputs.items()}
        except StopIteration:
            self._ended = True
            return
        batches = {name: self._inputs[name].batches(data) for name, data in polled.items()}
        sizes = {name: len(b[0]) for name, b in batches.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} gave {n}" for name, n in sizes.items())
            raise JobError(f"the inputs of one iteration must have equally many samples: {listed}")
        n = next(iter(sizes.values()), self._batch_size)
        for name, outputs in batches.items():
            self._inputs[name].state.put(self._next, outputs)
        self._requests.put(Request(self._next, n))
        self._next += n
        self._iteration += 1
        self._in_flight += 1

    def _can_feed(self) -> bool:
        """Every input has data for one more batch."""
        return all(i.ready for i in self._inputs.values()) or type(self).iter_setup is not Pipeline.iter_setup

    def schedule_run(self) -> None:
        """Start the next iteration without waiting for it; the first time, as many as the queue is deep."""
        if self._prefetched or not self._exec_pipelined:
            self._schedule_one()
            return
        self._start()
        for k in range(max(self.cpu_queue_size, self.gpu_queue_size)):
            if k and not self._can_feed():
                break
            self._schedule_one()
        self._prefetched = True

    def run(self, cuda_stream: Any = None, /, **pipeline_inputs: Any) -> tuple[TensorList, ...]:
        """The next batch: one TensorList an output. Named inputs are fed to the external_sources of these names.

        Raises StopIteration where a source has ended (until `reset`), KeyError for an input that is none,
        RuntimeError where inputs are named, but batches are prefetched.
        """
        if pipeline_inputs:
            self._feed_all(pipeline_inputs)
        if self._can_feed() or self._in_flight == 0:
            self.schedule_run()
        return self.outputs(cuda_stream)

    def _feed_all(self, given: Mapping[str, Any]) -> None:
        if self._exec_pipelined and max(self.cpu_queue_size, self.gpu_queue_size) > 1:
            raise RuntimeError("run(name=data) needs a pipeline with prefetch_queue_depth=1 or exec_pipelined=False: "
                               "else other batches would come first")  # fmt: skip
        self.build()
        for name, data in given.items():
            self.feed_input(name, data)

    def outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """The outputs of the oldest iteration that was scheduled. Raises StopIteration where there is none left."""
        self.release_outputs()
        return self.share_outputs(cuda_stream)

    def share_outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """As `outputs`. Batches are never overwritten: they stay as they are for as long as they are referred to."""
        del cuda_stream  # outputs are complete when they are handed out
        if self._in_flight == 0:
            raise StopIteration
        iteration: Iteration = next(self._start())
        self._in_flight -= 1
        self._taken = iteration.request.start + iteration.request.n
        plan = self.plan
        outputs = iteration.outputs(plan)
        result = tuple(tensor_list(outputs[str(i)]) for i in range(self.num_outputs))
        self._check_outputs(result)
        return result

    def release_outputs(self) -> None:
        """Nothing to do: memory is given back when the last reference to a batch goes."""

    def output_stream(self) -> int:
        """The stream on which outputs are complete: the default one, as they are waited for before they are given."""
        return 0

    def reset(self) -> None:
        """Begin a new epoch of the sources, if the last one ended."""
        if not self._ended:
            return
        self._ended = False
        self._prefetched = False
        self._iteration = 0
        self._epoch += 1
        for i in self._inputs.values():
            i.reset()

    def empty(self) -> bool:
        """Nothing is scheduled that was not handed out."""
        return self._in_flight == 0

    def feed_input(
        self, data_node: DataNode | str, data: Any, layout: str | None = None, cuda_stream: Any = None,
        use_copy_kernel: bool = False,
    ) -> None:  # fmt: skip
        """Give the next batch to an external_source without a source: an array (N, ...) or a list of arrays.

        Raises KeyError for a name that is no external_source, RuntimeError where it has a source of its own.
        """
        del cuda_stream, use_copy_kernel
        self.build()
        found = self._input(data_node)
        if found.has_source:
            raise RuntimeError(f"{found.name} has a source: it cannot be fed by feed_input")
        found.fed.append((data, layout))
        found.feed_count += 1

    def input_feed_count(self, input_name: str) -> int:
        """How many batches the input needs before the first run."""
        self._input(input_name)
        return max(self.cpu_queue_size, self.gpu_queue_size) if self._exec_pipelined else 1

    def _input(self, node: DataNode | str) -> Input:
        self.build()
        name = node if isinstance(node, str) else node.builder.nodes[node.edge.node].name
        if name not in self._inputs:
            known = ", ".join(self._inputs) or "none"
            raise KeyError(f"{name!r} is no external_source of this pipeline that an output needs; it has: {known}")
        return self._inputs[name]

    def _check_outputs(self, outputs: tuple[TensorList, ...]) -> None:
        checks: list[tuple[str, Any, Any]] = [
            ("dtype", self._output_dtype, lambda t: t.dtype),
            ("ndim", self._output_ndim, lambda t: t.batch.ndim),
            ("layout", self._output_layout, lambda t: t.layout()),
        ]
        for what, wanted, of in checks:
            if wanted is None:
                continue
            each = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted] * len(outputs)
            if len(each) != len(outputs):
                raise RuntimeError(f"output_{what} has {len(each)} entries for {len(outputs)} outputs")
            for i, (want, output) in enumerate(zip(each, outputs, strict=True)):
                if want is not None and of(output) != want:
                    got, need = (_shown(v) for v in (of(output), want))
                    raise RuntimeError(f"output {i} has {what} {got}; output_{what} promises {need}")

    def close(self) -> None:
        """Stop the threads and processes and close the data sets."""
        if self._engine is not None:
            self._requests.put(None)
            self._engine.stop()
            self._engine = None
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        if self._sources is not None:
            self._sources.close()
            self._sources = None

    def __del__(self) -> None:
        if getattr(self, "_sources", None) is not None:
            self.close()

    # -- checkpoints and serialisation --------------------------------------------------------------------------

    def checkpoint(self, filename: str | os.PathLike[str] | None = None) -> bytes:
        """The state after the last batch that was handed out, as JSON: positions, of constant size. Give it to the
        constructor of an equal pipeline to go on from there; also written to ``filename``, if given."""
        return self.checkpoint_with({}, filename)

    def checkpoint_with(self, extra: Mapping[str, Any], filename: str | os.PathLike[str] | None = None) -> bytes:
        """As `checkpoint`, with plain data of an iterator's beside it."""
        plan = self.plan
        assert self._sources is not None
        data = dump_checkpoint(
            graph=plan.graph,
            seed=self._run_seed,
            position=self._taken,
            iteration=max(0, self._iteration - (0 if self._self_driven else self._in_flight)),
            epoch=self._epoch,
            readers={name: order for _, name, _, _, order in self._sources.readers},
            extra=extra,
        )
        if filename is not None:
            Path(filename).write_bytes(data)
        return data

    def _restore(self, state: Mapping[str, Any]) -> None:
        assert self._plan is not None
        check_checkpoint(state, self._plan.graph)
        self._taken = self._next = state["position"]
        self._iteration, self._epoch = state["iteration"], state["epoch"]
        for i in self._inputs.values():
            if i.has_source and not i.is_function:
                warnings.warn(f"{i.name}: its source is an iterable, which is read again up to the checkpoint; use a "
                              "callable that takes SampleInfo or BatchInfo", UserWarning, stacklevel=4)  # fmt: skip
            i.skip(self._iteration)

    @property
    def is_restored_from_checkpoint(self) -> bool:
        """The pipeline goes on from a checkpoint."""
        return self._checkpoint is not None

    @property
    def restored_extra(self) -> Mapping[str, Any]:
        """What the iterator put into the checkpoint that this pipeline was restored from."""
        if self._checkpoint is None:
            return {}
        found: Mapping[str, Any] = parse_checkpoint(self._checkpoint)["extra"]
        return found

    def serialize(self, define_graph: Any = None, filename: str | os.PathLike[str] | None = None) -> bytes:
        """The graph and the arguments of this pipeline as JSON; external_sources lose their source.

        Raises SpecError for arguments that are no plain data (Python functions).
        """
        if define_graph is not None:
            if self._outputs is not None:
                raise RuntimeError("define_graph must not be given where set_outputs was called")
            with self:
                result = define_graph()
            self.set_outputs(*(result if isinstance(result, (tuple, list)) else (result,)))
        data = dump_pipeline(self._builder.build(self._named_outputs()), self._arguments())
        if filename is not None:
            Path(filename).write_bytes(data)
        return data

    def _arguments(self) -> dict[str, Any]:
        """What the constructor was given, as far as it is plain data."""
        return {
            "batch_size": self._batch_size, "num_threads": self._num_threads, "device_id": self._device_id,
            "seed": self._seed, "exec_pipelined": self._exec_pipelined,
            "prefetch_queue_depth": dict(self._prefetch) if isinstance(self._prefetch, Mapping) else self._prefetch,
            "exec_async": self._exec_async, "exec_dynamic": self._exec_dynamic,
            "enable_memory_stats": self._memory_stats, "enable_checkpointing": self._checkpointing,
            "py_num_workers": self._py_num_workers, "py_start_method": self._py_start_method,
            "output_dtype": self._output_dtype, "output_ndim": self._output_ndim,
            "output_layout": self._output_layout, "on_error": self._on_error, "rng": self._rng,
            "memory": self._memory,
            "isolation": self._isolation, "decode_timeout": self._decode_timeout,
            "parity": self._parity,
        }  # fmt: skip

    @classmethod
    def deserialize(
        cls, serialized_pipeline: bytes | str | None = None, filename: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Pipeline:  # fmt: skip
        """The pipeline that was serialised, built. ``kwargs`` take the place of its arguments.

        Raises ValueError where not exactly one of text and file is given.
        """
        if (serialized_pipeline is None) == (filename is None):
            raise ValueError("give either serialized_pipeline or filename")
        data = Path(filename).read_bytes() if filename is not None else serialized_pipeline
        assert data is not None
        builder, edges, arguments = parse_pipeline(data)
        made = cls(**{**arguments, **kwargs})
        made._builder = builder
        outputs = {n: e for n, e in edges.items() if not n.startswith("sink")}
        made._outputs = [DataNode(builder, outputs[n]) for n in sorted(outputs, key=int)]
        made._sinks = [DataNode(builder, e) for n, e in edges.items() if n.startswith("sink")]
        made.build()
        return made

    def deserialize_and_build(self, serialized_pipeline: bytes | str) -> None:
        """Take the graph of a serialised pipeline, and build it."""
        self._builder, edges, _ = parse_pipeline(serialized_pipeline)
        outputs = [n for n in edges if not n.startswith("sink")]
        self._outputs = [DataNode(self._builder, edges[n]) for n in sorted(outputs, key=int)]
        self.build()

    def to_yaml(self, names: Sequence[str] | None = None) -> str:
        """The graph as the text of a spec, with outputs called ``names`` (or as the definition's dict calls them).

        Raises SpecError for Python functions.
        """
        from .autograph import without_conditions
        from .dump import to_yaml

        edges = self._named_outputs()
        keys = [n for n in edges if not n.startswith("sink")]
        own = names if names is not None else self._names
        called = list(own) if own is not None else [f"output{k}" for k in keys]
        if len(called) != len(keys):
            raise SpecError(f"{len(called)} names for {len(keys)} outputs")
        sections: dict[str, Any] = {"batch_size": self._batch_size, "num_threads": self._num_threads}
        sections["device"] = "cpu"
        if self._device_id is not None:
            several = (self._device_id,) if isinstance(self._device_id, int) else self._device_id
            sections["device"] = "gpu:" + ",".join(map(str, several))
        if self._seed is not None:
            sections["seed"] = self._seed
        graph = self._builder.build({c: edges[k] for c, k in zip(called, keys, strict=True)})
        if self._seed is not None and any(isinstance(n.op, Split) for n in graph.nodes):
            # YAML writes branches down in another order, by which seeds are dealt out: they are written, too
            graph = prune(graph)
            seeds = assign_seeds(graph, self._seed)
            graph = replace(graph, nodes=tuple(replace(n, seed=seeds.get(n.id, n.seed)) for n in graph.nodes))
        return to_yaml(without_conditions(graph), sections={"pipeline": sections})

    def save_graph_to_dot_file(
        self, filename: str | os.PathLike[str], *, show_tensors: bool = False, show_ids: bool | None = None,
        use_colors: bool = False,
    ) -> None:  # fmt: skip
        """Write the graph as a Graphviz file, with tensors as nodes and stages in colours where asked."""
        del show_ids
        Path(filename).write_text(to_dot(self.plan.graph, show_tensors=show_tensors, use_colors=use_colors))

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def max_batch_size(self) -> int:
        """Samples a batch, at most."""
        return self._batch_size

    batch_size = max_batch_size

    @property
    def num_threads(self) -> int:
        """CPU worker threads."""
        return self._num_threads

    @property
    def device_id(self) -> int | tuple[int, ...] | None:
        """The GPU, or several, or None for the CPU alone."""
        return self._device_id

    @property
    def seed(self) -> int | None:
        """The seed, None if it was drawn."""
        return self._seed

    @property
    def num_outputs(self) -> int:
        """How many outputs a run gives."""
        self._define()
        assert self._outputs is not None
        return len(self._outputs)

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

    @property
    def exec_pipelined(self) -> bool:
        """Iterations overlap."""
        return self._exec_pipelined

    @property
    def exec_async(self) -> bool:
        """Iterations run beside the program."""
        return self._exec_async

    @property
    def exec_separated(self) -> bool:
        """CPU and GPU stages have queues of different depths."""
        return isinstance(self._prefetch, Mapping)

    @property
    def exec_dynamic(self) -> bool:
        """GPU results may go back to CPU operators: always so here, unless it was switched off."""
        return self._exec_dynamic if self._exec_dynamic is not None else not self.exec_separated

    @property
    def prefetch_queue_depth(self) -> int | Mapping[str, int]:
        """As it was given."""
        return self._prefetch

    @property
    def cpu_queue_size(self) -> int:
        """Batches that CPU stages work ahead."""
        return self._prefetch["cpu_size"] if isinstance(self._prefetch, Mapping) else self._prefetch

    @property
    def gpu_queue_size(self) -> int:
        """Batches that GPU stages work ahead."""
        return self._prefetch["gpu_size"] if isinstance(self._prefetch, Mapping) else self._prefetch

    @property
    def set_affinity(self) -> bool:
        """As it was given; threads are left to the system."""
        return self._set_affinity

    @property
    def max_streams(self) -> int:
        """DALI's old setting: always -1."""
        return -1

    @property
    def default_cuda_stream_priority(self) -> int:
        """DALI's old setting: always 0."""
        return 0

    @property
    def enable_memory_stats(self) -> bool:
        """As it was given; statistics are always taken."""
        return self._memory_stats

    @property
    def py_num_workers(self) -> int:
        """Processes of parallel external_sources."""
        return self._py_num_workers

    @property
    def py_start_method(self) -> str:
        """How those are started: fork or spawn."""
        return self._py_start_method

    def enable_api_check(self, enable: bool) -> None:
        """DALI's check against mixing run and schedule_run; they may be mixed here, so there is nothing to check."""

    def reader_meta(self, name: str | None = None) -> dict[str, Any]:
        """Sizes and sharding of the reader ``name``, or of all by name. Raises KeyError."""
        self.build()
        assert self._sources is not None
        metas = {n: _meta(op, order) for _, n, op, _, order in self._sources.readers}
        if name is None:
            return metas
        if name not in metas:
            raise KeyError(f"there is no reader {name!r} that an output needs; there are: {', '.join(metas) or 'none'}")
        return metas[name]

    def epoch_size(self, name: str | None = None) -> Any:
        """Records of the reader ``name``, or of all by name."""
        meta = self.reader_meta(name)
        if name is not None:
            return meta["epoch_size"]
        return {k: m["epoch_size"] for k, m in meta.items()}

    def executor_statistics(self) -> dict[str, dict[str, Any]]:
        """For every operator: calls, samples, bytes in and out, seconds on CPU and GPU, and DALI's memory sizes.

        ``real_memory_size`` and ``reserved_memory_size`` are the bytes that all outputs of one call take on average.
        """
        table = {}
        for name, n in self._stats.nodes.items():
            memory = [n.bytes_out // max(n.calls, 1)]
            table[name] = {
                "calls": n.calls, "samples": n.samples, "bytes_in": n.bytes_in, "bytes_out": n.bytes_out,
                "cpu_seconds": n.cpu_seconds, "gpu_seconds": n.gpu_seconds,
                "real_memory_size": memory, "max_real_memory_size": memory,
                "reserved_memory_size": memory, "max_reserved_memory_size": memory,
            }  # fmt: skip
        return table

    def external_source_shm_statistics(self) -> dict[str, list[int]]:
        """Shared memory of parallel external_sources: bytes of the blocks, whole and for each sample of a batch."""
        sizes = self._workers.capacities() if self._workers is not None else []
        return {"capacities": sizes, "per_sample_capacities": [s // self._batch_size for s in sizes]}


# Generators that the engine's threads hold must not hold the pipeline: it stops the threads when nobody refers to it.


def _endless(start: int, batch_size: int) -> Iterator[Request]:
    for at in itertools.count(start, batch_size):
        yield Request(at, batch_size)


def _asked(requests: queue.SimpleQueue[Request | None]) -> Iterator[Request]:
    while (request := requests.get()) is not None:
        yield request


def _checked_devices(device_id: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """A GPU, several, or None; negative numbers mean none, as in DALI."""
    if device_id is None:
        return None
    if not isinstance(device_id, Sequence):
        return int(device_id) if device_id >= 0 else None
    several = tuple(int(i) for i in device_id)
    if not several or min(several) < 0 or len(set(several)) < len(several):
        raise ValueError(f"device_id takes a number, or different numbers from 0 on, got {list(several)}")
    return several if len(several) > 1 else several[0]


def _checked_depth(depth: int | Mapping[str, int]) -> int | Mapping[str, int]:
    if isinstance(depth, Mapping):
        if set(depth) != {"cpu_size", "gpu_size"}:
            raise ValueError(f"prefetch_queue_depth is a number or {{'cpu_size': x, 'gpu_size': y}}, got {dict(depth)}")
        sizes = list(depth.values())
    else:
        sizes = [depth]
    if any(not isinstance(s, int) or s < 1 for s in sizes):
        raise ValueError(f"prefetch_queue_depth must be positive, got {depth}")
    return depth


def _say_ignored(
    bytes_per_sample: int, max_streams: int | None, priority: int | None, stream_policy: Any, concurrency: Any,
    set_affinity: bool,
) -> None:  # fmt: skip
    if bytes_per_sample:
        say_once("bytes_per_sample", "memory is sized by the data itself")
    if max_streams is not None:
        say_once("max_streams", "there is one stream for each batch in flight")
    if priority is not None:
        say_once("default_cuda_stream_priority", "streams have one priority")
    if stream_policy is not None:
        say_once("stream_policy", "there is one stream for each batch in flight")
    if concurrency is not None:
        say_once("concurrency", "operators of several batches run at the same time")
    if set_affinity:
        say_once("set_affinity", "threads are left to the system")


def _shown(value: Any) -> str:
    return value.name if isinstance(value, DALIDataType) else repr(value)


def _meta(op: Operator, order: Any) -> dict[str, Any]:
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
