"""Small pictures for docs/operators/: an image before and after each image operator, drawn by the operators.

    python docs/operator_pictures.py [OPERATOR ...]     draws those, or all; `make docs` draws what is stale

A file says in its JPEG comment which step made it, so that `is_stale` needs to draw nothing. The image is one that
`dali-run sample-data` makes.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from dali_run.ops.base import Operator, coerce, operators, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.pipelines.plugins import find_operator, load_operators
from dali_run.pipelines.show.pictures import as_picture
from dali_run.pipelines.tools.sample_data import Picture, draw

FOLDER = Path(__file__).parent / "pictures" / "operators"
WIDTH, HEIGHT = 160, 120
"""Width and height of the input image in pixels; larger results are shrunk to fit."""
GAP, BACKGROUND = 8, (225, 225, 225)
QUALITY = 82
SEED = 9

FAMILIES = ("augment", "boxes", "color", "distortions", "filters", "geometry", "images", "regions")
"""Folders of ops/ whose operators need an example image, or an entry in `WITHOUT`."""
WITHOUT = {
    "bb_flip": "boxes", "bbox_paste": "boxes", "bbox_rotate": "boxes", "box_encoder": "boxes",
    "coord_flip": "points", "coord_transform": "points",
    "dump_image": "passes images on",
    "lookup_table": "labels",
    "random_bbox_crop": "windows", "random_crop_generator": "windows", "roi_random_crop": "windows",
    "segmentation.random_mask_pixel": "places", "segmentation.random_object_bbox": "boxes",
    "segmentation.select_masks": "polygons",
    "transforms.combine": "matrices", "transforms.crop": "matrices", "transforms.rotation": "matrices",
    "transforms.scale": "matrices", "transforms.shear": "matrices", "transforms.translation": "matrices",
}  # fmt: skip
"""Operators of these folders that do not make an image, each with its kind of result."""

STEPS = """\
- {op: auto_aug.augment, in: images, operation: shear, parameters: [0.3, 0]}
- {op: auto_aug.auto_augment, in: images, policy_name: svhn}
- {op: auto_aug.rand_augment, in: images, n: 2, m: 17}
- {op: auto_aug.trivial_augment_wide, in: images}
- {op: brightness, in: images, brightness: 1.5}
- {op: brightness_contrast, in: images, brightness: 1.2, contrast: 0.5}
- {op: clahe, in: images, tiles_x: 4, tiles_y: 4, clip_limit: 4.0}
- {op: color_space_conversion, in: images, image_type: RGB, output_type: GRAY}
- {op: color_twist, in: images, hue: 60, saturation: 1.4, contrast: 1.2}
- {op: contrast, in: images, contrast: 1.8}
- {op: crop, in: images, crop: [80, 100], crop_pos_x: 0.2}
- {op: crop_mirror_normalize, in: images, crop: [96, 96], mirror: 1, mean: [124, 116, 104], std: [58, 57, 57]}
- {op: debayer, in: raw, blue_position: [0, 1]}
- {op: decoders.image_crop, in: jpegs, crop: [80, 100]}
- {op: decoders.image_random_crop, in: jpegs, random_area: [0.2, 0.5]}
- {op: decoders.image_slice, in: jpegs, rel_start: [0.1, 0.4], rel_shape: [0.8, 0.6]}
- {op: equalize, in: images}
- {op: erase, in: images, anchor: [0.2, 0.3, 0.6, 0.1], shape: [0.3, 0.4, 0.2, 0.2], normalized: true, fill_value: 128}
- {op: experimental.dilate, in: images, mask_size: [5, 5]}
- {op: experimental.erode, in: images, mask_size: [5, 5]}
- {op: experimental.median_blur, in: images, window_size: [7, 7]}
- {op: experimental.remap, in: [images, mapx, mapy]}
- {op: experimental.warp_perspective, in: images, matrix: [1.1, 0.3, -30, 0, 1.3, -10, 0, 0.004, 1], fill_value: 0}
- {op: fast_resize_crop_mirror, in: images, resize_shorter: 90, crop: [80, 80], mirror: 1}
- {op: filter, in: [images, kernel]}
- {op: flip, in: images, horizontal: 1}
- {op: gaussian_blur, in: images, sigma: 3}
- {op: grid_mask, in: images, tile: 30, ratio: 0.5, angle: 0.4}
- {op: hsv, in: images, hue: 120, saturation: 1.3, value: 1.1}
- {op: hue, in: images, hue: 90}
- {op: jitter, in: images, nDegree: 6}
- {op: jpeg_compression_distortion, in: images, quality: 5}
- {op: laplacian, in: images, window_size: 5, dtype: FLOAT}
- {op: multi_paste, in: [images, others], out_anchors: [0, 0, 40, 60], shapes: [120, 160, 70, 90]}
- {op: noise.gaussian, in: images, stddev: 30}
- {op: noise.salt_and_pepper, in: images, prob: 0.1}
- {op: noise.shot, in: images, factor: 20}
- {op: pad, in: images, axis_names: HW, align: [140, 200], fill_value: 255}
- {op: paste, in: images, ratio: 1.5, paste_x: 0.3, paste_y: 0.7, fill_value: [123, 117, 104]}
- {op: random_resized_crop, in: images, size: [96, 96]}
- {op: resize, in: images, size: [120, 60]}
- {op: resize_crop_mirror, in: images, resize_shorter: 90, crop: [80, 80], mirror: 1}
- {op: rotate, in: images, angle: 20, fill_value: 0}
- {op: saturation, in: images, saturation: 0.3}
- {op: slice, in: images, rel_start: [0.1, 0.4], rel_shape: [0.8, 0.6], axis_names: HW}
- {op: sphere, in: images}
- {op: ssd_random_crop, in: [images, boxes, labels]}
- {op: tensor_resize, in: images, axis_names: HW, scales: [0.5, 1.0]}
- {op: tiles, in: images, size: [48, 64], stride: [36, 48], edges: shift}
- {op: torchvision, in: images, steps: [[posterize, 2], [adjust_saturation, 1.6]]}
- {op: transpose, in: images, perm: [1, 0, 2], transpose_layout: false}
- {op: warp_affine, in: images, matrix: [1.0, 0.4, -20, 0.1, 1.2, -15], fill_value: 0}
- {op: water, in: images, ampl_x: 5, ampl_y: 5, freq_x: 0.15, freq_y: 0.15}
"""
"""Steps of a spec, one for each operator, without `out`; their first input is drawn beside the result."""


@cache
def steps() -> dict[str, str]:
    """Return the steps of `STEPS` by the names of their operators."""
    lines = [line.removeprefix("- ") for line in STEPS.splitlines()]
    return {str(yaml.safe_load(line)["op"]): line for line in lines}


def missing() -> list[str]:
    """Return the operators of `FAMILIES` that have neither a step nor an entry in `WITHOUT`."""
    load_operators()
    folders = tuple(f"dali_run.ops.{family}." for family in FAMILIES)
    known = steps().keys() | WITHOUT.keys()
    return [n for n, op in operators().items() if not n.startswith("_") and op.__module__.startswith(folders)
            and n not in known]  # fmt: skip


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.jpg"


def is_stale(name: str) -> bool:
    """Return whether the example image of an operator is missing, or was made by another step."""
    path = path_of(name)
    if not path.exists():
        return True
    with Image.open(path) as image:
        return bool(image.info.get("comment") != steps()[name].encode())


def left_over() -> list[Path]:
    """Return example images of operators that no longer have a step."""
    return [p for p in sorted(FOLDER.glob("*")) if p.stem not in steps()]


# -- what operators are given -----------------------------------------------------------------------------------------


def _drawn(number: int, label: int) -> NDArray[Any]:
    picture = Picture(number, label, WIDTH, HEIGHT, "4:4:4", gray=False, progressive=False, orientation=1, quality=90)
    return np.asarray(draw(picture, seed=0))


def _image() -> NDArray[Any]:
    """Return an image of shapes on blue, with edges, colours and flat parts."""
    return _drawn(5, 1)


def _raw() -> NDArray[Any]:
    """Return the image as a sensor records it: one colour per pixel."""
    image = _image()
    raw = image[:, :, 1].copy()
    raw[1::2, 0::2] = image[1::2, 0::2, 2]
    raw[0::2, 1::2] = image[0::2, 1::2, 0]
    return raw


def _map(axis: int) -> NDArray[Any]:
    """Return the coordinate, x (axis 1) or y (axis 0), from which a swirl takes each pixel."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32) - np.array([HEIGHT / 2, WIDTH / 2], np.float32)[:, None, None]
    angle = 2 * np.exp(-np.hypot(x, y) / 40)
    place = y * np.cos(angle) - x * np.sin(angle) if axis == 0 else x * np.cos(angle) + y * np.sin(angle)
    found: NDArray[Any] = (place + (HEIGHT, WIDTH)[axis] / 2).astype(np.float32)
    return found


