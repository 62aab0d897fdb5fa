"""Operators noise.gaussian, noise.salt_and_pepper and noise.shot: random changes of every value, from one stream per
sample."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..errors import SpecError
from ..gpu.launch_recording import changing, fixed
from ..kernels import Kernels
from ..types import DALIDataType

F32 = npt.NDArray[np.float32]

_kernels: Any = Kernels(".noise_cpu", __package__)

_SKIP = 257
"""Number of random draws that are reserved for each element of a sample, as in DALI."""
_THREADS = 256


_EACH = 16
"""Number of elements that a GPU thread of noise.shot computes, as in cuda/noise.cu."""
_LOG_FACTORIALS = np.array([math.lgamma(n + 1) for n in range(512)])


class Noise(Operator, abstract=True):
    """Base class of the operators noise.*: gaussian, salt_and_pepper and shot."""

    random = True
    replayable = True

    def infer(self, *specs: Spec) -> Spec:
        if specs[0].dtype is DALIDataType.BOOL:
            raise SpecError(f"takes numbers, got {specs[0]}; cast them first")
        return specs[0]

    def run(
        self, ctx: Context, data: Batch, kernel: str, counts: I64, arguments: tuple[npt.NDArray[Any], ...], dense: int,
        each: int = 1, device_arrays: tuple[npt.NDArray[Any], ...] = (),
    ) -> Batch:  # fmt: skip
        """Apply ``kernel`` to ``counts`` [N] elements of each sample, with ``arguments`` [N] each, and return the
        result. ``dense``: random draws per element, unless DALI's random numbers are in use. ``each``: elements per GPU
        thread. ``device_arrays``: further arguments of the GPU kernel."""
        streams = ctx.streams()
        skip = _SKIP if ctx.rng == "dali" else dense
        if ctx.stage == "cpu":
            low, high = (0, 0)
            if len(data):
                low, high = int(data.offsets.min()), int((data.offsets + data.sizes).max())
            source = data.data[low:high]
            own = data.dtype if data.dtype in (np.uint8, np.float32) else np.dtype(np.float64)
            out = Batch.allocate(
                ctx.empty if own == data.dtype else np.empty, data.shapes, own, data.layout, data.samples
            )
            getattr(_kernels, kernel)(
                streams.handle, streams.sequence, skip, source.astype(own, copy=False), data.offsets - low,
                counts, *arguments, out.data, out.offsets,
            )  # fmt: skip
            return out if own == data.dtype else out.replace(data=saturate(out.data, data.dtype))
        out = Batch.allocate(ctx.empty, data.shapes, data.dtype, data.layout, data.samples)
        most = int(counts.max(initial=0))
        if most == 0:
            return out
        tiles = -(-(most + each - 1) // (_THREADS * each))  # streams may begin within a block of draws
        arrays = data.offsets, out.offsets, counts, *arguments, *device_arrays
        if ctx.args or ctx.state is not None:
            sequence, base, to, many, *given = changing(ctx.device, None, streams.sequence, *arrays)
        else:
            (sequence,) = changing(ctx.device, _sequence, streams.sequence)
            base, to, many, *given = fixed(ctx.device, *arrays)
        ctx.device.launch(
            "noise.cu", f"{kernel}<{CUDA_TYPES[data.dtype]}>", tiles * len(data), _THREADS,
            *streams.start, sequence, np.int32(skip), data.data, base, np.int32(tiles), many, *given, out.data, to,
        )  # fmt: skip
        return out


def _sequence(ctx: Context) -> tuple[npt.NDArray[Any]] | None:
    """Return the sequence numbers of the random streams for a later batch, if the recorded kernel launches can
    otherwise be repeated unchanged. None if the streams' key or counter change too."""
    return None if ctx.state is not None else (ctx.streams().sequence,)


def _checked(ctx: Context, name: str, values: F32, is_valid: npt.NDArray[np.bool_], allowed: str) -> F32:
    for i in np.flatnonzero(~is_valid).tolist():
        ctx.reject(i, "bad_argument", f"{name} must be {allowed}, got {values[i]}")
    return np.where(is_valid, values, 0).astype(np.float32)


