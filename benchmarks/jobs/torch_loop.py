"""Is a PyTorch loop fed as fast as the bare pipeline runs? The training graph of ImageNet, in turns with `bench`.

    python benchmarks/jobs/torch_loop.py FOLDER [--device gpu] [--batch 256] [--torch-path SITE_PACKAGES] [--json FILE]

FOLDER holds JPEGs (FOLDER/<class>/<file>, or files alone); they are copied (--copies) into a scratch data set, which
has more names (--epoch) for the copies: at the end of an epoch a loop waits for its GPU, and real ones are not over
after four batches. Three processes stand ready and run in turns, a few seconds each:

    bench     the spec's graph in the bare engine, as `dali-run bench` measures it
    run       Pipeline.run() of the same graph, written in Python
    PyTorch   epochs of DALIClassificationIterator over that pipeline; every batch is used on its device

The ratio is the median over the rounds of PyTorch's rate to bench's; the script ends with 1 where it is below 0.95
(--least), or where nothing could be measured. It ends within --budget seconds. PyTorch is imported from --torch-path,
if given; the package itself from the repository.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.different import data_files
from dali_run import Pipeline, fn, pipeline_def, types

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
SIDES = ("bench", "run", "PyTorch")
_READY = {"cpu": 6, "gpu": 20}
"""Times the depth of queues: batches that may lie ready when a turn begins (on a GPU, small ones go together). They are
taken before the clock starts, while the side before fills its own queues again."""


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


def bench_batches(settings: dict[str, Any]) -> Iterator[int]:
    """The samples of each batch of the bare engine, endlessly; nothing is done with them."""
    from dataclasses import replace

    from dali_run.pipelines.bench.measure import Measurement
    from dali_run.pipelines.engine.engine import Engine, Request
    from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
    from dali_run.pipelines.job.run import options_of

    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(training(**settings).to_yaml())
        overrides = {"pipeline.prefetch_queue_depth": str(settings["depth"])}
        built, plan = Measurement(str(spec), overrides, 0, 0).compiled()
    size = settings["batch"]
    requests = (Request(k * size, size) for k in itertools.count())
    options = replace(options_of(built.spec, plan.target), to_host=False, together=True)
    with Sources(plan, size) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        yield from (len(iteration.samples) for iteration in engine)


def run_batches(settings: dict[str, Any]) -> Iterator[int]:
    """The samples of each batch of Pipeline.run()."""
    pipe = training(**settings)
    while True:
        yield len(pipe.run()[0])


def torch_batches(settings: dict[str, Any]) -> Iterator[int]:
    """The samples of each batch of a PyTorch loop, epoch after epoch. Raises AssertionError for other tensors than
    such a loop must get."""
    import torch

    from dali_run.plugin.pytorch import DALIClassificationIterator

    where = "cuda" if settings["device"] == "gpu" else "cpu"
    batches = DALIClassificationIterator(training(**settings), reader_name="Reader", auto_reset=True)
    total = torch.zeros((), dtype=torch.float32, device=where)
    while True:
        for data in batches:
            images, labels = data[0]["data"], data[0]["label"]
            assert images.device.type == where
            assert images.dtype == torch.float16
            assert images.shape == (settings["batch"], 3, 224, 224)
            assert labels.shape == (settings["batch"], 1)
            total += images[:, 0, 112, 112].sum()  # what a model would do: a kernel on this stream reads the batch
            yield len(images)
        assert bool(torch.isfinite(total))


def serve(side: str, settings: dict[str, Any]) -> None:
    """For every line with a number of seconds, print samples a second. The first line that is printed says what runs:
    it comes when the first batch has."""
    from dali_run.ops.gpu.lane import gpu_count

    if settings["device"] == "gpu" and not gpu_count():
        sys.exit("there is no GPU that can be used; `dali-run doctor` says why")
    makers = {"bench": bench_batches, "run": run_batches, "PyTorch": torch_batches}
    batches = makers[side](settings)
    next(batches)
    torch = sys.modules.get("torch")
    print(json.dumps({"torch": torch.__version__ if torch else None}), flush=True)
    for line in sys.stdin:
        for _ in range(_READY[settings["device"]] * settings["depth"]):
            next(batches)
        samples, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < float(line):
            samples += next(batches)
        print(json.dumps(samples / taken), flush=True)
    batches.close()  # type: ignore[attr-defined]


class Side:
    """A process that is asked in turns."""

    def __init__(self, name: str, settings: dict[str, Any], path: str | None) -> None:
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), path if name == "PyTorch" else None]))
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, json.dumps(settings)], text=True, env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def answer(self) -> Any:
        """The next line that it prints; what it complained of before it ended is on stderr."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: ended with {self.process.wait()}")
        return json.loads(line)

    def rate(self, seconds: float) -> float:
        """Samples a second, now."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.answer())


def copies_of(folder: Path, scratch: Path, copies: int, names: int) -> None:
    """The JPEGs of ``folder``, several times, in two classes, under ``names`` names or a few more."""
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        sys.exit(f"{folder} holds no JPEGs")
    for k in range(copies):
        for i, file in enumerate(files):
            target = scratch / "ab"[i % 2] / f"{k}-{i:05d}.jpg"
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
            for n in range(1, -(-names // (copies * len(files)))):
                os.link(target, target.with_stem(f"{target.stem}-{n}"))


def measure(given: argparse.Namespace, sides: list[Side], settings: dict[str, Any]) -> dict[str, Any]:
    """Start the sides, one after the other (the first one fills the caches of compiled kernels), and ask them in turns
    for as long as the budget lets."""
    began = time.perf_counter()
    facts: dict[str, Any] = {}
    for name in SIDES:
        sides.append(Side(name, settings, given.torch_path))
        facts |= {k: v for k, v in sides[-1].answer().items() if v}
        print(f"{name} is ready after {time.perf_counter() - began:.1f} s", flush=True)
    for side in sides:
        side.rate(0.5)  # caches, clocks
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    longest = 0.0
    while len(rates["bench"]) < given.repeats:
        started = time.perf_counter()
        if rates["bench"] and started - began + longest > given.budget:
            break
        for side in sides:
            rates[side.name].append(side.rate(given.seconds))
        longest = max(longest, time.perf_counter() - started)
        print("   ".join(f"{name} {found[-1]:9.0f}/s" for name, found in rates.items()), flush=True)
    ratios = {name: [a / b for a, b in zip(rates[name], rates["bench"], strict=True)] for name in ("run", "PyTorch")}
    return {
        "ratio": statistics.median(ratios["PyTorch"]), "ratio_of_run": statistics.median(ratios["run"]),
        "ratios": [round(r, 4) for r in ratios["PyTorch"]],
        "samples_per_second": {name: round(statistics.median(found), 1) for name, found in rates.items()},
        "rates": {name: [round(r, 1) for r in found] for name, found in rates.items()},
        **facts, **{k: v for k, v in settings.items() if k != "root"}, "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--depth", type=int, default=2, help="prefetch_queue_depth")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--gigabytes", type=float, default=0, help="of different files, instead of copies of FOLDER's")
    parser.add_argument("--epoch", type=int, default=50_000, help="images that an epoch has at least")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budget", type=float, default=80, help="seconds, all in all")
    parser.add_argument("--least", type=float, default=0.95)
    parser.add_argument("--torch-path")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], json.loads(given.serve[1]))
        return
    if given.folder is None:
        parser.error("FOLDER is missing")

    def too_late(*_: object) -> None:
        sys.exit(f"no result within {given.budget + 8:g} s")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(int(given.budget + 8))
    sides: list[Side] = []
    try:
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as large:
            folder, copies = given.folder, given.copies
            if given.gigabytes:
                signal.alarm(0)
                data_files(folder, Path(large), given.gigabytes)
                folder, copies = Path(large), 1
                signal.alarm(int(given.budget + 8))
            copies_of(folder, Path(scratch), copies, given.epoch)
            settings = {"root": scratch, "device": given.device, "batch": given.batch, "threads": given.threads,
                        "depth": given.depth}  # fmt: skip
            facts = measure(given, sides, settings)
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()
    print(f"median ratio to bench: PyTorch {facts['ratio']:.3f}, Pipeline.run() {facts['ratio_of_run']:.3f}")
    if given.json:
        given.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(facts["ratio"] < given.least)


if __name__ == "__main__":
    main()
