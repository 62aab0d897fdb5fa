"""Features of TFRecord files, under DALI's names: ``import dali_run.tfrecord as tfrec``.

The functions return the mapping that a spec would hold: ``{dtype: int64, shape: [1], default: -1}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

string = "string"
int64 = "int64"
float32 = "float"


def FixedLenFeature(shape: Any, dtype: str, default_value: Any = None) -> dict[str, Any]:  # noqa: N802 - DALI's name
    """Return a feature with the same number of values in every record.

    A record without the feature gets ``default_value``; with None it is rejected.
    """
    feature: dict[str, Any] = {"dtype": dtype, "shape": _plain(shape)}
    return feature if default_value is None else {**feature, "default": _plain(default_value)}


def VarLenFeature(  # noqa: N802 - DALI's name
    *args: Any,
    partial_shape: Any = None,
    dtype: Any = None,
    default_value: Any = None,
) -> dict[str, Any]:
    """Return a feature with any number of values, or of rows of ``partial_shape``: ``VarLenFeature([shape,] dtype,
    default)``.

    A record without the feature has no values, whatever the default (as in DALI). Raises TypeError without a dtype.
    """
    arguments = [a for a in args if a is not None]
    if arguments and isinstance(arguments[0], (list, tuple)):
        partial_shape = arguments.pop(0)
    if arguments:
        dtype = arguments.pop(0)
    del default_value
    if not isinstance(dtype, str):
        raise TypeError("VarLenFeature takes (dtype, default) or (partial shape, dtype, default)")
    return {"dtype": dtype, "shape": _plain(partial_shape or []), "var_len": True}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else np.asarray(value).tolist()


__all__ = ["FixedLenFeature", "VarLenFeature", "float32", "int64", "string"]
