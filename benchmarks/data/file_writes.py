"""Shards of different bytes onto a disk or into memory, made durable: through the page cache, and past it.

    python benchmarks/data/file_writes.py FOLDER [--gb 4] [--files 1,4] [--size 256]

Each row writes the same bytes into files of --size MiB, so many at a time, a thread each, and syncs every file. ``page
cache``: `write`. ``begun early``: the same, and the system is asked to begin with the disk every 32 MiB. ``direct``:
O_DIRECT from aligned memory into room that was allocated before. Rates move with what else the machine does; processor
seconds a GB do less.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PIECE = 1 << 20
EARLY = 32 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_BEGIN = 2  # SYNC_FILE_RANGE_WRITE


def source() -> memoryview:
    """256 MiB of different bytes, aligned as disks want it."""
    memory = mmap.mmap(-1, 256 << 20)
    np.frombuffer(memory, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, 256 << 20, np.uint8)
    return memoryview(memory)


def through_the_cache(path: Path, size: int, data: memoryview, begin: int, early: bool = False) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for at in range(0, size, PIECE):
        where = (begin + at) % len(data)
        os.write(fd, data[where : where + PIECE])
        if early and (at + PIECE) % EARLY == 0:
            _libc.sync_file_range(fd, at + PIECE - EARLY, EARLY, _BEGIN)
    os.fsync(fd)
    os.close(fd)


def begun_early(path: Path, size: int, data: memoryview, begin: int) -> None:
    through_the_cache(path, size, data, begin, early=True)


def direct(path: Path, size: int, data: memoryview, begin: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(fd, 0, size)
    for at in range(0, size, PIECE):
        where = (begin + at) % len(data)
        os.pwrite(fd, data[where : where + PIECE], at)
    os.fsync(fd)
    os.close(fd)


def timed(way: Callable[..., None], folder: Path, files: int, size: int, threads: int, data: memoryview) -> None:
    """Write all files, and print a row."""
    numbers = iter(range(files))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                k = next(numbers, None)
            if k is None:
                return
            way(folder / f"{k}", size, data, 7 * PIECE * k)

    began, used = time.perf_counter(), time.process_time()
    crew = [threading.Thread(target=work) for _ in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    seconds, busy = time.perf_counter() - began, time.process_time() - used
    gb = files * size / 1e9
    name = way.__name__.replace("_", " ")
    print(
        f"{name:20} {threads} at a time   {gb / seconds:5.2f} GB/s   {busy / gb:5.2f} s of processor a GB", flush=True
    )
    for path in folder.iterdir():
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--files", default="1,4", help="how many at a time")
    parser.add_argument("--size", type=int, default=256, help="MiB of a file")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    data, size = source(), options.size << 20
    files = max(1, round(options.gb * 1e9 / size))
    for _ in range(options.rounds):
        for threads in map(int, options.files.split(",")):
            for way in (through_the_cache, begun_early, direct):
                with tempfile.TemporaryDirectory(dir=options.folder) as name:
                    timed(way, Path(name), files, size, threads, data)


if __name__ == "__main__":
    main()
