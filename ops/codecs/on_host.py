"""Decoding on the host: the headers of all images first, then every image straight into its place in the output."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..base import Stage
from ..batch import I32, I64, Batch
from ..context import Context
from ..errors import SampleError
from ..gpu.readable_by_gpu import show
from ..interfaces import Isolation
from ..kernels import Kernels
from ..types import DALIImageType
from .deep_colour import available, is_deep
from .format import BITS, CHANNELS, COLUMNS, FORMAT, HEIGHT, ORIENTATION, WIDTH, Header
from .formats import BOMB_PIXELS, BY_CODE, BY_NAME, FORMATS, check_pixels
from .jpeg.anchors import MODE, NO_STATES, Anchors
from .jpeg.format import CODE as JPEG
from .native_loops import readonly
from .others import Others, are_deep, encoded_bytes, header_of, others_of
from .pixels import Pixels, channels_of, orient, recolour
from .png import decoder as png
from .tiff import decoder as tiff
from .uncompressed import decoder as plain

MAX_PIXELS = 178_956_970
"""The default limit on an image (2^29 bytes of RGB), by which Pillow refuses decompression bombs too."""


OnDamage = Literal["reject", "keep", "flag"]
"""The fate of an image whose decoder reports damage but goes on: it is refused, goes on as the decoder guesses it,
or goes on and is noted in the reject log."""

OURS, TURBO, PNG, TIFF, OTHERS = "cpu", "libjpeg-turbo", "png", "tiff", "other formats"
"""The names of the host's decoders in reports."""
PLAIN = "plain"
"""The same, of pictures that are copied."""
CUDA_PNG, CUDA_TIFF, CUDA_JPEG_2000 = "cuda png", "cuda tiff", "cuda jpeg2000"
"""The same, of those whose streams or code blocks a GPU decodes."""
CUDA = "cuda"
"""The name of the decoder that takes a batch's JPEGs at once."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The required form of decoded images."""

    output_type: DALIImageType = DALIImageType.RGB
    dtype: np.dtype[Any] = np.dtype(np.uint8)  # noqa: RUF009 (immutable)
    adjust_orientation: bool = True
    fast_idct: bool = False
    fancy_upsampling: bool = False
    max_pixels: int = MAX_PIXELS
    bomb_ratio: float = 0.0
    """Pixels for each byte of the file; 0 for any number."""
    on_damage: OnDamage = "reject"


T = TypeVar("T")
_headers: Any = Kernels(".jpeg.header", __package__)
_decoder: Any = Kernels(".jpeg.baseline_cpu", __package__)
_progressive: Any = Kernels(".jpeg.progressive_cpu", __package__)

Windows = Callable[[I64, I64], tuple[I64, I64]]
"""Heights and widths, int64[N], to anchors (y, x) and shapes (h, w), int64[N, 2]; rejects what it cannot cut."""

Needed = Callable[[I32], I64]
"""Shapes of the decoded images [N, 3] to the pixels of them that are looked at, [N, 4]: y0, x0, y1, x1."""


@dataclass(slots=True)
class Headers:
    """Facts from the headers of N encoded images. Bad images are rejected already and have no pixels."""

    jpeg: npt.NDArray[Any]
    """[N] rows of `jpeg.header.HEADER`; status NOT_JPEG where the image is something else."""
    scans: npt.NDArray[Any]
    """The table of scans that those with status MANY_SCANS point to."""
    rows: I64
    """[N, 6] headers of the images that are no JPEGs, with the columns of `formats`; zeros for all others."""
    good: npt.NDArray[np.bool_]
    orientation: I32
    """[N], 1 where it is to be ignored."""
    extents: I64
    """[N, 2], height and width as seen (oriented)."""
    channels: I64
    """[N], as decoded with ANY_DATA."""
    odd: int
    """How many are no plain JPEGs, or too large."""
    damaged: dict[int, SampleError] = field(default_factory=dict)
    """Images that go on in spite of this, by place."""
    bad: int = 0
    """How many are not good: as `drop` counts them, which alone may write ``good``."""

    @property
    def height(self) -> I64:
        """[N]"""
        return self.extents[:, 0]

    @property
    def width(self) -> I64:
        """[N]"""
        return self.extents[:, 1]

    @property
    def other(self) -> npt.NDArray[np.bool_]:
        """[N] Images that are no JPEGs."""
        found: npt.NDArray[np.bool_] = self.rows[:, FORMAT] != JPEG
        return found

    def header(self, i: int) -> Header:
        """Of image ``i``, which is no JPEG."""
        return header_of(self.rows[i])

    def drop(self, i: int) -> None:
        """Image ``i`` turned out to be bad."""
        self.bad += bool(self.good[i])
        self.good[i] = False
        self.extents[i] = 0

    def left(self, status: I32) -> I64:
        """The good images that a decoder refuses, by its ``status`` [N]: not 0 for those."""
        if not _headers.refused(self.good, status):
            return _NOBODY
        return np.flatnonzero(self.good & (status != 0))


