"""Operators that decode files: decoders.image and its cropping variants, peek_image_shape, decoders.numpy,
io.file.read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..arrays.slice import Slice
from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..errors import MixedTypesError, SampleError, SpecError
from ..images.crop import CropWindow
from ..images.random_window import WINDOW_SALT, check_window_ranges, random_windows
from ..interfaces import StartedWork
from ..types import DALIDataType, DALIImageType, Library, to_numpy
from .costs import RULE
from .formats import BOMB_RATIO
from .headers import MAX_PIXELS, OnDamage, Rules, Windows, encoded_bytes, estimate_memory, read_headers
from .host_decode import decode
from .pixels import channels_of

_PADDING = "memory is taken from pools that grow as needed"
_ALLOWED = (
    DALIDataType.UINT8, DALIDataType.INT8, DALIDataType.UINT16, DALIDataType.INT16, DALIDataType.FLOAT16,
    DALIDataType.FLOAT,
)  # fmt: skip


class ImageDecoder(Operator, abstract=True):
    """Base class of the operators that decode images."""

    decodes = True
    bound = (
        "JPEG: the CPU and the built-in CUDA decoder are bit-identical to libjpeg-turbo; nvJPEG differs "
        "by up to a few levels. WebP: bit-identical to libwebp"
    )

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
    parity: Annotated[
        Library,
        Arg("library to match: torchvision, opencv and pillow always interpolate chroma, DALI does not on a GPU"),
    ] = "dali"
    jpeg_decoder: Annotated[
        Literal["auto", "nvjpeg"],
        Arg("on a GPU: auto: the built-in CUDA decoder; nvjpeg: whole baseline JPEGs, may differ by a few levels"),
    ] = "auto"
    hw_decoder_load: Annotated[
        float, Arg("share of images", ge=-1, le=1, ignored="the decoder of an image follows from its header")
    ] = -1.0
    max_pixels: Annotated[int, Arg("reject images of more pixels (decompression bombs)", ge=1)] = MAX_PIXELS
    bomb_ratio: Annotated[
        float,
        Arg(
            "reject images of over 89 Mpixel with more pixels per byte; 0, or a raised max_pixels: no limit",
            ge=0,
        ),
    ] = BOMB_RATIO
    on_damage: Annotated[
        OnDamage,
        Arg(
            "images whose decoder reports damage but continues (damaged JPEGs, fax data, checksums of PNG): `reject` "
            "them, `keep` the pixels that the decoder guesses, or keep them and `flag` them in rejects.jsonl; "
            "`keep` and `flag` decode on the CPU"
        ),
    ] = "reject"
    hybrid_huffman_threshold: Annotated[int, Arg("pixels", ignored="the decoder is chosen by the header")] = 1000000
    affine: Annotated[bool, Arg("pin threads to cores", ignored="threads are shared by all operators")] = True
    device_memory_padding: Annotated[int, Arg("bytes", ignored=_PADDING)] = 16777216
    host_memory_padding: Annotated[int, Arg("bytes", ignored=_PADDING)] = 8388608
    device_memory_padding_jpeg2k: Annotated[int, Arg("bytes", ignored=_PADDING)] = 0
    host_memory_padding_jpeg2k: Annotated[int, Arg("bytes", ignored=_PADDING)] = 0
    preallocate_width_hint: Annotated[int, Arg("pixels", ignored=_PADDING)] = 0
    preallocate_height_hint: Annotated[int, Arg("pixels", ignored=_PADDING)] = 0
    memory_stats: Annotated[bool, Arg("print memory use", ignored="the report has it", obsolete=True)] = False
    split_stages: Annotated[bool, Arg("deprecated in DALI", ignored="DALI ignores it too", obsolete=True)] = False
    use_chunk_allocator: Annotated[bool, Arg("deprecated in DALI", ignored="DALI ignores it too", obsolete=True)] = (
        False
    )

    def check(self) -> None:
        if self.dtype not in _ALLOWED:
            names = ", ".join(t.name for t in _ALLOWED)
            raise SpecError(f"dtype {self.dtype.name} is not one that images decode to; allowed: {names}")
        foreign = {"pillow": (DALIImageType.GRAY, DALIImageType.YCbCr)}.get(self.parity, (DALIImageType.YCbCr,))
        if self.parity != "dali" and self.output_type in foreign:
            raise SpecError(
                f"parity: {self.parity} has {self.output_type.name} from RGB: decode as RGB, then use "
                "color_space_conversion with the same parity"
            )

    def same_on_gpu(self) -> ImageDecoder | None:
        if not self.for_cuda or self.use_fast_idct:
            return None
        return replace(self, jpeg_fancy_upsampling=True)  # the CPU always interpolates chroma

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        channels = None if self.output_type is DALIImageType.ANY_DATA else channels_of(self.output_type, 3)
        return Spec((None, None, channels), self.dtype, "HWC")

    @cached_property
    def rules(self) -> Rules:
        """This operator's arguments, in the form that decoders take."""
        return Rules(
            self.output_type,
            to_numpy(self.dtype),
            self.adjust_orientation,
            self.use_fast_idct,
            self.jpeg_fancy_upsampling or self.parity != "dali",
            self.max_pixels,
            # a user who raises the other limit wants large images
            0.0 if self.max_pixels > MAX_PIXELS and self.bomb_ratio == BOMB_RATIO else self.bomb_ratio,
            self.on_damage,
            self.jpeg_decoder,
        )

    @property
    def for_cuda(self) -> bool:
        """Return whether a GPU decodes baseline and progressive JPEGs with the built-in CUDA decoder, as these
        arguments allow."""
        made = self.output_type in (DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY)
        return made and self.dtype is DALIDataType.UINT8 and self.jpeg_decoder == "auto"

    @property
    def who_decodes(self) -> str:
        """Return a text for `dali-run plan`: which images a GPU decodes, and which the CPU."""
        if self.dtype is not DALIDataType.UINT8:
            return "all by CPU threads"
        jpegs = "baseline and progressive JPEGs by the CUDA decoder" if self.for_cuda else "JPEGs by CPU threads"
        if self.jpeg_decoder == "nvjpeg":
            jpegs = "whole baseline JPEGs by nvJPEG"
        return f"{jpegs}, others by other kernels and CPU threads; {RULE}"

    @property
    def needs_header_only(self) -> bool:
        return self.on_damage == "reject" and self.for_cuda

    def cuts(self, ctx: Context, *inputs: Batch) -> Windows | None:
        """Return a function that chooses the window of each image to decode; None if whole images are decoded."""
        return None

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64]:
        return estimate_memory(inputs[0], self.rules, stage, whole=isinstance(self, Image))

    def cpu(self, ctx: Context, encoded: Batch, *inputs: Batch) -> Batch:
        return decode(ctx, encoded, self.rules, self.cuts(ctx, *inputs))

    def start_early(self, ctx: Context, *inputs: Batch) -> StartedWork | None:
        from .gpu_decode import start_early

        if self.on_damage != "reject":
            return None
        return start_early(ctx, inputs[0], self.rules, self.cuts(ctx, *inputs[1:]))

    def mixed(self, ctx: Context, encoded: Batch, *inputs: Batch) -> Batch:
        from .gpu_decode import decode as decode_on_gpu

        if self.on_damage != "reject":  # a GPU's decoders reject damaged images and cannot guess them
            nowhere: Any = None
            host = self.cpu(replace(ctx, device=nowhere, stage="cpu", allocate=None), encoded, *inputs)
            moved: Batch = ctx.device.to_device(host)
            return moved
        return decode_on_gpu(ctx, encoded, self.rules, self.cuts(ctx, *inputs))


