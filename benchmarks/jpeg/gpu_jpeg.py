"""The CUDA JPEG decoder on one GPU: correctness, time of each kernel, images per second.

    python benchmarks/jpeg/gpu_jpeg.py FOLDER [--batch 256] [--lanes 1,2,4,8,12] [--seconds 3] [--json out.json]
    python benchmarks/jpeg/gpu_jpeg.py FOLDER --photos 24 --batch 24 [--lanes 1,4]
    python benchmarks/jpeg/gpu_jpeg.py FOLDER --small 120 --mutate 10000 --lanes ""

Every file of FOLDER is compared with Pillow (libjpeg-turbo) first. Then two jobs are timed on random batches: `rgb`
(decode to interleaved RGB) and `train` (resize to 256 x 256 with antialias, crop 224, mirror, normalise to float32
CHW). `--mutate N` damages N copies of the files, `--bad OTHER` uses the damaged files of OTHER: files that are accepted
must have Pillow's pixels, and be accepted by both jobs. Ends with status 1 if a comparison fails. "resident": the files
are on the GPU already; "upload": they are copied from pinned memory each time; "host": the headers are also parsed and
the batch is planned each time. `--once JOB` runs one batch and ends, for profilers. `--photos N` uses N photos of 12
megapixels made of FOLDER's images instead (benchmarks/natural.py), `--small N` N thumbnails in every sampling
(benchmarks/jpeg/small_pictures.py). `--apart` gives each buffer of the decoder an allocation of its own, for
compute-sanitizer, which benchmarks/data/sanitize.py runs.

Each kernel's time is printed next to its floor: the bytes that it has to read and write once, at the rate at which this
GPU copies its own memory in the same run. docs/performance.md explains the difference, mostly instructions.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jpeg.small_pictures import mutated, small_pictures
from benchmarks.natural import encoded
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg.boundaries import Boundaries
from dali_run.ops.gpu import lane as device
from dali_run.ops.images.resampling import resample
from dali_run.ops.types import DALIInterpType

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
JOBS = ("rgb", "train")


class Batch:
    """Files packed into pinned memory, as a reader provides them."""

    def __init__(self, files: list[bytes]) -> None:
        self.sizes = np.array([len(f) for f in files], np.int64)
        aligned = -(-self.sizes // 16) * 16
        self.offsets = np.cumsum(aligned) - aligned
        self.bytes = int(aligned.sum())
        self.pinned = cupy.cuda.alloc_pinned_memory(self.bytes)
        self.host = np.frombuffer(self.pinned, np.uint8, self.bytes)
        for start, file in zip(self.offsets, files, strict=True):
            self.host[start : start + len(file)] = np.frombuffer(file, np.uint8)
        self.boundaries: Boundaries | None = None  # boundaries of these files that are known, or that a run adds
        self.mirror = np.random.default_rng(0).integers(0, 2, len(files)).astype(np.bool_)

    def plan(self, job: str) -> tuple[jpeg_gpu.DecodePlan, jpeg_gpu.Output]:
        headers, scans = jpeg_header.read_scans(self.host, self.offsets, self.sizes)
        index = np.arange(len(headers))
        known = None if self.boundaries is None else self.boundaries.counts(index, self.sizes)
        plan = jpeg_gpu.plan_decode(
            headers, self.offsets, self.sizes, scans=scans, stage=device.pinned_empty, known=known
        )
        if self.boundaries is not None and known is not None:
            self.boundaries.fill(index, known, plan.known)
        if job in ("rgb", "stored"):
            return plan, jpeg_gpu.pixel_output(plan, orient=job == "rgb")
        n = len(headers)
        swap = plan.orientation >= 5
        extent = np.stack([headers["height"], headers["width"]], 1)
        extent = np.where(swap[:, None], extent[:, ::-1], extent)
        interp = np.full(n, DALIInterpType.INTERP_LINEAR, np.int64)
        hi = np.maximum(extent, 1).astype(np.float32)
        sampling = resample.plan(np.zeros((n, 2), np.float32), hi, np.full((n, 2), 256), interp, interp, antialias=True)
        sampling = sampling.window(np.full((n, 2), 16), np.full((n, 2), 224))
        output = jpeg_gpu.resize_output(plan, sampling, mirror=self.mirror, mean=MEAN, std=STD)
        jpeg_gpu.limit(plan, output.windows)
        return plan, output


class Lane:
    """A stream with its decoder and its memory."""

    kind: type[jpeg_gpu.Decoder] = jpeg_gpu.Decoder

    def __init__(self, defines: str, batch: Batch, job: str) -> None:
        self.lane, self.batch, self.job = device.Lane(), batch, job
        self.stream = self.lane.stream
        self.decoder = self.kind(jpeg_gpu.LaneRuntime(self.lane, defines))
        self.plan, self.output = batch.plan(job)
        self.raw = cupy.empty(batch.bytes, np.uint8)
        dtype = jpeg_gpu.DTYPES[self.output.dtype]
        self.out = cupy.empty(self.output.elements, dtype)
        self.upload()
        self.words = self.enqueue()
        self.lane.synchronize()
        if batch.boundaries is not None:
            self._learn(batch.boundaries)
        self.done = cupy.cuda.Event(disable_timing=True)
        self.done.record(self.stream)

    def _learn(self, boundaries: Boundaries) -> None:
        found: list[Any] = []
        words = self.decoder.decode(self.raw.data.ptr, self.plan, self.output, self.out.data.ptr, found=found)
        self.lane.synchronize()
        boundaries.learn(np.arange(len(words)), words == 0, self.plan, found)
        self.plan, self.output = self.batch.plan(self.job)
        self.words = self.enqueue()
        self.lane.synchronize()

    def upload(self) -> None:
        self.lane.copy_in(self.lane.address(self.raw), self.batch.host)

    def enqueue(self, trace: Callable[[str], None] | None = None) -> NDArray[np.int32]:
        return self.decoder.decode(self.raw.data.ptr, self.plan, self.output, self.out.data.ptr, trace)

    def status(self) -> NDArray[np.int32]:
        self.lane.wait()
        return self.words.copy()

    def turn(self, mode: str) -> None:
        """Run one batch, once the lane's last one is complete."""
        self.done.synchronize()
        self.lane.synchronize()
        if mode == "host":
            self.plan, self.output = self.batch.plan(self.job)
        if mode != "resident":
            self.upload()
        self.words = self.enqueue()
        self.done.record(self.stream)


