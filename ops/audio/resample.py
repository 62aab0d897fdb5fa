"""Operator audio_resample: convert signals to another sampling rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy
from . import filters

F64 = npt.NDArray[np.float64]
Resampler = Literal["dali-run", "dali", "torchaudio", "soxr", "librosa"]
RESAMPLER = (
    "dali-run: low-pass that stops at the lower Nyquist frequency; dali: DALI's kernel, which lets frequencies pass "
    "that the lower rate cannot represent (aliasing); torchaudio: its default; soxr, librosa: soxr_hq, on the CPU"
)

_cpu: Any = Kernels(".resample_cpu", __package__)
_ALLOWED = (DALIDataType.FLOAT, DALIDataType.INT8, DALIDataType.UINT8, DALIDataType.INT16, DALIDataType.UINT16,
            DALIDataType.INT32, DALIDataType.UINT32)  # fmt: skip
_MAX = 2**31 - 1  # maximum elements of a sample
MAX_RATIO = 1 << 20
"""Maximum ratio between two sampling rates. The filter gets longer with the ratio: with 2^40, resampling took hours."""
_FRAMES = 8  # frames per thread with the kernel's table (cuda/audio/resample.cu)
_BLOCKS = 4  # blocks of DALI's 256 frames that a block of threads computes (cuda/audio/resample.cu)


def needs_soxr(parity: Resampler) -> bool:
    """Return whether the resampler ``parity`` is one of the package soxr, which runs only on the CPU."""
    return parity in ("soxr", "librosa")


def check_resampler(parity: Resampler) -> None:
    """Raise SpecError if the package that the resampler ``parity`` needs is not installed."""
    if needs_soxr(parity):
        try:
            import soxr  # noqa: F401
        except ImportError as e:
            raise SpecError(f"parity: {parity} needs the package soxr: pip install 'dali-run[media]' ({e})") from None


def output_lengths(lengths: I64, in_rate: F64, out_rate: F64) -> I64:
    """Return the number of frames after resampling: lengths times out_rate / in_rate, rounded up."""
    exact = lengths * out_rate / np.where(in_rate > 0, in_rate, 1)
    # a product that is an integer except for rounding errors is not rounded up
    near = np.round(exact)
    return np.where(np.abs(exact - near) < 1e-6, near, np.ceil(exact)).astype(np.int64)


def unusable(in_rate: F64, out_rate: F64) -> npt.NDArray[np.bool_]:
    """Return a mask of the samples with sampling rates that are not positive numbers, or that have a ratio above
    `MAX_RATIO`."""
    with np.errstate(all="ignore"):
        ratio = in_rate / out_rate
    return ~((in_rate > 0) & (out_rate > 0) & (ratio <= MAX_RATIO) & (ratio >= 1 / MAX_RATIO))


@dataclass(frozen=True, slots=True)
class Rates:
    """Sampling rates of N signals before and after resampling. Only their ratio is used."""

    before: F64
    after: F64


def resample_into(ctx: Context, signals: Batch, rates: Rates, quality: float, parity: Resampler, out: Batch) -> None:
    """Resample ``signals`` (n,) or (n, channels) into ``out``, whose shapes give the new lengths, on the CPU or GPU
    (the stage of ``ctx``). If the type changes, integers count as fractions of their largest value; unsigned integers
    have silence in the middle of their range."""
    n = len(signals)
    factor, shift, size_out = _conversion(signals.dtype, out.dtype)
    rows = np.zeros((n, _cpu.FIELDS), np.int64)
    rows[:, _cpu.INPUTS], rows[:, _cpu.OUTPUTS] = signals.shapes[:, 0], out.shapes[:, 0]
    rows[:, _cpu.CHANNELS] = signals.shapes[:, 1] if signals.ndim == 2 else 1
    if not rows[:, _cpu.OUTPUTS].any():
        return
    factors = np.float32(factor), np.float32(shift), np.float32(size_out)
    if ctx.stage != "cpu":
        _resample(ctx, signals, rates, quality, parity, rows, factors, out)
        return
    floats_in = _scaled(signals.data, np.dtype(np.float32), factor)
    signals = signals.replace(data=floats_in + np.float32(shift) if shift else floats_in)
    floats = out
    if out.dtype != np.float32:
        floats = Batch.allocate(np.empty, out.shapes, np.float32, out.layout, out.samples)
    _resample(ctx, signals, rates, quality, parity, rows, factors, floats)
    if floats is not out:
        for i in range(n):
            out.sample(i)[...] = _scaled(floats.sample(i), out.dtype, size_out)


def _resample(
    ctx: Context, signals: Batch, rates: Rates, quality: float, parity: Resampler, rows: I64,
    factors: tuple[Any, ...], out: Batch,
) -> None:  # fmt: skip
    in_rate, out_rate, lengths = rates.before, rates.after, rows[:, _cpu.OUTPUTS]
    if needs_soxr(parity):
        _by_soxr(signals, rates, out)
        return
    ratios = np.where(out_rate > 0, in_rate / np.where(out_rate > 0, out_rate, 1), 1.0)
    lobes = filters.lobes_of(quality)
    if parity == "dali":
        table = filters.dali_rows(lobes) if ctx.stage == "cpu" else filters.dali_table(lobes)
        _launch(ctx, "as_dali", signals, rows, (ratios, table), out, factors,
                (np.int64(lobes), np.float32(32 * lobes + 1), np.float32(32)))  # fmt: skip
        return
    which, found, kinds = _phases(in_rate, out_rate, lobes, parity, adjacent=ctx.stage != "cpu")
    if which.any():
        some = _only(rows, which)
        taps, first = _filled(some, which, found, kinds)
        _launch(ctx, "by_phases", signals, some, (taps, first), out, factors, ())
    if not which.all():
        if parity == "torchaudio":
            for i in np.flatnonzero(~which & (lengths > 0)).tolist():
                ctx.reject(i, "bad_argument", f"torchaudio resamples by whole rates; {in_rate[i]:g} to {out_rate[i]:g} "
                           "Hz has too many phases")  # fmt: skip
        else:
            tables: tuple[Any, ...] = ratios, filters.pairs(lobes)
            if ctx.stage != "cpu":
                tables = ratios, filters.table(lobes), filters.through_nodes()
            _launch(ctx, "by_table", signals, _only(rows, ~which), tables, out, factors,
                    (np.int64(lobes), np.int64(filters.STEPS)))  # fmt: skip


def _phases(
    in_rate: F64, out_rate: F64, lobes: int, parity: Resampler, *, adjacent: bool
) -> tuple[npt.NDArray[np.bool_], list[filters.Phases], I64]:
    """Return a mask of the signals whose filter weights are tabulated, the table of each distinct ratio of rates, and
    for each signal in the mask the index of its table. ``adjacent``: return tables in groups (`filters.Groups`), for
    the GPU."""
    up, down = in_lowest_terms(in_rate, out_rate)
    most = filters.MAX_PHASES if parity == "dali-run" else 1 << 16
    which = (in_rate > 0) & (out_rate > 0) & (up <= most) & (down <= 1 << 16)
    keys, kinds = np.unique((up[which] * (1 << 17) + down[which]).astype(np.int64), return_inverse=True)
    find: Callable[..., filters.Phases | None] = filters.phases
    more: tuple[int, ...] = (lobes,)
    if parity != "dali-run":
        find, more = filters.torchaudio_phases, ()
    found = []
    for key in keys.tolist():
        ratio = Fraction(key >> 17, key & (1 << 17) - 1)
        found.append(filters.grouped(find, ratio, *more) if adjacent else find(ratio, *more))
    kept = np.array([p is not None for p in found], np.bool_)
    if not kept.all():
        which[which] = kept[kinds]
        kinds = (np.cumsum(kept) - 1)[kinds[kept[kinds]]]
    return which, [p for p in found if p is not None], kinds


def in_lowest_terms(in_rate: F64, out_rate: F64) -> tuple[F64, F64]:
    """Return numerators and denominators of the reduced fractions out_rate / in_rate, exact below 2^53. Both are 1 if a
    rate is not above 0."""
    usable = (in_rate > 0) & (out_rate > 0)
    (before, e), (after, f) = (_odd(np.where(usable, x, 1.0)) for x in (in_rate, out_rate))
    common, shift = np.gcd(before, after), np.clip(f - e, -64, 64)
    up = np.ldexp((after // common).astype(np.float64), np.maximum(shift, 0))
    return up, np.ldexp((before // common).astype(np.float64), np.maximum(-shift, 0))


def _odd(x: F64) -> tuple[I64, npt.NDArray[np.int32]]:
    """Split the numbers ``x`` into odd integers and powers of two. Return the integers, and the exponents of two."""
    part, exponent = np.frexp(x)
    whole = (part * 2.0**53).astype(np.int64)
    low = whole & -whole
    return whole // low, exponent + np.frexp(low.astype(np.float64))[1]


def _only(rows: I64, selected: npt.NDArray[np.bool_]) -> I64:
    """Return ``rows`` with OUTPUTS set to 0 for samples that the mask ``selected`` excludes, so that nothing is
    computed for them."""
    some = rows.copy()
    some[~selected, _cpu.OUTPUTS] = 0
    return some


def _filled(
    rows: I64, selected: npt.NDArray[np.bool_], phase_sets: list[filters.Phases], kinds: I64
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Join the filter tables ``phase_sets`` to two arrays: all weights, and all first inputs. Write to ``rows`` where
    the table of each ``selected`` signal begins in these arrays."""
    facts = np.zeros((len(phase_sets), 5), np.int64)  # in the order of the columns from UP on
    table = start = 0
    for i, p in enumerate(phase_sets):
        facts[i] = p.up, p.down, p.width, table, start
        table, start = table + p.taps.size, start + len(p.first)
    rows[selected, _cpu.UP :] = facts[kinds]
    return np.concatenate([p.taps.reshape(-1) for p in phase_sets]), np.concatenate([p.first for p in phase_sets])


