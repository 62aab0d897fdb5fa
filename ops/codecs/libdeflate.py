"""libdeflate, the fastest well-kept inflate, as the package `deflate` brings it: functions for compiled loops.

The package's own calls make a Python object of every stream; a loop that decodes a batch wants to call C from compiled
code. Its extension module exports libdeflate's functions, and so do the shared libraries of distributions.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import numpy as np

from ..batch import I64

_NAMES = (
    "libdeflate_alloc_decompressor",
    "libdeflate_zlib_decompress_ex",
    "libdeflate_free_decompressor",
    "libdeflate_crc32",
)


@cache
def functions() -> I64 | None:
    """The addresses of alloc_decompressor, zlib_decompress_ex, free_decompressor and crc32; None where there is no
    libdeflate."""
    for path in _places():
        try:
            library = ctypes.CDLL(path)
            found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _NAMES]
        except (OSError, AttributeError):  # it cannot be loaded, or does not export them
            continue
        return np.array(found, np.int64)
    return None


def addresses() -> I64:
    """`functions`, or zeros where there is no libdeflate, for loops that can do without."""
    found = functions()
    return np.zeros(len(_NAMES), np.int64) if found is None else found


def _places() -> Iterator[str]:
    """Where the library may be: the package's own comes first, because the system's is asked for by a process."""
    with contextlib.suppress(ImportError):
        if found := import_module("deflate._deflate").__file__:
            yield found
    if found := ctypes.util.find_library("deflate"):
        yield found