_NOBODY = np.empty(0, np.int64)


def read_headers(ctx: Context, batch: Batch, rules: Rules) -> Headers:
    """Walk the headers of all images. Files that are not images, or are too large, are rejected."""
    (jpeg, scans), n = _headers.walked(batch), len(batch)
    turned, odd, good = np.empty(n, np.int32), np.empty(n, np.bool_), np.empty(n, np.bool_)
    extents, channels = np.empty((n, 2), np.int64), np.empty(n, np.int64)
    few = _headers.summarise(jpeg, rules.adjust_orientation, rules.max_pixels, turned, extents, channels, good, odd)
    headers = Headers(jpeg, scans, np.broadcast_to(_NO_HEADER, (n, COLUMNS)), good, turned, extents, channels, few)
    if not few:
        return headers
    known, headers.rows = others_of(batch), np.zeros((n, COLUMNS), np.int64)
    odd[_take_plain(headers, known, batch, rules)] = False
    left = np.flatnonzero(odd).tolist()
    kept = dict(zip(known.places.tolist(), known.rows, strict=True)) if left else {}
    for i in left:
        try:
            _examine(headers, i, kept.get(i), known.wrong.get(i), int(batch.shapes[i, 0]), rules)
        except SampleError as e:
            headers.drop(i)
            ctx.reject(i, e.code, str(e))
    return headers


def foresee(batch: Batch, rules: Rules, stage: Stage, *, whole: bool) -> tuple[I64, I64]:
    """Elements of each decoded image, and bytes held besides while it is decoded, int64[N] each; zeros for what will
    be refused. ``whole``: JPEGs go straight into the output where nothing is to be done to them."""
    jpeg, n = _headers.rows_of(batch), len(batch)
    elements, besides = np.empty(n, np.int64), np.empty(n, np.int64)
    aside = not whole or rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr
    fixed = 0 if rules.output_type is DALIImageType.ANY_DATA else channels_of(rules.output_type, 3)
    others = _headers.foreseen(jpeg, batch.shapes, stage != "cpu", aside, rules.adjust_orientation, rules.max_pixels,
                               fixed, elements, besides)  # fmt: skip
    if others:
        known = others_of(batch)
        fits = _fit(known, batch, rules)
        place, rows = known.places[fits], known.rows[fits]
        # Pillow's picture takes four bytes a pixel, and NumPy's copy of it as many as there are channels.
        pixels, channels = (rows[:, WIDTH] * rows[:, HEIGHT]).astype(np.float64), rows[:, CHANNELS]
        taken = 4 + channels * (1 + _EXTRA_BYTES[int(stage != "cpu"), rows[:, FORMAT]])
        elements[place] = np.minimum(pixels * (fixed or channels), _MOST)
        besides[place] = np.minimum(pixels * taken * np.where(rows[:, BITS] <= 8, 1, 2), _MOST)
    return elements, besides


_MOST = 1 << 56
"""Bytes or elements of one image; sums of them stay below 2^63."""
_EXTRA_BYTES = np.zeros((2, 1 + max(BY_CODE)), np.int64)
"""`Format.extra_bytes` by code: of the host, of a GPU."""
for _format in FORMATS:
    _EXTRA_BYTES[:, _format.code] = _format.extra_bytes


