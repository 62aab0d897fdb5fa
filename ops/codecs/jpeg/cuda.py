"""JPEG decoding with the built-in CUDA kernels: the host's plan for a batch, and the launches.

Everything here works on arrays with one row per image; nothing costs Python time per image, and nothing waits for the
device. A batch is one upload of metadata, one memset and a dozen launches on the caller's stream:

    tables -> unstuff -> states -> coefficients -> dc -> idct -> pixels | weights, resize, strips
                      -> scans                         -> dense -> four

The second row is for images in many scans (progressive ones), and for images of four components.

The sources are in ops/cuda/jpeg_*.cu. The kernels detect bad data themselves: ``status`` has one word per image, 0 if
the image is right, and BAD_... bits if another decoder must decode the file. Called by `on_gpu` and `ops.fused`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...gpu import driver_calls as stream_work
from ...gpu.lane import aligned
from ...images.resampling import resample
from ...kernels import Kernels

_loops: Any = Kernels(".cuda_plan_cpu", __package__)
_scans: Any = Kernels(".scans", __package__)
_header: Any = Kernels(".header", __package__)

SOURCES = Path(__file__).parents[2] / "cuda"
ENTRY_SOURCE = "jpeg_strips.cu"  # includes the others
_HELPERS = ("jpeg_layout",)
KERNELS = (
    "jpeg_tables",
    "jpeg_unstuff",
    "jpeg_states",
    "jpeg_coefficients",
    "jpeg_known_coefficients",
    "jpeg_joints",
    "jpeg_dc",
    "jpeg_idct",
    "jpeg_scans",
    "jpeg_dense",
    "jpeg_four",
    "jpeg_pixels",
    "jpeg_weights",
    "jpeg_resize",
    "jpeg_strips",
)

# Status bits, as in jpeg_common.cuh.
UNSUPPORTED, BAD_TABLE, BAD_CODE, MISSING, EXTRANEOUS, BAD_RESTART, OUT_OF_RANGE, STALE = (1 << i for i in range(8))

RGB, BGR, GRAY, YCBCR = range(4)  # output types
UINT8, FLOAT16, FLOAT32 = range(3)  # output dtypes
DTYPES = (np.dtype(np.uint8), np.dtype(np.float16), np.dtype(np.float32))

# Sizes with which the kernels are compiled; jpeg_layout reports them.
ENTROPY_THREADS = 256
SUBSEQUENCE_BITS = 4096


def entries_each(subsequence_bits: int) -> int:
    """Return the maximum number of decoded entries per subsequence, a short range of a scan's bits; as in
    jpeg_stream.cu."""
    return subsequence_bits // 4 + 128


ENTRIES_EACH = entries_each(SUBSEQUENCE_BITS)
UNSTUFF_THREADS = 256
UNSTUFF_CHUNK = UNSTUFF_THREADS * 32
DC_THREADS = 512
IDCT_THREADS = 128
IDCT_GROUPS = 128
DENSE_THREADS = 256
FOUR_THREADS = 256
FOUR_BLOCKS = 16  # thread blocks per image
SCAN_THREADS = 32
MOST_LEVELS = 16  # scans that refine one another: there are at most 14 bits
PIXEL_THREADS = 256
PIXEL_CHUNK = PIXEL_THREADS * 16
PIXEL_SPAN = 508
RESIZE_THREADS = 256
RESIZE_WORK = 1_500_000  # approximate work of a thread block, in instructions of one thread
RESIZE_BLOCKS = 132 * 4  # approximate number of thread blocks that a GPU runs at once
RESIZE_SLOTS = 3  # outputs in progress at a time
STRIP_COLUMNS = 32  # columns of the output that a warp takes
STRIP_POOL = 3616  # floats of shared memory of a warp
STRIP_PERCENT = 100  # minimum percentage of source pixels per output pixel for a warp to take columns
STRIPS_AT_ONCE = 132 * 12  # approximate number of warps that a GPU runs at once
LOOKUP_BITS = 10
PAIR_BITS = 10
NEAR_CODES = 512


def table_bytes(lookup_bits: int, pair_bits: int) -> int:
    """Return the size in bytes of a HuffmanTable of the kernels. It has five parts: entries of one code, entries of two
    codes, longer codes, limits of the lengths of longer codes, and symbols."""
    return (4 << lookup_bits) + (4 << pair_bits) + 4 * NEAR_CODES + -(-(8 * (18 - lookup_bits) + 256) // 16) * 16


TABLE_BYTES = table_bytes(LOOKUP_BITS, PAIR_BITS)

_MAX_BLOCKS = 1 << 24  # 64-megapixel 4:4:4 images are left to other decoders
_MAX_BLOCKS_IN_SCANS = 1 << 20  # also 44-megapixel 4:2:0 images in many scans, each of which is read from start to end


def _fields(dtype: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, dtype) for name in names.split()]


# The structures of jpeg_common.cuh, field by field.
COMPONENT = np.dtype(
    _fields(np.int64, "plane")
    + _fields(np.int32, "h v first width height pitch quant quant_wide expand_x expand_y")
    + _fields(np.int32, "roi_group roi_row roi_groups roi_rows")
)
IMAGE = np.dtype(
    _fields(np.int64, "raw words entries blocks coefficients known known_count")
    + _fields(np.int32, "raw_size scan width height components colour mcus_x mcus blocks_in_mcu block_count")
    + _fields(np.int32, "restart segments segment_count dc_slots ac_slots")
    + _fields((np.int32, 2), "dc ac")
    + _fields(np.int32, "owner")
    + _fields((COMPONENT, 3), "component")
)
SCAN_PART = np.dtype(_fields(np.int64, "coefficients") + _fields(np.int32, "h v table stride"))
SCAN = np.dtype(
    _fields(np.int32, "image first last high low mcus_x mcus restart count level")
    + _fields((np.uint32, 4), "after")
    + _fields((SCAN_PART, 4), "part")
)
AXIS = np.dtype(
    _fields(np.int64, "weights stride")
    + _fields(np.float32, "lo scale support")
    + _fields(np.int32, "table table_last first step count taps corner stepwise base flip begin end tile")
    + _fields(np.int64, "reached")
)
RESIZE = np.dtype(_fields(np.int64, "out") + _fields((AXIS, 2), "axis") + _fields(np.int32, "stride_c image"))
PIXELS = np.dtype(_fields(np.int64, "out") + _fields(np.int32, "x y step_x_x step_x_y step_y_x step_y_y width height"))
_POINTERS = (
    _fields(np.uint64, "raw words segments stream tables starts known blocks entries coefficients progress planes")
    + _fields(
        np.uint64,
        "weights filters out status tickets unstuff_chain entropy_chain images unstuff_first entropy_first idct_first",
    )
    + _fields(np.uint64, "dense_first pixel_first resize_first strips_first resize pixels scans fours")
)
_POINTER_NAMES = tuple(name for name, _ in _POINTERS)
BATCH = np.dtype(
    _POINTERS
    + _fields(np.int32, "count records output_type out_dtype round_to_uint8")
    + _fields((np.float32, 4), "mul add")
    + _fields(np.int32, "unused")
)

_RECORD = Struct(f"={len(_POINTERS)}Q5i8fi")
"""Layout of a `BATCH` record for `struct.pack`, which is five times as fast as NumPy for a single record."""

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]


class Runtime(Protocol):
    """Interface of an object that runs the kernels in order: a lane (CUDA stream) or, in tests, an emulator of the
    GPU."""

    def allocate(self, size: int) -> tuple[Any, int]:
        """Return device memory of ``size`` bytes: the object that owns it, and its address, a multiple of 256."""

    def stage(self, size: int) -> U8:
        """Return ``size`` bytes of uninitialised host memory, for one `Work.upload` or `Work.download`."""

    def work(self) -> Work:
        """Return a queue of copies and launches, which run in order and are submitted together."""


class Work(Protocol):
    """Interface of a queue of copies and kernel launches, which the GPU starts at `submit` or earlier."""

    def upload(self, address: int, data: U8) -> None:
        """Queue a copy of ``data``, which `Runtime.stage` returned, to the device."""

    def download(self, data: U8, address: int) -> None:
        """Queue a copy of device memory to ``data``, which `Runtime.stage` returned."""

    def zero(self, address: int, size: int) -> None: ...

    def launch(self, kernel: str, grid: int, threads: int, batch: int) -> None: ...

    def submit(self) -> None: ...


class LaneRuntime:
    """Runs the kernels on a lane (CUDA stream). The kernels are compiled once per GPU; CuPy caches the binary on
    disk."""

    def __init__(self, lane: Any, defines: str = "") -> None:
        """``defines``: CUDA text that is put before the sources, to compile the kernels with other sizes."""
        kernels = lane.functions(defines + source_text(), (*KERNELS, *_HELPERS))
        self._functions = {name: kernel.ptr for name, kernel in kernels.items()}
        self._kernels = kernels  # a reference to a kernel keeps its module loaded
        self._work = LaneWork(self._functions, lane.work())
        self.allocate, self.stage = lane.allocate, lane.pinned

    def work(self) -> LaneWork:
        self._work.on_lane.cancel()  # discard calls of a batch whose planning failed
        return self._work


@dataclass(slots=True)
class LaneWork:
    """Queue of copies and kernel launches for a lane (CUDA stream); see `Work`."""

    functions: Mapping[str, int]
    on_lane: stream_work.Work

    def upload(self, address: int, data: U8) -> None:
        self.on_lane.copy_in(address, data.ctypes.data, data.nbytes)

    def download(self, data: U8, address: int) -> None:
        self.on_lane.copy_out(data.ctypes.data, address, data.nbytes)

    def zero(self, address: int, size: int) -> None:
        self.on_lane.zero(address, size)

    def launch(self, kernel: str, grid: int, threads: int, batch: int) -> None:
        self.on_lane.launch(self.functions[kernel], grid, threads, batch)

    def submit(self) -> None:
        self.on_lane.submit()


class Sheet:
    """Host memory for all data that is uploaded for a batch: the batch record, then one array after the other. The
    arrays are filled in place, so that one copy uploads all of them. Created per batch."""

    def __init__(
        self, stage: Callable[[int], U8], pictures: int, records: int, scans: int = 0, states: int = 0, fours: int = 0
    ) -> None:
        """Allocate memory for planning a batch. ``records``: number of image records, also for separate scans;
        ``pictures``: of images; ``scans``: of scans of progressive images; ``states``: of known decoder states;
        ``fours``: of images with four components."""
        arrays = (
            (_TRAVELLING, records),
            (RESIZE.itemsize + PIXELS.itemsize, pictures),
            (SCAN.itemsize, scans),
            (8, states),
            (4, fours),
        )
        self._memory = stage(sum(size * n for size, n in arrays) + _TRAVELLERS * aligned(1))
        self._places: dict[str, slice] = {}
        self._end = aligned(BATCH.itemsize)

    def take(self, name: str, n: int, dtype: Any) -> NDArray[Any]:
        """Return the uninitialised array ``name`` with ``n`` elements. Later calls with the same name return the same
        memory."""
        if name not in self._places:
            self._places[name] = slice(self._end, self._end + n * np.dtype(dtype).itemsize)
            self._end = aligned(self._places[name].stop)
        return self._memory[self._places[name]].view(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that all arrays occupy, including unused memory."""
        return self._memory.nbytes

    def travelling(self) -> U8:
        """Return the memory that arrays use, for uploading to the device."""
        return self._memory[: self._end]

    def addresses(self, base: int) -> dict[str, int]:
        """Return the device address of every array, by name. ``base``: address of the uploaded memory."""
        return {name: base + place.start for name, place in self._places.items()}


