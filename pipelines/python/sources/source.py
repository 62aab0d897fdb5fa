"""Sources: the Python callables and iterables of external_source, which are called for one batch after the other."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....ops.batch import Batch
from ....ops.errors import ArgumentValueError, JobError
from ....ops.types import DALIDataType, from_numpy, parse_dtype
from ....readers.external_source import BatchInfo, ExternalSource, FedBatches, SampleInfo
from ....readers.videos.video_input import VideoInput
from ...engine.memory.buffer_pool import BufferPool
from ...graph.nodes import Node
from ...user_warnings import warn
from ..arrays import as_batch, describe_batch
from ..data_node import DataNode, apply
from .fed import FedVideos, Input


def external_source(
    source: Any = None,
    num_outputs: int | None = None,
    *,
    cycle: bool | str | None = None,
    name: str | None = None,
    device: str = "cpu",
    layout: str | Sequence[str | None] | None = None,
    dtype: Any = None,
    ndim: int | Sequence[int | None] | None = None,
    batch: bool | None = None,
    batch_info: bool | None = False,
    parallel: bool | None = False,
    prefetch_queue_depth: int = 1,
    repeat_last: bool = False,
    no_copy: bool | None = None,
    blocking: bool = False,
    bytes_per_sample_hint: int | None = None,
    cuda_stream: Any = None,
    use_copy_kernel: bool | None = None,
    max_batch_size: int | None = None,
) -> Any:
    """Return batches from a callable, an iterable, a generator function, or `Pipeline.feed_input`.

    Args:
        source: called (or advanced) once per batch, or once per sample with ``batch=False``, also in worker processes.
            A callable may take one argument: the iteration, BatchInfo (``batch_info``), or SampleInfo
            (``batch=False``). StopIteration ends the epoch.
        num_outputs: number of batches in each tuple that the source returns; the result is a list of DataNodes. Without
            a source, each of them is fed separately (`Pipeline.feed_input`), and ``name`` must not be given.
        cycle: behavior of an iterable at its end: ``"quiet"``/True restarts at once, ``"raise"`` after `reset`.
        layout, dtype, ndim: properties of the data, checked; one for all outputs, or a list for the first outputs.
        parallel: run the source in worker processes, ``py_num_workers`` of the pipeline.
    """
    del bytes_per_sample_hint, max_batch_size  # hints are not needed: memory is not allocated in advance
    if dtype is not None:
        dtype = [None if d is None else parse_dtype(d) for d in dtype] if isinstance(dtype, (list, tuple)) \
            else parse_dtype(dtype)  # fmt: skip
    args = {
        "source": source, "arity": num_outputs or 0, "cycle": cycle, "layout": layout, "dtype": dtype, "ndim": ndim,
        "batch": batch, "batch_info": batch_info, "parallel": parallel,
        "prefetch_queue_depth": prefetch_queue_depth, "repeat_last": repeat_last, "no_copy": no_copy,
        "blocking": blocking, "cuda_stream": cuda_stream, "use_copy_kernel": use_copy_kernel, "name": name,
        "device": device,
    }  # fmt: skip
    if _is_asked(source):
        takes_argument(source)  # for its TypeError for unsuitable parameters
    if source is None and num_outputs:
        if name is not None:
            raise ArgumentValueError("external_source: a name belongs to one output; omit name or num_outputs")
        each = ExternalSource(arity=num_outputs, layout=layout, dtype=dtype, ndim=ndim)
        facts = zip(each.each("layout"), each.each("dtype"), each.each("ndim"), strict=True)
        alone = [{**args, "arity": 0, "layout": a, "dtype": b, "ndim": c} for a, b, c in facts]
        return [apply(ExternalSource, [], one) for one in alone]
    result = apply(ExternalSource, [], args)
    return [result] if num_outputs == 1 and isinstance(result, DataNode) else result


def _is_asked(source: Any) -> bool:
    """Return whether ``source`` is a function that returns one batch or sample per call. Generator functions are not:
    they return an iterable."""
    return callable(source) and not inspect.isgeneratorfunction(source)


def takes_argument(function: Callable[..., Any]) -> bool:
    """Return whether ``function`` has one positional parameter (with or without a default). Raises TypeError if it has
    more, or others: ``*args``, ``**kwargs``, and keywords that `functools.partial` does not set."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    is_set = isinstance(function, functools.partial)
    odd = [p for p in parameters if p.kind not in kinds and not (is_set and p.kind is inspect.Parameter.KEYWORD_ONLY)]
    if len(positional) > 1 or odd:
        got = ", ".join(map(str, odd or positional))
        raise TypeError("the source callback has no parameters, or one: the iteration, BatchInfo or SampleInfo; its "
                        f"parameters are: {got}")  # fmt: skip
    return bool(positional)


