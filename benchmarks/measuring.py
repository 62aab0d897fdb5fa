"""Measure in separate processes: shared by gate.py and the programs in benchmarks/jobs.

A program lists rows, functions of a `Side`; `measure` starts the program again for one row, with the package of one
checkout, and `answer` prints the row's result. The same function measures dali-run and NVIDIA DALI: it takes operators
from `Side.fn`, which belongs to one of the libraries.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.natural import ROOT

BATCHES = {"gpu": 256, "cpu": 64}
LEAST = 10
"""Smallest number of batches for measuring a rate, however slow they are (within six times the time of a row)."""
WARM_UP = 1.5
"""Seconds that a pipeline runs before the clock starts, because it first allocates memory."""
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


class GpuMemory:
    """Peak of the device memory in use beyond CUDA contexts, sampled by a thread; owned by one measurement."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._used = lambda: pynvml.nvmlDeviceGetMemoryInfo(self._device).used
        before = self._used()
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        for status in (self._cuda.cuInit(0), self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0)):
            if status:
                raise RuntimeError(f"CUDA error {status}")
        self.base = self.peak = self._used()
        self.context = self.base - before
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self._used())
            time.sleep(0.02)

    def synchronize(self) -> None:
        """Wait for all work of this process on the device."""
        self._cuda.cuCtxPushCurrent_v2(self._context)
        self._cuda.cuCtxSynchronize()
        self._cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


class Side:
    """One library, and the settings of one measurement; the functions that measure rows of a table get it."""

    def __init__(self, library: str, device: str, data: str, threads: int, seconds: float, package: str, scratch: str):
        self.library, self.device, self.data, self.threads, self.seconds = library, device, data, threads, seconds
        self.package, self.scratch, self.gpu = Path(package), Path(scratch), device == "gpu"
        self.ours, self.batch = library == "dali_run", BATCHES[device]
        self.mixed, self.torch_device = ("mixed", "cuda") if self.gpu else ("cpu", "cpu")
        self.memory = GpuMemory() if self.gpu else None
        self.fn, self.types = self.module(".fn"), self.module(".types")

    def module(self, name: str = "") -> Any:
        return importlib.import_module(self.library + name)

    def pipeline(self, define: Callable[[], Any], batch: int = 0, **settings: Any) -> Any:
        """Return a pipeline, not built yet, whose outputs ``define`` returns."""
        more = {"device_id": 0 if self.gpu else None, "num_threads": self.threads, **settings}
        return self.module().pipeline_def(batch_size=batch or self.batch, **more)(define)()

    def synchronize(self) -> None:
        if self.memory:
            self.memory.synchronize()

    def pixels(self) -> Any:
        """Return a batch of images of 224 x 224 as one uint8 array, on the device of the measurement."""
        small = np.random.default_rng(5).integers(0, 256, (self.batch, 28, 28, 3), np.uint8)
        array = small.repeat(8, axis=1).repeat(8, axis=2)
        return importlib.import_module("cupy").asarray(array) if self.gpu else array

    def files(self) -> Any:
        return self.fn.readers.file(file_root=self.data, random_shuffle=True, name="Reader")[0]

    def normalized(self, images: Any, **more: Any) -> Any:
        return self.fn.crop_mirror_normalize(
            images, dtype=self.types.FLOAT, output_layout="CHW", crop=[224, 224], mean=MEAN, std=STD, **more
        )

    def val(self, encoded: Any) -> Any:
        images = self.fn.decoders.image(encoded, device=self.mixed, output_type=self.types.RGB)
        images = self.fn.resize(images, resize_shorter=256, interp_type=self.types.INTERP_TRIANGULAR)
        return self.normalized(images)

    def train(self, encoded: Any) -> Any:
        images = self.fn.decoders.image_random_crop(encoded, device=self.mixed, output_type=self.types.RGB)
        images = self.fn.resize(images, size=[224, 224], interp_type=self.types.INTERP_TRIANGULAR)
        return self.normalized(images, mirror=self.fn.random.coin_flip(probability=0.5))