_TRAVELLING = IMAGE.itemsize + 12 * 4
"""Bytes of a `Sheet` (data to upload) per image record: the status, the record, and seven numbers of thread blocks, of
which those of the inverse DCTs have three."""
_TRAVELLERS = 15
"""Maximum number of arrays in a `Sheet` (data to upload). Each array may need up to 256 bytes of padding."""


def _plain(size: int) -> U8:
    return np.empty(size, np.uint8)


@dataclass
class DecodePlan:
    """Plan for decoding a batch of JPEGs, for any kind of output. Created by `plan_decode`; used for one output at a
    time."""

    sheet: Sheet
    # IMAGE: the images, then separate scans of images that have one per component, then streams of `scans`
    records: NDArray[Any]
    heads: int  # number of records before the streams of `scans`
    scans: NDArray[Any]  # SCAN: scans of images that have many, level by level
    levels: I64  # number of scans of each level
    fours: I32  # the records of images of four components
    marks: I32  # status of each record that is known before the device reads a byte
    orientation: I32
    needed: NDArray[np.bool_]  # components that the output needs
    unstuff_first: I32
    entropy_first: I32
    idct_first: I32
    dense_first: I32
    words: int
    segments: int
    blocks: int
    entries: int
    coefficients: int
    planes: int
    known: NDArray[np.uint64]
    """Decoder states from an earlier epoch, one image after the other. The caller of `plan_decode` fills in this
    array."""
    unknowns: int
    """Number of entropy-coded streams whose decoder states are not known, so that the GPU must find them."""

    def __len__(self) -> int:
        return len(self.needed)

    @property
    def images(self) -> NDArray[Any]:
        """`IMAGE` records of the batch's images, without the records of separate scans and streams that follow in
        ``records``."""
        return self.records[: len(self)]

    @property
    def status(self) -> I32:
        """Status of each image of the batch: 0, or bits such as `UNSUPPORTED`."""
        return self.marks[: len(self)]


