"""The cost of decoding in processes of their own: every format, in this process and in a worker, in turns.

    python benchmarks/data/isolation.py [FOLDER OF JPEGS] [--rounds 15]

Pixels are copied to where a batch would have them, by one thread, as in a pipeline; to workers, images go as pipelines
give them: several at a time. By the clock, and CPU time of all processes. Medians over the rounds; the ratio is the
median of the rounds' ratios, so that a busy machine hits both sides. PNG, BMP and PPM are here for comparison: code of
ours decodes them in the process, and only odd ones go to workers.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dali_run.ops.codecs import pillow as pillow_decode
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation.processes import Isolation

FORMATS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "WEBP": {"quality": 85},
    "JPEG2000": {"quality_mode": "rates", "quality_layers": [12]},
    "TIFF": {"compression": "tiff_lzw"},
    "GIF": {},
    "BMP": {},
    "PPM": {},
}


def pictures(folder: Path | None, n: int) -> list[Image.Image]:
    """Photographs, or smooth noise of their size."""
    if folder is not None:
        return [Image.open(p).convert("RGB") for p in sorted(folder.glob("*.[jJ]*"))[:n]]
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (n, 94, 125, 3)).astype(np.uint8)
    return [Image.fromarray(s).resize((500, 375), Image.Resampling.BICUBIC) for s in small]


def cpu_seconds(pids: Sequence[int]) -> float:
    """Of this process and of ``pids``."""
    total = time.process_time()
    for pid in pids:
        fields = Path(f"/proc/{pid}/schedstat").read_text().split()
        total += int(fields[0]) / 1e9
    return total


def workers(keeper: int) -> list[int]:
    """The processes below the keeper."""
    return [int(p) for p in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()]


def measure(isolation: Isolation | None, files: Sequence[memoryview], pids: Sequence[int]) -> tuple[float, float]:
    """Milliseconds an image, by the clock and of CPU time."""
    began, spent = time.perf_counter(), cpu_seconds(pids)
    asked = [(data, probe(data)) for data in files]
    places = [np.empty((h.height, h.width, h.channels), np.uint8) for _, h in asked]

    def use(k: int, pixels: Any) -> None:
        places[k][...] = pixels

    if isolation is None:
        for k, (data, header) in enumerate(asked):
            use(k, pillow_decode.decode(data, header, True, 10**9))
    else:
        isolation.lend_several(asked, True, 10**9, use)
    took, used = time.perf_counter() - began, cpu_seconds(pids) - spent
    return took / len(files) * 1e3, used / len(files) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    images = pictures(args.folder, 16)
    print(f"{len(images)} images of {statistics.mean(i.width * i.height for i in images) / 1e6:.2f} Mpixel, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print("| format | here: ms | isolated: ms | ratio | here: CPU ms | isolated: CPU ms | ratio |\n" + "|---" * 7 + "|")
    for name, options in FORMATS.items():
        files = []
        for image in images:
            out = io.BytesIO()
            image.save(out, name, **options)
            files.append(memoryview(out.getvalue()))
        with Isolation() as isolation:
            measure(isolation, files, ())
            pids = [*isolation.pids, *workers(isolation.pids[0])]
            rounds = []
            for k in range(args.rounds):
                both = {}
                for here in (True, False) if k % 2 else (False, True):
                    both[here] = measure(None if here else isolation, files, pids)
                rounds.append((*both[True], *both[False]))
        clock, cpu, isolated_clock, isolated_cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratios = (statistics.median(r[2] / r[0] for r in rounds), statistics.median(r[3] / r[1] for r in rounds))
        print(f"| {name} | {clock:.2f} | {isolated_clock:.2f} | {ratios[0]:.2f} | {cpu:.2f} | {isolated_cpu:.2f} | "
              f"{ratios[1]:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
