"""A training loop with each loader: share of its rate on a resident batch, and the loader's costs.

    python benchmarks/jobs/train.py [--models resnet50,resnet18,vit_b_16] [--batch 256] [--fill] [--json out.json]

Models of torchvision train in bf16 (autocast, channels_last, SGD) on random labels, fed by: a resident batch of the
final dtype ("synthetic"), dali-run, DALI with decoders on the GPU ("mixed") and on the CPU, and PyTorch's DataLoader
with torchvision's transforms. Each measurement is a separate process; all take turns, `--repeats` times. Prints
medians: images/s, share of synthetic in the same turn, milliseconds per step (p50, p99, largest), GPU memory of PyTorch
and of the loader, milliseconds of processor time per image. `--fill` adds the largest batch that fits without a loader,
found by bisection, and measures the share of its rate that each loader keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import MEAN, STD, WARM_UP, Side, answer, busy, dali_is_installed, gpu_name, measure, versions
from benchmarks.natural import ROOT, add_data_arguments, data_sets, save

Step = Callable[[Any, Any], None]
STEPS = 20
"""Smallest number of steps for a rate."""


def training(d: Side, model: str) -> tuple[Any, Step]:
    """Return PyTorch, and a function that trains ``model`` for one step on images (N, 3, 224, 224) and labels (N)."""
    import torch
    import torchvision

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = getattr(torchvision.models, model)().to(d.torch_device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(images: Any, labels: Any) -> None:
        with torch.autocast(d.torch_device, dtype=torch.bfloat16):
            out = net(images.contiguous(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(out, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return torch, step


def resident(d: Side, torch: Any, batch: int) -> Iterator[tuple[Any, Any]]:
    images = torch.randn((batch, 3, 224, 224), device=d.torch_device)
    labels = torch.randint(0, 1000, (batch,), device=d.torch_device)
    while True:
        yield images, labels


def from_pipeline(d: Side, torch: Any, batch: int, decoder: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield batches of the pipeline `Side.train` through DALIGenericIterator, of dali-run or DALI; with ``decoder``
    "cpu", all work is on the CPU."""
    d.mixed = decoder or d.mixed
    pipe = d.pipeline(lambda: d.train(d.files()), batch, **({"device_id": None} if decoder == "cpu" else {}))
    labels = torch.randint(0, 1000, (batch,), device=d.torch_device)
    for outputs in d.module(".plugin.pytorch").DALIGenericIterator(pipe, ["x"]):
        yield outputs[0]["x"].to(d.torch_device, non_blocking=True), labels


def from_dataloader(d: Side, torch: Any, batch: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches of PyTorch's DataLoader with as many workers as threads."""
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
             transforms.Normalize([m / 255 for m in MEAN], [s / 255 for s in STD])]  # fmt: skip
    data = datasets.ImageFolder(d.data, transforms.Compose(steps))
    while True:
        for images, labels in torch.utils.data.DataLoader(
            data, batch, shuffle=True, num_workers=d.threads, pin_memory=d.gpu, drop_last=True, persistent_workers=True
        ):
            yield images.to(d.torch_device, non_blocking=True), labels.to(d.torch_device, non_blocking=True)


def train(d: Side, model: str, batch: int, source: str) -> dict[str, Any]:
    """Measure rate, step times, memory and processor time of ``model``, fed by ``source``."""
    torch, step = training(d, model)
    batches = SOURCES[source][1](d, torch, batch)
    warm_up, warmed = time.perf_counter() + WARM_UP, 0
    while time.perf_counter() < warm_up or warmed < 3:
        step(*next(batches))
        warmed += 1
    d.synchronize()
    began, start_busy, ends = time.perf_counter(), busy(), list[float]()
    while time.perf_counter() - began < d.seconds or len(ends) < STEPS:
        step(*next(batches))
        if len(ends) % 2:  # the program may be one step ahead of the device, as in a loop that logs its loss
            d.synchronize()
        ends.append(time.perf_counter())
        if not d.gpu and time.perf_counter() - began > 4 * d.seconds:
            break
    d.synchronize()
    seconds, used = time.perf_counter() - began, busy() - start_busy
    pairs = 1e3 * np.diff([began, *ends][::2]) / 2  # half of two steps: every second one waits for the device
    p50, p99 = np.percentile(pairs, (50, 99)) if len(pairs) else (0.0, 0.0)
    count = len(ends) * batch
    found = {"rate": count / seconds, "p50_ms": p50, "p99_ms": p99, "max_ms": max(pairs, default=0.0),
             "cpu_ms": 1e3 * used / count}  # fmt: skip
    if d.memory:
        found["torch_gb"] = torch.cuda.max_memory_reserved() / 1e9
        found["loader_gb"] = max(0, d.memory.peak - d.memory.base) / 1e9 - found["torch_gb"]
    return found


