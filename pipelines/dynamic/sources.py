"""ExternalSource: a program's own data as values of the dynamic mode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from ...ops.errors import ArgumentTypeError, ArgumentValueError
from ..python.tensors import TensorList
from .contexts import EvalContext
from .devices import device as device_of
from .values import Batch, as_batch, as_tensor


class ExternalSource:
    """Reader of data from the program, a callable without parameters or an iterable: each call returns the next
    element. For one thread at a time."""

    def __init__(
        self,
        source: Callable[[], Any] | Iterable[Any],
        num_outputs: int = 1,
        *,
        cycle: Literal["no", "quiet", "raise"] | bool | None = None,
        device: Any = "cpu",
        layout: str | Sequence[str] | None = None,
        dtype: Any = None,
    ) -> None:
        """``cycle`` sets what follows the last element of an iterable: the end (``no``), the first element again
        (``quiet``), or StopIteration once and then the first element (``raise``). Raises TypeError and ValueError."""
        self._is_function = callable(source)
        if not callable(source) and not isinstance(source, Iterable):
            raise ArgumentTypeError(f"a source is a callable without parameters or an iterable, got {source!r}")
        if self._is_function and _parameters(source):
            raise ArgumentValueError("the source must be callable without arguments")
        makes = self._is_function and inspect.isgeneratorfunction(source)
        if cycle not in (None, False, "no") and self._is_function and not makes:
            raise ArgumentValueError("only an iterable can be cycled, and the source is a function")
        if cycle not in (None, False, True, "no", "quiet", "raise"):
            raise ArgumentValueError(f"cycle is 'no', 'quiet' or 'raise', got {cycle!r}")
        if cycle not in (None, False, "no") and inspect.isgenerator(source):
            raise ArgumentTypeError("a generator cannot be restarted; pass the generator function instead to cycle it")
        self._cycle = {None: "no", False: "no", True: "quiet"}.get(cycle, cycle)  # type: ignore[arg-type]
        self._makes = makes
        self._source: Any = source
        self._iterator: Iterator[Any] | None = None
        self.outputs = num_outputs
        """Number of values (outputs) in each element."""
        self._device = device_of(device)
        self._layouts = _each(layout, num_outputs, "layout")
        self._dtypes = _each(dtype, num_outputs, "dtype")
        self.captured_loop: Any = None
        """Pair of batch size and `capture.Loop` (calls that run ahead); None until the first captured loop."""

    def __call__(self, *, batch_size: int | None = None) -> Any:
        """Return the next element: a Batch if the source returns one or if ``batch_size`` is given, else a Tensor; for
        several outputs, a tuple. A single sample is repeated ``batch_size`` times.

        Raises StopIteration at the end, ValueError if the number of outputs or samples differs from the declared one.
        """
        element = self._next()
        if self.outputs == 1:
            return self._value(element, 0, batch_size)
        if not isinstance(element, (tuple, list)) or len(element) != self.outputs:
            got = len(element) if isinstance(element, (tuple, list)) else 1
            raise ArgumentValueError(f"the source returned {got} outputs, but num_outputs is {self.outputs}")
        return tuple(self._value(v, k, batch_size) for k, v in enumerate(element))

    def _next(self) -> Any:
        if self._is_function and not self._makes:
            return self._source()
        if self._iterator is None:
            self._iterator = iter(self._source() if self._makes else self._source)
        try:
            return next(self._iterator)
        except StopIteration:
            if self._cycle == "no":
                raise
            self._iterator = None
            if self._cycle == "raise":
                raise
            self._iterator = iter(self._source() if self._makes else self._source)
            return next(self._iterator)

    def _value(self, value: Any, k: int, batch_size: int | None) -> Any:
        options = {"dtype": self._dtypes[k], "device": self._device, "layout": self._layouts[k]}
        if isinstance(value, (Batch, TensorList)):
            result = as_batch(value, **options)
            if batch_size is not None and result.batch_size != batch_size:
                raise ArgumentValueError(
                    f"the source returned {result.batch_size} samples, but batch_size is {batch_size}"
                )
            return result
        sample = as_tensor(value, **options)
        return sample if batch_size is None else Batch.broadcast(sample, batch_size)

    def __del__(self) -> None:
        captured = getattr(self, "captured_loop", None)
        if captured is not None and captured[1].pipeline is not None:
            captured[1].pipeline.abandon(lambda: None)

    def captured(self, batch_size: int, ctx: EvalContext | None = None) -> Iterator[Any]:
        """Iterate over the source once. A pipeline runs the calls in the loop's body ahead; see `Reader.next_epoch`."""
        from .capture import source_epoch

        return source_epoch(self, batch_size, EvalContext.current() if ctx is None else ctx)


def _parameters(source: Any) -> bool:
    """Return whether the callable ``source`` requires arguments."""
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _each(value: Any, n: int, name: str) -> list[Any]:
    if isinstance(value, (list, tuple)):
        if len(value) != n:
            raise ArgumentValueError(f"{name} has {len(value)} entries for {n} outputs")
        return list(value)
    return [value] * n
