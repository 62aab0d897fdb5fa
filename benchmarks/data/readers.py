"""Records a second without decoding: this package's readers, `tfrecord` and `webdataset`, interleaved in one run.

    python benchmarks/data/readers.py [--gigabytes 4] [--images FOLDER [--records 4000]] [--rounds 5] [--batch 256]
        [--threads 2] [--json F]

Without FOLDER, pictures are drawn, and gigabytes of different records made of them.

Every reader delivers the bytes of each image and its label. Ours gives whole batches: views of the mapped file, as the
engine uses them on a CPU, or copies in one buffer, as on the way to a GPU. The packages copy each record into a bytes
object; `tfrecord` looks at no checksums, and is also shown with the `crc32c` package taking that of each image. The
limits are what the machine does with the same bytes: reading the mapped file, taking CRC-32C of it, copying it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import GIGABYTES, images_of
from dali_run.ops.context import Context
from dali_run.pipelines.bench.machine import facts
from dali_run.pipelines.engine.threads.workers import Pool
from dali_run.readers.base import Reader
from dali_run.readers.file import File
from dali_run.readers.lmdb import LMDB
from dali_run.readers.tfrecord import TFRecord
from dali_run.readers.webdataset import WebDataset

TFRECORD, WEBDATASET = "tfrecord package", "webdataset package"


def make_data(folder: Path, images: list[bytes], records: int) -> None:
    """The same records as TFRecord, LMDB (raw), tar and files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(str(folder / "data.tfrecord"))
    (folder / "files" / "a").mkdir(parents=True)
    with (
        lmdb.open(str(folder / "lmdb"), map_size=1 << 34) as env,
        env.begin(write=True) as txn,
        tarfile.open(folder / "data.tar", "w") as tar,
    ):
        for i in range(records):
            image = images[i % len(images)]
            writer.write({"image": (image, "byte"), "label": (i % 1000, "int")})
            txn.put(b"%08d" % i, image)
            for extension, data in (("jpg", image), ("cls", b"%d" % (i % 1000))):
                info = tarfile.TarInfo(f"{i:08d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            (folder / "files" / "a" / f"{i:08d}.jpg").write_bytes(image)
    writer.close()


def ours(reader: Reader, batch: int, pool: Pool, copied: bool = False) -> Callable[[], int]:
    reader.check()
    source = reader.open()
    order = reader.order(len(source))
    buffer = np.empty(1 << 28, np.uint8)

    def epoch() -> int:
        total = 0
        for start in range(0, len(source), batch):
            samples = order.samples(start, min(batch, len(source) - start), source)
            context = Context(op=reader, stage="cpu", samples=samples, source=source, pool=pool)
            if copied:
                context.allocate_staging = lambda nbytes: buffer[:nbytes]
            batches = reader.cpu(context)
            assert not context.rejects
            total += len(batches[0])
        return total

    return epoch


def tfrecord_loader(folder: Path, checked: bool = False) -> Callable[[], int]:
    from crc32c import crc32c
    from tfrecord.reader import tfrecord_loader as loader

    def epoch() -> int:
        records = loader(str(folder / "data.tfrecord"), None, {"image": "byte", "label": "int"})
        if checked:
            return sum(1 for record in records if crc32c(record["image"]) >= 0)
        return sum(1 for _ in records)

    return epoch


def webdataset(folder: Path) -> Callable[[], int]:
    import webdataset as wds

    def epoch() -> int:
        data: Any = wds.WebDataset(str(folder / "data.tar"), shardshuffle=False).to_tuple("jpg", "cls")
        return sum(1 for _ in data)

    return epoch


def lmdb_cursor(folder: Path) -> Callable[[], int]:
    def epoch() -> int:
        with lmdb.open(str(folder / "lmdb"), readonly=True, lock=False) as env, env.begin() as txn:
            return sum(1 for _, value in txn.cursor() if len(value))

    return epoch


def limits(folder: Path, threads: int) -> dict[str, Callable[[], int]]:
    """The bytes of the TFRecord file, as many as records are asked for, by ``threads`` threads."""
    from dali_run.ops.storage.crc32c_cpu import crc32c_each
    from dali_run.readers.fetch.extents_cpu import copy_extents

    source = TFRecord(path=str(folder / "data.tfrecord")).open()
    data, offsets, sizes = source._mapped.data, source._offsets, source._sizes
    out, pool = np.empty(1 << 28, np.uint8), ThreadPoolExecutor(threads)
    cuts = np.linspace(0, len(offsets), threads + 1).astype(int).tolist()
    parts = [(offsets[a:b], sizes[a:b]) for a, b in pairwise(cuts)]

    def read(part: tuple[Any, Any]) -> None:
        low, high = int(part[0][0]) // 8, int(part[0][-1] + part[1][-1]) // 8
        data[: len(data) // 8 * 8].view(np.uint64)[low:high].max()

    def check(part: tuple[Any, Any]) -> None:
        crc32c_each(data, *part)

    def copy(part: tuple[Any, Any]) -> None:
        room = len(out) // threads
        per = max(1, min(128, room // int(part[1].max())))  # used again and again, as batches' buffers are
        at = np.arange(len(part[1])) % per * int(part[1].max())
        half = room * next(k for k, p in enumerate(parts) if p is part)
        copy_extents(data, *part, out[half : half + room], at)

    def run(work: Callable[[Any], None]) -> Callable[[], int]:
        return lambda: len(list(pool.map(work, parts))) and len(offsets)

    return {"limit: read": run(read), "limit: CRC-32C": run(check), "limit: copy": run(copy)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs; without, pictures are drawn")
    parser.add_argument("--records", type=int, default=4000, help="made of FOLDER's files, again and again")
    parser.add_argument(
        "--gigabytes", type=float, default=0, help=f"of different records instead; without FOLDER {GIGABYTES:g}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2, help="of our readers; the packages have one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        images = [p.read_bytes() for p in images_of(options.images, Path(scratch), options.gigabytes)]
    if options.gigabytes or options.images is None:
        options.records = len(images)
    features = {"image": "string", "label": "int64"}
    pool = Pool(max(1, options.threads - 1), "reader")  # the calling thread works too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, images, options.records)
        tf, tar, db = str(folder / "data.tfrecord"), str(folder / "data.tar"), str(folder / "lmdb")

        def reader(reader: Reader, copied: bool = False) -> Callable[[], int]:
            return ours(reader, options.batch, pool, copied)

        runs: dict[str, Callable[[], int]] = {
            **limits(folder, options.threads),
            TFRECORD: tfrecord_loader(folder),
            f"{TFRECORD}, crc32c of each": tfrecord_loader(folder, checked=True),
            WEBDATASET: webdataset(folder),
            "lmdb package, cursor": lmdb_cursor(folder),
        }
        for copied in (False, True):
            mark = ", copied" if copied else ""
            runs |= {
                f"tfrecord, checksums{mark}": reader(TFRecord(path=tf, features=features), copied),
                f"tfrecord, no checksums{mark}": reader(TFRecord(path=tf, features=features, check_crc=False), copied),
                f"lmdb{mark}": reader(LMDB(path=db), copied),
                f"webdataset{mark}": reader(WebDataset(paths=tar, ext=("jpg", "cls")), copied),
            }
        runs["file"] = reader(File(file_root=str(folder / "files")))
        rates: dict[str, list[float]] = {label: [] for label in runs}
        processor: dict[str, list[float]] = {label: [] for label in runs}
        for round_ in range(options.rounds + 1):
            for label, run in runs.items():
                start, used = time.perf_counter(), time.process_time()
                records = run()
                seconds = time.perf_counter() - start
                assert records == options.records, (label, records)
                if round_:  # the first warms caches up and compiles
                    rates[label].append(records / seconds)
                    processor[label].append((time.process_time() - used) / records * 1e6)
    size = statistics.mean(map(len, images))

    def times(label: str, peer: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[label], rates[peer], strict=True))

    rows = [
        {"reader": label, "records_per_second": round(statistics.median(r)), "lowest": round(min(r)),
         "highest": round(max(r)), "gb_per_second": round(statistics.median(r) * size / 1e9, 2),
         "cpu_us_per_record": round(statistics.median(processor[label]), 2),
         "times_tfrecord": round(times(label, TFRECORD), 2), "times_webdataset": round(times(label, WEBDATASET), 2)}
        for label, r in rates.items()
    ]  # fmt: skip
    print(f"{options.records} records of {size:.0f} bytes, batches of {options.batch}, {options.threads} threads, "
          f"medians of {options.rounds} rounds (ratios: of the rounds' ratios); load {os.getloadavg()[0]:.1f}\n"
    )  # fmt: skip
    print(f"{'':36} {'records/s':>10} {'GB/s':>6} {'lowest':>9} {'highest':>9}   x tfrecord  x webdataset")
    for row in rows:
        print(f"{row['reader']:36} {row['records_per_second']:10d} {row['gb_per_second']:6.2f} {row['lowest']:9d} "
              f"{row['highest']:9d} {row['times_tfrecord']:12.1f} {row['times_webdataset']:13.1f}")  # fmt: skip
    if options.json:
        told = {k: v for k, v in vars(options).items() if k not in ("images", "json")}
        options.json.write_text(json.dumps({
            "what": "readers, records without decode", "machine": facts(), "load": os.getloadavg(), "options": told,
            "record_bytes": size, "rows": rows,
        }, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