def check(defines: str, files: list[bytes], names: list[str], size: int, job: str) -> dict[str, Any]:
    """Compare every file with Pillow. ``job``: rgb, or stored, which ignores Exif (decoders differ for damaged
    Exif)."""
    exact = 0
    rejected: list[tuple[str, int]] = []
    wrong: list[tuple[str, int | str]] = []
    for begin in range(0, len(files), size):
        part = files[begin : begin + size]
        lane = Lane(defines, Batch(part), job)
        whole, status = lane.out.get(), lane.status()
        for i, file in enumerate(part):
            name = names[begin + i]
            if status[i]:
                rejected.append((name, int(status[i])))
                continue
            h, w = lane.output.shapes[i]
            start = lane.output.offsets[i]
            result = whole[start : start + 3 * h * w].reshape(h, w, 3)
            try:
                image = Image.open(io.BytesIO(file))
                expected = np.asarray((ImageOps.exif_transpose(image) if job == "rgb" else image).convert("RGB"))
            except OSError as e:
                wrong.append((name, str(e)))
                continue
            difference = int(np.abs(expected.astype(int) - result).max()) if expected.shape == result.shape else 999
            if difference:
                wrong.append((name, difference))
            else:
                exact += 1
    return {"files": len(files), "exact": exact, "rejected": rejected, "wrong": wrong}


def check_damaged(defines: str, files: list[bytes], what: str, size: int) -> bool:
    """Return whether all ``files`` that the decoder accepts have Pillow's pixels, and whether both jobs (see `check`)
    accept the same files."""
    result = check(defines, files, [f"{what} {i}" for i in range(len(files))], size, "stored")
    found = dict(result["rejected"])
    late = jpeg_gpu.OUT_OF_RANGE  # an error found only in the computed blocks, of which a resize may need fewer
    for begin in range(0, len(files), size):
        status = Lane(defines, Batch(files[begin : begin + size]), "train").status() & ~late
        for i, bits in enumerate(status.tolist()):
            name = f"{what} {begin + i}"
            # Not which bits: after its end a scan is what memory has left there, and another scan may have been first.
            if bool(bits) != bool(found.get(name, 0) & ~late):
                result["wrong"].append((name, f"status {bits} where it is resized, {found.get(name, 0)} else"))
    print(
        f"{what}: {result['exact']} accepted and exact, {len(result['rejected'])} rejected,",
        result["wrong"],
        flush=True,
    )
    return not result["wrong"]


def copy_rate(nbytes: int = 1 << 30, repeats: int = 10) -> float:
    """Return the bytes per second that a copy within the GPU's memory reads and writes."""
    source, target = cupy.zeros(nbytes, np.uint8), cupy.empty(nbytes, np.uint8)
    times = []
    for _ in range(repeats):
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        before.record()
        target.data.copy_from_device_async(source.data, nbytes)
        after.record()
        after.synchronize()
        times.append(cupy.cuda.get_elapsed_time(before, after))
    return 2 * nbytes / (1e-3 * float(np.median(times)))


