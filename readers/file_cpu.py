"""Compiled loops that find the sizes of many small files, and read their bytes into one buffer, without the GIL.

They call the C library directly: a file costs its system calls and nothing else. `readers.file.FileSet` calls them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

OK, NO_OPEN, NO_READ, CHANGED = 0, 1, 2, 3
"""Statuses of a file after reading: it was read; it cannot be opened; it cannot be read; its size changed."""
MISSING, NOT_A_FILE = -1, -2
"""Values in ``sizes`` for names that are not files: nothing has this name; it is a folder or device."""

_openat: Any = types.ExternalFunction("openat", types.int32(types.int32, types.intp, types.int32))
_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.intp, types.uintp, types.int64))
_close: Any = types.ExternalFunction("close", types.int32(types.int32))
_statx: Any = types.ExternalFunction(
    "statx", types.int32(types.int32, types.intp, types.int32, types.uint32, types.intp)
)

# statx(2): the layout of struct statx is equal on all Linux machines; the constants are indices of 8-byte words
_BASIC_STATS = 0x7FF
_MODE, _SIZE, _MTIME_S, _MTIME_NS, _WORDS = 3, 5, 14, 15, 32
_TYPE_MASK, _REGULAR = 0o170000, 0o100000


@numba.njit("void(int32, uint8[::1], int64[::1], int64[::1], int64[::1], int64, int64)", nogil=True, cache=True)
def stat_files(root: Any, names: Any, starts: Any, sizes: Any, mtimes: Any, low: Any, high: Any) -> None:
    """Fill in the sizes in bytes (or MISSING, NOT_A_FILE) and the modification times in ns of files [low, high).

    ``names`` holds NUL-terminated paths, relative to the open directory ``root``; name i starts at ``starts[i]``.
    """
    info = np.zeros(_WORDS, np.int64)
    for i in range(low, high):
        mtimes[i] = 0
        if _statx(root, names.ctypes.data + starts[i], np.int32(0), np.uint32(_BASIC_STATS), info.ctypes.data) != 0:
            sizes[i] = MISSING
        elif (info[_MODE] >> 32) & _TYPE_MASK != _REGULAR:
            sizes[i] = NOT_A_FILE
        else:
            sizes[i] = info[_SIZE]
            mtimes[i] = info[_MTIME_S] * 1_000_000_000 + (info[_MTIME_NS] & 0xFFFFFFFF)


@numba.njit("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int32[:, ::1])", cache=True)
def places(all_sizes: Any, which: Any, most: Any, sizes: Any, at: Any, shapes: Any) -> Any:
    """Compute where the files with indices ``which`` are placed in one buffer. Fill ``sizes`` (below zero for files of
    more than ``most`` bytes), offsets ``at`` (multiples of 16, with at least one spare byte after each file, see
    `read_files`) and ``shapes`` [N, 1] of the bytes to read. Return the size of the buffer."""
    end = np.int64(0)
    for k in range(len(which)):
        size = all_sizes[which[k]]
        sizes[k], at[k] = MISSING if size > most else size, end
        shapes[k, 0] = max(sizes[k], 0)
        end += (sizes[k] // 16 + 1) * 16 if sizes[k] >= 0 else 0
    return end


@numba.njit(nogil=True, cache=True)
def read_one(root: Any, name: Any, flags: Any, to: Any, size: Any) -> Any:
    """Read the file of ``size`` bytes whose name is at address ``name`` to the address ``to``, which has space for one
    byte more. Return the file's status, such as OK."""
    if size < 0:
        return NO_OPEN
    file = _openat(root, name, flags)
    if file < 0:
        return NO_OPEN
    done, wanted = np.int64(0), size + 1
    got = _pread(file, to, np.uintp(wanted), np.int64(0))
    while got > 0 and done + got < size:
        done += got
        got = _pread(file, to + done, np.uintp(wanted - done), np.int64(done))
    _close(file)
    if got < 0:
        return NO_READ
    return OK if done + got == size else CHANGED


@numba.njit(
    "int64(int32, int32, uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1], int32[::1], int64, "
    "int64)",
    nogil=True,
    cache=True,
)
def read_files(
    root: Any, flags: Any, names: Any, starts: Any, which: Any, out: Any, at: Any, sizes: Any, status: Any, low: Any,
    high: Any,
) -> Any:  # fmt: skip
    """Read file ``which[k]`` into ``out[at[k] : at[k] + sizes[k]]``, for k in [low, high). Return the number of
    failures.

    Each file has space for one more byte, so that the read that fills it also shows that the file ends there. Files
    with sizes below zero are skipped.
    """
    good = np.int64(0)
    for k in range(low, high):
        status[k] = read_one(root, names.ctypes.data + starts[which[k]], flags, out.ctypes.data + at[k], sizes[k])
        good += status[k] == OK
    return high - low - good
