"""Pickling of callbacks for worker processes. Functions that cannot be imported by name are pickled by value."""

from __future__ import annotations

import builtins
import importlib
import io
import marshal
import pickle
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_BY_VALUE = "_dali_run_by_value"


def pickle_by_value(function: F) -> F:
    """Mark a function at module level to be pickled with its code instead of by name. Worker processes may not be able
    to import a function from a notebook."""
    setattr(function, _BY_VALUE, True)
    return function


def dumps(value: Any, **options: Any) -> bytes:
    """Return ``value`` pickled, with functions from notebooks by value. Only processes that this process starts read
    it."""
    buffer = io.BytesIO()
    _Pickler(buffer, **options).dump(value)
    return buffer.getvalue()


def loads(data: bytes, **options: Any) -> Any:
    """Return the object that `dumps` pickled."""
    return pickle.loads(data, **options)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, FunctionType) and _travels_by_value(value):
            return _empty_function, (marshal.dumps(value.__code__), len(value.__closure__ or ())), _state(value), \
                None, None, _fill  # fmt: skip
        return NotImplemented


def _travels_by_value(function: FunctionType) -> bool:
    if getattr(function, _BY_VALUE, False) or function.__module__ == "__main__":
        return True
    imported: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        imported = getattr(imported, part, None)
    return imported is not function


def _state(function: FunctionType) -> dict[str, Any]:
    used = {n: function.__globals__[n] for n in set(_names(function.__code__)) if n in function.__globals__}
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append((True, cell.cell_contents))
        except ValueError:  # not assigned yet
            cells.append((False, None))
    return {"globals": used, "cells": cells, "defaults": function.__defaults__, "kwdefaults": function.__kwdefaults__,
            "name": function.__name__, "qualname": function.__qualname__, "module": function.__module__}  # fmt: skip


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _empty_function(code: bytes, cells: int) -> FunctionType:
    closure = tuple(CellType() for _ in range(cells))
    return FunctionType(marshal.loads(code), {"__builtins__": builtins}, closure=closure)


def _fill(function: FunctionType, state: dict[str, Any]) -> None:
    function.__globals__.update(state["globals"])
    for cell, (is_set, contents) in zip(function.__closure__ or (), state["cells"], strict=True):
        if is_set:
            cell.cell_contents = contents
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__name__, function.__qualname__ = state["name"], state["qualname"]
    function.__module__ = state["module"]
