"""Indices in brackets, `value[1:, ..., None]`, as calls of operators; for nodes of a graph and for data of the dynamic
mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from ...ops.arrays.cast import Cast
from ...ops.arrays.join import Stack
from ...ops.arrays.shape import ExpandDims
from ...ops.arrays.subscript import TensorSubscript
from ...ops.base import Operator
from ...ops.errors import ArgumentTypeError, ArgumentValueError
from ...ops.types import DALIDataType

Call = Callable[[type[Operator], Sequence[Any], Mapping[str, Any]], Any]
"""Function that calls an operator with the given inputs and arguments, and returns its only output."""


class NewAxis:
    """``dali_run.newaxis``: a new dimension of length 1. Calling it with a letter names the dimension in the layout."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __call__(self, name: str) -> NewAxis:
        if len(name) != 1:
            raise ValueError(f"a dimension has one letter for a name, got {name!r}")
        return NewAxis(name)


newaxis = NewAxis()


class StepError(ArgumentValueError, ArgumentTypeError):
    """Error for a slice with step 0. It is a ValueError, as for Python's lists, and also a TypeError, as in DALI's
    pipelines."""


def items_of(index: Any) -> list[Any]:
    """Return the entries of the index in ``x[index]`` as a list: those of a tuple, or the index itself."""
    return list(index) if isinstance(index, tuple) else [index]


def is_new_axis(item: Any) -> bool:
    """Return whether an entry of an index adds a dimension (``newaxis`` or None)."""
    return item is None or isinstance(item, NewAxis)


def subscript(value: Any, items: Sequence[Any], values: type, call: Call) -> Any:
    """Return the batch ``value[items]``, indexed in each sample. Entries of ``items`` are integers, slices with steps,
    ``newaxis`` and None, but not ``...``. Numbers in them may also be instances of ``values``, the class for batches.
    Raises TypeError and ValueError (both SpecError) for other entries."""
    new: list[tuple[int, str]] = []
    parts: list[tuple[str, Any, Any, Any]] = []
    place = 0
    for item in items:
        if is_new_axis(item):
            new.append((place, "" if item is None else item.name))
            place += 1
        else:
            parts.append(_part(item, values))
            place += parts[-1][0] != "i"
    kinds = "".join(kind for kind, _, _, _ in parts)
    starts, stops, steps = ([part[k] for part in parts] for k in (1, 2, 3))
    strided = any(isinstance(s, values) or s != 1 for s in steps)
    # a single `:` selects all of any value; several entries also check the number of dimensions
    if strided or len(kinds) > 1 or kinds.strip(":"):
        ends = {"start": _vector(starts, values, call), "stop": _vector(stops, values, call)}
        if strided:
            ends["step"] = _vector(steps, values, call)
        value = call(TensorSubscript, (value,), {"kinds": kinds, **ends})
    if new:
        names = "".join(name for _, name in new)
        named = {"new_axis_names": names} if len(names) == len(new) else {}
        value = call(ExpandDims, (value,), {"axes": [at for at, _ in new], **named})
    return value


def _part(item: Any, values: type) -> tuple[str, Any, Any, Any]:
    """Return one entry of an index as (kind, start, stop, step). The kind is ``i`` for a number and ``:`` for all; for
    slices it is ``[`` with a start only, ``]`` with a stop only, and ``s`` with both."""
    if isinstance(item, slice):
        for name, end in (("start", item.start), ("stop", item.stop), ("step", item.step)):
            if end is not None and not isinstance(end, (values, int, np.integer)):
                raise ArgumentTypeError(f"slices are made of integers and {values.__name__}s, got {end!r} as {name}")
        if isinstance(item.step, (int, np.integer)) and item.step == 0:
            raise StepError("the step of a slice cannot be 0")
        kind = (":" if item.stop is None else "]") if item.start is None else "[" if item.stop is None else "s"
        start, stop = (0 if end is None else end for end in (item.start, item.stop))
        return kind, start, stop, 1 if item.step is None else item.step
    if isinstance(item, values) or (isinstance(item, (int, np.integer)) and not isinstance(item, bool)):
        return "i", item, 0, 1
    raise ArgumentTypeError(f"an index is made of integers, slices, newaxis and {values.__name__}s, got {item!r}")


def _vector(numbers: Sequence[Any], values: type, call: Call) -> Any:
    """Return the numbers as a tuple. If some are batches (instances of ``values``), return a batch with one vector of
    the numbers per sample instead."""
    if not any(isinstance(v, values) for v in numbers):
        return tuple(int(v) for v in numbers)
    return call(Stack, [call(Cast, (v,), {"dtype": DALIDataType.INT64}) for v in numbers], {})


def is_ellipsis(item: Any) -> bool:
    """Return whether an entry of an index is ``...``."""
    return isinstance(item, EllipsisType)
