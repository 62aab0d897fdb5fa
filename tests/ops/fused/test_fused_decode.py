"""Decode and resize as one on the CPU: what is not decoded is not looked at, and rejects are those of the two apart."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dali_run.ops.images.random_resized_crop  # noqa: F401 - declares the operator
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.fused.decode_resize import DecodeResize, shows_a_part, source_windows
from dali_run.ops.fused.resize_normalize import ResizeCropMirrorNormalize, sampled, sampling
from tests.kit.operators import operator

CROP = {"crop": [20, 24]}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "shorter": ("resize", {"resize_shorter": 32}, CROP),
    "corner": ("resize", {"resize_shorter": 40, "interp_type": "LANCZOS3"}, {**CROP, "crop_pos_x": 1, "crop_pos_y": 0}),
    "larger": ("resize", {"size": [300, 400], "interp_type": "CUBIC"}, CROP),
    "nearest": ("resize", {"size": [-31, 77], "interp_type": "NN"}, CROP),
    "plain": ("resize", {"size": [25, 30], "antialias": False}, {**CROP, "mirror": 1}),
    "region": (
        "resize",
        {"size": [25, 30], "roi_start": [0.4, 0.9], "roi_end": [0.1, 0.5], "roi_relative": True},
        None,
    ),
    "outside": ("resize", {"size": [25, 30], "roi_start": [-90, 40], "roi_end": [-30, 300]}, None),
    "mirrored": ("resize_crop_mirror", {"resize_shorter": 40, "crop": [30, 33], "mirror": 3}, None),
    "random": ("random_resized_crop", {"size": [27, 25]}, None),
    "as pillow": ("resize", {"size": [40, 40], "parity": "pillow"}, CROP),
}


@pytest.mark.parametrize("case", CASES)
def test_pixels_outside_of_the_source_window_do_not_matter(case: str) -> None:
    name, arguments, normalize = CASES[case]
    op: Any = operator(name, **arguments)
    if normalize is not None:
        op = ResizeCropMirrorNormalize(resize=op, normalize=operator("crop_mirror_normalize", **normalize))
    assert shows_a_part(op)
    rng = np.random.default_rng(1)
    shapes = [(91, 140, 3), (200, 64, 3), (37, 37, 3), (300, 301, 3)]
    images = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    samples = Samples.numbered(len(images))
    ctx = Context(op, "cpu", samples, seed=5)
    extents = np.array(shapes, np.int64)
    wanted = sampling(ctx, op, extents[:, :2], extents[:, 2], np.dtype(np.uint8))
    windows = source_windows(wanted.plan, extents[:, :2])
    blind = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    for there, image, (y0, x0, y1, x1) in zip(blind, images, windows, strict=True):
        there[y0:y1, x0:x1] = image[y0:y1, x0:x1]
    expected = sampled(ctx, Batch.from_list(images, "HWC", samples), wanted)
    got = sampled(ctx, Batch.from_list(blind, "HWC", samples), wanted)
    assert not ctx.rejects
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)
    if case not in ("as pillow", "random"):
        area = (windows[:, 2] - windows[:, 0]) * (windows[:, 3] - windows[:, 1])
        assert (area < extents[:, 0] * extents[:, 1]).any()


def test_an_image_is_rejected_for_what_is_wrong_with_it_first() -> None:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(out, "JPEG")
    good = np.frombuffer(out.getvalue(), np.uint8)
    samples = Samples.numbered(4)
    files = Batch.from_list([good, good[:-300], good, good[:-300]], "", samples)
    sizes = np.array([[20, 20], [20, 20], [np.nan, 20], [np.nan, 20]], np.float32)
    resize = operator("resize", ("size",))
    op = DecodeResize(decode=operator("decoders.image"), resize=resize, per_sample=frozenset({"then.size"}))
    ctx = Context(op, "cpu", samples, {"then.size": Batch.from_dense(sizes, "", samples)})
    op.cpu(ctx, files)
    assert {r.slot: (r.part, r.code) for r in ctx.rejects} == {
        1: ("decode.", "truncated"), 2: ("then.", "bad_argument"), 3: ("decode.", "truncated"),
    }  # fmt: skip
