"""What an iteration costs besides its work: a trivial graph at batch 1 and 64, here and in NVIDIA's DALI.

    python benchmarks/overhead.py [--dali-python PATH] [--iterations N]

With --dali-python, a Python that has NVIDIA DALI runs the same loops, turn by turn with ours, so that both see the
same load on the machine. Numbers are microseconds per iteration: the best and the median of the repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

BATCHES = (1, 64)
REPEATS = 7


def loops(package: str, iterations: int) -> dict[str, float]:
    """Microseconds per iteration of each graph."""
    import importlib

    import numpy as np

    fn = importlib.import_module(f"{package}.fn")
    pipeline_def = importlib.import_module(package).pipeline_def
    fixed = np.zeros((64, 4), np.float32)

    def constant():
        return fn.external_source(lambda: fixed[:batch], batch=True)

    def uniform():
        return fn.random.uniform(range=(0.0, 1.0))

    def arithmetic():
        x = fn.random.uniform(range=(0.0, 1.0))
        return x * 2 + 1, x

    results = {}
    for batch in BATCHES:
        for definition in (constant, uniform, arithmetic):
            pipe = pipeline_def(definition)(batch_size=batch, num_threads=1, device_id=None, seed=1)
            for _ in range(20):
                pipe.run()
            began = time.perf_counter()
            for _ in range(iterations):
                pipe.run()
            results[f"{definition.__name__} {batch}"] = (time.perf_counter() - began) / iterations * 1e6
            del pipe
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dali-python")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--loops", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loops:
        print(json.dumps(loops(arguments.loops, arguments.iterations)))
        return
    sides = {"dali_run": sys.executable}
    if arguments.dali_python:
        sides["nvidia.dali"] = arguments.dali_python
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(REPEATS):
        for side, python in sides.items():
            command = [python, __file__, "--loops", side, "--iterations", str(arguments.iterations)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'graph and batch':<20}" + "".join(f"{side + ' best':>20}{'median':>10}" for side in sides))
    for key in found["dali_run"][0]:
        row = f"{key:<20}"
        for side in sides:
            values = [r[key] for r in found[side]]
            row += f"{min(values):>20.1f}{statistics.median(values):>10.1f}"
        print(row)


if __name__ == "__main__":
    main()