def input_of(node: Node, state: Any, max_batch_size: int, used: Collection[int] | None = None) -> Input:
    """Return the `Input` for ``node``, whose data the program feeds or a source provides. ``state`` is the queue of its
    batches; ``used`` are the outputs that the pipeline needs (None for all)."""
    op = node.op
    if isinstance(op, VideoInput):
        return FedVideos(node.name, op, state, max_batch_size)
    assert isinstance(op, ExternalSource)
    source_input = SourceInput(node.name, op, state, max_batch_size)
    source_input.used = range(op.num_outputs) if used is None else used
    source = op.source
    if source is None:
        return source_input
    if _is_asked(source):
        source_input._function = source
        source_input.wants_info = takes_argument(source)
    else:
        source_input._iterator = source_input._begin()
    return source_input


@dataclass(slots=True)
class SourceInput(Input):
    """The input of one external_source: its source, if it has one, and the queue of its batches."""

    op: ExternalSource
    state: FedBatches
    workers: Any = None
    """Worker processes that run a parallel source; None for other sources."""
    wants_info: bool = False
    _iterator: Iterator[Any] | None = None
    _function: Callable[..., Any] | None = None
    _samples: int = 0
    """Number of samples requested from the source in this epoch."""
    used: Collection[int] = ()
    """Indices of the outputs that the pipeline needs."""
    _kinds: dict[int, tuple[Any, int, str]] = field(default_factory=dict)
    """For each output, (dtype, number of dimensions, layout) of earlier batches, for a comparison with later ones."""
    _buffers: BufferPool = field(default_factory=BufferPool)
    """Memory of earlier batches, for the copies of later ones."""

    @property
    def has_source(self) -> bool:
        return self.op.source is not None

    @property
    def is_function(self) -> bool:
        return self._function is not None

    def say_if_lost(self) -> None:
        """Warn if a checkpoint cannot store how far the source has advanced, as for an iterator."""
        kind = ""
        if self._iterator is not None:
            kind = "a generator function" if callable(self.op.source) else "an iterable"
        elif self._function is not None and not self.wants_info:
            kind = "a callable that does not receive the number of the batch or sample"
        if kind:
            warn(f"{self.name}: checkpoints do not contain the state of its source, {kind}; a pipeline that "
                 "continues from one reads the source again up to that point. A callable that takes SampleInfo, "
                 "BatchInfo or the iteration needs no state")  # fmt: skip

    def _begin(self) -> Iterator[Any]:
        source = self.op.source
        return iter(source() if callable(source) else source)

    # -- asking -------------------------------------------------------------------------------------------------

    def poll(self, iteration: int, epoch: int) -> Any:
        """Return the data of the next batch, from the source or from feed_input. Raises StopIteration at the end."""
        if not self.has_source:
            return self._next_fed()
        if self.workers is not None:
            return self.workers.next_batch(self.name, iteration, epoch)
        if self.op.batch:
            return self._ask(BatchInfo(iteration, epoch) if self.op.batch_info else iteration), None
        samples = []
        for k in range(self.max_batch_size):
            info = SampleInfo(self._samples + k, k, iteration, epoch)
            samples.append(self._ask(info))
        self._samples += self.max_batch_size
        return (tuple(zip(*samples, strict=True)) if self.op.arity else samples), None

    def _ask(self, info: Any) -> Any:
        if self._function is not None:
            return self._function(info) if self.wants_info else self._function()
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            if self.op.cycle not in (True, "quiet"):
                raise
        self._iterator = self._begin()
        return next(self._iterator)

    @property
    def repeats(self) -> bool:
        return self.op.repeat_last and self.last is not None

    @property
    def ready(self) -> bool:
        return self.has_source or not self.fed.empty() or self.repeats

    def reset(self) -> None:
        """Begin a new epoch of the source."""
        self._samples = 0
        if self._iterator is not None and self.op.cycle == "raise":
            self._iterator = self._begin()

    def skip(self, iterations: int) -> None:
        """Continue after ``iterations`` batches of this epoch: iterables are advanced by this many elements."""
        self._samples = iterations * self.max_batch_size
        if self._iterator is not None:
            for _ in range(iterations if self.op.batch else iterations * self.max_batch_size):
                self._ask(None)

    # -- converting ---------------------------------------------------------------------------------------------

    def feed(self, data: Any, layout: str | None) -> None:
        """Store the data of one batch; it is copied at once, unless the operator has ``no_copy``. Raises JobError with
        the reason if it is invalid."""
        self.fed.put(self._converted(data, layout))

    def batches(self, polled: Any) -> tuple[Batch, ...]:
        """Return the result of `poll` as one checked batch per output. Raises JobError with the reason if it is
        invalid."""
        if not self.has_source:
            fed: tuple[Batch, ...] = polled
            return fed
        return self._converted(*polled)

    def _converted(self, data: Any, layout: str | None) -> tuple[Batch, ...]:
        parts = self._outputs(data) if self.op.arity else [data]
        out = []
        declared = zip(parts, self.op.each("layout"), self.op.each("dtype"), self.op.each("ndim"), strict=True)
        for k, (part, own_layout, dtype, ndim) in enumerate(declared):
            if layout and own_layout and layout != own_layout:
                raise JobError(f"{self.name}: data of layout {own_layout} was declared, got {layout}")
            try:
                own = layout or own_layout or ""
                batch = as_batch(part, own, copy=not self.op.no_copy, empty=self._buffers.empty)
            except (TypeError, ValueError) as e:
                raise JobError(f"{self.name}: {e}") from e
            if k in self.used:
                self._check(batch, k, dtype, ndim)
            out.append(batch)
        if len({len(b) for b in out}) > 1:
            raise JobError(f"{self.name}: the outputs differ in their number of samples: {[len(b) for b in out]}")
        if len(out[0]) > self.max_batch_size:
            raise JobError(f"{self.name}: got {len(out[0])} samples, the pipeline's batch_size is "
                           f"{self.max_batch_size}")  # fmt: skip
        return tuple(out)

    def _outputs(self, data: Any) -> list[Any]:
        """Return one element of ``data`` per output. The first one is repeated for unused outputs that the source left
        out."""
        n = len(data) if hasattr(data, "__getitem__") and hasattr(data, "__len__") else None
        if n is None or any(k >= n for k in self.used):
            got = type(data).__name__ if n is None else n
            raise JobError(f"{self.name}: the source must return {self.op.arity} outputs, got {got}")
        return [data[k if k < n else min(self.used)] for k in range(self.op.arity)]

    def _check(self, batch: Batch, k: int, dtype: DALIDataType | None, ndim: int | None) -> None:
        if not len(batch):  # an empty list has no type
            return
        if dtype is not None and dtype != DALIDataType.NO_TYPE and from_numpy(batch.dtype) != dtype:
            raise JobError(f"{self.name}: data of type {dtype.name} was declared, got {describe_batch(batch)}")
        if ndim is not None and batch.ndim != ndim:
            raise JobError(f"{self.name}: data of {ndim} dimensions was declared, got {describe_batch(batch)}")
        kind = batch.dtype, batch.ndim, batch.layout
        before = self._kinds.get(k)
        if before is not None and (before[:2] != kind[:2] or (before[2] and before[2] != kind[2])):
            was, got = (f"{from_numpy(t).name}, {n}-D{', ' * bool(a)}{a}" for t, n, a in (before, kind))
            raise JobError(
                f"{self.name}: batches must be of one type, number of dimensions and layout: {was}, now {got}"
            )
        self._kinds[k] = kind