def _check(blocks: int) -> None:
    """Raise ValueError if ``blocks`` thread blocks are more than CUDA allows in one launch."""
    if blocks >= 1 << 31:
        raise ValueError("the batch is too large for one plan: split it")


def _rows_of(records: NDArray[Any], field: str) -> NDArray[Any]:
    """Return ``records[field]`` [N, K] for a compiled loop. NumPy treats an array of one row, or none, as contiguous,
    and loops would be compiled separately for it: such an array is returned as two rows at the same address. Loops read
    no more rows than there are records."""
    rows = records[field]
    if len(rows) > 1:
        return rows
    shape, strides = (2, rows.shape[1]), (0, rows.strides[1])
    if not len(rows):
        return as_strided(rows, shape, strides)
    return np.ndarray(shape, rows.dtype, rows, 0, strides)  # `as_strided` takes 50 us per record


def plan_decode(
    headers: NDArray[Any],
    offsets: I64,
    sizes: I64,
    windows: I32 | None = None,
    luma_only: bool = False,
    scans: NDArray[Any] | None = None,
    which: NDArray[np.bool_] | None = None,
    orientation: I32 | None = None,
    *,
    limited: bool = True,
    known: I64 | None = None,
    stage: Callable[[int], U8] = _plain,
) -> DecodePlan:
    """Plan decoding a batch of JPEG files on a GPU. ``offsets``: byte offset of each file in one device buffer.
    ``windows``: x0, y0, x1, y1 per image, in stored orientation, whose blocks are decoded; by default, whole images. If
    ``limited`` is false, the caller sets these limits by `limit`. ``luma_only``: chroma is not needed (gray output).

    ``scans``: table of scans that ``headers`` refer to; without it, progressive images with many scans are UNSUPPORTED.
    ``which``: images to decode, by default all supported ones. ``orientation``: replaces the one in ``headers``.
    ``known``: number of decoder states of each image from earlier epochs; the caller then writes the states to
    `DecodePlan.known`. ``stage``: allocates the memory that is copied to the device, see `Runtime.stage`. Raises
    ValueError if the batch is too large.
    """
    n = len(headers)
    fours = _loops.count_equal(headers["status"], _header.FOUR)
    heads = n + 3 * _loops.count_equal(headers["scans"], 3) + 2 * fours
    table = np.empty(0, _scans.SCAN) if scans is None else scans
    rows = heads + len(table)
    states = int(known.sum()) if known is not None else 0
    sheet = Sheet(stage, n, rows, len(table), states, fours)
    status, images, needed = (
        sheet.take("status", rows, np.int32),
        sheet.take("images", rows, IMAGE),
        np.empty((n, 3), np.bool_),
    )
    unstuff_first, entropy_first = (sheet.take(name, rows + 1, np.int32) for name in ("unstuff_first", "entropy_first"))
    totals = np.zeros(_loops.TOTALS, np.int64)
    if rows > n:
        images[n:].view(np.uint8)[:] = 0  # scans have one component; clearing record by record takes 50 times as long
    limits = (
        UNSUPPORTED, MISSING, _MAX_BLOCKS, SUBSEQUENCE_BITS, ENTRIES_EACH, UNSTUFF_CHUNK, ENTROPY_THREADS - 1,
        _MAX_BLOCKS_IN_SCANS,
    )  # fmt: skip
    planned, levels = sheet.take("scans", len(table), SCAN), np.zeros(MOST_LEVELS, np.int64)
    _loops.plan_images(
        headers, np.ones(n, np.bool_) if which is None else which, np.asarray(offsets, np.int64),
        np.asarray(sizes, np.int64), luma_only, limits, images, _rows_of(images, "component"), status, needed,
        unstuff_first, entropy_first, totals, heads, table, planned, _rows_of(planned, "part"), levels,
        np.empty(0, np.int64) if known is None else known, sheet.take("fours", fours, np.int32),
    )  # fmt: skip
    if totals[_loops.ENTRIES] >= 1 << 32:
        raise ValueError("the batch has more than a gigabyte of compressed data: split it")
    _check(totals[_loops.UNSTUFFS])
    _check(totals[_loops.ENTROPIES])
    plan = DecodePlan(
        sheet=sheet,
        records=images[: heads + int(levels.sum())],
        heads=heads,
        scans=planned,
        levels=levels,
        fours=sheet.take("fours", fours, np.int32),
        marks=status,
        orientation=headers["orientation"].astype(np.int32) if orientation is None else orientation,
        needed=needed,
        unstuff_first=unstuff_first[: heads + int(levels.sum()) + 1],
        entropy_first=entropy_first[: heads + 1],
        idct_first=np.empty(0, np.int32),
        dense_first=np.empty(0, np.int32),
        words=int(totals[_loops.WORDS]),
        segments=int(totals[_loops.SEGMENTS]),
        blocks=int(totals[_loops.BLOCKS]),
        entries=int(totals[_loops.ENTRIES]),
        coefficients=int(totals[_loops.COEFFICIENTS]),
        planes=int(totals[_loops.PLANES]),
        known=sheet.take("known", states, np.uint64),
        unknowns=int(totals[_loops.UNKNOWNS]),
    )
    if limited:
        limit(plan, windows)
    return plan