def _fit(known: Others, batch: Batch, rules: Rules) -> npt.NDArray[np.bool_]:
    """The images that are no JPEGs which `check_pixels` lets pass."""
    limit = np.full(len(known.places), rules.max_pixels, np.float64)
    if rules.bomb_ratio:
        limit = np.minimum(limit, np.maximum(BOMB_PIXELS, rules.bomb_ratio * batch.shapes[known.places, 0]))
    fits: npt.NDArray[np.bool_] = known.rows[:, WIDTH] * known.rows[:, HEIGHT] <= limit
    return fits


def _take_plain(headers: Headers, known: Others, batch: Batch, rules: Rules) -> I64:
    """Fill in the headers of what is no JPEG and needs no other look, all at once; the places of these images."""
    format = known.rows[:, FORMAT]
    taken = _fit(known, batch, rules)
    for code in np.unique(format).tolist():  # some libraries may be missing
        if BY_CODE[code].missing():
            taken &= format != code
        elif rules.dtype != np.uint8 and not BY_CODE[code].keeps_16_bits() and not available():
            taken &= (format != code) | ~are_deep(known.rows)
    place, rows = known.places[taken], known.rows[taken]
    headers.rows[place] = rows
    turned = rows[:, ORIENTATION] if rules.adjust_orientation else np.ones(len(place), np.int64)
    swap = turned >= 5
    headers.orientation[place] = turned
    headers.extents[place, 0] = np.where(swap, rows[:, WIDTH], rows[:, HEIGHT])
    headers.extents[place, 1] = np.where(swap, rows[:, HEIGHT], rows[:, WIDTH])
    headers.channels[place] = rows[:, CHANNELS]
    return place


_NO_HEADER = np.zeros(COLUMNS, np.int64)


def _examine(
    headers: Headers, i: int, row: I64 | None, wrong: SampleError | None, size: int, rules: Rules
) -> None:  # fmt: skip
    from .jpeg.turbo import check_header

    if wrong is not None:
        raise wrong.bare()
    if row is None:
        check_header(headers.jpeg[i])
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


def straight(batch: Batch, headers: Headers, rules: Rules, isolation: Isolation | None) -> dict[str, I64]:
    """Images that are no JPEGs and that decoders of ours can write into an output as they are wanted: their places, by
    the name of the decoder."""
    if rules.dtype != np.uint8 or (isolation is not None and isolation.jpeg) or not headers.odd:
        return {}
    kind = rules.output_type
    upright = headers.good & (headers.orientation == 1)
    found = {}
    if png.available():
        found[PNG] = np.flatnonzero(upright & png.are_straight(headers.rows, batch.shapes[:, 0], kind))
    tiffs = np.flatnonzero(upright & tiff.are_straight(headers.rows, kind))
    if len(tiffs):
        found[TIFF] = tiffs[tiff.are_plain(batch, tiffs)]
    return {name: which for name, which in found.items() if len(which)}


def copied(batch: Batch, headers: Headers, rules: Rules, isolation: Isolation | None) -> tuple[I64, I64]:
    """Images of which copies are wanted as they lie in their files: their places, and where the pixels are, a row of
    `plain.find` for each."""
    if rules.dtype != np.uint8 or (isolation is not None and isolation.jpeg):
        return _NOBODY, _NOBODY.reshape(0, 4)
    if not headers.odd:
        return _NOBODY, _NOBODY.reshape(0, 4)
    which = np.flatnonzero(headers.good & plain.makes(headers.rows, rules.output_type))
    if not len(which):
        return which, which.reshape(0, 4)
    rows = plain.find(batch, which, headers.extents[which])
    found = rows[:, plain.STEP] > 0
    return which[found], rows[found]


