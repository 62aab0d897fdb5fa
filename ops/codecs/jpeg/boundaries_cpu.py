"""Loops of `boundaries`. A kept state has the bits past its piece's start (0..7), the block within the MCU (8..11), the
zig-zag index (12..17) and the blocks that ended in the piece before (18..31), or is `_DEAD`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_DEAD = np.uint32(0xFFFFFFFF)


@numba.njit(nogil=True, cache=True)
def pack(
    starts: Any, places: Any, counts: Any, index: Any, sizes: Any, states: Any, first: Any, count: Any, nbytes: Any,
    used: Any,
) -> Any:  # fmt: skip
    """Keep ``counts[i]`` of the states ``starts`` from ``places[i]`` on as those of picture ``index[i]``, a file of
    ``sizes[i]`` bytes, where they fit in ``states``, of which ``used`` are used; returns how many are used then."""
    for i in range(len(counts)):
        n, nth = counts[i], index[i]
        if n == 0 or used + n > len(states) or (count[nth] > 0 and nbytes[nth] == sizes[i]):
            continue
        before, good = np.int64(0), True
        for k in range(n):
            start = starts[places[i] + k]
            low, blocks = np.int64(start & np.uint64(0xFFFFFFFF)), np.int64(start >> np.uint64(32))
            if low == 0xFFFFFFFF:
                states[used + k] = _DEAD
                continue
            ended = blocks - before
            if ended < 0 or ended >= 1 << 14 or low >> 16 > 63:
                good = False
            states[used + k] = np.uint32((low & 0xFFF) | (low >> 16 & 63) << 12 | (ended & 0x3FFF) << 18)
            before = blocks
        if good:
            first[nth], count[nth], nbytes[nth] = used, n, sizes[i]
            used += n
    return used


@numba.njit(nogil=True, cache=True)
def unpack(states: Any, first: Any, index: Any, counts: Any, out: Any) -> None:
    """The states of pictures ``index``, ``counts[i]`` of each, one after the other."""
    place = np.int64(0)
    for i in range(len(counts)):
        blocks = np.uint64(0)
        for k in range(counts[i]):
            state = states[first[index[i]] + k]
            if state == _DEAD:
                out[place + k] = np.uint64(0xFFFFFFFF) | np.uint64(1 << 31) << np.uint64(32)
                continue
            blocks += np.uint64(state >> np.uint32(18))
            low = np.uint64(state & np.uint32(0xFFF)) | np.uint64(state >> np.uint32(12) & np.uint32(63)) << np.uint64(
                16
            )
            out[place + k] = low | blocks << np.uint64(32)
        place += counts[i]
