"""dali_run.transforms beside torchvision v2: a batch here, one image after the other there, pixels compared.

    python benchmarks/operators/transforms.py [--only jitter,train] [--images 64] [--size 256] [--rounds 5]
        [--device gpu] [--json out.json]

Both take turns; each round is torchvision with one thread, this package, torchvision with all threads, this package.
`time` is the ratio of the best times (torchvision's with the better number of threads), `work` that of the processor
time of all threads (torchvision's with one thread), which other load on the machine changes little. Ratios above 1 say
that this package takes less. `equal` says whether all pixels are, for the same torch.manual_seed.

With --device gpu the batch is a CUDA tensor, for both, and times are until the GPU is done, many calls after each other
with one wait. torchvision is called with each image, as on the CPU, and, as `batch`, with the whole batch, whose images
then share their random numbers. `equal` compares with torchvision on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).parents[2]))

import dali_run.transforms as ours

NORM = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CHAINS: dict[str, Callable[[Any], Any]] = {
    "Resize(224)": lambda M: M.Resize(224),
    "Resize(224, bicubic)": lambda M: M.Resize(224, interpolation=M.InterpolationMode.BICUBIC),
    "RandomResizedCrop(224)": lambda M: M.RandomResizedCrop(224),
    "CenterCrop(224)": lambda M: M.CenterCrop(224),
    "RandomHorizontalFlip": lambda M: M.RandomHorizontalFlip(),
    "Pad(16, reflect)": lambda M: M.Pad(16, padding_mode="reflect"),
    "RandomRotation(30)": lambda M: M.RandomRotation(30),
    "RandomRotation(30, bilinear)": lambda M: M.RandomRotation(30, interpolation=M.InterpolationMode.BILINEAR),
    "RandomAffine": lambda M: M.RandomAffine(20, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10),
    "RandomPerspective": lambda M: M.RandomPerspective(p=1),
    "ColorJitter(.4, .4, .4, .1)": lambda M: M.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "ColorJitter(.4, .4, .4)": lambda M: M.ColorJitter(0.4, 0.4, 0.4),
    "Grayscale(3)": lambda M: M.Grayscale(3),
    "GaussianBlur(5)": lambda M: M.GaussianBlur(5),
    "GaussianBlur(23)": lambda M: M.GaussianBlur(23),
    "RandomInvert": lambda M: M.RandomInvert(1),
    "RandomPosterize(4)": lambda M: M.RandomPosterize(4, 1),
    "RandomSolarize(128)": lambda M: M.RandomSolarize(128, 1),
    "RandomAutocontrast": lambda M: M.RandomAutocontrast(1),
    "RandomEqualize": lambda M: M.RandomEqualize(1),
    "RandomAdjustSharpness(2)": lambda M: M.RandomAdjustSharpness(2, 1),
    "RandAugment": lambda M: M.RandAugment(),
    "TrivialAugmentWide": lambda M: M.TrivialAugmentWide(),
    "AutoAugment": lambda M: M.AutoAugment(),
    "ToDtype(float32)": lambda M: M.ToDtype(torch.float32, scale=True),
    "ToDtype, Normalize": lambda M: M.Compose([M.ToDtype(torch.float32, scale=True), M.Normalize(*NORM)]),
    "ImageNet: crop, flip, RandAugment, floats": lambda M: M.Compose([
        M.RandomResizedCrop(224), M.RandomHorizontalFlip(), M.RandAugment(), M.ToDtype(torch.float32, scale=True),
        M.Normalize(*NORM),
    ]),
    "SimCLR: crop, flip, jitter, gray, blur, floats": lambda M: M.Compose([
        M.RandomResizedCrop(224), M.RandomHorizontalFlip(), M.RandomApply([M.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        M.RandomGrayscale(0.2), M.GaussianBlur(23), M.ToDtype(torch.float32, scale=True),
    ]),
    "validation: resize, crop, floats": lambda M: M.Compose([
        M.Resize(236), M.CenterCrop(224), M.ToDtype(torch.float32, scale=True), M.Normalize(*NORM),
    ]),
}  # fmt: skip


def pictures(count: int, size: int) -> torch.Tensor:
    """Slopes, edges and noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    base = np.stack([40 + (x * (k + 1) + 2 * y) % 160 + 25 * ((x // 19 + y // 17 + k) % 2) for k in range(3)])
    return torch.from_numpy(np.clip(base + rng.integers(-12, 13, (count, *base.shape)), 0, 255).astype(np.uint8))


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of processors."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(make: Callable[[Any], Any], batch: torch.Tensor, rounds: int, threads: int) -> dict[str, Any]:
    theirs, mine = make(v2), make(ours)
    torch.manual_seed(1)
    wanted = [theirs(x) for x in batch]
    torch.manual_seed(1)
    equal = all(torch.equal(a, b) for a, b in zip(wanted, mine(batch), strict=True))
    best = {k: [float("inf")] * 2 for k in ("one", "all", "ours")}
    for _ in range(rounds):
        for name, count in (("one", 1), ("all", threads)):
            torch.set_num_threads(count)
            for key, work in ((name, lambda: [theirs(x) for x in batch]), ("ours", lambda: mine(batch))):
                best[key] = [min(a, b) for a, b in zip(best[key], measured(work), strict=True)]
    fastest = min(best["one"][0], best["all"][0])
    return {"ms": best["ours"][0] * 1e3, "torchvision_ms": fastest * 1e3, "time": fastest / best["ours"][0],
            "work": best["one"][1] / best["ours"][1], "equal": equal}  # fmt: skip


def on_gpu(make: Callable[[Any], Any], batch: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Milliseconds for a batch that lies on the GPU."""
    theirs, mine, there = make(v2), make(ours), batch.cuda()
    torch.manual_seed(1)
    wanted = [theirs(x) for x in batch]
    torch.manual_seed(1)
    equal = all(torch.equal(a, b.cpu()) for a, b in zip(wanted, mine(there), strict=True))
    works: dict[str, Callable[[], Any]] = {
        "torchvision_ms": lambda: [theirs(x) for x in there], "torchvision_batch_ms": lambda: theirs(there),
        "ms": lambda: mine(there),
    }  # fmt: skip
    best = dict.fromkeys(works, float("inf"))
    for turn in range(rounds + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            torch.cuda.synchronize()
            calls = min(100, max(1, int(0.03 / (time.perf_counter() - begin))))
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            torch.cuda.synchronize()
            if turn:
                best[name] = min(best[name], (time.perf_counter() - begin) / calls * 1e3)
    ratios = {"time": best["torchvision_ms"] / best["ms"], "batch_time": best["torchvision_batch_ms"] / best["ms"]}
    return {**best, **ratios, "equal": equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names that hold one of these, with commas between")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    threads = torch.get_num_threads()
    batch = pictures(options.images, options.size)
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, {threads} threads, "
          f"{tuple(batch.shape)}, ms for the batch")  # fmt: skip
    gpu = options.device == "gpu"
    last = ("torchvision_batch_ms", "batch_time") if gpu else ("work",)
    print(f"{'':48}{'torchvision':>12}{'ours':>9}{'time':>8}" + ("   batch    time" if gpu else "    work") + "  equal")
    found = {}
    for name, make in CHAINS.items():
        if any(part.lower() in name.lower() for part in options.only.split(",")):
            row = on_gpu(make, batch, options.rounds) if gpu else compare(make, batch, options.rounds, threads)
            found[name] = row
            print(f"{name:48}{row['torchvision_ms']:12.1f}{row['ms']:9.2f}{row['time']:8.1f}"
                  + "".join(f"{row[key]:8.1f}" for key in last) + f"  {'yes' if row['equal'] else 'NO'}",
                  flush=True)  # fmt: skip
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
