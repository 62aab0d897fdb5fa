"""Runs the steps of a call: batches in chunks on all cores, a chunk through all its steps while it is cached."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..ops.augment.torchvision import Torchvision
from ..ops.base import Operator
from ..ops.batch import Batch, Samples, concat, host_empty
from ..ops.context import Context
from ..ops.errors import SpecError
from ..ops.images.resize import Resize
from ..ops.kernels import Kernels
from ..pipelines.cores import usable_cores
from . import floats, pillow
from .images import Images
from .steps import APART, CONVERSIONS, Done, Shape, after, encode, table

_kernels: Any = Kernels("..ops.augment.torchvision_cpu", __package__)

_CHUNK = 8
"""Most images of a chunk."""
_STEPS = Torchvision(per_sample=frozenset({"codes", "numbers"}))

Encoded = list[tuple[int, tuple[float, ...]]]


_SPARE: list[npt.NDArray[np.uint8]] = []
"""Memory of results that the program has let go: a fresh page costs more than what most transforms do to it."""
_SPARES, _WORTH = 2, 1 << 20


class _Lease:
    """Memory of one result. It comes back when the last array or tensor over it is gone."""

    def __init__(self, size: int) -> None:
        fits = [k for k, spare in enumerate(list(_SPARE)) if size <= len(spare) <= 2 * size]
        try:
            self._memory = _SPARE.pop(fits[0]) if fits else host_empty(size, np.uint8)
        except IndexError:  # another thread was quicker
            self._memory = host_empty(size, np.uint8)
        if len(self._memory) < size:
            self._memory = host_empty(size, np.uint8)
        self.__array_interface__ = {**self._memory.__array_interface__, "shape": (size,)}

    def __del__(self) -> None:
        _SPARE.append(self._memory)
        if len(_SPARE) > _SPARES:
            del _SPARE[0]


def _memory(n: int, dtype: Any) -> npt.NDArray[Any]:
    """``n`` elements for a result."""
    size = n * np.dtype(dtype).itemsize
    if size < _WORTH:
        return host_empty(n, dtype)
    leased: npt.NDArray[Any] = np.asarray(_Lease(size)).view(dtype)
    return leased


class _Plan:
    """The steps of one image between conversions: runs of `torchvision`'s steps, and those that are done apart."""

    __slots__ = ("apart", "runs", "shape")

    def __init__(self, steps: Sequence[Done], shape: Shape) -> None:
        self.runs: list[list[tuple[Done, Shape]]] = [[]]
        self.apart: list[Done] = []
        for step in steps:
            if step[0] in APART:
                self.apart.append(step)
                self.runs.append([])
            else:
                self.runs[-1].append((step, shape))
            shape = after(step, shape)
        self.shape = shape


@lru_cache(16)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="transforms")


def run(images: Images, programs: list[list[Done]], threads: int | None = None) -> Any:
    """The results of ``programs``, the steps of each image."""
    count = usable_cores() if threads is None else threads
    pictures, batch, shapes = images.pictures, images.batch, images.shapes
    while True:
        cuts = [next((k for k, s in enumerate(p) if s[0] in CONVERSIONS), len(p)) for p in programs]
        now = [p[:k] for p, k in zip(programs, cuts, strict=True)]
        if pictures is not None:
            pictures = _in_parts(lambda some: [_picture(p, s) for p, s in some],
                                 list(zip(pictures, now, strict=True)), count)  # fmt: skip
        else:
            assert batch is not None
            batch, shapes = _tensors(batch, shapes, now, count)
        rest = [p[k:] for p, k in zip(programs, cuts, strict=True)]
        if not any(rest):
            done: Any = pictures if batch is None else batch
            return images.finish(done)
        if not all(rest):
            raise ValueError("conversions between images and tensors must be done to all images of a call, or to none")
        kinds = {p[0] for p in rest}
        if len(kinds) > 1:
            raise ValueError("all images of a call must be converted in the same way")
        kind, *how = kinds.pop()
        if kind == "to_image" and pictures is not None:
            arrays = [pillow.array(p) for p in pictures]
            batch, pictures = Batch.from_list(arrays, "CHW", Samples.numbered(len(arrays))), None
            shapes = [a.shape for a in arrays]
        elif kind == "to_pil" and batch is not None:
            pictures, batch = [pillow.image(a, *how) for a in batch], None
        programs = [p[1:] for p in rest]


