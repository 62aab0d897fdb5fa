"""The JPEG decoder on the CPU by itself, beside libjpeg-turbo: milliseconds of one core an image.

    python benchmarks/jpeg/cpu_jpeg.py FOLDER [--progressive] [--repeats 30] [--json out.json]

All files are decoded to RGB, by libjpeg-turbo (simplejpeg), by our decoder whole, only where a centre crop of 224 at
shorter side 256 shows them, the same from the second epoch on (what the first found out is known), and not at all (the
scans are read all the same). In turns; the fastest turn of each counts. With --progressive the pictures are encoded
again, as the progressive ones of benchmarks/jobs/web_mix.py are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from dali_run.ops.codecs.jpeg import baseline_cpu as jpeg_baseline_cpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg import progressive_cpu as jpeg_progressive_cpu
from dali_run.ops.codecs.jpeg.anchors import MODE, NO_STATES, Anchors
from dali_run.pipelines.bench.web_mix import encoded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--progressive", action="store_true")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    paths = sorted(args.folder.iterdir())
    files = [encoded("progressive", p) if args.progressive else p.read_bytes() for p in paths]
    kernels: Any = jpeg_baseline_cpu
    progressive: Any = jpeg_progressive_cpu
    sizes = np.array([len(f) for f in files], np.int64)
    offsets = np.cumsum(sizes) - sizes
    raw = np.frombuffer(b"".join(files), np.uint8)
    headers, scans = jpeg_header.read_scans(raw, offsets, sizes)
    height, width = headers["height"].astype(np.int64), headers["width"].astype(np.int64)
    shown = np.minimum(height, width) * 7 // 8
    whole = np.stack([0 * height, 0 * width, height, width], 1)
    top, left = (height - shown) // 2, (width - shown) // 2
    windows = {"whole": whole, "centre crop": np.stack([top, left, top + shown, left + shown], 1), "none": 0 * whole}
    pitches = width * 3
    origins = np.cumsum(height * pitches) - height * pitches
    out, status = np.empty(int((height * pitches).sum()), np.uint8), np.empty(len(files), np.int32)
    channels, index = np.full(len(files), 3), np.arange(len(files))
    facts = Anchors(1 << 28)

    def ours(window: Any, remembered: bool = False) -> None:
        known = facts.begin(index, headers, window) if remembered else np.zeros((len(files), 3), np.int64)
        modes, states = known[:, MODE].copy(), facts.states if remembered else NO_STATES
        places = window, channels, False, out, origins, pitches, status
        kernels.decode_images(raw, offsets, sizes, headers, *places, states, known)
        if len(scans):
            progressive.decode_images(raw, offsets, sizes, headers, scans, *places)
        if remembered:
            facts.end(index, known, modes)

    def turbo() -> None:
        for file in files:
            simplejpeg.decode_jpeg(file, "RGB")

    runs: dict[str, Any] = {"libjpeg-turbo": turbo}
    runs |= {f"ours, {name}": lambda window=window: ours(window) for name, window in windows.items()}
    runs["ours, centre crop, states known"] = lambda: ours(windows["centre crop"], remembered=True)
    ours(windows["centre crop"], remembered=True)
    ours(whole)
    taken = int((status == kernels.DONE).sum())
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(args.repeats):
        for name, run in runs.items():
            began = time.thread_time()
            run()
            best[name] = min(best[name], (time.thread_time() - began) / len(files) * 1e3)
    print(f"{taken} of {len(files)} files are taken by our decoder")
    for name, value in best.items():
        print(f"{name:32} {value:6.3f} ms  {best['libjpeg-turbo'] / value:5.2f}x")
    if args.json:
        args.json.write_text(json.dumps({"ms": best, "taken": taken, "load": os.getloadavg()}, indent=1))


if __name__ == "__main__":
    main()
