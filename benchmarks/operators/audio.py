"""Speech to log-mel features, this engine and NVIDIA DALI in one interleaved run.

    python benchmarks/operators/audio.py [--dali-path SITE_PACKAGES] [--device gpu] [--clips 13000] [--json out.json]
    python benchmarks/operators/audio.py --device cpu --clips 600 --ours wav:64:2:1,flac:64:2:1 --dali
        wav:64:2,flac:64:2 ...

The clips are made: ten seconds at 16 kHz each, 16 bits, all different (13,000 are 4.2 GB of WAV), as single files or
in a tar file. The job: decode, spectrogram (512, windows of 25 ms every 10 ms), 80 mel bands, decibels; results stay
where they are made. Every setting of both runs in a process of its own, in turns; the best repeat counts. Beside the
clips a second stands the processor time a clip, which other work on the machine disturbs less, and its median.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs import apart
from benchmarks.jobs.steady import Rate, steady

RATE, SECONDS = 16000, 10
SPECTROGRAM = {"nfft": 512, "window_length": 400, "window_step": 160}
MEL = {"sample_rate": float(RATE), "nfilter": 80}
DECIBELS = {"multiplier": 10.0, "reference": 1.0, "cutoff_db": -80.0}
FOLDERS = 64


def make_clips(kind: str, count: int, root: Path) -> None:
    """``count`` different files ``root/<folder>/<number>.<kind>``, or the same as ``root/clips.tar`` (``wav-tar``)."""
    import soundfile

    random = np.random.default_rng(0)
    encoding, _, packed = kind.partition("-")
    # noise like speech: more of low frequencies, with pauses; clips begin at different places of it
    length = RATE * (SECONDS + 600)
    noise = np.convolve(random.standard_normal(length).astype(np.float32), np.hanning(12).astype(np.float32), "same")
    envelope = np.interp(np.arange(length), np.arange(0, length, 4000), random.random(-(-length // 4000)) ** 2)
    voice = noise * envelope.astype(np.float32)
    voice *= 0.5 / np.abs(voice).max()

    def clip(number: int) -> bytes:
        start = number * 7919 % (RATE * 600)
        part = voice[start : start + RATE * SECONDS] * np.float32(0.5 + number % 97 / 194)
        part[: 8 * 4] += np.frombuffer(np.uint32(number).tobytes() * 8, np.uint8).astype(np.float32) * 1e-3
        out = io.BytesIO()
        soundfile.write(out, part, RATE, format=encoding.upper(), subtype="PCM_16")
        return out.getvalue()

    if packed:
        with tarfile.open(root / "clips.tar", "w") as tar, ThreadPoolExecutor(16) as pool:
            for number, body in enumerate(pool.map(clip, range(count))):
                info = tarfile.TarInfo(f"{number:06d}.{encoding}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
        return
    for folder in range(FOLDERS):
        (root / f"{folder:03d}").mkdir()

    def write(number: int) -> None:
        (root / f"{number % FOLDERS:03d}" / f"{number:06d}.{encoding}").write_bytes(clip(number))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(count)))


def measure_ours(
    root: str,
    device: str,
    batch: int,
    threads: int,
    lanes: int,
    upload: Any,
    kind: str,
    seconds: float,
    warm_up: float,
) -> dict[str, Any]:
    import itertools

    from dali_run.pipelines.compile.place import Target
    from dali_run.pipelines.compile.plan import compile_graph
    from dali_run.pipelines.engine.engine import Engine, Options, Request
    from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
    from dali_run.pipelines.graph.builder import GraphBuilder
    from dali_run.pipelines.job.report import build_report
    from dali_run.pipelines.plugins import load_operators

    load_operators()
    b = GraphBuilder()
    encoding, _, packed = kind.partition("-")
    if packed:
        (x,) = b.add("readers.webdataset", (), {"paths": [f"{root}/clips.tar"], "ext": [encoding], "shuffle": "full"})
    else:
        x, _label = b.add("readers.file", (), {"file_root": root, "random_shuffle": True})
    x, _rate = b.add("decoders.audio", [x], {"downmix": True})
    for name, more in (("spectrogram", SPECTROGRAM), ("mel_filter_bank", MEL), ("to_decibels", DECIBELS)):
        (x,) = b.add(name, [x], more)
    plan = compile_graph(b.build({"x": x}), Target(device), 1)
    options = Options(
        num_threads=threads, gpu_queue=2, cpu_queue=3, lanes=lanes, to_host=False, together=True, upload=upload
    )
    requests = (Request(k * batch, batch) for k in itertools.count())
    began = time.perf_counter()
    with Sources(plan, batch) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        rate = steady(lambda: len(next(engine).samples), began, seconds, warm_up)
        report = build_report(engine, rate.seconds, {"read": rate.samples}, sink="take")
    busy = {s["id"]: round(s["busy_seconds"], 3) for s in report["stages"]}
    each = {o["name"]: round(o["gpu_seconds"] or o["cpu_seconds"], 3) for o in report["operators"]}
    return {**told(rate), "busy": busy, "operators": each, "rejected": report["rejected"], "uploads": report["uploads"],
            "decoders": report["decoders"], "memory": report["memory"]}  # fmt: skip


def measure_dali(
    root: str, device: str, batch: int, threads: int, kind: str, seconds: float, warm_up: float
) -> dict[str, Any]:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(
        batch_size=batch, num_threads=threads, device_id=None if device == "cpu" else 0, prefetch_queue_depth=3
    )
    def pipe() -> Any:
        encoding, _, packed = kind.partition("-")
        if packed:
            x = fn.readers.webdataset(paths=f"{root}/clips.tar", ext=[encoding], random_shuffle=True)
            x = x[0] if isinstance(x, list | tuple) else x
        else:
            x, _ = fn.readers.file(file_root=root, random_shuffle=True, prefetch_queue_depth=2)
        x, _ = fn.decoders.audio(x, downmix=True)
        x = fn.spectrogram(x if device == "cpu" else x.gpu(), **SPECTROGRAM)
        return fn.to_decibels(fn.mel_filter_bank(x, **MEL), **DECIBELS)

    p = pipe()

    def step() -> int:
        p.run()
        return batch

    began = time.perf_counter()
    p.build()
    return told(steady(step, began, seconds, warm_up))


def told(rate: Rate) -> dict[str, Any]:
    return {"clips_per_second": rate.per_second(), "cpu_ms_per_clip": rate.cpu_ms(), "first_batch_s": rate.first_batch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from; `here`: as it is installed")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--clips", type=int, default=13000)
    parser.add_argument("--folder", type=Path, help="where the clips are made, and kept (a temporary folder otherwise)")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument(
        "--warm-up",
        type=float,
        default=1.5,
        help="seconds that a pipeline runs before the clock starts, ours and DALI's",
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--ours",
        default="wav-tar:256:8:4,wav:256:8:4,flac:256:16:4",
        help="kind of files (wav, flac, wav-tar, flac-tar):batch:threads:lanes, and :upload (copy or registered; "
        "without it auto)",
    )
    parser.add_argument("--dali", default="wav:256:16,wav-tar:256:16,flac:256:16", help="kind of files:batch:threads")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        apart.answer(args.child, {"ours": measure_ours, "dali": measure_dali})
        return
    path = None if args.dali_path == "here" else args.dali_path
    with tempfile.TemporaryDirectory() as scratch:
        base = args.folder or Path(scratch)

        def placed(kind: str) -> str:
            place = base / kind
            if not place.exists():
                place.mkdir(parents=True)
                began = time.perf_counter()
                make_clips(kind, args.clips, place)
                size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
                print(
                    f"{kind}: {args.clips} clips, {size / 1e9:.1f} GB, {time.perf_counter() - began:.0f} s", flush=True
                )
            return str(place)

        settings: list[tuple[str, dict[str, Any]]] = []
        for text in filter(None, args.ours.split(",")):
            kind, batch, threads, lanes, *upload = text.split(":")
            ours = {"batch": int(batch), "threads": int(threads), "lanes": int(lanes), "upload": (*upload, "auto")[0]}
            settings.append((f"{kind} ours {text}", {"what": "ours", "kind": kind, "root": placed(kind), **ours}))
        for text in filter(None, args.dali.split(",") if args.dali_path else []):
            kind, batch, threads = text.split(":")
            dali = {"what": "dali", "kind": kind, "root": placed(kind), "batch": int(batch), "threads": int(threads)}
            settings.append((f"{kind} dali {text}", dali))
        results: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in settings}
        for _ in range(args.repeats):
            for name, setting in settings:
                asked = {**setting, "device": args.device, "seconds": args.seconds, "warm_up": args.warm_up}
                result = apart.run_apart(__file__, asked, path if setting["what"] == "dali" else None)
                results[name].append(result)
                print(name, result.get("clips_per_second", result), result.get("cpu_ms_per_clip"), flush=True)
    best = {k: max((r.get("clips_per_second", 0.0) for r in v), default=0.0) for k, v in results.items()}
    cost = {k: median([r.get("cpu_ms_per_clip", float("nan")) for r in v]) for k, v in results.items()}
    for name, value in best.items():
        kind = name.split("-")[0].split()[0]
        peer = max((v for k, v in best.items() if k.startswith(kind) and " dali " in k), default=0.0)
        line = f"{name:32} {value:10,.0f} clips/s  {cost[name]:6.3f} ms of processors a clip"
        print(line + (f"  {value / peer:6.2f}x DALI's best" if peer else ""))
    if args.json:
        args.json.write_text(
            json.dumps({"best": best, "median_cpu_ms": cost, "load": os.getloadavg(), "all": results}, indent=1)
        )


if __name__ == "__main__":
    main()
