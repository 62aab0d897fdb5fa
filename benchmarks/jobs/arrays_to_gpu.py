"""`readers.numpy` from a disk into GPU memory: the CPU reader, which uploads, against ``device="gpu"``, by kvikio.

    python benchmarks/jobs/arrays_to_gpu.py FOLDER [--gigabytes 8] [--megabytes 16] [--threads 8] [--turns 3] [--cached]

Writes float32 volumes into FOLDER, on the disk to measure, unless they are there. Each measurement reads all of them
once, whole and as a region of half their length along each axis, in a process of its own; the readers take turns. The
page cache is emptied of the files before each, unless ``--cached``. Prints the median GB/s of array bytes;
`dali-run doctor` says whether kvikio is there and uses GPUDirect Storage.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BATCH = 8
HALF = {"rel_roi_start": [0.25] * 3, "rel_roi_shape": [0.5] * 3}


def files(folder: Path, gigabytes: float, megabytes: int) -> list[str]:
    """Write the volumes that are missing; return their paths."""
    rows = (megabytes << 20) // (4 * 256 * 256)
    paths = [folder / f"{rows:04d}-{i:05d}.npy" for i in range(int(gigabytes * 1024 / megabytes) // BATCH * BATCH)]
    volume = np.random.default_rng(0).standard_normal((rows, 256, 256), np.float32)
    for path in (p for p in paths if not p.exists()):
        np.save(path, volume)
    os.sync()
    return [str(p) for p in paths]


def forget(paths: list[str]) -> None:
    """Drop the files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def measure(device: str, region: bool, paths: list[str], threads: int) -> float:
    """Read all files once through a pipeline. Return GB/s."""
    from dali_run import fn, pipeline_def

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=0)
    def pipeline():
        arrays = fn.readers.numpy(device=device, files=paths, **(HALF if region else {}))
        return arrays.gpu() if device == "cpu" else arrays

    pipe = pipeline()
    pipe.build()
    began, nbytes = time.perf_counter(), 0
    for _ in range(len(paths) // BATCH):
        (batch,) = pipe.run()
        nbytes += sum(4 * int(np.prod(shape)) for shape in batch.shape())
    return nbytes / (time.perf_counter() - began) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, value in (("gigabytes", 8.0), ("megabytes", 16), ("threads", 8), ("turns", 3)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    paths = files(args.folder, args.gigabytes, args.megabytes)
    if args.measure:
        print(measure(args.measure[0], args.measure[1] == "half", paths, args.threads))
        return
    rates: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.turns):
        for what in ("whole", "half"):
            for device in ("cpu", "gpu") if turn % 2 == 0 else ("gpu", "cpu"):
                if not args.cached:
                    forget(paths)
                command = [sys.executable, *sys.argv, "--measure", device, what]
                rate = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
                rates.setdefault((what, device), []).append(rate)
                print(f"{what:5} {device}: {rate:.2f} GB/s", flush=True)
    for (what, device), each in rates.items():
        print(f"{what:5} {device}: median {median(each):.2f} GB/s of {len(each)}")


if __name__ == "__main__":
    main()
