"""external_source: batches that the user's program provides."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ..ops.base import Arg, Operator, Spec
from ..ops.batch import Batch
from ..ops.context import Context
from ..ops.errors import ArgumentTypeError, ArgumentValueError, SpecError
from ..ops.types import DALIDataType, parse_dtype

_KEPT = 8
"""Number of used batches of the user's data that are kept, if a GPU reads them, so that samples can be retried."""


@dataclass(frozen=True, slots=True)
class SampleInfo:
    """Argument of a source callable, as in DALI: the number of the sample that it has to return."""

    idx_in_epoch: int
    idx_in_batch: int
    iteration: int
    """Number of the batch in the epoch, from 0."""
    epoch_idx: int

    @property
    def iter_idx(self) -> int:
        """Alias of ``iteration``, as in some of DALI's documentation."""
        return self.iteration


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Argument of a source callable, as in DALI: the number of the batch that it has to return."""

    iteration: int
    """Number of the batch in the epoch, from 0."""
    epoch_idx: int


class ProgramInput(Operator, abstract=True):
    """Base of the operators whose data comes from the user's program, batch after batch."""

    inputs = (0, 0)
    per_batch = True
    shared = False

    def state(self) -> Any:
        """Create the operator's empty queue of data, to which the pipeline appends batches and which it closes."""
        raise NotImplementedError


class ExternalSource(ProgramInput, name="external_source"):
    """Batches from a callable, an iterable or `Pipeline.feed_input`; only in Python."""

    is_trivial = True

    source: Annotated[Any, Arg("callable, iterable or generator function; None for feed_input")] = None
    arity: Annotated[int, Arg("the source returns tuples of this many arrays; 0: it returns the data itself", ge=0)] = 0
    cycle: Annotated[
        Literal["no", "quiet", "raise"] | bool | None,
        Arg("at the end of an iterable: no, quiet (start again), or raise (StopIteration, start again after reset)"),
    ] = None
    layout: Annotated[Any, Arg("layout, or one per output")] = None
    dtype: Annotated[Any, Arg("dtype that the data must have, or one per output")] = None
    ndim: Annotated[Any, Arg("number of dimensions that the data must have, or one per output")] = None
    batch: Annotated[bool, Arg("the source returns batches; else single samples")] = True
    batch_info: Annotated[bool, Arg("pass a callable BatchInfo instead of the iteration")] = False
    parallel: Annotated[bool, Arg("run the source in separate processes")] = False
    prefetch_queue_depth: Annotated[int, Arg("batches that the separate processes prepare ahead", ge=1)] = 1
    repeat_last: Annotated[bool, Arg("repeat the last batch if there is no new data")] = False
    no_copy: Annotated[bool, Arg("do not copy the data: the program leaves it unchanged until it was used")] = False
    blocking: Annotated[bool, Arg("wait for feed_input instead of raising")] = False
    use_copy_kernel: Annotated[bool, Arg("copy by kernel", ignored="there is one way to copy")] = False
    cuda_stream: Annotated[Any, Arg("stream of GPU data", ignored="GPU data is waited for")] = None

    @property
    def num_outputs(self) -> int:
        return self.arity or 1

    def check(self) -> None:
        self._check_source()
        for name in ("layout", "dtype", "ndim"):
            value = getattr(self, name)
            if isinstance(value, (list, tuple)) and len(value) > self.num_outputs:
                raise SpecError(f"{name} has {len(value)} entries for {self.num_outputs} outputs")
        for layout, ndim in zip(self.each("layout"), self.each("ndim"), strict=True):
            if layout and ndim is not None and len(layout) != ndim:
                raise SpecError(f"the layout {layout!r} names {len(layout)} dimensions, ndim is {ndim}")

    def _check_source(self) -> None:
        if self.source is not None and not callable(self.source) and not hasattr(self.source, "__iter__"):
            raise ArgumentTypeError(f"source must be callable or iterable, got {self.source!r}; external_source is for "
                                    "programs")  # fmt: skip
        if self.cycle not in (None, False, "no"):
            if inspect.isgenerator(self.source):
                raise ArgumentTypeError("a generator ends once and for all, so that cycle cannot start it again; give "
                                        "the generator function itself as the source")  # fmt: skip
            if self.source is None or (callable(self.source) and not inspect.isgeneratorfunction(self.source)):
                raise ArgumentValueError("cycle is for iterables and generator functions; a callable raises "
                                         "StopIteration itself")  # fmt: skip
        if self.parallel and self.source is None:
            raise SpecError("parallel is for a source; data for feed_input is made by the program")
        if self.source is not None and self.repeat_last:
            raise SpecError("repeat_last is for feed_input: leave it out if there is a source")

    def each(self, name: str) -> list[Any]:
        """Return the value of argument ``name`` for each output; None for outputs after the end of a shorter list."""
        value, n = getattr(self, name), self.num_outputs
        each = [*value, *[None] * (n - len(value))] if isinstance(value, (list, tuple)) else [value] * n
        return [None if v is None else parse_dtype(v) for v in each] if name == "dtype" else each

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        out = []
        for layout, dtype, ndim in zip(self.each("layout"), self.each("dtype"), self.each("ndim"), strict=True):
            known = ndim if ndim is not None else len(layout) if layout else None
            given = None if dtype is None or dtype == DALIDataType.NO_TYPE else dtype
            out.append(Spec(None if known is None else (None,) * known, given, layout or ""))
        return tuple(out)

    def state(self) -> FedBatches:
        return FedBatches()

    def cpu(self, ctx: Context) -> tuple[Batch, ...]:
        fed: FedBatches = ctx.source
        return fed.take(ctx)

    gpu = cpu


