"""Images resized to a shorter side of 256 and packed as JPEGs into tar shards: configs/imagenet_resize.yaml and a
two-process script of Pillow and webdataset, whole runs in turns.

    python benchmarks/operators/imagenet_resize.py [--gigabytes 4] [--images FOLDER [--copies 30]] [--rounds 5]
        [--json out.json]

Without FOLDER, pictures are drawn, and gigabytes of different files made of them.

Same files, sizes, filter (triangular, with antialiasing: Pillow's BILINEAR), quality 90 and chroma subsampling;
start-up is part of each run. The script decodes whole pictures as ours does (Pillow's `draft` would give others).
Afterwards both outputs are read, and the pictures of one compared with the other's.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import GIGABYTES, images_of

QUALITY, SIDE, SHARD = 90, 256, 10_000
ROOT = Path(__file__).parents[2]


def convert(part: tuple[int, list[tuple[str, int]], str, int]) -> int:
    """The work of one process of the script: its files into shards of its own."""
    import webdataset as wds

    number, files, out, subsampling = part
    with wds.ShardWriter(os.path.join(out, f"part{number}-%05d.tar"), maxcount=SHARD, verbose=0) as writer:
        for path, label in files:
            image = Image.open(path).convert("RGB")
            scale = SIDE / min(image.size)
            size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            buffer = io.BytesIO()
            image.resize(size, Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=QUALITY, subsampling=subsampling)
            key = os.path.splitext(os.path.relpath(path, os.path.dirname(os.path.dirname(path))))[0]
            writer.write({"__key__": key, "jpg": buffer.getvalue(), "cls": label})
    return len(files)


def script(data: Path, out: Path, processes: int, subsampling: int) -> None:
    """The peer: each process takes every n-th file."""
    out.mkdir()
    folders = sorted(p for p in data.iterdir() if p.is_dir())
    files = [(str(f), k) for k, folder in enumerate(folders) for f in sorted(folder.iterdir())]
    parts = [(i, files[i::processes], str(out), subsampling) for i in range(processes)]
    with multiprocessing.Pool(processes) as pool:
        assert sum(pool.map(convert, parts)) == len(files)


def ours(data: Path, out: Path, threads: int) -> None:
    settings = {"data": data, "out": out, "pipeline.num_threads": threads, "pipeline.device": "cpu"}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-c",
        "from dali_run.cli.main import main; main()",
        "run",
        str(ROOT / "configs/imagenet_resize.yaml"),
        "-q",
        *sets,
    ]
    subprocess.run(command, check=True)


def peer(data: Path, out: Path, processes: int, subsampling: int) -> None:
    command = [sys.executable, __file__, "--script", str(data), str(out), str(processes), str(subsampling)]
    subprocess.run(command, check=True)


def processor_seconds() -> float:
    """Of all children that have ended; other work on the machine hardly changes it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            found |= {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    return found


def compare(a: dict[str, bytes], b: dict[str, bytes]) -> dict[str, float]:
    """Names, labels and sizes must be the same; how far the pictures are apart, in levels."""
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())[:5]
    apart, sizes = [], [0, 0]
    for name in a:
        if name.endswith(".cls"):
            assert int(a[name]) == int(b[name])
            continue
        x, y = (np.asarray(Image.open(io.BytesIO(d[name])), np.int16) for d in (a, b))
        assert x.shape == y.shape, (name, x.shape, y.shape)
        apart.append(float(np.abs(x - y).mean()))
        sizes[0] += len(a[name])
        sizes[1] += len(b[name])
    return {
        "pictures": len(apart),
        "mean_difference": round(statistics.mean(apart), 3),
        "bytes_ratio": sizes[0] / sizes[1],
    }


def main() -> None:
    if sys.argv[1:2] == ["--script"]:
        data, out, processes, subsampling = sys.argv[2:]
        script(Path(data), Path(out), int(processes), int(subsampling))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs; without, pictures are drawn")
    parser.add_argument("--copies", type=int, default=30, help="of each of FOLDER's files")
    parser.add_argument(
        "--gigabytes", type=float, default=0, help=f"of different files instead; without FOLDER {GIGABYTES:g}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads of ours, processes of the script")
    parser.add_argument(
        "--subsampling", type=int, default=2, help="of the script's JPEGs, as Pillow counts: 0 4:4:4, 2 4:2:0"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from dali_run.pipelines.bench.machine import facts

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        images = images_of(options.images, scratch, options.gigabytes)
        copies = 1 if options.gigabytes or options.images is None else options.copies
        for i, file in enumerate(images):
            folder = scratch / "data" / f"n{i % 10:03d}"
            folder.mkdir(parents=True, exist_ok=True)
            for k in range(copies):
                shutil.copyfile(file, folder / f"{k:03d}_{i:04d}.JPEG")
        n = len(images) * copies
        seconds: dict[str, list[float]] = {"ours": [], "script": []}
        processor: dict[str, list[float]] = {"ours": [], "script": []}
        for round_ in range(options.rounds + 1):
            for who in seconds:
                out = scratch / who
                shutil.rmtree(out, ignore_errors=True)
                began, used = time.perf_counter(), processor_seconds()
                if who == "ours":
                    ours(scratch / "data", out, options.threads)
                else:
                    peer(scratch / "data", out, options.threads, options.subsampling)
                if round_:  # the first warms caches
                    seconds[who].append(time.perf_counter() - began)
                    processor[who].append(processor_seconds() - used)
                    print(f"{who:8} {n / seconds[who][-1]:8.0f} images/s", flush=True)
        same = compare(read(scratch / "ours"), read(scratch / "script"))
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["script"], strict=True)]
    rates = {who: round(n / statistics.median(s)) for who, s in seconds.items()}
    cpu = {who: round(statistics.median(s) / n * 1e3, 3) for who, s in processor.items()}
    told = {
        "what": "imagenet_resize end to end", "machine": facts(), "load": os.getloadavg(), "images": n,
        "threads": options.threads, "rounds": options.rounds, "images_per_second": rates,
        "cpu_ms_per_image": cpu, "cpu_ratio": round(cpu["script"] / cpu["ours"], 2),
        "seconds": {k: [round(s, 3) for s in v] for k, v in seconds.items()},
        "ratio": {"median": round(statistics.median(ratios), 2), "lowest": round(min(ratios), 2),
                  "highest": round(max(ratios), 2)}, "outputs": same,
    }  # fmt: skip
    print(json.dumps({k: told[k] for k in ("images_per_second", "ratio", "cpu_ms_per_image", "cpu_ratio", "outputs")}))
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
