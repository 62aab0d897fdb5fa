"""The CUDA JPEG encoder on one GPU: is it right, how long does each kernel take, how many images a second.

    python benchmarks/jpeg/gpu_jpeg_encode.py FOLDER [--batch 256] [--lanes 1,2,4,8] [--seconds 2] [--json out.json]

The JPEGs of FOLDER, their shorter sides resized to 256, are encoded at --quality and --subsampling. All files are
compared with Pillow's first. "resident": kernels alone; "files": with the copy of the files to the host. nvJPEG's
encoder does the same pictures as a reference, one call each, on as many threads as lanes. "pipeline": JPEG files ->
decode -> resize -> encode in the engine, files on the host, nothing written (--gigabytes of different files, or
--copies: times that the folder is read).
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import encoders_gpu as jpeg_encode_gpu
from dali_run.ops.codecs.encoders import EncodeImage
from dali_run.ops.codecs.jpeg import nvjpeg
from dali_run.ops.context import Context
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators

Picture = NDArray[np.uint8]
NVJPEG_SUBSAMPLING = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}
NVJPEG_RGB_INTERLEAVED = 5


def pictures(paths: list[Path]) -> list[Picture]:
    """Shorter sides of 256."""
    result = []
    for path in paths:
        image = Image.open(path).convert("RGB")
        scale = 256 / min(image.size)
        result.append(np.asarray(image.resize((round(image.width * scale), round(image.height * scale)))))
    return result


class TracingLane(Lane):
    """Notes an event after each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, Any]] = []

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        super().launch(source, kernel, grid, block, *args)
        self.note(kernel)

    def launch_all(self, launches: Sequence[Any]) -> None:
        for source, kernel, grid, block, args in launches:
            self.launch(source, kernel, grid, block, *args)

    def note(self, name: str) -> None:
        event = cupy.cuda.Event()
        event.record(self.stream)
        self.events.append((name, event))


class Job:
    """One lane with its batch."""

    def __init__(self, op: EncodeImage, images: list[Picture], lane: Lane) -> None:
        self.op, self.lane = op, lane
        self.host = Batch.from_list(images, "HWC", Samples.numbered(len(images)))
        with lane:
            self.images = lane.to_device(self.host)
        lane.synchronize()
        self.open: Callable[[], Batch] | None = None

    def begin(self) -> None:
        ctx = Context(self.op, "gpu", self.images.samples, device=self.lane)
        with self.lane:
            self.op.gpu(ctx, self.images)
        self.open = ctx.finish

    def end(self, files: bool = True) -> Batch | None:
        self.lane.synchronize()
        if self.open is None or not files:
            return None
        with self.lane:
            result = self.open()
        self.lane.synchronize()
        return result


