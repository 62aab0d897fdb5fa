"""Parity presets against Pillow and OpenCV themselves, and against what torchvision gave (make_torchvision.py)."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.color.conversion import ColorSpaceConversion
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.fused.resize_normalize import ResizeCropMirrorNormalize
from dali_run.ops.images.crop_mirror_normalize import CropMirrorNormalize
from dali_run.ops.images.random_resized_crop import RandomResizedCrop
from dali_run.ops.images.resampling import libraries
from dali_run.ops.types import DALIDataType, DALIImageType
from tests.kit.operators import operator
from tests.kit.ops.resizing import run, source

cv2 = pytest.importorskip("cv2")
PIL = pytest.importorskip("PIL.Image")

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "torchvision.npz")
OLD_PILLOW = int(importlib.metadata.version("pillow").split(".")[0]) < 13
SHAPES = [(37, 53), (90, 31), (7, 5), (48, 64)]
SIZES = [(20, 30), (80, 99), (10, 70), (3, 2), (1, 1), (24, 32), (37, 17)]


def resized(image: np.ndarray, size: tuple[int, int], **how: Any) -> np.ndarray:
    out, ctx = run(operator("resize", size=list(size), **how), [image])
    assert not ctx.rejects
    result: np.ndarray = out.sample(0)
    return result


def distance(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(np.float64) - b).max(initial=0))


@pytest.mark.parametrize("name", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_pillow_to_the_bit(name: str) -> None:
    method = getattr(PIL.Resampling, name.upper())
    for number, shape in enumerate(SHAPES):
        image = source(number, "uint8", [*shape, 3])
        for size in SIZES:
            if OLD_PILLOW and shape[0] - size[0] > max(2 * (shape[1] - size[1]), 0):
                continue  # its vertical pass comes second
            want = np.asarray(PIL.fromarray(image).resize(size[::-1], method))
            np.testing.assert_array_equal(resized(image, size, parity="pillow", interpolation=name), want)
        floats = source(number, "float32", [*shape, 1])
        want = np.asarray(PIL.fromarray(floats[..., 0]).resize((30, 20), method))
        assert distance(resized(floats, (20, 30), parity="pillow", interpolation=name)[..., 0], want) < 1e-3


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_lines_and_columns_of_all_counts(channels: int) -> None:
    """The loops go by 16 and 64 lines, and by 16 and 64 bytes of a row: sizes at and around these, several images in a
    call, each of which must keep to its own memory."""
    modes = {1: "L", 2: "LA", 4: "CMYK"}
    shapes = [(15, 64), (16, 17), (17, 130), (63, 16), (64, 1), (81, 5), (1, 33)]
    images = [source(k, "uint8", [*shape, channels]) for k, shape in enumerate(shapes)]
    for size in ((16, 64), (15, 65), (70, 8), (1, 1)):
        if OLD_PILLOW:
            continue
        out, _ = run(operator("resize", size=list(size), parity="pillow", interpolation="bicubic"), images)
        for k, image in enumerate(images):
            picture = PIL.frombytes(modes[channels], image.shape[1::-1], image.tobytes())
            bands = [np.asarray(b.resize(size[::-1], PIL.Resampling.BICUBIC)) for b in picture.split()]
            np.testing.assert_array_equal(out.sample(k), np.stack(bands, axis=2))


def test_pillow_box_is_the_region() -> None:
    image = source(3, "uint8", [61, 83, 3])
    for top, left, bottom, right in ((4, 9, 40, 71), (3.3, 10.25, 50.7, 60.1), (0, 5, 61, 83)):
        how = {"roi_start": [top, left], "roi_end": [bottom, right], "parity": "pillow"}
        for size in ((20, 30), (90, 31)):
            box = (left, top, right, bottom)
            want = np.asarray(PIL.fromarray(image).resize(size[::-1], PIL.Resampling.BILINEAR, box=box))
            assert distance(resized(image, size, **how), want) <= 1  # float32 places


@pytest.mark.parametrize(("name", "most"), [("nearest", 0), ("linear", 0), ("cubic", 1), ("area", 1), ("lanczos4", 1)])
def test_opencv(name: str, most: int) -> None:
    cv2.ipp.setUseIPP(False)  # Intel's code, which some builds call instead, is up to 1 level away
    flag = getattr(cv2, f"INTER_{name.upper()}")
    for number, shape in enumerate(SHAPES):
        for channels in (3, 1):
            image = source(number, "uint8", [*shape, channels])
            for size in SIZES:
                want = cv2.resize(image, size[::-1], interpolation=flag).reshape(*size, channels)
                assert distance(resized(image, size, parity="opencv", interpolation=name), want) <= most, (shape, size)
        floats = source(number, "float32", [*shape, 3])
        want = cv2.resize(floats, (30, 20), interpolation=flag)
        # OpenCV's float32 sums and places
        assert distance(resized(floats, (20, 30), parity="opencv", interpolation=name), want) < 0.01


def torchvision_cases() -> list[tuple[str, str, tuple[int, int], str, bool]]:
    keys = [k for k in GOLDEN.files if k.count(",") == 4]
    split = [k.split(",") for k in keys]
    return [(k, s[0], (int(s[1]), int(s[2])), s[3], s[4] == "1") for k, s in zip(keys, split, strict=True)]


@pytest.mark.parametrize(("key", "kind", "size", "name", "antialias"), torchvision_cases())
def test_torchvision_to_the_bit(key: str, kind: str, size: tuple[int, int], name: str, antialias: bool) -> None:
    image = GOLDEN["image1"].astype(np.float32) if kind == "float" else GOLDEN[f"image{kind}"]
    how = {"parity": "torchvision", "interpolation": name, "antialias": antialias}
    assert distance(resized(image, size, **how), GOLDEN[key]) <= (0.01 if kind == "float" else 0)


def test_sizes_are_those_of_torchvision() -> None:
    for h, w, shorter, limit, oh, ow in GOLDEN["sizes"].tolist():
        for library in ("torchvision", "pillow"):
            op = operator("resize", resize_shorter=shorter, parity=library, **({"max_size": limit} if limit else {}))
            known = op.infer(Spec((h, w, 3), DALIDataType.UINT8, "HWC"))
            assert known.shape == (oh, ow, 3), (h, w, shorter, limit)


def test_crops_start_where_torchvision_starts_them() -> None:
    for h, size, corner in GOLDEN["corners"].tolist():
        rows = np.repeat(np.arange(h, dtype=np.uint8), h).reshape(h, h, 1)
        for name in ("crop", CropMirrorNormalize.name):
            out, _ = run(operator(name, crop=[size, size], parity="torchvision"), [rows])
            assert out.sample(0).reshape(-1)[0] == corner
    out, _ = run(operator("crop", crop=[4, 4]), [np.arange(9, dtype=np.uint8).reshape(9, 1, 1).repeat(9, 1)])
    assert out.sample(0)[0, 0, 0] == 3  # DALI rounds 2.5 up


def test_regions_are_cut_out_first() -> None:
    image = source(4, "uint8", [61, 83, 3])
    part = image[10:50, 20:71]
    for library in ("torchvision", "opencv"):
        how = {"roi_start": [10, 20], "roi_end": [50, 71], "parity": library}
        np.testing.assert_array_equal(resized(image, (17, 90), **how), resized(part, (17, 90), parity=library))
    for roi in ({"roi_start": [50, 20], "roi_end": [10, 71]}, {"roi_start": [10, 71], "roi_end": [50, 20]}):
        flipped = resized(image, (17, 90), parity="opencv", **roi)
        turn = slice(None, None, -1)
        want = resized(part, (17, 90), parity="opencv")
        np.testing.assert_array_equal(flipped, want[turn] if roi["roi_start"][0] == 50 else want[:, turn])


@pytest.mark.parametrize("library", ["torchvision", "opencv", "pillow"])
def test_random_resized_crop_is_crop_and_resize(library: str) -> None:
    image = source(5, "uint8", [91, 77, 3])
    batch = Batch.from_list([image], "HWC", Samples.numbered(1))
    op = operator(RandomResizedCrop.name, size=[20, 30], parity=library)
    out = op.cpu(Context(op, "cpu", batch.samples, seed=7), batch).sample(0)
    anchor, shape = op.windows(Context(op, "cpu", batch.samples, seed=7), np.array([91]), np.array([77]))
    (y, x), (h, w) = anchor[0], shape[0]
    if library == "pillow":
        want = np.asarray(PIL.fromarray(image).resize((30, 20), PIL.Resampling.BILINEAR, box=(x, y, x + w, y + h)))
    else:
        want = resized(image[y : y + h, x : x + w].copy(), (20, 30), parity=library)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("library", ["torchvision", "opencv", "pillow"])
def test_windows_of_the_result_are_exact(library: str) -> None:
    image = source(6, "uint8", [61, 83, 3])
    whole = resized(image, (0, 40), parity=library)
    how = {"size": [0, 40], "crop": [11, 30], "mirror": 1, "crop_pos_x": 0.3, "crop_pos_y": 0, "parity": library}
    out, _ = run(operator("resize_crop_mirror", **how), [image])
    np.testing.assert_array_equal(out.sample(0), whole[:11, 3:33][:, ::-1])


def test_bits_of_weights_are_those_of_the_whole_axis() -> None:
    image = source(6, "uint8", [60, 300, 3])  # to 35 columns: weights of 17 bits, 18 without those at the ends
    whole = resized(image, (40, 35), parity="torchvision")
    out, _ = run(operator("resize_crop_mirror", size=[40, 35], crop=[30, 17], parity="torchvision"), [image])
    np.testing.assert_array_equal(out.sample(0), whole[5:35, 9:26])


@pytest.mark.parametrize("library", ["torchvision", "opencv", "pillow"])
def test_regions_outside_show_the_edge(library: str) -> None:
    image = source(2, "uint8", [6, 8, 3])
    for region in ([-200, -100], [1e7, 2e7], [-1e30, 1e30]):
        how = {"roi_start": region[:1], "roi_end": region[1:], "parity": library}
        got = resized(image, (3, 3), **how)
        if region[1] < 1e20:
            edge = image[-1, -1] if region[0] > 0 else image[0, 0]
            assert (got == edge).all()
        else:
            np.testing.assert_array_equal(got, resized(image, (3, 3), parity=library))


def test_long_axes_are_cheap() -> None:
    image = source(2, "uint8", [6, 8, 3])
    for library in ("torchvision", "opencv", "pillow"):
        how = {"size": [1_000_000_000, 9], "crop": [4, 9], "parity": library}
        out, ctx = run(operator("resize_crop_mirror", **how), [image])
        assert not ctx.rejects
        assert out.shapes[0].tolist() == [4, 9, 3]


@pytest.mark.parametrize("library", ["torchvision", "opencv", "pillow"])
def test_layouts_and_batches(library: str) -> None:
    image = source(7, "uint8", [21, 33, 3])
    want = resized(image, (12, 40), parity=library)
    op = operator("resize", size=[12, 40], parity=library)
    for layout, data, back in (
        ("CHW", image.transpose(2, 0, 1), lambda a: a.transpose(1, 2, 0)),
        ("FHWC", np.stack([image[::-1], image]), lambda a: a[1]),
    ):  # fmt: skip
        out, _ = run(op, [np.ascontiguousarray(data)] * 2, layout)
        np.testing.assert_array_equal(back(out.sample(1)), want)
    few, _ = run(op, [image, np.zeros((0, 4, 3), np.uint8), image[:1, :1].copy()])
    np.testing.assert_array_equal(few.sample(0), want)
    assert few.shapes.tolist() == [[12, 40, 3], [0, 40, 3], [12, 40, 3]]
    assert (few.sample(2) == image[0, 0]).all()


def test_filters_of_opencv_can_differ_by_sample() -> None:
    image = source(8, "uint8", [20, 30, 3])
    given = Batch.from_dense(np.array([1, 4, 5, 0], np.int32), "", Samples.numbered(4))
    op = operator("resize", size=[9, 9], per_sample=("interp_type",), parity="opencv")
    out, ctx = run(op, [image] * 4, interp_type=given)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "bad_argument")]
    for k, name in ((0, "linear"), (1, "area"), (3, "nearest")):
        np.testing.assert_array_equal(out.sample(k), resized(image, (9, 9), parity="opencv", interpolation=name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interpolation": "area"}, "goes with parity"),
        ({"parity": "pillow", "interpolation": "area"}, "nearest, box, bilinear"),
        ({"parity": "pillow", "antialias": False}, "always antialias"),
        ({"parity": "torchvision", "interp_type": "LANCZOS3"}, "no INTERP_LANCZOS3"),
        ({"parity": "opencv", "interp_type": "GAUSSIAN"}, "no INTERP_GAUSSIAN"),
        ({"parity": "opencv", "mag_filter": "CUBIC"}, "one filter for both"),
        ({"parity": "opencv", "interp_type": "CUBIC", "interpolation": "area"}, "exclude"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        operator("resize", size=[4, 4], **arguments)


@pytest.mark.parametrize("spec", [Spec((4, 4, 4, 3), DALIDataType.UINT8, "DHWC"), Spec((4, 4, 3), DALIDataType.INT16)])
def test_impossible_inputs_are_refused(spec: Spec) -> None:
    with pytest.raises(SpecError, match="parity: pillow"):
        operator("resize", size=[4], parity="pillow").infer(spec)


def colours() -> np.ndarray:
    """Every colour of a coarse grid, and random ones."""
    steps = np.array([0, 1, 2, 63, 64, 100, 127, 128, 129, 191, 200, 254, 255], np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    return np.concatenate([grid, np.random.default_rng(0).integers(0, 256, (20003, 3)).astype(np.uint8)])[:, None]


def recoloured(image: np.ndarray, parity: str, a: str, b: str) -> np.ndarray:
    op = ColorSpaceConversion(image_type=DALIImageType[a], output_type=DALIImageType[b], parity=parity)  # type: ignore[arg-type]
    op.check()
    batch = Batch.from_list([image], "HWC", Samples.numbered(1))
    result: np.ndarray = op.cpu(Context(op, "cpu", batch.samples), batch).sample(0)
    return result


def test_colours_of_pillow_and_opencv_to_the_bit() -> None:
    rgb = colours()
    picture = PIL.fromarray(rgb)
    ycc = np.asarray(picture.convert("YCbCr"))
    np.testing.assert_array_equal(recoloured(rgb, "pillow", "RGB", "GRAY")[..., 0], np.asarray(picture.convert("L")))
    np.testing.assert_array_equal(recoloured(rgb, "pillow", "RGB", "YCbCr"), ycc)
    back = PIL.frombytes("YCbCr", picture.size, rgb.tobytes()).convert("RGB")
    np.testing.assert_array_equal(recoloured(rgb, "pillow", "YCbCr", "RGB"), np.asarray(back))
    np.testing.assert_array_equal(recoloured(rgb, "pillow", "YCbCr", "GRAY")[..., 0], rgb[..., 0])
    gray = recoloured(rgb[..., :1].copy(), "pillow", "GRAY", "YCbCr")
    np.testing.assert_array_equal(gray, np.stack([rgb[..., 0], *[np.full_like(rgb[..., 0], 128)] * 2], axis=-1))
    np.testing.assert_array_equal(
        recoloured(rgb, "opencv", "RGB", "GRAY")[..., 0], cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    )
    np.testing.assert_array_equal(
        recoloured(rgb, "opencv", "BGR", "GRAY")[..., 0], cv2.cvtColor(rgb, cv2.COLOR_BGR2GRAY)
    )
    swap = [0, 2, 1]
    np.testing.assert_array_equal(
        recoloured(rgb, "opencv", "BGR", "YCbCr")[..., swap], cv2.cvtColor(rgb, cv2.COLOR_BGR2YCrCb)
    )
    np.testing.assert_array_equal(
        recoloured(rgb, "opencv", "YCbCr", "BGR"), cv2.cvtColor(rgb[..., swap].copy(), cv2.COLOR_YCrCb2BGR)
    )


def test_gray_of_torchvision() -> None:
    np.testing.assert_array_equal(recoloured(GOLDEN["image3"], "torchvision", "RGB", "GRAY"), GOLDEN["gray"])
    with pytest.raises(SpecError, match="torchvision has no YCbCr"):
        recoloured(GOLDEN["image3"], "torchvision", "RGB", "YCbCr")


@pytest.mark.parametrize("library", ["torchvision", "opencv", "pillow"])
def test_joined_with_crop_mirror_normalize(library: str) -> None:
    image = source(9, "uint8", [61, 83, 3])
    resize = operator("resize", resize_shorter=40, parity=library)
    normalize = operator(CropMirrorNormalize.name, crop=[32, 31], mirror=1, mean=[1, 2, 3], std=[4, 5, 6],
                         parity=library)  # fmt: skip
    batch = Batch.from_list([image], "HWC", Samples.numbered(1))
    middle = resize.cpu(Context(resize, "cpu", batch.samples), batch)
    want = normalize.cpu(Context(normalize, "cpu", batch.samples), middle)
    joined = ResizeCropMirrorNormalize(resize=resize, normalize=normalize)
    got = joined.cpu(Context(joined, "cpu", batch.samples), batch)
    np.testing.assert_array_equal(got.sample(0), want.sample(0))
    assert resize.runs_in() == ("cpu",)


@pytest.mark.parametrize("library", ["torchvision", "opencv", "pillow"])
def test_decoders_interpolate_chroma(library: Any) -> None:
    assert Image(parity=library).rules.fancy_upsampling
    assert not Image().rules.fancy_upsampling
    with pytest.raises(SpecError, match="decode as RGB, then use color_space_conversion"):
        Image(parity=library, output_type=DALIImageType.YCbCr).check()
    gray = Image(parity=library, output_type=DALIImageType.GRAY)
    if library == "pillow":
        with pytest.raises(SpecError, match="has GRAY from RGB"):
            gray.check()
    else:
        gray.check()  # the Y plane of a JPEG, as both libraries give it


def test_decoded_jpegs_are_those_of_pillow_and_opencv(imagenet: list[Path]) -> None:
    files = [p.read_bytes() for p in imagenet[::20]]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    op = Image(parity="pillow")
    out = op.cpu(Context(op, "cpu", batch.samples), batch)
    for picture, data in zip(out, files, strict=True):
        np.testing.assert_array_equal(picture, np.asarray(PIL.open(io.BytesIO(data)).convert("RGB")))
        theirs = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(picture, theirs[..., ::-1])


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_windows_of_whole_pixels_have_the_plan_of_regions(interpolation: str, antialias: bool) -> None:
    random = np.random.default_rng(6)
    extents = random.integers(1, 300, (50, 2))
    begin = random.integers(0, extents)
    extent = random.integers(1, extents - begin + 1)
    size = random.integers(1, 300, (50, 2))
    names, flip = [interpolation] * 50, np.zeros((50, 2), np.bool_)
    lo, hi = begin.astype(np.float32), (begin + extent).astype(np.float32)
    want = libraries.plan("torchvision", names, antialias, lo, hi, size, extents, flip)
    got = libraries.plan_of_windows(interpolation, antialias, begin, extent, size, flip)
    for field in dataclasses.fields(want):
        a, b = getattr(want, field.name), getattr(got, field.name)
        assert a.dtype == b.dtype, field.name
        np.testing.assert_array_equal(a, b, field.name)