class Gaussian(Noise, name="noise.gaussian"):
    """Add normally distributed noise to every value; integers are rounded and saturate."""

    example = "{op: noise.gaussian, in: images, stddev: 10.0, out: images}"

    mean: Annotated[float, Arg("mean of the distribution", per_sample=True)] = 0.0
    stddev: Annotated[float, Arg("standard deviation of the distribution", per_sample=True)] = 1.0

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        mean, stddev = ctx.arg("mean"), ctx.arg("stddev")
        mean = _checked(ctx, "mean", mean, np.isfinite(mean), "finite")
        stddev = _checked(ctx, "stddev", stddev, np.isfinite(stddev), "finite")
        return self.run(ctx, data, "gaussian", data.sizes, (mean, stddev), dense=2, each=4)

    gpu = cpu


class SaltAndPepper(Noise, name="noise.salt_and_pepper"):
    """Replace pixels at random by salt (white) or pepper (black).

    By default salt is the largest value of integers, or 1 for floats, and pepper the smallest, or -1. Values that are
    set are rounded and saturate.
    """

    example = "{op: noise.salt_and_pepper, in: images, prob: 0.1, out: images}"

    prob: Annotated[float, Arg("probability that a pixel is replaced", ge=0, le=1, per_sample=True)] = 0.05
    salt_vs_pepper: Annotated[float, Arg("fraction of the replaced pixels that become salt", ge=0, le=1,
                                         per_sample=True)] = 0.5  # fmt: skip
    per_channel: Annotated[bool, Arg("replace each channel separately, instead of whole pixels")] = False
    salt_val: Annotated[float | None, Arg("value of salt", per_sample=True)] = None
    pepper_val: Annotated[float | None, Arg("value of pepper", per_sample=True)] = None

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if not self.per_channel and data.layout and "C" not in data.layout:
            raise SpecError(
                f"needs channels in the layout, got {data}; with per_channel: true each value is for itself"
            )
        return Noise.infer(self, *specs)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        prob, share = ctx.arg("prob"), ctx.arg("salt_vs_pepper")
        prob = _checked(ctx, "prob", prob, (prob >= 0) & (prob <= 1), "between 0 and 1")
        share = _checked(ctx, "salt_vs_pepper", share, (share >= 0) & (share <= 1), "between 0 and 1")
        floats = data.dtype.kind == "f"
        ends = (1.0, -1.0) if floats else (np.iinfo(data.dtype).max, np.iinfo(data.dtype).min)
        salt, pepper = (
            saturate(
                ctx.arg(name, np.float64) if self.is_set(name) else np.full(len(data), end, np.float64), data.dtype
            )
            for name, end in zip(("salt_val", "pepper_val"), ends, strict=True)
        )
        own = data.dtype if ctx.stage != "cpu" or data.dtype in (np.uint8, np.float32) else np.dtype(np.float64)
        counts, steps, strides = self._elements(data)
        salted = (prob * share).astype(np.float32)
        arguments = (steps, strides, prob, salted, salt.astype(own), pepper.astype(own))
        return self.run(ctx, data, "salt_and_pepper", counts, arguments, dense=1, each=4)

    gpu = cpu

    def _elements(self, data: Batch) -> tuple[I64, I64, I64]:
        """Return how many elements each sample has, [N], how many values an element has, and the distance between these
        values (1 if adjacent). An element, which is replaced as a whole, is a pixel, or a single value with
        ``per_channel``."""
        if self.per_channel or data.ndim == 0:
            ones = np.ones(len(data), np.int64)
            return data.sizes, ones, ones
        if data.layout and "C" not in data.layout:
            raise SpecError(f"needs channels in the layout, got {data.layout}")
        at = data.layout.index("C") if data.layout else data.ndim - 1
        shapes = data.shapes.astype(np.int64)
        inner = shapes[:, at + 1 :].prod(axis=1)
        if (shapes[:, :at].prod(axis=1) > 1).any() and (inner > 1).any():
            raise SpecError(f"needs channels first or last, got {data.layout}")
        channels = shapes[:, at]
        return data.sizes // np.maximum(channels, 1), channels, inner


class Shot(Noise, name="noise.shot"):
    """Apply shot noise: every value becomes a Poisson-distributed number of events times ``factor``; its mean is the
    value itself.

    A factor of 0 changes nothing. Values below 0 count as 0.
    """

    bound = "exact, unless the last bit of a logarithm decides a draw"
    example = "{op: noise.shot, in: images, factor: 12.0, out: images}"

    factor: Annotated[float, Arg("value that one event adds", per_sample=True)] = 20.0

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        factor = ctx.arg("factor")
        factor = _checked(ctx, "factor", factor, np.isfinite(factor) & (factor >= 0), "0 or more")
        return self.run(ctx, data, "shot", data.sizes, (factor,), _SKIP, _EACH, (_LOG_FACTORIALS,))

    gpu = cpu
