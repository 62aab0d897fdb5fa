"""The part of `make torture` about memory: allocations that fail one after the other, tight budgets, bombs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.pipelines.engine.memory.budget import Reservation
from tests.kit.engine import short_of_gpu_memory, short_of_memory
from tests.kit.engine.short_of_memory import SPEC, Failing, OutOfMemoryError, lanes_that, opened, picture, points
from tests.kit.files.bombs import bombs
from tests.torture_isolation import Row

SECONDS, BYTES = 1.0, 256 << 20
"""The limits of a bomb, goal R11."""


def make_spec(work: Path, images: int) -> Path:
    """A job over small pictures."""
    rng = np.random.default_rng(1)
    (work / "in" / "a").mkdir(parents=True)
    for i in range(images):
        height, width = rng.integers(30, 60, 2).tolist()
        (work / "in" / "a" / f"{i:03d}.jpg").write_bytes(picture(rng, height, width))
    spec = work / "spec.yaml"
    spec.write_text(SPEC.replace("IN", str(work / "in")).replace("OUT", str(work / "out")))
    return spec


def host(work: Path, images: int) -> Iterator[Row]:
    """The i-th allocation on the host fails, then every second, third, ... one."""
    _, compute = opened(make_spec(work, images), batch=2)
    want, empty = compute(), Reservation.empty
    tried, bad = 0, []

    def run_failing(failing: Failing) -> bool:
        def failing_empty(self: Reservation, n: int, dtype: Any) -> Any:
            failing(n * np.dtype(dtype).itemsize)
            return empty(self, n, dtype)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reservation, "empty", failing_empty)
            return bool(compute() == want)

    for i, right in points(run_failing, MemoryError):
        tried += 1
        bad += [] if right else [f"allocation {i}"]
    yield Row("allocations on the host fail, the i-th until the job runs through: the same bytes", tried, bad)


def device(work: Path, images: int) -> Iterator[Row]:
    """The i-th allocation on the null device fails; every second, third, ... one; all larger than a limit."""
    _, compute = opened(make_spec(work, images), "null", batch=2)
    want = compute()
    tried, bad = 0, []
    for i, found in points(lambda failing: compute(lanes_that(failing)), OutOfMemoryError):
        tried += 1
        bad += [] if found == want else [f"allocation {i}"]
    yield Row("allocations on the null device fail, the i-th until the job runs through: the same bytes", tried, bad)
    fails: list[Callable[[int, int], bool]] = [lambda n, _, p=p: n % p == 0 for p in range(2, 30)]  # type: ignore[misc]
    fails += [lambda _, nbytes, room=room: nbytes > room for room in range(500, 30_000, 500)]  # type: ignore[misc]
    bad = [f"case {k}" for k, f in enumerate(fails) if compute(_computing(f)) != want]
    yield Row("every n-th allocation on the null device fails, or all that are larger than a limit", len(fails), bad)


def _computing(fails: Callable[[int, int], bool]) -> Any:
    """As `lanes_that`, of what is computed only: what comes to the host needs no memory of the device."""
    engine = lanes_that(Failing(fails, OutOfMemoryError, by_thread=True))
    lane = type(engine.open_lane(None, 0))  # type: ignore[arg-type]
    lane.to_host = lambda self, batch: batch  # type: ignore[method-assign]
    return engine


def gpu(work: Path, step: int) -> Iterator[Row]:
    """The i-th allocation of the whole GPU path fails."""
    rng = np.random.default_rng(4)
    folder = work / "in" / "a"
    folder.mkdir(parents=True)
    for i in range(12):
        (folder / f"{i:02d}.jpg").write_bytes(picture(rng, 24 + i, 40 - i, progressive=i == 3))
    tried, bad = 0, []
    with short_of_gpu_memory.device() as watch:
        plan = short_of_gpu_memory.plan_of(work / "in")
        want, _ = short_of_gpu_memory.results(plan)

        def run_failing(failing: Failing) -> bool:
            watch(failing)
            found, _ = short_of_gpu_memory.results(plan)
            return found.keys() == want.keys() and all((found[k] == want[k]).all() for k in want)

        for i, right in points(run_failing, OutOfMemoryError, step):
            tried += 1
            bad += [] if right else [f"allocation {i}"]
    yield Row("allocations of the GPU path (CuPy's stand-in, our kernels on the CPU) fail, the i-th: the same bytes",
              tried, bad)  # fmt: skip


def budgets(work: Path, every: int) -> Iterator[Row]:
    """Jobs with budgets from less than a batch to more than all."""
    spec = make_spec(work, 22)
    short_of_memory.run(spec, "wide")
    want = short_of_memory.shards(work / "wide")
    tried, bad = 0, []
    for host_bytes in list(range(22_000, 400_000, 21_000))[::every]:
        for device_name, batch in (("cpu", 1), ("cpu", 8), ("cpu", 22), ("null", 8), ("null", 22)):
            out = f"{host_bytes}-{device_name}-{batch}"
            short_of_memory.run(spec, out, pipeline__memory__host=host_bytes, pipeline__device=device_name,
                            pipeline__batch_size=batch, pipeline__memory__gpu=2 * host_bytes)  # fmt: skip
            tried += 1
            bad += [] if short_of_memory.shards(work / out) == want else [out]
    yield Row("budgets for host and device x batch sizes: the same shards and reject log", tried, bad)


def refused(work: Path) -> Iterator[Row]:
    """Every bomb by itself; CPU seconds and growth of the process."""
    from tests.kit.ops.refusing import refused as reject_of

    bad = []
    found = bombs()
    reject_of(found["png"])
    for name, blob in found.items():
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        code = reject_of(blob).code
        took, grown = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if code != "too_large" or took > SECONDS or grown * 1024 > BYTES:
            bad.append(f"{name}: {code}, {took:.2f} s, {grown} KiB")
    yield Row("decompression bombs of all formats: refused within 1 s and 256 MiB", len(found), bad)


def rows(work: Path, quick: bool) -> Iterator[Row]:
    """All of it; ``quick``: a tenth."""
    for part in (
        lambda w: host(w, 6 if quick else 60),
        lambda w: device(w, 4 if quick else 60),
        lambda w: gpu(w, 12 if quick else 1),
        lambda w: budgets(w, 6 if quick else 1),
        refused,
    ):
        folder = work / f"memory-{len(list(work.iterdir()))}"
        folder.mkdir()
        yield from part(folder)