def check_encoded(spec: Spec) -> None:
    """Raise SpecError if data of this ``spec`` cannot be encoded files, which are 1-D uint8."""
    if (spec.dtype is not None and spec.dtype is not DALIDataType.UINT8) or (spec.ndim is not None and spec.ndim != 1):
        raise SpecError(f"needs encoded files, uint8[?], as readers give them; got {spec}")


class Image(ImageDecoder, name="decoders.image"):
    """Decode images: JPEG, PNG, BMP, TIFF, PNM, WebP, JPEG 2000, AVIF and the first frame of GIF, to HWC; with ``pip
    install 'dali-run[formats]'`` also HEIC and JPEG XL.

    Colour images of 16 bits per channel keep all bits for PNG and PNM, and with ``dali-run[formats]`` for all formats.
    Without it, others are rejected if ``dtype`` is not UINT8.
    """

    aliases = ("image_decoder", "experimental.decoders.image")
    example = "{op: decoders.image, in: jpegs, device: mixed, output_type: RGB, out: images}"

    cache_size: Annotated[int, Arg("megabytes", ignored="there is no decoder cache")] = 0
    cache_threshold: Annotated[int, Arg("bytes", ignored="there is no decoder cache")] = 0
    cache_type: Annotated[str, Arg("kind", ignored="there is no decoder cache")] = ""
    cache_debug: Annotated[bool, Arg("print", ignored="there is no decoder cache")] = False
    cache_batch_copy: Annotated[bool, Arg("copy", ignored="there is no decoder cache")] = True


