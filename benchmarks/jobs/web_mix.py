"""Pictures of the web from files to normalised tensors, this engine and NVIDIA DALI in one interleaved run.

    python benchmarks/jobs/web_mix.py FOLDER [--dali-path SITE_PACKAGES] [--gigabytes 4] [--seconds 4] [--json out.json]
    python benchmarks/jobs/web_mix.py FOLDER --device cpu --ours auto:64:2:1 --dali 64:2 --gigabytes 0.3 --dali-path ...

Of the pictures in FOLDER a data set is made in --scratch (memory, if it is /dev/shm): the mix of scraped data (62 %
baseline JPEGs, 25 % progressive, 6 % PNG, 5 % WebP, 2 % CMYK; 0.2 megapixels each), and, for each of --formats, one of
that format alone. No two files are alike, unless --variants says how often each picture is encoded before copies
follow. With --data, sets are made in that folder, kept, and used again where they are there already.

The job: decode, shorter side 256, centre crop 224, normalise, float32 CHW; results stay on the GPU. Every
setting of both runs in a process of its own, in turns; the best repeat counts. Ours also names the decoders, their time
of CPU threads, and for how long batches waited.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs.imagenet import run_apart
from dali_run.pipelines.bench.web_mix import KINDS, SHARES, write_mix

FORMATS = "mix,progressive,png,webp,cmyk,tiff,jpeg2000,bmp,pnm,gif,png16"
NOT_BY_DALI = ("gif",)
"""Formats that DALI does not decode."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--formats", default=FORMATS, help=f"of mix and {', '.join(KINDS)}")
    parser.add_argument("--gigabytes", type=float, default=4, help="of each data set")
    parser.add_argument("--variants", type=int, default=0, help="of each picture, then copies; 0: no two are alike")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--job", choices=["val", "train", "decode"], default="val")
    parser.add_argument("--ours", default="auto:1024:8:4", help="decoder:batch:threads:lanes, and others after commas")
    parser.add_argument("--dali", default="256:16", help="batch:threads")
    parser.add_argument("--data", type=Path, help="where data sets are kept, and looked for")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pictures = sorted(p for p in args.folder.iterdir() if p.is_file())[:120]
    rows: dict[str, Any] = {}
    for name in args.formats.split(","):
        root = Path(tempfile.mkdtemp(prefix="web-mix-", dir=args.scratch))
        try:
            began = time.perf_counter()
            place, counts = data_set(name, args.data or root, pictures, int(args.gigabytes * 1e9), args.variants)
            made = time.perf_counter() - began
            sizes = [f.stat().st_size for f in (place / "0").iterdir()]
            rows[name] = {"files": counts, "bytes": sum(sizes), "made_s": made, **_measured(args, name, str(place))}
        finally:
            shutil.rmtree(root)
        row = rows[name]
        best = {who: max((r.get("images_per_second", 0.0) for r in row[who]), default=0.0) for who in ("ours", "dali")}
        row |= {"best": best, "ratio": best["ours"] / best["dali"] if best["dali"] else None}
        line = f"{name:12} {sum(counts.values()):7,} files  ours {best['ours']:10,.0f}  dali {best['dali']:10,.0f}"
        cost = [min((r.get("cpu_ms_per_image", 0.0) for r in row[who]), default=0.0) for who in ("ours", "dali")]
        line += f"  processors {cost[0]:.2f} and {cost[1]:.2f} ms an image"
        print(line + (f"  {row['ratio']:6.2f}x" if row["ratio"] else ""), flush=True)
        for r in row["ours"]:
            if "decoders" in r:
                numbers = {k: r[k] for k in ("batch", "threads", "lanes", "images_per_second")}
                print(f"{'':12} {numbers} {r['decoders']} {r.get('decoder_times')}", flush=True)
        for who in ("ours", "dali"):
            for r in row[who]:
                if "error" in r:
                    print(f"{'':12} {who}: {r['error']}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1))


def data_set(name: str, root: Path, pictures: list[Path], nbytes: int, variants: int) -> tuple[Path, dict[str, int]]:
    """The data set ``name`` of ``nbytes`` in a folder of ``root``, where it may be already, and its files by kind."""
    place = root / f"{name}-{nbytes}-{variants}"
    known = root / f"{place.name}.json"
    root.mkdir(parents=True, exist_ok=True)
    if not known.exists():
        shutil.rmtree(place, ignore_errors=True)  # of a run that was ended
        shares = SHARES if name == "mix" else {name: 1.0}
        counts = write_mix(pictures, place, count=512, nbytes=nbytes, shares=shares, variants=variants)
        known.write_text(json.dumps(counts))
    return place, json.loads(known.read_text())


def _measured(args: argparse.Namespace, name: str, root: str) -> dict[str, Any]:
    common = {"root": root, "job": args.job, "source": "files", "device": args.device, "seconds": args.seconds}
    settings: list[dict[str, Any]] = []
    for text in args.ours.split(","):
        decoder, batch, threads, lanes = text.split(":")
        numbers = {"batch": int(batch), "threads": int(threads), "lanes": int(lanes)}
        settings.append({"what": "ours", "decoder": decoder, **numbers})
    if args.dali_path and args.dali and name not in NOT_BY_DALI:
        batch, threads = args.dali.split(":")
        settings.append({"what": "dali", "batch": int(batch), "threads": int(threads)})
    results: dict[str, Any] = {"ours": [], "dali": []}
    for _ in range(args.repeats):
        for setting in settings:
            results[setting["what"]].append({**setting, **run_apart({**setting, **common}, args.dali_path)})
    return results


if __name__ == "__main__":
    main()
