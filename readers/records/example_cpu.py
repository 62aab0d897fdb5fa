"""Compiled parser of a batch of tf.train.Example in one pass: finds the extent of each requested feature, then reads
its numbers.

Messages (tensorflow/core/example/{example,feature}.proto): Example {1: Features}, Features {1: map entry*}, entry {1:
key, 2: Feature}, Feature {1: BytesList | 2: FloatList | 3: Int64List}, each list {1: value*}.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .protobuf_cpu import BYTES, FIXED32, VARINT, count_varints, field, varint

OK, DAMAGED = 0, 1
"""Results of parsing a record, stored in ``status``: parsed, or corrupt."""
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
"""Kinds of a feature: the field numbers of Feature."""
START, STOP, COUNT, KIND = 0, 1, 2, 3
"""Columns of the row in ``found`` that locates a feature: start and stop of its list message (for bytes, of the value
itself), its number of values, and its kind."""


@numba.njit("int64(uint8[::1], int64, int64, uint8[::1], int64[::1])", nogil=True, cache=True)
def _which(data: Any, at: Any, stop: Any, names: Any, name_starts: Any) -> Any:
    """Return the index of the requested feature whose name is ``data[at:stop]``; -1 if no such feature is requested."""
    for f in range(len(name_starts) - 1):
        low, size = name_starts[f], name_starts[f + 1] - name_starts[f]
        if size == stop - at:
            same = True
            for k in range(size):
                if data[at + k] != names[low + k]:
                    same = False
                    break
            if same:
                return f
    return -1


@numba.njit("boolean(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def _list(data: Any, at: Any, stop: Any, found: Any) -> Any:
    """Count the values of the list message ``data[at:stop]``, of kind found[KIND]. Return False if it is corrupt."""
    kind, count = found[KIND], 0
    found[START], found[STOP] = at, stop
    while at < stop:
        number, wire, low, high = field(data, at, stop)
        if wire < 0:
            return False
        at = high
        if number != 1:
            continue
        if kind == BYTES_LIST:
            if wire != BYTES:
                return False
            if count == 0:
                found[START], found[STOP] = low, high
            count += 1
        elif kind == FLOAT_LIST:
            if wire == BYTES and (high - low) % 4 == 0:
                count += (high - low) // 4
            elif wire == FIXED32:
                count += 1
            else:
                return False
        elif wire == BYTES:
            more = count_varints(data, low, high)
            if more < 0:
                return False
            count += more
        elif wire == VARINT:
            count += 1
        else:
            return False
    found[COUNT] = count
    return True


@numba.njit("boolean(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def _feature(data: Any, at: Any, stop: Any, found: Any) -> Any:
    """Find the list of values in a Feature message, ``data[at:stop]``. Fill ``found`` with the list's range and kind.
    The last list counts, as in protobuf."""
    found[COUNT], found[KIND] = 0, 0
    while at < stop:
        number, wire, low, high = field(data, at, stop)
        if wire < 0:
            return False
        at = high
        if 1 <= number <= 3:
            if wire != BYTES:
                return False
            found[KIND] = number
            if not _list(data, low, high, found):
                return False
    return True


@numba.njit("boolean(uint8[::1], int64, int64, uint8[::1], int64[::1], int64[:, ::1])", nogil=True, cache=True)
def _entry(data: Any, at: Any, stop: Any, names: Any, name_starts: Any, found: Any) -> Any:
    """Parse one entry of the map of features: its name and its value, in any order."""
    name_low, name_high, low, high = at, at, at, at
    while at < stop:
        number, wire, a, b = field(data, at, stop)
        if wire < 0 or (1 <= number <= 2 and wire != BYTES):
            return False
        at = b
        if number == 1:
            name_low, name_high = a, b
        elif number == 2:
            low, high = a, b
    which = _which(data, name_low, name_high, names, name_starts)
    return which < 0 or _feature(data, low, high, found[which])


@numba.njit(
    "void(uint8[::1], int64[::1], int64[::1], boolean[::1], uint8[::1], int64[::1], int64[:, :, ::1], int32[::1])",
    nogil=True,
    cache=True,
)
def find_features(
    data: Any, offsets: Any, sizes: Any, good: Any, names: Any, name_starts: Any, found: Any, status: Any
) -> None:  # fmt: skip
    """Locate features in tf.train.Examples: ``found[i, f]`` gets the position of feature f in record i, KIND 0 if it is
    missing.

    ``names[name_starts[f] : name_starts[f + 1]]`` is the name of feature f. Records must lie in ``data``. Records that
    are not ``good`` are skipped, with the status DAMAGED.
    """
    for i in range(len(offsets)):
        found[i] = 0
        status[i] = OK if good[i] else DAMAGED
        if not good[i]:
            continue
        at, stop = offsets[i], offsets[i] + sizes[i]
        sound = True
        while sound and at < stop:
            number, wire, low, high = field(data, at, stop)
            at = high
            if wire < 0 or (number == 1 and wire != BYTES):
                sound = False
            elif number == 1:
                while sound and low < high:
                    number, wire, a, b = field(data, low, high)
                    low = b
                    if wire < 0 or (number == 1 and wire != BYTES):
                        sound = False
                    elif number == 1:
                        sound = _entry(data, a, b, names, name_starts, found[i])
        if not sound:
            status[i] = DAMAGED
            found[i] = 0


@numba.njit("void(uint8[::1], int64[:, ::1], int64[::1], float32[::1])", nogil=True, cache=True)
def read_floats(data: Any, found: Any, at: Any, out: Any) -> None:
    """Copy float values located by `find_features`: ``found[i, COUNT]`` values of record i to ``out[at[i] :]``."""
    bits = out.view(np.uint32)
    for i in range(len(found)):
        if found[i, KIND] != FLOAT_LIST:
            continue
        k, low, stop = at[i], found[i, START], found[i, STOP]
        while low < stop:
            number, _, a, b = field(data, low, stop)
            low = b
            if number == 1:
                for j in range(a, b, 4):
                    bits[k] = (
                        np.uint32(data[j])
                        | np.uint32(data[j + 1]) << np.uint32(8)
                        | np.uint32(data[j + 2]) << np.uint32(16)
                        | np.uint32(data[j + 3]) << np.uint32(24)
                    )
                    k += 1


@numba.njit("void(uint8[::1], int64[:, ::1], int64[::1], int64[::1])", nogil=True, cache=True)
def read_integers(data: Any, found: Any, at: Any, out: Any) -> None:
    """Copy integer values located by `find_features`: ``found[i, COUNT]`` values of record i to ``out[at[i] :]``."""
    for i in range(len(found)):
        if found[i, KIND] != INT64_LIST:
            continue
        k, low, stop = at[i], found[i, START], found[i, STOP]
        while low < stop:
            number, _, a, b = field(data, low, stop)
            low = b
            while number == 1 and a < b:
                value, a = varint(data, a, b)
                out[k] = np.int64(value)
                k += 1
