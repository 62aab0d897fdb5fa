"""Videos through NVDEC to tensors: whole pipelines beside DALI's, and jobs that write every frame as JPEG.

    python benchmarks/operators/nvdec.py [--clips 3] [--batch 24] [--seconds 2] [--json out.json]

The clips are made: 64 frames of 1280 x 720 each; a batch has ``--batch`` of them, the same ones again and again. Jobs:
``readers`` (readers.video, sequences of 16 frames), ``decoders`` (decoders.video of files in memory), both with resize
to a shorter side of 256 and normalised floats after it, on the GPU; ``frames`` (a job: every frame, 256 on the shorter
side, as JPEG in tar, in memory). Every line is a process of its own; the first two batches do not count. The goals are
for one H200 with 16 cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs import apart

GOALS = {"h264": 7000, "hevc": 10000, "vp9": 5500}
FRAMES, SEQUENCE, SHORTER = 64, 16, 256
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def _files(root: str, batch: int) -> list[str]:
    found = sorted(str(p) for p in Path(root).rglob("*") if p.is_file())
    return [found[k % len(found)] for k in range(batch)]


def pipeline(side: str, job: str, root: str, batch: int, seconds: float) -> dict[str, Any]:
    """Frames a second and processor time a frame of ours or of DALI's pipeline."""
    import cupy

    if side == "ours":
        from dali_run import fn, pipeline_def, types
    else:
        from nvidia.dali import fn, pipeline_def, types

    files = _files(root, batch)
    data = [np.fromfile(f, np.uint8) for f in files]
    size = batch * FRAMES // SEQUENCE if job == "readers" else batch

    @pipeline_def(batch_size=size, num_threads=16, device_id=0, prefetch_queue_depth=2)
    def made() -> Any:
        if job == "readers":
            x = fn.readers.video(device="gpu", filenames=files, sequence_length=SEQUENCE)
        else:
            x = fn.decoders.video(fn.external_source(lambda: data, batch=True), device="mixed")
        x = fn.resize(x, resize_shorter=SHORTER)
        return fn.crop_mirror_normalize(x, dtype=types.FLOAT, mean=MEAN, std=STD, output_layout="FCHW")

    p = made()
    p.build()
    for _ in range(2):
        p.run()
    cupy.cuda.Device(0).synchronize()
    busy, began, frames = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        frames += sum(int(shape[0]) for shape in p.run()[0].shape())
    cupy.cuda.Device(0).synchronize()
    return {
        "frames_per_second": frames / (time.perf_counter() - began),
        "cpu_ms_per_frame": 1e3 * (time.process_time() - busy) / frames,
    }


def frames(root: str, batch: int, seconds: float) -> dict[str, Any]:
    """Frames a second of a job, start and end left out, and who decoded."""
    from dali_run.pipelines.job.run import run_job

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        folder = Path(scratch) / "in" / "0"
        folder.mkdir(parents=True)
        for k, file in enumerate(_files(root, batch) * max(1, round(seconds * 4))):
            shutil.copy(file, folder / f"{k:05d}{Path(file).suffix}")
        spec = Path(scratch) / "spec.yaml"
        spec.write_text(f"""version: 1
name: frames
pipeline: {{batch_size: {batch * FRAMES}, device: auto}}
graph:
  - {{op: experimental.readers.video, file_root: {folder.parent}, sequence_length: 1, out: [frames, labels]}}
  - {{op: squeeze, in: frames, axes: [0], out: pictures}}
  - {{op: resize, in: pictures, resize_shorter: {SHORTER}, out: pictures}}
outputs: {{jpg: pictures, cls: labels}}
write: {{writer: webdataset, path: {scratch}/out, shard: {{samples: 4000}},
  fields: {{jpg: {{encode: jpeg, quality: 90}}, cls: {{}}}}}}
""")
        done = run_job(spec, {}, device="gpu:0")
        if done.exit_code:
            sys.exit(done.message)
        report = json.loads((Path(scratch) / "out" / "report.json").read_text())
    return {"frames_per_second": report["samples_per_second"], "decoders": report["decoders"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=3, help="different ones of each codec")
    parser.add_argument("--batch", type=int, default=24, help="clips of a batch")
    parser.add_argument("--codecs", default="h264,hevc,vp9")
    parser.add_argument("--jobs", default="readers,decoders,frames")
    parser.add_argument("--sides", default="ours,dali")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="with a folder of clips for each codec; made where there is none")
    parser.add_argument("--dali", help="folder that holds the package nvidia.dali, unless it is installed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        apart.answer(args.child, {"pipeline": pipeline, "frames": frames})
        return
    from dali_run.pipelines.bench.media_mix import write_videos

    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = args.folder or Path(scratch)
        for codec in args.codecs.split(","):
            if not (root / codec).exists():
                write_videos(root, args.clips, {codec: 1.0})
        turns = itertools.product(
            range(args.repeats), args.codecs.split(","), args.jobs.split(","), args.sides.split(",")
        )
        for _, codec, job, side in turns:
            asked: dict[str, Any] = {"root": str(root / codec), "batch": args.batch, "seconds": args.seconds}
            if job == "frames":
                if side != "ours":
                    continue  # DALI writes nothing
                asked |= {"what": "frames"}
            else:
                asked |= {"what": "pipeline", "side": side, "job": job}
            result = apart.run_apart(__file__, asked, args.dali if side == "dali" else None)
            print(side, job, codec, result, flush=True)
            if "error" not in result:
                results.setdefault(f"{side} {job} {codec}", []).append(result)
            if args.json:
                args.json.write_text(json.dumps({"goals": GOALS, "all": results}, indent=1))
    for name, rows in results.items():
        best = max(row["frames_per_second"] for row in rows)
        print(
            f"{name:22} {best:7.0f} frames/s   goal {GOALS[name.split()[2]]:6}   {best / GOALS[name.split()[2]]:.2f}x"
        )


if __name__ == "__main__":
    main()
