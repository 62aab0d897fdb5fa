"""Video to frames on the CPU: this engine beside FFmpeg's own rate, in one interleaved run.

    python benchmarks/operators/video.py [--clips 24] [--threads 2] [--codecs h264,vp9,hevc] [--json out.json]

The clips are made: 64 frames of 1280 x 720 each, all different. Jobs: ``frames`` (all frames as RGB) and ``small`` (the
shorter side 256). FFmpeg's rate is that of its libraries through PyAV, as the program has it: a thread for each file,
frames converted (and shrunk, bilinear) by libswscale and thrown away. Ours are batches in memory, cut into sequences of
16 frames, shrunk as DALI does. Every turn is a process of its own. The best turn counts for frames a second, the median
for processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs import apart

SHORTER = 256
SEQUENCE = 16
BATCH = 4
WARM_UP = 12
"""Batches, or files: memory that is new costs more than decoding into it, and is used again afterwards."""


def measured(take: Callable[[], int], seconds: float) -> dict[str, float]:
    """Frames a second and processor time a frame of ``take``, which says how many frames it made; and how many threads
    ran or waited for a core on average, which other programs on the machine do not change."""
    for _ in range(WARM_UP):
        take()
    began, busy, ready, frames = time.perf_counter(), time.process_time(), _ready(), 0
    while time.perf_counter() - began < seconds:
        frames += take()
    elapsed = time.perf_counter() - began
    return {
        "frames_per_second": frames / elapsed,
        "cpu_ms_per_frame": 1e3 * (time.process_time() - busy) / frames,
        "threads_ready": (_ready() - ready) / elapsed,
    }


def _ready() -> float:
    """Seconds that threads of this process have run or waited for a core (Linux; 0 elsewhere)."""
    nanoseconds = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            nanoseconds += sum(map(int, task.read_text().split()[:2]))
    return nanoseconds / 1e9


def ours(root: str, job: str, threads: int, seconds: float) -> dict[str, float]:
    from dali_run.pipelines.compile.place import Target
    from dali_run.pipelines.compile.plan import compile_graph
    from dali_run.pipelines.engine.engine import Engine, Options, Request
    from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
    from dali_run.pipelines.graph.builder import GraphBuilder
    from dali_run.pipelines.plugins import load_operators

    load_operators()
    b = GraphBuilder()
    x, _label = b.add("experimental.readers.video", (), {"file_root": root, "sequence_length": SEQUENCE})
    if job == "small":
        (x,) = b.add("resize", [x], {"resize_shorter": SHORTER})
    plan = compile_graph(b.build({"x": x}), Target("cpu"), 1)
    requests = (Request(k * BATCH, BATCH) for k in itertools.count())
    options = Options(num_threads=threads)
    with Sources(plan, BATCH) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        return measured(lambda: len(next(engine).samples) * SEQUENCE, seconds)


def ffmpeg(root: str, job: str, threads: int, seconds: float) -> dict[str, float]:
    import av

    files = itertools.cycle(sorted(str(p) for p in Path(root).rglob("*") if p.is_file()))

    def decode(file: str) -> int:
        frames, converter = 0, av.video.reformatter.VideoReformatter()
        with av.open(file) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1  # files are decoded beside each other
            for frame in container.decode(stream):
                height, width = frame.height, frame.width
                if job == "small":
                    height, width = SHORTER, round(width * SHORTER / height)
                converter.reformat(frame, width, height, "rgb24", threads=1)
                frames += 1
        return frames

    with ThreadPoolExecutor(threads) as pool:
        ahead = [pool.submit(decode, next(files)) for _ in range(2 * threads)]

        def take() -> int:
            ahead.append(pool.submit(decode, next(files)))
            return ahead.pop(0).result()

        return measured(take, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=24, help="of each codec")
    parser.add_argument("--codecs", default="h264,vp9,hevc")
    parser.add_argument("--jobs", default="frames,small")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the clips are made, and kept (a temporary folder otherwise)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        apart.answer(args.child, {"ours": ours, "ffmpeg": ffmpeg})
        return
    from dali_run.pipelines.bench.media_mix import write_videos

    results: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for codec in args.codecs.split(","):
            place = (args.folder or Path(scratch)) / codec
            if not place.exists():
                write_videos(place, args.clips, {codec: 1.0})
        turns = itertools.product(range(args.repeats), args.codecs.split(","), args.jobs.split(","), ("ours", "ffmpeg"))
        for _, codec, job, what in turns:
            asked = {"what": what, "job": job, "threads": args.threads, "seconds": args.seconds,
                     "root": str((args.folder or Path(scratch)) / codec)}  # fmt: skip
            result = apart.run_apart(__file__, asked)
            if "error" in result:
                sys.exit(f"{codec} {job} {what}: {result['error']}")
            results.setdefault((codec, job, what), []).append(result)
            print(codec, job, what, results[codec, job, what][-1], flush=True)
    for codec, job in itertools.product(args.codecs.split(","), args.jobs.split(",")):
        mine, theirs = results[codec, job, "ours"], results[codec, job, "ffmpeg"]
        fps = [max(r["frames_per_second"] for r in rows) for rows in (mine, theirs)]
        cost = [median(r["cpu_ms_per_frame"] for r in rows) for rows in (mine, theirs)]
        print(f"{codec:5} {job:7} {cost[0]:6.2f} ms a frame, FFmpeg {cost[1]:6.2f}: {cost[1] / cost[0]:.2f}x;   "
              f"{fps[0]:6.0f} frames/s, FFmpeg {fps[1]:6.0f}: {fps[0] / fps[1]:.2f}x;   "
              f"threads ready {median(r['threads_ready'] for r in mine):.2f}, "
              f"{median(r['threads_ready'] for r in theirs):.2f}")  # fmt: skip
    if args.json:
        rows = {" ".join(key): values for key, values in results.items()}
        args.json.write_text(json.dumps({"load": os.getloadavg(), "all": rows}, indent=1))


if __name__ == "__main__":
    main()
