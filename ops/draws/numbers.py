"""Operators random.coin_flip, uniform, normal, beta and choice, and DALI's older names for them.

Each element of each sample draws from its own section of the sample's stream (`streams`), so that results are functions
of (seed, operator, sample), and with ``rng: dali`` equal DALI 2.4's (except beta's).
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..arrays.cast import copied
from ..arrays.constant import shape_argument
from ..base import Arg, Operator, Spec, Stage
from ..batch import I32, I64, Batch, Samples
from ..batch import elements as sizes_of
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import changing, fixed
from ..kernels import Kernels
from ..streams import F32, U32, Streams, ends_of, uniform, uniform_range
from ..types import DALIDataType, to_numpy

F64 = npt.NDArray[np.float64]

_kernels: Any = Kernels(".philox_cpu", __package__)
_normal: Any = Kernels(".normal_cpu", __package__)
_beta: Any = Kernels(".beta_cpu", __package__)

_SKIP = 257
"""Number of random draws that are reserved for each element of a sample, as in DALI."""

_SMALL_SAMPLE = 1 << 10
"""Number of elements per sample below which nothing checks that samples fit into memory."""

_THREADS = 256
_MIN_DIRECT = 4096
"""Minimum number of elements in a batch from which compiled loops compute values directly, without arrays of random
draws."""

_NUMBERS = tuple(
    DALIDataType[n]
    for n in ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT", "FLOAT64")
)
_FLOAT = DALIDataType.FLOAT
_WIDE = tuple(DALIDataType[n] for n in ("INT32", "UINT32", "INT64", "UINT64", "FLOAT64"))
"""Output types for which DALI computes in float64, and takes twice as many random draws per element."""


class Random(Operator, abstract=True):
    """Base class of the operators random.*, which draw numbers. The output has the shape of the input, whose values are
    ignored, or without an input the shape in the argument ``shape``."""

    inputs = (0, 1)
    random = True
    replayable = True
    dtypes: ClassVar[tuple[DALIDataType, ...]] = _NUMBERS

    shape: Annotated[tuple[int, ...] | None, Arg("shape of the output; a scalar by default", ge=0, per_sample=True)] = (
        None
    )
    dtype: Annotated[DALIDataType | None, Arg("data type of the output")] = None

    def check(self) -> None:
        if self.dtype is not None and self.dtype not in self.dtypes:
            raise SpecError(f"dtype must be one of {', '.join(d.name for d in self.dtypes)}, got {self.dtype.name}")

    @property
    def result(self) -> DALIDataType:
        """Data type of the output."""
        return DALIDataType.FLOAT if self.dtype is None else self.dtype

    def infer(self, *specs: Spec) -> Spec:
        if specs and self.is_set("shape"):
            raise SpecError("the shape is given twice: by the input and by the argument shape; give only one")
        if specs:
            return Spec(specs[0].shape, self.result)
        return Spec(None if "shape" in self.per_sample else self.shape or (), self.result)

    def cpu(self, ctx: Context, *like: Batch) -> Batch:
        shapes = _shapes(ctx, *like)
        elements = Elements(ctx, shapes)
        if elements.total >= _MIN_DIRECT and self.is_simple:
            return self._many(ctx, elements, shapes)
        return _packed(ctx, shapes, saturate(self.draw(ctx, elements), to_numpy(self.result)), "")

    def gpu(self, ctx: Context, *like: Batch) -> Batch:
        shapes = _shapes(ctx, *like)
        if self.is_simple:
            elements = Elements(ctx, shapes)
            if elements.total:
                return self._many(ctx, elements, shapes)

        def recompute(ctx: Context) -> tuple[npt.NDArray[Any], ...]:
            drawn = None if like or ctx.args else self.drawn(ctx.streams(), ctx.samples)
            if drawn is not None:
                return (drawn.data,)
            return (saturate(self.draw(ctx, Elements(ctx, shapes)), to_numpy(self.result)),)

        (values,) = recompute(ctx)
        out = Batch.allocate(ctx.empty, shapes, values.dtype, "", ctx.samples)
        (there,) = changing(ctx.device, None if "shape" in ctx.args else recompute, values)
        if values.size:
            copied(ctx, there, out.data)
        return out

    kind: ClassVar[str] = ""
    """Name of the distribution in cuda/draws.cu; empty if that kernel does not support the operator."""

    @property
    def _kind(self) -> str:
        """Name in cuda/draws.cu of the distribution that this instance's arguments select."""
        return self.kind

    @property
    def is_simple(self) -> bool:
        """Whether the kernel in cuda/draws.cu can compute all elements from the parameters in `numbers`."""
        return False

    def numbers(self, ctx: Context) -> F64:
        """Return the parameters of each sample's distribution, usually [N, 3], as cuda/draws.cu takes them."""
        raise NotImplementedError

    def _many(self, ctx: Context, elements: Elements, shapes: I32) -> Batch:
        """Compute all elements of the output directly, without arrays of random draws."""
        numbers, streams, counts = self.numbers(ctx), elements.streams, elements.counts
        dtype = np.dtype(to_numpy(self.result))
        if ctx.stage == "cpu":
            values = getattr(_kernels, f"many_{self._kind.lower()}")(
                streams.handle, np.ascontiguousarray(streams.sequence), counts, _SKIP, numbers
            )
            return _packed(ctx, shapes, saturate(values, dtype), "")
        out = Batch.allocate(ctx.empty, shapes, dtype, "", ctx.samples)
        tiles = -(-int(counts.max()) // _THREADS)

        def recompute(ctx: Context) -> tuple[npt.NDArray[Any], ...] | None:
            streams = ctx.streams()
            if ctx.state is not None:  # key and counter differ from call to call
                return None
            return (streams.sequence, self.numbers(ctx)) if ctx.args else (streams.sequence,)

        if "shape" in ctx.args or ctx.state is not None:
            arrays = streams.sequence, numbers, counts, out.offsets
            sequence, given, many, to = changing(ctx.device, None, *arrays)
        elif ctx.args:
            sequence, given = changing(ctx.device, recompute, streams.sequence, numbers)
            many, to = fixed(ctx.device, counts, out.offsets)
        else:
            (sequence,) = changing(ctx.device, recompute, streams.sequence)
            given, many, to = fixed(ctx.device, numbers, counts, out.offsets)
        ctx.device.launch(
            "draws.cu", f"draw<{CUDA_TYPES[dtype]}, {self._kind}>", tiles * len(counts), _THREADS, *streams.start,
            sequence, np.int32(_SKIP), np.int32(tiles), many, given, np.int32(numbers.shape[1]), out.data, to,
        )  # fmt: skip
        return out

    def draw(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        """Return a random value for each of the T elements of the batch, [T], of any type."""
        raise NotImplementedError

    def _filled(self, n: int, values: npt.NDArray[Any], samples: Samples) -> Batch:
        """Return a batch of ``n`` samples with these ``values``, of the shape in the constant argument ``shape``."""
        offsets, shapes = _places(n, self.shape or ())
        return Batch(values, offsets, shapes, "", samples)

    @functools.cached_property
    def _each(self) -> int:
        """Number of elements per sample, if the argument ``shape`` is constant."""
        return math.prod(self.shape or ())


@functools.lru_cache(64)
def _places(n: int, shape: tuple[int, ...]) -> tuple[I64, I32]:
    """Return offsets and shapes of ``n`` samples of one ``shape``, stored without gaps. Cached: batches share these
    arrays, which nothing modifies."""
    shapes = np.empty((n, len(shape)), np.int32)
    shapes[:] = shape
    return np.arange(n) * math.prod(shape), shapes


class Elements:
    """The T elements of a batch, one sample after the other; each element has its own random draws."""

    def __init__(self, ctx: Context, shapes: I32) -> None:
        n, ndim = shapes.shape
        self._shapes = shapes
        self.total = n if ndim == 0 else int(self.counts.sum())
        self.single = ndim == 0 or (self.total == n and bool((self.counts == 1).all()))
        """Whether every sample has one element."""
        self.streams = ctx.streams()

    @functools.cached_property
    def counts(self) -> I64:
        """Number of elements of each sample, [N]."""
        return sizes_of(self._shapes)

    def draws(self, count: int, skip: int = _SKIP) -> U32:
        """Return the first ``count`` random draws of each element, uint32[T, count]. In a sample's stream, elements
        begin ``skip`` draws apart."""
        out = np.empty((self.total, count), np.uint32)
        _kernels.element_draws(self.streams.handle, self.streams.sequence, self.counts, skip, out)
        return out

    def flips(self, limit: int) -> npt.NDArray[Any]:
        """Return, for each of the T elements, whether its first random draw is at most ``limit``."""
        if not self.single:
            return self.draws(1)[:, 0] <= limit
        flips = np.empty(self.total, np.int32)
        _kernels.coin_flips(self.streams.handle, self.streams.sequence, limit, flips)
        return flips

    def wide_draws(self, count: int, skip: int = _SKIP) -> npt.NDArray[np.uint64]:
        """Return the first ``count`` 64-bit random numbers of each element, uint64[T, count], each made from two
        draws."""
        words = self.draws(2 * count, skip).astype(np.uint64)
        return words[:, 0::2] | words[:, 1::2] << np.uint64(32)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat ``values``, one per sample, [N, ...], for all elements of each sample: [T, ...]."""
        return values if self.single else np.repeat(values, self.counts, axis=0)


def _shapes(ctx: Context, *like: Batch) -> I32:
    """Return the shapes of the output, [N, ndim]: those of the input, or of the argument ``shape``, or scalars."""
    if like:
        return like[0].shapes
    return shape_argument(ctx, ctx.op.is_set("shape")).astype(np.int32)


def _packed(ctx: Context, shapes: I32, values: npt.NDArray[Any], layout: str, sizes: I64 | None = None) -> Batch:
    """Return a batch without gaps: samples of ``shapes`` with the elements ``values``. ``sizes``: number of elements of
    each sample, if known."""
    if shapes.shape[1] == 0:
        return Batch(values, np.arange(len(shapes)), shapes, layout, ctx.samples)
    sizes = sizes_of(shapes) if sizes is None else sizes
    return Batch(values, sizes.cumsum() - sizes, shapes, layout, ctx.samples)


@functools.lru_cache(64)
def _counts(n: int, each: int) -> I64:
    return np.full(n, each, np.int64)


def _reject(ctx: Context, invalid: npt.NDArray[np.bool_], message: str, values: npt.NDArray[Any]) -> None:
    if invalid.any():
        for i in np.flatnonzero(invalid).tolist():
            ctx.reject(i, "bad_argument", message.format(values[i].tolist()))


class CoinFlip(Random, name="random.coin_flip"):
    """Draw 1 with the given probability, else 0."""

    aliases: ClassVar[tuple[str, ...]] = ("coin_flip",)
    dtypes: ClassVar[tuple[DALIDataType, ...]] = (DALIDataType.INT32, DALIDataType.UINT8, DALIDataType.BOOL)
    example: ClassVar[str] = "{op: random.coin_flip, probability: 0.5, out: mirror}"

    probability: Annotated[float, Arg("probability of 1", ge=0, le=1, per_sample=True)] = 0.5

    @property
    def result(self) -> DALIDataType:
        return DALIDataType.INT32 if self.dtype is None else self.dtype

    def drawn(self, streams: Streams, samples: Samples) -> Batch | None:
        if self.per_sample or self._each != 1 or self.result is not DALIDataType.INT32:
            return None
        flips = np.empty(len(samples), np.int32)
        _kernels.coin_flips(streams.handle, streams.sequence, self._limit, flips)
        return self._filled(len(samples), flips, samples)

    kind = "FLIP"
    is_simple = True

    def numbers(self, ctx: Context) -> F64:
        found = np.zeros((len(ctx.samples), 3))
        found[:, 0] = self._given_limits(ctx) if "probability" in ctx.args else self._limit
        return found

    def draw(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        if "probability" not in ctx.args:
            return elements.flips(self._limit)
        return elements.draws(1)[:, 0] <= elements.spread(self._given_limits(ctx))

    def _given_limits(self, ctx: Context) -> I64:
        probability = ctx.arg("probability")
        bad = ~((probability >= 0) & (probability <= 1))
        _reject(ctx, bad, "probability must be between 0 and 1, got {}", probability)
        return _limits(np.where(bad, 0, probability).astype(np.float64))

    @functools.cached_property
    def _limit(self) -> int:
        """Largest random draw that yields 1, for the constant argument ``probability``; see `_limits`."""
        return int(_limits(np.float64(np.float32(self.probability))))


def _limits(probability: npt.NDArray[np.float64] | np.float64) -> I64:
    """Return for each probability the largest draw that yields 1; -1 if the probability is 0. (DALI compares with <=,
    so that 0 still yields rare ones.)"""
    return np.where(probability > 0, np.minimum(probability * 2.0**32, 0xFFFFFFFF), -1).astype(np.int64)


class Uniform(Random, name="random.uniform"):
    """Draw uniformly distributed numbers in [min, max), or elements of ``values``.

    For integer types, the range's ends are truncated to integers and numbers are rounded, so that each end is half as
    likely as the numbers between them.
    """

    aliases: ClassVar[tuple[str, ...]] = ("uniform",)
    example: ClassVar[str] = "{op: random.uniform, range: [-10.0, 10.0], out: angle}"

    range: Annotated[tuple[float, ...], Arg("smallest value, and the exclusive end", per_sample=True)] = (
        -1.0,
        1.0,
    )
    values: Annotated[tuple[float, ...] | None, Arg("numbers to draw from, instead of range", per_sample=True)] = None

    def check(self) -> None:
        Random.check(self)
        if self.is_set("values") and self.is_set("range"):
            raise SpecError("range and values exclude each other")
        if self.values is not None and not self.values:
            raise SpecError("values needs at least one number")
        if "range" not in self.per_sample and (len(self.range) != 2 or not self.range[0] < self.range[1]):
            raise SpecError(f"range needs two numbers, the smaller first, got {list(self.range)}")

    def cpu(self, ctx: Context, *like: Batch) -> Batch:
        found = None if like else self.drawn(ctx.streams(), ctx.samples)
        return Random.cpu(self, ctx, *like) if found is None else found

    def drawn(self, streams: Streams, samples: Samples) -> Batch | None:
        if not self._is_plain:
            return None
        n, each = len(samples), self._each
        low, below, factor = uniform_range(*self._ends)
        if each == 1:
            numbers = np.empty(n, np.float32)
            _kernels.uniforms(streams.handle, np.ascontiguousarray(streams.sequence), low, factor, below, numbers)
        else:
            drawn = np.empty((n * each, 1), np.uint32)
            counts = _counts(n, each)
            _kernels.element_draws(streams.handle, streams.sequence, counts, _SKIP, drawn)
            numbers = uniform(drawn[:, 0], *self._ends)
        return self._filled(n, numbers, samples)

    @functools.cached_property
    def _is_plain(self) -> bool:
        """Whether the fast loop supports the arguments: output of float32, constant shape, and the same range for all
        samples."""
        low, high = self._ends
        plain = not self.per_sample and self.values is None and self.dtype in (None, _FLOAT)
        return plain and 0 < self._each < _SMALL_SAMPLE and bool(low < high)

    @functools.cached_property
    def _ends(self) -> tuple[np.float32, np.float32]:
        return np.float32(self.range[0]), np.float32(self.range[-1])

    kind = "UNIFORM"

    @property
    def _kind(self) -> str:
        return "CHOSEN" if self.is_set("values") else self.kind

    @property
    def is_simple(self) -> bool:
        return self.is_set("values") or self.result not in _WIDE

    def _many(self, ctx: Context, elements: Elements, shapes: I32) -> Batch:
        if ctx.stage == "cpu" and self.is_set("values"):
            return _packed(ctx, shapes, saturate(self._chosen(ctx, elements), to_numpy(self.result)), "")
        return Random._many(self, ctx, elements, shapes)

    def numbers(self, ctx: Context) -> F64:
        if self.is_set("values"):
            return ctx.arg("values").astype(np.float64)
        first, below, factor = ends_of(*self._ranges(ctx))
        return np.stack([first, factor, below], axis=1).astype(np.float64)

    def draw(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        if self.is_set("values"):
            return self._chosen(ctx, elements)
        low, high = self._ends
        if "range" not in ctx.args and self.result not in _WIDE and to_numpy(self.result).kind == "f" and low < high:
            return uniform(elements.draws(1)[:, 0], low, high)
        return self._between(ctx, elements)

    def _between(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        low, high = (elements.spread(ends) for ends in self._ranges(ctx))
        if self.result not in _WIDE:
            return uniform(elements.draws(1)[:, 0], low, high)
        below = np.nextafter(high.astype(np.float64), low.astype(np.float64))
        value = elements.wide_draws(1)[:, 0].astype(np.float64) * ((below - low) * 2.0**-64) + low
        values: npt.NDArray[Any] = np.minimum(value, below)
        return values

    def _ranges(self, ctx: Context) -> tuple[F32, F32]:
        """Return the lowest and the highest number of each sample's range, [N] each."""
        ends = ctx.arg("range")
        if to_numpy(self.result).kind != "f":
            ends = saturate(np.trunc(ends), to_numpy(self.result)).astype(np.float32)
        if ends.shape[1] != 2:
            raise SampleError("bad_argument", f"range needs two numbers, got {ends.shape[1]}")
        bad = ~(ends[:, 0] < ends[:, -1])
        _reject(ctx, bad, "range needs two numbers that differ as the type of the output, got {}", ends)
        return np.where(bad, 0, ends[:, 0]).astype(np.float32), np.where(bad, 1, ends[:, -1]).astype(np.float32)

    def _chosen(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        values = ctx.arg("values")
        if not values.shape[1]:
            raise SampleError("bad_argument", "values is empty: give one number at least")
        which = elements.draws(1)[:, 0].astype(np.uint64) * np.uint64(values.shape[1]) >> np.uint64(32)
        sample = elements.spread(np.arange(len(values)))
        chosen: npt.NDArray[Any] = values[sample, which.astype(np.int64)]
        return chosen


class Normal(Random, name="random.normal"):
    """Draw normally distributed numbers, by the Box-Muller transform of two uniform numbers."""

    aliases: ClassVar[tuple[str, ...]] = ("normal_distribution",)
    example: ClassVar[str] = "{op: random.normal, mean: 0.0, stddev: 1.0, shape: [3], out: noise}"

    mean: Annotated[float, Arg("mean of the distribution", per_sample=True)] = 0.0
    stddev: Annotated[float, Arg("standard deviation of the distribution", per_sample=True)] = 1.0

    kind = "NORMAL"

    @property
    def is_simple(self) -> bool:
        return self.result not in _WIDE

    def numbers(self, ctx: Context) -> F64:
        return np.stack([ctx.arg("mean"), ctx.arg("stddev"), np.zeros(len(ctx.samples))], axis=1).astype(np.float64)

    def _many(self, ctx: Context, elements: Elements, shapes: I32) -> Batch:
        if ctx.stage != "cpu":
            return Random._many(self, ctx, elements, shapes)
        return _packed(ctx, shapes, saturate(self.draw(ctx, elements), to_numpy(self.result)), "")

    def drawn(self, streams: Streams, samples: Samples) -> Batch | None:
        if self.per_sample or self.dtype not in (None, _FLOAT) or not 0 < self._each < _SMALL_SAMPLE:
            return None
        n = len(samples)
        given = _repeated(n, float(np.float32(self.mean)), float(np.float32(self.stddev)))
        return self._filled(n, _drawn_normal(streams, _counts(n, self._each), given), samples)

    def draw(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        if self.result not in _WIDE:
            return _drawn_normal(elements.streams, elements.counts, self.numbers(ctx))
        mean, stddev = elements.spread(ctx.arg("mean")), elements.spread(ctx.arg("stddev"))
        first, second = elements.wide_draws(2).T.astype(np.float64) * 2.0**-64
        swap = first == 0  # the logarithm is that of the draw that is not 0
        first, second = np.where(swap, second, first), np.where(swap, first, second)
        radius = np.sqrt(-2 * np.log(np.maximum(first, np.finfo(np.float64).tiny)))
        wide: F64 = radius * np.cos(2 * np.pi * second) * stddev + mean
        return wide


def _drawn_normal(streams: Streams, counts: I64, numbers: F64) -> F32:
    sequence = np.ascontiguousarray(streams.sequence)
    found: F32 = _normal.many_normal(streams.handle, sequence, counts, _SKIP, numbers)
    return found


@functools.lru_cache(64)
def _repeated(n: int, mean: float, stddev: float) -> F64:
    """Return the parameters of `Normal.numbers` for ``n`` samples with the same mean and standard deviation."""
    return np.tile((mean, stddev, 0.0), (n, 1))


_LARGEST = float(np.finfo(np.float32).max)


class Beta(Random, name="random.beta"):
    """Draw beta-distributed numbers in [0, 1]. They differ from DALI's, also with ``rng: dali``."""

    replayable = False
    dtypes: ClassVar[tuple[DALIDataType, ...]] = (DALIDataType.FLOAT, DALIDataType.FLOAT64)
    example: ClassVar[str] = "{op: random.beta, alpha: 0.4, beta: 0.4, out: share}"

    alpha: Annotated[float, Arg("first parameter of the distribution, positive", per_sample=True)] = 1.0
    beta: Annotated[float, Arg("second parameter of the distribution, positive", per_sample=True)] = 1.0

    def check(self) -> None:
        Random.check(self)
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not 0 < value <= _LARGEST:
                raise SpecError(f"{name} must be a positive float32, got {value}")

    def drawn(self, streams: Streams, samples: Samples) -> Batch | None:
        if self.per_sample or not 0 < self._each < _SMALL_SAMPLE:
            return None
        n = len(samples)
        out, alpha, beta = np.empty(n * self._each), np.full(n, self.alpha), np.full(n, self.beta)
        counts = _counts(n, self._each)
        _beta.beta_variates(streams.handle, streams.sequence, counts, _SKIP, alpha, beta, out)
        return self._filled(n, saturate(out, to_numpy(self.result)), samples)

    def draw(self, ctx: Context, elements: Elements) -> npt.NDArray[Any]:
        parameters = []
        for name in ("alpha", "beta"):
            value = ctx.arg(name, np.float64)
            bad = ~((value > 0) & (value <= _LARGEST))
            _reject(ctx, bad, name + " must be a positive float32, got {}", value)
            parameters.append(np.where(bad, 1.0, value))
        alpha, beta = parameters
        out = np.empty(int(elements.counts.sum()), np.float64)
        streams = elements.streams
        _beta.beta_variates(streams.handle, streams.sequence, elements.counts, _SKIP, alpha, beta, out)
        return out


class Choice(Operator, name="random.choice"):
    """Draw elements of the input with replacement; for a scalar n, of 0 ... n - 1.

    For inputs with several dimensions, whole slices along the first dimension are drawn. A second input defines the
    shape of the output.
    """

    random = True
    inputs = (1, 2)
    example: ClassVar[str] = "{op: random.choice, in: candidates, shape: [4], out: chosen}"

    p: Annotated[tuple[float, ...] | None, Arg("probability of each element; equal by default", per_sample=True)] = None
    shape: Annotated[tuple[int, ...] | None, Arg("shape of the output; one draw by default", ge=0, per_sample=True)] = (
        None
    )

    def check(self) -> None:
        if self.p is not None and (min(self.p, default=-1) < 0 or abs(sum(self.p) - 1) >= 1e-4):
            raise SpecError(f"p must be probabilities that sum to 1, got {list(self.p)}")

    def infer(self, *specs: Spec) -> Spec:
        if len(specs) > 1 and self.is_set("shape"):
            raise SpecError("the shape is given twice: by the second input and by the argument shape; give only one")
        drawn = specs[1].shape if len(specs) > 1 else None if "shape" in self.per_sample else self.shape or ()
        if drawn is None:
            return Spec(None, specs[0].dtype)
        shape = None if specs[0].shape is None else (*drawn, *specs[0].shape[1:])
        return Spec(shape, specs[0].dtype, _chosen_layout(specs[0].layout, len(drawn)))

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64] | None:
        if "shape" in self.per_sample or self.shape is None:
            return None
        drawn = min(math.prod(max(extent, 0) for extent in self.shape), 1 << 40)
        shapes = inputs[0].shapes.astype(np.int64)
        # index and draws per element, in 64-bit words
        return drawn * sizes_of(shapes[:, 1:]), np.full(len(shapes), 40 * drawn)

    def cpu(self, ctx: Context, candidates: Batch, *like: Batch) -> Batch:
        drawn = _shapes(ctx, *like)
        elements = Elements(ctx, drawn)
        if candidates.ndim == 0:
            if candidates.dtype.kind not in "iu":
                raise SampleError("bad_shape", f"a scalar to choose below must be an integer, got {candidates.dtype}")
            count = candidates.data[candidates.offsets].astype(np.int64)
            values = self._indices(ctx, elements, count, 1).astype(candidates.dtype, copy=False)
            return _packed(ctx, drawn, values, "", elements.counts)
        count = candidates.shapes[:, 0].astype(np.int64)
        if candidates.ndim == 1:
            places = self._indices(ctx, elements, count, 1, candidates.offsets)
            data = candidates.data if candidates.data.size else np.zeros(1, candidates.dtype)
            layout = _chosen_layout(candidates.layout, drawn.shape[1])
            return _packed(ctx, drawn, np.take(data, places, mode="clip"), layout, elements.counts)
        size = elements.spread(np.prod(candidates.shapes[:, 1:], axis=1, dtype=np.int64))
        begin = elements.spread(candidates.offsets) + self._indices(ctx, elements, count, candidates.ndim) * size
        within = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        data = candidates.data if candidates.data.size else np.zeros(1, candidates.dtype)
        # indices of rejected samples may be invalid
        values = np.take(data, np.repeat(begin, size) + within, mode="clip")
        shapes = np.concatenate([drawn, candidates.shapes[:, 1:]], axis=1)
        return _packed(ctx, shapes, values, _chosen_layout(candidates.layout, drawn.shape[1]))

    def _indices(
        self, ctx: Context, elements: Elements, count: I64, ndim: int, starts: I64 | None = None
    ) -> I64:  # fmt: skip
        """Return a random index for each element to draw: the sample's number in ``starts``, plus a random number below
        the sample's ``count``. For inputs of several dimensions, DALI uses consecutive draws."""
        starts = np.zeros(len(count), np.int64) if starts is None else starts
        _reject(ctx, count < 1, "there is nothing to draw from: {} elements", count)
        count = np.maximum(count, 1)
        if not self.is_set("p"):
            streams, skip = elements.streams, _SKIP if ndim == 1 else 1
            sequence = np.ascontiguousarray(streams.sequence)
            found: I64 = _kernels.many_below(streams.handle, sequence, elements.counts, skip, count, starts)
            return found
        p, given = _probabilities(ctx)
        bad = (p < 0).any(axis=1) | ~(np.abs(p.sum(axis=1) - 1) < 1e-4) | (count != given)
        _reject(ctx, bad, "p must be one probability for each element, and sum to 1; got {}", p)
        p[bad] = 1
        ends = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)
        u = elements.wide_draws(1, _SKIP if ndim == 1 else 2)[:, 0].astype(np.float64) * 2.0**-64
        below: I64 = (u[:, None] >= elements.spread(ends)).sum(axis=1)
        most: I64 = elements.spread(np.minimum(count, p.shape[1])) - 1
        chosen: I64 = np.minimum(below, most) + elements.spread(starts)
        return chosen


def _probabilities(ctx: Context) -> tuple[npt.NDArray[np.float64], I64]:
    """Return the probabilities in argument p for each sample, [N, k], padded with zeros; and how many each sample
    has."""
    given = ctx.args.get("p")
    if given is None:
        p = ctx.arg("p", np.float64)
        return p, np.full(len(p), p.shape[1])
    sizes = given.sizes
    p = np.zeros((len(given), max(int(sizes.max(initial=0)), 1)))
    for rows, group in ctx.alike():
        values = group.arg("p", np.float64)
        p[rows, : values.shape[1]] = values
    return p, sizes


def _chosen_layout(layout: str, drawn: int) -> str:
    """Return the layout of an output that consists of slices of an input with ``layout``, arranged in ``drawn``
    dimensions: 0 for one slice, 1 for a list. More dimensions have no names."""
    return (layout[1:], layout, "")[min(drawn, 2)]
