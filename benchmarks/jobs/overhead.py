"""The cost of an iteration besides its work: small graphs here and in NVIDIA's DALI, in microseconds a batch.

    python benchmarks/jobs/overhead.py --dali-python PYTHON [--batches 1,64] [--json FILE]

Data is tiny (16 x 16 pixels, four numbers), so that what remains is what the machinery costs. PYTHON has NVIDIA DALI.
Both run at the same time, block by block in turns of some milliseconds, so that both see the same load on the machine;
the difference is the median over the pairs of blocks, the other columns are medians and the best blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GRAPHS = ("constant", "uniform", "arithmetic", "flip", "reader", "shuffled reader", "decode", "train")
LIMIT = 50.0
"""Microseconds that a batch may cost more than DALI's, at batch 1."""
SIDES = ("dali_run", "nvidia.dali")


def graphs(package: str, root: str, batch: int) -> dict[str, Callable[[], Any]]:
    """The definitions, written for either package."""
    import importlib

    import numpy as np

    fn = importlib.import_module(f"{package}.fn")
    types = importlib.import_module(f"{package}.types")
    numbers = np.zeros((batch, 4), np.float32)
    images = np.zeros((batch, 16, 16, 3), np.uint8)

    def constant() -> Any:
        return fn.external_source(lambda: numbers, batch=True)

    def uniform() -> Any:
        return fn.random.uniform(range=(0.0, 1.0))

    def arithmetic() -> Any:
        x = fn.random.uniform(range=(0.0, 1.0))
        return x * 2 + 1, x

    def flip() -> Any:
        return fn.flip(fn.external_source(lambda: images, batch=True, layout="HWC"))

    def reader() -> Any:
        return tuple(fn.readers.file(file_root=root))

    def shuffled() -> Any:
        return tuple(fn.readers.file(file_root=root, random_shuffle=True))

    def decode() -> Any:
        encoded, label = fn.readers.file(file_root=root)
        return fn.decoders.image(encoded), label

    def train() -> Any:
        encoded, label = fn.readers.file(file_root=root, random_shuffle=True)
        image = fn.resize(fn.decoders.image_random_crop(encoded), size=(16, 16))
        image = fn.crop_mirror_normalize(image, mirror=fn.random.coin_flip(), mean=[124.0, 116.0, 104.0],
                                         std=[58.0, 57.0, 57.0], dtype=types.FLOAT)  # fmt: skip
        return image, label

    return dict(zip(GRAPHS, (constant, uniform, arithmetic, flip, reader, shuffled, decode, train), strict=True))


def serve(package: str, root: str) -> None:
    """A side: for every line ``{graph, batch}`` build a pipeline, for every number run as many batches and say how many
    microseconds a batch took."""
    import importlib

    pipeline_def = importlib.import_module(package).pipeline_def
    pipe: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            del pipe
            definition = graphs(package, root, asked["batch"])[asked["graph"]]
            pipe = pipeline_def(definition)(batch_size=asked["batch"], num_threads=1, device_id=None, seed=1)
            pipe.build()
            print(json.dumps(0), flush=True)
            continue
        began = time.perf_counter()
        for _ in range(asked):
            pipe.run()
        print(json.dumps((time.perf_counter() - began) / asked * 1e6), flush=True)


class Side:
    """The process of one package."""

    def __init__(self, python: str, package: str, root: str) -> None:
        command = [python, __file__, "--serve", package, root]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: Any) -> float:
        """Send a line, take the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    pythons: dict[str, str], root: str, batches: list[int], only: list[str], blocks: int
) -> list[dict[str, Any]]:
    """A row for every graph and batch size."""
    sides = {name: Side(python, name, root) for name, python in pythons.items()}
    rows = []
    for batch in batches:
        for graph in only:
            times: dict[str, list[float]] = {name: [] for name in sides}
            for side in sides.values():
                side.ask({"graph": graph, "batch": batch})
                side.ask(50)
            # At batch 1, a few milliseconds: short enough to pass between other programs' turns. Larger batches are
            # prefetched: a block must be many times what is ready when it begins.
            length = 20 if batch == 1 else 40
            for _ in range(blocks):
                for name, side in sides.items():
                    times[name].append(side.ask(length))
            row: dict[str, Any] = {"graph": graph, "batch": batch}
            for name, found in times.items():
                row[name] = {"best": round(min(found), 1), "median": round(statistics.median(found), 1)}
            if len(times) == 2:
                pairs = zip(*times.values(), strict=True)
                row["more"] = round(statistics.median(ours - theirs for ours, theirs in pairs), 1)
            rows.append(row)
            print(as_text(row), flush=True)
    for side in sides.values():
        side.close()
    return rows


def as_text(row: dict[str, Any]) -> str:
    """A line of the table."""
    sides = "".join(f"{row[n]['median']:>12.0f}{row[n]['best']:>8.0f}" for n in SIDES if n in row)
    return f"{row['graph']:<16}{row['batch']:>4}{sides}{row.get('more', float('nan')):>+10.0f}"


def make_files(root: Path) -> None:
    """64 small JPEGs in two folders."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    for k in range(64):
        folder = root / "ab"[k % 2]
        folder.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(folder / f"{k:02d}.jpg", quality=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dali-python")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    pythons = {"dali_run": sys.executable}
    if given.dali_python:
        pythons["nvidia.dali"] = given.dali_python
    print(f"{'graph':<16}{'batch':>4}" + "".join(f"{side:>12}{'best':>8}" for side in pythons) + f"{'more':>10}")
    with tempfile.TemporaryDirectory() as root:
        make_files(Path(root))
        rows = measure(pythons, root, [int(b) for b in given.batches.split(",")], given.graphs.split(","), given.blocks)
    over = [r["graph"] for r in rows if r["batch"] == 1 and r.get("more", 0.0) > LIMIT]
    if given.dali_python:
        print(f"At batch 1, more than {LIMIT:.0f} us beyond DALI: {', '.join(over) or 'none'}")
    if given.json:
        load = os.getloadavg()[0]
        facts = {"unit": "microseconds a batch", "cores": os.cpu_count(), "load_average": load, "rows": rows}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