def needed_bytes(lane: Lane) -> dict[str, int]:
    """Return the bytes that each kernel must at least read and write for the batch that the lane has decoded."""
    plan, output = lane.plan, lane.output
    images, part = plan.images, plan.images["component"]
    go = plan.status == 0
    scan = int((images["raw_size"] - images["scan"])[go].sum())
    # The record of each block has its number of coefficients; the batch record has the address of these records.
    record = lane.lane.copy_out(lane.decoder.address, jpeg_gpu.BATCH.itemsize)
    lane.lane.synchronize()
    at = int(record.view(jpeg_gpu.BATCH)[0]["blocks"])
    records = lane.lane.copy_out(at, 8 * plan.blocks).view(np.uint64)
    lane.lane.synchronize()
    coefficients = 4 * int((records >> np.uint64(32) & np.uint64(0xFFFF)).sum())
    computed = 4 * int((part["roi_groups"].astype(np.int64) * part["roi_rows"]).sum())  # blocks
    share = computed / max(plan.blocks, 1)
    planes, out = 64 * computed, output.elements * jpeg_gpu.DTYPES[output.dtype].itemsize
    return {
        "jpeg_tables": 4 * jpeg_gpu.TABLE_BYTES * int(go.sum()),
        "jpeg_unstuff": 2 * scan,
        "jpeg_states": scan,
        "jpeg_coefficients": scan + coefficients + 8 * plan.blocks,
        "jpeg_known_coefficients": scan + coefficients + 8 * plan.blocks,
        "jpeg_dc": 16 * plan.blocks,
        "jpeg_idct": 8 * computed + round(share * coefficients) + planes,
        "jpeg_pixels": planes + out,
        "jpeg_weights": 4 * output.weights,
        "jpeg_resize": planes + out + 4 * output.weights,
    }


def floors(lane: Lane, times: dict[str, float], rate: float) -> dict[str, dict[str, float]]:
    """Return for every kernel: its milliseconds, the bytes that it needs, the milliseconds for copying these at
    ``rate``, and the ratio. All kernels that resize count as one."""
    result = {}
    for name, nbytes in needed_bytes(lane).items():
        if name in times:
            beside = sum(v for k, v in times.items() if name == "jpeg_resize" and k.startswith("jpeg_strips"))
            floor, ms = 1e3 * nbytes / rate, times[name] + beside
            result[name] = {"ms": ms, "bytes": nbytes, "floor_ms": floor, "ratio": ms / max(floor, 1e-9)}
    return result


def phases(lane: Lane, repeats: int = 20) -> dict[str, float]:
    """Return the milliseconds of each kernel launch: the median of several runs, with one batch alone on the GPU. If a
    kernel is launched twice, the second launch is called ``kernel 2``."""
    runs: list[dict[str, float]] = []
    for _ in range(repeats):
        events: list[tuple[str, Any]] = []

        def mark(name: str, events: list[tuple[str, Any]] = events) -> None:
            event = cupy.cuda.Event()
            event.record(lane.stream)
            before = sum(known.split(" ")[0] == name for known, _ in events)
            events.append((f"{name} {before + 1}" if before else name, event))

        lane.stream.synchronize()
        mark("start")
        lane.enqueue(mark)
        lane.stream.synchronize()
        pairs = pairwise(events)
        runs.append({name: cupy.cuda.get_elapsed_time(before, event) for (_, before), (name, event) in pairs})
    result = {name: float(np.median([r[name] for r in runs])) for name in runs[0]}
    return result | {"total": sum(result.values())}


def throughput(lanes: list[Lane], mode: str, seconds: float) -> float:
    for lane in lanes:
        lane.turn(mode)
    for lane in lanes:
        lane.stream.synchronize()
    start, images = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for lane in lanes:
            lane.turn(mode)
            images += len(lane.plan)
    for lane in lanes:
        lane.stream.synchronize()
    return images / (time.perf_counter() - start)


