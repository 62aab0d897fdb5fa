"""The planners of ops/*_plan_cpu.py, written with NumPy: the reference of their tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_run.ops.batch import I32, I64
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg.cuda import (
    FLOAT32,
    GRAY,
    PIXEL_CHUNK,
    PIXEL_SPAN,
    PIXEL_THREADS,
    PIXELS,
    RESIZE,
    RESIZE_THREADS,
    RGB,
    Output,
    oriented,
)  # fmt: skip
from dali_run.ops.copies.windows import integers, round_half_away
from dali_run.ops.images.resampling import resample
from dali_run.ops.images.resampling.resample import _KINDS, _WIDTH, F32, GAUSSIAN, ResamplePlan
from dali_run.ops.images.resize import Mode

_FARTHEST = 1e6


def plan(lo: F32, hi: F32, size: I64, shrink: I64, enlarge: I64, antialias: bool) -> ResamplePlan:
    """Return a resampling plan for regions [``lo``, ``hi``) that become ``size`` pixels, all [N, A]. ``shrink`` and
    ``enlarge`` [N] are the DALIInterpType of axes that lose pixels and of the others. ``antialias`` widens the filter
    with the scale if pixels are lost, as DALI does; NEAREST is never widened."""
    extent = np.abs(hi - lo)
    less = size < extent
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(less & antialias, extent / np.maximum(size, 1).astype(np.float32), np.float32(1))
    interp = np.where(less, shrink[:, None], enlarge[:, None])
    kind = _KINDS[interp]
    width = _WIDTH[kind]
    if (kind == GAUSSIAN).any():
        # DALI computes sigma in float32: the last digit decides whether one more pixel is read
        sigma = (scale * np.float32(0.5) / np.sqrt(2)).astype(np.float32)
        scale = np.where(kind == GAUSSIAN, np.float32(4 * np.sqrt(2)) * sigma / 2, scale)
    support = np.maximum(1, width * scale)
    flip = np.zeros(size.shape, np.bool_)
    found = ResamplePlan(lo, hi, size, kind, support, np.zeros_like(size), size, flip, np.zeros(len(size), np.bool_))
    return replace(found, across=columns_first(found))


def fit(
    wanted: F32, lo: F32, hi: F32, extents: I64, mode: Mode, limit: F32 | None, subpixel: bool
) -> tuple[F32, F32, I64]:
    """Return the source regions and output sizes [N, A] for ``wanted`` sizes of the regions [``lo``, ``hi``). DALI
    2.4's rules and arithmetic: 0 is a size that follows from the others by ``mode``, negative ones and reversed regions
    flip, sizes are rounded half away from zero to at least 1, and ``subpixel`` grows or shrinks the region around its
    centre if rounding changed the scale."""
    reverse = hi < lo
    lo, hi = np.where(reverse, hi, lo), np.where(reverse, lo, hi)
    size = _complete(np.where(reverse, -wanted, wanted), hi - lo, mode, limit)
    pixels = np.abs(size)
    rounded = np.floor(pixels.astype(np.float64) + 0.5)
    rounded = np.clip(rounded, np.where((extents == 0).any(axis=1), 0, 1)[:, None], 2.0**31 - 1)
    flip = size < 0
    lo, hi = np.where(flip, hi, lo), np.where(flip, lo, hi)
    if subpixel:
        with np.errstate(divide="ignore", invalid="ignore"):
            adjustment = np.clip(rounded / pixels, -10, 10)
        centre = (lo + hi).astype(np.float64) * 0.5
        adjust = (rounded != pixels) & (pixels > 0)
        lo = np.where(adjust, centre + (lo - centre) * adjustment, lo)
        hi = np.where(adjust, centre + (hi - centre) * adjustment, hi)
    reach = extents + _FARTHEST
    lo, hi = np.clip(lo, -_FARTHEST, reach), np.clip(hi, -_FARTHEST, reach)
    return lo.astype(np.float32), hi.astype(np.float32), rounded.astype(np.int64)


def _complete(wanted: F32, extent: F32, mode: Mode, limit: F32 | None) -> F32:
    """Return ``wanted`` with zeros filled in and limits applied, for regions of ``extent`` pixels, all [N, A]."""
    known = (wanted != 0) & (extent != 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(extent != 0, wanted / extent, np.float32(1)).astype(np.float64)
    count = known.sum(axis=1, keepdims=True)
    if mode in ("default", "stretch"):
        product = np.prod(np.abs(np.where(known, scale, 1)), axis=1, keepdims=True)
        mean = product ** (1 / np.maximum(count, 1)) if mode == "default" else 1.0
        size = np.where(known, wanted, (extent * mean).astype(np.float32))
        if limit is not None:
            size = np.where((limit > 0) & (np.abs(size) > limit), np.copysign(limit, size), size)
    else:
        pick = np.max if mode == "not_smaller" else np.min
        worst = 0 if mode == "not_smaller" else np.inf
        final = pick(np.where(known, np.abs(scale), worst), axis=1, keepdims=True)
        if limit is not None:
            with np.errstate(divide="ignore"):
                most = np.where(limit > 0, limit / extent.astype(np.float64), np.inf)
            final = np.minimum(final, most.min(axis=1, keepdims=True))
        final = np.where(count > 0, final, 1.0)
        keep = known & (np.abs(scale) == final)
        size = np.where(keep, wanted, (extent * np.copysign(final, scale)).astype(np.float32))
    return np.where(count > 0, size, extent).astype(np.float32)


def _firsts(counts: NDArray[Any]) -> NDArray[np.int32]:
    """Return the exclusive cumulative sums of ``counts``, followed by the total."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


