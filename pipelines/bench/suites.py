"""Suites: the specs that image pipelines are compared by, over anybody's folder of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from .web_mix import write_mix

_HEAD = """\
version: 1
vars: {data: ./data}
pipeline: {batch_size: 64, num_threads: auto, device: auto, seed: 42}
graph:
  - {op: readers.file, file_root: "${data}", random_shuffle: true, out: [jpegs, labels]}
"""
_DECODE = "  - {op: decoders.image, in: jpegs, output_type: RGB, out: images}\n"
_SHORTER = "  - {op: resize, in: images, resize_shorter: 256, interp_type: TRIANGULAR, out: images}\n"
_NORMALIZE = """\
  - op: crop_mirror_normalize
    in: images
    dtype: FLOAT
    output_layout: CHW
    mean: [123.675, 116.28, 103.53]
    std: [58.395, 57.12, 57.375]
    out: images
"""
_OUTPUTS = "outputs: {image: images, label: labels}\n"

_IMAGENET = {
    "decode": _HEAD + _DECODE + _OUTPUTS,
    "val": _HEAD + _DECODE + _SHORTER + _NORMALIZE + "    crop: [224, 224]\n" + _OUTPUTS,
    "train": _HEAD
    + "  - {op: decoders.image_random_crop, in: jpegs, output_type: RGB, out: images}\n"
    + "  - {op: resize, in: images, size: [224, 224], interp_type: TRIANGULAR, out: images}\n"
    + "  - {op: random.coin_flip, out: mirror}\n"
    + _NORMALIZE
    + "    mirror: $mirror\n"
    + _OUTPUTS,
    "resize": _HEAD + _DECODE + _SHORTER + _OUTPUTS
    + "write: {writer: tfrecord, path: ./out, fields: {image: {encode: jpeg, quality: 90}, label: {}}}\n",
}  # fmt: skip
SUITES: Mapping[str, Mapping[str, str]] = {"imagenet": _IMAGENET, "web": {k: _IMAGENET[k] for k in ("val", "train")}}
MADE: Mapping[str, Callable[..., object]] = {"web": write_mix}
"""Suites whose images are made of those that are given, by what makes them."""
FEWEST = 2000
"""Files that are made, or as many as are given."""


def suite_data(name: str, images: Path, folder: Path) -> Path:
    """The images that suite ``name`` is measured with: ``images`` (FOLDER/<class>/<file>), or what is made of them in
    ``folder``. Raises SpecError where there are none."""
    if name not in MADE:
        return images
    kinds = (".jpg", ".jpeg", ".png", ".webp")
    pictures = sorted(p for p in images.rglob("*") if p.suffix.lower() in kinds)
    MADE[name](pictures[:_SOURCES], folder / "images", count=max(FEWEST, len(pictures)))
    return folder / "images"


_SOURCES = 200
"""Pictures that a mix is made of, at most."""


def write_suite(name: str, folder: Path) -> dict[str, Path]:
    """The specs of a suite as files in ``folder``, by their names."""
    made = {}
    for spec, text in SUITES[name].items():
        made[spec] = folder / f"{spec}.yaml"
        made[spec].write_text(text)
    return made
