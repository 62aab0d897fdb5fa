"""Indices in brackets: `value[1:, ..., None]` as calls of operators."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from ...ops.arrays.cast import Cast
from ...ops.arrays.join import Stack
from ...ops.arrays.shape import ExpandDims
from ...ops.arrays.subscript import TensorSubscript
from ...ops.errors import ArgumentTypeError, ArgumentValueError
from ...ops.types import DALIDataType
from ..python.data_node import NewAxis
from . import invocation
from .values import Value


def subscript(value: Value, index: Any) -> Any:
    """``value[index]`` of each sample: integers, slices with steps, one ``...``, ``newaxis`` and None; the numbers may
    be Tensors and, of batches, Batches. Raises TypeError for other indices, SampleError for places that are not there.
    """
    items = _without_ellipsis(list(index) if isinstance(index, tuple) else [index], value)
    new: list[int] = []
    names = ""
    kinds = ""
    starts: list[Any] = []
    stops: list[Any] = []
    steps: list[Any] = []
    place = 0
    for item in items:
        if item is None or isinstance(item, NewAxis):
            new.append(place)
            names += item.name if isinstance(item, NewAxis) else ""
            place += 1
            continue
        kind, start, stop, step = _part(item)
        kinds += kind
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        place += kind != "i"
    result: Any = value
    if kinds.strip(":") or len(kinds) > 1 or any(isinstance(s, Value) or s != 1 for s in steps):
        ends = {"start": _vector(starts), "stop": _vector(stops), "step": _vector(steps)}
        result = invocation.invoke(TensorSubscript, (value,), {"kinds": kinds, **ends})
    if new:
        named = {"new_axis_names": names} if len(names) == len(new) else {}
        result = invocation.invoke(ExpandDims, (result,), {"axes": new, **named})
    return result


def _without_ellipsis(items: list[Any], value: Value) -> list[Any]:
    at = [k for k, item in enumerate(items) if isinstance(item, EllipsisType)]
    if not at:
        return items
    if len(at) > 1:
        raise IndexError("an index has one `...` at most")
    others = sum(item is not None and not isinstance(item, (NewAxis, EllipsisType)) for item in items)
    return [*items[: at[0]], *[np.s_[:]] * max(value.ndim - others, 0), *items[at[0] + 1 :]]


def _part(item: Any) -> tuple[str, Any, Any, Any]:
    """A letter as `tensor_subscript` has it, start, stop and step."""
    if isinstance(item, slice):
        for end in (item.start, item.stop, item.step):
            if end is not None and not isinstance(end, (Value, int, np.integer)):
                raise ArgumentTypeError(f"slices are made of integers, Tensors and Batches, got {end!r}")
        if isinstance(item.step, (int, np.integer)) and item.step == 0:
            raise ArgumentValueError("the step of a slice cannot be 0")
        letter = (":" if item.stop is None else "]") if item.start is None else "[" if item.stop is None else "s"
        first, last = (0 if end is None else end for end in (item.start, item.stop))
        return letter, first, last, 1 if item.step is None else item.step
    if isinstance(item, Value) or (isinstance(item, (int, np.integer)) and not isinstance(item, bool)):
        return "i", item, 0, 1
    raise ArgumentTypeError(f"an index is made of integers, slices, newaxis, Tensors and Batches, got {item!r}")


def _vector(parts: list[Any]) -> Any:
    if not any(isinstance(v, Value) for v in parts):
        return tuple(int(v) for v in parts)
    return invocation.invoke(Stack, [invocation.invoke(Cast, (v,), {"dtype": DALIDataType.INT64}) for v in parts], {})
