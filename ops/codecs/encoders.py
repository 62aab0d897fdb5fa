"""Operator encoders.image: encode images as JPEG, PNG, WebP or AVIF files, for writers."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import Batch
from ..compiled.background import awaited
from ..context import Context
from ..errors import SpecError
from ..types import DALIDataType
from .jpeg import tables as jpeg_tables

Format = Literal["jpeg", "png", "webp", "avif"]
LONGEST_SIDE = {"jpeg": jpeg_tables.LONGEST_SIDE, "png": 1 << 24, "webp": 16383, "avif": 32768}
"""Maximum width and height in pixels that each format can hold (jpeg, avif: limits of libjpeg and libavif)."""
CHANNELS = {"jpeg": (1, 3), "png": (1, 2, 3, 4), "webp": (1, 3, 4), "avif": (1, 3, 4)}


def _has_avif() -> bool:
    """Return whether the installed Pillow can encode AVIF. Pillow is imported only here, so that specs without AVIF are
    checked without it."""
    from PIL import features

    return bool(features.check("avif"))


class EncodeImage(Operator, name="encoders.image"):
    """Encode images (HWC, uint8; 1 or 3 channels, RGB; PNG, WebP and AVIF also with alpha).

    The output is one 1-D uint8 tensor per sample: the bytes of the file. JPEG files are baseline JFIF without metadata,
    and byte for byte equal to Pillow's (libjpeg-turbo with its accurate integer DCT), unless ``fast_dct``. GPUs encode
    JPEG; for the other formats, images are copied back and encoded on the CPU.
    """

    layouts = ("HWC",)
    output_after_sync = True
    bound = "exact; with fast_dct, GPUs still use the accurate DCT"
    accepts_gpu = True
    example = "{op: encoders.image, in: images, format: jpeg, quality: 90, out: encoded}"

    format: Annotated[Format, Arg("file format")] = "jpeg"
    quality: Annotated[int, Arg("quality of JPEG, AVIF and WebP (100 is lossless WebP)", ge=1, le=100)] = 95
    subsampling: Annotated[
        Literal["4:4:4", "4:2:2", "4:2:0"], Arg("JPEG and AVIF: resolution of colour relative to brightness")
    ] = "4:2:0"
    fast_dct: Annotated[
        bool, Arg("JPEG: libjpeg-turbo's fast DCT below quality 96; less time, slightly larger errors")
    ] = False
    optimize: Annotated[
        bool, Arg("JPEG: Huffman tables optimised per image; files a few percent smaller, more time")
    ] = False
    compression: Annotated[int, Arg("PNG: zlib's compression level, 0 to 9", ge=0, le=9)] = 6
    speed: Annotated[int, Arg("AVIF: from 0 (small files) to 10 (least time)", ge=0, le=10)] = 6

    def check(self) -> None:
        for name, of in (
            ("quality", ("jpeg", "webp", "avif")),
            ("subsampling", ("jpeg", "avif")),
            ("fast_dct", ("jpeg",)),
            ("optimize", ("jpeg",)),
            ("compression", ("png",)),
            ("speed", ("avif",)),
        ):
            if self.is_set(name) and self.format not in of:
                raise SpecError(f"argument {name!r} means nothing for {self.format}; it belongs to {' and '.join(of)}")
        if self.format == "avif" and not _has_avif():
            raise SpecError("avif needs Pillow 11.3 or newer, built with libavif: pip install 'pillow>=11.3'")
        if self.fast_dct and self.optimize:
            raise SpecError("fast_dct saves time and optimize costs time; give only one")

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.format == "jpeg" else ("cpu",)

    def infer(self, *specs: Spec) -> Spec:
        (spec,) = specs
        if spec.dtype is not None and spec.dtype != DALIDataType.UINT8:
            remedy = "cast it with {op: cast, dtype: UINT8} (after scaling to 0..255)"
            raise SpecError(f"encodes uint8 images, got {spec}; {remedy}")
        if spec.layout and spec.layout != "HWC":
            order = [spec.layout.find(c) for c in "HWC"]
            fits = -1 not in order and len(spec.layout) == 3
            remedy = f"transpose it with {{op: transpose, perm: {order}}}" if fits else "encode frame by frame"
            raise SpecError(f"encodes images of layout HWC, got {spec}; {remedy}")
        if spec.shape is not None and len(spec.shape) != 3:
            raise SpecError(f"encodes images of 3 dimensions (HWC), got {spec}")
        allowed = CHANNELS[self.format]
        if spec.shape is not None and spec.shape[2] is not None and spec.shape[2] not in allowed:
            raise SpecError(f"{self.format} takes {_either(allowed)} channels, got {spec}")
        return Spec((None,), DALIDataType.UINT8, "")

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        from . import encoders_cpu

        fit = self.fit(images)
        for i in np.flatnonzero(~fit).tolist():
            ctx.reject(i, "encode_failed", self.unfit(tuple(images.shapes[i].tolist())) or "cannot be encoded")
        # Pillow has too small a buffer for some images with optimize
        waits = awaited("ops.codecs.jpeg.encode_cpu")
        by_pillow = waits and not self.optimize and encoders_cpu.pillow_writes_our_jpegs()
        if self.format == "jpeg" and not self.fast_dct and not by_pillow:
            return encoders_cpu.jpeg_files(self, ctx.empty, images, fit)
        encode = partial(encoders_cpu.ENCODERS[self.format], self)
        encoded = [b""] * len(images)
        for i in np.flatnonzero(fit).tolist():
            try:
                encoded[i] = encode(images.sample(i))
            except encoders_cpu.ERRORS as e:
                ctx.reject(i, "encode_failed", f"{self.format}: {str(e) or type(e).__name__}")
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        data = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
        return Batch(data, np.cumsum(sizes) - sizes, sizes.astype(np.int32)[:, None], "", images.samples)

    def gpu(self, ctx: Context, images: Batch) -> Batch:
        from .encoders_gpu import encode

        return encode(self, ctx, images)

    def fit(self, images: Batch) -> npt.NDArray[np.bool_]:
        """Return for each image whether its size fits the output format, bool[N]."""
        sides, channels = images.shapes[:, :2], images.shapes[:, 2]
        inside = (sides.min(axis=1) >= 1) & (sides.max(axis=1) <= LONGEST_SIDE[self.format])
        fit: npt.NDArray[np.bool_] = inside & np.isin(channels, CHANNELS[self.format])
        return fit

    def unfit(self, shape: tuple[int, ...]) -> str | None:
        """Return the reason why an image of this ``shape`` cannot be encoded, or None if it can."""
        height, width, channels = shape
        limit = LONGEST_SIDE[self.format]
        if min(height, width) < 1:
            return f"the image is empty ({height}x{width})"
        if max(height, width) > limit:
            return f"{self.format} takes up to {limit} pixels a side, the image has {height}x{width}; resize it first"
        if channels not in CHANNELS[self.format]:
            return f"{self.format} takes {_either(CHANNELS[self.format])} channels, the image has {channels}"
        return None


def _either(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
