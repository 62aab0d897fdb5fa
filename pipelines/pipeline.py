"""Pipeline: DALI's class. A graph written in Python, compiled and run by the same engine as a YAML spec."""

from __future__ import annotations

import functools
import inspect
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, overload

from ..readers.base import Reader
from .compile import Plan, compile_graph
from .data_node import DataNode, apply, one, pop_builder, push_builder
from .execute import Engine, Iteration, Options, Request
from .feed import EndlessFeed, Sources
from .graph import GraphBuilder
from .place import Target
from .stats import Stats
from .tensors import TensorList, tensor_list

P = ParamSpec("P")

_current: list[Pipeline] = []


class Pipeline:
    """A data-processing graph and the engine that runs it.

    Use `pipeline_def`, or a Pipeline as context manager with `set_outputs`, or a subclass with `define_graph`.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        num_threads: int | None = None,
        device_id: int | None = None,
        seed: int | None = None,
        exec_pipelined: bool = True,
        prefetch_queue_depth: int | Mapping[str, int] = 2,
        exec_async: bool = True,
        bytes_per_sample: int = 0,
        set_affinity: bool = False,
        max_streams: int | None = None,
        default_cuda_stream_priority: int | None = None,
        *,
        output_dtype: Any = None,
        output_ndim: Any = None,
        exec_dynamic: bool | None = None,
        on_error: str = "fail",
        rng: str = "philox",
    ) -> None:
        """``on_error`` (not DALI's): what a sample that fails costs: fail | skip | replace. Raises ValueError."""
        if batch_size is None or batch_size < 1:
            raise ValueError(f"batch_size must be set to a positive number, got {batch_size}")
        self._batch_size = batch_size
        self._num_threads = num_threads or 2
        self._device_id = device_id
        self._seed = seed if seed is not None and seed >= 0 else None
        self._run_seed = self._seed if self._seed is not None else secrets.randbits(31)
        self._prefetch = prefetch_queue_depth
        self._output_dtype = output_dtype
        self._output_ndim = output_ndim
        self._on_error = on_error
        self._rng = rng
        self._builder = GraphBuilder()
        self._outputs: list[DataNode] | None = None
        self._plan: Plan | None = None
        self._sources: Sources | None = None
        self._engine: Engine | None = None
        self._position = 0

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

    def set_outputs(self, *nodes: Any) -> None:
        """Set the outputs; numbers and arrays become constants."""
        with self:
            self._outputs = [n if isinstance(n, DataNode) else one(apply("constant", [], {"value": n})) for n in nodes]

    def build(self) -> None:
        """Compile the graph and open the data sets; the first run does it by itself."""
        if self._plan is not None:
            return
        if self._outputs is None:
            with self:
                result = self.define_graph()
            self.set_outputs(*(result if isinstance(result, (tuple, list)) else (result,)))
        assert self._outputs is not None
        edges = {
            str(i): n.edge if n.builder is self._builder else self._builder.adopt(n.builder, n.edge)
            for i, n in enumerate(self._outputs)
        }
        target = Target("cpu") if self._device_id is None else Target("gpu", self._device_id, auto_mixed=False)
        self._plan = compile_graph(self._builder.build(edges), target, self._run_seed)
        self._sources = Sources(self._plan, self._batch_size)

    @property
    def plan(self) -> Plan:
        """The compiled graph."""
        self.build()
        assert self._plan is not None
        return self._plan

    # -- running ------------------------------------------------------------------------------------------------

    def _requests(self) -> Iterator[Request]:
        for k in itertools.count():
            yield Request(self._position + k * self._batch_size, self._batch_size)

    def _start(self) -> Engine:
        if self._engine is None:
            self.build()
            assert self._plan is not None
            assert self._sources is not None
            options = Options(
                num_threads=self._num_threads,
                cpu_queue=self.cpu_queue_size,
                gpu_queue=self.gpu_queue_size,
                lanes=self.gpu_queue_size + 1,
                to_host=False,
                policy=self._on_error,
                rng=self._rng,
            )
            self._engine = Engine(self._plan, EndlessFeed(self._sources), self._requests(), options, Stats())
        return self._engine

    def run(self) -> tuple[TensorList, ...]:
        """The next batch: one TensorList an output."""
        iteration: Iteration = next(self._start())
        outputs = iteration.outputs(self.plan)
        return tuple(tensor_list(outputs[str(i)]) for i in range(len(outputs)))

    def close(self) -> None:
        """Stop the threads and close the data sets."""
        if self._engine is not None:
            self._engine.stop()
            self._engine = None
        if self._sources is not None:
            self._sources.close()
            self._sources = None

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self.close()

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
    def device_id(self) -> int | None:
        """The GPU, or None for the CPU alone."""
        return self._device_id

    @property
    def seed(self) -> int | None:
        """The seed, None if it was drawn."""
        return self._seed

    @property
    def cpu_queue_size(self) -> int:
        """Batches that CPU stages work ahead."""
        return self._prefetch["cpu_size"] if isinstance(self._prefetch, Mapping) else self._prefetch

    @property
    def gpu_queue_size(self) -> int:
        """Batches that GPU stages work ahead."""
        return self._prefetch["gpu_size"] if isinstance(self._prefetch, Mapping) else self._prefetch

    def reader_meta(self, name: str | None = None) -> dict[str, Any]:
        """Sizes and sharding of the reader ``name``, or of all by name. Raises KeyError."""
        self.build()
        assert self._sources is not None
        metas = {n: _meta(op, order) for _, n, op, _, order in self._sources.readers}
        return metas if name is None else metas[name]

    def epoch_size(self, name: str | None = None) -> Any:
        """Records of the reader ``name``, or of all by name."""
        meta = self.reader_meta(name)
        if name is not None:
            return meta["epoch_size"]
        return {k: m["epoch_size"] for k, m in meta.items()}


def _meta(op: Reader, order: Any) -> dict[str, Any]:
    return {
        "epoch_size": order.epoch_size,
        "epoch_size_padded": order.epoch_size_padded(),
        "number_of_shards": op.num_shards,
        "shard_id": op.shard_id,
        "pad_last_batch": int(op.pad_last_batch),
        "stick_to_shard": int(op.stick_to_shard),
    }


@overload
def pipeline_def(fn: Callable[P, Any], /) -> Callable[..., Pipeline]: ...
@overload
def pipeline_def(
    fn: None = None, /, **pipeline_kwargs: Any
) -> Callable[[Callable[P, Any]], Callable[..., Pipeline]]: ...
def pipeline_def(fn: Callable[P, Any] | None = None, /, **pipeline_kwargs: Any) -> Any:
    """Turn a function that calls operators and returns outputs into a factory of pipelines.

    Keyword arguments of Pipeline may be given here or, overriding, when the factory is called.
    """
    if fn is None:
        return functools.partial(_factory, defaults=pipeline_kwargs)
    return _factory(fn, defaults=pipeline_kwargs)


def _factory(fn: Callable[..., Any], *, defaults: Mapping[str, Any]) -> Callable[..., Pipeline]:
    own = inspect.signature(fn).parameters
    if any(p.kind is p.VAR_KEYWORD for p in own.values()):
        raise TypeError("a pipeline definition cannot take **kwargs: they would hide arguments of Pipeline")
    known = set(inspect.signature(Pipeline.__init__).parameters) - {"self"}

    @functools.wraps(fn)
    def create(*args: Any, **kwargs: Any) -> Pipeline:
        mine = {k: v for k, v in kwargs.items() if k in own}
        rest = {k: v for k, v in kwargs.items() if k not in own}
        unknown = set(rest) - known
        if unknown:
            raise TypeError(f"{fn.__name__}() has no argument {', '.join(sorted(unknown))}, nor has Pipeline")
        pipeline = Pipeline(**{**defaults, **rest})
        with pipeline:
            result = fn(*args, **mine)
        pipeline.set_outputs(*(result if isinstance(result, (tuple, list)) else (result,)))
        return pipeline

    return create
