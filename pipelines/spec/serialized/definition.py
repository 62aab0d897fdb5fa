"""The contents of a serialized pipeline of DALI: operators, tensors by name, arguments, settings.

Field numbers were determined from files that DALI 2.4 wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....ops.errors import SpecError
from ....readers.records.message import message_fields
from . import wire

LARGEST = 16 << 20
"""Largest accepted size of a serialized pipeline, in bytes."""
_MOST_OPERATORS = 10_000
_DEEPEST = 4
"""Largest accepted nesting depth of operators' arguments. The features of readers.tfrecord have three levels."""


@dataclass(frozen=True, slots=True)
class TensorName:
    """Name of a tensor: an input or output of an operator, or an output of the pipeline."""

    name: str
    device: str
    argument: str = ""
    """Name of the operator's argument whose value the tensor is; empty for a regular input."""
    dtype: int = -1
    ndim: int = -1
    layout: str | None = None


@dataclass(slots=True)
class SavedOperator:
    """One operator as stored in DALI's serialized pipeline."""

    schema: str = ""
    """DALI's name for the type of the operator, such as ``decoders__Image``."""
    name: str = ""
    inputs: list[TensorName] = field(default_factory=list)
    outputs: list[TensorName] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The operator's name as shown in messages."""
        return f"{self.schema} ({self.name})" if self.name else self.schema


@dataclass(slots=True)
class SavedPipeline:
    """The contents of a pipeline that DALI serialized."""

    num_threads: int = 0
    batch_size: int = 0
    device_id: int = -1
    seed: int | None = None
    cpu_queue: int = 2
    gpu_queue: int = 2
    operators: list[SavedOperator] = field(default_factory=list)
    outputs: list[TensorName] = field(default_factory=list)


def parse(data: bytes) -> SavedPipeline:
    """Parse ``data``, the bytes of DALI's serialized pipeline. Raises SpecError with the reason if it is not one."""
    if len(data) > LARGEST:
        raise SpecError(f"the file has more than {LARGEST:,} bytes, the limit for serialized pipelines")
    try:
        return _pipeline(data)
    except ValueError as e:
        raise SpecError(f"this is not a serialized pipeline of DALI, or it is damaged: {e}") from None


def _pipeline(data: bytes) -> SavedPipeline:
    pipeline = SavedPipeline()
    numbers = {1: "num_threads", 2: "batch_size", 8: "device_id", 9: "seed", 13: "cpu_queue", 14: "gpu_queue"}
    for number, value in message_fields(data):
        if number in numbers:
            setattr(pipeline, numbers[number], _integer(value))
        elif number == 5:
            pipeline.operators.append(_operator(wire.message(value)))
            if len(pipeline.operators) > _MOST_OPERATORS:
                raise ValueError(f"it has more than {_MOST_OPERATORS:,} operators")
        elif number == 7:
            pipeline.outputs.append(_tensor(wire.message(value), output=True))
    if not pipeline.operators or not pipeline.outputs:
        raise ValueError("it has no operators, or no outputs")
    return pipeline


def _integer(value: wire.Field) -> int:
    numbers = wire.integers(value)
    if len(numbers) != 1:
        raise ValueError("found a list of numbers instead of one")
    return numbers[0]


def _operator(data: bytes) -> SavedOperator:
    operator = SavedOperator()
    for number, value in message_fields(data):
        if number == 1:
            operator.schema = wire.text(value)
        elif number == 2:
            operator.inputs.append(_tensor(wire.message(value)))
        elif number == 3:
            operator.outputs.append(_tensor(wire.message(value)))
        elif number == 4:
            name, argument = _argument(wire.message(value), 0)
            operator.arguments[name] = argument
        elif number == 5:
            operator.name = wire.text(value)
    if not operator.schema:
        raise ValueError("an operator has no name")
    return operator


def _tensor(data: bytes, output: bool = False) -> TensorName:
    """Parse the name of a tensor. ``output``: whether it is an output of the pipeline, in which field 4 is a layout."""
    fields: dict[int, wire.Field] = dict(message_fields(data))
    if not {1, 2} <= fields.keys():
        raise ValueError("an input or output has no name, or no device")
    device = wire.text(fields[2])
    if device not in ("cpu", "gpu"):
        raise ValueError(f"a tensor is on {device!r}; there are cpu and gpu")
    fourth = wire.text(fields[4]) if 4 in fields else None
    return TensorName(
        name=wire.text(fields[1]),
        device=device,
        argument=(fourth or "") if not output and _integer(fields.get(3, 0)) else "",
        dtype=_integer(fields.get(5, 2**64 - 1)),
        ndim=_integer(fields.get(6, 2**64 - 1)),
        layout=fourth if output else None,
    )


_VALUES: dict[int, Callable[[Any], Sequence[Any]]] = {
    3: wire.floats,
    4: wire.integers,
    5: lambda value: [wire.text(value)],
    6: lambda value: [bool(v) for v in wire.integers(value)],
}
"""Parsers of an argument's values, by the number of the message's field."""


def _argument(data: bytes, depth: int) -> tuple[str, Any]:
    """Parse an argument of an operator, and return its name and value: a number, a text, a list of these, or a dict of
    arguments. ``depth`` is the nesting depth."""
    if depth > _DEEPEST:
        raise ValueError("arguments are nested too deeply")
    name, vector = "", False
    values: list[Any] = []
    nested: list[tuple[str, Any]] = []
    for number, value in message_fields(data):
        if number == 1:
            name = wire.text(value)
        elif number in _VALUES:
            values += _VALUES[number](value)
        elif number == 7:
            nested.append(_argument(wire.message(value), depth + 1))
        elif number == 8:
            vector = bool(_integer(value))
    if not name:
        raise ValueError("an argument has no name")
    if vector:
        return name, [*values, *(v for _, v in nested)]
    if nested:
        return name, dict(nested)
    return name, values[0] if len(values) == 1 else values
