"""Records a second into shards, no decoding: this package's writers and those of webdataset, tfrecord and lmdb, in one
interleaved run, with the machine's limits beside them.

    python benchmarks/data/writers.py [--folder /dev/shm] [--records 12800] [--rounds 5] [--batch 256] [--json out.json]
    python benchmarks/data/writers.py --batch 980 --low 22000 --high 30000 --only ours   # as a GPU hands them over

The records are JPEG-like bytes of --low to --high bytes that are in memory already, each with a label and a file's
name for a key. Ours also computes CRC-32C and SHA-256 of every file, writes indexes, fsyncs, and keeps a journal; the
packages do not. The limits: `write` of the same bytes to one file, and SHA-256 of them by one thread.

What the thread that delivers the batches costs is told apart: with a GPU it has to keep up alone, while the others
have cores of their own. It is the least of all rounds, for this is work that takes its time and no more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np

from dali_run.ops.batch import I64, Batch, Origin, Samples
from dali_run.pipelines.bench.machine import facts
from dali_run.writers.base import FieldConfig
from dali_run.writers.bytes import background
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output

SHARD = 5000


class Names:
    """Keys as readers.file gives them."""

    def __init__(self, n: int) -> None:
        self.names = [f"n{i % 1000:08d}/n{i % 1000:08d}_{i:08d}.JPEG" for i in range(n)]

    def origin(self, index: int) -> Origin:
        return Origin(self.names[index], "")

    def keys(self, index: I64) -> list[bytes]:
        return [self.names[i].encode() for i in index.tolist()]


@dataclass
class Data:
    """The records: one batch of bytes, written over and over under other names."""

    records: int
    batch: int
    data: np.ndarray
    offsets: I64
    sizes: I64
    names: Names
    others: list[np.ndarray]
    """Copies of ``data``, that batches in turn are not all in the processor's caches."""

    def values(self) -> list[bytes]:
        return [self.data[a : a + n].tobytes() for a, n in zip(self.offsets, self.sizes, strict=True)]


