"""Serialized pipelines in DALI's format, made without DALI, for cases that DALI does not write on a machine without
GPU: pipelines for a GPU, Python functions, and damage."""

from __future__ import annotations

import struct
from typing import Any

from dali_run.pipelines.spec.serialized.definition import SavedOperator, SavedPipeline, TensorName


def tensor(name: str, device: str = "cpu", argument: str = "") -> TensorName:
    return TensorName(name, device, argument)


def op(
    schema: str,
    inputs: list[TensorName] | None = None,
    outputs: list[TensorName] | None = None,
    name: str = "",
    **arguments: Any,
) -> SavedOperator:
    return SavedOperator(schema, name or f"__{schema}", inputs or [], outputs or [], arguments)


def encoded(saved: SavedPipeline) -> bytes:
    """Return the bytes of a serialized pipeline of DALI."""
    parts = [_number(1, saved.num_threads), _number(2, saved.batch_size)]
    parts += [_bytes(5, _operator(o)) for o in saved.operators]
    parts += [_bytes(7, _tensor(t)) for t in saved.outputs]
    parts.append(_number(8, saved.device_id))
    if saved.seed is not None:
        parts.append(_number(9, saved.seed))
    return b"".join([*parts, _number(13, saved.cpu_queue), _number(14, saved.gpu_queue)])


def _operator(saved: SavedOperator) -> bytes:
    parts = [_bytes(1, saved.schema.encode())]
    parts += [_bytes(2, _tensor(t)) for t in saved.inputs]
    parts += [_bytes(3, _tensor(t)) for t in saved.outputs]
    parts += [_bytes(4, _argument(k, v)) for k, v in saved.arguments.items()]
    return b"".join([*parts, _bytes(5, saved.name.encode())])


def _tensor(saved: TensorName) -> bytes:
    parts = [_bytes(1, saved.name.encode()), _bytes(2, saved.device.encode()), _number(3, bool(saved.argument))]
    return b"".join([*parts, _bytes(4, saved.argument.encode()) if saved.argument else b""])


def _argument(name: str, value: Any) -> bytes:
    parts = [_bytes(1, name.encode())]
    if isinstance(value, list):
        parts += [_bytes(7, _argument(f"element {k}", v)) for k, v in enumerate(value)]
    elif isinstance(value, dict):
        parts += [_bytes(7, _argument(k, v)) for k, v in value.items()]
    elif isinstance(value, bool):
        parts += [_bytes(2, b"bool"), _number(6, value)]
    elif isinstance(value, int):
        parts += [_bytes(2, b"int64"), _number(4, value)]
    elif isinstance(value, float):
        parts += [_bytes(2, b"float"), _varint(3 << 3 | 5) + struct.pack("<f", value)]
    else:
        parts += [_bytes(2, b"string"), _bytes(5, value.encode())]
    return b"".join([*parts, _number(8, isinstance(value, list))])


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value % 2**64)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
