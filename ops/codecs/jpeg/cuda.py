"""JPEG decoding by our own CUDA kernels: what the host plans for a batch, and the launches.

Everything here works on arrays with one row an image; nothing costs Python time per image, and nothing waits for the
device. A batch is one upload of metadata, one memset and a dozen launches on a stream of the caller's:

    tables -> unstuff -> states -> coefficients -> dc -> idct -> pixels | weights, resize, strips
                      -> scans                         -> dense -> four

The second row is for pictures in many scans, progressive ones, and for those of four components.

The sources are in ops/cuda/jpeg_*.cu. The kernels find bad data themselves: ``status`` holds one word an image, 0 where
the picture is right and BAD_... bits where another decoder must look at the file.
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

# Sizes the kernels are compiled with; jpeg_layout reports them.
ENTROPY_THREADS = 256
SUBSEQUENCE_BITS = 4096


def entries_each(subsequence_bits: int) -> int:
    """Entries of a subsequence, as jpeg_stream.cu has it."""
    return subsequence_bits // 4 + 128


ENTRIES_EACH = entries_each(SUBSEQUENCE_BITS)
UNSTUFF_THREADS = 256
UNSTUFF_CHUNK = UNSTUFF_THREADS * 32
DC_THREADS = 512
IDCT_THREADS = 128
IDCT_GROUPS = 128
DENSE_THREADS = 256
FOUR_THREADS = 256
FOUR_BLOCKS = 16  # of a picture
SCAN_THREADS = 32
MOST_LEVELS = 16  # of scans that refine one another: there are 14 bits at most
PIXEL_THREADS = 256
PIXEL_CHUNK = PIXEL_THREADS * 16
PIXEL_SPAN = 508
RESIZE_THREADS = 256
RESIZE_WORK = 1_500_000  # of a block of threads, about, in instructions of one
RESIZE_BLOCKS = 132 * 4  # about as many as a GPU holds at once
RESIZE_SLOTS = 3  # outputs under way at a time
STRIP_COLUMNS = 32  # columns of the output that a warp takes
STRIP_POOL = 3616  # floats of shared memory that it has
STRIP_PERCENT = 100  # pixels for one of the output, from which it does
STRIPS_AT_ONCE = 132 * 12  # about as many as a GPU holds at once
LOOKUP_BITS = 10
PAIR_BITS = 10
NEAR_CODES = 512


def table_bytes(lookup_bits: int, pair_bits: int) -> int:
    """Size of a HuffmanTable: entries alone, in pairs, of longer codes; 16 - lookup_bits longer lengths; symbols."""
    return (4 << lookup_bits) + (4 << pair_bits) + 4 * NEAR_CODES + -(-(8 * (18 - lookup_bits) + 256) // 16) * 16


TABLE_BYTES = table_bytes(LOOKUP_BITS, PAIR_BITS)

_MAX_BLOCKS = 1 << 24  # 64-megapixel 4:4:4 pictures go elsewhere
_MAX_BLOCKS_IN_SCANS = 1 << 20  # and 44-megapixel 4:2:0 ones in many scans, each of which is read from start to end


def _fields(dtype: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, dtype) for name in names.split()]


# The records of jpeg_common.cuh, field by field.
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
"""A `BATCH`: NumPy takes five times as long to write it."""

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]


class Runtime(Protocol):
    """Runs the kernels of one batch after the other, in order: a lane of a GPU, or an emulator in tests."""

    def allocate(self, size: int) -> tuple[Any, int]:
        """Device memory, aligned to 256 bytes: its owner and its address."""

    def stage(self, size: int) -> U8:
        """Uninitialised host memory for one `upload` or `download`."""

    def work(self) -> Work:
        """For what is to be done in order, and begun all at once."""


class Work(Protocol):
    """Work that is begun, at the latest, by `submit`."""

    def upload(self, address: int, data: U8) -> None:
        """Copy memory of `stage` to the device."""

    def download(self, data: U8, address: int) -> None:
        """Copy memory of the device to that of `stage`."""

    def zero(self, address: int, size: int) -> None: ...

    def launch(self, kernel: str, grid: int, threads: int, batch: int) -> None: ...

    def submit(self) -> None: ...


class LaneRuntime:
    """The kernels on a lane of a GPU. They are compiled once a GPU, and CuPy keeps the binary on disk."""

    def __init__(self, lane: Any, defines: str = "") -> None:
        """``defines``: CUDA text before the sources, to compile them with other sizes."""
        kernels = lane.functions(defines + source_text(), (*KERNELS, *_HELPERS))
        self._functions = {name: kernel.ptr for name, kernel in kernels.items()}
        self._kernels = kernels  # a reference to a kernel keeps its module
        self._work = LaneWork(self._functions, lane.work())
        self.allocate, self.stage = lane.allocate, lane.pinned

    def work(self) -> LaneWork:
        self._work.on_lane.cancel()  # of a batch whose planning failed
        return self._work


@dataclass(slots=True)
class LaneWork:
    """The work for a lane."""

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
    """Host memory for what travels to the kernels in one copy: the batch record, then one array after the
    other. They are planned where they travel from, so that nothing is copied together before."""

    def __init__(
        self, stage: Callable[[int], U8], pictures: int, records: int, scans: int = 0, states: int = 0, fours: int = 0
    ) -> None:
        """Room for a plan of so many ``pictures``, and scans of their own besides (``records`` in all, ``scans`` of
        them of pictures that have many), for so many known ``states``, so many pictures of four components (``fours``),
        and for what is made of them."""
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
        """The uninitialised array ``name``; the same memory whenever it is asked for."""
        if name not in self._places:
            self._places[name] = slice(self._end, self._end + n * np.dtype(dtype).itemsize)
            self._end = aligned(self._places[name].stop)
        return self._memory[self._places[name]].view(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._memory.nbytes

    def travelling(self) -> U8:
        """The bytes to upload."""
        return self._memory[: self._end]

    def addresses(self, base: int) -> dict[str, int]:
        """Where every array lies once all was uploaded to address ``base``."""
        return {name: base + place.start for name, place in self._places.items()}


_TRAVELLING = IMAGE.itemsize + 12 * 4
"""Bytes of a record in all arrays of a `Sheet` that have as many rows: status, images, seven exclusive sums, of which
those of the inverse DCTs have three."""
_TRAVELLERS = 15
"""No more arrays than these travel, each to a multiple of 256 bytes."""


def _plain(size: int) -> U8:
    return np.empty(size, np.uint8)


@dataclass
class DecodePlan:
    """The plan for decoding a batch, before any output is chosen. It serves one output at a time."""

    sheet: Sheet
    records: NDArray[Any]  # IMAGE: the pictures, then what those have besides that are not one scan, then streams
    heads: int  # of them are no streams of `scans`
    scans: NDArray[Any]  # SCAN: of pictures that have many, level by level
    levels: I64  # how many of them each level has
    fours: I32  # the records of pictures of four components
    marks: I32  # of each: what is known before the device has seen a byte
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
    """The decoder's states at the subsequences of pictures that were decoded before, one picture after the other: what
    `plan_decode` was told that they are is to be put here."""
    unknowns: int
    """Streams whose states nobody knows."""

    def __len__(self) -> int:
        return len(self.needed)

    @property
    def images(self) -> NDArray[Any]:
        """The records of the pictures."""
        return self.records[: len(self)]

    @property
    def status(self) -> I32:
        """The status words of the pictures."""
        return self.marks[: len(self)]


def _check(blocks: int) -> None:
    """Thread blocks of one launch. Raises ValueError for more than there can be."""
    if blocks >= 1 << 31:
        raise ValueError("the batch is too large for one plan: split it")


def _rows_of(records: NDArray[Any], field: str) -> NDArray[Any]:
    """``records[field]`` [N, K], for loops. A single row, or none, is contiguous for NumPy and would be compiled for
    apart: it is one of two here, which lie in the same place. Loops read no more rows than there are records."""
    rows = records[field]
    if len(rows) > 1:
        return rows
    shape, strides = (2, rows.shape[1]), (0, rows.strides[1])
    if not len(rows):
        return as_strided(rows, shape, strides)
    return np.ndarray(shape, rows.dtype, rows, 0, strides)  # `as_strided` takes 50 us for a record


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
    """Plan a batch of files at ``offsets`` of one buffer.

    ``windows`` (x0, y0, x1, y1 per image, in stored orientation) limits the inverse DCT to the pixels that are needed;
    default: all; with ``limited`` false, the caller does that by `limit`. ``luma_only``: chroma is not needed (gray
    output). ``scans``: the table that the headers point to; without it, pictures in many scans are UNSUPPORTED.
    ``which``: the images to decode, by default all that can be; ``orientation``: that of the headers, or what stands
    for it. ``known``: how many states of each picture are known, which are put into `DecodePlan.known` then.
    ``stage``: as of `Runtime`, where what travels is planned. Raises ValueError where the batch is too large.
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
        images[n:].view(np.uint8)[:] = 0  # scans have one component; a record at a time takes 50 times as long
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
    """Compute only the blocks that hold the windows, and one sample more on each side, which upsampling reads."""
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
    """Exif orientation as (stored x runs backwards, stored y runs backwards, axes are swapped)."""
    flip_x = np.isin(orientation, (2, 3, 7, 8))
    flip_y = np.isin(orientation, (3, 4, 6, 7))
    return flip_x, flip_y, orientation >= 5


