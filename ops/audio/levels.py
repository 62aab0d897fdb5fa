"""Operators to_decibels, preemphasis_filter and nonsilent_region."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy
from .mel import check_floats
from .signals import check_channel, one_channel

_cpu: Any = Kernels(".features_cpu", __package__)


def _power_of_ten(exponent: float) -> float:
    """Return ten to the power of ``exponent``; infinity if it is too large."""
    return 10.0**exponent if exponent < 308 else math.inf


class ToDecibels(Operator, name="to_decibels"):
    """Convert FLOAT magnitudes or powers to decibels: multiplier log10(max(10^(cutoff_db / multiplier), x /
    reference)).

    By default the reference is the largest value of each sample; a sample of zeros becomes ``cutoff_db``. With
    ``top_db``, results more than ``top_db`` below the loudest one are raised to that bound, as in librosa.
    """

    replayable = True
    bound = "1e-5 of cutoff_db"
    example = "{op: to_decibels, in: mel, multiplier: 10, reference: 1.0, cutoff_db: -80, out: decibels}"

    multiplier: Annotated[float, Arg("10 for powers, 20 for magnitudes")] = 10.0
    reference: Annotated[
        float | None, Arg("value that corresponds to 0 dB; by default the largest value of each sample")
    ] = None
    cutoff_db: Annotated[float, Arg("smallest result, dB")] = -200.0
    top_db: Annotated[float | None, Arg("maximum distance of results from the loudest one, dB", ge=0)] = None

    def check(self) -> None:
        if self.reference is not None and not self.reference > 0:
            raise SpecError(f"reference must be above 0, got {self.reference:g}; leave it out for the largest value")
        if not self.multiplier:
            raise SpecError("multiplier must not be 0")

    def infer(self, *specs: Spec) -> Spec:
        check_floats(specs[0])
        return Spec(specs[0].shape, DALIDataType.FLOAT, specs[0].layout)

    @property
    def factors(self) -> tuple[np.float32, np.float32]:
        """Factor that converts binary logarithms to decibels; and smallest value, as a fraction of the reference, whose
        logarithm is computed."""
        factor = np.float32(self.multiplier) * np.float32(np.log10(2))
        return factor, np.float32(_power_of_ten(self.cutoff_db / self.multiplier))

    def cpu(self, ctx: Context, magnitudes: Batch) -> Batch:
        n, sizes = len(magnitudes), magnitudes.sizes
        out = Batch.allocate(ctx.empty, magnitudes.shapes, np.float32, magnitudes.layout, magnitudes.samples)
        if out.data.size == 0:
            return out
        factor, least = self.factors
        if ctx.stage != "cpu":
            self._on_gpu(ctx, magnitudes, factor, least, out)
            return out
        base, references = np.ascontiguousarray(magnitudes.offsets), np.full(n, self.reference or 0, np.float32)
        if self.reference is None:
            _cpu.largest(magnitudes.data, base, sizes, references)
            references[references <= 0] = 1
        _cpu.decibels(magnitudes.data, base, sizes, references, factor, least, out.data, out.offsets)
        if self.top_db is not None:
            _cpu.floored(out.data, out.offsets, sizes, np.float32(self.top_db))
        return out

    gpu = cpu

    def _on_gpu(self, ctx: Context, magnitudes: Batch, factor: np.float32, min_value: np.float32, out: Batch) -> None:
        lane, n, sizes = ctx.device, len(magnitudes), magnitudes.sizes
        base, counts, to, references = lane.upload(
            magnitudes.offsets, sizes, out.offsets, np.full(n, self.reference or 0, np.float32)
        )
        if self.reference is None or self.top_db is not None:
            found = lane.empty(n, np.float32)
            lane.launch("audio/features.cu", "largest", n, 256, magnitudes.data, base, counts, found)
            references = found if self.reference is None else references
        largest = found if self.top_db is not None else references
        below = np.float32(-1 if self.top_db is None else self.top_db)
        lane.launch("audio/features.cu", "decibels", (-(-int(sizes.max()) // 256), n), 256, magnitudes.data, base,
                    counts, references, largest, factor, min_value, below, out.data, to)  # fmt: skip


class PreemphasisFilter(Operator, name="preemphasis_filter"):
    """Apply the filter y[k] = x[k] - preemph_coeff x[k - 1].

    The value before the first sample is that sample again (``clamp``), zero, or the second sample (``reflect``). Inputs
    of several dimensions are filtered as one stream of numbers, as in DALI, so decode with ``downmix`` first.
    """

    replayable = True
    bound = "1e-6 of the largest sample"
    example = "{op: preemphasis_filter, in: audio, preemph_coeff: 0.97, out: audio}"

    preemph_coeff: Annotated[float, Arg("share of the previous sample that is subtracted", per_sample=True)] = 0.97
    border: Annotated[
        Literal["clamp", "zero", "reflect"],
        Arg("value before the first sample: the first sample, zero, or the second sample"),
    ] = "clamp"
    dtype: Annotated[DALIDataType, Arg("type of the output")] = DALIDataType.FLOAT

    def infer(self, *specs: Spec) -> Spec:
        if specs[0].dtype in (DALIDataType.BOOL, DALIDataType.FLOAT16):
            raise SpecError(f"takes numbers, got {specs[0]}; cast it first")
        return Spec(specs[0].shape, self.dtype, specs[0].layout)

    def cpu(self, ctx: Context, audio: Batch) -> Batch:
        dtype, border = to_numpy(self.dtype), ("clamp", "zero", "reflect").index(self.border)
        on_cpu = ctx.stage == "cpu"
        out = Batch.allocate(ctx.empty, audio.shapes, np.float32 if on_cpu else dtype, audio.layout, audio.samples)
        coefficients, sizes = ctx.arg("preemph_coeff"), audio.sizes
        if on_cpu:
            base = np.ascontiguousarray(audio.offsets)
            _cpu.preemphasis(audio.data, base, sizes, coefficients, border, out.data, out.offsets)
            return out.replace(data=saturate(out.data, dtype))
        if out.data.size:
            base, counts, factors, to = ctx.device.upload(audio.offsets, sizes, coefficients, out.offsets)
            ctx.device.launch(
                "audio/features.cu", f"preemphasis<{CUDA_TYPES[audio.dtype]}, {CUDA_TYPES[dtype]}>",
                (-(-int(sizes.max()) // 1024), len(audio)), 256,
                audio.data, base, counts, factors, np.int32(border), out.data, to,
            )  # fmt: skip
        return out

    gpu = cpu


class NonsilentRegion(Operator, name="nonsilent_region"):
    """Find the region in which a signal is not silent. Outputs are the first sample of the region, and its length in
    samples (INT32 scalars).

    A signal is silent where its power is below 10^(cutoff_db / 10) times the reference. The power at a sample is the
    mean square of the last ``window_length`` samples. The region begins with the window of the first loud sample. A
    signal that is silent everywhere, or empty, yields (0, 0); a signal of zeros counts as loud everywhere, as in DALI,
    unless reference_power is set.
    """

    replayable = True
    bound = "exact, unless a power is within 1e-10 of the threshold"
    example = "{op: nonsilent_region, in: audio, cutoff_db: -40, out: [begin, length]}"

    cutoff_db: Annotated[float, Arg("power below which a signal is silent, dB")] = -60.0
    window_length: Annotated[int, Arg("length of a window in samples", ge=1)] = 2048
    reference_power: Annotated[
        float | None, Arg("power that corresponds to 0 dB; by default the largest power of the signal", ge=0)
    ] = None
    reset_interval: Annotated[int, Arg("samples", ignored="sums are taken in float64, so they stay exact")] = 8192

    @property
    def num_outputs(self) -> int:
        return 2

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        audio = specs[0]
        if audio.dtype in (DALIDataType.BOOL, DALIDataType.FLOAT16):
            raise SpecError(f"takes numbers, got {audio}; cast it first")
        check_channel(audio)
        return Spec((), DALIDataType.INT32), Spec((), DALIDataType.INT32)

    def cpu(self, ctx: Context, audio: Batch) -> tuple[Batch, Batch]:
        audio = one_channel(ctx, audio)
        n, sizes = len(audio), audio.sizes
        cutoff, reference = _power_of_ten(self.cutoff_db / 10), float(self.reference_power or 0)
        if ctx.stage == "cpu":
            begin, count = np.zeros(n, np.int32), np.zeros(n, np.int32)
            base = np.ascontiguousarray(audio.offsets)
            _cpu.nonsilent(audio.data, base, sizes, self.window_length, cutoff, reference, begin, count)
        else:
            begin, count = self._on_gpu(ctx, audio, cutoff, reference)
        return Batch.from_dense(begin, "", audio.samples), Batch.from_dense(count, "", audio.samples)

    gpu = cpu

    def _on_gpu(self, ctx: Context, audio: Batch, cutoff: float, reference: float) -> tuple[Any, Any]:
        lane, n, sizes = ctx.device, len(audio), audio.sizes
        begin, count = lane.empty(n, np.int32), lane.empty(n, np.int32)
        starts = np.cumsum(sizes + 1) - (sizes + 1)
        base, counts, sums = lane.upload(audio.offsets, sizes, starts)
        scratch = lane.empty(int((sizes + 1).sum()), np.float64)
        kernel = f"nonsilent<{CUDA_TYPES[audio.dtype]}>"
        lane.launch("audio/features.cu", kernel, n, 1024, audio.data, base, counts, sums, scratch,
                    np.int32(self.window_length), np.float64(cutoff), np.float64(reference), begin, count)  # fmt: skip
        return begin, count
