"""The cost of a separate file to its reader, by threads: whole files, two bytes of each, and files that were left open.

    python benchmarks/data/file_reads.py FOLDER [--files 16000] [--threads 1,8,16] [--json out.json]

Copies of FOLDER's files are made in memory (/dev/shm); they are read in another order, a sixth of them at a time into
the same buffer, as batches are. The fastest of four times counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dali_run.readers import file_cpu

PARTS = 6


@numba.njit(nogil=True)
def read_open(files: Any, which: Any, out: Any, at: Any, sizes: Any, low: Any, high: Any) -> Any:
    """`file_cpu.read_files` of ``files`` that are open."""
    bad = 0
    for k in range(low, high):
        got = file_cpu._pread(files[which[k]], out.ctypes.data + at[k], np.uintp(sizes[k] + 1), np.int64(0))
        bad += got != sizes[k]
    return bad


def rate(threads: int, cuts: list[int], call: Callable[[int, int], Any]) -> int:
    """Files a second."""
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(4):
            start = time.perf_counter()
            for low, high in pairwise(cuts):
                borders = [low + (high - low) * i // threads for i in range(threads + 1)]
                list(pool.map(call, borders, borders[1:]))
            best = max(best, cuts[-1] / (time.perf_counter() - start))
    return round(best)


def measure(folder: Path, root: Path, n: int, threads: list[int]) -> dict[str, dict[str, int]]:
    """Rates by the number of threads."""
    files = [p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()]
    names = [f"n{i % 64:08d}/ILSVRC2012_val_{i:08d}.JPEG" for i in range(n)]
    for i, name in enumerate(names):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(files[i % len(files)])
    joined = np.frombuffer(bytearray("\0".join(names).encode() + b"\0"), np.uint8)
    lengths = np.array([len(name) + 1 for name in names])
    starts, directory = np.cumsum(lengths) - lengths, os.open(root, os.O_RDONLY)
    all_sizes, times = np.zeros(n, np.int64), np.zeros(n, np.int64)
    file_cpu.stat_files(directory, joined, starts, all_sizes, times, 0, n)
    which = np.random.default_rng(0).permutation(n).astype(np.int64)
    sizes, at, shapes, status = (
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros((n, 1), np.int32),
        np.zeros(n, np.int32),
    )
    total = file_cpu.places(all_sizes, which, 2**31 - 1, sizes, at, shapes)
    cuts = [n * i // PARTS for i in range(PARTS + 1)]
    for low, high in pairwise(cuts):
        at[low:high] -= at[low]
    buffer, one = np.zeros(total // PARTS + (1 << 22), np.uint8), np.ones(n, np.int64)
    flags = os.O_RDONLY | os.O_CLOEXEC
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = np.array([os.open(name, flags, dir_fd=directory) for name in names], np.int32)
    read_open(opened, which, buffer, at, sizes, 0, 1)
    found = {}
    for count in threads:
        found[str(count)] = {
            "opened, read, closed": rate(
                count,
                cuts,
                lambda a, b: file_cpu.read_files(
                    directory, flags, joined, starts, which, buffer, at, sizes, status, a, b
                ),
            ),
            "the same, two bytes of each": rate(
                count,
                cuts,
                lambda a, b: file_cpu.read_files(
                    directory, flags, joined, starts, which, buffer, at, one, status, a, b
                ),
            ),
            "left open": rate(count, cuts, lambda a, b: read_open(opened, which, buffer, at, sizes, a, b)),
        }
        print(count, found[str(count)], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=16000)
    parser.add_argument("--threads", default="1,8,16")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        threads = [int(t) for t in arguments.threads.split(",")]
        found = measure(arguments.folder, Path(scratch), arguments.files, threads)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