def limit(plan: DecodePlan, windows: I32 | None) -> None:
    """Limit the inverse DCT to the blocks of ``windows``, with one more sample on each side, which upsampling reads."""
    plan.idct_first = plan.sheet.take("idct_first", 3 * plan.heads + 1, np.int32)
    plan.dense_first = plan.sheet.take("dense_first", 3 * plan.heads + 1, np.int32)
    where = np.empty((0, 4), np.int32) if windows is None else np.ascontiguousarray(windows, np.int32)
    heads = plan.records[: plan.heads]
    _check(
        _loops.limit_blocks(
            where, heads, _rows_of(heads, "component"), plan.needed, IDCT_GROUPS, plan.idct_first, plan.dense_first
        )
    )


def oriented(orientation: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return, for each Exif orientation, three booleans: stored x is reversed, stored y is reversed, the axes are
    swapped."""
    flip_x = np.isin(orientation, (2, 3, 7, 8))
    flip_y = np.isin(orientation, (3, 4, 6, 7))
    return flip_x, flip_y, orientation >= 5


@dataclass
class Output:
    """Output that the kernels compute from decoded component planes: interleaved pixels, or resized and normalised
    tensors."""

    shapes: I32  # height, width per image, as the user sees it
    offsets: I64  # first element of each image in the output
    elements: int
    dtype: int = UINT8
    output_type: int = RGB
    pixels: NDArray[Any] | None = None  # PIXELS
    resize: NDArray[Any] | None = None  # RESIZE
    windows: I32 | None = None  # x0, y0, x1, y1: the stored pixels that a resize reads, for `limit`
    blocks_first: I32 | None = None  # exclusive sums of the thread blocks of the last kernel
    strips_first: I32 | None = None  # exclusive sums of the thread blocks of jpeg_strips
    weights: int = 0
    threads: int = RESIZE_THREADS
    round_to_uint8: bool = True
    mul: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    add: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


def pixel_output(
    plan: DecodePlan,
    output_type: int = RGB,
    windows: I32 | None = None,
    orient: bool = True,
    offsets: I64 | None = None,
) -> Output:
    """Describe an output of oriented images as interleaved bytes (HWC). ``windows``: x0, y0, x1, y1 in the oriented
    image; by default, the whole image. ``offsets``: first element of each image in the output; by default, images
    follow each other."""
    n = len(plan)
    rows, shapes = plan.sheet.take("pixels", n, PIXELS), np.empty((n, 2), np.int32)
    first = plan.sheet.take("pixel_first", plan.heads + 1, np.int32)
    elements, blocks = _loops.plan_pixels(
        plan.images, plan.status, plan.orientation if orient else np.ones(n, np.int32),
        np.empty((0, 4), np.int32) if windows is None else np.ascontiguousarray(windows, np.int32),
        np.empty(0, np.int64) if offsets is None else offsets, 1 if output_type == GRAY else 3,
        (PIXEL_SPAN, PIXEL_THREADS, PIXEL_CHUNK), rows, shapes, first,
    )  # fmt: skip
    _check(blocks)
    return Output(
        shapes=shapes,
        offsets=rows["out"],
        elements=int(elements),
        output_type=output_type,
        pixels=rows,
        blocks_first=first,
    )


def resize_output(
    plan: DecodePlan,
    sampling: resample.ResamplePlan,
    *,
    domain: I64 | None = None,
    mirror: NDArray[np.bool_] | None = None,
    orient: bool = True,
    output_type: int = RGB,
    dtype: int = FLOAT32,
    layout: str = "CHW",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    scale: float = 1.0,
    shift: float = 0.0,
    round_to_uint8: bool = True,
) -> Output:
    """Describe an output of images as tensors: resized, cropped, mirrored, and normalised by scale * (value - mean) /
    std + shift, as in crop_mirror_normalize. ``sampling``: the resizing along the axes (H, W) of the oriented images.
    ``domain`` [N, 2, 2]: begin and end of the source samples that may be read, for each axis; by default, the whole
    image. Beyond them, the border sample is repeated.
    """
    n, channels = len(plan), 1 if output_type == GRAY else 3
    region = [np.ascontiguousarray(a, np.float32) for a in (sampling.lo, sampling.hi, sampling.support)]
    places = [np.ascontiguousarray(a, np.int64) for a in (sampling.size, sampling.anchor, sampling.shape)]
    limited = np.empty((0, 2, 2), np.int64) if domain is None else domain
    rows = plan.sheet.take("resize", n, RESIZE)
    first, strips_first = (plan.sheet.take(name, plan.heads + 1, np.int32) for name in ("resize_first", "strips_first"))
    columns = 0 if output_type == YCBCR else STRIP_COLUMNS
    shapes, offsets = np.empty((n, 2), np.int32), np.empty(n, np.int64)
    windows, totals = np.empty((n, 4), np.int32), np.empty(_loops.TOTALS_OF_RESIZES, np.int64)
    _loops.plan_resizes(
        plan.images, _rows_of(plan.images, "component"), plan.status,
        plan.orientation if orient else np.ones(n, np.int32), *region, *places,
        np.ascontiguousarray(sampling.kind), np.ascontiguousarray(sampling.flip), limited,
        np.empty(0, np.bool_) if mirror is None else mirror.astype(np.bool_), channels, layout == "CHW", _FILTER_TABLES,
        (RESIZE_THREADS, RESIZE_WORK, RESIZE_BLOCKS, RESIZE_SLOTS, columns, STRIP_POOL, STRIP_PERCENT, STRIPS_AT_ONCE),
        rows, _rows_of(rows, "axis"), shapes, offsets, windows, first, strips_first, totals,
    )  # fmt: skip
    _check(totals[_loops.THREAD_BLOCKS])
    _check(totals[_loops.STRIPS])
    mul, add = _affine(tuple(mean), tuple(std), scale, shift)
    return Output(
        shapes=shapes,
        offsets=offsets,
        elements=int(totals[_loops.ELEMENTS]),
        dtype=dtype,
        output_type=output_type,
        resize=rows,
        windows=windows,
        blocks_first=first,
        strips_first=strips_first,
        weights=int(totals[_loops.WEIGHTS]),
        threads=int(totals[_loops.THREADS]),
        round_to_uint8=round_to_uint8,
        mul=mul,
        add=add,
    )


@lru_cache(64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float, shift: float
) -> tuple[tuple[float, ...], ...]:
    """Return the factor and the summand of the normalisation, for each of four channels. Results are cached, because
    most launches use the same."""
    mul = [scale / std[c % len(std)] for c in range(4)]
    with np.errstate(over="ignore"):  # overflows to infinity, as on the CPU; `Struct` would raise an error
        wanted = np.array([mul, [shift - mean[c % len(mean)] * mul[c] for c in range(4)]]).astype(np.float32)
    return tuple(tuple(row) for row in wanted.tolist())


_FILTER_TABLES = np.stack([resample.TABLE_START, resample.TABLE_SIZE - 1], axis=1)
_FILTER_TABLES[resample.NEAREST, 0] = -1


@dataclass
class Decoder:
    """JPEG decoder of one lane (CUDA stream): kernels, constant tables, and the last batch's device memory. Used by one
    thread at a time."""

    runtime: Runtime

    def __post_init__(self) -> None:
        self.workspace: Any = None
        """Object that owns the last batch's device memory. When it is dropped, later work of the CUDA stream may use
        the memory."""
        self.workspace_bytes = 0
        self.address = 0
        """Address of the last batch's device memory, which begins with the `BATCH` record."""
        self._filters_owner, self._filters = self.runtime.allocate(resample.TABLE.nbytes)
        staged = self.runtime.stage(resample.TABLE.nbytes)
        staged[:] = resample.TABLE.view(np.uint8)
        work = self.runtime.work()
        work.upload(self._filters, staged)
        work.submit()

    def decode(
        self, raw: int, plan: DecodePlan, output: Output, out: int, trace: Any = None, found: list[U8] | None = None
    ) -> I32:
        """Enqueue decoding the batch of ``plan``, whose files are at device address ``raw``, to address ``out``. Return
        one status word per image. These words are valid after the runtime has finished the batch, until the decoder is
        used again. ``trace(name)`` is called after each launch, for measurements. ``found``: list to which two arrays
        are added, valid as long as the status words: the decoder states that were found (uint64 per subsequence), and
        the numbers of stream bytes and restart markers of each record (uint32)."""
        zeroed, fixed = self._regions(plan, output)
        work, staged = self.runtime.work(), plan.sheet.travelling()
        address, places = self._place(work, len(staged), zeroed, fixed)
        addresses = {"raw": raw, "out": out, "filters": self._filters} | plan.sheet.addresses(address) | places
        pointers = [addresses.get(name, 0) for name in _POINTER_NAMES]
        numbers = plan.heads, len(plan.records), output.output_type, output.dtype, output.round_to_uint8
        _RECORD.pack_into(staged.data, 0, *pointers, *numbers, *output.mul, *output.add, 0)
        work.upload(address, staged)
        for kernel, grid, threads in self._launches(plan, output):
            if grid:
                work.launch(kernel, grid, threads, address)
            if trace is not None:
                work.submit()
                trace(kernel)
        status = self.runtime.stage(4 * len(plan))
        work.download(status, addresses["status"])
        if found is not None:
            for name in ("starts", "stream"):
                found.append(self.runtime.stage(fixed[name]))
                work.download(found[-1], addresses[name])
        work.submit()
        return status.view(np.int32)

    def _place(
        self, work: Work, travelling: int, zeroed: dict[str, int], fixed: dict[str, int]
    ) -> tuple[int, dict[str, int]]:
        """Allocate device memory for ``travelling`` bytes of uploaded data, and for named regions: those to fill with
        zeros (``zeroed``), and the others, with their sizes. Return the address of the memory, and the address of each
        region. Decoded samples reuse the memory of streams and tables, unless progressive images read these again."""
        places, at = {}, travelling
        for name, size in zeroed.items():
            places[name] = at
            at += aligned(size)
        zeros = at - travelling
        for name, size in fixed.items():
            if name == "planes" and not zeroed["coefficients"]:
                places[name] = places["words"]
                at = max(at, places["words"] + aligned(size))
                continue
            places[name] = at
            at += aligned(size)
        self.workspace = None  # before the next one is allocated
        self.workspace, self.address = self.runtime.allocate(at)
        self.workspace_bytes = at
        work.zero(self.address + travelling, zeros)
        return self.address, {name: self.address + place for name, place in places.items()}

    def _regions(self, plan: DecodePlan, output: Output) -> tuple[dict[str, int], dict[str, int]]:
        """Return the size in bytes of each region of device memory that a batch needs, by name: first the regions that
        must be zero at the start, then the others."""
        zeroed = {
            "tickets": 256,
            "unstuff_chain": 8 * int(plan.unstuff_first[-1]),
            "entropy_chain": 8 * int(plan.entropy_first[-1]),
            "coefficients": 2 * plan.coefficients,
            "progress": 4 * len(plan.records),
        }
        fixed = {
            "words": 4 * plan.words,
            "segments": 4 * plan.segments,
            "tables": 4 * TABLE_BYTES * plan.heads,
            "planes": plan.planes,
            "stream": 8 * len(plan.records),
            "starts": 8 * (plan.entries // ENTRIES_EACH),
            "blocks": 8 * plan.blocks,
            "entries": 4 * plan.entries,
            "weights": 4 * output.weights,
        }
        return zeroed, fixed

    def _launches(self, plan: DecodePlan, output: Output) -> list[tuple[str, int, int]]:
        n = plan.heads
        assert output.blocks_first is not None
        last, chunks = int(output.blocks_first[-1]), int(plan.entropy_first[-1])
        launches = [
            ("jpeg_tables", 4 * n, 128),
            ("jpeg_unstuff", int(plan.unstuff_first[-1]), UNSTUFF_THREADS),
            ("jpeg_states", chunks if plan.unknowns else 0, ENTROPY_THREADS),
            ("jpeg_coefficients", chunks if plan.unknowns else 0, ENTROPY_THREADS),
            ("jpeg_known_coefficients", chunks if len(plan.known) else 0, ENTROPY_THREADS),
            ("jpeg_joints", n if len(plan.known) else 0, 128),
            ("jpeg_dc", n, DC_THREADS),
            ("jpeg_idct", int(plan.idct_first[-1]), IDCT_THREADS),
            ("jpeg_scans", len(plan.records) - n, SCAN_THREADS),
            ("jpeg_dense", int(plan.dense_first[-1]), DENSE_THREADS),
            ("jpeg_four", FOUR_BLOCKS * len(plan.fours), FOUR_THREADS),
        ]
        if output.pixels is not None:
            launches.append(("jpeg_pixels", last, PIXEL_THREADS))
        if output.resize is not None:
            launches.append(("jpeg_weights", 2 * len(plan), 128))
            launches.append(("jpeg_resize", last, output.threads))
            if output.strips_first is not None:
                launches.append(("jpeg_strips", int(output.strips_first[-1]), 32))
        return launches


@cache
def source_text() -> str:
    """Return the CUDA source of all kernels as one text, with each included file inserted once. CuPy caches binaries by
    this text, so that a change of any file takes effect."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        lines = (SOURCES / name).read_text().splitlines()
        parts = [
            expand(line.split('"')[1]) if line.startswith('#include "') else line
            for line in lines
            if line.strip() != "#pragma once"
        ]
        return "\n".join(parts)

    return expand(ENTRY_SOURCE)
