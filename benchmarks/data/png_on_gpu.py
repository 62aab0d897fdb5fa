"""Kernels that make pixels of PNGs on a GPU, by the number of pictures, and the host's part of the work.

    python benchmarks/data/png_on_gpu.py FOLDER OF PICTURES [--streams 64,256,1024,4096] [--json out.json]

Up to 120 pictures of FOLDER, of 0.2 megapixels, as PNG, copied to as many streams as are wanted. Seconds of each kernel
(the best of five turns), pictures a second of all of them one after the other, and whether all rows are zlib's. The
host's part, by one thread: files that are looked through (checksums of their chunks), a second.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dali_run.ops.batch import I64, Batch, Samples
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.png import on_gpu
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.bench.web_mix import encoded


def stream_of(data: bytes) -> bytes:
    """The zlib stream of a PNG."""
    found, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            found += data[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def on_host(files: list[bytes], room: I64, seconds: float = 0.5) -> float:
    """Pictures a second whose files one thread looks through."""
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    which = np.arange(len(files))
    assert (on_gpu.streams(batch, which, room)[0] > 0).all()
    began, done = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        on_gpu.streams(batch, which, room)
        done += len(files)
    return done / (time.perf_counter() - began)


def kernels(
    lane: Lane, streams: list[bytes], raw: list[bytes], sizes: list[tuple[int, int]], count: int
) -> dict[str, Any]:
    """Seconds of the kernels on ``count`` streams, and how many came out wrong."""
    which = [k % len(streams) for k in range(count)]
    nbytes = np.array([len(streams[k]) for k in which], np.int64)
    starts = on_gpu.aligned(nbytes).cumsum() - on_gpu.aligned(nbytes)
    packed = np.zeros(int(on_gpu.aligned(nbytes).sum()), np.uint8)
    for start, k in zip(starts.tolist(), which, strict=True):
        packed[start : start + len(streams[k])] = np.frombuffer(streams[k], np.uint8)
    room = np.array([len(raw[k]) for k in which], np.int64)
    to = on_gpu.aligned(room).cumsum() - on_gpu.aligned(room)
    table, pictures = np.zeros(count, on_gpu.STREAM), np.zeros(count, on_gpu.PICTURE)
    table["source"], table["rows"], table["size"], table["room"] = starts, to, nbytes, room
    height, width = np.array([sizes[k] for k in which]).T
    pictures["rows"], pictures["destination"] = to, to
    pictures["height"], pictures["width"] = pictures["shown_rows"], pictures["shown_columns"] = height, width
    pictures["stored"] = pictures["channels"] = 3
    there, jobs, shown = lane.upload(packed, table.view(np.uint8), pictures.view(np.uint8))
    sums, bad = lane.upload(np.zeros(count, np.uint32), np.zeros(count, np.int32))
    rows, out = (lane.empty(int(on_gpu.aligned(room).sum()), np.uint8) for _ in range(2))
    steps: dict[str, Callable[[], None]] = {
        "inflate": lambda: lane.launch("png_inflate.cu", "inflate_streams", count, 32, there, jobs, rows, sums, bad),
        "sums": lambda: lane.launch("png_inflate.cu", "check_sums", count, 256, rows, jobs, sums, bad),
        "unfilter": lambda: lane.launch("png.cu", "png_unfilter", count, 32, rows, shown, bad),
        "pixels": lambda: lane.launch("png.cu", "png_pixels", (16, count), 256, rows, shown, out),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    wrong = 0
    for turn in range(6):
        for name, step in steps.items():
            begin = lane.mark()
            step()
            end = lane.mark()
            lane.wait()
            times[name].append(lane.seconds_since(begin, end))
            if turn == 0 and name == "sums":
                marks, found = lane.download(bad), lane.download(rows)
                lane.wait()
                wrong = int(np.count_nonzero(marks))
                for a, k in zip(to.tolist(), which, strict=True):
                    wrong += found[a : a + len(raw[k])].tobytes() != raw[k]
    lane.synchronize()
    best = {name: min(found[1:]) for name, found in times.items()}
    return {"seconds": best, "pictures_per_second": count / sum(best.values()), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--streams", default="64,256,1024,4096")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    paths = sorted(p for p in args.folder.iterdir() if p.is_file())[:120]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        files = list(pool.map(lambda p: encoded("png", p), paths))
    streams = [stream_of(f) for f in files]
    raw = [zlib.decompress(s) for s in streams]
    headers = [probe(memoryview(f)) for f in files]
    results: dict[str, Any] = {}
    with Lane() as lane:
        for count in map(int, args.streams.split(",")):
            row = kernels(lane, streams, raw, [(h.height, h.width) for h in headers], count)
            results[str(count)] = row
            told = "  ".join(f"{name} {1e3 * s:.2f} ms" for name, s in row["seconds"].items())
            print(f"{count:5} streams  {told}  {row['pictures_per_second']:,.0f}/s  wrong {row['wrong']}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
        lane.close()
    results["looked_through_per_second"] = on_host(files, np.array([len(r) for r in raw], np.int64))
    print(f"host, one thread: {results['looked_through_per_second']:,.0f} pictures/s", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
