"""Run compute-sanitizer over the CUDA decoders: memcheck (accesses out of bounds) and racecheck (shared memory).

    python benchmarks/data/sanitize.py FOLDER [--bad OTHER] [--mutations 10000] [--decoder png] [--tool racecheck]

FOLDER holds valid JPEGs. Each tool runs the JPEG decoder on them, on the files of OTHER (damaged JPEGs), and on
mutations of small images made from them (benchmarks/jpeg/small_pictures.py), decoded to pixels and resized; the results
are compared with Pillow's (benchmarks/jpeg/gpu_jpeg.py). The decoders of JPEG 2000, PNG, TIFF and WebP get small images
of FOLDER and a tenth or a twentieth as many mutations, one at a time; the files that they accept are compared with the
CPU's results (jpeg2000_on_gpu.py, png_on_gpu.py, tiff_on_gpu.py, webp_gpu.py). Every buffer is an allocation of its
own, because memcheck does not see overruns within one allocation. Ends with status 1 if a tool or a comparison fails.
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
DECODERS = ("jpeg", "jpeg2000", "png", "tiff", "webp")
COMPLAINT = 86
"""Exit status by which compute-sanitizer reports a finding."""
_HERE = Path(__file__).parent


def sanitizer() -> str:
    """Return the path of compute-sanitizer: on the PATH, or in the CUDA installation."""
    found = shutil.which("compute-sanitizer")
    roots = [os.environ[k] for k in ("CUDA_HOME", "CUDA_PATH") if k in os.environ] + ["/usr/local/cuda"]
    for root in () if found else roots:
        for place in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer"):
            found = found or shutil.which(str(Path(root, place)))
    if found is None:
        raise SystemExit("compute-sanitizer is not on the PATH nor below CUDA_HOME: it comes with the CUDA toolkit")
    return found


def runs(decoder: str, folder: Path, bad: Path | None, mutations: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the runs that check a decoder: for each, a name, and a script with its arguments."""
    if decoder == "jpeg":
        common = [str(_HERE.parent / "jpeg" / "gpu_jpeg.py"), str(folder), "--lanes", "", "--apart"]
        yield "good files", [*common, "--batch", "64"]
        if bad is not None:
            yield "bad files", [*common, "--batch", "32", "--no-check", "--bad", str(bad)]
        if mutations:
            yield f"{mutations} mutations", [*common, "--batch", "500", "--small", "120", "--mutate", str(mutations)]
        return
    script, divisor = {
        "jpeg2000": ("jpeg2000_on_gpu.py", 10),
        "png": ("png_on_gpu.py", 10),
        "tiff": ("tiff_on_gpu.py", 10),
        "webp": ("webp_gpu.py", 20),
    }[decoder]
    count = str(max(1, mutations // divisor))
    yield f"{count} mutations", [str(_HERE / script), str(folder), "--apart", "--mutate", count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bad", type=Path, metavar="FOLDER")
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--decoder", choices=DECODERS, action="append", help="only this one")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this one")
    arguments = parser.parse_args()
    program, failed = sanitizer(), 0
    for tool in arguments.tool or TOOLS:
        for decoder in arguments.decoder or DECODERS:
            for name, command in runs(decoder, arguments.folder, arguments.bad, arguments.mutations):
                checks = [program, "--tool", tool, "--error-exitcode", str(COMPLAINT), "--print-limit", "20"]
                began = time.perf_counter()
                code = subprocess.run([*checks, sys.executable, *command], check=False).returncode
                verdict = {0: "clean", COMPLAINT: f"{tool} complains"}.get(code, f"ended with {code}")
                failed += code != 0
                print(f"== {tool}, {decoder}, {name}: {verdict}, {time.perf_counter() - began:.0f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
