"""DALI's types: data types, filters, colour spaces, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .ops.types import DALIDataType, DALIImageType, DALIInterpType
from .ops.types import from_numpy as _from_numpy
from .ops.types import to_numpy as _to_numpy
from .pipelines.python.api_type import PipelineAPIType
from .readers.external_source import BatchInfo, SampleInfo

if TYPE_CHECKING:
    from .pipelines.python.data_node import ScalarConstant

NO_TYPE = DALIDataType.NO_TYPE
UINT8 = DALIDataType.UINT8
UINT16 = DALIDataType.UINT16
UINT32 = DALIDataType.UINT32
UINT64 = DALIDataType.UINT64
INT8 = DALIDataType.INT8
INT16 = DALIDataType.INT16
INT32 = DALIDataType.INT32
INT64 = DALIDataType.INT64
FLOAT16 = DALIDataType.FLOAT16
FLOAT = DALIDataType.FLOAT
FLOAT64 = DALIDataType.FLOAT64
BOOL = DALIDataType.BOOL
STRING = DALIDataType.STRING
DATA_TYPE = IMAGE_TYPE = INTERP_TYPE = DALIDataType.INT32
"""The type of enumeration values as data; DALI has a separate type for each enumeration."""

INTERP_NN = DALIInterpType.INTERP_NN
INTERP_LINEAR = DALIInterpType.INTERP_LINEAR
INTERP_CUBIC = DALIInterpType.INTERP_CUBIC
INTERP_LANCZOS3 = DALIInterpType.INTERP_LANCZOS3
INTERP_TRIANGULAR = DALIInterpType.INTERP_TRIANGULAR
INTERP_GAUSSIAN = DALIInterpType.INTERP_GAUSSIAN

RGB = DALIImageType.RGB
BGR = DALIImageType.BGR
GRAY = DALIImageType.GRAY
YCbCr = DALIImageType.YCbCr
ANY_DATA = DALIImageType.ANY_DATA

CPU_ONLY_DEVICE_ID = -99999
"""DALI's device number for pipelines without a GPU; None means the same."""

NCHW = "CHW"
NHWC = "HWC"
NFHWC = "FHWC"
NFCHW = "FCHW"


SAME = ""
"""DALI's name for "the same layout as the input"."""


class TensorLayout(str):
    """The layout of a tensor as a string: one letter per dimension. It is accepted wherever a string is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TensorLayout({str(self)!r})"


class CUDAStream:
    """A CUDA stream given by its address, for `Tensor.copy_to_external` and similar methods."""

    def __init__(self, ptr: int = 0) -> None:
        self._ptr = ptr

    @property
    def ptr(self) -> int:
        """The address of the stream; 0 is the default stream."""
        return self._ptr


def Constant(  # noqa: N802  # DALI's name
    value: Any, dtype: Any = None, shape: Sequence[int] | None = None, layout: str | None = None,
    device: str | None = None, name: str | None = None,
) -> Any:  # fmt: skip
    """Return ``value`` as a constant: a number for arithmetic or, with a shape, layout, device or name, a batch of
    tensors.

    As in DALI, a shape with a single element does not count.
    """
    from .pipelines.python.data_node import ScalarConstant as Scalar
    from .pipelines.python.data_node import constant

    number = isinstance(value, (bool, int, float)) or getattr(value, "shape", None) == ()
    if number and shape in (None, 1, (), [], (1,), [1]) and layout is None and device is None and name is None:
        return Scalar(value, dtype)
    return constant(value, dtype, shape, layout, device or "cpu", name)


def __getattr__(name: str) -> Any:
    if name == "ScalarConstant":  # it imports the engine, without which the command line must start
        from .pipelines.python.data_node import ScalarConstant

        return ScalarConstant
    raise AttributeError(f"module 'dali_run.types' has no attribute {name!r}")


def to_dali_type(dtype: Any) -> DALIDataType:
    """Return the DALI type for a NumPy dtype."""
    return _from_numpy(dtype)


def to_numpy_type(dtype: DALIDataType) -> type[Any]:
    """Return NumPy's scalar class for a DALI type; calling it creates a number of that type."""
    return _to_numpy(dtype).type


__all__ = [
    "ANY_DATA",
    "BGR",
    "BOOL",
    "CPU_ONLY_DEVICE_ID",
    "DATA_TYPE",
    "FLOAT",
    "FLOAT16",
    "FLOAT64",
    "GRAY",
    "IMAGE_TYPE",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "INTERP_CUBIC",
    "INTERP_GAUSSIAN",
    "INTERP_LANCZOS3",
    "INTERP_LINEAR",
    "INTERP_NN",
    "INTERP_TRIANGULAR",
    "INTERP_TYPE",
    "NCHW",
    "NFCHW",
    "NFHWC",
    "NHWC",
    "NO_TYPE",
    "RGB",
    "SAME",
    "STRING",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "BatchInfo",
    "CUDAStream",
    "Constant",
    "DALIDataType",
    "DALIImageType",
    "DALIInterpType",
    "PipelineAPIType",
    "SampleInfo",
    "ScalarConstant",
    "TensorLayout",
    "YCbCr",
    "to_dali_type",
    "to_numpy_type",
]
