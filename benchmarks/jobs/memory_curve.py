"""Rate of an iterator by its budget of GPU memory: ``python benchmarks/jobs/memory_curve.py FOLDER [CASE ...]``.

A case is a batch size, ``memory.gpu`` ("auto" for the default) and the images/s that the consumer takes (0: as many as
it gets): ``256:2GiB:0``. FOLDER has JPEGs, which are copied until there are `FILES`. Prints a line of JSON per case:
images/s, the peak of the GPU's memory meanwhile, and how the engine's launches and its pool shared the memory.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

CASES = ("256:auto:0", "256:1GiB:0", "256:2GiB:0", "256:4GiB:0", "256:8GiB:0", "256:16GiB:0", "256:auto:3000",
         "64:auto:0", "64:2GiB:0", "1024:auto:0")  # fmt: skip
FILES, WARM_UP, SECONDS = 4096, 2.5, 3.0


def copied(folder: Path, root: Path) -> None:
    """Make a data set of `FILES` files from the JPEGs in ``folder``."""
    pictures = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    for i in range(FILES):
        target = root / str(i % 10) / f"{i:05d}.jpg"
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(pictures[i % len(pictures)], target)


def measure(root: str, batch: int, limit: str, per_second: float, threads: int) -> dict[str, Any]:
    """Run one case in this process."""
    import cupy

    from dali_run import fn, pipeline_def, types

    memory = {} if limit == "auto" else {"memory": {"gpu": limit}}

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=0, prefetch_queue_depth=2, **memory)
    def val() -> Any:
        jpegs, labels = fn.readers.file(file_root=root, random_shuffle=True, name="Reader")
        images = fn.decoders.image(jpegs, device="mixed", output_type=types.RGB)
        images = fn.resize(images, resize_shorter=256)
        images = fn.crop_mirror_normalize(images, crop=(224, 224), dtype=types.FLOAT, output_layout="CHW",
                                          mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])  # fmt: skip
        return images, labels.gpu()

    cupy.zeros(1)
    before, _ = cupy.cuda.runtime.memGetInfo()
    least, over = [before], threading.Event()

    def watch() -> None:
        cupy.cuda.runtime.setDevice(0)
        while not over.wait(0.01):
            least[0] = min(least[0], cupy.cuda.runtime.memGetInfo()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    pipe = val()
    pipe.build()
    began, count, until, processor = time.perf_counter(), 0, 0.0, 0.0
    while True:
        now = time.perf_counter() - began
        if not until and now >= WARM_UP:
            warm, count, processor, until = now, 0, time.process_time(), now + SECONDS
            earlier = counters(pipe)
        elif until and now >= until:
            break
        pipe.run()
        count += batch
        if per_second:
            time.sleep(max(0.0, batch / per_second - (time.perf_counter() - began - now)))
    rate, processor = count / (now - warm), (time.process_time() - processor) / count
    over.set()
    watcher.join()
    found: dict[str, Any] = {"images/s": round(rate), "processor us": round(processor * 1e6, 1),
             "peak MiB": (before - least[0]) >> 20, **owners(pipe)}  # fmt: skip
    found["seconds"] = {k: round(v - earlier.get(k, 0), 2) for k, v in counters(pipe).items()}
    pipe.close()
    cupy.cuda.runtime.deviceSynchronize()
    return found


def counters(pipe: Any) -> dict[str, float]:
    """Return seconds and counts that the engine has recorded so far."""
    engine = pipe._session.engine()
    found: dict[str, Any] = {f"{k} waited": v.waited for k, v in engine.budgets.items()}
    for c in engine.channels:
        found |= {f"{c.name} full": c.waited_full, f"{c.name} empty": c.waited_empty, f"{c.name} passed": c.passed}
    found |= {f"{k} busy": v for k, v in engine.stats.stages.items()}
    return found | {f"{n} gpu": r.gpu_seconds for n, r in engine.stats.nodes.items() if r.gpu_seconds}


def owners(pipe: Any) -> dict[str, Any]:
    """Return numbers of the engine about its launches and memory."""
    engine = pipe._session.engine()
    pool, credits = engine.lanes.all[0].memory, engine.credits
    budgets = {k: v.peak >> 20 for k, v in engine.budgets.items()}
    return {"join": credits.join, "per sample": round(credits._on_device), "budget MiB": credits.limit >> 20,
            "reads": engine.host_executor.concurrent_reads, "ledgers MiB": budgets,
            "pool held, live MiB": (pool.peak_held >> 20, pool.peak_live >> 20), "blocks made": pool.made,
            "peaks MiB": {k: v >> 20 for k, v in pool.peaks.items()}, "fallbacks": dict(engine.stats.fallbacks),
            "uploads": {k: v >> 20 for k, v in engine.stats.uploads.items()}}  # fmt: skip


def main() -> None:
    """Run the cases of the command line."""
    threads = min(16, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as root:
        copied(Path(sys.argv[1]), Path(root))
        for case in sys.argv[2:] or CASES:
            batch, limit, per_second = case.split(":")
            print(case, json.dumps(measure(root, int(batch), limit, float(per_second), threads)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
