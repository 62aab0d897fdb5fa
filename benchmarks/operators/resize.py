"""The steps after decoding, on one CPU core: resize, crop, mirror and normalise, beside OpenCV and Pillow.

    python benchmarks/operators/resize.py FOLDER [--json FILE]

FOLDER holds images. Ours is the joined kernel: decoded RGB in, shorter side 256 antialiased, crop 224, mirrored,
normalised, float32 CHW out, eight pictures a call, under every parity preset. The peers only resize, to the same size.
All take their turns, nine times; given are medians of milliseconds of CPU time a picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.fused.resize_normalize import ResizeCropMirrorNormalize
from dali_run.ops.images.crop_mirror_normalize import CropMirrorNormalize
from dali_run.ops.images.resize import Resize

CHUNK, TURNS = 8, 9
PRESETS = ("dali", "torchvision", "opencv", "pillow")


def ours(images: list[np.ndarray], parity: str) -> Callable[[], None]:
    resize = Resize(resize_shorter=256.0, parity=parity)
    normalize = CropMirrorNormalize(crop=(224.0, 224.0), mirror=1, mean=(123.675, 116.28, 103.53),
                                    std=(58.395, 57.12, 57.375))  # fmt: skip
    op = ResizeCropMirrorNormalize(resize=resize, normalize=normalize)
    chunks = [images[i : i + CHUNK] for i in range(0, len(images), CHUNK)]
    batches = [Batch.from_list(c, "HWC", Samples.numbered(len(c))) for c in chunks]

    def run() -> None:
        for batch in batches:
            op.cpu(Context(op, "cpu", batch.samples), batch)

    return run


def opencv(images: list[np.ndarray], flag: int) -> Callable[[], None]:
    return lambda: [cv2.resize(a, size(a), interpolation=flag) for a in images] and None


def pillow(images: list[np.ndarray]) -> Callable[[], None]:
    return lambda: [Image.fromarray(a).resize(size(a), Image.Resampling.BILINEAR) for a in images] and None


def size(image: np.ndarray) -> tuple[int, int]:
    height, width = image.shape[:2]
    return width * 256 // min(height, width), height * 256 // min(height, width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the medians there")
    arguments = parser.parse_args()
    files = sorted(p for p in arguments.folder.rglob("*") if p.suffix.lower() in (".jpeg", ".jpg", ".png"))
    if not files:
        parser.error(f"no images in {arguments.folder}")
    images = [np.asarray(Image.open(f).convert("RGB")) for f in files]
    cv2.setNumThreads(1)
    subjects = {f"resize, crop, mirror, normalise: {p}": ours(images, p) for p in PRESETS}
    subjects["cv2.resize INTER_LINEAR"] = opencv(images, cv2.INTER_LINEAR)
    subjects["cv2.resize INTER_AREA"] = opencv(images, cv2.INTER_AREA)
    subjects["Image.resize BILINEAR"] = pillow(images)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(TURNS + 1):
        for name, run in subjects.items():
            start = time.thread_time()
            run()
            if turn:  # the first one compiles
                times[name].append((time.thread_time() - start) / len(images) * 1e3)
    medians = {name: statistics.median(t) for name, t in times.items()}
    for name, median in medians.items():
        print(f"{name:48} {median:6.3f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps({"pictures": len(images), "ms": medians}, indent=2) + "\n")


if __name__ == "__main__":
    main()
