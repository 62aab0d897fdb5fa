"""compute-sanitizer over the CUDA JPEG decoder: memcheck (accesses out of bounds) and racecheck (shared memory).

    python benchmarks/jpeg/sanitize.py FOLDER [--bad OTHER] [--mutations 10000] [--tool racecheck]

FOLDER holds good JPEGs. Each tool sees them as they are, the files of OTHER (damaged ones), and so many mutations of
small pictures made of them (benchmarks/jpeg/small_pictures.py), decoded to pixels and resized; the results are compared
with Pillow's (benchmarks/jpeg/gpu_jpeg.py). Every buffer of the decoder is an allocation of its own, because memcheck
does not see what runs over from one part of an allocation into the next. Ends with 1 where a tool or a comparison
complains.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TOOLS = ("memcheck", "racecheck")
COMPLAINT = 86
"""The exit status by which compute-sanitizer says that it has found something."""


def sanitizer() -> str:
    """compute-sanitizer on the PATH, or where CUDA is installed."""
    found = shutil.which("compute-sanitizer")
    roots = [os.environ[k] for k in ("CUDA_HOME", "CUDA_PATH") if k in os.environ] + ["/usr/local/cuda"]
    for root in () if found else roots:
        for place in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer"):
            found = found or shutil.which(str(Path(root, place)))
    if found is None:
        raise SystemExit("compute-sanitizer is not on the PATH nor below CUDA_HOME: it comes with the CUDA toolkit")
    return found


def runs(folder: Path, bad: Path | None, mutations: int) -> Iterator[tuple[str, list[str]]]:
    """The runs to check: a name, and the arguments of gpu_jpeg.py."""
    common = [str(folder), "--lanes", "", "--apart"]
    yield "good files", [*common, "--batch", "64"]
    if bad is not None:
        yield "bad files", [*common, "--batch", "32", "--no-check", "--bad", str(bad)]
    if mutations:
        yield f"{mutations} mutations", [*common, "--batch", "500", "--small", "120", "--mutate", str(mutations)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bad", type=Path, metavar="FOLDER")
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this one")
    arguments = parser.parse_args()
    program, failed = sanitizer(), 0
    script = str(Path(__file__).with_name("gpu_jpeg.py"))
    for tool in arguments.tool or TOOLS:
        for name, options in runs(arguments.folder, arguments.bad, arguments.mutations):
            checks = [program, "--tool", tool, "--error-exitcode", str(COMPLAINT), "--print-limit", "20"]
            began = time.perf_counter()
            done = subprocess.run([*checks, sys.executable, script, *options], check=False)
            verdict = {0: "clean", COMPLAINT: f"{tool} complains"}.get(done.returncode, f"ended with {done.returncode}")
            failed += done.returncode != 0
            print(f"== {tool}, {name}: {verdict}, {time.perf_counter() - began:.0f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
