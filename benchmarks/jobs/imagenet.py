"""ImageNet JPEGs from files to normalised tensors, this engine and NVIDIA DALI in one interleaved run.

    python benchmarks/jobs/imagenet.py FOLDER [--dali-path SITE_PACKAGES] [--seconds 4] [--repeats 2] [--json out.json]
    python benchmarks/jobs/imagenet.py FOLDER --device cpu --ours auto:64:2:1 --dali 64:2 --dali-path SITE_PACKAGES
    python benchmarks/jobs/imagenet.py FOLDER --ours auto:1024:8:4:tfrecord --dali 256:8,256:8:tfrecord --dali-path ...

FOLDER holds JPEGs; a scratch data set of --gigabytes of different ones is made of them (benchmarks/data/different.py;
0: they are copied --copies times), single files or a container; with `--photos N`, N photos of 12 megapixels made of
them (benchmarks/jpeg/photos.py) take their place. The job: decode, shorter side 256 (triangular), centre crop 224,
normalise, float32 CHW; results stay on the GPU. Every setting of both runs in a process of its own, in turns; the best
repeat counts. DALI is imported from --dali-path and reads single files, or the containers that it has readers for.
Beside the images a second stands the processor time an image, that of decoders in processes of their own included,
which other work on the machine disturbs less, and its median.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files
from benchmarks.data.host_planning import UNCHECKED, data_set, reader
from benchmarks.jobs import apart
from benchmarks.jobs.steady import Rate, steady

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
WARM_UP = 1.5
"""Seconds that a pipeline runs before the clock starts, ours and DALI's: page-locked and GPU memory is made in them."""


def our_plan(root: str, device: str, job: str, decoder: str, source: str) -> Any:
    """The compiled job."""
    from dali_run.pipelines.compile.place import Target
    from dali_run.pipelines.compile.plan import compile_graph
    from dali_run.pipelines.graph.builder import GraphBuilder
    from dali_run.pipelines.plugins import load_operators

    load_operators()
    b = GraphBuilder()
    records = reader(b, source, root)
    x = records["x"]
    if job == "train":
        (x,) = b.add("decoders.image_random_crop", [x], {"jpeg_decoder": decoder})
        (x,) = b.add("resize", [x], {"size": [224, 224]})
        (mirror,) = b.add("random.coin_flip")
        (x,) = b.add("crop_mirror_normalize", [x], {"mean": MEAN, "std": STD, "crop": [224, 224], "mirror": mirror})
    else:
        (x,) = b.add("decoders.image", [x], {"jpeg_decoder": decoder})
        if job == "val":
            (x,) = b.add("resize", [x], {"resize_shorter": 256, "interp_type": "TRIANGULAR"})
            (x,) = b.add("crop_mirror_normalize", [x], {"mean": MEAN, "std": STD, "crop": [224, 224]})
    return compile_graph(b.build(records | {"x": x}), Target(device), 1)


def measure_ours(
    root: str, device: str, job: str, decoder: str, batch: int, threads: int, lanes: int, source: str, seconds: float
) -> dict[str, Any]:
    import itertools

    from dali_run.pipelines.engine.engine import Engine, Options, Request
    from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
    from dali_run.pipelines.engine.options import ahead_for
    from dali_run.pipelines.job.report import build_report

    words = decoder.split("+")
    known, uploads = "known" in words, [word for word in words if word in ("copy", "pieces", "registered")]
    upload = uploads[0] if uploads else "auto"
    plan = our_plan(root, device, job, "auto" if known or uploads else decoder, source)
    options = Options(num_threads=threads, gpu_queue=2, cpu_queue=ahead_for(3, threads), lanes=lanes, to_host=False,
                      together=True, repeats=known, upload=upload)  # fmt: skip
    requests = (Request(k * batch, batch) for k in itertools.count())
    began = time.perf_counter()
    with Sources(plan, batch) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        epochs = 2 * len(sources.readers[0][3]) if known else 0  # those that find out, and use, what is to be known
        rate = steady(lambda: len(next(engine).samples), began, seconds, WARM_UP, least=epochs)
        report = build_report(engine, rate.seconds, {"read": rate.samples}, sink="take")
    busy = {s["id"]: round(s["busy_seconds"], 3) for s in report["stages"]}
    gpu = {o["name"]: round(o["gpu_seconds"] or o["cpu_seconds"], 3) for o in report["operators"]}
    return {**told(rate), "fused": report["fused"], "busy": busy, "operators": gpu, "fallbacks": report["fallbacks"],
            "decoders": report["decoders"], "decoder_times": report["decoder_times"], "rejected": report["rejected"],
            "uploads": report["uploads"], "memory": report["memory"]}  # fmt: skip


