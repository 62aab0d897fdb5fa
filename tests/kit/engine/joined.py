"""Graphs whose operators are fused, and images of many kinds for them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.nodes import Graph
from dali_run.pipelines.plugins import load_operators

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of images in two classes: samplings, gray, progressive, rotated, PNG, and a broken one."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(5)
    for i in range(24):
        height, width = rng.integers(40, 300, 2).tolist()
        y, x = np.mgrid[:height, :width]
        picture = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1) + rng.integers(0, 30, (1, 1, 3))
        image = Image.fromarray(np.clip(picture + rng.integers(-8, 8, picture.shape), 0, 255).astype(np.uint8))
        folder = root / "ab"[i % 2]
        folder.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 1 + i % 8
        options: dict[str, Any] = {"quality": 85, "subsampling": i % 3, "exif": exif, "progressive": i % 7 == 3}
        if i % 11 == 5:
            image = image.convert("L")
        kind = "png" if i % 9 == 4 else "jpg"
        image.save(folder / f"{i:02d}.{kind}", **(options if kind == "jpg" else {}))
    whole = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 99, np.uint8)).save(whole, "JPEG")
    (root / "a" / "broken.jpg").write_bytes(whole.getvalue()[:-200])
    return root


def graph(root: Path, decoder: str, resize: dict[str, Any], normalize: dict[str, Any] | None, mirror: bool) -> Graph:
    load_operators()
    b = GraphBuilder()
    x, label = b.add("readers.file", (), {"file_root": str(root)})
    (x,) = b.add(decoder, [x], device="mixed")
    name = resize.get("op", "resize")
    (x,) = b.add(name, [x], {k: v for k, v in resize.items() if k != "op"})
    if normalize is not None:
        args = dict(normalize)
        if mirror:
            (args["mirror"],) = b.add("random.coin_flip")
        (x,) = b.add("crop_mirror_normalize", [x], args)
    return b.build({"x": x, "label": label})


CASES = {
    "val": ("decoders.image", {"resize_shorter": 96}, {"crop": [80, 80], "mean": MEAN, "std": STD}, False),
    "train": ("decoders.image_random_crop", {"size": [72, 72]}, {"crop": [64, 64], "mean": MEAN, "std": STD}, True),
    "hwc half": (
        "decoders.image",
        {"size": [70, 90]},
        {"dtype": "FLOAT16", "output_layout": "HWC", "scale": 0.01},
        True,
    ),
    "rrc": ("decoders.image", {"op": "random_resized_crop", "size": [64, 64]}, None, False),
    "cubic": ("decoders.image", {"resize_longer": 100, "interp_type": "CUBIC"}, None, False),
}
