"""Features of TFRecord files, for fn.readers.tfrecord: the names of DALI's module of this name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

int64 = "int64"
float32 = "float"
string = "string"


def FixedLenFeature(shape: Sequence[int] | int, dtype: str, default_value: Any = None) -> dict[str, Any]:  # noqa: N802
    """A feature with as many values in every record; ``default_value`` stands for a missing one."""
    feature: dict[str, Any] = {"dtype": dtype, "shape": list(shape) if isinstance(shape, Sequence) else [shape]}
    if default_value is not None:
        feature["default"] = default_value
    return feature


def VarLenFeature(*arguments: Any) -> dict[str, Any]:  # noqa: N802
    """A feature with any number of values: (dtype, default) or (partial shape, dtype, default). A missing feature has
    no values, whatever the default. Raises TypeError for anything else."""
    shape: Any = []
    if arguments and not isinstance(arguments[0], str):
        shape, arguments = arguments[0], arguments[1:]
    if not 1 <= len(arguments) <= 2:
        raise TypeError("VarLenFeature takes (dtype, default) or (partial shape, dtype, default)")
    return {"dtype": arguments[0], "shape": list(shape) if isinstance(shape, Sequence) else [shape], "var_len": True}
