"""Compiled loop that reads many small files into staging pieces and uploads them while it reads, without the GIL.

`readers.file` calls it; `ops.gpu.uploads` describes pieces and events.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ...ops.gpu.pieces_cpu import is_free, send
from ...ops.gpu.uploads import NEXT, SENT
from ..file_cpu import NO_OPEN, OK, read_one
from . import header_bytes_cpu
from .extents_cpu import copy_extent


@numba.njit(nogil=True, cache=True)
def send_files(
    root: Any, flags: Any, names: Any, starts: Any, which: Any, at: Any, sizes: Any, status: Any, low: Any, high: Any,
    pieces: Any, events: Any, busy: Any, state: Any, calls: Any, device: Any, shown: Any, kept: Any, functions: Any,
) -> Any:  # fmt: skip
    """Read files as `file_cpu.read_files` does, into page-locked staging buffers, and upload these to the GPU: file k
    begins ``at[k]`` bytes after the device address ``device``.

    ``shown[at[k]:]`` gets the header bytes, which the host needs: of a file larger than a buffer, all bytes.
    ``kept[k]`` becomes the offset from which on bytes are missing on the host, or the file's size. ``pieces`` [count,
    size], ``events``, ``busy``, ``state`` and ``calls`` belong to `gpu.uploads`, ``functions`` come from
    `libdeflate.addresses`. Returns the file to continue with: ``high``, or an earlier one if the next buffer is not
    free yet or the driver rejects a call.
    """
    arrays = header_bytes_cpu.scratch()
    k = low
    while k < high:
        first, piece = k, state[NEXT]
        if not is_free(events, busy, state, calls):
            break
        begin, end, most = np.int64(-1), np.int64(-1), np.int64(pieces.shape[1])
        if sizes[k] >= most:
            if state[SENT] == 0:
                name = names.ctypes.data + starts[which[k]]
                status[k] = read_one(root, name, flags, shown.ctypes.data + at[k], sizes[k])
                kept[k] = sizes[k]
            begin = at[k] + state[SENT]
            end = min(at[k] + sizes[k], begin + most)
            copy_extent(shown, begin, end - begin, pieces[piece], 0)
            state[SENT] = end - at[k]
            if end == at[k] + sizes[k]:
                state[SENT] = 0
                k += 1
        while k < high and state[SENT] == 0 and sizes[k] < most:
            kept[k] = 0
            if sizes[k] < 0:
                status[k] = NO_OPEN
                k += 1
                continue
            begin = at[k] if begin < 0 else begin
            place, room = at[k] - begin, (sizes[k] // 16 + 1) * 16
            if place + room > most:
                break
            name = names.ctypes.data + starts[which[k]]
            status[k] = read_one(root, name, flags, pieces[piece].ctypes.data + place, sizes[k])
            if status[k] == OK:
                data = pieces[piece, place : place + sizes[k]]
                kept[k] = header_bytes_cpu.keep(data, shown[at[k] : at[k] + sizes[k]], functions, arrays)
            end = at[k] + room
            k += 1
        if end < 0:
            continue
        if not send(pieces, events, busy, state, calls, device + begin, end - begin):
            k = first
            break
    return k
