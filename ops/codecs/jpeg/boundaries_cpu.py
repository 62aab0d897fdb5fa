"""Compiled loops of `boundaries`, which store and restore decoder states.

A stored state has the bits beyond the start of its piece (bits 0..7), the block within the MCU (8..11), the zig-zag
index (12..17) and the blocks that ended in the previous piece (18..31), or is `_DEAD`.
"""

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
    """Store decoder states that the GPU found, in four bytes each. Image ``index[i]``, whose file has ``sizes[i]``
    bytes, has ``counts[i]`` states, from ``starts[places[i]]`` on. Images are left out if ``states`` has no space for
    theirs. ``used``: number of states stored so far. Return the new number."""
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
    """Copy the stored decoder states of the images ``index`` to ``out``, ``counts[i]`` per image, one image after the
    other, in the form that the GPU reads."""
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
