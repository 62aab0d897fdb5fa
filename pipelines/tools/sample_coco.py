"""Sample data for detection and segmentation: images of discs, boxes and triangles, with annotations in COCO's format
(cocodataset.org, "Data format")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

CATEGORIES = {1: "disc", 3: "box", 7: "triangle"}
"""Names of the categories in the sample data, by id. Ids have gaps, as in COCO."""
ANNOTATIONS = "instances.json"

_F64 = NDArray[np.float64]


def write_coco(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Write ``count`` images and their annotations under ``folder``, and return the numbers of images and annotations.
    Every fifth image has an object in run-length encoding, as COCO uses for crowds."""
    (folder / "images").mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        rng = np.random.default_rng((seed, 3, number))
        width, height = (int(v) for v in rng.integers(160, 481, 2))
        picture = _background(rng, width, height)
        canvas = ImageDraw.Draw(picture)
        image = {"id": 3 * number + 5, "file_name": f"{number:06d}.jpg", "width": width, "height": height}
        objects = int(rng.integers(1, 5))
        for k in range(objects):
            category = list(CATEGORIES)[int(rng.integers(0, len(CATEGORIES)))]
            outline = _outline(rng, category, width, height)
            canvas.polygon([(x, y) for x, y in outline.tolist()], fill=tuple(rng.integers(0, 256, 3).tolist()))
            crowd = number % 5 == 4 and k == 0
            annotations.append(_annotation(len(annotations) + 1, image, category, outline, crowd=crowd))
        picture.save(folder / "images" / str(image["file_name"]), "JPEG", quality=90)
        images.append(image)
    document = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": name, "supercategory": "shape"} for i, name in CATEGORIES.items()],
    }
    (folder / ANNOTATIONS).write_text(json.dumps(document) + "\n")
    return {"images": count, "annotations": len(annotations)}


def _background(rng: Generator, width: int, height: int) -> Image.Image:
    """Return a smooth color gradient with noise."""
    corners = Image.fromarray(rng.integers(40, 216, (2, 2, 3)).astype(np.uint8))
    smooth = np.asarray(corners.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    grain = rng.normal(0, 4, (height, width, 1)).astype(np.float32)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def _outline(rng: Generator, category: int, width: int, height: int) -> _F64:
    """Return the corners [n, 2] of an object inside the image."""
    size = rng.uniform(0.15, 0.5, 2) * (width, height)
    low = rng.uniform(0, 1, 2) * ((width, height) - size)
    if category == 1:
        turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        unit = np.stack([np.cos(turn), np.sin(turn)], 1) * 0.5 + 0.5
    elif category == 3:
        unit = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
    else:
        unit = np.array([[rng.uniform(0.2, 0.8), 0], [1, 1], [0, 1]], np.float64)
    outline: _F64 = np.round(low + unit * size, 2)
    return outline


def _annotation(number: int, image: dict[str, Any], category: int, outline: _F64, *, crowd: bool) -> dict[str, Any]:
    low, high = outline.min(axis=0), outline.max(axis=0)
    x, y = outline.T
    area = 0.5 * abs(float(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))))
    segmentation: Any = [outline.reshape(-1).tolist()]
    if crowd:
        mask = Image.new("1", (image["width"], image["height"]))
        ImageDraw.Draw(mask).polygon([(a, b) for a, b in outline.tolist()], fill=1)
        segmentation = {"size": [image["height"], image["width"]], "counts": _runs(np.asarray(mask))}
    return {
        "id": number, "image_id": image["id"], "category_id": category, "iscrowd": int(crowd), "area": round(area, 2),
        "bbox": [round(float(v), 2) for v in (*low, *(high - low))], "segmentation": segmentation,
    }  # fmt: skip


def _runs(mask: NDArray[np.bool_]) -> list[int]:
    """Return the run-length encoding of ``mask``, column by column: lengths of runs outside, inside, outside, ... of
    the object."""
    flat = np.concatenate([[False], mask.T.reshape(-1)])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    runs: list[int] = np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()
    return runs
