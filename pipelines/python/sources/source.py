"""Sources: the Python callables and iterables of external_source, asked for one batch after the other."""

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
from ....readers.video_input import VideoInput
from ...graph.nodes import Node
from ...user_warnings import warn
from ..arrays import as_batch, describe_batch
from ..data_node import DataNode, apply
from ..wrappers import wrap
from .fed import FedVideos, Input


@wrap("external_source")
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
    """Batches from a callable, an iterable, a generator function, or `Pipeline.feed_input`.

    Args:
        source: called (or advanced) once per batch, or once per sample with ``batch=False``, also where it is asked in
            parallel. A callable may take one argument: the iteration, BatchInfo (``batch_info``), or SampleInfo
            (``batch=False``). StopIteration ends the epoch.
        num_outputs: number of batches in each tuple that the source gives; the result is a list of DataNodes. Without
            a source each of them is fed alone (`Pipeline.feed_input`), and ``name`` must not be given.
        cycle: what an iterable does at its end: ``"quiet"``/True begins again at once, ``"raise"`` after `reset`.
        layout, dtype, ndim: of the data, checked; one for all outputs, or a list for the first outputs.
        parallel: ask in processes of its own, ``py_num_workers`` of the pipeline.
    """
    del bytes_per_sample_hint, max_batch_size  # memory is not sized ahead
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
        takes_argument(source)  # raises TypeError for unsuitable parameters
    if source is None and num_outputs:
        if name is not None:
            raise ArgumentValueError("external_source: a name belongs to one output; leave out name or num_outputs")
        each = ExternalSource(arity=num_outputs, layout=layout, dtype=dtype, ndim=ndim)
        facts = zip(each.each("layout"), each.each("dtype"), each.each("ndim"), strict=True)
        alone = [{**args, "arity": 0, "layout": a, "dtype": b, "ndim": c} for a, b, c in facts]
        return [apply(ExternalSource, [], one) for one in alone]
    result = apply(ExternalSource, [], args)
    return [result] if num_outputs == 1 and isinstance(result, DataNode) else result


def _is_asked(source: Any) -> bool:
    """A callable that gives one batch, or sample, a call; generator functions give iterables."""
    return callable(source) and not inspect.isgeneratorfunction(source)


