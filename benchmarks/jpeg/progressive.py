"""Progressive JPEGs on one GPU: are they right, where does the time go, how many a second, and DALI's rate beside it.

    python benchmarks/jpeg/progressive.py FOLDER [--gigabytes 4] [--dali-path SITE_PACKAGES] [--seconds 4]
        [--json out.json]

The pictures of FOLDER are encoded again by all cores, as progressive JPEGs of 4:2:0 (libjpeg's scans, optimised
tables), turned over, cut and of another quality each time, until there are so many gigabytes of different bytes. Then:

1. the first 512 are compared with Pillow (libjpeg-turbo), and so is what is accepted of `--mutate` damaged ones;
2. each kernel is timed, one batch alone on the GPU;
3. batches run on several streams with the files on the GPU ("resident"), and with their headers and scans walked,
   planned and copied each time ("host");
4. the job of benchmarks/jobs/imagenet.py (decode, shorter side 256, crop 224, normalise) runs from files, ours and
   DALI's in turns.

Ends with 1 where a picture is not as it must be.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs.imagenet import run_apart
from benchmarks.jpeg.small_pictures import mutated


def encoded(path: Path, root: Path, first: int, count: int, seed: int) -> int:
    """Write ``count`` progressive variants of a picture as files ``first`` and so on; returns their bytes."""
    rng = np.random.default_rng((seed, first))
    with Image.open(path) as picture:
        whole = picture.convert("RGB")
    nbytes = 0
    for i in range(first, first + count):
        image = whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else whole
        x, y = (int(rng.integers(0, max(1, n // 16))) for n in image.size)
        stream = io.BytesIO()
        quality = int(rng.integers(84, 93))
        image.crop((x, y, *image.size)).save(stream, "JPEG", quality=quality, subsampling="4:2:0", progressive=True)
        (root / f"{i % 10:03d}" / f"{i:07d}.jpg").write_bytes(stream.getvalue())
        nbytes += len(stream.getvalue())
    return nbytes


def make(folder: Path, root: Path, nbytes: int) -> int:
    """Write the data set; returns how many files it has."""
    paths = sorted(p for p in folder.iterdir() if p.is_file())
    for k in range(10):
        (root / f"{k:03d}").mkdir(parents=True)
    each, written, files = 8, 0, 0
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        while written < nbytes:
            batch = [(paths[(files // each + k) % len(paths)], files + each * k) for k in range(256)]
            done = [pool.submit(encoded, path, root, first, each, 0) for path, first in batch]
            written += sum(f.result() for f in done)
            files += each * len(batch)
    return files


def small(folder: Path, count: int) -> list[bytes]:
    """Small progressive pictures of several kinds, to be damaged."""
    paths = sorted(p for p in folder.iterdir() if p.is_file())[:count]
    files = []
    for i, path in enumerate(paths):
        stream = io.BytesIO()
        with Image.open(path) as picture:
            image = picture.convert("RGB" if i % 5 else "L").resize((64 + i % 90, 64 + i % 57))
        options = {} if image.mode == "L" else {"subsampling": i % 3}
        image.save(stream, "JPEG", quality=20 + i % 79, progressive=True, restart_marker_blocks=i % 4 * 3, **options)
        files.append(stream.getvalue())
    return files


def on_gpu(root: Path, args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Steps 1 to 3."""
    import cupy

    from benchmarks.jpeg import gpu_jpeg

    paths = sorted(root.glob("*/*.jpg"))
    files = [p.read_bytes() for p in paths[: max(512, 4 * args.batch)]]
    pixels = float(np.mean([w * h for w, h in (Image.open(io.BytesIO(f)).size for f in files[:200])]))
    report: dict[str, Any] = {
        "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "bytes_a_file": float(np.mean([len(f) for f in files])),
        "pixels_a_file": pixels,
        "batch": args.batch,
    }
    print(report, flush=True)
    defines = "".join(f"#define {d.replace('=', ' ', 1)}\n" for d in args.define)
    found = gpu_jpeg.check(defines, files[:512], [p.name for p in paths[:512]], 512, "rgb")
    report["check"] = found
    print("check:", {k: v if isinstance(v, int) else (len(v), v[:5]) for k, v in found.items()}, flush=True)
    right = not found["wrong"] and not found["rejected"]
    if args.mutate:
        right &= gpu_jpeg.check_damaged(defines, mutated(small(args.folder, 120), args.mutate), "mutation", 500)
    for job in ("train",):
        batches = [gpu_jpeg.Batch(files[k * args.batch : (k + 1) * args.batch]) for k in range(4)]
        lane = gpu_jpeg.Lane(defines, batches[0], job)
        report["phases_ms"] = times = gpu_jpeg.phases(lane, 10)
        print(f"one batch of {args.batch}:", ", ".join(f"{k} {v:.3f}" for k, v in times.items()), flush=True)
        print(f"levels: {lane.plan.levels.tolist()} scans", flush=True)
        report["workspace_mb"] = round(lane.decoder.workspace_bytes / 1e6)
        report["host_ms"] = gpu_jpeg.host_costs(lane)
        print(f"host {report['host_ms']}, workspace {report['workspace_mb']} MB a lane", flush=True)
        del lane
        counts = [int(n) for n in args.lanes.split(",")]
        lanes = [gpu_jpeg.Lane(defines, batches[k % 4], job) for k in range(max(counts))]
        report["images_per_s"] = {}
        for mode in ("resident", "host"):
            for n in counts:
                speed = gpu_jpeg.throughput(lanes[:n], mode, args.seconds / 2)
                report["images_per_s"][f"{mode}, {n} lanes"] = round(speed)
                print(f"{job}: {mode}, {n} lanes: {speed:,.0f} images/s", flush=True)
    return report, right


