"""Processor time of each thread of a GPU job, for a batch, without a GPU.

    python benchmarks/jobs/host_threads.py FOLDER [--jobs jpeg,norm] [--sources tfrecord,tar] [--batches 60]
        [--rounds 3] [--beside CHECKOUT] [--profile] [--releases] [--json out.json]

``jpeg``: decode, shorter side 256, JPEG of quality 90 into shards, as `dali-run run` does it; ``norm``: decode, shorter
side 256, crop 224, normalise, and of each picture one number is written. CuPy is a stand-in whose memory holds nothing,
and the driver's functions do nothing (files that the GPU would have encoded have --encoded bytes of noise), so what is
left is what the host does around its kernels. Times are those of Linux for each thread, in ms a batch, between a fifth
and nine tenths of the job; the best and the median of the rounds. ``launch`` is the part of the launching thread inside
a launch (median, and fastest tenth, of the batches), ``waits`` how often a thread let go of its processor, for others
or for the GIL. --beside runs another checkout of the project in turns with this one. --releases counts how often each
thread lets go of the GIL, with a C compiler and a Python whose library is shared: all that it does, a batch, whatever
else the machine does; beside other threads each of them is a wait to get it back.

The output lies in --scratch, in memory by default, and is emptied while the job runs.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import itertools
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba

sys.path.insert(0, os.environ.get("DALI_RUN_CHECKOUT") or str(Path(__file__).parents[2]))

from benchmarks.data import host_planning
from benchmarks.jobs import shards
from tests.kit.fake_cupy import faked

_ROOT = Path(__file__).parents[2]
_NORM = [
    {"op": "resize", "in": "x", "resize_shorter": 256, "out": "x"},
    {"op": "crop_mirror_normalize", "in": "x", "mean": host_planning.MEAN, "std": host_planning.STD,
     "crop": [224, 224], "out": "x"},
]  # fmt: skip
_SMALL = 1 << 16
"""Bytes of a copy from the device that is looked at: words of status."""


@numba.cfunc("int32()")
def _done() -> int:
    """A function of the driver's, of any arguments."""
    return 0


@numba.cfunc("int32(voidptr, int64, int64, int64)")
def _zeros(host: Any, _source: int, nbytes: int, _stream: int) -> int:
    """A copy to the host: all is well."""
    if nbytes <= _SMALL:
        to = numba.carray(host, nbytes, numba.uint8)
        for k in range(nbytes):
            to[k] = 0
    return 0


_COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static __thread long *mine;
static struct { long thread, count; } rows[4096];
static long used;
void *PyEval_SaveThread(void) {
    static void *(*real)(void);
    if (!real) real = (void *(*)(void))dlsym(RTLD_NEXT, "PyEval_SaveThread");
    if (!mine) {
        long k = __sync_fetch_and_add(&used, 1) % 4096;
        rows[k].thread = gettid();
        mine = &rows[k].count;
    }
    ++*mine;
    return real();
}
long gil_releases(long thread) {
    for (long k = 0; k < 4096 && k < used; k++) if (rows[k].thread == thread) return rows[k].count;
    return 0;
}
"""
"""Counts how often each thread lets go of the GIL, where it is loaded before Python's library."""


def counter(folder: Path) -> Path:
    """`_COUNTER`, compiled."""
    (folder / "counter.c").write_text(_COUNTER)
    made = folder / "counter.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, folder / "counter.c", "-ldl"], check=True)
    return made