def busy() -> float:
    """Return the seconds of processor time that this process and all its descendants have used, because decoders may
    run in separate processes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    parents, ticks = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):  # not every kernel lists a process's children
        with contextlib.suppress(OSError):  # the process has ended
            fields = stat.read_text().rpartition(")")[2].split()
            parents[pid := int(stat.parent.name)], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    living = sum(ticks[pid] for pid in below - {os.getpid()}) / os.sysconf("SC_CLK_TCK")
    return sum(u.ru_utime + u.ru_stime for u in used) + living


def measured(d: Side, pipe: Any, *, batch: int = 0, each: int = 1, iterator: bool = False,
             pace: float = 0) -> dict[str, Any]:  # fmt: skip
    """Return rates of ``pipe`` in samples (times ``each``) per second, for the first epoch and later ones. With
    ``iterator``, through DALIGenericIterator and a PyTorch program that sums every value, on a GPU if PyTorch is
    installed. ``pace``: number of samples that the consumer takes per second; 0 for as many as it gets."""
    batch = batch or d.batch
    began = time.perf_counter()
    pipe.build()
    epoch = sum(pipe.epoch_size().values())
    take: Callable[[], Any] = pipe.run
    if iterator and d.gpu and importlib.util.find_spec("torch"):
        batches = d.module(".plugin.pytorch").DALIGenericIterator(pipe, ["x"])
        take = lambda: next(batches)[0]["x"].sum()  # noqa: E731
    take()
    first_batch = time.perf_counter()
    start, start_busy, start_count = first_batch, busy(), 0
    count, first, later = 0, 0.0, False
    while True:
        take()
        count += batch
        now = time.perf_counter()
        if pace and (ahead := (count - start_count) / pace - (now - start)) > 0:
            time.sleep(ahead)
            now = time.perf_counter()
        if not first and count >= max(epoch, batch):
            first = count * each / (now - first_batch)
        if first and not later and now - first_batch >= WARM_UP:
            d.synchronize()
            later, start, start_busy, start_count = True, time.perf_counter(), busy(), count
        elif (spent := (now - start) / d.seconds) >= 6 or (
            spent >= (1 if later else 2) and count - start_count >= LEAST * batch
        ):
            break
    d.synchronize()
    seconds, samples = time.perf_counter() - start, (count - start_count) * each
    first = first or samples / seconds if epoch else 0
    return {"rate": samples / seconds, "first": first, "later": later, "epoch": epoch,
            "cpu_ms": 1e3 * (busy() - start_busy) / samples, "first_batch_s": first_batch - began}  # fmt: skip


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def versions(package: Path) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "numba", "pillow", "simplejpeg", "cupy-cuda13x", "cupy-cuda12x", "torch",
                 "nvidia-dali-cuda130", "nvidia-dali-cuda120"):  # fmt: skip
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    commit = subprocess.run(
        ["git", "-C", str(package), "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True
    )
    return {**found, "commit": commit.stdout.strip() or "unknown"}


def dali_is_installed() -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec("nvidia.dali") is not None
    return False


def gpu_name() -> str:
    """Return the name of the first GPU, empty if there is none."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    return ""


def answer(asked: str, rows: Mapping[str, Callable[[Side], dict[str, Any]]]) -> None:
    """Measure a row in the process that `measure` started, print the result as JSON, and end the process. ``asked``:
    the argument that `measure` passed."""
    settings = json.loads(asked)
    row = settings.pop("row")
    sys.path[:] = [settings["package"], *(path for path in sys.path if path != str(ROOT))]
    d = Side(**settings)
    found = rows[row](d)
    if d.memory:
        contexts = d.memory.context if found.pop("command", False) else 0  # the command has a context of its own
        found["gpu_gb"] = max(0, d.memory.peak - d.memory.base - contexts) / 1e9
    processes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    found["peak_rss_gb"] = max(resource.getrusage(who).ru_maxrss for who in processes) / 1e6
    print(json.dumps({k: float(v) if isinstance(v, np.floating) else v for k, v in found.items()}))
    sys.stdout.flush()
    os._exit(0)  # a library that hangs at exit must not cost the row


def measure(script: str, row: str, limit: float = 180, **settings: Any) -> dict[str, Any]:
    """Run ``script`` for ``row`` in a process that imports dali-run or DALI from ``settings["package"]``; the other
    settings are `Side`'s. Return the result, {"error": ...}, or {"skipped": ...} if a library is missing. The process
    is ended after ``limit`` seconds."""
    paths = filter(None, (settings["package"], os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    line = [sys.executable, "-W", "ignore", script, "--child", json.dumps({"row": row, **settings})]
    try:
        done = subprocess.run(line, capture_output=True, env=environment, text=True, timeout=limit)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-3:] or [f"exit status {done.returncode}"]
            return {"skipped": last[-1]} if last[-1].startswith("ModuleNotFoundError") else {"error": " | ".join(last)}
        return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]
    except Exception as error:  # a row that fails must not end the others
        return {"error": f"{type(error).__name__}: {error}"[:500]}
