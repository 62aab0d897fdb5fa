"""Every picture format by processor time, beside NVIDIA DALI on the CPU and beside the format's own library.

    python benchmarks/data/formats.py FOLDER --dali-path SITE_PACKAGES [--gigabytes 0.3] [--kinds "png;webp"]

Of the pictures in FOLDER data sets of different files are made, one a format (0.2 megapixels each; --data keeps them).
Two jobs: decode alone, and decode, shorter side 256, centre crop 224, normalise. Ours and DALI's wait in processes of
their own and make a few batches in turns; the least processor time an image of --rounds turns counts, since other work
on the machine only adds to it. And in one process, in turns: what the format's own library takes for --files files,
and our decoder around it, processes of its own included.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.isolation import cpu_seconds, workers
from benchmarks.jobs import apart
from benchmarks.jobs.imagenet import dali_pipeline, our_plan
from benchmarks.jobs.steady import spent_below
from dali_run.pipelines.bench.web_mix import _png_of_16_bits, scaled, varied

_AT_ONCE = 16
"""Variants of a picture that a process makes before the next one."""
NOT_BY_DALI = ("gif", "avif", "heic", "jpegxl")


def _saved(format: str, image: Image.Image, _: int, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def _palette(image: Image.Image, _: int) -> bytes:
    return _saved("PNG", image.quantize(256, Image.Quantize.FASTOCTREE), 0)


def _interlaced(image: Image.Image, _: int) -> bytes:
    """A PNG in seven passes, all filters "up"; Pillow writes none."""
    pixels, rows = np.asarray(image), b""
    for y, x, down, across in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                               (1, 0, 2, 1)):  # fmt: skip
        part = pixels[y::down, x::across].reshape(-1, 3 * len(range(x, image.width, across)))
        up = np.diff(part, axis=0, prepend=np.zeros_like(part[:1]))
        rows += np.pad(up, ((0, 0), (1, 0)), constant_values=2).tobytes()
    parts = ((b"IHDR", struct.pack(">IIBBBBB", image.width, image.height, 8, 2, 0, 0, 1)),
             (b"IDAT", zlib.compress(rows)), (b"IEND", b""))  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def _tiff_of_16_bits(image: Image.Image, seed: int, coding: int = 8) -> bytes:
    """A TIFF of 16 bits a channel in strips, deflated (8) or as it is (1): ``image`` with noise of 4 bits below."""
    noise = np.random.default_rng(seed).integers(0, 16, (image.height, image.width, 3), np.uint16)
    pixels = np.asarray(image).astype("<u2") * 257 ^ noise
    strips = [pixels[y : y + 16].tobytes() for y in range(0, image.height, 16)]
    strips = [zlib.compress(s) for s in strips] if coding == 8 else strips
    places = np.cumsum([8, *map(len, strips)]).tolist()
    tags = {256: [image.width], 257: [image.height], 258: [16] * 3, 259: [coding], 262: [2], 273: places[:-1],
            277: [3], 278: [16], 279: [len(s) for s in strips], 284: [1]}  # fmt: skip
    at = places[-1] + places[-1] % 2
    data, table = b"", struct.pack("<H", len(tags))
    for tag, values in tags.items():
        long = tag in (273, 279)
        body = struct.pack(f"<{len(values)}{'I' if long else 'H'}", *values).ljust(4, b"\0")
        place = body if len(body) == 4 else struct.pack("<I", at + len(data))
        table += struct.pack("<HHI", tag, 4 if long else 3, len(values)) + place
        data += body if len(body) > 4 else b""
    whole = b"".join(strips).ljust(at - 8, b"\0") + data
    return struct.pack("<2sHI", b"II", 42, 8 + len(whole)) + whole + table + bytes(4)


def _heic(image: Image.Image, _: int) -> bytes:
    import pillow_heif

    out = io.BytesIO()
    pillow_heif.from_pillow(image).save(out, quality=80)
    return out.getvalue()


def _jpeg_xl(image: Image.Image, _: int) -> bytes:
    import imagecodecs

    return bytes(imagecodecs.jpegxl_encode(np.asarray(image), distance=1.0, effort=3))


KINDS: Mapping[str, tuple[str, Callable[[Image.Image, int], bytes]]] = {
    "png": ("png", partial(_saved, "PNG")),
    "png of 16 bits": ("png", _png_of_16_bits),
    "png with a palette": ("png", _palette),
    "png, interlaced": ("png", _interlaced),
    "bmp": ("bmp", partial(_saved, "BMP")),
    "ppm": ("ppm", partial(_saved, "PPM")),
    "pgm": ("pgm", lambda image, k: _saved("PPM", image.convert("L"), k)),
    "tiff": ("tiff", partial(_saved, "TIFF")),
    "tiff, lzw": ("tiff", partial(_saved, "TIFF", compression="tiff_lzw")),
    "tiff, deflate": ("tiff", partial(_saved, "TIFF", compression="tiff_adobe_deflate")),
    "tiff of 16 bits": ("tiff", partial(_tiff_of_16_bits, coding=1)),
    "tiff of 16 bits, deflate": ("tiff", _tiff_of_16_bits),
    "tiff, jpeg": ("tiff", partial(_saved, "TIFF", compression="jpeg", quality=88)),
    "webp": ("webp", partial(_saved, "WEBP", quality=85)),
    "webp, lossless": ("webp", partial(_saved, "WEBP", lossless=True, method=2)),
    "jpeg2000": ("jp2", partial(_saved, "JPEG2000", quality_mode="dB", quality_layers=[42])),
    "gif": ("jpg", partial(_saved, "GIF")),
    "avif": ("jpg", partial(_saved, "AVIF", quality=75, speed=8)),
    "heic": ("jpg", _heic),
    "jpegxl": ("jpg", _jpeg_xl),
}
"""Suffix and encoder of each. Decoders go by the bytes, and `readers.file` takes names that DALI knows."""


def _write(kind: str, picture: Path, first: int, root: Path, number: int) -> int:
    suffix, encode = KINDS[kind]
    with Image.open(picture) as opened:
        whole, nbytes = opened.convert("RGB"), 0
    for variant in range(first, first + _AT_ONCE):
        data = encode(scaled(varied(whole, variant)), variant)
        (root / f"{variant:06d}-{number:04d}.{suffix}").write_bytes(data)
        nbytes += len(data)
    return nbytes


def data_set(kind: str, pictures: Sequence[Path], root: Path, nbytes: int, most: int) -> Path:
    """A folder in ``root`` with a folder of about ``nbytes`` of different files, or the ``most`` files, made unless it
    is there."""
    place = root / f"{kind.replace(' ', '-').replace(',', '')}-{nbytes}-{most}"
    if not place.exists():
        made = root / f"{place.name}.new"
        shutil.rmtree(made, ignore_errors=True)
        (made / "0").mkdir(parents=True)
        written = files = 0
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            jobs = ((picture, first, k) for first in count(0, _AT_ONCE) for k, picture in enumerate(pictures))
            while written < nbytes and files < most:
                files += 4 * _AT_ONCE
                some = [next(jobs) for _ in range(4)]
                written += sum(pool.map(_write, *zip(*((kind, p, f, made / "0", k) for p, f, k in some), strict=True)))
        made.rename(place)
    return place


# -- the library and what is around it --------------------------------------------------------------------------------


def library(kind: str) -> tuple[str, Callable[[bytes], object]] | None:
    """The library that a format is bound by, and what calls it for a file."""
    import imagecodecs

    from dali_run.ops.codecs import pillow
    from dali_run.ops.codecs.formats import BY_NAME

    def by_pillow(data: bytes) -> object:
        return pillow._plugin(BY_NAME[{"tiff, jpeg": "tiff"}.get(kind, kind)].pillow)(io.BytesIO(data)).load()

    def by_libdeflate(data: bytes) -> object:
        import deflate

        at, parts = 8, []
        while at < len(data):
            length, tag = struct.unpack_from(">I4s", data, at)
            parts += [data[at + 8 : at + 8 + length]] if tag == b"IDAT" else []
            at += 12 + length
        width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
        room = 2 * height * (1 + width * {0: 1, 2: 3, 3: 1}[kind] * bits // 8)
        return deflate.zlib_decompress(b"".join(parts), room)

    def by_avif(data: bytes) -> object:
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
        return AvifImagePlugin.AvifImageFile(io.BytesIO(data)).load()

    def by_heif(data: bytes) -> object:
        import pillow_heif

        pillow_heif.options.DECODE_THREADS = 1
        return pillow_heif.open_heif(io.BytesIO(data))[0].data

    known: dict[str, tuple[str, Callable[[bytes], object]]] = {
        "webp": ("libwebp", imagecodecs.webp_decode),
        "webp, lossless": ("libwebp", imagecodecs.webp_decode),
        "jpeg2000": ("OpenJPEG", by_pillow),
        "tiff, jpeg": ("libtiff", by_pillow),
        "gif": ("Pillow", by_pillow),
        "avif": ("libavif", by_avif),
        "heic": ("libheif", by_heif),
        "jpegxl": ("libjxl", lambda data: imagecodecs.jpegxl_decode(data, numthreads=1)),
    }
    return ("libdeflate", by_libdeflate) if kind.startswith("png") else known.get(kind)


def measure_library(kind: str, root: str, files: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of processors an image."""
    from dali_run.ops.batch import Batch, Samples
    from dali_run.ops.codecs.decoders import Image as Decoder
    from dali_run.ops.codecs.isolation.processes import Isolation
    from dali_run.ops.context import Context
    from dali_run.pipelines.engine.memory.reuse import Recycler

    paths = sorted(Path(root, "0").iterdir())[:: max(1, len(list(Path(root, "0").iterdir())) // files)][:files]
    data = [path.read_bytes() for path in paths]
    arrays = [np.frombuffer(d, np.uint8) for d in data]
    batches = [
        Batch.from_list(arrays[k : k + 8], "", Samples.numbered(len(arrays[k : k + 8])))
        for k in range(0, len(arrays), 8)
    ]
    found, operator, memory = library(kind), Decoder(), Recycler()
    with Isolation() as isolation:

        def ours() -> None:
            for batch in batches:
                ctx = Context(operator, "cpu", batch.samples, isolation=isolation, allocate=memory.empty)
                operator.cpu(ctx, batch)

        def theirs() -> None:
            for d in data:
                found[1](d)  # type: ignore[index]

        sides = {"operator": ours, **({"library": theirs} if found else {})}
        best = dict.fromkeys(sides, float("inf"))
        for work in sides.values():
            work()
        pids = [*isolation.pids, *(workers(isolation.pids[0]) if isolation.pids else [])]
        for _ in range(rounds):
            for name, work in sides.items():
                began = cpu_seconds(pids)
                work()
                best[name] = min(best[name], (cpu_seconds(pids) - began) * 1e3 / len(data))
    return {**best, "name": found[0] if found else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--kinds", help=f"separated by semicolons, of: {'; '.join(KINDS)}")
    parser.add_argument("--gigabytes", type=float, default=0.3, help="of each data set")
    parser.add_argument("--most", type=int, default=2000, help="files of each data set")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side")
    parser.add_argument("--jobs", default="decode,val")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=int, default=48, help="for the libraries alone")
    parser.add_argument("--data", type=Path, help="where data sets are kept, and looked for")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        served = {"ours": serve_ours, "dali": serve_dali}
        asked = json.loads(args.child)
        if asked["what"] in served:
            served[asked.pop("what")](**asked)
        else:
            apart.answer(args.child, {"library": measure_library})
        return
    root = args.data or Path(tempfile.mkdtemp(prefix="formats-"))
    root.mkdir(parents=True, exist_ok=True)
    try:
        table(args, root)
    finally:
        if args.data is None:
            shutil.rmtree(root)


def table(args: argparse.Namespace, root: Path) -> None:
    """Measure and print a row for each kind."""
    pictures = sorted(p for p in args.folder.iterdir() if p.is_file())
    jobs = args.jobs.split(",")
    print("| ms of processors an image | files | " + " | ".join(f"{job}: here | DALI | " for job in jobs)
          + " | library | its decoding | our decoder |\n" + "|---" * (5 + 3 * len(jobs)) + "|", flush=True)  # fmt: skip
    rows: dict[str, Any] = {}
    for kind in args.kinds.split(";") if args.kinds else KINDS:
        place = data_set(kind, pictures, root, int(args.gigabytes * 1e9), args.most)
        row: dict[str, Any] = {"files": len(list((place / "0").iterdir())), "load": os.getloadavg()}
        row["library"] = apart.run_apart(
            __file__, {"what": "library", "kind": kind, "root": str(place), "files": args.files, "rounds": args.rounds}
        )
        for job in jobs:
            row[job] = _job(args, job, kind, str(place))
        rows[kind] = row
        cells = [kind, f"{row['files']:,}"]
        for job in jobs:
            here, dali = row[job]["here"], row[job]["dali"]
            cells += [f"{here:.2f}", f"{dali:.2f}" if dali else "", f"{dali / here:.1f}x" if dali else ""]
        alone = row["library"]
        cells += [alone.get("name", ""), *(f"{alone[k]:.2f}" if k in alone else "" for k in ("library", "operator"))]
        print(f"| {' | '.join(cells)} |", flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))


# -- jobs -------------------------------------------------------------------------------------------------------------

_BATCHES = 4
"""Batches that a side makes in its turn."""


def serve_ours(root: str, job: str, batch: int, threads: int) -> None:
    from dali_run.pipelines.engine.engine import Engine, Options, Request
    from dali_run.pipelines.engine.inputs import EndlessFeed, Sources

    plan = our_plan(root, "cpu", job, "auto", "files")
    options = Options(num_threads=threads, cpu_queue=3, together=True)
    requests = (Request(k * batch, batch) for k in count())
    with Sources(plan, batch) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        _serve(lambda: len(next(engine).samples))


def serve_dali(root: str, job: str, batch: int, threads: int) -> None:
    pipeline = dali_pipeline(root, "cpu", job, batch, threads, "files")
    pipeline.build()

    def step() -> int:
        pipeline.run()
        return batch

    _serve(step)


def _serve(step: Callable[[], int]) -> None:
    """For every line that comes in, make batches, and say what an image cost. The time until all is still is counted:
    for each batch that is taken, another one is made, and nobody knows when."""
    for _ in range(_BATCHES):
        step()
    pids = list(spent_below())

    def still() -> float:
        quiet, before = 0, cpu_seconds(pids)
        while quiet < _QUIET:
            time.sleep(0.05)
            now = cpu_seconds(pids)
            quiet, before = quiet + 1 if now - before < _STILL else 0, now
        return before

    began = still()
    print("ready", flush=True)
    for _ in sys.stdin:
        images = sum(step() for _ in range(_BATCHES))
        ended = still()
        print((ended - began) / images * 1e3, flush=True)
        began = ended


_STILL, _QUIET = 0.002, 5
"""Seconds of processors in a twentieth of a second by the clock, so many times: a busy machine may let nobody work for
some time."""


class _Side:
    """A process that waits for its turns."""

    def __init__(self, what: str, path: str | None, **asked: Any) -> None:
        paths = [str(Path(__file__).parents[2]), *([path] if path else [])]
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps({"what": what, **asked})],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def line(self) -> str:
        """The next line that it says; empty where it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def turn(self) -> float:
        """Milliseconds of processors an image, of a turn; no number where the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return float("nan")
        return float(self.line() or "nan")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _job(args: argparse.Namespace, job: str, kind: str, root: str) -> dict[str, Any]:
    """Processor time of an image, of both sides' turns."""
    sides = {"here": _Side("ours", None, root=root, job=job, batch=args.batch, threads=args.threads)}
    if args.dali_path and kind not in NOT_BY_DALI:
        sides["dali"] = _Side("dali", args.dali_path, root=root, job=job, batch=args.batch, threads=args.threads)
    try:
        alive = {name: side for name, side in sides.items() if side.line() == "ready"}
        turns = [{name: side.turn() for name, side in alive.items()} for _ in range(args.rounds)]
    finally:
        for side in sides.values():
            side.end()
    best = {name: min(turn[name] for turn in turns) for name in alive}
    return {"here": 0.0, "dali": 0.0, **best, "turns": turns}


if __name__ == "__main__":
    main()
