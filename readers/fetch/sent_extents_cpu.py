"""Compiled loops that copy extents of mapped files into staging pieces and upload them, without the GIL.

`extents` calls them for records of containers; `ops.gpu.uploads` describes pieces and events.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ...ops.gpu.pieces_cpu import is_free, send
from ...ops.gpu.uploads import NEXT, SENT
from ..tfrecord_cpu import check_record
from .extents_cpu import copy_extent, copy_extents


@numba.njit(nogil=True, cache=True)
def copy_checked(
    source: Any, offsets: Any, sizes: Any, out: Any, at: Any, low: Any, high: Any, record_at: Any, record_sizes: Any,
    kinds: Any, good: Any,
) -> None:  # fmt: skip
    """Copy the byte ranges [low, high) of a mapped file as `extents_cpu.copy_extents` does. Check each TFRecord's
    checksums just before copying it: the check leaves the bytes in the processor's cache."""
    for k in range(low, high):
        check_record(source, record_at, record_sizes, kinds, good, k)
        copy_extents(source, offsets[k : k + 1], sizes[k : k + 1], out, at[k : k + 1])


@numba.njit(nogil=True, cache=True)
def send_extents(
    source: Any, offsets: Any, sizes: Any, at: Any, low: Any, high: Any, pieces: Any, events: Any, busy: Any,
    state: Any, calls: Any, device: Any, record_at: Any, record_sizes: Any, kinds: Any, good: Any,
) -> Any:  # fmt: skip
    """Upload ``source[offsets[k] : offsets[k] + sizes[k]]``, for k in [low, high), through page-locked buffers to
    ``at[k]`` bytes after the device address ``device``. The caller has checked the bounds.

    The parameters from ``pieces`` to ``calls`` are described at `sent_files_cpu.send_files`, those after ``device`` at
    `tfrecord_cpu.check_record`. Returns the k to continue with: ``high``, or less if the next buffer is not free yet or
    the driver rejects a call.
    """
    most = np.int64(pieces.shape[1])
    k = low
    while k < high and is_free(events, busy, state, calls):
        first, before, piece = k, state[SENT], pieces[state[NEXT]]
        begin, sent = at[k] + before, before
        end = begin
        while k < high:
            place = at[k] + sent - begin
            n = min(sizes[k] - sent, most - place)
            if sent == 0 and len(kinds):
                check_record(source, record_at, record_sizes, kinds, good, k)
            if n > 0:
                copy_extent(source, offsets[k] + sent, n, piece, place)
                sent += n
                end = at[k] + sent
            if sent < sizes[k]:
                break
            k, sent = k + 1, np.int64(0)
        state[SENT] = sent
        if end > begin and not send(pieces, events, busy, state, calls, device + begin, end - begin):
            k, state[SENT] = first, before
            break
    return k