def decode_others(
    ctx: Context, batch: Batch, headers: Headers, rules: Rules, which: Collection[int],
    run: Callable[..., Iterable[Any]] = map,
) -> dict[int, Pixels]:  # fmt: skip
    """The images ``which``, no JPEGs, decoded, oriented and recoloured; ``headers`` learn their true shapes.

    ``run`` maps over the images: `map`, or that of a pool of threads.
    """

    def kept(pixels: Pixels) -> tuple[int, Pixels]:
        return pixels.shape[2], np.array(recolour(pixels, rules.output_type, rules.dtype))

    images: dict[int, Pixels] = {}
    good = [i for i in which if headers.good[i]]
    if run is map:
        results: Iterable[Any] = decode_several(batch, headers, rules, ctx.isolation, lambda _, p: kept(p), good)
    else:
        results = run(partial(decode_other, batch, headers, rules, ctx.isolation, kept), good)
    for i, result in zip(good, results, strict=True):
        if isinstance(result, SampleError):
            headers.drop(i)
            ctx.reject(i, result.code, str(result))
            continue
        headers.channels[i], images[i] = result
        headers.height[i], headers.width[i] = images[i].shape[:2]
    return images


def decode_other(
    batch: Batch, headers: Headers, rules: Rules, isolation: Isolation | None, use: Callable[[Pixels], T], i: int
) -> T | SampleError:
    """The result of ``use`` on image ``i``, no JPEG, as it is stored and turned; or the error. The pixels may lie in a
    decoder's memory: they are there no longer than ``use`` takes."""
    from . import pillow

    data, header = encoded_bytes(batch, i), headers.header(i)
    pixels = _without_library(data, header, rules, isolation)
    if pixels is not None:
        return use(pixels)
    try:
        if isolation is None:
            return use(pillow.decode(data, header, rules.adjust_orientation, rules.max_pixels))
        return isolation.lend(data, header, rules.adjust_orientation, rules.max_pixels, use)
    except SampleError as e:
        return _after_error(batch, headers, rules, isolation, use, i, e)


def decode_several(
    batch: Batch, headers: Headers, rules: Rules, isolation: Isolation | None, use: Callable[[int, Pixels], T],
    which: Sequence[int],
) -> list[T | SampleError]:  # fmt: skip
    """`decode_other` of the images ``which``: what goes to processes of their own goes there together. ``use`` is told
    the image, too."""
    if isolation is None:
        return [decode_other(batch, headers, rules, None, partial(use, i), i) for i in which]
    found: dict[int, T | SampleError] = {}
    late = []
    for i in which:
        pixels = _without_library(encoded_bytes(batch, i), headers.header(i), rules, isolation)
        if pixels is None:
            late.append(i)
        else:
            found[i] = use(i, pixels)
    files = [(encoded_bytes(batch, i), headers.header(i)) for i in late]
    results = isolation.lend_several(files, rules.adjust_orientation, rules.max_pixels, lambda k, p: use(late[k], p))
    for i, result in zip(late, results, strict=True):
        if isinstance(result, SampleError):
            found[i] = _after_error(batch, headers, rules, isolation, partial(use, i), i, result)
        else:
            found[i] = result
    return [found[i] for i in which]


def _without_library(data: memoryview, header: Header, rules: Rules, isolation: Isolation | None) -> Pixels | None:
    """The pixels of an image that code of ours decodes, turned as is wanted; None for all others."""
    if isolation is not None and isolation.jpeg:
        return None
    decode = BY_NAME[header.format].stored
    pixels = None if decode is None else decode(data, header)
    if pixels is None:
        return None
    return orient(pixels, header.orientation) if rules.adjust_orientation else pixels


def _after_error(
    batch: Batch, headers: Headers, rules: Rules, isolation: Isolation | None, use: Callable[[Pixels], T], i: int,
    problem: SampleError,
) -> T | SampleError:  # fmt: skip
    """Image ``i`` as its decoder guesses it, where that is wanted of damaged ones; or the ``problem``."""
    from . import pillow

    if rules.on_damage == "reject" or problem.code not in DAMAGE:
        return problem
    data, header = encoded_bytes(batch, i), headers.header(i)
    try:
        if isolation is None:
            made = use(pillow.decode(data, header, rules.adjust_orientation, rules.max_pixels, lenient=True))
        else:
            made = isolation.lend(data, header, rules.adjust_orientation, rules.max_pixels, use, lenient=True)
    except SampleError:
        return problem
    headers.damaged[i] = problem
    return made