def _jpeg() -> NDArray[Any]:
    out = io.BytesIO()
    Image.fromarray(_image()).save(out, "JPEG", quality=95)
    return np.frombuffer(out.getvalue(), np.uint8)


EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
INPUTS: dict[str, tuple[Callable[[], NDArray[Any]], str]] = {
    "images": (_image, "HWC"),
    "others": (lambda: _drawn(0, 0), "HWC"),
    "raw": (_raw, "HW"),
    "jpegs": (_jpeg, ""),
    "mapx": (lambda: _map(1), "HW"),
    "mapy": (lambda: _map(0), "HW"),
    "kernel": (lambda: np.array(EMBOSS, np.float32), ""),
    "boxes": (lambda: np.array([[0.1, 0.2, 0.5, 0.9]], np.float32), ""),
    "labels": (lambda: np.array([1], np.int32), ""),
}
"""Function that makes the array, and layout of the array, of each input, by its name in steps."""


# -- drawing ----------------------------------------------------------------------------------------------------------


def strip(name: str) -> Image.Image:
    """Draw the first input of the operator's step beside its first output, which is shrunk if it is larger."""
    step = yaml.safe_load(steps()[name])
    given = step["in"] if isinstance(step["in"], list) else [step["in"]]
    cls: type[Operator] = find_operator(step["op"])
    constants = {k: coerce(parameter(cls, k), v) for k, v in step.items() if k not in ("op", "in")}
    op = cls(num_inputs=len(given), **constants)
    op.check()
    samples = Samples.numbered(1)
    ctx = Context(op, "cpu", samples, seed=SEED)
    made = outputs_of(op.kernel("cpu")(ctx, *(Batch.from_list([INPUTS[n][0]()], INPUTS[n][1], samples) for n in given)))
    if ctx.rejects:
        raise ValueError(f"{name}: {ctx.rejects[0].message}")
    shown = "images" if given[0] == "jpegs" else given[0]
    before = as_picture(INPUTS[shown][0](), INPUTS[shown][1])
    pixels, layout = np.asarray(made[0].sample(0)), made[0].layout
    if layout == "FHWC":
        pixels, layout = _side_by_side(pixels), "HWC"
    after = as_picture(pixels, layout)
    if before is None or after is None:
        raise ValueError(f"{name}: no image came out")
    after = after.convert("RGB")
    after.thumbnail((WIDTH, HEIGHT))
    sheet = Image.new("RGB", (2 * WIDTH + GAP, HEIGHT), BACKGROUND)
    sheet.paste(before, (0, 0))
    sheet.paste(after, (WIDTH + GAP + (WIDTH - after.width) // 2, (HEIGHT - after.height) // 2))
    return sheet


def _side_by_side(frames: NDArray[Any]) -> NDArray[Any]:
    """Return one image with the frames in as many rows as columns, with gaps between them."""
    side = math.isqrt(len(frames))
    height, width = frames.shape[1] + GAP // 2, frames.shape[2] + GAP // 2
    sheet = np.full((side * height, side * width, 3), BACKGROUND, np.uint8)
    for k, frame in enumerate(frames[: side * side]):
        y, x = k // side * height, k % side * width
        sheet[y : y + frame.shape[0], x : x + frame.shape[1]] = frame
    return sheet


def images() -> dict[str, str]:
    """Return the example image of each operator, as Markdown for a page of docs/operators."""
    return {name: f"![{name}: an image before and after](../pictures/operators/{name}.jpg)" for name in steps()}


def captions() -> dict[str, str]:
    """Return the example image of each operator, below the step that made it."""
    return {name: f"Before and after `{steps()[name]}`:\n\n{image}" for name, image in images().items()}


def refresh(names: list[str]) -> None:
    """Draw the example images of these operators, and remove those of operators without a step."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        strip(name).save(path_of(name), "JPEG", quality=QUALITY, optimize=True, comment=steps()[name].encode())
        print(f"wrote {path_of(name)}")
    for path in left_over():
        path.unlink()


if __name__ == "__main__":
    refresh(sys.argv[1:] or list(steps()))
