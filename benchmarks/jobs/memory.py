"""Does memory stay flat? Jobs over files, TFRecord, LMDB and tar, and a Python iterator, each looping in a process of
its own while its memory, open files and threads are sampled.

    python benchmarks/jobs/memory.py [--seconds 150] [--kinds files,tfrecord,lmdb,tar,python] [--json out.json]

The first third warms up. Of the rest, the median of the second half may exceed that of the first by 2 %, and no more
files and threads may be there all the time. Memory is what belongs to the process alone (RssAnon): mapped files are
the page cache's. Jobs decode, resize, encode and write shards; each is done again and again, from reading the spec to
the manifest. Ends with 1 where something grew.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("files", "tfrecord", "lmdb", "tar", "python")
BOUND = 0.02
SPEC = """
version: 1
name: memory
pipeline: {batch_size: 32, num_threads: 2, device: cpu, seed: 1}
graph:
  - {op: %(reader)s, out: %(out)s}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, resize_shorter: 96, out: images}
outputs: {jpg: images}
write:
  writer: %(writer)s
  path: %(path)s
  shard: {samples: 700}
  fields: {jpg: {encode: jpeg, quality: 85}}
on_error: {policy: skip, max_errors: 50%%}
"""
READERS = {
    "files": ("readers.file, file_root: %s/files", "[jpegs, labels]", "webdataset"),
    "tfrecord": ("readers.tfrecord, path: %s/data.tfrecord, features: {jpg: string}", "jpegs", "lmdb"),
    "lmdb": ("readers.lmdb, path: %s/lmdb", "jpegs", "tfrecord"),
    "tar": ("readers.webdataset, paths: %s/data.tar, ext: [jpg]", "jpegs", "files"),
}


def make_data(folder: Path, records: int) -> None:
    """Pictures of many sizes, every hundredth of them broken, in all containers."""
    import tarfile

    import lmdb
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tfrecord.writer import TFRecordWriter
    rng = np.random.default_rng(0)
    records_writer = TFRecordWriter(str(folder / "data.tfrecord"))
    with (
        lmdb.open(str(folder / "lmdb"), map_size=1 << 32) as env,
        env.begin(write=True) as txn,
        tarfile.open(folder / "data.tar", "w") as tar,
    ):
        for i in range(records):
            height, width = rng.integers(100, 260, 2)
            texture = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(texture).resize((int(width), int(height))).save(buffer, "JPEG")
            data = buffer.getvalue()[: 300 if i % 100 == 7 else None]
            records_writer.write({"jpg": (data, "byte")})
            txn.put(b"%06d" % i, data)
            info = tarfile.TarInfo(f"{i:06d}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            path = folder / "files" / f"{i % 10}" / f"{i:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    records_writer.close()


def usage() -> tuple[int, int, int]:
    """Bytes of the process's own memory, open files, threads."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["RssAnon"].split()[0]), len(os.listdir("/proc/self/fd")), int(status["Threads"])


def loop(kind: str, data: Path, seconds: float) -> dict[str, Any]:
    """Loop for so long, and what was sampled."""
    samples: list[tuple[float, int, int, int]] = []
    done = threading.Event()
    began = time.perf_counter()

    def sample() -> None:
        while not done.wait(0.2):
            samples.append((time.perf_counter() - began, *usage()))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        rounds, records = (iterate if kind == "python" else convert)(kind, data, began + seconds)
    finally:
        done.set()
        sampler.join()
    return {"rounds": rounds, "records": records, "samples": samples}


def convert(kind: str, data: Path, until: float) -> tuple[int, int]:
    from dali_run.pipelines.job.run import run_job

    reader, out, writer = READERS[kind]
    rounds = records = 0
    with tempfile.TemporaryDirectory() as scratch:
        spec = Path(scratch, "spec.yaml")
        values = {"reader": reader % data, "out": out, "writer": writer, "path": f"{scratch}/out"}
        spec.write_text(SPEC % values)
        while time.perf_counter() < until:
            result = run_job(spec, fresh=True)
            assert result.exit_code == 3, result.message
            rounds += 1
            records += result.report["samples"]["read"]
    return rounds, records


def iterate(kind: str, data: Path, until: float) -> tuple[int, int]:  # noqa: ARG001
    from dali_run import fn, pipeline_def, types

    @pipeline_def(batch_size=32, num_threads=2, device_id=None, seed=1, on_error="skip")
    def training() -> Any:
        jpegs, labels = fn.readers.file(file_root=str(data / "files"), random_shuffle=True, name="Reader")
        images = fn.decoders.image_random_crop(jpegs, output_type=types.RGB)
        images = fn.resize(images, size=[96, 96])
        return fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip()), labels

    pipe = training()
    pipe.build()
    size, records = pipe.epoch_size("Reader"), 0
    while time.perf_counter() < until:
        images, labels = pipe.run()
        np.asarray(images.as_tensor())
        records += len(labels)
    return records // size, records


def judge(told: dict[str, Any], seconds: float) -> dict[str, Any]:
    samples = [s for s in told["samples"] if s[0] > seconds / 3]
    halves = [s for s in samples if s[0] <= seconds * 2 / 3], [s for s in samples if s[0] > seconds * 2 / 3]
    memory = [statistics.median(s[1] for s in half) for half in halves]
    files, threads = ([min(s[k] for s in half) for half in halves] for k in (2, 3))  # what is open all the time
    growth = memory[1] / memory[0] - 1
    return {
        "rounds": told["rounds"], "records": told["records"], "megabytes": [round(m / 2**20, 1) for m in memory],
        "growth_percent": round(100 * growth, 2), "open_files": files, "threads": threads,
        "flat": growth <= BOUND and files[1] <= files[0] and threads[1] <= threads[0],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, data, seconds = options.child
        print(json.dumps(loop(kind, Path(data), float(seconds))))
        return 0
    from dali_run.pipelines.bench.machine import facts

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as data:
        make_data(Path(data), options.records)
        print("| loop | rounds | records | MiB, first and second half | growth | open files | threads |\n"
              "|---|---:|---:|---|---:|---|---|", flush=True)  # fmt: skip
        for kind in options.kinds.split(","):
            command = [sys.executable, __file__, "--child", kind, data, str(options.seconds)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            r = results[kind] = judge(json.loads(done.stdout.splitlines()[-1]), options.seconds)
            print(f"| {kind} | {r['rounds']} | {r['records']} | {r['megabytes'][0]}, {r['megabytes'][1]} | "
                  f"{r['growth_percent']} % | {r['open_files']} | {r['threads']} |", flush=True)  # fmt: skip
    if options.json:
        told = {"what": "memory of long loops", "machine": facts(), "seconds_each": options.seconds, "loops": results}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(r["flat"] for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