DAMAGE = ("corrupt_data", "truncated")
"""Codes of what a decoder may be able to pass over."""


def decode_straight(
    name: str, batch: Batch, which: I64, rules: Rules, anchors: I64 | None, out: Batch, places: I64
) -> npt.NDArray[np.bool_]:
    """Decode the images ``which`` of ``batch`` by the decoder ``name`` (see `native_loops`) to the ``places`` of
    ``out``. Return which of them it did not take, bool[len(which)]."""
    decode_into = png.decode_into if name == PNG else tiff.decode_into
    status = decode_into(batch, which, *_targets(rules, None if anchors is None else anchors[which], out, places))
    left: npt.NDArray[np.bool_] = status != 0
    return left


def _targets(rules: Rules, corners: I64 | None, out: Batch, places: I64) -> tuple[Any, ...]:
    """Where pictures go whose windows begin at ``corners`` and that are the samples ``places`` of ``out``, as loops
    want it: windows, channels, whether blue comes first, memory, and places and pitches of whole pictures there."""
    shapes = out.shapes[places].astype(np.int64)
    corners = np.zeros((len(places), 2), np.int64) if corners is None else corners
    windows = np.concatenate([corners, corners + shapes[:, :2]], axis=1)
    channels, pitches = np.ascontiguousarray(shapes[:, 2]), shapes[:, 1] * shapes[:, 2]
    origins = out.offsets[places] - corners[:, 0] * pitches - corners[:, 1] * channels
    return windows, channels, rules.output_type is DALIImageType.BGR, out.data, origins, pitches


def output_shapes(headers: Headers, rules: Rules, heights: I64, widths: I64) -> I32:
    """[N, 3] of images of these sizes; no pixels for bad ones."""
    fixed = 0 if rules.output_type is DALIImageType.ANY_DATA else channels_of(rules.output_type, 3)
    shapes = np.empty((len(heights), 3), np.int32)
    _headers.decoded_shapes(heights, widths, headers.channels, fixed, headers.good, shapes)
    return shapes


def decode(
    ctx: Context, batch: Batch, rules: Rules, windows: Windows | None = None, needed: Needed | None = None,
    joined: Context | None = None,
) -> Batch:  # fmt: skip
    """The images of ``batch`` (1-D uint8) as HWC, or what ``windows`` cut out of them. Only the pixels that are
    ``needed`` are sure to be decoded; damage is found wherever it is. ``joined``: the context of the operator that this
    one is a part of."""
    show(batch)
    headers = read_headers(ctx, batch, rules)
    ours = straight(batch, headers, rules, ctx.isolation)
    began = time.perf_counter()
    plains, rows = copied(batch, headers, rules, ctx.isolation)
    placed, others = list[int](), dict[int, Pixels]()
    if headers.odd:
        late = headers.other
        late[plains] = False
        for which in ours.values():
            late[which] = False
        placed = _placed(headers, rules, plains)
        late[placed] = False
        others = decode_others(ctx, batch, headers, rules, np.flatnonzero(late).tolist())
    aside = time.perf_counter() - began
    anchors = None
    heights, widths = headers.height, headers.width
    if windows is not None:
        anchors, sizes = cut(ctx, headers, windows)
        heights, widths = sizes[:, 0], sizes[:, 1]
    out = Batch.allocate(ctx.empty, output_shapes(headers, rules, heights, widths), rules.dtype, "HWC", batch.samples)
    began = time.perf_counter()
    left = _baseline(joined or ctx, batch, headers, rules, anchors, out, needed)
    ended = time.perf_counter()
    ctx.decoded_by(OURS, len(batch) - headers.bad - int(np.count_nonzero(left)), ended - began)
    for name, places in ours.items():
        which, began = places[left[places]], time.perf_counter()
        refused = which[decode_straight(name, batch, which, rules, anchors, out, which)]
        left[which] = False
        ended = time.perf_counter()
        ctx.decoded_by(name, len(which) - len(refused), ended - began)
        others |= _refused(ctx, batch, headers, rules, refused)
        left[refused] = headers.good[refused]
        aside += time.perf_counter() - ended
    if len(plains):
        began, seen = time.perf_counter(), left[plains]
        plains, rows = plains[seen], rows[seen]
        corners = None if anchors is None else anchors[plains]
        plain.copy_into(batch, plains, rows, *_targets(rules, corners, out, plains))
        left[plains] = False
        ctx.decoded_by(PLAIN, len(plains), time.perf_counter() - began)
    if placed:
        began = time.perf_counter()
        done = _decode_placed(ctx, batch, headers, rules, anchors, out, [i for i in placed if left[i]])
        left[placed] = False
        ctx.decoded_by(OTHERS, done, time.perf_counter() - began)
    for i, image in others.items():
        if left[i]:
            anchor = None if anchors is None else (int(anchors[i, 0]), int(anchors[i, 1]))
            out.sample(i)[...] = _window(image, anchor, out.shapes[i])
            left[i] = False
    ctx.decoded_by(OTHERS, len(others), aside)
    began = time.perf_counter()
    rest = np.flatnonzero(left).tolist()
    for i in rest:
        anchor = None if anchors is None else (int(anchors[i, 0]), int(anchors[i, 1]))
        try:
            data, row = encoded_bytes(batch, i), headers.jpeg[i]
            decode_jpeg(data, row, int(headers.orientation[i]), rules, anchor, out, i, ctx.isolation)
        except SampleError as e:
            if rules.on_damage != "reject" and e.code in DAMAGE:
                try:
                    decode_jpeg(data, row, int(headers.orientation[i]), rules, anchor, out, i, ctx.isolation, True)
                    headers.damaged[i] = e.bare()
                    continue
                except SampleError:
                    pass
            headers.drop(i)
            ctx.reject(i, e.code, str(e))
    ctx.decoded_by(TURBO, len(rest), time.perf_counter() - began)
    for i, problem in headers.damaged.items():
        if headers.good[i]:
            if ctx.count is not None:
                ctx.count("damaged images that were kept", 1)
            if rules.on_damage == "flag":
                ctx.flag(i, problem.code, str(problem))
    return out


