"""Jobs over small images whose allocations fail."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dali_run.ops.batch import Batch
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, NullLane, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.job.run import JobResult, run_job
from dali_run.pipelines.spec.build import load_spec

SPEC = """
version: 1
name: small
pipeline: {batch_size: 8, num_threads: 2, device: cpu, seed: 3}
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: decoders.image_random_crop, in: x, out: x}
  - {op: resize, in: x, size: [12, 10], out: x}
  - {op: random.coin_flip, out: mirror}
  - {op: crop_mirror_normalize, in: x, mirror: $mirror, mean: [100, 110, 120], out: x}
outputs: {x: x, label: label}
write: {writer: tfrecord, path: OUT, shard: {samples: 10}, fields: {x: {encode: raw}, label: {}}}
"""


def picture(rng: np.random.Generator, height: int, width: int, format: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(buffer, format, **options)
    return buffer.getvalue()


def run(spec: Path, out: str = "out", **overrides: Any) -> JobResult:
    keyed = {k.replace("__", "."): v for k, v in overrides.items()}
    return run_job(spec, {"write.path": str(spec.parent / out), **keyed})


def shards(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".tfrecord", ".idx", ".jsonl")}


def opened(spec: Path, device: str = "cpu", batch: int = 8) -> tuple[Plan, Callable[..., list[tuple[int, bytes]]]]:
    """Return a plan of the spec's graph, and a function that runs it and returns (sample, bytes) pairs."""
    built = load_spec(spec)
    plan = compile_graph(built.graph, Target(device=device), 3)  # type: ignore[arg-type]

    def compute(engine_type: type[Engine] = Engine, **options: Any) -> list[tuple[int, bytes]]:
        with Sources(plan, batch) as sources:
            feed = JobFeed(sources)
            given = Options(**{"num_threads": 2, "lanes": 2, **options})
            with engine_type(plan, feed, feed.requests(batch), given) as engine:
                found = [
                    (i, b"|".join(np.ascontiguousarray(b.sample(k)).tobytes() for b in it.outputs(plan).values()))
                    for it in engine
                    for k, i in enumerate(it.samples.position.tolist())
                ]
                compute.fallbacks = dict(engine.stats.fallbacks)  # type: ignore[attr-defined]
                compute.rejected = dict(engine.stats.rejected)  # type: ignore[attr-defined]
        return found

    return plan, compute


class Failing:
    """Counts allocations, and fails those for which ``fails(number from 1, size)`` is true."""

    def __init__(self, fails: Callable[[int, int], bool], error: type[MemoryError], *, by_thread: bool = False) -> None:
        """``by_thread``: count per thread, so that a thread's retry has the next number."""
        self.fails = fails
        self.error = error
        self.count = 0
        self._lock = threading.Lock()
        self._own = threading.local() if by_thread else None

    def __call__(self, nbytes: int) -> None:
        with self._lock:
            self.count += 1
            number = self.count
        if self._own is not None:
            number = self._own.count = getattr(self._own, "count", 0) + 1
        if self.fails(number, nbytes):
            raise self.error(f"allocation {number} of {nbytes} bytes")


def points(compute: Callable[[Failing], Any], error: type[MemoryError], step: int = 1) -> Iterator[tuple[int, Any]]:
    """Run ``compute`` again and again, in which the 1st, 2nd, 3rd, ... (every ``step``-th) allocation fails, until a
    run has fewer allocations. Yield the number of the allocation, and the result."""
    i = 1
    while True:
        failing = Failing(lambda number, _, i=i: number == i, error)  # type: ignore[misc]
        yield i, compute(failing)
        if failing.count < i:
            return
        i += step


class OutOfMemoryError(MemoryError):
    """Stand-in for CuPy's error of the same name: out of memory."""


def lanes_that(failing: Failing) -> type[Engine]:
    class FailingLane(NullLane):
        def empty(self, n: int, dtype: Any) -> Any:
            failing(n * np.dtype(dtype).itemsize)
            return super().empty(n, dtype)

        def to_host(self, batch: Batch) -> Batch:
            failing(batch.nbytes)
            return super().to_host(batch)

    class FailingEngine(Engine):
        @staticmethod
        def open_lane(target: Target, index: int) -> Any:
            return FailingLane(index)

    return FailingEngine
