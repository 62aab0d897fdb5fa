"""Is a PyTorch loop fed as fast as the bare pipeline runs? The training graph of ImageNet, in turns with `bench`.

    python benchmarks/torch_loop.py FOLDER [--device gpu] [--batch 256] [--torch-path SITE_PACKAGES] [--json FILE]

FOLDER holds JPEGs (FOLDER/<class>/<file>, or files alone); they are copied (--copies) into a scratch data set. The loop
takes batches from DALIClassificationIterator; the bare pipeline is the same graph as YAML, measured as `dali-run bench`
does, in a process of its own. The ratio is the median over the pairs; the script ends with 1 where it is below 0.95
(--least). PyTorch is imported from --torch-path, if given.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dali_run import Pipeline, fn, pipeline_def, types

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def training(root: str, device: str, batch: int, threads: int, depth: int) -> Pipeline:
    """The graph of configs/imagenet_train.yaml."""

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=0 if device == "gpu" else None, seed=42,
                  prefetch_queue_depth=depth)  # fmt: skip
    def pipe() -> Any:
        jpegs, labels = fn.readers.file(file_root=root, name="Reader", random_shuffle=True, initial_fill=4096)
        images = fn.decoders.image_random_crop(
            jpegs, device="mixed" if device == "gpu" else "cpu", random_area=[0.08, 1.0],
            random_aspect_ratio=[0.75, 1.333333],
        )  # fmt: skip
        images = fn.resize(images, size=[224, 224], interp_type=types.INTERP_TRIANGULAR)
        images = fn.crop_mirror_normalize(images, dtype=types.FLOAT16, output_layout="CHW", mean=MEAN, std=STD,
                                          mirror=fn.random.coin_flip(probability=0.5))  # fmt: skip
        return {"image": images, "label": labels}

    return pipe()


def run_loop(given: dict[str, Any]) -> dict[str, Any]:
    """Samples a second that a PyTorch loop is given."""
    import torch

    from dali_run.plugin.pytorch import DALIClassificationIterator

    seconds = given.pop("seconds")
    pipe = training(**given)
    batches = DALIClassificationIterator(pipe, auto_reset=True)
    for _ in range(8):
        next(batches)
    samples, checksum = 0, 0.0
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        data = next(batches)[0]
        checksum += float(data["label"].view(-1)[0]) if not data["label"].is_cuda else 0.0
        samples += len(data["data"])
        given["views"] = [str(data["data"].dtype), list(data["data"].shape), str(data["data"].device)]
    return {"samples_per_second": samples / taken, "torch": torch.__version__, "checksum": checksum, **given}


def apart(command: list[str], path: str | None = None) -> dict[str, Any]:
    """What a process of its own prints last."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), env.get("PYTHONPATH"), path]))
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        sys.exit(answer["error"])
    return answer


def copies_of(folder: Path, scratch: Path, copies: int) -> None:
    """The JPEGs of ``folder``, several times, in two classes."""
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        sys.exit(f"{folder} holds no JPEGs")
    for k in range(copies):
        for i, file in enumerate(files):
            target = scratch / "ab"[i % 2] / f"{k}-{i:05d}.jpg"
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--depth", type=int, default=2, help="prefetch_queue_depth")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.95)
    parser.add_argument("--torch-path")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.loop:
        print(json.dumps(run_loop(json.loads(given.loop))))
        return
    if given.folder is None:
        parser.error("FOLDER is missing")
    pairs = []
    with tempfile.TemporaryDirectory() as scratch:
        copies_of(given.folder, Path(scratch), given.copies)
        settings = {"root": scratch, "device": given.device, "batch": given.batch, "threads": given.threads,
                    "depth": given.depth}  # fmt: skip
        spec = Path(scratch) / "spec.yaml"
        spec.write_text(training(**settings).to_yaml())
        bare = {"what": "measure", "spec": str(spec), "seconds": given.seconds, "warm_up": 8,
                "overrides": {"pipeline.prefetch_queue_depth": str(given.depth)}}  # fmt: skip
        for _ in range(given.repeats):
            bench = apart(["-m", "dali_run.pipelines.bench_child", json.dumps(bare)])
            loop = apart([__file__, "--loop", json.dumps({**settings, "seconds": given.seconds})], given.torch_path)
            pairs.append((bench["samples_per_second"], loop["samples_per_second"]))
            print(f"bench {pairs[-1][0]:10.0f}/s   PyTorch {pairs[-1][1]:10.0f}/s   {pairs[-1][1] / pairs[-1][0]:.3f}",
                  flush=True)  # fmt: skip
    ratio = statistics.median(loop / bench for bench, loop in pairs)
    print(f"median ratio {ratio:.3f}")
    if given.json:
        facts = {"pairs": pairs, "ratio": ratio, "torch": loop["torch"], "batch_of": loop["views"],
                 "load_average": os.getloadavg()[0], **{k: v for k, v in settings.items() if k != "root"}}  # fmt: skip
        given.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(ratio < given.least)


if __name__ == "__main__":
    main()