@dataclass
class Output:
    """The output to make of the planes: interleaved pixels, or resized and normalised tensors."""

    shapes: I32  # height, width per image, as the user sees them
    offsets: I64  # first element of each
    elements: int
    dtype: int = UINT8
    output_type: int = RGB
    pixels: NDArray[Any] | None = None  # PIXELS
    resize: NDArray[Any] | None = None  # RESIZE
    windows: I32 | None = None  # x0, y0, x1, y1: the stored pixels that a resize reads, for `limit`
    blocks_first: I32 | None = None  # exclusive sums of the thread blocks of the last kernel
    strips_first: I32 | None = None  # the same of pictures that jpeg_strips makes
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
    """The pictures as interleaved bytes (HWC), the right way up. ``windows``: x0, y0, x1, y1 in the picture as it is
    shown; default: all of it. ``offsets``: where each goes in the output; default: packed."""
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
    """Resize, crop, mirror, normalise: scale * (value - mean) / std + shift, as crop_mirror_normalize does.

    ``sampling`` has the axes (H, W) of the pictures as they are shown. ``domain`` [N, 2, 2]: begin and end of
    the source samples that may be read, for each axis; outside, the border sample stands in; default: the picture.
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
    """The factor and the summand of values, for each of four channels: that of every launch, as a rule."""
    mul = [scale / std[c % len(std)] for c in range(4)]
    with np.errstate(over="ignore"):  # to infinity, as on the CPU; `Struct` would refuse it
        wanted = np.array([mul, [shift - mean[c % len(mean)] * mul[c] for c in range(4)]]).astype(np.float32)
    return tuple(tuple(row) for row in wanted.tolist())


_FILTER_TABLES = np.stack([resample.TABLE_START, resample.TABLE_SIZE - 1], axis=1)
_FILTER_TABLES[resample.NEAREST, 0] = -1


@dataclass
class Decoder:
    """The kernels and the fixed tables of one lane."""

    runtime: Runtime

    def __post_init__(self) -> None:
        self.workspace: Any = None
        """Owner of the memory of the last batch. Later work of the lane may have that once it is dropped."""
        self.workspace_bytes = 0
        self.address = 0
        """Where the memory of the last batch begins, with its record."""
        self._filters_owner, self._filters = self.runtime.allocate(resample.TABLE.nbytes)
        staged = self.runtime.stage(resample.TABLE.nbytes)
        staged[:] = resample.TABLE.view(np.uint8)
        work = self.runtime.work()
        work.upload(self._filters, staged)
        work.submit()

    def decode(
        self, raw: int, plan: DecodePlan, output: Output, out: int, trace: Any = None, found: list[U8] | None = None
    ) -> I32:
        """Enqueue a batch: files at address ``raw``, output to address ``out``. Returns the status words, one an image,
        which hold from when the runtime is done with the batch until the decoder is used again. ``trace(name)`` is
        called after each launch, for measurements. ``found`` gets two arrays that hold as long: the states that were
        found, uint64 one a subsequence, and of each record the bytes of its stream and its restart markers (uint32)."""
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
        """Where ``travelling`` bytes from the host go, and the regions of these sizes, ``zeroed`` or as they are.
        Samples take the memory of the streams and tables, unless those are read again for pictures in many scans."""
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
        """Sizes of the memory that starts as zeros, and of the rest."""
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


class ApartDecoder(Decoder):
    """For finding accesses out of bounds: each region is an allocation of its own, so that the next one does not
    follow it. Slow; to be synchronised with between batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._owners: list[Any] = []

    def _place(
        self, work: Work, travelling: int, zeroed: dict[str, int], fixed: dict[str, int]
    ) -> tuple[int, dict[str, int]]:
        self._owners.clear()
        places = {}
        for name, size in ({"": travelling} | zeroed | fixed).items():
            owner, places[name] = self.runtime.allocate(size)
            self._owners.append(owner)
        for name, size in zeroed.items():
            work.zero(places[name], size)
        return places.pop(""), places


@cache
def source_text() -> str:
    """All kernels as one translation unit, every file included once (so that a change of any changes the cache key)."""
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