class ImageRandomCrop(ImageDecoder, name="decoders.image_random_crop"):
    """Decode a random window of each image, of random area and aspect ratio, as random_resized_crop chooses it."""

    aliases = ("image_decoder_random_crop", "experimental.decoders.image_random_crop")
    random = True
    example = "{op: decoders.image_random_crop, in: jpegs, random_area: [0.08, 1.0], out: images}"

    random_aspect_ratio: Annotated[tuple[float, float], Arg("range of width / height")] = (3 / 4, 4 / 3)
    random_area: Annotated[tuple[float, float], Arg("range of the window's share of the image's area")] = (0.08, 1.0)
    num_attempts: Annotated[int, Arg("draws before the largest central window is taken", ge=1, le=100_000)] = 10

    def check(self) -> None:
        super().check()
        check_window_ranges(self.random_aspect_ratio, self.random_area)

    def cuts(self, ctx: Context, *inputs: Batch) -> Windows:
        streams = ctx.streams(WINDOW_SALT)

        def draw(heights: I64, widths: I64) -> tuple[I64, I64]:
            return random_windows(
                streams, heights, widths, self.random_aspect_ratio, self.random_area, self.num_attempts
            )

        return draw


class ImageCrop(ImageDecoder, CropWindow, name="decoders.image_crop"):
    """Decode a window of each image: the one that the operator crop would cut out with these arguments."""

    aliases = ("image_decoder_crop", "experimental.decoders.image_crop")
    layouts = ()
    example = "{op: decoders.image_crop, in: jpegs, crop: [224, 224], out: images}"

    def check(self) -> None:
        ImageDecoder.check(self)
        CropWindow.check(self)

    def infer(self, *specs: Spec) -> Spec:
        return self.cropped(ImageDecoder.infer(self, *specs))

    def cuts(self, ctx: Context, *inputs: Batch) -> Windows:
        def place(heights: I64, widths: I64) -> tuple[I64, I64]:
            anchors, shapes = self.windows(ctx, _images(ctx, heights, widths), "HWC", "error")
            return anchors[:, :2], shapes[:, :2]

        return place