def make_data(records: int, batch: int, low: int, high: int) -> Data:
    rng = np.random.default_rng(0)
    sizes = rng.integers(low, high, batch)
    ends = np.cumsum(sizes)
    data = rng.integers(0, 256, int(ends[-1]), np.uint8)
    for start in ends - sizes:
        data[start : start + 3] = (0xFF, 0xD8, 0xFF)
    others = [data.copy() for _ in range(3)]
    return Data(records // batch * batch, batch, data, ends - sizes, sizes, Names(records), others)


def ours(data: Data, folder: Path, writer: str) -> float:
    """Write; processor seconds of this thread, those of making the batches left out."""
    fields = {"jpg": FieldConfig("keep"), "cls": FieldConfig()}
    config = WriteConfig(folder / "out", "train", writer, {}, samples=SHARD, fields=fields)
    shapes = data.sizes.astype(np.int32).reshape(-1, 1)
    slots = np.arange(data.batch, dtype=np.int32)
    buffers, used = [data.data, *data.others], 0.0
    with Output.open(config, {}, total=data.records) as out:
        for start in range(0, data.records, data.batch):
            at = np.arange(start, start + data.batch)
            samples = Samples(slots, at, np.zeros(data.batch, np.int64), at, data.names)
            labels = Batch.from_dense((at % 1000).astype(np.int32).reshape(-1, 1), "", samples)
            images = Batch(buffers[start // data.batch % len(buffers)], data.offsets, shapes, "", samples)
            began = time.thread_time()
            out.add(start, start + data.batch, samples, {"jpg": images, "cls": labels})
            used += time.thread_time() - began
        began = time.thread_time()
        out.finish({})
        return used + time.thread_time() - began


def webdataset(data: Data, folder: Path) -> None:
    import webdataset as wds

    values = data.values()
    with wds.ShardWriter(str(folder / "train-%05d.tar"), maxcount=SHARD, maxsize=1e12, verbose=0) as writer:
        for i in range(data.records):
            key = data.names.names[i].rpartition(".")[0]
            writer.write({"__key__": key, "jpg": values[i % data.batch], "cls": i % 1000})


def tfrecord(data: Data, folder: Path) -> None:
    from tfrecord.writer import TFRecordWriter

    values = data.values()
    writer = None
    for i in range(data.records):
        if i % SHARD == 0:
            if writer is not None:
                writer.close()
            writer = TFRecordWriter(str(folder / f"train-{i // SHARD:05d}.tfrecord"))
        writer.write({"jpg": (values[i % data.batch], "byte"), "cls": (i % 1000, "int")})
    writer.close()


def lmdb_package(data: Data, folder: Path) -> None:
    values = data.values()
    size = int(data.sizes.sum()) * (data.records // data.batch) * 2
    for first in range(0, data.records, SHARD):
        with lmdb.open(str(folder / f"train-{first}"), map_size=size, sync=False) as env, env.begin(write=True) as txn:
            for i in range(first, min(first + SHARD, data.records)):
                txn.put(b"%010d" % i, values[i % data.batch], append=True)


def raw_write(data: Data, folder: Path) -> None:
    with open(folder / "raw", "wb", buffering=0) as file:
        for _ in range(data.records // data.batch):
            file.write(data.data)


def sha256(data: Data, folder: Path) -> None:  # noqa: ARG001
    digest = hashlib.sha256()
    for _ in range(data.records // data.batch):
        digest.update(data.data)


PEERS = {"tfrecord": "tfrecord package", "webdataset": "webdataset package", "lmdb": "lmdb package (bytes only)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--records", type=int, default=12800)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--low", type=int, default=15_000)
    parser.add_argument("--high", type=int, default=30_000)
    parser.add_argument("--only", choices=("all", "ours"), default="all")
    parser.add_argument("--files", type=int, default=background._WRITERS, help="how many ours writes at a time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    background._WRITERS = options.files
    data = make_data(options.records, options.batch, options.low, options.high)
    peers: dict[str, Callable[[Data, Path], None]] = {
        "tfrecord package": tfrecord,
        "webdataset package": webdataset,
        "lmdb package (bytes only)": lmdb_package,
    }
    runs: dict[str, Callable[[Data, Path], float | None]] = {
        "limit: write()": raw_write,
        "limit: SHA-256, one thread": sha256,
        **(peers if options.only == "all" else {}),
        **{f"writer {name}": lambda d, f, name=name: ours(d, f, name)
           for name in ("tfrecord", "webdataset", "lmdb", "recordio")},
    }  # fmt: skip
    rates: dict[str, list[float]] = {label: [] for label in runs}
    processor: dict[str, list[float]] = {label: [] for label in runs}
    caller: dict[str, list[float]] = {label: [] for label in runs}
    for round_ in range(options.rounds + 1):
        for label, run in runs.items():
            with tempfile.TemporaryDirectory(dir=options.folder) as name:
                began, used = time.perf_counter(), time.process_time()
                own = run(data, Path(name))
                seconds = time.perf_counter() - began
                shutil.rmtree(name)
                os.makedirs(name)
            if round_:  # the first compiles
                rates[label].append(data.records / seconds)
                processor[label].append((time.process_time() - used) / data.records * 1e6)
                if own is not None:
                    caller[label].append(own / data.records * 1e6)
    size = float(data.sizes.mean())
    rows = []
    for label in runs:
        rate = statistics.median(rates[label])
        peer = PEERS.get(label.removeprefix("writer ")) if label.startswith("writer") else None
        peer = peer if peer in rates else None
        ratios = [a / b for a, b in zip(rates[label], rates[peer], strict=True)] if peer else []
        of_write = [a / b for a, b in zip(rates[label], rates["limit: write()"], strict=True)]
        rows.append({
            "what": label, "records_per_second": round(rate), "gb_per_second": round(rate * size / 1e9, 3),
            "lowest": round(min(rates[label])), "highest": round(max(rates[label])), "peer": peer,
            "cpu_us_per_record": round(statistics.median(processor[label]), 2),
            "caller_us_per_record": round(min(caller[label]), 2) if caller[label] else None,
            "times_the_peer": round(statistics.median(ratios), 2) if ratios else None,
            "of_write": round(statistics.median(of_write), 2),
        })  # fmt: skip
    print(f"{data.records} records of {size:.0f} bytes, shards of {SHARD}, batches of {options.batch}, medians of "
          f"{options.rounds} rounds (ratios: of the rounds' ratios); load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print(f"{'':28} {'records/s':>10} {'GB/s':>6} {'lowest':>8} {'highest':>8}  of write()  us all  us caller  "
          "against its package")  # fmt: skip
    for r in rows:
        times = f"{r['times_the_peer']:.1f}x" if r["peer"] else ""
        print(f"{r['what']:28} {r['records_per_second']:10d} {r['gb_per_second']:6.2f} {r['lowest']:8d} "
              f"{r['highest']:8d} {r['of_write']:10.2f} {r['cpu_us_per_record']:8.1f} "
              f"{r['caller_us_per_record'] or float('nan'):10.2f}  {times}")  # fmt: skip
    if options.json:
        told = {k: v for k, v in vars(options).items() if k not in ("folder", "json")}
        options.json.write_text(json.dumps({
            "what": "writers, records without decode", "machine": facts(), "load": os.getloadavg(), "options": told,
            "record_bytes": size, "rows": rows,
        }, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
