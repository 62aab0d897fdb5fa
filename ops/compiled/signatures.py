"""Argument types of compiled functions as text, which a file can hold and any version of Numba reads:

uint8             a number; bool; none
uint8[:,:]C       an array of two dimensions in C order; "A" any strides; "r" after it: read only; "u": unaligned
(int64, float32)  a tuple
{"names": ...}    a record, as `numpy.dtype` takes it
"""

# mypy: allow-untyped-calls, disable-error-code="arg-type, attr-defined, call-overload"

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_ARRAY = re.compile(r"^(.*)\[(:(?:,:)*)\]([CFA])(r?)(u?)$", re.S)


@dataclass(frozen=True, slots=True)
class Loop:
    """One Numba function for one list of argument types: a line of loops.json, the list of functions that are compiled
    ahead of time."""

    module: str
    """Name of the function's module, without the package's name."""
    function: str
    types: tuple[str, ...]
    """Types of the function's arguments, each as text such as ``float32[:]``; see `signatures`."""
    clients: frozenset[str] = field(default=frozenset(), compare=False)
    """Operators, and writers as ``writers.NAME``, that call the function in common jobs; empty if only rare jobs call
    it."""
    seconds: float = field(default=1.0, compare=False)
    """Seconds that compiling the function took when it was recorded."""

    def line(self) -> str:
        """Return this function and its types as a line of loops.json."""
        return json.dumps([self.module, self.function, list(self.types), sorted(self.clients), round(self.seconds, 1)])


def in_words(kind: Any) -> str | None:
    """Return a Numba type as text, such as ``float32[:]``; None for a type that this notation cannot describe."""
    from numba import types

    if isinstance(kind, types.Boolean):
        return "bool"
    if isinstance(kind, types.NoneType):
        return "none"
    if isinstance(kind, types.Integer | types.Float) and not isinstance(kind, types.Literal):
        return str(kind)
    if isinstance(kind, types.BaseTuple) and not isinstance(kind, types.BaseNamedTuple):
        parts = [in_words(part) for part in kind.types]
        return None if None in parts else f"({'; '.join(map(str, parts))})"
    if isinstance(kind, types.Array) and type(kind) is types.Array:
        item = in_words(kind.dtype)
        flags = "r" * (not kind.mutable) + "u" * (not kind.aligned)
        return item and f"{item}[{','.join(':' * kind.ndim)}]{kind.layout}{flags}"
    if isinstance(kind, types.Record):
        return _record_in_words(kind)
    return None


def _record_in_words(kind: Any) -> str | None:
    from numba import from_dtype
    from numba.np.numpy_support import as_dtype

    words = json.dumps(_described(as_dtype(kind)))
    return words if from_dtype(_dtype(json.loads(words))) == kind else None


def _described(dtype: Any) -> Any:
    """Return a NumPy dtype as a JSON value, from which `_dtype` restores it."""
    if dtype.subdtype is not None:
        item, shape = dtype.subdtype
        return [_described(item), list(shape)]
    if dtype.names is None:
        return dtype.str
    formats, offsets = zip(*(dtype.fields[name][:2] for name in dtype.names), strict=True)
    return {"names": list(dtype.names), "formats": [_described(f) for f in formats], "offsets": list(offsets),
            "itemsize": dtype.itemsize, "aligned": dtype.isalignedstruct}  # fmt: skip


def _dtype(described: Any) -> Any:
    import numpy as np

    if isinstance(described, list):
        return np.dtype((_dtype(described[0]), tuple(described[1])))
    if isinstance(described, str):
        return np.dtype(described)
    aligned = described["aligned"]
    whole = {k: v for k, v in described.items() if k != "aligned"} | {
        "formats": [_dtype(f) for f in described["formats"]]
    }
    return np.dtype(whole, align=aligned)


def of_words(words: str) -> Any:
    """Return the Numba type for ``words``, a text that `in_words` returned. Raises ValueError for any other text."""
    from numba import from_dtype, types

    if words.startswith("{") and words.endswith("}"):
        return from_dtype(_dtype(json.loads(words)))
    if found := _ARRAY.match(words):
        item, dimensions, layout, readonly, unaligned = found.groups()
        return types.Array(of_words(item), dimensions.count(":"), layout, bool(readonly), aligned=not unaligned)
    if words.startswith("(") and words.endswith(")"):
        return types.BaseTuple.from_types([of_words(part) for part in _parts(words[1:-1])])
    if words in ("bool", "none"):
        return types.boolean if words == "bool" else types.none
    kind = getattr(types, words, None)
    if not isinstance(kind, types.Number):
        raise ValueError(f"no type: {words!r}")
    return kind


def _parts(words: str) -> list[str]:
    """Return the element types of a tuple type. ``words``: text such as ``int64; float32``, without nested tuples."""
    return [part.strip() for part in words.split(";") if part.strip()]
