"""Suites of specs for comparing libraries: on a user's folder of images, or on generated audio clips and videos."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...ops.errors import SpecError
from .media_mix import write_sounds, write_videos
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
_LOGMEL = """\
version: 1
vars: {data: ./data}
pipeline: {batch_size: 64, num_threads: auto, device: auto, seed: 42}
graph:
  - {op: readers.file, file_root: "${data}", random_shuffle: true, out: [files, labels]}
  - {op: decoders.audio, in: files, downmix: true, out: [audio, rates]}
  - {op: spectrogram, in: audio, nfft: 512, window_length: 400, window_step: 160, out: x}
  - {op: mel_filter_bank, in: x, sample_rate: 16000, nfilter: 80, out: x}
  - {op: to_decibels, in: x, multiplier: 10, reference: 1.0, cutoff_db: -80, out: x}
outputs: {logmel: x, label: labels}
"""
_CLIPS = """\
version: 1
vars: {data: ./data}
pipeline: {batch_size: 8, num_threads: auto, device: auto, seed: 42}
graph:
  - {op: experimental.readers.video, file_root: "${data}", sequence_length: 16, random_shuffle: true,
     out: [frames, labels]}
  - {op: resize, in: frames, resize_shorter: 256, out: frames}
  - op: crop_mirror_normalize
    in: frames
    dtype: FLOAT
    output_layout: FCHW
    mean: [123.675, 116.28, 103.53]
    std: [58.395, 57.12, 57.375]
    out: frames
outputs: {frames: frames, label: labels}
"""
SUITES: Mapping[str, Mapping[str, str]] = {
    "imagenet": _IMAGENET,
    "web": {k: _IMAGENET[k] for k in ("val", "train")},
    "audio": {"logmel": _LOGMEL},
    "video": {"clips": _CLIPS},
}
DERIVED: Mapping[str, Callable[..., object]] = {"web": write_mix}
"""Suites of benchmarks with images generated from the user's images, each with the function that does it."""
GENERATED: Mapping[str, Callable[[Path], object]] = {"audio": write_sounds, "video": write_videos}
"""Suites of benchmarks whose files are generated if the user has none, each with the function that generates them."""
MIN_FILES = 2000
"""Minimum number of files that are generated from the user's images. If the user has more files, as many are
generated."""


def suite_data(name: str, images: Path | None, folder: Path) -> Path:
    """Return the folder of the files with which suite ``name`` is measured: ``images`` itself (FOLDER/<class>/<file>),
    or files that are generated in ``folder``.

    They are generated from ``images`` or, for audio and video, from nothing. Raises SpecError if the suite needs
    ``images`` and there are none."""
    if images is None:
        if name not in GENERATED:
            raise SpecError(f"the suite {name} needs a folder of images")
        GENERATED[name](folder / name)
        return folder / name
    if name not in DERIVED:
        return images
    kinds = (".jpg", ".jpeg", ".png", ".webp")
    sources = sorted(p for p in images.rglob("*") if p.suffix.lower() in kinds)
    DERIVED[name](sources[:_MAX_SOURCES], folder / "images", count=max(MIN_FILES, len(sources)))
    return folder / "images"


_MAX_SOURCES = 200
"""Maximum number of the user's images from which a mix of files is generated."""


def write_suite(name: str, folder: Path) -> dict[str, Path]:
    """Write the specs of a suite as YAML files to ``folder``, and return their paths by name."""
    paths = {}
    for spec, text in SUITES[name].items():
        paths[spec] = folder / f"{spec}.yaml"
        paths[spec].write_text(text)
    return paths
