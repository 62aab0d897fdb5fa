"""WebPs on a GPU: time of each kernel, and whether all pixels are libwebp's.

    python benchmarks/data/webp_gpu.py FOLDER [--batches 64,256,1024,4096] [--mutate 2000] [--json out.json]
    python benchmarks/data/webp_gpu.py FOLDER --batches "" --small --mutate 300 [--apart]

The pictures in FOLDER become lossy WebPs of 0.2 megapixels (quality 85, each other one cut anew), and are decoded in
batches of as many, files and pixels staying on the GPU. ``--mutate``: so many copies with changed bytes must not be
accepted with other pixels than libwebp's; ends with 1 where they are. ``--small``: of 4,000 pixels. ``--apart``: each
file is a batch of its own, and each buffer an allocation of its own, for compute-sanitizer
(benchmarks/data/sanitize.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.kernels_alone import PIXELS, allocate_apart
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.webp import decoder as webp
from dali_run.ops.codecs.webp import on_gpu
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.bench.web_mix import encoded

KERNELS = ("vp8_decode", "vp8_filter", "vp8_pixels")


def table(files: list[bytes]) -> np.ndarray:
    """Rows of the pictures, whole, one after the other."""
    pictures, at, to = np.zeros(len(files), on_gpu.PICTURE), 0, 0
    for k, data in enumerate(files):
        header = probe(memoryview(data))
        h, w = header.height, header.width
        pictures[k] = (at, len(data), 0, to, w, h, 0, 0, h, w, 0, 0)
        at, to = at + len(data), to + 3 * h * w
    return pictures


class Timed(Lane):
    """A lane that notes the time of each launch."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.marks: list[tuple[str, Any, Any]] = []

    def launch(self, source: str, kernel: str, grid: Any, block: int, *args: Any) -> None:
        began = self.mark()
        super().launch(source, kernel, grid, block, *args)
        self.marks.append((kernel, began, self.mark()))

    launch_beside = launch

    def times(self) -> dict[str, float]:
        """Milliseconds by kernel."""
        self.synchronize()
        found = {name: 1e3 * self.seconds_since(a, b) for name, a, b in self.marks}
        self.marks.clear()
        return found


def run_alone(lane: Lane, files: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`run`, each file by itself."""
    marks, pixels, _ = zip(*(run(lane, [f]) for f in files), strict=True)
    return np.concatenate(marks), np.concatenate(pixels), table(files)


def run(lane: Lane, files: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pictures = table(files)
    (stored,) = lane.upload(np.frombuffer(b"".join(files), np.uint8))
    last = pictures[-1]
    out = lane.empty(int(last["destination"]) + 3 * int(last["width"]) * int(last["height"]), np.uint8)
    marks, pixels = on_gpu.launch(lane, stored, pictures, out)(), lane.download(out)
    lane.synchronize()
    return np.array(marks), np.array(pixels), pictures


def differences(files: list[bytes], marks: np.ndarray, pixels: np.ndarray, pictures: np.ndarray) -> tuple[int, int]:
    """How many were decoded, and how many of these have other pixels than libwebp's."""

    def same(k: int) -> bool:
        expected = webp.decode(memoryview(files[k]), probe(memoryview(files[k])))
        start = int(pictures[k]["destination"])
        return expected is not None and np.array_equal(pixels[start : start + expected.size], expected.reshape(-1))

    taken = np.flatnonzero(marks == 0).tolist()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return len(taken), len(taken) - sum(pool.map(same, taken))


def mutated(files: list[bytes], count: int) -> list[bytes]:
    draw, found = random.Random(5), []
    for k in range(count):
        data = bytearray(files[k % len(files)])
        for _ in range(draw.choice([1, 2, 5, 20])):
            place = 30 + int(draw.random() ** draw.choice([1, 3, 6]) * (len(data) - 30))
            data[place] = draw.choice([0, 255, draw.randrange(256), data[place] ^ 1 << draw.randrange(8)])
        found.append(bytes(data))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", default="64,256,1024,4096")
    parser.add_argument("--mutate", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.apart:
        allocate_apart()
    paths = sorted(p for p in args.folder.iterdir() if p.is_file())[: 24 if args.apart else 120]
    pixels = 4000 if args.small else PIXELS
    jobs = [(p, k) for k in range(1 if args.small else 2) for p in paths]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda job: encoded("webp", *job, pixels), jobs))
    decoded = run_alone if args.apart else run
    rows: dict[str, Any] = {"files": len(made), "bytes": sum(map(len, made)) / len(made)}
    print(f"{len(made)} WebPs of {rows['bytes']:,.0f} bytes", flush=True)
    with Timed(0) as lane:
        rows["exact"] = differences(made, *decoded(lane, made))
        print(f"decoded, of these with other pixels than libwebp's: {rows['exact']}", flush=True)
        lane.marks.clear()
        for count in map(int, filter(None, args.batches.split(","))):
            files = [made[k % len(made)] for k in range(count)]
            pictures = table(files)
            (stored,) = lane.upload(np.frombuffer(b"".join(files), np.uint8))
            room = int(pictures[-1]["destination"]) + 3 * int(pictures[-1]["width"]) * int(pictures[-1]["height"])
            best: dict[str, float] = {}
            for _ in range(3):
                on_gpu.launch(lane, stored, pictures, lane.empty(room, np.uint8))()
                found = lane.times()
                best = {name: min(found[name], best.get(name, found[name])) for name in KERNELS}
            rows[str(count)] = {**best, "images_per_second": count / sum(best.values()) * 1e3}
            each = ", ".join(f"{name} {ms:.2f} ms" for name, ms in best.items())
            print(f"{count:6} pictures: {each}; {rows[str(count)]['images_per_second']:,.0f} images/s", flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
        if args.mutate:
            bad = mutated(made, args.mutate)
            rows["mutated"] = differences(bad, *decoded(lane, bad))
            print(f"of {len(bad)} damaged ones decoded, of these with other pixels: {rows['mutated']}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    if rows["exact"][1] or rows.get("mutated", (0, 0))[1]:
        sys.exit(1)


if __name__ == "__main__":
    main()
