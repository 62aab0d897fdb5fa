"""Data of different bytes: as many gigabytes of JPEGs as a benchmark wants, made of a folder of them.

    python benchmarks/data/different.py FOLDER TARGET [--gigabytes 4]

A benchmark that reads a few files again and again measures the processor's cache. Here every file of FOLDER is encoded
many times, by all cores, with its own quantisation tables and subsampling: cut above and to the left, and turned over,
otherwise each time. The files are about as large as those they were made of. No two are alike.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from PIL import Image, JpegImagePlugin

sys.path.insert(0, str(Path(__file__).parents[2]))

from dali_run.pipelines.bench.web_mix import varied
from dali_run.pipelines.tools.sample_data import make_sample_data

GIGABYTES = 4.0
"""More than any cache of a processor."""
_DRAWN = 120
"""Pictures that are drawn where no folder is given; three quarters of them are used."""
_AT_ONCE = 16
"""Variants of a picture that a process makes before the next one."""


def variants(path: Path, first: int, count: int) -> list[bytes]:
    """Variants ``first`` and so on of a JPEG."""
    made = []
    with Image.open(path) as opened:
        tables, sampling = opened.quantization, JpegImagePlugin.get_sampling(opened)
        kept = {} if sampling < 0 or opened.mode == "L" else {"subsampling": sampling}
        image = opened.convert("L" if opened.mode == "L" else "RGB")
    if max(tables) > 1 or opened.mode not in ("L", "RGB"):  # CMYK has others
        tables = {}
    for variant in range(first, first + count):
        out = io.BytesIO()
        varied(image, variant).save(out, "JPEG", qtables=tables or None, **kept)
        made.append(out.getvalue())
    return made


def _write(path: Path, number: int, root: Path, first: int, count: int) -> int:
    nbytes = 0
    for k, data in enumerate(variants(path, first, count)):
        name = root / f"{number % 10:03d}" / f"{first + k:06d}-{number:04d}.jpg"
        name.write_bytes(data)
        nbytes += len(data)
    return nbytes


def write_different(files: list[Path], root: Path, nbytes: int) -> list[Path]:
    """JPEGs in ten folders of ``root``, made of ``files`` until they have ``nbytes``; variants of all pictures, in
    turns. Returns them in the order of their names."""
    for k in range(10):
        (root / f"{k:03d}").mkdir(parents=True, exist_ok=True)
    written, first, once = 0, 0, 1
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        while written < nbytes:
            jobs = [pool.submit(_write, path, i, root, first, once) for i, path in enumerate(files)]
            written += sum(job.result() for job in jobs)
            first += once
            left = max(0, nbytes - written) * first // max(1, written)
            once = max(1, min(_AT_ONCE, left))
    return sorted(root.glob("*/*.jpg"))


def data_files(folder: Path, scratch: Path, gigabytes: float) -> list[Path]:
    """The files of ``folder`` and of folders in it, or so many gigabytes made of them in ``scratch``."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return write_different(files, scratch, int(gigabytes * 1e9)) if gigabytes else files


def images_of(folder: Path | None, scratch: Path, gigabytes: float) -> list[Path]:
    """`data_files` of ``folder``; where there is none, of pictures that are drawn, and `GIGABYTES` unless so many are
    asked for."""
    if folder is not None:
        return data_files(folder, scratch / "different", gigabytes)
    make_sample_data(scratch / "sample", _DRAWN, 0)
    return data_files(scratch / "sample" / "train", scratch / "different", gigabytes or GIGABYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4)
    args = parser.parse_args()
    began = time.perf_counter()
    files = data_files(args.folder, args.target, args.gigabytes)
    nbytes = sum(p.stat().st_size for p in files)
    print(f"{len(files):,} files, {nbytes / 1e9:.2f} GB, made in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