def read_by_dali(source: str, root: str) -> Any:
    """DALI's shuffled reader of the data set at ``root``: the files and their labels."""
    from nvidia.dali import fn, tfrecord

    shuffle = {"random_shuffle": True, "initial_fill": 4096, "prefetch_queue_depth": 2}
    if source == "tfrecord":
        path = f"{root}/images.tfrecord"
        features = {"image": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                    "label": tfrecord.FixedLenFeature([1], tfrecord.int64, 0)}  # fmt: skip
        found = fn.readers.tfrecord(path=path, index_path=indexed(path), features=features, **shuffle)
        return found["image"], found["label"]
    if source == "tar":
        return fn.readers.webdataset(paths=f"{root}/images.tar", ext=["jpg", "cls"], **shuffle)
    if source == "recordio":
        return fn.readers.mxnet(path=[f"{root}/images.rec"], index_path=[f"{root}/images.idx"], **shuffle)
    return fn.readers.file(file_root=root, random_shuffle=True, prefetch_queue_depth=2)


def indexed(path: str) -> str:
    """Where each record of a TFRecord file begins and its size, in the file that DALI wants."""
    at, lines = 0, []
    with open(path, "rb") as records:
        while header := records.read(8):
            size = 16 + struct.unpack("<Q", header)[0]
            lines.append(f"{at} {size}\n")
            at += size
            records.seek(at)
    Path(f"{path}.idx").write_text("".join(lines))
    return f"{path}.idx"


def dali_pipeline(root: str, device: str, job: str, batch: int, threads: int, source: str) -> Any:
    """The same job of DALI's, not built yet."""
    from nvidia.dali import fn, pipeline_def, types

    decoder = "cpu" if device == "cpu" else "mixed"

    @pipeline_def(
        batch_size=batch, num_threads=threads, device_id=None if device == "cpu" else 0, prefetch_queue_depth=3
    )
    def pipe() -> Any:
        x, label = read_by_dali(source, root)
        if job == "train":
            x = fn.decoders.image_random_crop(x, device=decoder)
            x = fn.resize(x, size=[224, 224])
            x = fn.crop_mirror_normalize(x, mean=MEAN, std=STD, crop=[224, 224], mirror=fn.random.coin_flip())
        else:
            x = fn.decoders.image(x, device=decoder)
            if job == "val":
                x = fn.resize(x, resize_shorter=256, interp_type=types.INTERP_TRIANGULAR)
                x = fn.crop_mirror_normalize(x, mean=MEAN, std=STD, crop=[224, 224])
        return x, label

    return pipe()


def measure_dali(
    root: str, device: str, job: str, batch: int, threads: int, source: str, seconds: float
) -> dict[str, Any]:
    p = dali_pipeline(root, device, job, batch, threads, source)

    def step() -> int:
        p.run()
        return batch

    began = time.perf_counter()
    p.build()
    return told(steady(step, began, seconds, WARM_UP))


def told(rate: Rate) -> dict[str, Any]:
    return {"images_per_second": rate.per_second(), "cpu_ms_per_image": rate.cpu_ms(),
            "first_batch_s": rate.first_batch}  # fmt: skip