_EXACT = [f.code for f in FORMATS if f.exact_size]
"""Codes of formats with `Format.exact_size`."""


def _placed(headers: Headers, rules: Rules, besides: I64) -> list[int]:
    """Images that are no JPEGs whose pixels can go into the output as they come, ``besides`` others: its shape is known
    before."""
    if rules.output_type is DALIImageType.ANY_DATA or rules.on_damage != "reject":
        return []
    found = headers.good & np.isin(headers.rows[:, FORMAT], _EXACT)
    found[besides] = False
    return np.flatnonzero(found).tolist()


def _decode_placed(
    ctx: Context, batch: Batch, headers: Headers, rules: Rules, anchors: I64 | None, out: Batch, which: list[int]
) -> int:
    """Decode the images ``which`` into ``out``; how many of them were good."""

    def use(i: int, pixels: Pixels) -> bool:
        if pixels.shape[:2] != (headers.height[i], headers.width[i]):
            return False
        anchor = None if anchors is None else (int(anchors[i, 0]), int(anchors[i, 1]))
        part = recolour(_window(pixels, anchor, out.shapes[i]), rules.output_type, rules.dtype)
        out.sample(i)[...] = part
        return True

    done = 0
    for i, found in zip(which, decode_several(batch, headers, rules, ctx.isolation, use, which), strict=True):
        if found is True:
            done += 1
            continue
        problem = found
        if not isinstance(problem, SampleError):
            problem = SampleError("corrupt_data", "the header is damaged: two decoders read different sizes from it")
        headers.drop(i)
        ctx.reject(i, problem.code, str(problem))
    return done


def _refused(ctx: Context, batch: Batch, headers: Headers, rules: Rules, which: I64) -> dict[int, Pixels]:
    """The images ``which``, for which there is a place already, by the decoder of all formats."""
    stored = rules.output_type is DALIImageType.ANY_DATA
    shapes = {i: (headers.height[i], headers.width[i], headers.channels[i]) for i in which.tolist()}
    images = decode_others(ctx, batch, headers, rules, which.tolist())
    for i in [i for i, image in images.items() if (*image.shape[: 2 + stored],) != shapes[i][: 2 + stored]]:
        ctx.reject(i, "corrupt_data", "the header is damaged: two decoders read different sizes from it")
        headers.drop(i)
        del images[i]
    return images