def largest_batch(d: Side, model: str) -> dict[str, Any]:
    """Return the largest batch size, a multiple of 16, with which ``model`` can train three steps without a loader."""
    torch, step = training(d, model)

    def fits(batch: int) -> bool:
        try:
            batches = resident(d, torch, batch)
            for _ in range(3):
                step(*next(batches))
            d.synchronize()
            return True
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()

    low, high = 256, 8192
    while high - low > 16:
        middle = (low + high) // 32 * 16
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {"batch": low}


SOURCES: dict[str, tuple[str, Callable[..., Iterator[tuple[Any, Any]]]]] = {
    "synthetic": ("dali_run", resident),
    "dali-run": ("dali_run", from_pipeline),
    "DALI mixed": ("nvidia.dali", from_pipeline),
    "DALI cpu": ("nvidia.dali", partial(from_pipeline, decoder="cpu")),
    "DataLoader": ("dali_run", from_dataloader),
}
"""For each source of batches, by name: the library that its process uses, and the function that yields the batches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,resnet18,vit_b_16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--fill", action="store_true", help="also measure the largest batch that fits")
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu" if gpu_name() else "cpu")
    add_data_arguments(parser, 2)
    args = parser.parse_args()
    if args.child:
        row = json.loads(args.child)["row"]
        if row.startswith("largest "):
            answer(args.child, {row: partial(largest_batch, model=row.split()[1])})
        model, batch, source = row.split(" ", 2)
        answer(args.child, {row: partial(train, model=model, batch=int(batch), source=source)})
    sources = [s for s in args.sources.split(",") if SOURCES[s][0] == "dali_run" or dali_is_installed()]
    result: dict[str, Any] = {"gpu": gpu_name(), "versions": versions(ROOT), "threads": args.threads, "rows": {}}
    with data_sets(args) as (scratch, data):
        apart = partial(measure, __file__, device=args.device, package=str(ROOT), data=str(data.path("val")),
                        threads=args.threads, seconds=args.seconds, scratch=str(scratch))  # fmt: skip
        for model in args.models.split(","):
            batches = [args.batch]
            if args.fill:
                batches += (
                    [found["batch"]] if "batch" in (found := apart(f"largest {model}", library="dali_run")) else []
                )
            for batch in batches:
                found_by: dict[str, list[dict[str, Any]]] = {source: [] for source in sources}
                result["rows"][f"{model} {batch}"] = found_by
                for _ in range(args.repeats):
                    for source in sources:
                        found = apart(f"{model} {batch} {source}", library=SOURCES[source][0])
                        found_by[source].append(found)
                        synthetic = found_by.get("synthetic", [{}])[-1].get("rate")
                        if synthetic and "rate" in found:
                            found["share"] = found["rate"] / synthetic
                        save(args.json, result)
                for source, turns in found_by.items():
                    print(f"{model} {batch}  {source:11} {_line(turns)}", flush=True)


def _line(turns: list[dict[str, Any]]) -> str:
    measured = [turn for turn in turns if "rate" in turn]
    if not measured:
        return str(turns[-1])
    middle = {key: median(turn.get(key, 0.0) for turn in measured) for key in measured[0]}
    line = (
        f"{middle['rate']:8,.0f}/s  {100 * middle.get('share', 1):5.1f} % of synthetic  step {middle['p50_ms']:.1f} ms,"
    )
    line += (
        f" p99 {middle['p99_ms']:.1f}, largest {middle['max_ms']:.1f}  processors {middle['cpu_ms']:.3f} ms an image"
    )
    if "loader_gb" in middle:
        line += f"  GPU memory: PyTorch {middle['torch_gb']:.1f} GB, loader {middle['loader_gb']:.1f} GB"
    return line


if __name__ == "__main__":
    main()