def _launch(
    ctx: Context, kernel: str, signals: Batch, rows: I64, tables: tuple[Any, ...], out: Batch, factors: tuple[Any, ...],
    numbers: tuple[Any, ...],
) -> None:  # fmt: skip
    if ctx.stage == "cpu":
        base = np.ascontiguousarray(signals.offsets)
        getattr(_cpu, kernel)(signals.data, base, rows, *tables, *numbers, out.data, out.offsets)
        return
    lane = ctx.device
    base, there, *arrays, to = lane.upload(signals.offsets, rows, *tables, out.offsets)
    outputs = rows[:, _cpu.OUTPUTS]
    if kernel == "by_phases":
        up = np.maximum(rows[:, _cpu.UP], 1)
        blocks = -(-outputs // (up * filters.TURNS)) * -(-up // (filters.GROUP * filters.WARPS))
    else:
        blocks = -(-outputs // (256 * (_FRAMES if kernel == "by_table" else _BLOCKS)))
    lane.launch(
        "audio/resample.cu", f"{kernel}<{CUDA_TYPES[signals.dtype]}, {CUDA_TYPES[out.dtype]}>",
        (int(blocks.max()), len(signals)), 256,
        signals.data, base, there, *arrays, *numbers, *factors, out.data, to,
    )  # fmt: skip


def _by_soxr(signals: Batch, rates: Rates, out: Batch) -> None:
    import soxr

    for i in np.flatnonzero(out.sizes).tolist():
        got = soxr.resample(signals.sample(i), rates.before[i], rates.after[i], quality="HQ")
        target = out.sample(i)
        length = min(len(got), len(target))
        target[:length] = got[:length]
        target[length:] = 0


class AudioResample(Operator, name="audio_resample"):
    """Resample audio: signals (n,), or (n, channels), each channel separately.

    The rate changes by ``scale``, or from ``in_rate`` to ``out_rate`` (output: n out_rate / in_rate samples, rounded
    up), or so that the output has ``out_length`` samples. If the type changes, integers count as fractions of their
    largest value, and the middle of the range of unsigned integers is silence.

    By default a low-pass filter removes frequencies that the lower rate cannot represent: a sinc under a Kaiser window
    with as many lobes as DALI's for this ``quality``, as wide as the lower rate requires. With ``parity: dali`` results
    equal DALI's, whose filter is never widened: a tone of 10 kHz turns into another tone when 44.1 kHz are converted to
    8 kHz.
    """

    aliases = ("experimental.audio_resample",)
    replayable = True
    bound = "1e-5 of the largest sample"
    example = "{op: audio_resample, in: audio, in_rate: 44100, out_rate: 16000, out: audio}"

    dtype: Annotated[DALIDataType | None, Arg("data type of the output; by default that of the input")] = None
    in_rate: Annotated[float | None, Arg("sampling rate of the input", per_sample=True)] = None
    out_rate: Annotated[float | None, Arg("sampling rate of the output", per_sample=True)] = None
    out_length: Annotated[int | None, Arg("number of samples of the output", ge=0, per_sample=True)] = None
    scale: Annotated[float | None, Arg("factor of the rate: out_rate / in_rate", per_sample=True)] = None
    quality: Annotated[
        float, Arg("quality, 0 to 100: the filter has 3 lobes at 0, 16 at 50, 64 at 100", ge=0, le=100)
    ] = 50.0
    parity: Annotated[Resampler, Arg(f"library whose filter is used. {RESAMPLER}")] = "dali-run"

    def check(self) -> None:
        rates = [name for name in ("in_rate", "out_rate") if self.is_set(name)]
        ways = [name for name in ("scale", "out_length") if self.is_set(name)]
        if len(rates) == 1:
            raise SpecError("in_rate and out_rate belong together: give both")
        if bool(rates) + len(ways) != 1:
            raise SpecError("give one of: in_rate and out_rate, scale, out_length")
        if self.dtype is not None and self.dtype not in _ALLOWED:
            raise SpecError(f"dtype {self.dtype.name} is not one of {', '.join(t.name for t in _ALLOWED)}")
        if needs_soxr(self.parity) and self.is_set("quality"):
            raise SpecError(f"parity: {self.parity} has one quality (HQ); remove quality")
        check_resampler(self.parity)

    def runs_in(self) -> tuple[Stage, ...]:
        return ("cpu",) if needs_soxr(self.parity) else self.stages

    def infer(self, *specs: Spec) -> Spec:
        audio = specs[0]
        if audio.dtype is not None and audio.dtype not in _ALLOWED:
            raise SpecError(f"takes {', '.join(t.name for t in _ALLOWED)}, got {audio}; cast it first")
        if audio.shape is not None and len(audio.shape) not in (1, 2):
            raise SpecError(f"takes signals (n,) or (n, channels), got {audio}")
        dtype = self.dtype if self.dtype is not None else audio.dtype
        shape = None if audio.shape is None else (None, *audio.shape[1:])
        return Spec(shape, dtype, audio.layout)

    def cpu(self, ctx: Context, audio: Batch) -> Batch:
        if audio.ndim not in (1, 2):
            raise SampleError("bad_shape", f"takes signals (n,) or (n, channels), got {audio.ndim} dimensions")
        frames = audio.shapes[:, 0].astype(np.int64)
        in_rate, out_rate, lengths = self._rates(ctx, frames)
        dtype = audio.dtype if self.dtype is None else to_numpy(self.dtype)
        channels = audio.shapes[:, 1].astype(np.int64) if audio.ndim == 2 else 1
        for i in np.flatnonzero(lengths * channels > _MAX).tolist():
            ctx.reject(i, "too_large", f"{int(lengths[i])} samples would result; a sample can have at most {_MAX}")
            lengths[i] = 0
        lengths[frames == 0] = 0
        shapes = audio.shapes.copy()
        shapes[:, 0] = lengths
        out = Batch.allocate(ctx.empty, shapes, dtype, audio.layout, audio.samples)
        resample_into(ctx, audio, Rates(in_rate, out_rate), self.quality, self.parity, out)
        return out

    gpu = cpu

    def _rates(self, ctx: Context, frames: I64) -> tuple[F64, F64, I64]:
        """Return the sampling rates before and after resampling, float64[N], and the output lengths, int64[N], that the
        arguments give."""
        if self.is_set("out_length"):
            lengths = ctx.arg("out_length", np.int64).copy()
            in_rate, out_rate = np.maximum(frames, 1).astype(np.float64), lengths.astype(np.float64)
            bad = (lengths < 0) | ((lengths > 0) & unusable(in_rate, np.maximum(out_rate, 1)))
        else:
            if self.is_set("scale"):
                out_rate = ctx.arg("scale").astype(np.float64)
                in_rate = np.ones_like(out_rate)
            else:
                in_rate, out_rate = (ctx.arg(n).astype(np.float64) for n in ("in_rate", "out_rate"))
            bad = unusable(in_rate, out_rate)
            in_rate, out_rate = np.where(bad, 1.0, in_rate), np.where(bad, 1.0, out_rate)
            lengths = output_lengths(frames, in_rate, out_rate)
        for i in np.flatnonzero(bad).tolist():
            ctx.reject(i, "bad_argument", "rates, scale and out_length must be positive numbers, and "
                       f"rates at most {MAX_RATIO:,} times apart")  # fmt: skip
            lengths[i] = 0
        return in_rate, out_rate, lengths


def _conversion(before: np.dtype[Any], after: np.dtype[Any]) -> tuple[float, float, float]:
    """Return the factors that convert a signal from type ``before`` to ``after``: factor and summand for inputs, and
    factor for outputs. The summand is added before resampling, as in DALI, so that silence surrounds a signal."""
    if before == after:
        return 1.0, 0.0, 1.0
    if (before.kind == "u") == (after.kind == "u"):
        return 1 / _full(before), 0.0, _full(after)
    full = _full(after)
    if after.kind == "u":
        return full / 2 / _full(before), full / 2, 1.0
    return 2 * full / _full(before), -full, 1.0


def _full(dtype: np.dtype[Any]) -> float:
    """Return the value of type ``dtype`` that represents the amplitude 1.0."""
    return 1.0 if dtype.kind == "f" else float(np.iinfo(dtype).max)


def _scaled(values: npt.NDArray[Any], dtype: np.dtype[Any], factor: float) -> npt.NDArray[Any]:
    """Return ``values`` times ``factor`` as ``dtype``; integers are rounded and clipped to their range."""
    if dtype.kind == "f":
        floats = values.astype(np.float32, copy=False)
        return floats if factor == 1 else floats * np.float32(factor)
    return saturate(values if factor == 1 else values * np.float32(factor), dtype)
