"""Extents of mapped files on their way to a GPU, without the GIL; see `ops.gpu.uploads`."""

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
    """`extents_cpu.copy_extents` of [low, high), each after the checksums of its TFRecord: the extent is in the
    processor's cache then."""
    for k in range(low, high):
        check_record(source, record_at, record_sizes, kinds, good, k)
        copy_extents(source, offsets[k : k + 1], sizes[k : k + 1], out, at[k : k + 1])


@numba.njit(nogil=True, cache=True)
def send_extents(
    source: Any, offsets: Any, sizes: Any, at: Any, low: Any, high: Any, pieces: Any, events: Any, busy: Any,
    state: Any, calls: Any, device: Any, record_at: Any, record_sizes: Any, kinds: Any, good: Any,
) -> Any:  # fmt: skip
    """``source[offsets[k] : offsets[k] + sizes[k]]``, for k in [low, high), piece by piece to ``at[k]`` bytes after the
    address ``device``. The caller has checked the bounds.

    ``pieces`` and what follows it is as of `sent_files_cpu.send_files`, what follows ``device`` as of `copy_checked`.
    Returns the extent to go on with: ``high``, or where the next piece is not free or the driver refuses something.
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
