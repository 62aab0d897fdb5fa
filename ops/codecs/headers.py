"""Headers of a batch of encoded images: read once, cached with the batch, and checked against the rules of a decoder.

The decoders of files and the memory estimate call this module; nothing is decoded here. `jpeg.header` reads the headers
of JPEGs, `probe_cpu` those of PNG, TIFF, BMP and PNM, each for a whole batch and without the GIL; the other formats are
read by their ``probe``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from ..base import Stage
from ..batch import I32, I64, Batch
from ..context import Context
from ..errors import SampleError
from ..kernels import Kernels
from ..types import DALIImageType
from .deep_colour import available, is_deep
from .format import BITS, CHANNELS, COLUMNS, FORMAT, HEIGHT, JPEG, ORIENTATION, WIDTH, Header
from .formats import BOMB_PIXELS, BY_CODE, BY_NAME, FORMATS, check_pixels, probe, recognise
from .pixels import channels_of

MAX_PIXELS = 178_956_970
"""Default limit on the pixels of an image (2^29 bytes of RGB), against decompression bombs; Pillow has the same
limit."""

OnDamage = Literal["reject", "keep", "flag"]
"""Treatment of a damaged image of which a part can be decoded: "reject" it, "keep" the pixels that the decoder guesses,
or "flag" it: keep the pixels and note the image in the reject log."""
Mask = npt.NDArray[np.bool_]
Windows = Callable[[I64, I64], tuple[I64, I64]]
"""Function that chooses the window of each image to decode, from heights and widths, int64[N]. It returns upper left
corners (y, x) and shapes (h, w), int64[N, 2], and rejects images without a possible window."""
_jpegs: Any = Kernels(".jpeg.header", __package__)
_turbo: Any = Kernels(".jpeg.turbo", __package__)
_loops: Any = Kernels(".probe_cpu", __package__)


@dataclass(frozen=True, slots=True)
class Rules:
    """Arguments of a decoding operator that all decoders take: the form of decoded images, and limits on images."""

    output_type: DALIImageType = DALIImageType.RGB
    dtype: np.dtype[Any] = np.dtype(np.uint8)  # noqa: RUF009 (immutable)
    adjust_orientation: bool = True
    fast_idct: bool = False
    fancy_upsampling: bool = False
    max_pixels: int = MAX_PIXELS
    bomb_ratio: float = 0.0
    """Maximum number of pixels per byte of an encoded file; 0 for no limit."""
    on_damage: OnDamage = "reject"
    jpeg_decoder: Literal["auto", "nvjpeg"] = "auto"

    @property
    def fixed_channels(self) -> int:
        """Number of channels of every decoded image; 0 if images keep their stored channels."""
        return 0 if self.output_type is DALIImageType.ANY_DATA else channels_of(self.output_type, 3)


# -- headers as they are in the files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NonJpegs:
    """Headers of those images of a batch that are not JPEGs, or errors if a header cannot be read. `non_jpegs_of`
    caches them per batch."""

    indices: I64
    """Indices in the batch of non-JPEG images with a readable header, [M]."""
    rows: I64
    """Header of each of the images ``indices``, [M, 6], with the columns that `format` defines."""
    errors: dict[int, SampleError]
    """Errors of non-JPEG images without a readable header, by index in the batch."""

    def take(self, indices: I64, n: int) -> NonJpegs:
        """Return the headers for a smaller batch that consists of the images ``indices`` of this batch, which has
        ``n``."""
        rows_of = np.full(n, -1)
        rows_of[self.indices] = np.arange(len(self.indices))
        found = rows_of[indices]
        errors = {k: self.errors[i] for k, i in enumerate(indices.tolist()) if i in self.errors} if self.errors else {}
        return NonJpegs(np.flatnonzero(found >= 0), self.rows[found[found >= 0]], errors)


@dataclass(slots=True)
class ParsedHeaders:
    """Headers of a batch of encoded images, which are read once and cached by `Batch.parsed`. Read-only."""

    jpeg: npt.NDArray[Any]
    """One `jpeg.header.HEADER` row per image, [N]; status NOT_JPEG for images of other formats."""
    scans: npt.NDArray[Any]
    """Table of the scans of all progressive JPEGs. Rows of ``jpeg`` with status MANY_SCANS refer to it by index."""
    non_jpegs: NonJpegs | None = None
    """Headers of the images that are not JPEGs; None until `non_jpegs_of` has read them."""

    def take(self, where: npt.NDArray[Any] | slice) -> ParsedHeaders:
        others = self.non_jpegs
        if others is not None:
            others = others.take(np.arange(len(self.jpeg))[where], len(self.jpeg))
        return ParsedHeaders(self.jpeg[where], self.scans, others)


def parsed_headers(batch: Batch) -> ParsedHeaders:
    """Return the headers of the images of ``batch``. The first call reads them; later calls return the cached ones."""
    if batch.parsed is None:
        batch.keep_parsed(ParsedHeaders(*_jpegs.read_scans(batch.data, batch.offsets, batch.shapes[:, 0])))
    return cast("ParsedHeaders", batch.parsed)


def non_jpegs_of(batch: Batch) -> NonJpegs:
    """Return the headers of the non-JPEG images of ``batch``. The first call reads them; later calls return the cached
    ones."""
    parsed = parsed_headers(batch)
    if parsed.non_jpegs is None:
        parsed.non_jpegs = _probed(batch, np.flatnonzero(parsed.jpeg["status"] == _jpegs.NOT_JPEG))
    return parsed.non_jpegs


def _probed(batch: Batch, which: I64) -> NonJpegs:
    rows, wrong = np.zeros((len(which), COLUMNS), np.int64), dict[int, SampleError]()
    if len(which):
        sizes = batch.shapes[which, 0].astype(np.int64)
        _loops.headers(readonly(batch.data), batch.offsets[which], sizes, rows)
    for k in np.flatnonzero(rows[:, FORMAT] == JPEG).tolist():
        i = int(which[k])
        data = encoded_bytes(batch, i)
        try:
            name = recognise(data)
            if BY_NAME[name].code != JPEG:
                rows[k] = row_of(probe(data, name))
        except SampleError as e:
            wrong[i] = e.bare()
    found = rows[:, FORMAT] != JPEG
    return NonJpegs(which[found], rows[found], wrong)


def readonly(encoded: Any) -> Any:
    """Return a read-only view of the encoded files. For compiled loops, which are then compiled once and not also for
    writable memory."""
    encoded = encoded.view()
    encoded.flags.writeable = False
    return encoded


def encoded_bytes(batch: Batch, i: int) -> memoryview:
    """Return the encoded bytes of image ``i``, without a copy."""
    start = int(batch.offsets[i])
    return memoryview(batch.data[start : start + int(batch.shapes[i, 0])])


def row_of(header: Header) -> tuple[int, ...]:
    """Return a header as a row of numbers, with the columns that `format` defines."""
    code = BY_NAME[header.format].code
    return code, header.width, header.height, header.channels, header.bits, header.orientation


def header_of(row: I64) -> Header:
    """Return the header that `row_of` converted to the numbers ``row``."""
    code, *rest = row.tolist()
    return Header(BY_CODE[code].name, *rest)


# -- headers checked by an operator's arguments -----------------------------------------------------------------------


@dataclass(slots=True)
class Headers:
    """Headers of N encoded images, as one call of a decoding operator uses them. Threads may read them. For images that
    were already rejected, ``good`` is false, and height and width are 0."""

    jpeg: npt.NDArray[Any]
    """One `jpeg.header.HEADER` row per image, [N]; status NOT_JPEG for images of other formats."""
    scans: npt.NDArray[Any]
    """Table of the scans of all progressive JPEGs. Rows of ``jpeg`` with status MANY_SCANS refer to it by index."""
    rows: I64
    """Headers of the images that are not JPEGs, [N, 6], with the columns that `format` defines; zeros for JPEGs."""
    good: Mask
    """Whether each image seems decodable so far, [N]."""
    orientation: I32
    """Exif orientation of each image, [N]; 1 (upright) if the operator ignores it."""
    extents: I64
    """Height and width of each image after its orientation was applied, [N, 2]."""
    channels: I64
    """Number of channels of each image if the output type is ANY_DATA, [N]."""
    unusual: int
    """Number of images to check one by one: too large, or neither JPEGs nor of another common kind."""
    damaged: dict[int, SampleError] = field(default_factory=dict)
    """Errors of damaged images that are decoded anyway, by index in the batch."""
    bad: int = 0
    """Number of images for which ``good`` is false. Only `drop` may change ``good`` or this number."""

    @property
    def height(self) -> I64:
        """Height of each image after its orientation was applied, [N]."""
        return self.extents[:, 0]

    @property
    def width(self) -> I64:
        """Width of each image after its orientation was applied, [N]."""
        return self.extents[:, 1]

    @property
    def other(self) -> Mask:
        """Whether each image is not a JPEG, [N]."""
        found: Mask = self.rows[:, FORMAT] != JPEG
        return found

    def header(self, i: int) -> Header:
        """Return the header of image ``i``, which is not a JPEG."""
        return header_of(self.rows[i])

    def drop(self, i: int) -> None:
        """Set ``good`` of image ``i`` to false, and its height and width to 0."""
        self.bad += bool(self.good[i])
        self.good[i] = False
        self.extents[i] = 0

    def undecoded(self, status: I32) -> I64:
        """Return the indices of good images that a decoder did not decode. ``status`` [N]: the decoder's result for
        each image, 0 if decoded."""
        if not _jpegs.refused(self.good, status):
            return _NO_IMAGES
        return np.flatnonzero(self.good & (status != 0))


_NO_IMAGES = np.empty(0, np.int64)
_NO_HEADER = np.zeros(COLUMNS, np.int64)


def read_headers(ctx: Context, batch: Batch, rules: Rules) -> Headers:
    """Return the headers of all images of the batch. Reject samples that are not images, or that are too large."""
    parsed, n = parsed_headers(batch), len(batch)
    turned, odd, good = np.empty(n, np.int32), np.empty(n, np.bool_), np.empty(n, np.bool_)
    extents, channels = np.empty((n, 2), np.int64), np.empty(n, np.int64)
    jpeg, limits = parsed.jpeg, (rules.adjust_orientation, rules.max_pixels)
    few = _jpegs.summarise(jpeg, *limits, turned, extents, channels, good, odd)
    rows = np.broadcast_to(_NO_HEADER, (n, COLUMNS))
    headers = Headers(jpeg, parsed.scans, rows, good, turned, extents, channels, few)
    if not few:
        return headers
    known, headers.rows = non_jpegs_of(batch), np.zeros((n, COLUMNS), np.int64)
    odd[_take_supported(headers, known, batch, rules)] = False
    left = np.flatnonzero(odd).tolist()
    kept = dict(zip(known.indices.tolist(), known.rows, strict=True)) if left else {}
    for i in left:
        try:
            _examine(headers, i, kept.get(i), known.errors.get(i), int(batch.shapes[i, 0]), rules)
        except SampleError as e:
            headers.drop(i)
            ctx.reject(i, e.code, str(e))
    return headers


def _fit(known: NonJpegs, batch: Batch, rules: Rules) -> Mask:
    """Return which of the non-JPEG images ``known`` are within the limits on pixels of `check_pixels`."""
    limit = np.full(len(known.indices), rules.max_pixels, np.float64)
    if rules.bomb_ratio:
        limit = np.minimum(limit, np.maximum(BOMB_PIXELS, rules.bomb_ratio * batch.shapes[known.indices, 0]))
    fits: Mask = known.rows[:, WIDTH] * known.rows[:, HEIGHT] <= limit
    return fits


def _take_supported(headers: Headers, known: NonJpegs, batch: Batch, rules: Rules) -> I64:
    """Fill in the headers of the non-JPEG images that are of a common kind and within the limits on pixels, and return
    their indices. The other images need `_examine`."""
    format, taken = known.rows[:, FORMAT], _fit(known, batch, rules)
    deep = (known.rows[:, BITS] > 8) & (known.rows[:, CHANNELS] > 1)  # as `is_deep`
    for code in np.unique(format).tolist():  # libraries may be missing
        if BY_CODE[code].missing():
            taken &= format != code
        elif rules.dtype != np.uint8 and not BY_CODE[code].keeps_16_bits() and not available():
            taken &= (format != code) | ~deep
    place, rows = known.indices[taken], known.rows[taken]
    headers.rows[place] = rows
    turned = rows[:, ORIENTATION] if rules.adjust_orientation else np.ones(len(place), np.int64)
    swap = turned >= 5
    headers.orientation[place] = turned
    headers.extents[place, 0] = np.where(swap, rows[:, WIDTH], rows[:, HEIGHT])
    headers.extents[place, 1] = np.where(swap, rows[:, HEIGHT], rows[:, WIDTH])
    headers.channels[place] = rows[:, CHANNELS]
    return place


def _examine(
    headers: Headers, i: int, row: I64 | None, wrong: SampleError | None, size: int, rules: Rules
) -> None:  # fmt: skip
    """Check image ``i`` on its own, and fill in its header. For images that are not of a common kind. Raises
    SampleError if the image cannot be decoded."""
    if wrong is not None:
        raise wrong.bare()
    if row is None:
        _turbo.check_header(headers.jpeg[i])
    else:
        header = header_of(row)
        format = BY_NAME[header.format]
        if problem := format.missing():
            raise SampleError("unsupported", problem)
        if is_deep(header) and rules.dtype != np.uint8 and not format.keeps_16_bits() and not available():
            remedy = "pip install 'dali-run[formats]', or take dtype UINT8"
            raise SampleError("unsupported", f"a {header.format} of 16 bits a channel needs imagecodecs: {remedy}")
        headers.rows[i] = row
        headers.orientation[i] = header.orientation if rules.adjust_orientation else 1
        swap = headers.orientation[i] >= 5
        headers.height[i] = header.width if swap else header.height
        headers.width[i] = header.height if swap else header.width
        headers.channels[i] = header.channels
    check_pixels(int(headers.width[i]), int(headers.height[i]), rules.max_pixels, size, rules.bomb_ratio)


def cut(ctx: Context, headers: Headers, windows: Windows) -> tuple[I64, I64]:
    """Choose the window of each image to decode, by the function ``windows``. Return upper left corners and shapes.
    Images whose window is rejected are no longer ``good``."""
    before = len(ctx.rejects)
    anchors, sizes = windows(headers.height, headers.width)
    if len(ctx.rejects) > before:
        bad = set(ctx.samples.slot[~headers.good].tolist())
        # Each image is reported once, for the first thing that is wrong with it.
        fresh = {r.slot: r for r in reversed(ctx.rejects[before:]) if r.slot not in bad}
        ctx.rejects[before:] = fresh.values()
        for i in np.flatnonzero(np.isin(ctx.samples.slot, list(fresh))).tolist():
            headers.drop(i)
    return anchors, np.where(headers.good[:, None], sizes, 0) if headers.bad else sizes


def output_shapes(headers: Headers, rules: Rules, heights: I64, widths: I64) -> I32:
    """Return the shapes [N, 3] of decoded images or windows that have these heights and widths; both are 0 for rejected
    images."""
    shapes = np.empty((len(heights), 3), np.int32)
    _jpegs.decoded_shapes(heights, widths, headers.channels, rules.fixed_channels, headers.good, shapes)
    return shapes


# -- memory -----------------------------------------------------------------------------------------------------------


def estimate_memory(batch: Batch, rules: Rules, stage: Stage, *, whole: bool) -> tuple[I64, I64]:
    """Estimate the memory for decoding each image, as two int64[N]: elements of the decoded image, and additional
    bytes. Both are 0 for images that will be rejected. ``whole``: JPEGs that need no conversion are decoded directly
    into the output."""
    jpeg, n = parsed_headers(batch).jpeg, len(batch)
    elements, extra = np.empty(n, np.int64), np.empty(n, np.int64)
    aside = not whole or rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr
    fixed = rules.fixed_channels
    others = _jpegs.foreseen(jpeg, batch.shapes, stage != "cpu", aside, rules.adjust_orientation, rules.max_pixels,
                             fixed, elements, extra)  # fmt: skip
    if others:
        known = non_jpegs_of(batch)
        fits = _fit(known, batch, rules)
        place, rows = known.indices[fits], known.rows[fits]
        # Pillow's image takes four bytes per pixel, and NumPy's copy of it as many as there are channels.
        pixels, channels = (rows[:, WIDTH] * rows[:, HEIGHT]).astype(np.float64), rows[:, CHANNELS]
        taken = 4 + channels * (1 + _EXTRA_BYTES[int(stage != "cpu"), rows[:, FORMAT]])
        elements[place] = np.minimum(pixels * (fixed or channels), _MAX_BYTES)
        extra[place] = np.minimum(pixels * taken * np.where(rows[:, BITS] <= 8, 1, 2), _MAX_BYTES)
    return elements, extra


_MAX_BYTES = 1 << 56
"""Limit on the estimated memory per image, in bytes or elements, which keeps sums below 2^63."""
_EXTRA_BYTES = np.zeros((2, 1 + max(BY_CODE)), np.int64)
"""Bytes of memory that decoding needs per sample in addition to the pixels (`Format.extra_bytes`), by format code. Row
0 is for the host, row 1 for a GPU."""
for _format in FORMATS:
    _EXTRA_BYTES[:, _format.code] = _format.extra_bytes
