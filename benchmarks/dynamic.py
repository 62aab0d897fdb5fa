"""What a call of the dynamic mode costs, here and in NVIDIA's DALI, on the CPU: microseconds a call.

    python benchmarks/dynamic.py --dali-python PYTHON [--batch 1] [--pixels 8] [--json FILE]

PYTHON has NVIDIA DALI. Pictures are tiny, so that what remains is what a call costs. Each side is a process; they work
in turns of some milliseconds, so that both see the same load, and the best turns count. Results are asked for
(`evaluate`), because DALI's calls only begin the work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, BLOCK = 15, 0.01
"""Turns of each side, and about how long they are, in seconds."""
LIMIT = 100.0
"""Microseconds that a call may cost at batch 1."""
CHEAP = ("flip", "resize", "cast", "add", "index", "uniform", "coin_flip", "brightness", "crop_mirror_normalize")
"""Calls whose own work is next to nothing: to these the limit applies."""


def calls(ndd: Any, batch: int, pixels: int) -> dict[str, Callable[[], Any]]:
    """The calls, for either package."""
    import numpy as np

    picture = np.zeros((pixels, pixels, 3), np.uint8)
    images = ndd.batch([picture] * batch, layout="HWC")
    angle = ndd.batch([10.0] * batch)

    return {
        "flip": lambda: ndd.flip(images),
        "resize": lambda: ndd.resize(images, size=[4, 4]),
        "cast": lambda: ndd.cast(images, dtype=ndd.float32),
        "add": lambda: images + 1,
        "index": lambda: images.slice[0],
        "uniform": lambda: ndd.random.uniform(range=[0.0, 1.0], batch_size=batch),
        "coin_flip": lambda: ndd.random.coin_flip(batch_size=batch),
        "brightness": lambda: ndd.brightness(images, brightness=1.5),
        "crop_mirror_normalize": lambda: ndd.crop_mirror_normalize(images, crop=[4, 4], mean=[1.0, 2.0, 3.0]),
        "rotate by a batch of angles": lambda: ndd.rotate(images, angle=angle),
        "gaussian_blur": lambda: ndd.gaussian_blur(images, window_size=3),
        "a chain of five": lambda: (
            ndd.flip(ndd.brightness(ndd.resize(images, size=[4, 4]), brightness=1.5)) * ndd.random.uniform(
                batch_size=batch)
        ),
    }  # fmt: skip


def serve(package: str, batch: int, pixels: int) -> None:
    """One side: for each line of input, a call's name, its microseconds in one turn."""
    import importlib

    warnings.filterwarnings("ignore")
    table = calls(importlib.import_module(package), batch, pixels)
    counts: dict[str, int] = {}
    for line in sys.stdin:
        call = table[line.strip()]
        if line not in counts:
            for _ in range(20):
                call().evaluate()
            begin = time.perf_counter()
            for _ in range(10):
                call().evaluate()
            counts[line] = max(5, int(BLOCK / ((time.perf_counter() - begin) / 10)))
        begin = time.perf_counter()
        for _ in range(counts[line]):
            call().evaluate()
        print((time.perf_counter() - begin) / counts[line] * 1e6, flush=True)


def side(python: str, package: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process that serves one of the packages."""
    command = [python, __file__, "--serve", package, "--batch", str(options.batch), "--pixels", str(options.pixels)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dali-python", help="a Python with NVIDIA DALI")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--pixels", type=int, default=8, help="width and height of the pictures")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.batch, options.pixels)
        return 0
    sides = {"dali_run": side(sys.executable, "dali_run.dynamic", options)}
    if options.dali_python:
        sides["nvidia.dali"] = side(options.dali_python, "nvidia.dali.experimental.dynamic", options)
    rows = []
    for name in NAMES:
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(ROUNDS):
            for package, process in sides.items():
                best[package] = min(best[package], ask(process, name))
        ratio = best.get("nvidia.dali", 0.0) / best["dali_run"]
        rows.append({"call": name, **{k: round(v, 1) for k, v in best.items()}, "times": round(ratio, 1)})
        theirs = f"{best['nvidia.dali']:10.1f} {ratio:6.1f}x" if options.dali_python else ""
        print(f"{name:30} {best['dali_run']:8.1f} {theirs}", flush=True)
    for process in sides.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    if options.json:
        options.json.write_text(json.dumps({"batch": options.batch, "pixels": options.pixels, "calls": rows}, indent=1))
    over = [r["call"] for r in rows if options.batch == 1 and r["call"] in CHEAP and float(r["dali_run"]) > LIMIT]  # type: ignore[arg-type]
    if over:
        print(f"over {LIMIT:g} us: {', '.join(map(str, over))}")
    return 1 if over else 0


NAMES = (*CHEAP, "rotate by a batch of angles", "gaussian_blur", "a chain of five")

if __name__ == "__main__":
    sys.exit(main())
