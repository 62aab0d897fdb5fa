"""Image decoders: decoders.image, its cropping variants, and peek_image_shape."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from .base import Arg, Operator, Spec
from .batch import I64, Batch
from .context import Context
from .errors import SpecError
from .host_decode import MAX_PIXELS, Rules, Windows, decode, read_headers
from .pixels import channels_of
from .types import DALIDataType, DALIImageType, to_numpy

_PADDING = "memory is taken from pools that grow as needed"
_ALLOWED = (
    DALIDataType.UINT8, DALIDataType.INT8, DALIDataType.UINT16, DALIDataType.INT16, DALIDataType.FLOAT16,
    DALIDataType.FLOAT,
)  # fmt: skip


class ImageDecoder(Operator, abstract=True):
    """What all image decoders share."""

    bound = "JPEG: the CPU is bit-identical to libjpeg-turbo; nvJPEG differs by up to a few levels"

    output_type: Annotated[DALIImageType, Arg("colour space: RGB, BGR, GRAY, YCbCr, or ANY_DATA as stored")] = (
        DALIImageType.RGB
    )
    dtype: Annotated[DALIDataType, Arg("element type; integers scale to their range, floats to [0, 1]")] = (
        DALIDataType.UINT8
    )
    adjust_orientation: Annotated[bool, Arg("turn the image as its Exif orientation says")] = True
    use_fast_idct: Annotated[bool, Arg("a faster, less exact inverse DCT on the CPU")] = False
    jpeg_fancy_upsampling: Annotated[
        bool, Arg("interpolate chroma on the GPU as the CPU always does, instead of repeating it")
    ] = False
    hw_decoder_load: Annotated[
        float,
        Arg("part of the JPEGs for the GPU's JPEG engines, the rest goes to CPU threads; -1 chooses", ge=-1, le=1),
    ] = -1.0
    max_pixels: Annotated[int, Arg("refuse images of more pixels (decompression bombs)", ge=1)] = MAX_PIXELS
    hybrid_huffman_threshold: Annotated[int, Arg("pixels", ignored="the lane is chosen by the header")] = 1000000
    affine: Annotated[bool, Arg("pin threads to cores", ignored="threads are shared by all operators")] = True
    device_memory_padding: Annotated[int, Arg("bytes", ignored=_PADDING)] = 16777216
    host_memory_padding: Annotated[int, Arg("bytes", ignored=_PADDING)] = 8388608
    device_memory_padding_jpeg2k: Annotated[int, Arg("bytes", ignored=_PADDING)] = 0
    host_memory_padding_jpeg2k: Annotated[int, Arg("bytes", ignored=_PADDING)] = 0
    preallocate_width_hint: Annotated[int, Arg("pixels", ignored=_PADDING)] = 0
    preallocate_height_hint: Annotated[int, Arg("pixels", ignored=_PADDING)] = 0
    memory_stats: Annotated[bool, Arg("print memory use", ignored="the report has it")] = False
    split_stages: Annotated[bool, Arg("deprecated in DALI", ignored="DALI ignores it too")] = False
    use_chunk_allocator: Annotated[bool, Arg("deprecated in DALI", ignored="DALI ignores it too")] = False

    def check(self) -> None:
        if self.dtype not in _ALLOWED:
            names = ", ".join(t.name for t in _ALLOWED)
            raise SpecError(f"dtype {self.dtype.name} is not one that images decode to; allowed: {names}")

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        channels = None if self.output_type is DALIImageType.ANY_DATA else channels_of(self.output_type, 3)
        return Spec((None, None, channels), self.dtype, "HWC")

    @property
    def rules(self) -> Rules:
        """The arguments, as the decoders take them."""
        return Rules(
            self.output_type,
            to_numpy(self.dtype),
            self.adjust_orientation,
            self.use_fast_idct,
            self.jpeg_fancy_upsampling,
            self.max_pixels,
        )

    def windows(self, ctx: Context, *inputs: Batch) -> Windows | None:
        """What is cut out of each image; None for all of it."""
        return None

    def cpu(self, ctx: Context, encoded: Batch, *inputs: Batch) -> Batch:
        return decode(ctx, encoded, self.rules, self.windows(ctx, *inputs))

    def mixed(self, ctx: Context, encoded: Batch, *inputs: Batch) -> Batch:
        from .gpu_decode import decode as decode_on_gpu

        return decode_on_gpu(ctx, encoded, self.rules, self.hw_decoder_load, self.windows(ctx, *inputs))


def check_encoded(spec: Spec) -> None:
    """Raises SpecError where ``spec`` cannot be encoded bytes."""
    if (spec.dtype is not None and spec.dtype is not DALIDataType.UINT8) or (spec.ndim is not None and spec.ndim != 1):
        raise SpecError(f"needs encoded files, uint8[?], as readers give them; got {spec}")


class Image(ImageDecoder, name="decoders.image"):
    """Decode images: JPEG, PNG, BMP, TIFF, PNM, WebP, JPEG 2000 and the first frame of GIF, to HWC."""

    aliases = ("image_decoder", "experimental.decoders.image")
    example = "{op: decoders.image, in: jpegs, device: mixed, output_type: RGB, out: images}"

    cache_size: Annotated[int, Arg("megabytes", ignored="there is no decoder cache")] = 0
    cache_threshold: Annotated[int, Arg("bytes", ignored="there is no decoder cache")] = 0
    cache_type: Annotated[str, Arg("kind", ignored="there is no decoder cache")] = ""
    cache_debug: Annotated[bool, Arg("print", ignored="there is no decoder cache")] = False
    cache_batch_copy: Annotated[bool, Arg("copy", ignored="there is no decoder cache")] = True


class ImageRandomCrop(ImageDecoder, name="decoders.image_random_crop"):
    """Decode a random window of each image, of random area and aspect ratio (the same as random_resized_crop's)."""

    aliases = ("image_decoder_random_crop", "experimental.decoders.image_random_crop")
    random = True
    example = "{op: decoders.image_random_crop, in: jpegs, random_area: [0.08, 1.0], out: images}"

    random_aspect_ratio: Annotated[tuple[float, float], Arg("range of width / height")] = (3 / 4, 4 / 3)
    random_area: Annotated[tuple[float, float], Arg("range of the window's part of the image")] = (0.08, 1.0)
    num_attempts: Annotated[int, Arg("draws before the largest central window is taken", ge=1)] = 10

    def check(self) -> None:
        super().check()
        from .random_window import check_window_ranges

        check_window_ranges(self.random_aspect_ratio, self.random_area)

    def windows(self, ctx: Context, *inputs: Batch) -> Windows:
        from .random_window import WINDOW_SALT, random_windows

        streams = ctx.streams(WINDOW_SALT)

        def draw(heights: I64, widths: I64) -> tuple[I64, I64]:
            return random_windows(
                streams, heights, widths, self.random_aspect_ratio, self.random_area, self.num_attempts
            )

        return draw


class PeekImageShape(Operator, name="peek_image_shape"):
    """The shape (H, W, C) that an encoded image decodes to, from its header alone."""

    aliases = ("experimental.peek_image_shape", "decoders.peek_image_shape")
    example = "{op: peek_image_shape, in: jpegs, out: shapes}"

    dtype: Annotated[DALIDataType, Arg("element type of the shape")] = DALIDataType.INT64
    adjust_orientation: Annotated[bool, Arg("of the image turned as its Exif orientation says")] = True
    image_type: Annotated[DALIImageType, Arg("the colour space that the channels are counted in")] = DALIImageType.RGB

    def check(self) -> None:
        allowed = (DALIDataType.INT32, DALIDataType.UINT32, DALIDataType.INT64, DALIDataType.UINT64,
                   DALIDataType.FLOAT, DALIDataType.FLOAT64)  # fmt: skip
        if self.dtype not in allowed:
            raise SpecError(
                f"dtype {self.dtype.name} cannot hold a shape; allowed: {', '.join(t.name for t in allowed)}"
            )

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        return Spec((3,), self.dtype, "")

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        rules = Rules(adjust_orientation=self.adjust_orientation, max_pixels=2**62)
        headers = read_headers(ctx, encoded, rules)
        channels = headers.channels
        if self.image_type is not DALIImageType.ANY_DATA:
            channels = np.full(len(encoded), channels_of(self.image_type, 3), np.int64)
        shapes = np.stack([headers.height, headers.width, channels], axis=1).astype(to_numpy(self.dtype))
        return Batch.from_dense(shapes, "", encoded.samples)