class Threads:
    """Processor time and waits of this process's threads, by name; how often they let go of the GIL, where that is
    counted."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[str, int, int, int]] = self._read()

    @staticmethod
    def _read() -> dict[int, tuple[str, int, int, int]]:
        found = {}
        counted: Any = getattr(ctypes.PyDLL(None), "gil_releases", lambda _: 0)
        for thread in threading.enumerate():
            task = Path(f"/proc/self/task/{thread.native_id}")
            try:
                ran = int((task / "schedstat").read_text().split()[0])
                words = (task / "status").read_text()
            except (OSError, ValueError):  # it is over
                continue
            waits = int(words.split("voluntary_ctxt_switches:")[1].split()[0])
            found[thread.native_id or 0] = thread.name, ran, waits, counted(thread.native_id or 0)
        return found

    def since(self) -> dict[str, tuple[float, int, int]]:
        """Seconds, waits and releases of each since this was made; those of a kind together."""
        found: dict[str, tuple[float, int, int]] = {}
        for key, (name, *now) in self._read().items():
            ran, waits, releases = (a - b for a, b in zip(now, self._at.get(key, (name, 0, 0, 0))[1:], strict=True))
            kind = name.rstrip("0123456789 -_")
            before = found.get(kind, (0.0, 0, 0))
            found[kind] = before[0] + ran / 1e9, before[1] + waits, before[2] + releases
        return found


def measure(job: str, source: str, args: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """One job; ms a batch."""
    from dali_run.ops.codecs import encoders_gpu
    from dali_run.ops.gpu import driver_calls
    from dali_run.pipelines.engine.device.part import DevicePart
    from dali_run.pipelines.job.run import run_job

    files = sorted(p for p in args.folder.iterdir() if p.suffix.lower() in (".jpg", ".jpeg"))
    root = scratch / source
    root.mkdir()
    copies = 8
    host_planning.data_set(source, files, copies, root)
    pictures = args.batches * args.batch
    reader = shards.linked(source, root, -(-pictures // (copies * len(files))))
    shards.STEPS["norm"] = _NORM
    text = shards.spec(job, reader, args.writer, args.batch, 10000, scratch / "out")
    if job == "norm":  # a number of each is written
        text["graph"].append({"op": "reductions.mean", "in": "x", "out": "x"})
    text["pipeline"]["upload"] = args.upload
    (scratch / "spec.json").write_text(json.dumps(text))
    ours = driver_calls.Work, driver_calls.Launches, driver_calls.Stopwatch, driver_calls.milliseconds
    launched: list[float] = []
    window: dict[str, Any] = {}
    launch, collect = DevicePart._launch_whole, encoders_gpu._collect

    def timed(self: DevicePart, *more: Any) -> Any:
        began = time.thread_time()
        if args.profile and len(launched) == args.batches // 5:
            window["profile"] = cProfile.Profile(time.thread_time)
        try:
            if "profile" in window and "threads" not in window:
                return window["profile"].runcall(launch, self, *more)
            return launch(self, *more)
        finally:
            launched.append(time.thread_time() - began)
            if len(launched) == args.batches // 5:
                window["begin"] = Threads()
            if len(launched) == args.batches * 9 // 10:
                window["threads"], window["batches"] = window["begin"].since(), len(launched) - args.batches // 5

    def collected(op: Any, ctx: Any, images: Any, fit: Any, out: Any, sizes: Any) -> Any:
        sizes[:] = args.encoded
        return collect(op, ctx, images, fit, out, sizes)

    with faked() as fake:
        fake.launched = SimpleNamespace(append=bool)  # type: ignore[assignment]
        driver_calls.Work, driver_calls.Launches, driver_calls.Stopwatch, driver_calls.milliseconds = ours  # type: ignore[misc]
        known = driver_calls.load
        functions = dict.fromkeys(driver_calls._NAMES, _done.address) | {driver_calls.COPY_OUT: _zeros.address}
        driver_calls.load = lambda: functions  # type: ignore[assignment]
        DevicePart._launch_whole, encoders_gpu._collect = timed, collected  # type: ignore[method-assign]
        try:
            with shards.drained(scratch / "out"):
                result = run_job(scratch / "spec.json", {}, device="gpu:0", limit=pictures)
        finally:
            DevicePart._launch_whole, encoders_gpu._collect = launch, collect  # type: ignore[method-assign]
            driver_calls.load = known
    if result.exit_code:
        raise SystemExit(result.message)
    if "profile" in window:
        pstats.Stats(window["profile"]).sort_stats("tottime").print_stats(40)
    batches = window["batches"]
    each = sorted(launched[args.batches // 5 :])
    found = {"launch": 1e3 * statistics.median(each), "launch, quiet": 1e3 * each[len(each) // 10]}
    for kind, (seconds, waits, releases) in sorted(window["threads"].items(), key=lambda row: -row[1][0]):
        if seconds > 5e-6 * batches:
            found[kind] = 1e3 * seconds / batches
            found[f"{kind}: waits"] = waits / batches
            if args.releases:
                found[f"{kind}: releases"] = releases / batches
    return found


def rounds(args: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Jobs in turns, each in a process of its own: by job and checkout."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    checkouts = [str(root.resolve()) for root in (_ROOT, args.beside) if root]
    for _, job, source in itertools.product(range(args.rounds), args.jobs.split(","), args.sources.split(",")):
        for checkout in checkouts:
            with tempfile.TemporaryDirectory(dir=args.scratch) as name:
                told = Path(name, "found.json")
                command = [sys.executable, __file__, str(args.folder), "--child", f"{job},{source}", "--json",
                           str(told), "--batches", str(args.batches), "--batch", str(args.batch),
                           "--writer", args.writer, "--upload", args.upload, "--encoded", str(args.encoded),
                           "--scratch", name, *(["--profile"] if args.profile else []),
                           *(["--releases"] if args.releases else [])]  # fmt: skip
                environment = {**os.environ, "DALI_RUN_CHECKOUT": checkout, "PYTHONPATH": checkout}
                if args.releases:
                    environment["LD_PRELOAD"] = str(counter(Path(name)))
                subprocess.run(command, check=True, env=environment)
                found.setdefault(f"{job}, {source}", {}).setdefault(checkout, []).append(json.loads(told.read_text()))
    return found


def show(found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Best and median of the rounds, the checkouts side by side."""
    for what, by_checkout in found.items():
        print(what)
        kinds = dict.fromkeys(kind for turns in by_checkout.values() for turn in turns for kind in turn)
        for kind in kinds:
            row = ""
            for turns in by_checkout.values():
                values = [turn.get(kind, 0.0) for turn in turns]
                row += f"{min(values):9.2f} ({statistics.median(values):7.2f})"
            print(f"    {kind:44}{row}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default="jpeg,norm")
    parser.add_argument("--sources", default="tfrecord,tar", help="of files, tfrecord, tar, lmdb, recordio")
    parser.add_argument("--writer", default="tfrecord")
    parser.add_argument("--upload", default="copy", choices=("auto", "copy", "registered"))
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--encoded", type=int, default=26000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--profile", action="store_true", help="where the launching thread's time goes")
    parser.add_argument("--releases", action="store_true", help="how often each thread lets go of the GIL")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        args.json.write_text(json.dumps(measure(*args.child.split(","), args, args.scratch)))
        return
    found = rounds(args)
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
