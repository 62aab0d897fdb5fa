"""Measure PyTorch's two ways to run an image recipe, in the same way as `bench.measure`.

    python torch_loop.py torchvision|dataloader recipe.json

``torchvision``: `decode_jpeg` (nvJPEG on a GPU, libjpeg-turbo in threads otherwise) and transforms on tensors.
``dataloader``: a DataLoader whose worker processes run transforms on Pillow images, as in PyTorch's ImageNet example.
Both are written as their documentation advises, and run in an interpreter without this package. Started by `bench.run`.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file
from torchvision.transforms import v2

RECIPE: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())
GPU = RECIPE["gpu"]
DEVICE = torch.device("cpu" if GPU is None else f"cuda:{GPU}")


def transforms() -> list[Any]:
    """Return torchvision's transforms that follow the decoder, up to the crop and the mirror. They accept tensors and
    Pillow images."""
    made: list[Any] = []
    mode = v2.InterpolationMode(RECIPE["filter"])
    size, antialias = RECIPE["size"], RECIPE["antialias"]
    if RECIPE["area"] is not None:
        made.append(v2.RandomResizedCrop(size, RECIPE["area"], RECIPE["ratio"], mode, antialias))
    elif size is not None:
        made.append(v2.Resize(size, mode, antialias=antialias))
    if RECIPE["crop"] is not None:
        made.append(v2.CenterCrop(RECIPE["crop"]))
    if RECIPE["mirror"]:
        made.append(v2.RandomHorizontalFlip(RECIPE["mirror"]))
    return made


def normalizing() -> list[Any]:
    """Return the last transforms: they convert uint8 tensors (on any device, single or in batches) to the recipe's
    final type and layout."""
    made: list[Any] = []
    if RECIPE["mean"] is not None:
        made += [v2.ToDtype(torch.float32), v2.Normalize(RECIPE["mean"], RECIPE["std"])]
    if RECIPE["dtype"] == "FLOAT16":
        made.append(v2.ToDtype(torch.float16))
    if RECIPE["layout"] == "HWC":
        made.append(lambda x: x.movedim(-3, -1).contiguous())
    return made


def apply(steps: list[Any], x: Any) -> Any:
    """Return ``x`` after applying ``steps`` to it, one after the other."""
    for step in steps:
        x = step(x)
    return x


def ragged() -> bool:
    """Return whether the recipe's images can differ in size within a batch, so that they cannot be stacked."""
    size = RECIPE["size"]
    return RECIPE["crop"] is None and (size is None or len(size) != 2)


def endless_batches() -> Iterator[list[int]]:
    """Yield the indices of the files of one batch after the other, epoch after epoch without end."""
    n = len(RECIPE["files"])

    def numbers() -> Iterator[int]:
        draw = random.Random(0)
        order = list(range(n))
        while True:
            if RECIPE["shuffle"]:
                draw.shuffle(order)
            yield from order

    stream = numbers()
    while True:
        yield list(itertools.islice(stream, RECIPE["batch_size"]))


def batches_of_torchvision() -> Iterator[tuple[Any, Any]]:
    """Yield batches that torchvision decodes and transforms as tensors. On a CPU, threads do so image by image; on a
    GPU, nvJPEG decodes whole batches."""
    before, after = transforms(), normalizing()
    files, labels = RECIPE["files"], torch.tensor(RECIPE["labels"], dtype=torch.int32)
    torch.set_num_threads(1)  # images run in parallel, not the work within an image
    pool = ThreadPoolExecutor(RECIPE["num_threads"])

    def decoded(i: int) -> Any:
        return apply(before, decode_image(files[i], mode=ImageReadMode.RGB))

    def start(numbers: list[int]) -> list[Any]:
        return [
            pool.submit(read_file if GPU is not None else decoded, files[i] if GPU is not None else i) for i in numbers
        ]

    ahead = endless_batches()
    queue = []
    for numbers in ahead:
        queue.append((numbers, start(numbers)))
        if len(queue) <= 2:  # the equivalent of prefetching elsewhere
            continue
        which, futures = queue.pop(0)
        images = [f.result() for f in futures]
        if GPU is not None:
            images = [apply(before, x) for x in decode_jpeg(images, ImageReadMode.RGB, device=DEVICE)]
        made = [apply(after, x) for x in images] if ragged() else apply(after, torch.stack(images))
        yield made, labels[which].to(DEVICE).view(-1, 1)


