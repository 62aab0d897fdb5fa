"""The host's cost of reading for each batch on the way to a GPU: files, and containers copied or registered.

    python benchmarks/data/feeding.py FOLDER [--batch 512] [--copies 8 | --gigabytes 4] [--batches 60] [--json out.json]

Milliseconds of CPU time of one reading thread a batch (median, and the fastest), records shuffled through a buffer and
in the page cache; `order` is choosing the batch's samples, `headers` walking the JPEG headers of what was read. Without
a GPU: registering is pretended, gathering is the GPU's work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files
from benchmarks.data.host_planning import PACKERS, UNCHECKED, data_set
from dali_run.ops.codecs.headers import parsed_headers
from dali_run.ops.context import Context
from dali_run.pipelines.bench.machine import facts
from dali_run.readers.base import Reader
from dali_run.readers.fetch.gpu_reads import lender_for
from dali_run.readers.file import File
from dali_run.readers.lmdb import LMDB
from dali_run.readers.mxnet import MXNet
from dali_run.readers.tfrecord import TFRecord
from dali_run.readers.webdataset import WebDataset
from tests.kit.fake_cupy import faked

SHUFFLE: dict[str, Any] = {"random_shuffle": True, "initial_fill": 4096}


def readers(root: Path) -> dict[str, Reader]:
    features = {"image": "string", "label": "int64"}
    records = str(root / "tfrecord" / "images.tfrecord")
    return {
        "files": File(file_root=str(root / "files"), **SHUFFLE),
        "tfrecord": TFRecord(path=records, features=features, **SHUFFLE),
        UNCHECKED: TFRecord(path=records, features=features, check_crc=False, **SHUFFLE),
        "tar": WebDataset(paths=str(root / "tar" / "images.tar"), ext=("jpg", "cls"), **SHUFFLE),
        "lmdb": LMDB(path=str(root / "lmdb" / "images.lmdb"), **SHUFFLE),
        "recordio": MXNet(path=str(root / "recordio" / "images.rec"), **SHUFFLE),
    }


def measure(reader: Reader, upload: Any, batch: int, batches: int) -> dict[str, float]:
    """Milliseconds a batch, by phase."""
    reader.check()
    source = reader.open()
    order = reader.order(len(source), 1, batch, source.groups)
    lender = lender_for(upload, (0,), 1 << 50, lambda _: None, lambda *_: None)
    spent: dict[str, list[float]] = {"order": [], "reading": [], "headers": []}
    buffer = np.empty(1 << 28, np.uint8)
    for k in range(batches):
        at = [0]

        def staging(nbytes: int, at: list[int] = at) -> Any:
            at[0] += nbytes
            return buffer[at[0] - nbytes : at[0]]

        clock = [time.thread_time()]
        samples = order.samples(k * batch, batch, source)
        clock.append(time.thread_time())
        ctx = Context(reader, "cpu", samples, source=source, allocate_staging=staging, lender=lender)
        encoded = reader.cpu(ctx)[0]
        clock.append(time.thread_time())
        parsed_headers(encoded)
        clock.append(time.thread_time())
        assert not ctx.rejects
        if k > batches // 5:  # pages are mapped and code is compiled by the first ones
            for name, (begin, end) in zip(spent, pairwise(clock), strict=True):
                spent[name].append(1e3 * (end - begin))
    if lender is not None:
        lender.close()
    source.close()
    medians = {name: statistics.median(times) for name, times in spent.items()}
    return medians | {"fastest reading": min(spent["reading"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--gigabytes", type=float, default=0, help="of different files, instead of copies of FOLDER's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch, faked():
        root = Path(scratch)
        files = data_files(args.folder, root / "different", args.gigabytes)
        for source in ("files", *PACKERS):
            (root / source).mkdir()
            data_set(source, files, 1 if args.gigabytes else args.copies, root / source)
        for name, reader in readers(root).items():
            for upload in ("copy",) if name == "files" else ("copy", "registered"):
                row = found[f"{name}, {upload}"] = measure(reader, upload, args.batch, args.batches)
                if len(found) == 1:
                    print(f"{'':40}" + "".join(f"{column:>18}" for column in row) + "   ms a batch")
                print(f"{name + ', ' + upload:40}" + "".join(f"{ms:18.3f}" for ms in row.values()), flush=True)
    if args.json:
        told = {"batch": args.batch, "batches": args.batches, "copies": args.copies, "gigabytes": args.gigabytes}
        load = os.getloadavg()
        args.json.write_text(json.dumps({"machine": facts(), "load": load, "options": told, "ms": found}, indent=1))


if __name__ == "__main__":
    main()
