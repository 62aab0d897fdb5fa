"""Shared by programs that run the kernels of a decoder alone, and compare them with the decoder of the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

Differences = Callable[[Any, list[bytes], int], tuple[int, Sequence[int]]]
"""Of a lane, files, and how many make a batch: how many are accepted, and which are otherwise than on the CPU."""


def allocate_apart() -> None:
    """Every buffer an allocation of its own: memcheck does not see what runs over from one part of CuPy's pool, which
    rounds sizes up, too, into the next."""
    import cupy

    cupy.cuda.set_allocator(None)


def compare(files: list[bytes], differences: Differences, each: int) -> None:
    """Tell how many of the small ``files`` are accepted. Ends with 1 where one is otherwise than on the CPU."""
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        accepted, wrong = differences(lane, files, each)
        lane.close()
    print(f"{len(files)} small files: {accepted} accepted, otherwise than on the CPU: {list(wrong)}", flush=True)
    if wrong:
        sys.exit(1)