class PillowImages(torch.utils.data.Dataset):  # type: ignore[misc]
    """Data set of images, which Pillow decodes and the recipe's transforms convert. Created by the worker processes of
    the DataLoader."""

    def __init__(self) -> None:
        self.steps = [*transforms(), v2.PILToTensor(), *normalizing()]

    def __len__(self) -> int:
        return len(RECIPE["files"])

    def __getitem__(self, i: int) -> tuple[Any, int]:
        with Image.open(RECIPE["files"][i]) as image:
            return apply(self.steps, image.convert("RGB")), RECIPE["labels"][i]


def collate_ragged(items: list[tuple[Any, int]]) -> tuple[list[Any], Any]:
    """Join samples to a batch for the DataLoader. Images of different sizes are not stacked, but stay a list."""
    return [x for x, _ in items], torch.tensor([y for _, y in items])


def batches_of_dataloader() -> Iterator[tuple[Any, Any]]:
    """Yield batches of PyTorch's DataLoader. Its worker processes decode with Pillow. If there is a GPU, the batches
    are copied there."""
    loader = torch.utils.data.DataLoader(
        PillowImages(), batch_sampler=endless_batches(), num_workers=RECIPE["num_threads"], pin_memory=GPU is not None,
        collate_fn=collate_ragged if ragged() else None,
    )  # fmt: skip
    for images, labels in loader:
        there = [x.to(DEVICE, non_blocking=True) for x in images] if ragged() else images.to(DEVICE, non_blocking=True)
        yield there, labels.to(DEVICE, torch.int32, non_blocking=True).view(-1, 1)


def brought(batch: tuple[Any, Any]) -> int:
    """Copy the batch from the GPU to the host if the recipe requires it. Return the number of samples."""
    images, labels = batch
    if RECIPE["to_host"] and GPU is not None:
        images = [x.cpu() for x in images] if ragged() else images.cpu()
    return len(labels)


def described(batch: tuple[Any, Any]) -> list[list[Any]]:
    """Return type, number of dimensions and layout of each output of the batch."""
    images, labels = batch
    one = images[0]
    types = {torch.uint8: "UINT8", torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.int32: "INT32"}
    layouts = {"image": [types[one.dtype], one.dim(), RECIPE["layout"]], "label": [types[labels.dtype], 1, ""]}
    return [layouts[name] for name in RECIPE["outputs"]]


def main() -> None:
    """Measure this library for the requested time, and print the result as JSON in the last line."""
    began = time.perf_counter()
    kinds = {"torchvision": batches_of_torchvision, "dataloader": batches_of_dataloader}
    batches = kinds[sys.argv[1]]()
    batch = next(batches)
    if GPU is not None:
        torch.cuda.synchronize(DEVICE)
    first = time.perf_counter() - began
    # Each worker computes whole batches, so that batches arrive in groups: one group alone does not show a rate.
    bunch = RECIPE["num_threads"] if sys.argv[1] == "dataloader" else 0
    fewest = max(RECIPE["fewest_batches"], 2 * bunch)
    for _ in range(max(RECIPE["warm_up"], bunch)):
        brought(next(batches))
    samples = made = 0
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < RECIPE["seconds"] or made < fewest:
        samples += brought(next(batches))
        made += 1
    if GPU is not None:
        torch.cuda.synchronize(DEVICE)
        taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "samples_per_second": samples / taken,
        "first_batch_seconds": first,
        "outputs": described(batch),
        "version": f"{torchvision.__version__} (torch {torch.__version__})",
        "memory": {"peak_host_bytes": peak},
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
