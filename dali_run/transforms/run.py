"""Runs the steps of a call. Threads on all cores take chunks of the batch; a chunk goes through all its steps while it
is in the cache."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..ops.batch import I32, I64, Batch, Samples, concat, elements, host_empty
from ..ops.context import Context
from ..ops.errors import SpecError
from ..ops.gpu.launch_recording import recordings_of
from ..ops.images.resampling.libraries import plan_of_windows
from ..ops.images.resampling.resample import bounded, preset, preset_on_gpu
from ..ops.images.resize import Resize
from ..ops.kernels import Kernels
from ..ops.libraries import torchvision_on_gpu
from ..ops.libraries.torchvision import outline, problems
from ..pipelines.cores import usable_cores
from . import floats, pillow
from .images import Images
from .on_gpu import Gpu
from .steps import CONVERSIONS, SEPARATE_KINDS, Alike, Done, Resizes, Shape, after, encode, table

_kernels: Any = Kernels("..ops.libraries.torchvision_cpu", __package__)

_CHUNK = 8
"""Largest number of images in a chunk."""
_SPARE: list[npt.NDArray[np.uint8]] = []
"""Memory of results that the program no longer uses. It is used again, because fresh pages cost more time than most
transforms."""
_SPARES, _WORTH = 2, 1 << 20
_FLIPS: list[list[Done]] = [[("horizontal_flip",)], [("vertical_flip",)]]


class _Lease:
    """Memory of one result. It is added to ``_SPARE`` when the last array or tensor that views it is deleted."""

    def __init__(self, size: int) -> None:
        fits = [k for k, spare in enumerate(list(_SPARE)) if size <= len(spare) <= 2 * size]
        try:
            self._memory = _SPARE.pop(fits[0]) if fits else host_empty(size, np.uint8)
        except IndexError:  # another thread took it first
            self._memory = host_empty(size, np.uint8)
        if len(self._memory) < size:
            self._memory = host_empty(size, np.uint8)
        self.__array_interface__ = {**self._memory.__array_interface__, "shape": (size,)}

    def __del__(self) -> None:
        _SPARE.append(self._memory)
        if len(_SPARE) > _SPARES:
            del _SPARE[0]


def _memory(n: int, dtype: Any) -> npt.NDArray[Any]:
    """Return an array of ``n`` elements for a result."""
    size = n * np.dtype(dtype).itemsize
    if size < _WORTH:
        return host_empty(n, dtype)
    leased: npt.NDArray[Any] = np.asarray(_Lease(size)).view(dtype)
    return leased


class _Plan:
    """The steps of one image until it is converted between Pillow image and tensor: runs of steps for the operator
    `torchvision`, and separate steps, such as resizing, between the runs."""

    __slots__ = ("key", "runs", "separate", "shape")

    def __init__(self, steps: Sequence[Done], shape: Shape, key: Any) -> None:
        self.key = key
        """The shape and the steps, which identify the plan; None if a step holds an array."""
        self.runs: list[list[tuple[Done, Shape]]] = [[]]
        self.separate: list[Done] = []
        for step in steps:
            if step[0] in SEPARATE_KINDS:
                self.separate.append(step)
                self.runs.append([])
            else:
                self.runs[-1].append((step, shape))
            shape = after(step, shape)
        self.shape = shape


def _plans(programs: Sequence[Sequence[Done]], shapes: Sequence[Shape]) -> list[_Plan]:
    """Return the plan of each image. Images with the same steps and shape share one."""
    known: dict[Any, _Plan] = {}
    plans_by_id: dict[tuple[int, int], _Plan] = {}  # keys are ids: the lists and tuples exist during the whole call
    plans: list[_Plan] = []
    for program, shape in zip(programs, shapes, strict=True):
        plan = plans_by_id.get((id(program), id(shape)))
        if plan is not None:
            plans.append(plan)
            continue
        key: Any = (shape, *program)
        try:
            plan = known.get(key) or known.setdefault(key, _Plan(program, shape, key))
        except TypeError:  # a step that holds an array
            plan = _Plan(program, shape, None)
        plans_by_id[id(program), id(shape)] = plan
        plans.append(plan)
    return plans


@lru_cache(16)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="transforms")


@lru_cache(4)
def _cores(_process: int) -> int:
    return usable_cores()


def run(images: Images, programs: Sequence[list[Done]], threads: int | None = None, *, drawn: bool = True) -> Any:
    """Return the results of ``programs``, the steps of each image. ``drawn`` says whether the steps hold random
    numbers."""
    count = _cores(os.getpid()) if threads is None else threads
    if not isinstance(programs, Resizes) and all(len(p) == 1 and p[0][0] == "crop" for p in programs):
        views = images.windows([p[0][1:] for p in programs])
        if views is not None:
            return views
    with images.gpu or nullcontext():
        return images.finish(_apply(images, programs, count, drawn))


def _apply(images: Images, programs: Sequence[list[Done]], count: int, drawn: bool) -> list[Image.Image] | Batch:
    pillow_images, batch, shapes, gpu = images.pillow_images, images.batch, images.shapes, images.gpu
    while True:
        now, rest = _at_conversions(programs)
        if pillow_images is not None:
            pillow_images = _in_parts(lambda some: [_apply_to_pillow(p, s) for p, s in some],
                                 list(zip(pillow_images, now, strict=True)), count)  # fmt: skip
        else:
            assert batch is not None
            batch, shapes = _tensors(batch, shapes, now, count, gpu, drawn)
        if not any(rest):
            done: Any = pillow_images if batch is None else batch
            return done  # type: ignore[no-any-return]
        if not all(rest):
            raise ValueError("all images of a call must be converted between images and tensors, or none")
        kinds = {p[0] for p in rest}
        if len(kinds) > 1:
            raise ValueError("all images of a call must be converted in the same way")
        kind, *how = kinds.pop()
        if kind == "to_image" and pillow_images is not None:
            arrays = [pillow.array(p) for p in pillow_images]
            batch, pillow_images = Batch.from_list(arrays, "CHW", Samples.numbered(len(arrays))), None
            shapes = [a.shape for a in arrays]
        elif kind == "to_pil" and batch is not None:
            batch, gpu = batch if gpu is None else gpu.host(batch), None
            pillow_images, batch = [pillow.image(a, *how) for a in batch], None
        programs = [p[1:] for p in rest]


def _at_conversions(programs: Sequence[list[Done]]) -> tuple[Sequence[list[Done]], list[list[Done]]]:
    """Split the steps of each image at its first conversion: the steps before it, and the steps from it on. Images that
    share a list of steps also share its two parts."""
    if isinstance(programs, Resizes):
        return programs, []
    each = programs.each if isinstance(programs, Alike) else {id(p): p for p in programs}.values()
    if not any(step[0] in CONVERSIONS for p in each for step in p):
        return programs, []
    known: dict[int, tuple[list[Done], list[Done]]] = {}
    split = []
    for program in programs:
        parts = known.get(id(program))
        if parts is None:
            cut = next((k for k, s in enumerate(program) if s[0] in CONVERSIONS), len(program))
            parts = known[id(program)] = program[:cut], program[cut:]
        split.append(parts)
    return [now for now, _ in split], [rest for _, rest in split]


def _in_parts(work: Callable[[list[Any]], list[Any]], items: list[Any], threads: int) -> list[Any]:
    if len(items) == 1 or threads == 1:
        return work(items)
    size = max(1, -(-len(items) // (4 * threads)))
    parts = [items[k : k + size] for k in range(0, len(items), size)]
    return [result for part in _pool(os.getpid(), threads).map(work, parts) for result in part]


def _apply_to_pillow(image: Image.Image, steps: Sequence[Done]) -> Image.Image:
    for step in steps:
        if step[0] in ("gaussian_blur", "permute_channels", "erase"):  # torchvision applies these to tensors
            array = pillow.array(image)
            batch, _ = _tensors(Batch.from_dense(array[None], "CHW", Samples.numbered(1)), [array.shape], [[step]], 1)
            image = pillow.image(batch.sample(0), image.mode)
        elif step[0] in SEPARATE_KINDS[1:]:
            raise TypeError(f"{step[0]} takes tensors, got a Pillow image; put ToImage() before it")
        else:
            image = pillow.apply(image, step)
    return image


def _tensors(
    batch: Batch,
    shapes: list[Shape],
    programs: Sequence[list[Done]],
    threads: int,
    gpu: Gpu | None = None,
    drawn: bool = True,
) -> tuple[Batch, list[Shape]]:
    if isinstance(programs, Resizes):
        stage = _Resized(programs.numbers, *programs.how, None, batch.shapes, batch.dtype, batch.samples)
        after_ = shapes[0][0], *programs.numbers[0, 4:].tolist()
        return _run_stages([stage], batch, threads, gpu), [after_] * len(shapes)
    if not any(programs):
        return batch, shapes
    if isinstance(programs, Alike):
        small = math.prod(shapes[0]) < 1 << 31
        if gpu is not None and small and batch.dtype == np.uint8 and programs.each[1] in _FLIPS:
            out = Batch.allocate(gpu.empty, batch.shapes, batch.dtype, "CHW", batch.samples)
            torchvision_on_gpu.flips(gpu.lane, batch, programs.which, programs.each[1] == _FLIPS[1], out)
            return out, shapes
        pair = [_Plan(p, shapes[0], None) for p in programs.each]
        if pair[0].shape == pair[1].shape and not pair[1].separate:
            return _run_plans(batch, pair, programs.which.astype(np.int64), threads, gpu), [pair[0].shape] * len(shapes)
    plans = _plans(programs, shapes)
    shapes = [p.shape for p in plans]
    number = {id(p): k for k, p in enumerate({id(p): p for p in plans}.values())}
    which = np.array([number[id(p)] for p in plans])
    each = list({id(p): p for p in plans}.values())
    if len(each) > 1 and len({tuple(map(_shared_traits, p.separate)) for p in each}) > 1:
        results = [
            _run_plans(batch.take(slice(i, i + 1)), [p], np.zeros(1, np.int64), 1, gpu) for i, p in enumerate(plans)
        ]
        if len({b.dtype for b in results}) > 1:
            raise ValueError("the results of all images of a call must have one type")
        return concat(results, batch.samples, None if gpu is None else gpu.empty), shapes
    if gpu is not None and not drawn and len(each) == 1 and each[0].key is not None:
        return _replay(gpu, batch, each[0]), shapes
    return _run_plans(batch, each, which, threads, gpu), shapes


def _replay(gpu: Gpu, batch: Batch, plan: _Plan) -> Batch:
    """Apply the steps in ``plan`` to all images on the GPU and return the results. If an earlier call had images of
    these shapes, its recorded kernel launches are repeated."""
    everything, lane = np.zeros(len(batch), np.int64), gpu.lane

    def launch(where: Any) -> tuple[list[Batch], bool]:
        gpu.lane = where
        try:
            return [_run_on_gpu(gpu, batch, _stages(batch, [plan], everything), where.empty)], True
        finally:
            gpu.lane = lane

    return recordings_of(lane).run(_Memory(gpu), plan.key, [batch], batch.samples, launch, None)[0]


class _Memory:
    """The lane of ``gpu``, which allocates memory that can become a PyTorch tensor."""

    def __init__(self, gpu: Gpu) -> None:
        self._lane, self.empty = gpu.lane, gpu.empty

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)


def _run_on_gpu(gpu: Gpu, batch: Batch, stages: list[_Stage], last: Callable[[int, Any], Any]) -> Batch:
    """Run ``stages`` on the GPU and return the results. ``last`` allocates the memory for them."""
    for stage in stages:
        empty = last if stage is stages[-1] else gpu.lane.empty
        out = Batch.allocate(empty, stage.shapes, stage.dtype, "CHW", batch.samples)
        stage.on_gpu(gpu, batch, out)
        batch = out
    return batch


def _run_plans(batch: Batch, each: list[_Plan], which: I64, threads: int, gpu: Gpu | None) -> Batch:
    """Return the results for images that have separate steps of the same kinds. Image i has plan ``each[which[i]]``."""
    return _run_stages(_stages(batch, each, which), batch, threads, gpu)


def _run_stages(stages: list[_Stage], batch: Batch, threads: int, gpu: Gpu | None) -> Batch:
    """Run ``stages`` and return the results. Each chunk of images goes through all stages."""
    if not stages:
        return batch
    if gpu is not None:
        return _run_on_gpu(gpu, batch, stages, gpu.empty)
    last = stages[-1]
    out = Batch.allocate(_memory, last.shapes, last.dtype, "CHW", batch.samples)
    n, starts = len(batch), np.ascontiguousarray(batch.offsets)
    size = n if n == 1 else max(1, min(_CHUNK, n // (2 * threads)))
    parts = iter(range(0, n, size))  # each thread takes the next chunk from it

    def work() -> None:
        for start in parts:
            cut = slice(start, min(start + size, n))
            data, offsets = batch.data, starts[cut]
            for stage in stages[:-1]:
                sizes = elements(stage.shapes[cut])
                places = sizes.cumsum() - sizes
                chunk = host_empty(int(sizes.sum()), stage.dtype)
                stage.run(cut, data, offsets, chunk, places)
                data, offsets = chunk, places
            last.run(cut, data, offsets, out.data, out.offsets[cut])

    helpers = min(threads, -(-n // size)) - 1
    waiting = [_pool(os.getpid(), threads).submit(work) for _ in range(helpers)]
    work()
    for one in waiting:
        one.result()
    return out


def _shared_traits(step: Done) -> Done:
    """Return the part of a step that must be equal for images whose steps run together."""
    return (step[0], *step[7:]) if step[0] == "resize" else step[:1] if step[0] == "erase" else step


class _Stage:
    """One step, or a run of steps, of all images in a call: planned once, then run on one chunk of images after the
    other."""

    shapes: I32
    """Shapes of the images after the stage, int32[N, 3]."""
    dtype: np.dtype[Any]

    def run(self, cut: slice, data: Any, offsets: I64, out: Any, places: I64) -> None:
        """Run the stage for the images ``cut``: read image i of them from data[offsets[i]:], write it to
        out[places[i]:]."""
        raise NotImplementedError

    def on_gpu(self, gpu: Gpu, images: Batch, out: Batch) -> None:
        """Run the stage for all images on their GPU. This default copies them to the host and back, for stages without
        a kernel."""
        host, result = gpu.host(images), host_empty(int(out.sizes.sum()), self.dtype)
        self.run(slice(0, len(host)), host.data, np.ascontiguousarray(host.offsets), result, out.offsets)
        out.data[: len(result)] = gpu.lane.to_device(out.replace(data=result)).data


def _stages(batch: Batch, each: list[_Plan], which: I64) -> list[_Stage]:
    """Return the stages for images; image i has plan ``each[which[i]]``."""
    stages: list[_Stage] = []
    shapes, dtype = batch.shapes, batch.dtype
    separate = each[0].separate
    k = taken = 0
    while k <= len(separate):
        runs = [p.runs[k][taken:] for p in each]
        taken = 0
        if any(runs):
            if dtype == np.uint8:
                stages.append(_Steps(runs, which, shapes))
            else:
                stages.append(_Floats(None, [runs[i] for i in which.tolist()], shapes, dtype))
            shapes = stages[-1].shapes
        if k == len(separate):
            break
        kind = separate[k][0]
        follows = k + 1 < len(separate) and separate[k + 1][0] == "normalize" and not any(p.runs[k + 1] for p in each)
        if dtype == np.uint8 and (
            kind == "divide" or (kind == "to_dtype" and separate[k][1] == np.float32 and separate[k][2])
        ):
            stages.append(_FloatsOfBytes(kind == "divide", separate[k + 1] if follows else None, shapes))
            k += 1 if follows else 0
        elif kind == "resize":
            windows = _windows([p.runs[k + 1] for p in each])
            own = None if windows is None else windows[which]
            mine = [p.separate[k] for p in each]
            numbers = np.array([s[1:7] for s in mine])[which]
            interpolation, antialias = mine[0][7:9]
            stages.append(_Resized(numbers, interpolation, antialias, own, shapes, dtype, batch.samples))
            taken = int(windows is not None)
        else:
            stages.append(_Floats([each[i].separate[k] for i in which.tolist()], None, shapes, dtype))
        shapes, dtype = stages[-1].shapes, stages[-1].dtype
        k += 1
    return stages


def _windows(runs: list[list[tuple[Done, Shape]]]) -> I64 | None:
    """Return the windows [N, 4] (top, left, height, width) of crops if every run begins with a crop that lies inside
    the image, otherwise None."""
    windows = []
    for run in runs:
        step, shape = run[0] if run else ((None,), (0, 0, 0))
        if step[0] != "crop":
            return None
        top, left, height, width = step[1:]
        if min(top, left) < 0 or top + height > shape[1] or left + width > shape[2]:
            return None
        windows.append(step[1:])
    return np.array(windows, np.int64)


class _Steps(_Stage):
    """Stage that runs steps of the operator `torchvision`."""

    def __init__(self, runs: list[list[tuple[Done, Shape]]], which: I64, shapes: I32) -> None:
        """``runs[which[i]]`` are the steps of image i."""
        known: dict[Any, Any] = {}
        encoded = []
        for steps in runs:
            for one in steps:
                if one not in known:
                    known[one] = encode(*one)
            encoded.append([known[one] for one in steps])
        codes, numbers = table(encoded)
        self._codes, self._numbers = codes[which], numbers[which]
        self._outline = outline(shapes.astype(np.int64), self._codes, self._numbers)
        for problem in problems(self._outline, self._codes, self._numbers).values():
            raise ValueError(problem)
        self.shapes, self.dtype = self._outline[:, -1].astype(np.int32), np.dtype(np.uint8)

    def run(self, cut: slice, data: Any, offsets: I64, out: Any, places: I64) -> None:
        _kernels.run(data, offsets, self._outline[cut], self._codes[cut], self._numbers[cut], False, out, places)

    def on_gpu(self, gpu: Gpu, images: Batch, out: Batch) -> None:
        torchvision_on_gpu.steps(gpu.lane, images, self._outline, self._codes, self._numbers, False, out)


class _Resized(_Stage):
    """Stage that resizes images, or computes only ``windows`` of the resized images."""

    def __init__(
        self, numbers: npt.NDArray[Any], interpolation: str, antialias: bool, windows: I64 | None, shapes: I32,
        dtype: Any, samples: Samples,
    ) -> None:  # fmt: skip
        """``numbers`` [N, 6] holds for each image the region (top, left, height, width), and the height and width of
        the result."""
        op = _resize(interpolation, antialias)
        begin, extent, size = numbers[:, :2], numbers[:, 2:4], numbers[:, 4:]
        ctx = Context(op, "cpu", samples)
        if numbers.dtype.kind == "i" and begin.min() >= 0 and min(extent.min(), size.min()) > 0 and (
            begin + extent <= shapes[:, 1:]
        ).all():  # fmt: skip
            self._plan = plan_of_windows(interpolation, antialias, begin, extent, size, np.zeros(size.shape, np.bool_))
        else:
            args = {"roi_start": begin, "roi_end": begin + extent, "size": size}
            ctx.args = {k: Batch.from_dense(v.astype(np.float32), "", samples) for k, v in args.items()}
            self._plan = op.plan(ctx, shapes.astype(np.int64), (1, 2))
        if windows is not None:
            self._plan = self._plan.window(windows[:, :2], windows[:, 2:])
        self.shapes, self.dtype, self._before = shapes.copy(), dtype, shapes
        self.shapes[:, 1:] = self._plan.shape
        bounded(ctx, self._plan, self.shapes.astype(np.int64), shapes, 1)
        for problem in ctx.rejects:
            raise ValueError(problem.message)
        self._samples = samples

    def run(self, cut: slice, data: Any, offsets: I64, out: Any, places: I64) -> None:
        samples = self._samples.take(cut)
        before = Batch(data, offsets, self._before[cut], "CHW", samples)
        preset(self._plan.take(cut), before, 1, Batch(out, places, self.shapes[cut], "CHW", samples), None)

    def on_gpu(self, gpu: Gpu, images: Batch, out: Batch) -> None:
        if self.dtype == np.uint8:
            preset_on_gpu(gpu.lane, self._plan, images, 1, out)
        else:
            super().on_gpu(gpu, images, out)


class _FloatsOfBytes(_Stage):
    """Stage that converts bytes to floats of 0 ... 1 and, if ``normalize`` follows, normalizes them."""

    def __init__(self, divide: bool, normalize: Done | None, shapes: I32) -> None:
        none = np.empty(0, np.float32)
        self._mean, self._std = (none, none) if normalize is None else floats.statistics(normalize, shapes)
        self.shapes, self.dtype, self._divide = shapes, np.dtype(np.float32), divide
        self._channels = shapes[:, 0].astype(np.int64)
        self._pixels = shapes[:, 1].astype(np.int64) * shapes[:, 2]

    def run(self, cut: slice, data: Any, offsets: I64, out: Any, places: I64) -> None:
        _kernels.to_floats(
            data, offsets, self._channels[cut], self._pixels[cut], self._divide, self._mean, self._std, out, places
        )

    def on_gpu(self, gpu: Gpu, images: Batch, out: Batch) -> None:
        torchvision_on_gpu.to_floats(gpu.lane, images, self._divide, self._mean, self._std, out)


class _Floats(_Stage):
    """Stage for all other steps, computed by NumPy."""

    def __init__(
        self, separate: list[Done] | None, runs: list[list[tuple[Done, Shape]]] | None, shapes: I32, dtype: Any
    ) -> None:
        self._separate, self._runs, self._before = separate, runs, shapes
        self.shapes, self.dtype = shapes, dtype
        if runs is not None:
            ends = [after(run[-1][0], run[-1][1]) if run else tuple(s) for run, s in zip(runs, shapes, strict=True)]
            self.shapes = np.array(ends, np.int32).reshape(len(runs), 3)
        elif separate is not None and separate[0][0] == "to_dtype":
            self.dtype = np.dtype(separate[0][1])

    def run(self, cut: slice, data: Any, offsets: I64, out: Any, places: I64) -> None:
        for k in range(cut.start, cut.stop):
            i, shape = k - cut.start, self._before[k]
            image = data[offsets[i] : offsets[i] + math.prod(shape.tolist())].reshape(shape)
            if self._runs is None:
                assert self._separate is not None
                image = floats.apply_separate(self._separate[k], image)
            else:
                image = floats.steps([step for step, _ in self._runs[k]], image)
            out[places[i] : places[i] + image.size].reshape(image.shape)[...] = image

    def on_gpu(self, gpu: Gpu, images: Batch, out: Batch) -> None:
        if self._separate is not None and self._separate[0][0] == "erase" and self.dtype in torchvision_on_gpu.ERASABLE:
            windows = np.array([step[1:5] for step in self._separate], np.int64)
            torchvision_on_gpu.erase(gpu.lane, images, windows, [floats.filling(step) for step in self._separate], out)
        else:
            super().on_gpu(gpu, images, out)


@lru_cache(64)
def _resize(interpolation: str, antialias: bool) -> Resize:
    per_sample = frozenset({"roi_start", "roi_end", "size"})
    op = Resize(parity="torchvision", interpolation=interpolation, antialias=antialias, per_sample=per_sample)
    try:
        op.check()
    except SpecError as e:
        raise ValueError(f"resize of tensors: {e}") from None
    return op