def run_apart(arguments: dict[str, Any], path: str | None) -> dict[str, Any]:
    """One measurement of this file in a process of its own."""
    return apart.run_apart(__file__, arguments, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--jobs", default="val", help="of val, train, decode")
    parser.add_argument("--gigabytes", type=float, default=4, help="of different files; 0: copies of FOLDER's")
    parser.add_argument("--copies", type=int, default=8, help="with --gigabytes 0")
    parser.add_argument("--scratch", type=Path, help="where the data set goes while the benchmark runs")
    parser.add_argument("--photos", type=int, default=0, help="use so many large photos made of the files")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--ours",
        default="auto:256:8:4,auto:1024:8:4,nvjpeg:512:8:3",
        help="decoder:batch:threads:lanes, and :source (tar, lmdb, tfrecord, recordio) unless from single files; "
        "known for a decoder: auto, from the third epoch on, by what the first found out (jpeg/boundaries.py); "
        "copy, pieces, registered: auto, with that for upload; known+registered: both",
    )
    parser.add_argument(
        "--dali", default="256:8,256:16,512:16", help="batch:threads, and :source (tar, tfrecord, recordio)"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        apart.answer(args.child, {"ours": measure_ours, "dali": measure_dali})
        return
    with (
        tempfile.TemporaryDirectory(dir=args.scratch) as scratch,
        tempfile.TemporaryDirectory(dir=args.scratch) as large,
    ):
        if args.photos:
            from benchmarks.jpeg.photos import write_photos

            files = write_photos(args.folder, Path(large), args.photos)
        else:
            files = data_files(args.folder, Path(large), args.gigabytes)
        copies = args.copies if args.photos or not args.gigabytes else 1
        nbytes = sum(f.stat().st_size for f in files)
        print(f"{len(files):,} files of {nbytes / 1e9:.2f} GB, copied {copies} times", flush=True)

        def placed(source: str) -> dict[str, str]:
            """The data set as ``source``, made when it is first asked for."""
            kind = "tfrecord" if source == UNCHECKED else source
            place = Path(scratch, kind)
            if not place.exists():
                place.mkdir()
                data_set(kind, files, copies, place)
            return {"source": source, "root": str(place)}

        settings: list[tuple[str, dict[str, Any]]] = []
        for job in args.jobs.split(","):
            for text in filter(None, args.ours.split(",")):
                decoder, batch, threads, lanes, *source = text.split(":")
                ours = {"decoder": decoder, "batch": int(batch), "threads": int(threads), "lanes": int(lanes)}
                place = placed(source[0] if source else "files")
                settings.append((f"{job} ours {text}", {"what": "ours", "job": job, **ours, **place}))
            for text in filter(None, args.dali.split(",") if args.dali_path else []):
                batch, threads, *source = text.split(":")
                dali = {"batch": int(batch), "threads": int(threads)}
                place = placed(source[0] if source else "files")
                settings.append((f"{job} dali {text}", {"what": "dali", "job": job, **dali, **place}))
        results: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in settings}
        for _ in range(args.repeats):
            for name, setting in settings:
                result = run_apart({**setting, "device": args.device, "seconds": args.seconds}, args.dali_path)
                results[name].append(result)
                print(name, result.get("images_per_second", result), result.get("cpu_ms_per_image"), flush=True)
    best = {k: max((r.get("images_per_second", 0.0) for r in v), default=0.0) for k, v in results.items()}
    cost = {k: median([r.get("cpu_ms_per_image", float("nan")) for r in v]) for k, v in results.items()}
    for job in args.jobs.split(","):
        peer = max((v for k, v in best.items() if k.startswith(f"{job} dali")), default=0.0)
        for name, value in best.items():
            if name.startswith(job):
                line = f"{name:40} {value:10,.0f} images/s  {cost[name]:6.3f} ms of processors an image"
                print(line + (f"  {value / peer:6.2f}x DALI's best" if peer else ""))
    if args.json:
        args.json.write_text(
            json.dumps(
                {
                    "best": best,
                    "median_cpu_ms": cost,
                    "load": os.getloadavg(),
                    "files": len(files),
                    "bytes": nbytes,
                    "copies": copies,
                    "all": results,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