def host_costs(lane: Lane) -> dict[str, float]:
    """Return the milliseconds that Python takes per batch."""

    def best(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(10):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            lane.stream.synchronize()
        return 1e3 * float(np.median(times))

    batch = lane.batch
    return {
        "headers": best(lambda: jpeg_header.read_scans(batch.host, batch.offsets, batch.sizes)),
        "plan": best(lambda: batch.plan(lane.job)),
        "enqueue": best(lane.enqueue),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lanes", default="1,2,4,8,12")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--photos", type=int, default=0, help="use so many large photos made of the files")
    parser.add_argument("--small", type=int, default=0, help="use so many small pictures made of the files")
    parser.add_argument("--once", choices=JOBS)
    parser.add_argument("--bad", type=Path, metavar="FOLDER", help="check the files of another folder, damaged ones")
    parser.add_argument("--apart", action="store_true", help="each buffer in an allocation of its own, not for timing")
    parser.add_argument("--mutate", type=int, default=0)
    parser.add_argument("--known", action="store_true", help="decode by boundaries that were learned before")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--define", action="append", default=[], help="compile-time size, e.g. SUBSEQUENCE_BITS=2048")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow warns about damaged Exif
    if arguments.apart:  # not from CuPy's pool, which rounds sizes up and returns parts of larger blocks
        from tests.kit.ops.apart_decoder import ApartDecoder

        cupy.cuda.set_allocator(None)
        Lane.kind = ApartDecoder
    for define in arguments.define:
        name, value = define.split("=")
        setattr(jpeg_gpu, name, int(value))
    jpeg_gpu.ENTRIES_EACH = jpeg_gpu.entries_each(jpeg_gpu.SUBSEQUENCE_BITS)
    jpeg_gpu.TABLE_BYTES = jpeg_gpu.table_bytes(jpeg_gpu.LOOKUP_BITS, jpeg_gpu.PAIR_BITS)
    paths = sorted(p for p in arguments.folder.iterdir() if p.is_file())
    if arguments.photos:
        files = [encoded("photo", paths[k % len(paths)], 0, k) for k in range(arguments.photos)]
        names = [f"photo {k}" for k in range(len(files))]
    else:
        files, names = [p.read_bytes() for p in paths], [p.name for p in paths]
    if arguments.small:
        files = small_pictures(arguments.folder, arguments.small)
        names = [f"small {i}" for i in range(len(files))]
    start = time.perf_counter()
    defines = "".join(f"#define {d.replace('=', ' ', 1)}\n" for d in arguments.define)
    jpeg_gpu.Decoder(jpeg_gpu.LaneRuntime(device.Lane(), defines))
    report: dict[str, Any] = {
        "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "files": len(files),
        "compile_s": round(time.perf_counter() - start, 2),
        "batch": arguments.batch,
        "defines": arguments.define,
    }
    rng = np.random.default_rng(0)
    copies = [files[i % len(files)] for i in range(max(len(files), arguments.batch))]

    def draw() -> Batch:
        batch = Batch([copies[i] for i in rng.permutation(len(copies))[: arguments.batch]])
        batch.boundaries = Boundaries() if arguments.known else None
        return batch

    if arguments.once:
        print("status", np.unique(Lane(defines, draw(), arguments.once).status(), return_counts=True))
        return
    print(report)
    right = True
    if not arguments.no_check:
        report["check"] = found = check(defines, files, names, arguments.batch, "rgb")
        print("check:", {k: v if isinstance(v, int) else (len(v), v[:5]) for k, v in found.items()}, flush=True)
        right = not found["wrong"]
    if arguments.bad:
        bad = [p.read_bytes() for p in sorted(arguments.bad.iterdir()) if p.is_file()]
        right &= check_damaged(defines, bad, "bad file", arguments.batch)
    if arguments.mutate:
        right &= check_damaged(defines, mutated(files, arguments.mutate), "mutation", arguments.batch)
    if not right:
        sys.exit(1)
    counts = [int(n) for n in arguments.lanes.split(",") if n]
    if not counts:
        return
    rate = copy_rate()
    report["copy_gb_per_s"] = round(rate / 1e9)
    print(f"copying within the GPU's memory: {rate / 1e9:,.0f} GB/s read and written")
    for job in JOBS:
        batch = draw()
        lane = Lane(defines, batch, job)
        times = phases(lane)
        report[job] = result = {"phases_ms": times, "floors": floors(lane, times, rate)}
        print(f"{job}: " + ", ".join(f"{k} {v:.3f}" for k, v in times.items()))
        for name, row in result["floors"].items():
            print(f"  {name:18} {row['ms']:8.3f} ms, {row['bytes'] / 1e6:9.1f} MB: floor {row['floor_ms']:7.3f} ms, "
                  f"{row['ratio']:6.1f} times it", flush=True)  # fmt: skip
        del lane
        lanes = [Lane(defines, draw(), job) for _ in range(max(counts))]
        result["host_ms"] = host_costs(lanes[0])
        result["workspace_mb"] = round(lanes[0].decoder.workspace_bytes / 1e6)
        print(f"{job}: host {result['host_ms']}, workspace {result['workspace_mb']} MB a lane")
        result["status"] = int(sum((lane.status() != 0).sum() for lane in lanes))
        result["images_per_s"] = {}
        for mode in ("resident", "upload", "host"):
            for n in counts:
                speed = throughput(lanes[:n], mode, arguments.seconds)
                result["images_per_s"][f"{mode}, {n} lanes"] = round(speed)
                print(f"{job}: {mode}, {n} lanes: {speed:,.0f} images/s", flush=True)
        del lanes
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
