"""Records a second without decoding: this package's readers, `tfrecord` and `webdataset`, interleaved in one run.

    python benchmarks/readers.py [--images FOLDER] [--records 4000] [--rounds 5] [--batch 256] [--threads 2]

Every reader delivers the bytes of each image and its label. Ours gives whole batches (views of the mapped file, as the
engine uses them), and is also shown with a copy into a buffer (what happens on the way to a GPU) and with the checksums
that TFRecord has, which `tfrecord` does not look at.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from dali_run.ops.context import Context
from dali_run.readers.base import Reader
from dali_run.readers.file import File
from dali_run.readers.lmdb import LMDB
from dali_run.readers.tfrecord import TFRecord
from dali_run.readers.webdataset import WebDataset


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


def ours(reader: Reader, batch: int, pool: Executor, copied: bool = False) -> Callable[[], int]:
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


def tfrecord_loader(folder: Path) -> Callable[[], int]:
    from tfrecord.reader import tfrecord_loader as loader

    def epoch() -> int:
        description = {"image": "byte", "label": "int"}
        return sum(1 for _ in loader(str(folder / "data.tfrecord"), None, description))

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=Path("../shared/data/imagenet_sample"))
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2, help="of our readers; the packages have one")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    images = [p.read_bytes() for p in sorted(options.images.glob("*.JPEG"))]
    if not images:
        rng = np.random.default_rng(0)
        images = [rng.bytes(int(n)) for n in rng.normal(110_000, 30_000, 200).clip(5_000)]
    features = {"image": "string", "label": "int64"}
    # the calling thread works too
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(max(1, options.threads - 1)) as pool:
        folder = Path(name)
        make_data(folder, images, options.records)
        tf, tar, db = str(folder / "data.tfrecord"), str(folder / "data.tar"), str(folder / "lmdb")
        runs: dict[str, tuple[Callable[[], int], str]] = {
            "tfrecord package (no checksums)": (tfrecord_loader(folder), ""),
            "webdataset package": (webdataset(folder), ""),
            "lmdb package (cursor)": (lmdb_cursor(folder), ""),
            "readers.tfrecord, checksums": (
                ours(TFRecord(path=tf, features=features), options.batch, pool),
                "tfrecord",
            ),
            "readers.tfrecord, no checksums": (
                ours(TFRecord(path=tf, features=features, check_crc=False), options.batch, pool),
                "tfrecord",
            ),
            "readers.tfrecord, no checksums, copied": (
                ours(TFRecord(path=tf, features=features, check_crc=False), options.batch, pool, copied=True),
                "tfrecord",
            ),
            "readers.webdataset": (ours(WebDataset(paths=tar, ext=("jpg", "cls")), options.batch, pool), "webdataset"),
            "readers.webdataset, copied": (
                ours(WebDataset(paths=tar, ext=("jpg", "cls")), options.batch, pool, copied=True),
                "webdataset",
            ),
            "readers.lmdb": (ours(LMDB(path=db), options.batch, pool), "lmdb"),
            "readers.lmdb, copied": (ours(LMDB(path=db), options.batch, pool, copied=True), "lmdb"),
            "readers.file": (ours(File(file_root=str(folder / "files")), options.batch, pool), ""),
        }
        rates: dict[str, list[float]] = {label: [] for label in runs}
        for round_ in range(options.rounds + 1):
            for label, (run, _) in runs.items():
                start = time.perf_counter()
                records = run()
                seconds = time.perf_counter() - start
                assert records == options.records, (label, records)
                if round_:  # the first warms caches up and compiles
                    rates[label].append(records / seconds)
    size = statistics.mean(map(len, images))
    print(f"{options.records} records of {size:.0f} bytes, batches of {options.batch}, {options.threads} threads,")
    print(f"medians of {options.rounds} rounds\n")
    print(f"{'reader':42} {'records/s':>12} {'GB/s':>7} {'lowest':>10} {'highest':>10}  against the package")
    base = {
        "tfrecord": "tfrecord package (no checksums)",
        "webdataset": "webdataset package",
        "lmdb": "lmdb package (cursor)",
    }
    for label, (_, against) in runs.items():
        rate = statistics.median(rates[label])
        factor = f"{rate / statistics.median(rates[base[against]]):.1f}x" if against else ""
        low, high = min(rates[label]), max(rates[label])
        print(f"{label:42} {rate:12.0f} {rate * size / 1e9:7.2f} {low:10.0f} {high:10.0f}  {factor}")


if __name__ == "__main__":
    main()