def _starts(counts: NDArray[Any]) -> I64:
    return np.asarray(np.cumsum(counts, dtype=np.int64) - counts, np.int64)


def pixel_output(
    plan: jpeg_gpu.DecodePlan, output_type: int = RGB, windows: I32 | None = None, orient: bool = True,
    offsets: I64 | None = None,
) -> Output:  # fmt: skip
    """Return an output plan for images as interleaved bytes (HWC), upright. ``windows``: x0, y0, x1, y1 in the upright
    image; default: all of it. ``offsets``: offset of each image in the output; default: packed."""
    images = plan.images
    flip_x, flip_y, swap = oriented(plan.orientation if orient else np.ones(len(plan), np.int32))
    width, height = images["width"], images["height"]
    shown_w, shown_h = np.where(swap, height, width), np.where(swap, width, height)
    if windows is None:
        x0, y0, x1, y1 = np.zeros_like(shown_w), np.zeros_like(shown_h), shown_w, shown_h
    else:
        x0, y0, x1, y1 = windows.T
        x0, y0 = np.clip(x0, 0, shown_w), np.clip(y0, 0, shown_h)
        x1, y1 = np.clip(x1, x0, shown_w), np.clip(y1, y0, shown_h)
    go = plan.status == 0
    rows = np.empty(len(plan), PIXELS)
    rows["width"], rows["height"] = np.where(go, x1 - x0, 0), np.where(go, y1 - y0, 0)
    stored_x0, stored_y0 = np.where(swap, y0, x0), np.where(swap, x0, y0)
    sign_x, sign_y = np.where(flip_x, -1, 1), np.where(flip_y, -1, 1)
    rows["x"] = np.where(flip_x, width - 1 - stored_x0, stored_x0)
    rows["y"] = np.where(flip_y, height - 1 - stored_y0, stored_y0)
    rows["step_x_x"], rows["step_y_x"] = np.where(swap, 0, sign_x), np.where(swap, sign_x, 0)
    rows["step_x_y"], rows["step_y_y"] = np.where(swap, sign_y, 0), np.where(swap, 0, sign_y)
    sizes = rows["width"].astype(np.int64) * rows["height"] * (1 if output_type == GRAY else 3)
    rows["out"] = _starts(sizes) if offsets is None else offsets
    return Output(
        shapes=np.stack([rows["height"], rows["width"]], 1),
        offsets=rows["out"],
        elements=int(sizes.sum()) if offsets is None else int((rows["out"] + sizes).max(initial=0)),
        output_type=output_type,
        pixels=rows,
        blocks_first=_firsts(_pixel_blocks(rows)),
    )


