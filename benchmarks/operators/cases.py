"""The calls that every.py makes in both libraries, and their inputs.

A case is a function that calls `fn`; `dali_run.fn` and `nvidia.dali.fn` have the same names.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One case to measure: a call of operators with given inputs."""

    name: str
    inputs: str
    """Names of the call's inputs, as `made` knows them, separated by spaces."""
    call: Callable[..., Any]
    on: str = "cpu,gpu"
    """Devices on which DALI has the operator."""


_EXTENT = (375, 500)
"""Height and width of most of ImageNet's images."""

DISTINCT = 16
"""Number of distinct samples of a batch; the others are copies of them, in separate memory."""


def made(name: str) -> tuple[list[np.ndarray], str]:
    """Return the distinct samples of an input, one array each, and their layout."""
    batch = DISTINCT
    random = np.random.default_rng(5)
    if name in ("images", "gray", "raw", "planar", "floats"):
        height, width = _EXTENT
        small = random.integers(0, 256, (8, height // 8 + 1, width // 8 + 1, 3))
        whole = np.repeat(np.repeat(small, 8, axis=1), 8, axis=2)[:, :height, :width]
        whole = np.clip(whole + random.integers(-9, 10, whole.shape), 0, 255).astype(np.uint8)
        found = [whole[i % 8] for i in range(batch)]
        if name == "planar":
            return [np.ascontiguousarray(a.transpose(2, 0, 1)) for a in found], "CHW"
        if name == "raw":
            return [np.ascontiguousarray(a[: len(a) & ~1, : a.shape[1] & ~1, 0]) for a in found], "HW"
        if name == "gray":
            return [np.ascontiguousarray(a[..., :1]) for a in found], "HWC"
        kind = np.float32 if name == "floats" else np.uint8
        return [np.array(a, kind, order="C") for a in found], "HWC"
    shapes: dict[str, tuple[tuple[int, ...], str, str, float, float]] = {
        "squares": ((256, 256, 3), "HWC", "uint8", 0, 256),
        "maps": ((256, 256), "HW", "float32", 0, 255),
        "video": ((8, 180, 320, 3), "FHWC", "uint8", 0, 256),
        "volumes": ((32, 64, 64, 1), "DHWC", "float32", 0, 1),
        "sounds": ((160_000,), "", "float32", -1, 1),
        "spectrums": ((257, 1001), "ft", "float32", 0, 1),
        "mels": ((80, 1001), "ft", "float32", 0, 1),
        "numbers": ((10_000,), "", "float32", 0, 1),
        "whole_numbers": ((10_000,), "", "int32", 1, 99),
        "tokens": ((300,), "", "int32", 0, 30_000),
        "label": ((1,), "", "int32", 0, 1000),
        "labels": ((20,), "", "int32", 1, 80),
        "points": ((100, 2), "", "float32", 0, 1),
        "matrices": ((2, 3), "", "float32", 0, 1),
        "kernel": ((5, 5), "", "float32", 0, 1),
        "frame_numbers": ((8,), "F", "float32", 0, 1),
        "extents": ((2,), "", "int64", 300, 500),
        "means": ((1, 1, 3), "HWC", "float32", 100, 140),
        "masks": ((300, 400), "HW", "int32", 0, 4),
        "mask_images": ((300, 400, 1), "HWC", "uint8", 0, 2),
        "choices": ((100,), "", "float32", 0, 1),
    }
    if name == "boxes":
        corners = random.random((batch, 20, 4), np.float32) * 0.5
        corners[..., 2:] = np.minimum(corners[..., :2] + 0.05 + corners[..., 2:], 1)
        return list(corners), ""
    if name == "polygons":
        one = np.stack([np.arange(20), np.arange(20) * 12, np.arange(20) * 12 + 12], axis=1).astype(np.int32)
        return [one] * batch, ""
    if name == "vertices":
        return list(random.random((batch, 240, 2), np.float32)), ""
    if name == "mask_ids":
        return [np.arange(0, 20, 2, dtype=np.int32)] * batch, ""
    if name in ("packed", "packed_sizes"):
        raise ValueError(name)
    if name == "npy":
        return [_npy(random.random((256, 256), np.float32))] * batch, ""
    shape, layout, dtype, low, high = shapes[name]
    if np.dtype(dtype).kind == "f":
        values = random.random((batch, *shape), np.float32) * (high - low) + low
        if name == "sounds":
            values *= np.sin(np.linspace(0, 3, shape[0], dtype=np.float32))
    else:
        values = random.integers(int(low), int(high), (batch, *shape))
    return list(values.astype(dtype)), layout


def _npy(a: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    np.save(file, a)
    return np.frombuffer(file.getvalue(), np.uint8)


def cases(fn: Any, types: Any, math: Any) -> Iterator[Case]:
    """Yield all cases, in the order of the documentation."""

    def uniform(low: float, high: float, **more: Any) -> Any:
        return fn.random.uniform(range=[low, high], seed=7, device="cpu", **more)

    def coin() -> Any:
        return fn.random.coin_flip(seed=7, device="cpu")

    mean, std = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]
    gray = [124, 116, 104]

    for kind in ("images", "squares", "video", "sounds", "numbers", "boxes"):
        yield Case(f"source: {kind}", kind, lambda x: x)

    # geometry of images
    for interpolation in ("NN", "LINEAR", "CUBIC", "LANCZOS3", "TRIANGULAR", "GAUSSIAN"):
        how = getattr(types, f"INTERP_{interpolation}")
        yield Case(f"resize: {interpolation}", "images", lambda x, h=how: fn.resize(x, size=[224, 224], interp_type=h))
    yield Case("resize: LINEAR, no antialias", "images", lambda x: fn.resize(x, size=[224, 224], antialias=False))
    yield Case("resize: shorter side, float", "images",
               lambda x: fn.resize(x, resize_shorter=256, dtype=types.FLOAT))  # fmt: skip
    yield Case(
        "resize: drawn size", "images", lambda x: fn.resize(x, resize_x=uniform(200, 300), resize_y=uniform(200, 300))
    )
    yield Case("resize: enlarged", "squares", lambda x: fn.resize(x, size=[512, 512]))
    yield Case("resize: CHW", "planar", lambda x: fn.resize(x, size=[224, 224]))
    yield Case("resize: video", "video", lambda x: fn.resize(x, size=[112, 112]))
    yield Case("resize: volumes", "volumes", lambda x: fn.resize(x, size=[16, 48, 48]))
    yield Case("experimental.resize", "images", lambda x: fn.experimental.resize(x, size=[224, 224]), "gpu")
    yield Case("tensor_resize", "images", lambda x: fn.tensor_resize(x, sizes=[224, 224], axes=[0, 1]))
    yield Case("resize_crop_mirror", "images", lambda x: fn.resize_crop_mirror(
        x, resize_shorter=256, crop=[224, 224], mirror=coin()))  # fmt: skip
    yield Case("fast_resize_crop_mirror", "images", lambda x: fn.fast_resize_crop_mirror(
        x, resize_shorter=256, crop=[224, 224], mirror=coin()), "cpu")  # fmt: skip
    yield Case("random_resized_crop", "images", lambda x: fn.random_resized_crop(x, size=[224, 224], seed=3))
    yield Case("rotate", "images", lambda x: fn.rotate(x, angle=uniform(-30, 30), fill_value=0))
    yield Case("rotate: keep size", "images", lambda x: fn.rotate(x, angle=20.0, keep_size=True, fill_value=128))
    yield Case("rotate: NN", "images", lambda x: fn.rotate(
        x, angle=20.0, keep_size=True, interp_type=types.INTERP_NN, fill_value=0))  # fmt: skip
    yield Case("rotate: video", "video", lambda x: fn.rotate(x, angle=20.0, keep_size=True, fill_value=0))
    affine = [0.9, 0.1, 3, -0.05, 1.1, 2]
    yield Case("warp_affine", "images", lambda x: fn.warp_affine(x, matrix=affine, fill_value=0))
    yield Case("warp_affine: NN, size", "images", lambda x: fn.warp_affine(
        x, matrix=affine, size=[224, 224], fill_value=0, interp_type=types.INTERP_NN))  # fmt: skip
    yield Case("warp_affine: drawn matrix", "images", lambda x: fn.warp_affine(
        x, matrix=fn.transforms.rotation(angle=uniform(-30, 30), center=[200, 200]), fill_value=0))  # fmt: skip
    yield Case(
        "warp_affine: float", "images", lambda x: fn.warp_affine(x, matrix=affine, fill_value=0, dtype=types.FLOAT)
    )
    yield Case("experimental.warp_perspective", "images", lambda x: fn.experimental.warp_perspective(
        x, matrix=[*affine, 1e-4, -5e-5, 1], pixel_origin="center"))  # fmt: skip
    yield Case("experimental.remap", "squares maps maps", lambda x, u, v: fn.experimental.remap(
        x, u, v, pixel_origin="center"), "gpu")  # fmt: skip
    yield Case("water", "images", lambda x: fn.water(x))
    yield Case("sphere", "images", lambda x: fn.sphere(x))
    yield Case("jitter", "images", lambda x: fn.jitter(x), "gpu")
    for h, v in ((1, 0), (0, 1), (1, 1)):
        yield Case(
            f"flip: horizontal {h} vertical {v}", "images", lambda x, h=h, v=v: fn.flip(x, horizontal=h, vertical=v)
        )
    yield Case("flip: drawn", "images", lambda x: fn.flip(x, horizontal=coin()))
    yield Case("flip: video", "video", lambda x: fn.flip(x, horizontal=coin()))
    yield Case("flip: CHW", "planar", lambda x: fn.flip(x))
    yield Case("crop", "images", lambda x: fn.crop(x, crop=[224, 224]))
    yield Case("crop: drawn", "images", lambda x: fn.crop(
        x, crop=[224, 224], crop_pos_x=uniform(0, 1), crop_pos_y=uniform(0, 1)))  # fmt: skip
    yield Case("crop: float", "images", lambda x: fn.crop(x, crop=[224, 224], dtype=types.FLOAT))
    yield Case("crop: video", "video", lambda x: fn.crop(x, crop=[112, 112]))
    yield Case("crop: padded", "images", lambda x: fn.crop(x, crop=[512, 512], out_of_bounds_policy="pad"))
    yield Case("slice", "images", lambda x: fn.slice(x, rel_start=[0.1, 0.1], rel_shape=[0.8, 0.8], axis_names="HW"))
    yield Case("slice: positional", "images", lambda x: fn.slice(
        x, uniform(0, 0.2, shape=[2]), uniform(0.5, 0.8, shape=[2]), axis_names="HW"))  # fmt: skip
    yield Case("slice: sounds", "sounds", lambda x: fn.slice(x, start=[100], end=[90_000], axes=[0]))
    yield Case("subscript", "images", lambda x: x[10:-10, 20:-20])
    yield Case("crop_mirror_normalize", "images", lambda x: fn.crop_mirror_normalize(
        x, crop=[224, 224], mean=mean, std=std, mirror=coin()))  # fmt: skip
    yield Case("crop_mirror_normalize: float16", "images", lambda x: fn.crop_mirror_normalize(
        x, crop=[224, 224], mean=mean, std=std, mirror=1, dtype=types.FLOAT16))  # fmt: skip
    yield Case("crop_mirror_normalize: HWC, padded", "images", lambda x: fn.crop_mirror_normalize(
        x, crop=[224, 224], mean=mean, std=std, output_layout="HWC", pad_output=True))  # fmt: skip
    yield Case("crop_mirror_normalize: video", "video", lambda x: fn.crop_mirror_normalize(
        x, crop=[112, 112], mean=mean, std=std, output_layout="FCHW"))  # fmt: skip
    yield Case("paste", "images", lambda x: fn.paste(x, ratio=1.5, paste_x=0.3, paste_y=0.7, fill_value=gray))
    yield Case("paste: drawn", "images", lambda x: fn.paste(
        x, ratio=uniform(1, 2), paste_x=uniform(0, 1), paste_y=uniform(0, 1), fill_value=gray))  # fmt: skip
    yield Case("multi_paste", "squares", lambda x: fn.multi_paste(
        x, in_ids=np.array([0, 1, 2, 3], np.int32), output_size=[512, 512],
        out_anchors=np.array([[0, 0], [0, 256], [256, 0], [256, 256]], np.int32)))  # fmt: skip
    yield Case("erase", "images", lambda x: fn.erase(
        x, anchor=[0.2, 0.3], shape=[0.4, 0.4], axis_names="HW", normalized=True, fill_value=gray))  # fmt: skip
    yield Case("erase: drawn", "images", lambda x: fn.erase(
        x, anchor=uniform(0, 0.6, shape=[2]), shape=[0.4, 0.4], axis_names="HW", normalized=True))  # fmt: skip
    yield Case("grid_mask", "images", lambda x: fn.grid_mask(x, tile=56, angle=0.3))

    # colours
    yield Case("brightness", "images", lambda x: fn.brightness(x, brightness=1.3))
    yield Case("brightness: squares", "squares", lambda x: fn.brightness(x, brightness=1.3))
    yield Case("brightness: drawn", "images", lambda x: fn.brightness(x, brightness=uniform(0.5, 1.5)))
    yield Case("brightness: float", "images", lambda x: fn.brightness(x, brightness=1.3, dtype=types.FLOAT))
    yield Case("contrast", "images", lambda x: fn.contrast(x, contrast=1.3))
    yield Case("brightness_contrast", "images", lambda x: fn.brightness_contrast(x, brightness=1.3, contrast=0.8))
    yield Case("brightness_contrast: video", "video", lambda x: fn.brightness_contrast(x, brightness=1.3, contrast=0.8))
    yield Case("hue", "images", lambda x: fn.hue(x, hue=30.0))
    yield Case("saturation", "images", lambda x: fn.saturation(x, saturation=1.3))
    yield Case("hsv", "images", lambda x: fn.hsv(x, hue=30.0, saturation=1.3))
    yield Case("hsv: float", "images", lambda x: fn.hsv(x, hue=30.0, saturation=1.3, dtype=types.FLOAT))
    yield Case("color_twist", "images", lambda x: fn.color_twist(x, hue=30.0, saturation=1.3, contrast=0.8))
    yield Case("color_twist: drawn", "images", lambda x: fn.color_twist(
        x, hue=uniform(-30, 30), saturation=uniform(0.5, 1.5), contrast=uniform(0.5, 1.5)))  # fmt: skip
    spaces = ("RGB", "BGR", "YCbCr", "GRAY")
    for a in ("RGB", "YCbCr"):
        for b in spaces:
            if a != b:
                kinds = {"image_type": getattr(types, a), "output_type": getattr(types, b)}
                yield Case(
                    f"color_space_conversion: {a} {b}", "images", lambda x, k=kinds: fn.color_space_conversion(x, **k)
                )
    yield Case("color_space_conversion: GRAY RGB", "gray", lambda x: fn.color_space_conversion(
        x, image_type=types.GRAY, output_type=types.RGB))  # fmt: skip
    yield Case("equalize", "images", lambda x: fn.equalize(x))
    yield Case("clahe", "images", lambda x: fn.clahe(x, tiles_x=8, tiles_y=8, clip_limit=2.0))
    yield Case("debayer", "raw", lambda x: fn.debayer(x, blue_position=[0, 1]), "gpu")
    yield Case("debayer: opencv's bilinear", "raw", lambda x: fn.debayer(
        x, blue_position=[0, 1], algorithm="bilinear_ocv"), "cpu")  # fmt: skip
    yield Case("lookup_table: images", "images", lambda x: fn.lookup_table(
        x, keys=list(range(256)), values=[255 - k for k in range(256)], dtype=types.UINT8))  # fmt: skip
    yield Case("lookup_table: labels", "labels", lambda x: fn.lookup_table(
        x, keys=[1, 7, 9], values=[1, 2, 2], dtype=types.INT32))  # fmt: skip

    # filters and distortions
    yield Case("gaussian_blur: sigma 1", "images", lambda x: fn.gaussian_blur(x, sigma=1.0))
    yield Case("gaussian_blur: window 23", "images", lambda x: fn.gaussian_blur(x, window_size=23))
    yield Case("gaussian_blur: drawn", "images", lambda x: fn.gaussian_blur(x, sigma=uniform(0.1, 2.0, shape=[1])))
    yield Case("gaussian_blur: float", "images", lambda x: fn.gaussian_blur(x, sigma=1.0, dtype=types.FLOAT))
    yield Case("gaussian_blur: video", "video", lambda x: fn.gaussian_blur(x, sigma=1.0))
    yield Case("laplacian", "images", lambda x: fn.laplacian(x, window_size=3))
    yield Case("laplacian: window 5, float", "images", lambda x: fn.laplacian(x, window_size=5, dtype=types.FLOAT))
    yield Case("filter: 5 x 5", "images kernel", lambda x, k: fn.filter(x, k))
    yield Case("filter: 5 x 5, float", "floats kernel", lambda x, k: fn.filter(x, k))
    yield Case(
        "experimental.median_blur: 3", "images", lambda x: fn.experimental.median_blur(x, window_size=[3, 3]), "gpu"
    )
    yield Case(
        "experimental.median_blur: 5", "images", lambda x: fn.experimental.median_blur(x, window_size=[5, 5]), "gpu"
    )
    yield Case("experimental.dilate", "images", lambda x: fn.experimental.dilate(x, mask_size=[5, 5]), "gpu")
    yield Case("experimental.erode", "images", lambda x: fn.experimental.erode(x, mask_size=[5, 5]), "gpu")
    yield Case("jpeg_compression_distortion", "images", lambda x: fn.jpeg_compression_distortion(x, quality=50))
    yield Case("noise.gaussian", "images", lambda x: fn.noise.gaussian(x, stddev=10.0, seed=3))
    yield Case("noise.salt_and_pepper", "images", lambda x: fn.noise.salt_and_pepper(x, prob=0.1, seed=3))
    yield Case("noise.shot", "images", lambda x: fn.noise.shot(x, factor=12.0, seed=3))

    # values, axes, joins
    for kind in ("FLOAT", "FLOAT16", "INT32", "INT64"):
        yield Case(f"cast: images to {kind}", "images", lambda x, k=kind: fn.cast(x, dtype=getattr(types, k)))
    yield Case("cast: labels", "labels", lambda x: fn.cast(x, dtype=types.INT64))
    yield Case("cast: float to INT32", "floats", lambda x: fn.cast(x, dtype=types.INT32))
    yield Case("cast: float to uint8", "floats", lambda x: fn.cast(x, dtype=types.UINT8))
    yield Case("cast_like", "numbers images", lambda x, y: fn.cast_like(x, y))
    yield Case("copy", "images", lambda x: fn.copy(x))
    yield Case("transpose: HWC to CHW", "images", lambda x: fn.transpose(x, perm=[2, 0, 1]))
    yield Case("transpose: CHW to HWC", "planar", lambda x: fn.transpose(x, perm=[1, 2, 0]))
    yield Case("transpose: spectrograms", "spectrums", lambda x: fn.transpose(x, perm=[1, 0]))
    yield Case("cat: along W", "images images", lambda x, y: fn.cat(x, y, axis_name="W"))
    yield Case("cat: along C", "images images", lambda x, y: fn.cat(x, y, axis=2))
    yield Case("cat: along H", "images images", lambda x, y: fn.cat(x, y, axis=0))
    yield Case("stack", "images images", lambda x, y: fn.stack(x, y, axis_name="F"))
    yield Case("pad: images", "images", lambda x: fn.pad(x, axis_names="HW", align=[64, 64]))
    yield Case("pad: to the largest", "images", lambda x: fn.pad(x))
    yield Case("pad: tokens", "tokens", lambda x: fn.pad(x, axes=[0], shape=[512], fill_value=-1))
    yield Case("reshape", "images", lambda x: fn.reshape(x, shape=[-1]))
    yield Case("reinterpret", "numbers", lambda x: fn.reinterpret(x, dtype=types.UINT8))
    yield Case("expand_dims", "numbers", lambda x: fn.expand_dims(x, axes=[0]))
    yield Case("squeeze", "gray", lambda x: fn.squeeze(x, axes=[2]))
    yield Case("one_hot", "label", lambda x: fn.one_hot(x, num_classes=1000))
    yield Case("shapes", "images", lambda x: x.shape())
    yield Case("get_property", "images", lambda x: fn.get_property(x, key="layout"))
    yield Case("permute_batch", "images", lambda x: fn.permute_batch(x, indices=fn.batch_permutation(seed=3)))
    yield Case("batch_permutation", "", lambda: fn.batch_permutation(seed=3), "cpu")
    yield Case("element_extract", "video", lambda x: fn.element_extract(x, element_map=[0, 4])[0])
    yield Case("sequence_rearrange", "video", lambda x: fn.sequence_rearrange(x, new_order=[0, 2, 4, 6]))
    yield Case("per_frame", "frame_numbers", lambda x: fn.per_frame(x))
    yield Case("constant", "", lambda: fn.constant(fdata=[1.0, 2.0, 3.0], shape=[3]))
    yield Case("full", "label", lambda x: fn.full(x, shape=[20]), "cpu")
    yield Case("full_like", "numbers label", lambda x, y: fn.full_like(x, y), "cpu")
    yield Case("ones", "", lambda: fn.ones(shape=[10_000]), "cpu")
    yield Case("ones_like", "images", lambda x: fn.ones_like(x), "cpu")
    yield Case("zeros", "", lambda: fn.zeros(shape=[10_000]), "cpu")
    yield Case("zeros_like", "images", lambda x: fn.zeros_like(x), "cpu")

    # arithmetic
    yield Case("arithmetic: images * 1.5 + 2", "images", lambda x: x * 1.5 + 2)
    yield Case("arithmetic: images + images", "images images", lambda x, y: x + y)
    yield Case("arithmetic: images * drawn", "images", lambda x: x * uniform(0.5, 1.5))
    yield Case("arithmetic: images > 128", "images", lambda x: x > 128)
    yield Case("arithmetic: numbers * numbers", "numbers numbers", lambda x, y: x * y)
    yield Case("arithmetic: numbers // 7", "whole_numbers", lambda x: x // 7)
    yield Case("arithmetic: labels + 1", "labels", lambda x: x + 1)
    yield Case("arithmetic: broadcast", "images means", lambda x, y: x - y)
    of_one = "sqrt rsqrt cbrt exp log log2 log10 abs fabs floor ceil sin cos tan asin acos atan sinh cosh tanh asinh"
    for name in (*of_one.split(), "acosh", "atanh"):
        yield Case(f"math.{name}", "numbers", lambda x, n=name: getattr(math, n)(x))
    for name in ("pow", "fpow", "atan2", "min", "max"):
        yield Case(f"math.{name}", "numbers numbers", lambda x, y, n=name: getattr(math, n)(x, y))
    yield Case("math.clamp", "numbers", lambda x: math.clamp(x, 0.2, 0.8))

    # statistics
    for name in ("sum", "mean", "mean_square", "rms", "min", "max"):
        reduce = getattr(fn.reductions, name)
        yield Case(f"reductions.{name}: HW", "images", lambda x, r=reduce: r(x, axis_names="HW"))
        yield Case(f"reductions.{name}: C", "images", lambda x, r=reduce: r(x, axis_names="C"))
        yield Case(f"reductions.{name}: all", "images", lambda x, r=reduce: r(x))
        yield Case(f"reductions.{name}: sounds", "sounds", lambda x, r=reduce: r(x))
    for name in ("std_dev", "variance"):
        reduce = getattr(fn.reductions, name)
        yield Case(f"reductions.{name}: HW", "images means", lambda x, m, r=reduce: r(x, m, axis_names="HW"))
        yield Case(f"reductions.{name}: sounds", "sounds", lambda x, r=reduce: r(x, fn.reductions.mean(x)))
    yield Case("reductions.mean: video, F", "video", lambda x: fn.reductions.mean(x, axis_names="F"))
    yield Case("reductions.mean: spectrograms, t", "spectrums", lambda x: fn.reductions.mean(x, axes=[1]))
    yield Case("normalize: spectrograms", "mels", lambda x: fn.normalize(x, axes=[1]))
    yield Case("normalize: images, HW", "images", lambda x: fn.normalize(x, axis_names="HW"))
    yield Case("normalize: images, all", "images", lambda x: fn.normalize(x))
    yield Case("normalize: given mean", "images", lambda x: fn.normalize(x, mean=120.0, stddev=60.0))  # fmt: skip
    yield Case("normalize: batch", "squares", lambda x: fn.normalize(x, axis_names="HW", batch=True))
    yield Case("normalize: sounds", "sounds", lambda x: fn.normalize(x))

    # audio
    yield Case("spectrogram: 512", "sounds", lambda x: fn.spectrogram(x, nfft=512, window_length=400, window_step=160))
    yield Case(
        "spectrogram: 2048", "sounds", lambda x: fn.spectrogram(x, nfft=2048, window_length=1024, window_step=512)
    )
    yield Case("spectrogram: tf", "sounds", lambda x: fn.spectrogram(
        x, nfft=512, window_length=400, window_step=160, layout="tf"))  # fmt: skip
    yield Case("power_spectrum", "mels", lambda x: fn.power_spectrum(x, axis=1), "cpu")
    yield Case("mel_filter_bank", "spectrums", lambda x: fn.mel_filter_bank(x, sample_rate=16000, nfilter=80))
    yield Case("to_decibels", "mels", lambda x: fn.to_decibels(x, multiplier=10, reference=1.0, cutoff_db=-80))
    yield Case("to_decibels: own reference", "mels", lambda x: fn.to_decibels(x))
    yield Case("mfcc", "mels", lambda x: fn.mfcc(x, n_mfcc=13))
    yield Case("preemphasis_filter", "sounds", lambda x: fn.preemphasis_filter(x, preemph_coeff=0.97))
    yield Case("nonsilent_region", "sounds", lambda x: fn.nonsilent_region(x, cutoff_db=-40)[0])
    yield Case("audio_resample: 16 to 8 kHz", "sounds", lambda x: fn.audio_resample(x, in_rate=16000, out_rate=8000))
    yield Case(
        "audio_resample: 44.1 to 16 kHz", "sounds", lambda x: fn.audio_resample(x, in_rate=44100, out_rate=16000)
    )
    same = (
        {"parity": "dali"} if fn.__name__.startswith("dali_run") else {}
    )  # this project's own filter does more: it is a low-pass
    yield Case("audio_resample: 44.1 to 16 kHz, DALI's filter", "sounds", lambda x: fn.audio_resample(
        x, in_rate=44100, out_rate=16000, **same))  # fmt: skip
    yield Case("audio_resample: drawn, DALI's filter", "sounds", lambda x: fn.audio_resample(
        x, scale=uniform(0.8, 1.2), **same))  # fmt: skip
    yield Case("audio_resample: drawn", "sounds", lambda x: fn.audio_resample(x, scale=uniform(0.8, 1.2)))

    # boxes, points, masks
    yield Case("bb_flip", "boxes", lambda x: fn.bb_flip(x, ltrb=True, horizontal=coin()))
    yield Case("bbox_paste", "boxes", lambda x: fn.bbox_paste(
        x, ratio=uniform(1, 2), paste_x=uniform(0, 1), paste_y=uniform(0, 1), ltrb=True), "cpu")  # fmt: skip
    yield Case("bbox_rotate", "boxes labels", lambda x, y: fn.bbox_rotate(
        x, y, angle=uniform(-30, 30), input_shape=[300, 400], bbox_layout="xyXY", shape_layout="HW")[0],
        "cpu")  # fmt: skip
    anchors = np.random.default_rng(1).random((2000, 4), np.float32)
    anchors[:, 2:] = np.minimum(anchors[:, :2] + anchors[:, 2:] * 0.3 + 0.01, 1)
    flat = anchors.reshape(-1).tolist()
    yield Case("box_encoder", "boxes labels", lambda x, y: fn.box_encoder(x, y, anchors=flat)[0])
    yield Case("coord_flip", "points", lambda x: fn.coord_flip(x, layout="xy", flip_x=coin()))
    yield Case("coord_transform", "points", lambda x: fn.coord_transform(
        x, MT=fn.transforms.rotation(angle=uniform(-30, 30))))  # fmt: skip
    yield Case("random_bbox_crop", "boxes labels", lambda x, y: fn.random_bbox_crop(
        x, y, thresholds=[0, 0.1, 0.3, 0.5, 0.7, 0.9], aspect_ratio=[0.5, 2.0], scaling=[0.3, 1.0], num_attempts=50,
        bbox_layout="xyXY", seed=3)[0], "cpu")  # fmt: skip
    yield Case("ssd_random_crop", "images boxes labels", lambda x, y, z: fn.ssd_random_crop(x, y, z, seed=3)[0], "cpu")
    yield Case("random_crop_generator", "extents", lambda x: fn.random_crop_generator(x, seed=3)[0], "cpu")
    yield Case("roi_random_crop", "", lambda: fn.roi_random_crop(
        crop_shape=[64, 64], roi_start=[20, 30], roi_end=[200, 200], in_shape=[300, 400], seed=3), "cpu")  # fmt: skip
    yield Case("segmentation.random_mask_pixel", "masks", lambda x: fn.segmentation.random_mask_pixel(
        x, foreground=1, seed=3), "cpu")  # fmt: skip
    yield Case("segmentation.random_object_bbox", "masks", lambda x: fn.segmentation.random_object_bbox(
        x, classes=[1, 2], foreground_prob=1.0, seed=3)[0], "cpu")  # fmt: skip
    yield Case("segmentation.select_masks", "mask_ids polygons vertices", lambda x, y, z: fn.segmentation.select_masks(
        x, y, z, reindex_masks=True)[1], "cpu")  # fmt: skip

    # draws and matrices
    for dev in ("cpu", "gpu"):
        only = "gpu" if dev == "gpu" else "cpu"
        yield Case("random.uniform", "", lambda d=dev: fn.random.uniform(range=[-1, 1], seed=3, device=d), only)
        yield Case("random.uniform: 10000", "", lambda d=dev: fn.random.uniform(shape=[10_000], seed=3, device=d), only)
        yield Case("random.normal", "", lambda d=dev: fn.random.normal(seed=3, device=d), only)
        yield Case("random.normal: 10000", "", lambda d=dev: fn.random.normal(shape=[10_000], seed=3, device=d), only)
        yield Case("random.coin_flip", "", lambda d=dev: fn.random.coin_flip(seed=3, device=d), only)
        yield Case(
            "random.coin_flip: 10000", "", lambda d=dev: fn.random.coin_flip(shape=[10_000], seed=3, device=d), only
        )
        yield Case("random.uniform: of values", "", lambda d=dev: fn.random.uniform(
            values=[1.0, 2.0, 3.0], seed=3, device=d), only)  # fmt: skip
    yield Case("random.beta", "", lambda: fn.random.beta(alpha=0.4, beta=0.4, seed=3), "cpu")
    yield Case("random.choice", "", lambda: fn.random.choice(100, shape=[10], seed=3), "cpu")
    yield Case("random.choice: of an input", "choices", lambda x: fn.random.choice(x, shape=[10], seed=3), "cpu")
    yield Case(
        "transforms.rotation", "", lambda: fn.transforms.rotation(angle=uniform(-30, 30), center=[112, 112]), "cpu"
    )
    yield Case("transforms.scale", "", lambda: fn.transforms.scale(scale=uniform(0.5, 2, shape=[2])), "cpu")
    yield Case("transforms.shear", "", lambda: fn.transforms.shear(angles=uniform(-15, 15, shape=[2])), "cpu")
    yield Case("transforms.translation", "", lambda: fn.transforms.translation(offset=uniform(-9, 9, shape=[2])), "cpu")
    yield Case("transforms.crop", "", lambda: fn.transforms.crop(
        from_start=uniform(0, 9, shape=[2]), from_end=[200.0, 200.0], to_end=[224.0, 224.0]), "cpu")  # fmt: skip
    yield Case("transforms.combine", "matrices matrices", lambda x, y: fn.transforms.combine(x, y), "cpu")

    # sequences, files
    yield Case("optical_flow", "video", lambda x: fn.optical_flow(x, output_grid=4), "gpu")
    yield Case("decoders.numpy", "npy", lambda x: fn.decoders.numpy(x, dtype=types.FLOAT), "cpu")
