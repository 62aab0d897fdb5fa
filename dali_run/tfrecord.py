"""Features of TFRecord files, by DALI's names: ``import dali_run.tfrecord as tfrec``.

What they return is what a spec says: ``{dtype: int64, shape: [1], default: -1}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

string = "string"
int64 = "int64"
float32 = "float"


def FixedLenFeature(shape: Any, dtype: str, default_value: Any = None) -> dict[str, Any]:  # noqa: N802 - DALI's name
    """A feature with as many values in every record; ``default_value`` stands for a missing one, None rejects it."""
    feature: dict[str, Any] = {"dtype": dtype, "shape": _plain(shape)}
    return feature if default_value is None else {**feature, "default": _plain(default_value)}


def VarLenFeature(  # noqa: N802 - DALI's name
    *args: Any,
    partial_shape: Any = None,
    dtype: Any = None,
    default_value: Any = None,
) -> dict[str, Any]:
    """A feature with any number of values, or rows of ``partial_shape``: ``VarLenFeature([shape,] dtype, default)``.

    A missing feature has no values, whatever the default (as in DALI). Raises TypeError without a dtype.
    """
    given = [a for a in args if a is not None]
    if given and isinstance(given[0], (list, tuple)):
        partial_shape = given.pop(0)
    if given:
        dtype = given.pop(0)
    del default_value
    if not isinstance(dtype, str):
        raise TypeError("VarLenFeature takes (dtype, default) or (partial shape, dtype, default)")
    return {"dtype": dtype, "shape": _plain(partial_shape or []), "var_len": True}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else np.asarray(value).tolist()


__all__ = ["FixedLenFeature", "VarLenFeature", "float32", "int64", "string"]
