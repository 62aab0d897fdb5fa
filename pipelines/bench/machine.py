"""Measure the limits of the machine on which a benchmark runs: speeds that no program can exceed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..tools.machine import facts

__all__ = ["facts", "limits"]

_MAX_READ = 1 << 29
"""Maximum number of bytes of the data set to read for measuring the speed of the page cache."""
_COPIED = 1 << 28
"""Size in bytes of the arrays to copy for measuring the speed of memory."""
_REPEATS = 3


def limits(files: Sequence[str], threads: int, gpu: int | None = None) -> dict[str, float]:
    """Measure the speeds of this machine in GB/s and return them by name: reading ``files`` from the page cache and
    copying memory, with ``threads`` threads. With a ``gpu``, also uploads from page-locked memory and copies on the
    device. Speeds that cannot be measured are left out."""
    measured: dict[str, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        if files:
            measured["page_cache_to_memory"] = _read(files, pool, threads)
        measured["memory_copy"] = _copy(pool, threads)
    if gpu is not None:
        measured |= _gpu(gpu)
    return {k: round(v, 3) for k, v in measured.items()}


def _best(work: Callable[[], int]) -> float:
    """Return the speed of ``work`` in GB/s: the fastest of a few calls, each of which returns a number of bytes. A
    first call, which is not measured, fills caches."""
    work()
    speeds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        done = work()
        speeds.append(done / (time.perf_counter() - began) / 1e9)
    return max(speeds)


def _read(files: Sequence[str], pool: ThreadPoolExecutor, threads: int) -> float:
    chosen: list[str] = []
    total = 0
    for file in files:
        if total >= _MAX_READ:
            break
        chosen.append(file)
        total += os.stat(file).st_size

    def read(own_files: Sequence[str]) -> int:
        buffer = bytearray(1 << 20)
        done = remaining = 0
        for file in own_files:
            remaining = _MAX_READ
            with Path(file).open("rb", buffering=0) as f:
                while remaining > 0 and (n := f.readinto(buffer)):
                    done, remaining = done + n, remaining - n
        return done

    return _best(lambda: sum(pool.map(read, [chosen[k::threads] for k in range(threads)])))


def _copy(pool: ThreadPoolExecutor, threads: int) -> float:
    a, b = np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8)
    parts = [slice(k * _COPIED // threads, (k + 1) * _COPIED // threads) for k in range(threads)]

    def work() -> int:
        list(pool.map(lambda part: np.copyto(b[part], a[part]), parts))
        return _COPIED

    return _best(work)


def _gpu(index: int) -> dict[str, float]:
    import cupy

    from ...ops.gpu.current import OnGpu
    from ...ops.gpu.lane import pinned_empty

    with OnGpu(index):
        on_device, copy = cupy.empty(_COPIED, np.uint8), cupy.empty(_COPIED, np.uint8)
        on_host = pinned_empty(_COPIED)
        stream = cupy.cuda.Stream(non_blocking=True)

        def upload() -> int:
            on_device.set(on_host, stream)
            stream.synchronize()
            return _COPIED

        def move() -> int:
            with stream:
                for _ in range(16):  # one copy alone takes less time than its call
                    cupy.copyto(copy, on_device)
            stream.synchronize()
            return 16 * _COPIED

        return {"upload_pinned": _best(upload), "device_copy": _best(move)}
