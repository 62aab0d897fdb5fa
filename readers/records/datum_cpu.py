"""Compiled parsers of a batch of Caffe's Datum or Caffe2's TensorProtos, in one pass (caffe.proto, caffe2.proto)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .protobuf_cpu import BYTES, FIXED32, VARINT, count_varints, field, varint

OK, DAMAGED = 0, 1

# columns of a Datum
CHANNELS, HEIGHT, WIDTH, DATA, DATA_STOP, LABEL, ENCODED, HAS_LABEL, HAS_DATA = range(9)
DATUM_COLUMNS = 9


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64[:, ::1], int32[::1])", nogil=True, cache=True)
def read_datums(data: Any, offsets: Any, sizes: Any, found: Any, status: Any) -> None:
    """Parse Caffe's Datum {1: channels, 2: height, 3: width, 4: data, 5: label, 6: float_data*, 7: encoded} per record.

    ``encoded`` is -1 if the record has no such field. Records whose status is not OK are skipped.
    """
    for i in range(len(offsets)):
        found[i] = 0
        found[i, ENCODED] = -1
        at, stop = offsets[i], offsets[i] + sizes[i]
        while at < stop and status[i] == OK:
            number, wire, low, high = field(data, at, stop)
            at = high
            if wire < 0:
                status[i] = DAMAGED
            elif number == 4:
                if wire != BYTES:
                    status[i] = DAMAGED
                found[i, DATA], found[i, DATA_STOP], found[i, HAS_DATA] = low, high, 1
            elif number in (1, 2, 3, 5, 7):
                if wire != VARINT:
                    status[i] = DAMAGED
                value, _ = varint(data, low, high)
                if number <= 3:
                    found[i, number - 1] = np.int64(value)
                elif number == 5:
                    found[i, LABEL], found[i, HAS_LABEL] = np.int32(np.int64(value)), 1
                else:
                    found[i, ENCODED] = 1 if value != np.uint64(0) else 0


# columns of a TensorProto
TYPE, START, STOP, COUNT, DIMS, DIM0, DIM1, DIM2, DIM3 = range(9)
TENSOR_COLUMNS = 9
FLOAT, INT32, BYTE, STRING = 1, 2, 3, 4
"""Values of the enum TensorProto.DataType of Caffe2."""


@numba.njit("boolean(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def _tensor(data: Any, at: Any, stop: Any, found: Any) -> Any:
    """Parse Caffe2's TensorProto {1: dims*, 2: data_type, 3: float*, 4: int32*, 5: bytes, 6: string*}. Return False if
    it is corrupt."""
    found[:] = 0
    found[TYPE], found[START], found[STOP] = 1, at, stop
    values = np.zeros(7, np.int64)
    string_low, string_high, bytes_low, bytes_high = stop, stop, stop, stop
    while at < stop:
        number, wire, low, high = field(data, at, stop)
        at = high
        if wire < 0:
            return False
        if number == 1:
            if wire != VARINT and wire != BYTES:
                return False
            while low < high:
                value, low = varint(data, low, high)
                if low < 0:
                    return False
                if found[DIMS] < 4:
                    found[DIM0 + found[DIMS]] = np.int64(value)
                found[DIMS] += 1
        elif number == 2:
            if wire != VARINT:
                return False
            value, _ = varint(data, low, high)
            found[TYPE] = np.int64(value)
        elif number == 3:
            if wire == FIXED32:
                values[3] += 1
            elif wire == BYTES and (high - low) % 4 == 0:
                values[3] += (high - low) // 4
            else:
                return False
        elif number == 4:
            if wire == VARINT:
                values[4] += 1
            elif wire == BYTES and count_varints(data, low, high) >= 0:
                values[4] += count_varints(data, low, high)
            else:
                return False
        elif number in (5, 6):
            if wire != BYTES:
                return False
            values[number] += 1
            if number == 5:
                bytes_low, bytes_high = low, high
            elif values[6] == 1:
                string_low, string_high = low, high
    kind = found[TYPE]
    if kind in (FLOAT, INT32):
        found[COUNT] = values[kind + 2]
    elif kind == BYTE:
        found[START], found[STOP], found[COUNT] = bytes_low, bytes_high, bytes_high - bytes_low
    elif kind == STRING:
        found[START], found[STOP], found[COUNT] = string_low, string_high, values[6]
    return True


@numba.njit(
    "void(uint8[::1], int64[::1], int64[::1], int64[:, :, ::1], int64[::1], int32[::1])", nogil=True, cache=True
)
def read_tensors(data: Any, offsets: Any, sizes: Any, found: Any, counts: Any, status: Any) -> None:
    """Parse the message TensorProtos {1: TensorProto*} in each record. Fill in the first ``found.shape[1]`` tensors,
    and their number."""
    for i in range(len(offsets)):
        found[i] = 0
        counts[i] = 0
        at, stop = offsets[i], offsets[i] + sizes[i]
        while at < stop and status[i] == OK:
            number, wire, low, high = field(data, at, stop)
            at = high
            if wire < 0 or (number == 1 and wire != BYTES):
                status[i] = DAMAGED
            elif number == 1:
                if counts[i] < found.shape[1] and not _tensor(data, low, high, found[i, counts[i]]):
                    status[i] = DAMAGED
                counts[i] += 1


@numba.njit("void(uint8[::1], int64[:, ::1], int64[::1], float64[::1])", nogil=True, cache=True)
def read_numbers(data: Any, found: Any, at: Any, out: Any) -> None:
    """Copy the values of each record's tensor, as `read_tensors` found it, to ``out[at[i] :]``. float64 holds floats
    and integers."""
    four = np.zeros(4, np.uint8)
    for i in range(len(found)):
        kind = found[i, TYPE]
        if found[i, COUNT] == 0 or kind not in (FLOAT, INT32):
            continue
        k, low, stop = at[i], found[i, START], found[i, STOP]
        while low < stop:
            number, _, a, b = field(data, low, stop)
            low = b
            if number == 3 and kind == FLOAT:
                for j in range(a, b, 4):
                    four[:] = data[j : j + 4]
                    out[k] = four.view(np.float32)[0]
                    k += 1
            elif number == 4 and kind == INT32:
                while a < b:
                    value, a = varint(data, a, b)
                    out[k] = np.int32(np.int64(value))
                    k += 1