def _pixel_blocks(rows: NDArray[Any]) -> I64:
    """Return the thread blocks of the pixel kernel: a warp takes a span of two rows, or, if the image is rotated or
    mirrored, a thread takes some pixels."""
    width, height = rows["width"].astype(np.int64), rows["height"].astype(np.int64)
    spans = _ceil(width + (rows["x"] & 3), PIXEL_SPAN) * ((height + (rows["y"] & 1) + 1) // 2)
    upright = (rows["step_x_x"] == 1) & (rows["step_y_y"] == 1)
    blocks = np.where(upright, _ceil(spans, PIXEL_THREADS // 32), _ceil(width * height, PIXEL_CHUNK))
    return np.where(width * height > 0, blocks, 0)


def resize_output(
    plan: jpeg_gpu.DecodePlan,
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
    """Return an output plan that resizes, crops, mirrors and normalises: scale * (value - mean) / std + shift, like
    crop_mirror_normalize. ``sampling`` has the axes (H, W) of the upright images. ``domain`` [N, 2, 2]: begin and end
    of the source samples that may be read, per axis; outside, the border sample is used; default: the image."""
    n, images = len(plan), plan.images
    channels = 1 if output_type == GRAY else 3
    flip_x, flip_y, swap = oriented(plan.orientation if orient else np.ones(n, np.int32))
    stored = np.stack([images["height"], images["width"]], 1).astype(np.int64)
    shown = np.where(swap[:, None], stored[:, ::-1], stored)
    begin, end = (np.zeros_like(shown), shown) if domain is None else (domain[:, :, 0], domain[:, :, 1])
    flip = sampling.flip if mirror is None else sampling.flip ^ np.stack([np.zeros(n, bool), mirror.astype(bool)], 1)
    shape = np.where((plan.status == 0)[:, None], sampling.shape, 0)
    out_h, out_w = sampling.shape.astype(np.int64).T
    sizes = out_w * out_h * channels
    base = _starts(sizes)
    if layout == "CHW":
        stride, stride_c = np.stack([out_w, np.ones(n, np.int64)], 1), out_w * out_h
    else:
        stride, stride_c = np.stack([out_w * channels, np.full(n, channels)], 1), np.ones(n, np.int64)
    columns = {
        "lo": sampling.lo, "hi": sampling.hi, "size": sampling.size, "first": sampling.anchor, "count": shape,
        "kind": sampling.kind, "support": sampling.support, "begin": begin, "end": end, "flip": flip, "stride": stride,
        "from": sampling.lo if domain is None else sampling.lo - begin.astype(np.float32), "origin": begin,
        "step": (sampling.hi - sampling.lo) / sampling.size.astype(np.float32), "outputs": sampling.size,
        "stepwise": np.tile([True, False], (n, 1)), "turns": np.zeros((n, 2), bool), "width": sampling.hi - sampling.lo,
    }  # fmt: skip
    # The stored rows of an image rotated by 90 degrees are the upright image's columns, and vice versa.
    axes = {name: np.where(swap[:, None], a[:, ::-1], a) for name, a in columns.items()}
    _ascending(axes, axes["hi"] < axes["lo"], 0)
    _ascending(axes, np.stack([flip_y, flip_x], 1), stored)

    rows = np.zeros(n, RESIZE)
    last = np.maximum(axes["count"] - 1, 0) * axes["stride"]
    rows["out"] = base + np.where(axes["flip"], last, 0).sum(1)
    rows["stride_c"], rows["image"] = stride_c, np.arange(n)
    axis = rows["axis"][:, ::-1]  # x, y -> H, W
    kind = axes["kind"].astype(np.int64)
    axis["stride"] = np.where(axes["flip"], -axes["stride"], axes["stride"])
    backwards = np.stack([flip_y, flip_x], 1)
    corner = np.floor(np.minimum(axes["from"], axes["from"] + axes["width"]))
    axis["lo"], axis["scale"] = axes["from"], axes["step"]
    axis["corner"] = np.clip(corner, 0, axes["end"] - axes["begin"])
    axis["base"] = np.where(backwards, stored - 1 - axes["origin"], axes["origin"])
    axis["step"] = np.where(axes["turns"], -1, 1)
    axis["first"] = np.where(axes["turns"], axes["outputs"] - 1 - axes["first"], axes["first"])
    for name in ("count", "support", "begin", "end", "stepwise"):
        axis[name] = axes[name]
    axis["flip"] = backwards
    axis["table"] = np.where(kind == resample.NEAREST, -1, resample.TABLE_START[kind])
    axis["table_last"] = resample.TABLE_SIZE[kind] - 1
    taps = np.where(kind == resample.NEAREST, 1, np.maximum(1, np.ceil(axes["support"]))).astype(np.int64)
    axis["taps"] = taps
    weights = (taps + 1) * axes["count"]
    axis["weights"] = _starts(weights.reshape(-1)).reshape(n, 2)
    mul = tuple(scale / std[c % len(std)] for c in range(4))
    widest = max(int(axes["count"][:, 1].max(initial=1)), 1)
    return Output(
        shapes=sampling.shape.astype(np.int32),
        offsets=base,
        elements=int(sizes.sum()),
        dtype=dtype,
        output_type=output_type,
        resize=rows,
        weights=int(weights.sum()),
        windows=source_windows(axes),
        threads=_ceil(_ceil(widest, _ceil(widest, RESIZE_THREADS)), 32) * 32,
        round_to_uint8=round_to_uint8,
        mul=mul,
        add=tuple(shift - mean[c % len(mean)] * mul[c] for c in range(4)),
    )


def _ascending(axes: dict[str, NDArray[Any]], where: NDArray[np.bool_], extent: I64 | int) -> None:
    """For the selected axes, count source samples from the other end (of an image with ``extent`` of them), or, with 0,
    reverse a region that runs backwards. Outputs then come in reverse order, which their stride compensates."""
    lo, hi = axes["lo"], axes["hi"]
    turned = {
        "lo": hi if isinstance(extent, int) else extent - hi,
        "hi": lo if isinstance(extent, int) else extent - lo,
        "first": axes["size"] - axes["first"] - axes["count"],
        "flip": ~axes["flip"],
        "turns": ~axes["turns"],
    }
    if not isinstance(extent, int):
        turned |= {"begin": extent - axes["end"], "end": extent - axes["begin"]}
    for name, value in turned.items():
        axes[name] = np.where(where, value, axes[name]).astype(axes[name].dtype)


def source_windows(axes: dict[str, NDArray[Any]]) -> I32:
    """Return the windows of stored pixels that a resize reads, for ``limit``: only their blocks are computed."""
    half = axes["support"] / 2
    scale = (axes["hi"] - axes["lo"]).astype(np.float32) / axes["size"].astype(np.float32)
    low = axes["lo"] + (axes["first"] + 0.5) * scale - half - 1
    high = axes["lo"] + (axes["first"] + np.maximum(axes["count"], 1) - 0.5) * scale + half + 2
    begin = np.clip(np.floor(low), axes["begin"], axes["end"] - 1)[:, ::-1]  # x, y
    end = np.clip(np.ceil(high), axes["begin"] + 1, axes["end"])[:, ::-1]
    return np.concatenate([begin, end], 1).astype(np.int32)


def resize_tiles(output: Output) -> I32:
    assert output.resize is not None
    axis = output.resize["axis"]
    wide = np.where(axis[:, 0]["tile"] > 0, axis[:, 0]["tile"], output.threads)
    tiles = _ceil(axis[:, 0]["count"], wide) * _ceil(axis[:, 1]["count"], np.maximum(axis[:, 1]["tile"], 1))
    return _firsts(np.where(axis[:, 0]["count"] > 0, tiles, 0))


def place(position: NDArray[Any], extent: I64, size: I64, rounding: str = "round") -> I64:
    """Return the start of a window of ``size``: ``position`` (0..1, float32) times the remaining length of ``extent``.
    ``rounding`` is "round" (halves away from zero), "even" (halves to even, as in Python) or "truncate". The product is
    computed in float64, as in DALI's crop: 0.7 of 5 is 3.4999999 and starts at 3."""
    start = position.astype(np.float64) * (extent - size)
    if rounding == "even":
        return integers(np.rint(start))
    return integers(start) if rounding == "truncate" else round_half_away(start)


def bounded(plan: ResamplePlan, shapes: I64, before: NDArray[Any], first: int) -> NDArray[np.float64]:
    """Return the number of elements that `resample.bounded` compares with the size of the largest allowed sample."""
    count = plan.size.shape[1]
    frames = np.prod(before[:, :first], axis=1, dtype=np.int64)
    channels = np.prod(before[:, first + count :], axis=1, dtype=np.int64)
    extents = before[:, first : first + count].astype(np.float64)
    made = plan.shape.astype(np.float64)
    between = np.where(columns_first(plan), extents[:, -2] * made[:, -1], made[:, -2] * extents[:, -1])
    if made.shape[1] == 3:
        between = made[:, 0] * np.maximum(between, extents[:, 1] * extents[:, 2])
    elements: NDArray[np.float64] = np.maximum(shapes.astype(np.float64).prod(axis=1), between * frames * channels)
    return elements


def columns_first(plan: ResamplePlan) -> NDArray[np.bool_]:
    """Return whether the horizontal pass comes first, bool[N]."""
    height, width = np.abs(plan.hi - plan.lo).astype(np.float64)[:, -2:].T
    taps_y, taps_x = np.maximum(1, plan.support)[:, -2:].T
    rows, columns = plan.size[:, -2:].T
    mask: NDArray[np.bool_]
    mask = columns * (5 * height * taps_x + rows * taps_y) < rows * (width * taps_y + 5 * columns * taps_x)
    return mask