class ImageSlice(ImageDecoder, name="decoders.image_slice"):
    """Decode a window of each image: the one that the operator slice would cut out with these arguments."""

    aliases = ("image_decoder_slice", "experimental.decoders.image_slice")
    inputs = (1, 3)
    example = "{op: decoders.image_slice, in: jpegs, rel_start: [0.1, 0.1], rel_shape: [0.8, 0.8], out: images}"

    axes: Annotated[tuple[int, ...], Arg("axes to which the arguments refer, in this order", per_sample=True)] = (1, 0)
    axis_names: Annotated[str, Arg("axes by their letters in the layout (HWC); overrides axes")] = "WH"
    start: Annotated[tuple[int, ...] | None, Arg("first element", per_sample=True)] = None
    end: Annotated[tuple[int, ...] | None, Arg("element after the last", per_sample=True)] = None
    shape: Annotated[tuple[int, ...] | None, Arg("elements", per_sample=True)] = None
    rel_start: Annotated[
        tuple[float, ...] | None, Arg("start, as a fraction of the axis's length", per_sample=True)
    ] = None
    rel_end: Annotated[tuple[float, ...] | None, Arg("end, as a fraction of the axis's length", per_sample=True)] = None
    rel_shape: Annotated[
        tuple[float, ...] | None, Arg("shape, as a fraction of the axis's length", per_sample=True)
    ] = None
    normalized_anchor: Annotated[bool, Arg("a floating-point second input is relative")] = True
    normalized_shape: Annotated[bool, Arg("a floating-point third input is relative")] = True

    @property
    def slice(self) -> Slice:
        """The slice operator with the same arguments, which computes the windows."""
        return Slice(
            axes=self.axes, axis_names=self.axis_names, start=self.start, end=self.end, shape=self.shape,
            rel_start=self.rel_start, rel_end=self.rel_end, rel_shape=self.rel_shape,
            normalized_anchor=self.normalized_anchor, normalized_shape=self.normalized_shape,
            per_sample=self.per_sample,
        )  # fmt: skip

    def check(self) -> None:
        super().check()
        self.slice.check()

    def infer(self, *specs: Spec) -> Spec:
        image = super().infer(specs[0])
        if set(self.axis_names) - set("HW") or (self.is_set("axes") and set(self.axes) - {0, 1}):
            raise SpecError("slices images along H and W (axes 0 and 1) only; slice channels with slice afterwards")
        return self.slice.infer(image, *specs[1:])

    def cuts(self, ctx: Context, *inputs: Batch) -> Windows:
        def place(heights: I64, widths: I64) -> tuple[I64, I64]:
            anchors, shapes = self.slice.windows(ctx, _images(ctx, heights, widths), inputs)
            for i in np.flatnonzero((shapes[:, 2] != 3) & shapes.any(axis=1)).tolist():
                ctx.reject(i, "bad_argument", "axes must be 0 and 1 (H and W); slice channels with slice afterwards")
            return anchors[:, :2], shapes[:, :2]

        return place


def _images(ctx: Context, heights: I64, widths: I64) -> Batch:
    """Return a batch that has the shapes of decoded images but no pixels, for operators that only compute windows."""
    shapes = np.stack([heights, widths, np.full_like(heights, 3)], axis=1).astype(np.int32)
    return Batch(np.empty(0, np.uint8), np.zeros(len(heights), np.int64), shapes, "HWC", ctx.samples)


class PeekImageShape(Operator, name="peek_image_shape"):
    """Read the shape (H, W, C) that an encoded image decodes to, from its header alone."""

    aliases = ("experimental.peek_image_shape",)
    example = "{op: peek_image_shape, in: jpegs, out: shapes}"

    dtype: Annotated[DALIDataType, Arg("element type of the shape")] = DALIDataType.INT64
    adjust_orientation: Annotated[bool, Arg("give the shape of the image turned by its Exif orientation")] = True
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


