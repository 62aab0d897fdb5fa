"""GPU kernel for joining samples of several inputs along an axis with a few elements each, such as channels of pixels.
It writes aligned words, whereas one copy plan per input would write every element separately. Called by cat and stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..batch import I64, Batch, elements
from ..context import Context

_THREADS = 256
_MAX_RUN = 32
"""Maximum number of adjacent bytes in an input that this kernel copies; the kernel of `rows` is better for longer
runs."""
_MAX_INPUTS = 4
"""Maximum number of inputs that this kernel joins."""
_TYPES = {1: ("unsigned char", 1), 2: ("unsigned short", 1), 4: ("unsigned int", 1), 8: ("unsigned int", 2)}
"""C++ type in which elements are copied, and number of words of this type per element, by the element's size in
bytes."""


def launch(ctx: Context, inputs: Sequence[Batch], axis: int, out: Batch) -> bool:
    """Join ``inputs`` along ``axis`` (an existing or a new one) into ``out``, a batch without gaps on the device, and
    return True; return False if this kernel does not support it. Samples that are empty in ``out`` are skipped."""
    if not 2 <= len(inputs) <= _MAX_INPUTS:
        return False
    name, pieces = _TYPES[out.dtype.itemsize]
    runs: list[I64] = [elements(p.shapes[:, axis:]) * pieces for p in inputs]
    unit = out.dtype.itemsize // pieces
    sizes = out.sizes * pieces
    largest, longest = int(sizes.max(initial=0)), max(int(run.max(initial=0)) for run in runs)
    if longest * unit >= _MAX_RUN or largest >= 2**31:
        return False
    if largest == 0:
        return True
    table = np.empty((len(out), 2 * len(inputs) + 2), np.int64)
    for k, (part, run) in enumerate(zip(inputs, runs, strict=True)):
        table[:, k], table[:, len(inputs) + k] = part.offsets * pieces, run
    table[:, -2] = out.offsets * pieces
    table[:, -1] = np.where(sizes > 0, elements(inputs[0].shapes[:, :axis]), 0)
    (there,) = ctx.device.upload(table)
    kind = np.dtype(f"u{unit}")
    given: list[Any] = [p.data.view(kind) for p in inputs]
    given += given[:1] * (_MAX_INPUTS - len(given))
    tiles = -(-(largest + 16 // unit - 1) // (_THREADS * (16 // unit)))
    ctx.device.launch(
        "weave.cu", f"weave<{name}, {len(inputs)}>", (tiles, len(out)), _THREADS, *given, there, out.data.view(kind)
    )
    return True