class FedBatches:
    """The queue of one external_source: batches that the program provided and the engine has not taken yet. The thread
    that feeds the pipeline calls `put`; the thread that runs the operator calls the other methods."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, tuple[Batch, ...]]] = deque()
        self._taken: deque[tuple[int, tuple[Batch, ...]]] = deque(maxlen=_KEPT)

    def put(self, start: int, outputs: tuple[Batch, ...]) -> None:
        """Append a batch to the queue; ``outputs`` has one Batch per output. Its first sample has position ``start`` in
        the run; positions must ascend."""
        self._waiting.append((start, outputs))

    def take(self, ctx: Context) -> tuple[Batch, ...]:
        """Return the user's data for the samples of ``ctx``, which are all or some samples of one batch in the queue.
        The batch leaves the queue; batches for a GPU are kept for retries."""
        first = int(ctx.samples.position[0])
        on_device = ctx.stage != "cpu"
        for start, outputs in self._taken:
            if start <= first < start + len(outputs[0]):
                return tuple(_placed(ctx, b, start) for b in outputs)
        while True:
            start, outputs = self._waiting.popleft()
            if on_device:
                self._taken.append((start, outputs))
            if start <= first < start + len(outputs[0]):
                return tuple(_placed(ctx, b, start) for b in outputs)

    def first(self, start: int, n: int) -> tuple[Batch, ...] | None:
        """Return the next batch of the queue, unchanged, and leave it there. Return None if it is not the batch of the
        ``n`` samples from position ``start``."""
        if not self._waiting or self._waiting[0][0] != start or len(self._waiting[0][1][0].offsets) != n:
            return None
        return self._waiting[0][1]

    def drop(self) -> None:
        """Remove the next batch from the queue."""
        self._waiting.popleft()

    def whole(self, start: int, n: int) -> tuple[Batch, ...] | None:
        """Like `first`, but remove the batch from the queue. `take` can still find it for a retry."""
        found = self.first(start, n)
        if found is not None:
            self._taken.append(self._waiting.popleft())
        return found

    def close(self) -> None:
        """Discard the batches in the queue that the engine has not taken."""
        self._waiting.clear()
        self._taken.clear()


def _placed(ctx: Context, batch: Batch, start: int) -> Batch:
    """Return the samples of ``ctx`` from ``batch``, which begins at position ``start``. If a GPU needs the operator's
    output, they are uploaded."""
    if len(batch) != len(ctx.samples):
        batch = batch.take(ctx.samples.position - start, ctx.samples)
    else:
        batch = batch.replace(samples=ctx.samples)
    if ctx.stage != "cpu" and isinstance(batch.data, np.ndarray):
        placed: Batch = ctx.device.to_device(batch)
        return placed
    return batch