def check(op: EncodeImage, images: list[Picture], size: int) -> dict[str, Any]:
    """Every file against the CPU operator's."""
    same, different = 0, []
    total = 0
    lane = Lane()
    for begin in range(0, len(images), size):
        job = Job(op, images[begin : begin + size], lane)
        job.begin()
        found = job.end()
        assert found is not None
        wanted = op.cpu(Context(op, "cpu", job.host.samples), job.host)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            total += len(b)
            if a.tobytes() == b.tobytes():
                same += 1
            else:
                different.append(begin + i)
    return {"files": len(images), "same": same, "different": different, "bytes_each": total // len(images)}


def phases(op: EncodeImage, images: list[Picture], repeats: int = 20) -> dict[str, float]:
    """Milliseconds of each launch, one batch alone on the GPU; host: milliseconds of Python until all are enqueued."""
    lane = TracingLane()
    job = Job(op, images, lane)
    runs: list[dict[str, float]] = []
    hosts = []
    for _ in range(repeats):
        lane.events.clear()
        job.end(files=False)
        lane.note("start")
        begin = time.perf_counter()
        job.begin()
        hosts.append(1e3 * (time.perf_counter() - begin))
        lane.synchronize()
        # The upload is in the first one.
        pairs = pairwise(lane.events)
        runs.append({name: cupy.cuda.get_elapsed_time(before, event) for (_, before), (name, event) in pairs})
    result = {name: float(np.median([r[name] for r in runs])) for name in runs[0]}
    return result | {"total": sum(result.values()), "host": float(np.median(hosts))}


def throughput(jobs: list[Job], files: bool, seconds: float) -> float:
    for job in jobs:
        job.begin()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for job in jobs:
            job.end(files)
            done += len(job.images)
            job.begin()
    for job in jobs:
        job.end(files)
        done += len(job.images)
    return done / (time.perf_counter() - start)


class NvJpegEncoder:
    """nvJPEG's encoder, one image a call."""

    def __init__(self, op: EncodeImage) -> None:
        self._library = ctypes.CDLL(nvjpeg.library().path)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        at = ctypes.c_void_p(self.stream.ptr)
        self._handle, self._state, self._params = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("nvjpegCreateSimple", ctypes.byref(self._handle))
        self._call("nvjpegEncoderStateCreate", self._handle, ctypes.byref(self._state), at)
        self._call("nvjpegEncoderParamsCreate", self._handle, ctypes.byref(self._params), at)
        self._call("nvjpegEncoderParamsSetQuality", self._params, op.quality, at)
        self._call("nvjpegEncoderParamsSetOptimizedHuffman", self._params, int(op.optimize), at)
        self._call("nvjpegEncoderParamsSetSamplingFactors", self._params, NVJPEG_SUBSAMPLING[op.subsampling], at)
        self._buffer = np.empty(1 << 22, np.uint8)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise nvjpeg.NvJpegError(name, status)

    def encode(self, address: int, height: int, width: int) -> bytes:
        image = np.zeros(nvjpeg.IMAGE_WORDS, np.uint64)
        image[0], image[4] = address, 3 * width
        at = ctypes.c_void_p(self.stream.ptr)
        self._call("nvjpegEncodeImage", self._handle, self._state, self._params, ctypes.c_void_p(image.ctypes.data),
                   NVJPEG_RGB_INTERLEAVED, width, height, at)  # fmt: skip
        length = ctypes.c_size_t(self._buffer.nbytes)
        self._call("nvjpegEncodeRetrieveBitstream", self._handle, self._state,
                   ctypes.c_void_p(self._buffer.ctypes.data), ctypes.byref(length), at)  # fmt: skip
        self.stream.synchronize()
        return self._buffer[: length.value].tobytes()


def nvjpeg_rate(job: Job, threads: int, seconds: float) -> dict[str, Any]:
    """Images a second, and what the files are like: PSNR against the picture, bytes."""
    encoders = [NvJpegEncoder(job.op) for _ in range(threads)]
    address, offsets, shapes = job.images.data.data.ptr, job.images.offsets.tolist(), job.images.shapes.tolist()
    files = [encoders[0].encode(address + o, h, w) for o, (h, w, _) in zip(offsets, shapes, strict=True)]
    counts = [0] * threads
    stop = time.perf_counter() + seconds

    def work(k: int) -> None:
        for i in cycle(range(len(offsets))):
            if time.perf_counter() >= stop:
                return
            encoders[k].encode(address + offsets[i], shapes[i][0], shapes[i][1])
            counts[k] += 1

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return {"images_per_s": round(sum(counts) / seconds), "psnr": psnr(files, job.host),
            "bytes_each": sum(map(len, files)) // len(files)}  # fmt: skip


def psnr(files: list[bytes], host: Batch) -> float:
    values = []
    for file, picture in zip(files, host, strict=True):
        error = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(float) - picture
        values.append(10 * np.log10(255**2 / max((error**2).mean(), 1e-9)))
    return round(float(np.mean(values)), 3)


def pipeline(
    paths: list[Path], op: EncodeImage, batch: int, lanes: int, threads: int, seconds: float
) -> dict[str, Any]:
    """Images a second of JPEG files -> decode -> resize -> encode, files on the host."""
    load_operators()
    b = GraphBuilder()
    x, _ = b.add("readers.file", (), {"files": [str(p) for p in paths], "random_shuffle": True})
    (x,) = b.add("decoders.image", [x])
    (x,) = b.add("resize", [x], {"resize_shorter": 256})
    arguments = {"quality": op.quality, "subsampling": op.subsampling, "optimize": op.optimize}
    (x,) = b.add("encoders.image", [x], arguments)
    plan = compile_graph(b.build({"x": x}), Target("gpu"), 1)
    options = Options(num_threads=threads, gpu_queue=2, cpu_queue=3, lanes=lanes)
    requests = (Request(k * batch, batch) for k in count())
    with Sources(plan, batch) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        for _ in range(2 * lanes + 2):
            next(engine)
        start, done, size = time.perf_counter(), 0, 0
        while time.perf_counter() - start < seconds:
            iteration = next(engine)
            done += len(iteration.samples)
            size += iteration.outputs(plan)["x"].nbytes
        elapsed = time.perf_counter() - start
        return {"images_per_s": round(done / elapsed), "megabytes_per_s": round(size / elapsed / 1e6),
                "rejected": dict(engine.stats.rejected), "fallbacks": dict(engine.stats.fallbacks)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lanes", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--subsampling", default="4:2:0", choices=jpeg_encode_gpu.SAMPLING)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--pipeline", default="256:3,256:6,512:3,512:6,1024:3", help="batch:lanes,...")
    parser.add_argument("--gigabytes", type=float, default=4, help="of different files for the engine; 0: --copies")
    parser.add_argument("--copies", type=int, default=200)
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.folder.iterdir() if p.is_file())
    images = pictures(paths)
    settings = {"quality": arguments.quality, "subsampling": arguments.subsampling}
    op = EncodeImage(**settings)
    report: dict[str, Any] = {
        "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "pictures": len(images), "batch": arguments.batch, **settings,
    }  # fmt: skip
    print(report)

    def say(name: str, value: Any) -> None:
        report[name] = value
        print(f"{name}: {value}", flush=True)

    if not arguments.no_check:
        for optimize in (False, True):
            for subsampling in jpeg_encode_gpu.SAMPLING:
                for quality in (50, arguments.quality, 100):
                    other = EncodeImage(quality=quality, subsampling=subsampling, optimize=optimize)
                    say(
                        f"check {quality} {subsampling}" + " optimised" * optimize,
                        check(other, images, arguments.batch),
                    )
    batch = list(islice(cycle(images), arguments.batch))
    for optimize in (False, True):
        one = EncodeImage(**settings, optimize=optimize)
        say("milliseconds" + " optimised" * optimize, {k: round(v, 4) for k, v in phases(one, batch).items()})
    counts = [int(n) for n in arguments.lanes.split(",") if n]
    jobs = [Job(op, batch, Lane()) for _ in range(max(counts, default=0))]
    for n in counts:
        for files in (False, True):
            speed = throughput(jobs[:n], files, arguments.seconds)
            say(f"{'files' if files else 'resident'}, {n} lanes", round(speed))
    for n in counts:
        say(f"nvJPEG, {n} threads", nvjpeg_rate(jobs[0], n, arguments.seconds))
    if jobs:
        jobs[0].begin()
        found = jobs[0].end()
        assert found is not None
        say(
            "ours", {"psnr": psnr([f.tobytes() for f in found], jobs[0].host), "bytes_each": found.nbytes // len(found)}
        )
    del jobs
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.pipeline and arguments.gigabytes:
            files = data_files(arguments.folder, Path(scratch), arguments.gigabytes)
        else:
            files = paths * arguments.copies
        for setting in filter(None, arguments.pipeline.split(",")):
            size, lanes = map(int, setting.split(":"))
            result = pipeline(files, op, size, lanes, arguments.threads, 2 * arguments.seconds)
            say(f"pipeline, batch {size}, {lanes} lanes", result)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
