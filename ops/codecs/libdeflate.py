"""Addresses of libdeflate's functions for compiled loops. It is the fastest maintained inflate; the package `deflate`
contains it.

The package's own calls create a Python object per stream; a loop that decodes a batch calls C from compiled code. The
package's extension module exports libdeflate's functions, and so do the shared libraries of distributions.
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
    """Return the addresses of libdeflate's functions alloc_decompressor, zlib_decompress_ex, free_decompressor and
    crc32; None if it is not installed."""
    for path in _places():
        try:
            library = ctypes.CDLL(path)
            found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _NAMES]
        except (OSError, AttributeError):  # it cannot be loaded, or does not export them
            continue
        return np.array(found, np.int64)
    return None


def addresses() -> I64:
    """Return the addresses from `functions`, or zeros if libdeflate is not installed, for compiled loops that can work
    without it."""
    found = functions()
    return np.zeros(len(_NAMES), np.int64) if found is None else found


def _places() -> Iterator[str]:
    """Yield paths at which libdeflate may be. Its Python package comes first, because searching the system's libraries
    takes a subprocess."""
    with contextlib.suppress(ImportError):
        if found := import_module("deflate._deflate").__file__:
            yield found
    if found := ctypes.util.find_library("deflate"):
        yield found
