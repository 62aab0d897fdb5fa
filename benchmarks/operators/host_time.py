"""The host's time for a batch of each of `cases`, without a GPU: CuPy is a stand-in, the driver does nothing.

    python benchmarks/operators/host_time.py [--cases WORD,...] [--batch 256] [--rounds 10] [--profile]

Batches are given as `every.py` gives them, once and for good. Processor time of the program's thread, the least of the
rounds, in microseconds: what a GPU and its driver take comes to it. `--profile` shows where it goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.operators.every import Side
from tests.kit.fake_cupy import faked

_RUNS = 25
"""Batches between two looks at the clock, which may be a call of the system."""


@numba.cfunc("int32()")
def done() -> int:
    """A function of the driver's, of any arguments."""
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="words: cases whose names hold one")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    from dali_run.ops.gpu import driver_calls

    ours = driver_calls.Launches, driver_calls.Stopwatch
    with faked() as fake:
        import cupy

        cupy.asarray = lambda a: cupy.empty(a.shape, a.dtype)  # there is no memory to copy it to
        fake.launched = SimpleNamespace(append=bool)  # type: ignore[assignment]
        driver_calls.Launches, driver_calls.Stopwatch = ours  # type: ignore[misc]
        driver_calls.load = lambda: dict.fromkeys(driver_calls._NAMES, done.address)  # type: ignore[assignment]
        side = Side(argparse.Namespace(side="dali_run", device="gpu", threads=8, source="fed", profile=False))
        for name in side.cases:
            if any(word in name for word in options.cases.split(",")):
                measure(side, name, options)
        sys.stdout.flush()
        os._exit(0)  # pipelines that still run end with the process


def measure(side: Any, name: str, options: argparse.Namespace) -> None:
    """Print the row of one case."""
    try:
        side.build(name, options.batch, "usual")
        run = side._pipe.run
        best = float("inf")
        for _ in range(options.rounds + 1):
            began = time.thread_time()
            for _ in range(_RUNS):
                run()
            best = min(best, (time.thread_time() - began) / _RUNS)
    except Exception as e:  # kernels that look at data find none
        print(f"{name:45} {type(e).__name__}: {str(e)[:100]}", flush=True)
        return
    print(f"{name:45} {best * 1e6:8.1f} us", flush=True)
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(lambda: [run() for _ in range(1000)])
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
