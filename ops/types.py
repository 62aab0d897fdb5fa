"""Public enumerations: DALI's names, and their NumPy equivalents.

Values equal those of DALI 2.4, so that stored numbers keep their meaning.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import numpy as np

Library = Literal["dali", "torchvision", "opencv", "pillow"]
"""Library whose results an operator reproduces exactly, such as the one with which a model was trained."""


class _Named(enum.IntEnum):
    """Enumeration whose members print as names: ``DALIDataType.FLOAT``."""

    __str__ = enum.Enum.__str__


class DALIDataType(_Named):
    """Element type of a tensor."""

    NO_TYPE = -1
    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    UINT64 = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    FLOAT16 = 8
    FLOAT = 9
    FLOAT64 = 10
    BOOL = 11
    STRING = 12
    DATA_TYPE = IMAGE_TYPE = INTERP_TYPE = enum.nonmember(6)
    """Types of tensors whose elements are enumeration members. In dali-run they are INT32; DALI has separate types."""


class DALIInterpType(_Named):
    """Resampling filter. LINEAR and TRIANGULAR are the same if an image shrinks with antialiasing, DALI's default."""

    INTERP_NN = 0
    INTERP_LINEAR = 1
    INTERP_CUBIC = 2
    INTERP_LANCZOS3 = 3
    INTERP_TRIANGULAR = 4
    INTERP_GAUSSIAN = 5


class DALIImageType(_Named):
    """Colour space of decoded images."""

    RGB = 0
    BGR = 1
    GRAY = 2
    YCbCr = 3
    ANY_DATA = 4


_NUMPY: dict[DALIDataType, np.dtype[Any]] = {
    DALIDataType.UINT8: np.dtype(np.uint8),
    DALIDataType.UINT16: np.dtype(np.uint16),
    DALIDataType.UINT32: np.dtype(np.uint32),
    DALIDataType.UINT64: np.dtype(np.uint64),
    DALIDataType.INT8: np.dtype(np.int8),
    DALIDataType.INT16: np.dtype(np.int16),
    DALIDataType.INT32: np.dtype(np.int32),
    DALIDataType.INT64: np.dtype(np.int64),
    DALIDataType.FLOAT16: np.dtype(np.float16),
    DALIDataType.FLOAT: np.dtype(np.float32),
    DALIDataType.FLOAT64: np.dtype(np.float64),
    DALIDataType.BOOL: np.dtype(np.bool_),
}
_DALI = {v: k for k, v in _NUMPY.items()}


def to_numpy(dtype: DALIDataType) -> np.dtype[Any]:
    """Return the NumPy dtype of ``dtype``. Raises KeyError for NO_TYPE and STRING, which have none."""
    return _NUMPY[dtype]


def from_numpy(dtype: Any) -> DALIDataType:
    """Return the DALI type of a NumPy dtype (or of anything that ``np.dtype`` takes)."""
    return _DALI[np.dtype(dtype)]


def parse_dtype(value: Any) -> DALIDataType:
    """Convert ``FLOAT``, ``float32``, ``np.float32``, ``DALIDataType.FLOAT`` or its number to a DALIDataType.

    Raises ValueError that lists the allowed names.
    """
    if isinstance(value, str) and value.upper() in DALIDataType.__members__:
        return DALIDataType[value.upper()]
    try:
        return DALIDataType(value) if isinstance(value, int) and not isinstance(value, bool) else from_numpy(value)
    except (TypeError, KeyError, ValueError):
        allowed = ", ".join(n for n in DALIDataType.__members__ if n not in ("NO_TYPE", "STRING"))
        raise ValueError(f"{value!r} is not a data type; allowed: {allowed} or NumPy's names") from None
