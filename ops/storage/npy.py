"""NumPy's .npy format: read and check a file's header, so that its array can be viewed in place."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from ..batch import check_extents
from ..errors import SampleError


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Position and type of the array in a .npy file."""

    dtype: np.dtype[Any]
    """Data type in the file, in its byte order."""
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int
    """Offset in bytes of the array's first element in the file."""


def read_header(data: memoryview, size: int | None = None) -> NpyHeader:
    """Read the header of a .npy file in memory. ``size``: size of the file if ``data`` is only its beginning. Nothing
    is unpickled. Raises SampleError for data that is not a .npy file, a type that is neither number nor boolean, a
    shape that no array can have, or fewer bytes than the array needs."""
    if bytes(data[:6]) != npy_format.MAGIC_PREFIX:
        raise SampleError("corrupt_record", f"not a .npy file: it starts with {bytes(data[:6]).hex(' ') or 'nothing'}")
    # Version 1 stores the header's length in two bytes; files of a data set usually have equal headers.
    length = 10 + data[8] + 256 * data[9] if len(data) >= 10 and data[6] == 1 else _MAX_HEADER
    try:
        read = _parsed if length <= _MAX_CACHED_HEADER else _parse
        shape, fortran_order, dtype, offset = read(bytes(data[:length]))
    except Exception as e:  # the header is a Python literal: a corrupt one fails in many ways
        raise SampleError("corrupt_record", f"the .npy header is corrupt: {str(e).splitlines()[0][:200]}") from e
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise SampleError("unsupported", f".npy of type {dtype.str!r}: only booleans, integers and floats are read")
    check_extents(shape, dtype.itemsize)
    needed = math.prod(shape) * dtype.itemsize + offset
    size = len(data) if size is None else size
    if needed > size:
        raise SampleError("truncated", f"the .npy file has {size} bytes, its header asks for {needed}")
    return NpyHeader(dtype, shape, fortran_order, offset)


_MAX_HEADER = 1 << 16
_MAX_CACHED_HEADER = 256
"""Maximum length in bytes of a header that is cached in parsed form."""


def _parse(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether elements are in Fortran order, dtype and header length of a .npy file. ``start``: the
    file's first bytes."""
    head = io.BytesIO(start)
    version = npy_format.read_magic(head)
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, fortran_order, dtype = read(head)
    return shape, fortran_order, dtype, head.tell()


_parsed = lru_cache(1024)(_parse)


def view(data: memoryview, header: NpyHeader) -> np.ndarray[Any, Any]:
    """Return the array of a .npy file in memory, as a view in the file's byte order."""
    flat: np.ndarray[Any, Any] = np.frombuffer(data, header.dtype, math.prod(header.shape), header.offset)
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")
