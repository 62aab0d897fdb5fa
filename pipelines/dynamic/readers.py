"""Readers of the dynamic mode: objects that iterate over a data set, one epoch at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...ops.base import Operator, outputs_of, parameters, plain_number
from ...ops.batch import Batch as Data
from ...ops.batch import Samples
from ...ops.context import Context
from ...ops.errors import ArgumentTypeError, ArgumentValueError, JobError, SpecError
from ...ops.storage.json_text import parse_json
from ...readers import base
from ..graph.arguments import check_arguments, no_argument
from ..python.data_node import say_once
from ..python.reader_facts import reader_facts
from . import calls
from .captured_pipeline import ReaderInputs
from .contexts import EvalContext
from .devices import device as device_of
from .dtypes import DType, type_id
from .values import Value, value_of

_SAMPLES_PER_READ = 16
"""Number of samples that a reader reads at once, if the program's loop takes single samples."""


class ReaderState:
    """Position of a reader in its data: the number of the next sample, the epoch, and the number of samples left in an
    epoch that has begun. ``str`` of it can be stored and passed to `Reader.set_state`."""

    __slots__ = ("epoch", "left", "position")

    def __init__(self, position: int, epoch: int, left: int) -> None:
        self.position, self.epoch, self.left = position, epoch, left

    @staticmethod
    def parse(text: str) -> ReaderState:
        """Return the state whose ``str`` is ``text``. Raises ValueError."""
        try:
            fields = parse_json(text)
            return ReaderState(*(int(fields[k]) for k in ("position", "epoch", "left")))
        except (ValueError, KeyError, TypeError):
            raise ArgumentValueError(f"{text!r} is not the state of a reader of the dynamic mode") from None

    def __str__(self) -> str:
        return json.dumps({"position": self.position, "epoch": self.epoch, "left": self.left})

    def __repr__(self) -> str:
        return f"ReaderState({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReaderState) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Reader:
    """Base class of all readers. `next_epoch` yields tuples of Tensors or Batches, or mappings if the outputs have
    names. For one thread at a time.

    The sequence of samples is endless, as in a pipeline: the last batch of an epoch is filled up with the first samples
    of the next one, unless ``pad_last_batch`` repeats the last sample.
    """

    operator: ClassVar[type[base.Reader]]

    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        num_inputs: int | None = None,
        *,
        enable_checkpointing: bool = False,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        """Raises TypeError and ValueError for arguments that the reader does not accept. The data set is opened when
        the first sample is requested. ``enable_checkpointing`` is accepted for compatibility with DALI: every reader
        has a state."""
        del num_inputs, enable_checkpointing
        cls = self.operator
        location = calls.line()
        plain_arguments = {k: _plain(v) for k, v in arguments.items() if v is not None}
        for key, value in plain_arguments.items():
            if key not in parameters(cls):
                raise ArgumentTypeError(f"{location}: {cls.name}: {no_argument(cls, key)}")
            if isinstance(value, Value):
                raise ArgumentTypeError(f"{location}: {cls.name}: argument {key!r} must be a plain value")
        plain_arguments = {k: calls.typed(parameters(cls)[k], v) for k, v in plain_arguments.items()}
        say_once(cls, plain_arguments)
        values, _, problems = check_arguments(cls, plain_arguments)
        if problems:
            raise ArgumentValueError(f"{location}: {cls.name}: {'; '.join(problems)}")
        self._op = cls(**values)
        try:
            self._op.check()
        except SpecError as e:
            raise e.at(f"{location}: {cls.name}") from None
        self._seed = -1 if seed is None else int(plain_number(seed))
        self.name = name or cls.name
        self._device = device_of(device)
        self._most = max_batch_size
        self._batch_size = 1
        self._source: Any = None
        self._order: Any = None
        self._position = self._epoch = self._left = 0
        self._resumed = False
        self._way: str | None = None
        self._where = ""
        """Line of the user's program that last requested data from this reader, for error messages."""
        self.captured: Any = None
        """Pair of batch size and `capture.Loop` (calls that run ahead); None until the first captured epoch."""

    # -- the data set -------------------------------------------------------------------------------------------------

    def _opened(self, batch_size: int) -> None:
        """Open the data set and create its order for batches of ``batch_size``. Raises SpecError and JobError."""
        if self._source is None:
            try:
                self._source = self._op.open()
            except SpecError as e:
                raise e.at(f"{calls.line()}: {self.name}") from None
            except JobError as e:
                raise JobError(f"{calls.line()}: {self.name}: {e}") from None
        if self._order is None or batch_size != self._batch_size:
            self._batch_size = batch_size
            self._order = self._op.order_of(self._source, self._seed & 0xFFFFFFFF, batch_size)

    def chosen(self, start: int, n: int) -> Samples:
        """Return the samples [start, start + n) of the reader's endless sequence, without reading their data. Only for
        the program's thread."""
        samples: Samples = self._order.samples(start, n, self._source)
        return samples

    def read(self, samples: Samples) -> tuple[Data, ...]:
        """Read the data of ``samples`` and return it, one batch per output. Any thread may call it. Raises SampleError
        for a sample that cannot be read."""
        ctx = Context(self._op, "cpu", samples, rng="dali", source=self._source)
        outputs = outputs_of(self._op.kernel("cpu")(ctx))
        if ctx.rejects:
            calls.raise_reject(self.name, ctx.rejects, samples, self._where)
        if self._device is None or self._device.on_host:
            return outputs
        return tuple(value_of(data, True).to_device(self._device).data for data in outputs)

    def given(self, outputs: tuple[Data, ...], batched: bool) -> Any:
        """Return the outputs of a read as the program's loop gets them: a tuple, or a mapping if the outputs have
        names, of Batches if ``batched``, else of Tensors."""
        return self.named([value_of(data, batched) for data in outputs])

    def named(self, values: Sequence[Value]) -> Any:
        """Return Tensors or Batches for the program's loop: as a tuple, or as a mapping by name."""
        names = self._op.output_names
        return tuple(values) if names is None else dict(zip(names, values, strict=True))

    @property
    def outputs(self) -> int:
        """Number of values that the program's loop receives per iteration."""
        return self._op.num_outputs

    def records(self, first: int) -> ReaderInputs:
        """Return a description of the data from position ``first`` on, for a captured loop's pipeline."""
        order = replace(self._order, _passes={}, _states=[], _permuted=None, _list=None, _job=None)
        device = self._device
        return ReaderInputs(self._op, self._source, order, first, device is not None and not device.on_host)

    # -- going over it ------------------------------------------------------------------------------------------------

    def _go(self, way: str) -> None:
        self._where = calls.line()
        if self._way not in (None, way):
            raise RuntimeError(f"{self._where}: {self.name}: it was used for {self._way} and cannot also be "
                               f"used for {way}; create another reader")  # fmt: skip
        self._way = way

    def size_of(self, batch_size: int | None) -> int | None:
        """Return the batch size of an epoch: ``batch_size``, or for None the batch size that was passed to the
        constructor. Raises ValueError."""
        n = self._most if batch_size is None else batch_size
        if n is not None and n < 1:
            raise ArgumentValueError(f"{calls.line()}: {self.name}: batch_size must be at least 1, got {n}")
        if n is not None and self._most is not None and n > self._most:
            raise ArgumentValueError(f"{calls.line()}: {self.name}: batch_size {n} is above max_batch_size, "
                                     f"{self._most}")  # fmt: skip
        return n

    def __call__(self, *, batch_size: int | None = None) -> Any:
        """Return the next sample, or the next batch. Raises RuntimeError for a reader on which `next_epoch` was
        called."""
        self._go("single calls")
        n = self.size_of(batch_size) if batch_size is not None else None
        self._opened(n or 1)
        outputs = self.read(self.chosen(self._position, n or 1))
        self._position += n or 1
        result = self.given(outputs, n is not None)
        return result[0] if isinstance(result, tuple) and len(result) == 1 else result

    def next_epoch(
        self, batch_size: int | None = None, ctx: EvalContext | None = None, capture: bool = False
    ) -> Iterator[Any]:
        """Yield the samples of one epoch, or its batches if ``batch_size`` is given here or to the constructor.

        The next batch is read while the loop works on one. With ``capture``, a pipeline runs the calls in the loop's
        body ahead. Raises ValueError and RuntimeError for uses that exclude each other.
        """
        n = self.size_of(batch_size)
        if capture and n is None:
            raise ArgumentValueError(f"{calls.line()}: {self.name}: capture=True needs a batch_size")
        self._go("samples" if n is None else "batches")
        self._opened(n or 1)
        context = EvalContext.current() if ctx is None else ctx
        if capture:
            from .capture import epoch

            return epoch(self, n or 1, context)
        return self._samples(context) if n is None else self.batches(n, context)

    def begin_epoch(self) -> int:
        """Begin an epoch and return its number of samples. If a restored state is inside an epoch, continue that epoch
        and return the number of samples left in it."""
        if not self._resumed:
            self._left = self._order.shard_size(self._epoch)
            self._epoch += 1
        self._resumed = False
        return self._left

    def took(self, n: int) -> None:
        """Advance the reader's position by ``n`` samples, which the program's loop has received."""
        self._position += n
        self._left = max(0, self._left - n)

    @property
    def position(self) -> int:
        """Number of the next sample in the reader's endless sequence."""
        return self._position

    def batches(self, n: int, context: EvalContext) -> Iterator[Any]:
        """Yield the batches of one epoch; while the loop works on one, the next one is read."""
        left = self.begin_epoch()
        ahead = context.thread_pool.submit(self.read, self.chosen(self._position, n)) if left > 0 else None
        while ahead is not None:
            outputs = ahead.result()
            left -= n
            following = self.chosen(self._position + n, n) if left > 0 else None
            ahead = None if following is None else context.thread_pool.submit(self.read, following)
            self.took(n)
            yield self.given(outputs, True)

    def _samples(self, context: EvalContext) -> Iterator[Any]:
        left = self.begin_epoch()
        while left > 0:
            n = min(_SAMPLES_PER_READ, left)
            outputs = self.read(self.chosen(self._position, n))
            for i in range(n):
                self.took(1)
                one = slice(i, i + 1)
                yield self.given(tuple(calls.renumbered(o.take(one)) for o in outputs), False)
            left -= n

    # -- facts and states ---------------------------------------------------------------------------------------------

    def get_metadata(self) -> dict[str, Any]:
        """Return sizes and sharding of the data set, as `Pipeline.reader_meta` does."""
        self._opened(self._batch_size)
        return reader_facts(self._op, self._order)

    def get_state(self, cuda_stream: Any = None) -> ReaderState:
        """Return the position after the last sample that a loop has received."""
        return ReaderState(self._position, self._epoch, self._left)

    def set_state(self, value: ReaderState | str) -> None:
        """Continue from ``value``; the next `next_epoch` finishes an epoch that had begun. Raises ValueError."""
        state = value if isinstance(value, ReaderState) else ReaderState.parse(str(value))
        self._position, self._epoch, self._left = state.position, state.epoch, state.left
        self._resumed = state.left > 0

    def __del__(self) -> None:
        source, captured = getattr(self, "_source", None), getattr(self, "captured", None)
        if captured is not None and captured[1].pipeline is not None:
            captured[1].pipeline.abandon(lambda: source and source.close())
        elif source is not None:
            source.close()


def _plain(value: Any) -> Any:
    return type_id(value) if isinstance(value, DType) else value


def reader_class(name: str, cls: type[Operator], about: str) -> type[Reader]:
    """Return the class called ``name`` for reader ``cls``, for example ``readers.File``, with ``about`` as its
    docstring."""
    *folders, last = name.split(".")
    module = ".".join(("dali_run.dynamic", *folders))
    return type(last, (Reader,), {"operator": cls, "__doc__": about, "__module__": module})
