"""Measure nvJPEG (the GPU's JPEG engines, its CUDA kernels and CPU threads) through nvImageCodec: decoding only.

    python nvjpeg.py nvjpeg recipe.json

Runs in the peer's own interpreter (``nvidia-nvimgcodec-cu12`` or ``-cu13``), without this package. Started by
`bench.run`.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvidia import nvimgcodec

RECIPE: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())


def read(numbers: list[int]) -> list[bytes]:
    """Read the files of one batch, given by their numbers, and return their bytes."""
    return [Path(RECIPE["files"][i]).read_bytes() for i in numbers]


def endless_files() -> Iterator[list[bytes]]:
    """Yield the files of one batch after the other without end. Two batches are read ahead."""
    order = list(range(len(RECIPE["files"])))
    if RECIPE["shuffle"]:
        random.Random(0).shuffle(order)
    numbers = itertools.cycle(order)
    with ThreadPoolExecutor(2) as pool:
        ahead: list[Future[list[bytes]]] = []
        while True:
            ahead.append(pool.submit(read, list(itertools.islice(numbers, RECIPE["batch_size"]))))
            if len(ahead) > 2:
                yield ahead.pop(0).result()


def main() -> None:
    """Measure nvJPEG for the requested time, and print the result as JSON in the last line."""
    on_gpu = RECIPE["gpu"] is not None
    device = RECIPE["gpu"] if on_gpu else nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY
    began = time.perf_counter()
    decoder = nvimgcodec.Decoder(device_id=device, max_num_cpu_threads=RECIPE["num_threads"])
    batches = endless_files()
    images = []

    def decode() -> int:
        nonlocal images
        images = decoder.decode([nvimgcodec.CodeStream(data) for data in next(batches)])
        if any(image is None for image in images):
            raise SystemExit("nvImageCodec cannot decode all of the files")
        if RECIPE["to_host"]:
            images = [image.cpu() for image in images]
        return len(images)

    decode()
    first = time.perf_counter() - began
    for _ in range(RECIPE["warm_up"]):
        decode()
    samples = made = 0
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < RECIPE["seconds"] or made < RECIPE["fewest_batches"]:
        samples += decode()
        made += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    outputs = [["UINT8", len(images[0].shape), "HWC"] if name == "image" else ["INT32", 1, ""]
               for name in RECIPE["outputs"]]  # fmt: skip
    result = {
        "samples_per_second": samples / taken,
        "first_batch_seconds": first,
        "outputs": outputs,
        "version": f"nvImageCodec {nvimgcodec.__version__}",
        "memory": {"peak_host_bytes": peak},
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
