"""The host's work for each batch of a GPU job, and how many images a second that allows, without a GPU.

    python benchmarks/data/host_planning.py FOLDER [--jobs val,train,decode,read] [--batches 64,256,512,1024]
        [--threads 2,8]
        [--sources files,tfrecord] [--seconds 2] [--json out.json]

The graphs of configs/imagenet_val.yaml and imagenet_train.yaml (and decoding, or reading alone) run through the engine
on a stand-in for CuPy whose copies and launches do nothing. CPU time of the launching thread, median over batches, in
ms:

    headers   walking the JPEG headers
    planning  windows, sizes, filters, tables: what the kernels are told
    uploads   packing and enqueueing copies      (the driver's own part is missing: some us a call)
    launches  enqueueing kernels                 (likewise)
    engine    the rest: contexts, batches, statistics

`ceiling` is what one launching thread could launch if it had a core and the GIL for itself: the median of the batches,
and `quiet`, the fastest tenth of them, for machines with other work. `reading` is the CPU time of all other threads per
batch; `images/s` is what came through on this machine's cores, all threads together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files
from tests.kit.fake_cupy import faked

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
UNCHECKED = "tfrecord without checksums"
PHASES = ("headers", "planning", "uploads", "launches", "engine")


class Clock:
    """CPU time of the launching thread by phase; a phase inside another counts for itself alone."""

    def __init__(self) -> None:
        self.batches: list[dict[str, float]] = []
        self.spent = dict.fromkeys(PHASES, 0.0)
        self._open: list[float] = []
        self.thread = "?"
        """The beginning of the launching thread's name."""

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Count calls of ``owner.name`` as ``phase``."""
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if phase != "engine" and not (self._open and threading.current_thread().name.startswith(self.thread)):
                return inner(*args, **kwargs)
            began = time.thread_time()
            self._open.append(0.0)
            try:
                return inner(*args, **kwargs)
            finally:
                taken = time.thread_time() - began
                self.spent[phase] += taken - self._open.pop()
                if self._open:
                    self._open[-1] += taken
                else:
                    self.batches.append(self.spent)
                    self.spent = dict.fromkeys(PHASES, 0.0)

        setattr(owner, name, timed)


def build(job: str, source: str, root: str, gpus: tuple[int, ...] = (0,)) -> Any:
    """The plan of a job over the data set at ``root``, for ``gpus``."""
    from dali_run.pipelines.compile.place import Target
    from dali_run.pipelines.compile.plan import compile_graph
    from dali_run.pipelines.graph.builder import GraphBuilder
    from dali_run.pipelines.plugins import load_operators

    load_operators()
    b = GraphBuilder()
    records = reader(b, source, root)
    x = records["x"]
    if job == "train":
        (x,) = b.add("decoders.image_random_crop", [x])
        (x,) = b.add("resize", [x], {"size": [224, 224], "interp_type": "TRIANGULAR"})
        (mirror,) = b.add("random.coin_flip")
        arguments = {"mean": MEAN, "std": STD, "mirror": mirror, "dtype": "FLOAT16"}
        (x,) = b.add("crop_mirror_normalize", [x], arguments)
    elif job == "read":
        (x,) = b.add("cast", [x], {"dtype": "INT8"}, device="gpu")
    else:
        (x,) = b.add("decoders.image", [x])
        if job == "val":
            (x,) = b.add("resize", [x], {"resize_shorter": 256, "interp_type": "TRIANGULAR"})
            (x,) = b.add("crop_mirror_normalize", [x], {"mean": MEAN, "std": STD, "crop": [224, 224]})
    return compile_graph(b.build(records | {"x": x}), Target("gpu", gpus), 1)


def reader(b: Any, source: str, root: str) -> dict[str, Any]:
    """A shuffled reader of the data set at ``root`` in a GraphBuilder: x, the files, and label where there are any."""
    shuffle = {"random_shuffle": True, "initial_fill": 4096}
    if source == "files":
        x, label = b.add("readers.file", (), {"file_root": root, **shuffle})
    elif source in ("tfrecord", UNCHECKED):
        features = {"image": "string", "label": "int64"}
        path = sorted(map(str, Path(root).glob("*.tfrecord")))
        arguments = {"path": path, "features": features, "check_crc": source != UNCHECKED, **shuffle}
        x, label = b.add("readers.tfrecord", (), arguments)
    elif source == "tar":
        paths = sorted(map(str, Path(root).glob("*.tar")))
        x, label = b.add("readers.webdataset", (), {"paths": paths, "ext": ["jpg", "cls"], **shuffle})
    elif source == "lmdb":
        (x,) = b.add("readers.lmdb", (), {"path": f"{root}/images.lmdb", **shuffle})
    else:
        paths = {"path": [f"{root}/images.rec"], "index_path": [f"{root}/images.idx"]}
        x, label = b.add("readers.mxnet", (), {**paths, **shuffle})
    return {"x": x} if source == "lmdb" else {"x": x, "label": label}


def measure(
    plan: Any, batch: int, threads: int, lanes: int, seconds: float, upload: Any = "auto"
) -> dict[str, float]:  # fmt: skip
    """Milliseconds a batch of ``plan``, by phase."""
    from dali_run.ops.codecs import decoders
    from dali_run.ops.codecs import headers as host_decode
    from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
    from dali_run.ops.fused import decode_resize as fused_decode
    from dali_run.ops.gpu import lane as device
    from dali_run.pipelines.engine.device.part import DevicePart
    from dali_run.pipelines.engine.engine import Engine, Options, Request
    from dali_run.pipelines.engine.inputs import EndlessFeed, Sources

    clock = Clock()
    originals: list[tuple[Any, str, Any]] = []

    launch = DevicePart._launch_whole

    def timed(self: DevicePart, *args: Any) -> Any:
        clock.thread = threading.current_thread().name
        return launch(self, *args)

    def wrap(owner: Any, phase: str, *names: str) -> None:
        for name in names:
            originals.append((owner, name, owner.__dict__[name]))
            clock.wrap(owner, name, phase)

    wrap(fused_decode.DecodeResize, "planning", "mixed")
    wrap(decoders.ImageDecoder, "planning", "mixed")
    wrap(host_decode, "headers", "read_headers")
    wrap(device.Lane, "uploads", "to_device", "upload", "copy_in", "copy_out")
    wrap(jpeg_gpu.LaneWork, "uploads", "upload", "download", "zero")
    wrap(device.Lane, "launches", "launch", "launch_text")
    wrap(jpeg_gpu.LaneWork, "launches", "launch", "submit")
    originals.append((DevicePart, "_launch_whole", launch))
    DevicePart._launch_whole = timed  # type: ignore[method-assign]
    clock.wrap(DevicePart, "_launch_whole", "engine")
    options = Options(num_threads=threads, gpu_queue=2, cpu_queue=3, lanes=lanes, to_host=False, upload=upload)
    requests = (Request(k * batch, batch) for k in itertools.count())
    try:
        with Sources(plan, batch) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
            for _ in range(3 * lanes):
                next(engine)
            clock.batches.clear()
            began, cpu, images = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - began < seconds:
                images += len(next(engine).samples)
            taken, cpu = time.perf_counter() - began, time.process_time() - cpu
            batches = list(clock.batches)
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
    result = {k: 1e3 * statistics.median(b[k] for b in batches) for k in PHASES}
    totals = sorted(sum(b.values()) for b in batches)
    launching, quiet = statistics.median(totals), totals[len(totals) // 10]
    others = (cpu - sum(sum(b.values()) for b in batches)) / len(batches)
    result |= {"launching": 1e3 * launching, "reading": 1e3 * others}
    return result | {"ceiling": batch / launching, "quiet": batch / quiet, "images_per_second": images / taken}


def data_set(source: str, files: list[Path], copies: int, root: Path) -> None:
    """The files ``copies`` times over, as ``source``."""
    if source == "files":
        for i, file in enumerate(files):
            folder = root / f"{i % 10:03d}"
            folder.mkdir(exist_ok=True)
            for k in range(copies):
                target = folder / f"{k}_{file.stem}.jpg"
                if copies > 1 or not _linked(file, target):
                    shutil.copyfile(file, target)
        return
    PACKERS[source]((f.read_bytes() for _ in range(copies) for f in files), root)


def _linked(file: Path, target: Path) -> bool:
    """``target`` is the file itself by another name, where its file system allows."""
    try:
        target.hardlink_to(file)
    except OSError:
        return False
    return True


def _tfrecord(contents: Iterable[bytes], root: Path) -> None:
    import numpy as np

    from dali_run.ops.storage.crc32c_cpu import masked_crc32c

    def varint(n: int) -> bytes:
        out = bytearray()
        while n >= 128:
            out.append(n & 127 | 128)
            n >>= 7
        return bytes([*out, n])

    def field(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(body)) + body

    with (root / "images.tfrecord").open("wb") as out:
        for i, content in enumerate(contents):
            features = {b"image": field(1, field(1, content)), b"label": field(3, field(1, varint(i % 10)))}
            record = field(1, b"".join(field(1, field(1, k) + field(2, v)) for k, v in features.items()))
            length = struct.pack("<Q", len(record))
            for part in (length, record):
                out.write(part + struct.pack("<I", masked_crc32c(np.frombuffer(part, np.uint8), 0, len(part))))


def _tar(contents: Iterable[bytes], root: Path) -> None:
    import io
    import tarfile

    with tarfile.open(root / "images.tar", "w") as tar:
        for i, content in enumerate(contents):
            for name, body in ((f"{i:06d}.jpg", content), (f"{i:06d}.cls", str(i % 10).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))


def _lmdb(contents: Iterable[bytes], root: Path) -> None:
    import lmdb

    with lmdb.open(str(root / "images.lmdb"), map_size=1 << 34) as env, env.begin(write=True) as transaction:
        for i, content in enumerate(contents):
            transaction.put(f"{i:08d}".encode(), content)


def _recordio(contents: Iterable[bytes], root: Path) -> None:
    with (root / "images.rec").open("wb") as out, (root / "images.idx").open("w") as index:
        for i, content in enumerate(contents):
            index.write(f"{i}\t{out.tell()}\n")
            record = struct.pack("<IfQQ", 0, float(i % 10), i, 0) + content
            out.write(struct.pack("<II", 0xCED7230A, len(record)) + record + bytes(-len(record) % 4))


PACKERS: dict[str, Callable[[Iterable[bytes], Path], None]] = {
    "tfrecord": _tfrecord, "tar": _tar, "lmdb": _lmdb, "recordio": _recordio,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default="val,train", help="of val, train, decode, read")
    parser.add_argument("--batches", default="64,256,512,1024")
    parser.add_argument("--sources", default="files", help=f"of files, {', '.join(PACKERS)}")
    parser.add_argument("--upload", choices=("copy", "registered"), default="registered", help="of containers")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--gigabytes", type=float, default=0, help="of different files, instead of copies of FOLDER's")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--lanes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    columns = (*PHASES, "launching", "reading")
    print(f"{'':30}" + "".join(f"{c:>10}" for c in columns) + f"{'ceiling':>12}{'quiet':>12}{'images/s':>12}")
    with tempfile.TemporaryDirectory() as scratch, faked():
        files = data_files(args.folder, Path(scratch, "different"), args.gigabytes)
        for source in args.sources.split(","):
            root = Path(scratch, source)
            root.mkdir()
            data_set(source, files, 1 if args.gigabytes else args.copies, root)
            for job, batch, threads in itertools.product(
                args.jobs.split(","), map(int, args.batches.split(",")), map(int, args.threads.split(","))
            ):
                plan = build(job, source, str(root))
                found = measure(plan, batch, threads, args.lanes, args.seconds, args.upload)
                what = f"{job} {source}" + (f", {threads} threads" if "," in args.threads else "")
                results[f"{what} {batch}"] = found
                row = "".join(f"{found[c]:10.3f}" for c in columns)
                rates = "".join(f"{found[c]:12,.0f}" for c in ("ceiling", "quiet", "images_per_second"))
                print(f"{what:24}{batch:6}{row}{rates}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