_NO_CORNERS, _ALL = np.empty((0, 2), np.int64), np.empty((0, 4), np.int64)


def _baseline(
    ctx: Context, batch: Batch, headers: Headers, rules: Rules, anchors: I64 | None, out: Batch, needed: Needed | None
) -> npt.NDArray[np.bool_]:
    """Decode what our own decoder takes; which good images are left for others, [N]."""
    if rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr or rules.fast_idct:
        return headers.good.copy()
    n = len(batch)
    corners = _NO_CORNERS if anchors is None else anchors
    seen = _ALL if needed is None else needed(out.shapes)
    windows, status = np.empty((n, 4), np.int64), np.empty(n, np.int32)
    channels, origins, pitches = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    _decoder.regions(out.shapes, out.offsets, headers.good, headers.orientation, corners, seen, windows, channels,
                     origins, pitches)  # fmt: skip
    files = readonly(batch.data), np.ascontiguousarray(batch.offsets), batch.shapes[:, 0].astype(np.int64), headers.jpeg
    places = windows, channels, rules.output_type is DALIImageType.BGR, out.data, origins, pitches, status
    facts = ctx.facts(Anchors) if ctx.stage == "cpu" and (len(corners) or len(seen)) else None
    index = batch.samples.index
    known = np.zeros((n, 3), np.int64) if facts is None else facts.begin(index, headers.jpeg, windows)
    wanted = known[:, MODE].copy()
    _decoder.decode_images(*files, *places, NO_STATES if facts is None else facts.states, known)
    if facts is not None:
        facts.end(index, known, wanted)
    if len(headers.scans):
        _progressive.decode_images(*files, headers.scans, *places)
    left: npt.NDArray[np.bool_] = headers.good & (status != _decoder.DONE)
    return left


def cut(ctx: Context, headers: Headers, windows: Windows) -> tuple[I64, I64]:
    """Anchors and shapes of the windows in good images; images whose window was refused become bad."""
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


def _window(image: Pixels, anchor: tuple[int, int] | None, shape: npt.NDArray[np.int32]) -> Pixels:
    if anchor is None:
        return image
    y, x = anchor
    return image[y : y + int(shape[0]), x : x + int(shape[1])]


def decode_jpeg(
    data: memoryview, row: Any, orientation: int, rules: Rules, anchor: tuple[int, int] | None, out: Batch, i: int,
    isolation: Isolation | None = None, lenient: bool = False,
) -> None:  # fmt: skip
    """One JPEG as sample ``i`` of ``out``: turned, cut at ``anchor`` (y, x) and converted. Raises SampleError."""
    from .jpeg import turbo as jpeg_cpu
    from .jpeg.turbo import stored_channels

    decode_into = jpeg_cpu.decode_into if isolation is None or not isolation.jpeg else isolation.decode_into
    how = {"lenient": True} if lenient else {}
    converts = rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr
    if orientation == 1 and anchor is None and not converts:
        start = int(out.offsets[i])
        place = memoryview(out.data[start : start + int(np.prod(out.shapes[i], dtype=np.int64))])
        decode_into(data, row, rules.output_type, rules.fast_idct, place, **how)
        return
    space = DALIImageType.RGB if rules.output_type is DALIImageType.YCbCr else rules.output_type
    shape = (int(row["height"]), int(row["width"]), channels_of(space, stored_channels(row)))
    whole = np.empty(shape, np.uint8)
    decode_into(data, row, space, rules.fast_idct, whole.reshape(-1).data, **how)
    part = _window(orient(whole, orientation), anchor, out.shapes[i])
    if converts:
        # BGR and GRAY are what the decoder gave; only the type is still to change.
        to = rules.output_type if rules.output_type is DALIImageType.YCbCr else DALIImageType.ANY_DATA
        part = recolour(part, to, rules.dtype)
    out.sample(i)[...] = part