def _in_parts(work: Callable[[list[Any]], list[Any]], items: list[Any], threads: int) -> list[Any]:
    if len(items) == 1 or threads == 1:
        return work(items)
    size = max(1, -(-len(items) // (4 * threads)))
    parts = [items[k : k + size] for k in range(0, len(items), size)]
    return [found for part in _pool(os.getpid(), threads).map(work, parts) for found in part]


def _picture(image: Image.Image, steps: Sequence[Done]) -> Image.Image:
    for step in steps:
        if step[0] in ("gaussian_blur", "permute_channels", "erase"):  # torchvision does these to tensors
            array = pillow.array(image)
            batch, _ = _tensors(Batch.from_dense(array[None], "CHW", Samples.numbered(1)), [array.shape], [[step]], 1)
            image = pillow.image(batch.sample(0), image.mode)
        elif step[0] in APART[1:]:
            raise TypeError(f"{step[0]} takes tensors, got a picture of Pillow's; put ToImage() before it")
        else:
            image = pillow.apply(image, step)
    return image


def _tensors(batch: Batch, shapes: list[Shape], programs: list[list[Done]], threads: int) -> tuple[Batch, list[Shape]]:
    if not any(programs):
        return batch, shapes
    plans = [_Plan(p, s) for p, s in zip(programs, shapes, strict=True)]
    shapes = [p.shape for p in plans]
    ways = [[_way(s) for s in p.apart] for p in plans]
    if any(way != ways[0] for way in ways):
        found = [_chunk(batch.take(slice(i, i + 1)), [p], None) for i, p in enumerate(plans)]
        if len({b.dtype for b in found}) > 1:
            raise ValueError("the images of a call must have one type in the end")
        return concat(found, batch.samples), shapes
    dtype = _dtype(batch.dtype, plans[0].apart)
    extents = np.array(shapes, np.int32).reshape(len(plans), 3)
    out = Batch.allocate(_memory, extents, dtype, "CHW", batch.samples)
    n = len(plans)
    size = n if threads == 1 else min(_CHUNK, max(1, -(-n // (2 * threads))))
    size = min(size, _CHUNK)

    def part(start: int) -> None:
        cut = slice(start, min(start + size, n))
        begin = int(out.offsets[start])
        end = int(out.offsets[cut.stop]) if cut.stop < n else out.data.size
        _chunk(batch.take(cut), plans[cut], out.data[begin:end])

    starts = range(0, n, size)
    if len(starts) == 1 or threads == 1:
        for start in starts:
            part(start)
    else:
        for _ in _pool(os.getpid(), threads).map(part, starts):
            pass
    return out, shapes


def _way(step: Done) -> Done:
    """The traits that images must share for their steps to be done together."""
    return (step[0], *step[7:]) if step[0] == "resize" else step[:1] if step[0] == "erase" else step


def _dtype(dtype: Any, apart: Sequence[Done]) -> Any:
    for step in apart:
        if step[0] == "to_dtype":
            dtype = step[1]
        elif step[0] == "divide":
            dtype = np.dtype(np.float32) if dtype == np.uint8 else dtype
    return dtype


def _chunk(batch: Batch, plans: list[_Plan], out: npt.NDArray[Any] | None) -> Batch:
    """The results of a few images whose steps apart are of the same kinds; in ``out``, where there is one."""
    apart = plans[0].apart
    given = batch
    stages: list[Callable[[Batch, Any], Batch]] = []
    k = 0
    while k <= len(apart):
        runs = [p.runs[k] for p in plans]
        if any(runs):
            stages.append(partial(_steps, runs))
        if k == len(apart):
            break
        mine = [p.apart[k] for p in plans]
        kind = apart[k][0]
        floats_of_bytes = kind == "divide" or (kind == "to_dtype" and apart[k][1] == np.float32 and apart[k][2])
        follows = k + 1 < len(apart) and apart[k + 1][0] == "normalize" and not any(p.runs[k + 1] for p in plans)
        if floats_of_bytes:
            how = apart[k + 1] if follows else None
            stages.append(partial(_to_floats, apart[k], how))
            k += 1 if follows else 0
        elif kind == "resize":
            stages.append(partial(_resized, mine))
        else:
            stages.append(partial(floats.apart, mine))
        k += 1
    for i, stage in enumerate(stages):
        batch = stage(batch, out if i == len(stages) - 1 else None)
    if out is not None and (batch is given or not np.shares_memory(batch.data, out)):
        out[:] = np.concatenate([a.reshape(-1) for a in batch])
    return batch


def _context(op: Operator, batch: Batch, args: dict[str, Any], to: Any) -> Context:
    inputs = {k: Batch.from_dense(v, "", batch.samples) for k, v in args.items()}
    return Context(op, "cpu", batch.samples, inputs, allocate=None if to is None else lambda _n, _dtype: to)


def _done(ctx: Context, result: Batch) -> Batch:
    if ctx.rejects:
        raise ValueError(ctx.rejects[0].message)
    return result


def _steps(runs: list[list[tuple[Done, Shape]]], batch: Batch, to: Any) -> Batch:
    if batch.dtype != np.uint8:
        return floats.steps(batch, runs)
    encoded = [[encode(step, shape) for step, shape in steps] for steps in runs]
    codes, numbers = table(encoded)
    ctx = _context(_STEPS, batch, {"codes": codes, "numbers": numbers.reshape(len(batch), -1)}, to)
    return _done(ctx, _STEPS.cpu(ctx, batch))


def _resized(mine: list[Done], batch: Batch, to: Any) -> Batch:
    interpolation, antialias = mine[0][7:9]
    op = _resize(interpolation, antialias)
    corners = np.array([s[1:7] for s in mine], np.float32)
    args = {"roi_start": corners[:, :2], "roi_end": corners[:, :2] + corners[:, 2:4], "size": corners[:, 4:6]}
    ctx = _context(op, batch, {k: np.ascontiguousarray(v) for k, v in args.items()}, to)
    return _done(ctx, op.cpu(ctx, batch))


@lru_cache(64)
def _resize(interpolation: str, antialias: bool) -> Resize:
    per_sample = frozenset({"roi_start", "roi_end", "size"})
    op = Resize(parity="torchvision", interpolation=interpolation, antialias=antialias, per_sample=per_sample)
    try:
        op.check()
    except SpecError as e:
        raise ValueError(f"resize of tensors: {e}") from None
    return op


def _to_floats(step: Done, normalize: Done | None, batch: Batch, to: Any) -> Batch:
    if batch.dtype != np.uint8:
        batch = floats.apart([step] * len(batch), batch, None)
        return batch if normalize is None else floats.apart([normalize] * len(batch), batch, to)
    none = np.empty(0, np.float32)
    mean, std = (none, none) if normalize is None else floats.statistics(normalize, batch.shapes)
    data = host_empty(int(batch.sizes.sum()), np.float32) if to is None else to
    out = Batch.allocate(lambda _n, _dtype: data, batch.shapes, np.float32, batch.layout, batch.samples)
    pixels = batch.shapes[:, 1].astype(np.int64) * batch.shapes[:, 2]
    channels = batch.shapes[:, 0].astype(np.int64)
    _kernels.to_floats(batch.data, np.ascontiguousarray(batch.offsets), channels, pixels, step[0] == "divide", mean,
                       std, out.data, out.offsets)  # fmt: skip
    return out