def from_files(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Step 4."""
    settings: list[tuple[str, dict[str, Any]]] = []
    for text in filter(None, args.ours.split(",")):
        batch, threads, lanes = map(int, text.split(":"))
        how = {"what": "ours", "decoder": "auto", "batch": batch, "threads": threads, "lanes": lanes}
        settings.append((f"ours {text}", how))
    for text in filter(None, args.dali.split(",") if args.dali_path else []):
        batch, threads = map(int, text.split(":"))
        settings.append((f"dali {text}", {"what": "dali", "batch": batch, "threads": threads}))
    common = {"job": "val", "device": "gpu", "source": "files", "root": str(root), "seconds": args.seconds}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in settings}
    for _ in range(args.repeats):
        for name, setting in settings:
            result = run_apart({**setting, **common}, args.dali_path)
            results[name].append(result)
            told = {k: result.get(k) for k in ("decoders", "fallbacks", "rejected", "busy") if k in result}
            print(name, result.get("images_per_second", result), told, flush=True)
    best = {k: max(r.get("images_per_second", 0.0) for r in v) for k, v in results.items()}
    peer = max((v for k, v in best.items() if k.startswith("dali")), default=0.0)
    for name, value in best.items():
        print(
            f"{name:20} {value:10,.0f} images/s" + (f"  {value / peer:6.2f}x DALI's best" if peer else ""), flush=True
        )
    return {"best": best, "all": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4.2)
    parser.add_argument("--scratch", type=Path, help="where the data set goes while the benchmark runs")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lanes", default="1,2,4,6,8")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--mutate", type=int, default=3000)
    parser.add_argument("--ours", default="1024:12:4,1024:12:6,1024:12:8", help="batch:threads:lanes")
    parser.add_argument("--dali", default="256:16", help="batch:threads")
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--define", action="append", default=[], help="compile-time size, e.g. SCAN_WARPS=24")
    parser.add_argument("--no-files", action="store_true", help="leave out step 4")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        root, began = Path(scratch, "data"), time.perf_counter()
        count = make(args.folder, root, int(args.gigabytes * 1e9))
        print(f"{count} files made in {time.perf_counter() - began:.0f} s", flush=True)
        report, right = on_gpu(root, args)
        if not args.no_files:
            report["from_files"] = from_files(root, args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))
    sys.exit(not right)


if __name__ == "__main__":
    main()