class Numpy(Operator, name="decoders.numpy"):
    """Decode .npy files: arrays of any shape, but of one type and number of dimensions. Files with pickled objects are
    rejected."""

    example = "{op: decoders.numpy, in: files, dtype: FLOAT, out: arrays}"

    dtype: Annotated[DALIDataType | None, Arg("element type; required if the files have different types")] = None

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        return Spec(None, self.dtype, "")

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64]:
        from ..storage.npy import read_header

        counts = np.zeros(len(inputs[0]), np.int64)
        for i in range(len(counts)):
            with contextlib.suppress(SampleError):  # the file will be rejected
                counts[i] = math.prod(read_header(encoded_bytes(inputs[0], i)).shape)
        return counts, np.zeros(len(counts), np.int64)

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        from ..storage.npy import read_header, view

        alike = self._alike(ctx, encoded)
        if alike is not None:
            return alike
        arrays: dict[int, npt.NDArray[Any]] = {}
        for i in range(len(encoded)):
            try:
                data = encoded_bytes(encoded, i)
                header = read_header(data)
                arrays[i] = view(data, header)
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
                continue
            if behind := len(data) - header.offset - arrays[i].nbytes:
                ctx.reject(i, "corrupt_data", f"has {behind} bytes after its data")
        dtype, ndim = self._kind(ctx, arrays.values())
        for i, array in list(arrays.items()):
            same_type = self.dtype is not None or array.dtype.newbyteorder("=") == dtype
            if array.ndim != ndim or not same_type:
                ctx.reject(
                    i, "bad_shape",
                    f"is {array.dtype.name}, {array.ndim}-D; the data set's first sample decides: {dtype.name}, "
                    f"{ndim}-D" + ("" if same_type else "; set dtype to convert"),
                )  # fmt: skip
                del arrays[i]
        shapes = np.zeros((len(encoded), ndim), np.int32)
        for i, array in arrays.items():
            shapes[i] = array.shape
        out = Batch.allocate(ctx.empty, shapes, dtype, "", encoded.samples)
        for i, array in arrays.items():
            out.sample(i)[...] = saturate(array.astype(array.dtype.newbyteorder("="), copy=False), dtype)
        return out

    def _kind(self, ctx: Context, arrays: Collection[npt.NDArray[Any]]) -> tuple[np.dtype[Any], int]:
        """Return dtype and number of dimensions of the output: as the data set declares them, or as in ``arrays``.
        Raises MixedTypesError if ``arrays`` differ and no data set declares them; the engine then decodes the samples
        one by one."""
        given = None if ctx.kind is None else ctx.kind.dtype
        if ctx.kind is not None and ctx.kind.shape is not None and given is not None:
            return to_numpy(given), len(ctx.kind.shape)
        kinds = {(a.dtype.newbyteorder("=") if self.dtype is None else to_numpy(self.dtype), a.ndim) for a in arrays}
        if len(kinds) > 1:
            raise MixedTypesError(" and ".join(sorted(f"{dtype.name}, {ndim}-D" for dtype, ndim in kinds)))
        return next(iter(kinds), (np.dtype(np.float32) if self.dtype is None else to_numpy(self.dtype), 1))

    def _alike(self, ctx: Context, encoded: Batch) -> Batch | None:
        """Decode .npy files by one copy of all arrays, if all files have the same header; otherwise return None."""
        from ..storage.npy import read_header

        if encoded.ndim != 1 or encoded.dtype != np.uint8 or not encoded.is_uniform or not encoded.is_packed:
            return None
        files = encoded.dense()
        try:
            header = read_header(encoded_bytes(encoded, 0))
        except SampleError:
            return None
        dtype, ndim = header.dtype, len(header.shape)
        wanted = dtype if self.dtype is None else to_numpy(self.dtype)
        size = math.prod(header.shape) * dtype.itemsize
        if (
            ctx.kind is not None
            and ctx.kind.dtype is not None
            and (to_numpy(ctx.kind.dtype), ctx.kind.ndim) != (wanted, ndim)
        ):
            return None
        exact = dtype == wanted and dtype.isnative and not (header.fortran_order and ndim > 1)
        if not exact or not size or files.shape[1] != header.offset + size:
            return None
        if (files[:, : header.offset] != files[0, : header.offset]).any():
            return None
        shapes = np.empty((len(files), ndim), np.int32)
        shapes[:] = header.shape
        out = Batch.allocate(ctx.empty, shapes, dtype, "", encoded.samples)
        out.data.view(np.uint8).reshape(len(files), size)[:] = files[:, header.offset :]
        return out


class ReadFile(Operator, name="io.file.read"):
    """Read whole files. Each sample of the input is the path of a file, as bytes."""

    makes_files = True
    example = "{op: io.file.read, in: paths, out: files}"

    dont_use_mmap: Annotated[bool, Arg("read instead of mapping", ignored="files are always read")] = False
    use_o_direct: Annotated[bool, Arg("bypass the page cache", ignored="the page cache is used")] = False

    def infer(self, *specs: Spec) -> Spec:
        path = specs[0]
        if path.dtype is DALIDataType.INT8:  # characters, as in C
            path = Spec(path.shape, DALIDataType.UINT8, path.layout)
        check_encoded(path)
        return Spec((None,), DALIDataType.UINT8, "")

    def cpu(self, ctx: Context, filepaths: Batch) -> Batch:
        contents = []
        for i in range(len(filepaths)):
            path = bytes(encoded_bytes(filepaths, i)).rstrip(b"\0")
            try:
                contents.append(np.fromfile(path, np.uint8))
            except (OSError, ValueError) as e:
                reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
                ctx.reject(i, "read_failed", f"{path.decode(errors='replace')} cannot be read: {reason}")
                contents.append(np.empty(0, np.uint8))
        return Batch.from_list(contents, "", filepaths.samples)