def takes_argument(function: Callable[..., Any]) -> bool:
    """Whether ``function`` has one positional parameter (with or without a default). Raises TypeError if it has more,
    or others: ``*args``, ``**kwargs``, and keywords that `functools.partial` does not set."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in found if p.kind in kinds]
    is_set = isinstance(function, functools.partial)
    odd = [p for p in found if p.kind not in kinds and not (is_set and p.kind is inspect.Parameter.KEYWORD_ONLY)]
    if len(positional) > 1 or odd:
        got = ", ".join(map(str, odd or positional))
        raise TypeError("the source callback has no parameters, or one: the iteration, BatchInfo or SampleInfo; its "
                        f"parameters are: {got}")  # fmt: skip
    return bool(positional)


def input_of(node: Node, state: Any, max_batch_size: int, used: Collection[int] | None = None) -> Input:
    """The input of ``node``, which is fed or asks a source; ``state`` is where its batches go, ``used`` are the outputs
    that the pipeline needs (None for all)."""
    op = node.op
    if isinstance(op, VideoInput):
        return FedVideos(node.name, op, state, max_batch_size)
    assert isinstance(op, ExternalSource)
    made = SourceInput(node.name, op, state, max_batch_size)
    made.used = range(op.num_outputs) if used is None else used
    source = op.source
    if source is None:
        return made
    if _is_asked(source):
        made._function = source
        made.wants_info = takes_argument(source)
    else:
        made._iterator = made._begin()
    return made


@dataclass(slots=True)
class SourceInput(Input):
    """One external_source of a pipeline: its source, and where the batches go."""

    op: ExternalSource
    state: FedBatches
    workers: Any = None
    """The processes that ask the source, for parallel ones."""
    wants_info: bool = False
    _iterator: Iterator[Any] | None = None
    _function: Callable[..., Any] | None = None
    _samples: int = 0
    """Asked for in this epoch."""
    used: Collection[int] = ()
    """Outputs that the pipeline needs."""
    _kinds: dict[int, tuple[Any, int, str]] = field(default_factory=dict)
    """Dtype, number of dimensions and layout of each output so far."""

    @property
    def has_source(self) -> bool:
        return self.op.source is not None

    @property
    def is_function(self) -> bool:
        return self._function is not None

    def say_if_lost(self) -> None:
        """Warn where a checkpoint cannot say how far the source has come."""
        kind = ""
        if self._iterator is not None:
            kind = "a generator function" if callable(self.op.source) else "an iterable"
        elif self._function is not None and not self.wants_info:
            kind = "a callable that is not told which batch or sample it is asked for"
        if kind:
            warn(f"{self.name}: checkpoints do not hold the state of its source, {kind}; a pipeline that goes on from "
                 "one reads the source again up to there. A callable that takes SampleInfo, BatchInfo or the iteration "
                 "needs no state")  # fmt: skip

    def _begin(self) -> Iterator[Any]:
        source = self.op.source
        return iter(source() if callable(source) else source)

    # -- asking -------------------------------------------------------------------------------------------------

    def poll(self, iteration: int, epoch: int) -> Any:
        """The data of the next batch: what the source gives, or what was fed. Raises StopIteration at the end."""
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
        """A new epoch begins."""
        self._samples = 0
        if self._iterator is not None and self.op.cycle == "raise":
            self._iterator = self._begin()

    def skip(self, iterations: int) -> None:
        """Go on after ``iterations`` batches of this epoch; iterables are advanced."""
        self._samples = iterations * self.max_batch_size
        if self._iterator is not None:
            for _ in range(iterations if self.op.batch else iterations * self.max_batch_size):
                self._ask(None)

    # -- converting ---------------------------------------------------------------------------------------------

    def feed(self, data: Any, layout: str | None) -> None:
        """Take the data of one batch; it is copied now, unless ``no_copy``. Raises JobError that says what is wrong."""
        self.fed.put(self._converted(data, layout))

    def batches(self, polled: Any) -> tuple[Batch, ...]:
        """The result of `poll`, checked, as one batch an output. Raises JobError that says what is wrong."""
        if not self.has_source:
            fed: tuple[Batch, ...] = polled
            return fed
        return self._converted(*polled)

    def _converted(self, data: Any, layout: str | None) -> tuple[Batch, ...]:
        parts = self._outputs(data) if self.op.arity else [data]
        out = []
        wanted = zip(parts, self.op.each("layout"), self.op.each("dtype"), self.op.each("ndim"), strict=True)
        for k, (part, own_layout, dtype, ndim) in enumerate(wanted):
            if layout and own_layout and layout != own_layout:
                raise JobError(f"{self.name}: data of layout {own_layout} was promised, got {layout}")
            try:
                batch = as_batch(part, layout or own_layout or "", copy=not self.op.no_copy)
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
        """One element of ``data`` per output; the first used one stands for unused ones that the source left out."""
        n = len(data) if hasattr(data, "__getitem__") and hasattr(data, "__len__") else None
        if n is None or any(k >= n for k in self.used):
            got = type(data).__name__ if n is None else n
            raise JobError(f"{self.name}: the source must give {self.op.arity} outputs, got {got}")
        return [data[k if k < n else min(self.used)] for k in range(self.op.arity)]

    def _check(self, batch: Batch, k: int, dtype: DALIDataType | None, ndim: int | None) -> None:
        if not len(batch):  # an empty list has no type
            return
        if dtype is not None and dtype != DALIDataType.NO_TYPE and from_numpy(batch.dtype) != dtype:
            raise JobError(f"{self.name}: data of type {dtype.name} was promised, got {describe_batch(batch)}")
        if ndim is not None and batch.ndim != ndim:
            raise JobError(f"{self.name}: data of {ndim} dimensions was promised, got {describe_batch(batch)}")
        kind = batch.dtype, batch.ndim, batch.layout
        before = self._kinds.get(k)
        if before is not None and (before[:2] != kind[:2] or (before[2] and before[2] != kind[2])):
            was, got = (f"{from_numpy(t).name}, {n}-D{', ' * bool(a)}{a}" for t, n, a in (before, kind))
            raise JobError(
                f"{self.name}: batches must be of one type, number of dimensions and layout: {was}, now {got}"
            )
        self._kinds[k] = kind
