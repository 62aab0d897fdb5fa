"""DType: element types of the dynamic mode, with DALI's names: ``uint8`` is ``u8``, ``float32`` is ``f32``."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...ops.errors import ArgumentTypeError, ArgumentValueError
from ...ops.types import DALIDataType, from_numpy, parse_dtype, to_numpy


class DType:
    """An element type. Calling it with data creates a tensor of that type: ``float32([1, 2])``."""

    class Kind(enum.Enum):
        """Families of element types."""

        signed = 1
        unsigned = 2
        float = 3
        bool = 4
        enum = 5

    make: ClassVar[Callable[[Any, DType, Any, str | None], Any]]
    """Function that creates a tensor from (data, type, device, layout), or a batch if the data is a Batch. The module
    `values` sets it."""

    def __init__(
        self,
        kind: Kind,
        bits: int,
        exponent_bits: int | None = None,
        significand_bits: int | None = None,
        bytes: int | None = None,
        type_id: DALIDataType | None = None,
        name: str | None = None,
        docs: str | None = None,
    ) -> None:
        self.kind = kind
        self.bits = bits
        self.exponent_bits = exponent_bits
        self.significand_bits = significand_bits
        self.bytes = (bits + 7) // 8 if bytes is None else bytes
        self.type_id = type_id
        """The type's DALIDataType, which pipelines and operators use; None for types that no operator accepts."""
        self.name = name or f"{'iuf?'[kind.value - 1] if kind.value < 4 else kind.name}{bits if kind.value < 4 else ''}"
        if docs:
            self.__doc__ = docs

    @staticmethod
    def from_type_id(type_id: DALIDataType) -> DType:
        """Return the type whose DALIDataType is ``type_id``. Raises ValueError if there is none."""
        try:
            return _BY_ID[DALIDataType(type_id)]
        except (KeyError, ValueError):
            raise ArgumentValueError(f"{type_id!r} is not a type of tensors") from None

    @staticmethod
    def from_fw_type(numpy_type: Any) -> DType:
        """Return the type for a NumPy dtype, or for a framework's dtype that NumPy understands."""
        return DType.from_type_id(parse_dtype(numpy_type))

    @staticmethod
    def parse(name: str) -> DType:
        """Return the type called ``name``: ``u8``, ``i32``, ``f16``, ``bool``, or a NumPy name. Raises ValueError."""
        if name in _BY_NAME:
            return _BY_NAME[name]
        try:
            return DType.from_type_id(parse_dtype(name))
        except ValueError:
            raise ArgumentValueError(f"{name!r} is not a data type; allowed: {', '.join(_BY_NAME)}") from None

    def __call__(self, data: Any, device: Any = None, layout: str | None = None) -> Any:
        return DType.make(data, self, device, layout)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        more = "" if self.exponent_bits is None else (
            f", exponent_bits={self.exponent_bits}, significand_bits={self.significand_bits}"
        )  # fmt: skip
        return f"DType(kind=Kind.{self.kind.name}, bits={self.bits}{more})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        try:
            return dtype(other) is self
        except (TypeError, ValueError):
            return False

    def __hash__(self) -> int:
        return hash(self.name)


_K = DType.Kind
int8 = DType(_K.signed, 8, type_id=DALIDataType.INT8)
int16 = DType(_K.signed, 16, type_id=DALIDataType.INT16)
int32 = DType(_K.signed, 32, type_id=DALIDataType.INT32)
int64 = DType(_K.signed, 64, type_id=DALIDataType.INT64)
uint8 = DType(_K.unsigned, 8, type_id=DALIDataType.UINT8)
uint16 = DType(_K.unsigned, 16, type_id=DALIDataType.UINT16)
uint32 = DType(_K.unsigned, 32, type_id=DALIDataType.UINT32)
uint64 = DType(_K.unsigned, 64, type_id=DALIDataType.UINT64)
float16 = DType(_K.float, 16, 5, 10, type_id=DALIDataType.FLOAT16)
float32 = DType(_K.float, 32, 8, 23, type_id=DALIDataType.FLOAT)
float64 = DType(_K.float, 64, 11, 52, type_id=DALIDataType.FLOAT64)
bool_ = DType(_K.bool, 8, type_id=DALIDataType.BOOL, name="bool")
bfloat16 = DType(_K.float, 16, 8, 7, name="bfloat16")
DataType = DType(_K.enum, 32, type_id=DALIDataType.INT32, name="DataType")
ImageType = DType(_K.enum, 32, type_id=DALIDataType.INT32, name="ImageType")
InterpType = DType(_K.enum, 32, type_id=DALIDataType.INT32, name="InterpType")
_PLAIN = (int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, bool_)
_BY_ID = {t.type_id: t for t in _PLAIN}
_BY_NAME = {t.name: t for t in (*_PLAIN, bfloat16)}
_BY_NUMPY = {to_numpy(t.type_id): t for t in _PLAIN if t.type_id is not None}


def dtype(value: Any) -> DType:
    """Return ``value`` as a DType: a DType, a DALIDataType, a name, or a NumPy dtype. Raises TypeError and
    ValueError."""
    if isinstance(value, DType):
        return value
    if isinstance(value, DALIDataType):
        return DType.from_type_id(value)
    if isinstance(value, str):
        return DType.parse(value)
    try:
        return DType.from_type_id(from_numpy(value))
    except (TypeError, KeyError):
        raise ArgumentTypeError(f"{value!r} is not a data type") from None


def type_id(value: Any) -> DALIDataType:
    """Return the DALIDataType for ``value``, which is any description of a type. Raises TypeError and ValueError; also
    for bfloat16, which operators do not support."""
    result = dtype(value).type_id
    if result is None:
        raise ArgumentValueError(f"no operator accepts tensors of {value}")
    return result


def of_numpy(value: np.dtype[Any]) -> DType:
    """Return the DType for the NumPy dtype of an array."""
    return _BY_NUMPY[value]
