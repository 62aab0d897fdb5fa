"""Estimate the work of samples, and cut batches by it: into chunks for the host's workers, into launches for a GPU.

All code that cuts a batch calls this module, with facts that are known before the work: sizes from headers and shapes.
The number of samples says nothing: a batch may hold thumbnails of 3 KB next to photographs of 36 MB. Costs are in bytes
of samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64, Batch
from ..compile.schedule import Step
from ..graph.nodes import Edge
from .memory.estimate import MemoryEstimate

ENCODED = 8
"""Cost of each encoded byte that a decoder reads; a byte of decoded data costs 1. One core takes about a millisecond
for a JPEG of 80 KB and 0.2 megapixels: half for the 80 KB of codes, half for some 600 KB of samples."""

SAMPLE = 1024
"""Cost of a sample besides its bytes: each kernel loops over the samples, and decoders read a header."""

CHUNK = 32 << 20
"""Maximum cost of a chunk with more than one sample: some 24 JPEGs of ImageNet, twenty milliseconds.

Chunks must not be small: each takes some 500 Python calls, and waits for the GIL a dozen times. With four images per
chunk, 16 threads were slower than 4 (val, 1,900 images/s instead of 3,200). With chunks of half this size, two threads
take 3 to 6 % more processor time for images of ImageNet, and 10 % more for thumbnails."""

MIN_CHUNK = 2 << 20
"""Minimum cost of a chunk if a batch is cut only to occupy more threads. In a smaller chunk, Python calls would take as
long as the work; the other threads have other batches to do."""


def costs(step: Step, ahead: MemoryEstimate, env: Mapping[Edge, Batch]) -> I64:
    """Return the cost of computing ``step`` for each sample (int64[N]); the unit is a byte of decoded data. ``env``:
    the input batches. ``ahead``: the estimate of the step's memory."""
    found = ahead.peak + SAMPLE
    for node in step.nodes:
        encoded = env.get(node.inputs[0]) if node.op.decodes and node.inputs else None
        if encoded is not None and len(encoded) == len(found):
            found = found + ENCODED * encoded.sizes
    return found


def chunks(cost: I64, peak: I64, room: int, workers: int) -> list[tuple[int, int]]:
    """Return the ranges [a, b) of samples that cut a batch into chunks of about equal cost.

    There are as many chunks as ``workers``, fewer if chunks would be too small to pay, more if they would be too large.
    ``peak``: bytes of memory that each sample needs. ``room``: bytes of memory that one worker may use."""
    total, largest = int(cost.sum()), int(cost.max(initial=0))
    count = max(1, -(-total // max(CHUNK - largest, CHUNK // 2)), min(workers, total // MIN_CHUNK))
    # Chunks may exceed their share by one sample, so that no small chunk remains at the end.
    share = min(CHUNK, total // count + largest) + 1
    if int(peak.sum()) <= room:
        return list(runs(cost, share)) or [(0, 0)]
    return list(runs(np.maximum(cost / share, peak / room), 1.0)) or [(0, 0)]


def runs(sizes: npt.NDArray[Any], room: float) -> Iterator[tuple[int, int]]:
    """Yield ranges [a, b) of samples whose ``sizes`` add up to at most ``room``; a single sample may exceed it."""
    ends = np.cumsum(sizes)
    if len(ends) and ends[-1] <= room:
        yield 0, len(ends)
        return
    begin, before = 0, type(room)(0)
    while begin < len(ends):
        stop = max(begin + 1, bisect_right(ends, before + room, begin))  # NumPy's search releases the GIL
        yield begin, stop
        begin, before = stop, ends[stop - 1]
