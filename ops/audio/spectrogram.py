"""Operators spectrogram (short-time Fourier transform of signals, as powers or magnitudes) and power_spectrum
(transform of whole arrays)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch
from ..context import Context
from ..errors import SpecError
from ..gpu.launch_recording import unchanging
from ..kernels import Kernels
from ..types import DALIDataType
from .fft import FftPlan, plan
from .signals import KINDS, check_signal, one_channel

F32 = npt.NDArray[np.float32]
Convention = Literal["dali", "librosa", "torchaudio", "kaldi"]

_cpu: Any = Kernels(".spectrum_cpu", __package__)

LONGEST = 1 << 24
"""Maximum number of samples of a window or a transform (minutes of audio). Longer ones are mistakes, and would exhaust
the memory."""

_KALDI_EMPHASIS = np.float32(0.97)
_SHARED = 2048  # complex numbers that fit into a block's shared memory (spectrogram.cu)
_LARGEST_RADIX = 13  # the largest radix in spectrogram.cu
_BLOCK = 256
_CPP = {False: "false", True: "true"}


@dataclass(frozen=True, slots=True)
class Bands:
    """Computations that a GPU adds to a spectrogram, in the same kernel: weighted sums of neighbouring frequencies
    (such as mel bands), and conversion to decibels if ``factor`` is not 0."""

    filters: Any
    """Filters of `mel.bank` as int32, in device memory like their ``weights`` (float32)."""
    weights: Any
    count: int
    scale: float = 1.0
    factor: float = 0.0
    """Factor that converts binary logarithms to decibels; 0 for no conversion."""
    least: float = 0.0


def fits(size: int) -> bool:
    """Return whether a transform of ``size`` fits into the shared memory of a GPU's block, as `Bands` requires."""
    return size <= _SHARED


@lru_cache(64)
def window_of(convention: Convention, length: int) -> F32:
    """Return the default window function of a library, ``length`` samples.

    DALI uses a Hann window, sampled at (n + 1/2) / N; librosa and torchaudio use the periodic Hann window, at n / N;
    Kaldi uses its "povey" window, the symmetric Hann window to the power of 0.85.
    """
    n = np.arange(length)
    if convention == "kaldi":
        window = (0.5 - 0.5 * np.cos(2 * np.pi * n / max(length - 1, 1))) ** 0.85
    else:
        window = 0.5 - 0.5 * np.cos(2 * np.pi * (n + (0.5 if convention == "dali" else 0)) / length)
    return window.astype(np.float32)


class Spectrogram(Operator, name="spectrogram"):
    """Compute the power (or magnitude) of every frequency in windows of a signal.

    The input is a signal (n,), (n, 1) or (1, n), FLOAT, or INT16, which counts as x / 32768. The output is FLOAT, nfft
    / 2 + 1 frequencies by windows (layout ``ft``), or windows by frequencies (``tf``). With ``center_windows``, window
    t is centred at sample t window_step, and there are n / window_step + 1 windows (rounded down); else window t begins
    at that sample, and only complete windows count.

    If ``window_fn`` is not set, ``parity`` selects the window function: DALI's Hann window, librosa's and torchaudio's
    periodic one, or Kaldi's. With ``kaldi``, the mean of each window is also subtracted, a preemphasis of 0.97 is
    applied, and INT16 is not scaled.
    """

    replayable = True
    bound = "1e-5 of the largest value of a spectrogram"
    example = "{op: spectrogram, in: audio, nfft: 512, window_length: 400, window_step: 160, out: spectrogram}"

    nfft: Annotated[int | None, Arg("size of the transform in samples; by default window_length", ge=1, le=LONGEST)] = (
        None
    )
    window_length: Annotated[int, Arg("length of a window in samples", ge=1, le=LONGEST)] = 512
    window_step: Annotated[int, Arg("distance between windows in samples", ge=1, le=LONGEST)] = 256
    window_fn: Annotated[tuple[float, ...] | None, Arg("window function: window_length numbers")] = None
    power: Annotated[int, Arg("2: powers, 1: magnitudes", ge=1, le=2)] = 2
    center_windows: Annotated[bool, Arg("centre windows at their samples, so that they extend beyond both ends")] = True
    reflect_padding: Annotated[bool, Arg("mirror the signal at its ends; if false, pad it with zeros")] = True
    layout: Annotated[Literal["ft", "tf"], Arg("order of frequency and time in the output")] = "ft"
    parity: Annotated[Convention, Arg("library whose windows are used; kaldi also subtracts the mean and filters")] = (
        "dali"
    )

    @property
    def size(self) -> int:
        """Size of the Fourier transform in samples."""
        return self.window_length if self.nfft is None else self.nfft

    @cached_property
    def window(self) -> F32:
        """Window function by which samples are multiplied, float32[window_length]."""
        if self.window_fn is not None:
            return np.array(self.window_fn, np.float32)
        return window_of(self.parity, self.window_length)

    @property
    def samples_before(self) -> int:
        """Number of samples by which the first window begins before the signal."""
        if not self.center_windows:
            return 0
        if self.parity == "dali":
            return self.window_length // 2
        return self.size // 2 - (self.size - self.window_length) // 2

    def check(self) -> None:
        if self.size < self.window_length:
            raise SpecError(f"nfft must be at least window_length ({self.window_length}), got {self.size}")
        if self.window_fn is not None and len(self.window_fn) != self.window_length:
            raise SpecError(f"window_fn holds {len(self.window_fn)} numbers; window_length is {self.window_length}")
        if self.parity == "kaldi" and self.center_windows:
            raise SpecError("Kaldi's windows lie inside the signal: give center_windows: false with parity: kaldi")

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if plan(self.size, _LARGEST_RADIX) is not None else ("cpu",)

    def infer(self, *specs: Spec) -> Spec:
        check_signal(specs[0])
        frames = None
        if specs[0].shape is not None and None not in specs[0].shape:
            frames = int(self.frames(np.array([math.prod(n or 0 for n in specs[0].shape)], np.int64))[0])
        bins = self.size // 2 + 1
        return Spec((bins, frames) if self.layout == "ft" else (frames, bins), DALIDataType.FLOAT, self.layout)

    def frames(self, lengths: I64) -> I64:
        """Return the number of windows in signals of ``lengths`` samples, [N]."""
        if not self.center_windows:
            return np.maximum(lengths - self.window_length, -self.window_step) // self.window_step + 1
        odd = 0 if self.parity == "dali" else self.size % 2
        return np.where(lengths > 0, (lengths - odd) // self.window_step + 1, 0)

    def cpu(self, ctx: Context, audio: Batch) -> Batch:
        return self.computed(ctx, audio, None)

    gpu = cpu

    def computed(self, ctx: Context, audio: Batch, bands: Bands | None) -> Batch:
        """Return the spectrograms of the batch or, with ``bands`` (only on a GPU), the sums or decibels that ``bands``
        describes."""
        audio = one_channel(ctx, audio)
        lengths = audio.sizes
        frames = self.frames(lengths)
        for i in np.flatnonzero(frames == 0).tolist():
            if not lengths[i]:
                ctx.reject(i, "bad_shape", "the signal is empty")
            else:
                ctx.reject(i, "bad_shape", f"the signal has {int(lengths[i])} samples, fewer than a window of "
                           f"{self.window_length}; give center_windows: true, or pad it first")  # fmt: skip
        bins = np.full_like(frames, self.size // 2 + 1 if bands is None else bands.count)
        shapes = np.stack([bins, frames] if self.layout == "ft" else [frames, bins], axis=1).astype(np.int32)
        out = Batch.allocate(ctx.empty, shapes, np.float32, self.layout, audio.samples)
        kaldi = self.parity == "kaldi"
        scale = np.float32(1 / 32768) if audio.dtype == np.int16 and not kaldi else np.float32(1)
        if ctx.stage == "cpu":
            self._on_cpu(ctx, audio, lengths, frames, scale, out)
        else:
            self._on_gpu(ctx, audio, lengths, frames, scale, out, bands)
        return out

    def _on_cpu(self, ctx: Context, audio: Batch, lengths: I64, frames: I64, scale: np.float32, out: Batch) -> None:
        kaldi, found = self.parity == "kaldi", plan(self.size)
        if found is None:
            self._by_numpy(audio, lengths, frames, scale, out)
            return
        # If steps are longer than the longest signal, there is one frame, however long they are; memory grows with
        # steps.
        step = min(self.window_step, int(lengths.max(initial=0)) + self.window_length)
        _cpu.spectrograms(
            audio.data, np.ascontiguousarray(audio.offsets), lengths, frames, self.samples_before, step,
            self.window, self.reflect_padding, scale, kaldi, _KALDI_EMPHASIS, self.size, found.radices, found.twiddles,
            found.place_of_rows, self.power == 1, self.layout == "ft", out.data, out.offsets,
        )  # fmt: skip

    def _by_numpy(self, audio: Batch, lengths: I64, frames: I64, scale: np.float32, out: Batch) -> None:
        """Compute the spectrograms with NumPy, for transforms whose size has large prime factors."""
        for i, count in enumerate(frames.tolist()):
            if not count:
                continue
            windows = np.empty((count, self.window_length), np.float32)
            _cpu.windowed(audio.data, int(audio.offsets[i]), int(lengths[i]), count, self.samples_before,
                          self.window_step, self.window, self.reflect_padding, scale,
                          self.parity == "kaldi", _KALDI_EMPHASIS, windows)  # fmt: skip
            values = np.fft.rfft(windows, self.size)
            powers = values.real**2 + values.imag**2
            powers = np.sqrt(powers) if self.power == 1 else powers
            out.sample(i)[...] = powers.T if self.layout == "ft" else powers

    def _on_gpu(
        self, ctx: Context, audio: Batch, lengths: I64, frames: I64, scale: np.float32, out: Batch, bands: Bands | None
    ) -> None:
        if out.data.size == 0:
            return
        found = plan(self.size, _LARGEST_RADIX, eights=True)
        assert found is not None
        lane, shared = ctx.device, self.size <= _SHARED
        pairs = max(1, min(4, _SHARED // self.size))
        groups = -(-int(frames.max()) // (2 * pairs))
        blocks = groups if shared else min(groups, 32)
        tables = _gpu_tables(lane, self, found)
        base, counts, windows, to = lane.upload(
            audio.offsets, lengths.astype(np.int32), frames.astype(np.int32), out.offsets
        )
        scratch = lane.empty(2 if shared else 2 * len(audio) * blocks * self.size, np.float32)
        mel = bands or Bands(scratch, scratch, 0)
        kernel = f"spectrogram<{KINDS[audio.dtype]}, {_CPP[shared]}, {_CPP[bands is not None]}>"
        lane.launch(
            "audio/spectrogram.cu", kernel,
            (blocks, len(audio)), _BLOCK,
            audio.data, base, counts, windows, *tables, np.int32(len(found.radices)), np.int32(self.size),
            np.int32(self.window_length), np.int32(self.samples_before), np.int32(self.window_step), np.int32(pairs),
            np.int32(self.reflect_padding), scale, np.int32(self.parity == "kaldi"), _KALDI_EMPHASIS,
            np.int32(self.power == 1), np.int32(self.layout == "ft"), scratch, out.data, to,
            mel.filters, mel.weights, np.int32(mel.count), np.float32(mel.scale),
            np.float32(mel.factor), np.float32(mel.least),
        )  # fmt: skip


def _gpu_tables(lane: Any, op: Spectrogram, fft_plan: FftPlan) -> tuple[Any, ...]:
    """Return the GPU kernel's constant tables in device memory, cached in `Lane.cache`: window, radices, roots of
    unity, twiddle factors, and the place of each frequency."""
    key = f"spectrogram {op.size} {op.window.tobytes().hex() if op.window_fn else op.parity} {op.window_length}"
    if key not in lane.cache:
        radices = fft_plan.radices.astype(np.int32)
        roots = np.zeros((len(radices), _LARGEST_RADIX, 2), np.float32)
        for k, radix in enumerate(radices.tolist()):
            turns = np.exp(-2j * np.pi * np.arange(radix) / radix)
            roots[k, :radix] = np.stack([turns.real, turns.imag], axis=1)
        lane.cache[key] = tuple(
            lane.upload(a)[0]
            for a in (op.window, radices, roots, fft_plan.twiddles, fft_plan.row_of_frequency.astype(np.int32))
        )
    return unchanging(lane, *lane.cache[key])


class PowerSpectrum(Operator, name="power_spectrum"):
    """Compute the power (or magnitude) of every frequency of arrays along one axis: nfft / 2 + 1 values.

    Inputs longer than ``nfft`` are cut off, shorter inputs are padded with zeros.
    """

    example = "{op: power_spectrum, in: audio, out: spectrum}"

    axis: Annotated[int, Arg("axis that is transformed")] = -1
    nfft: Annotated[int | None, Arg("size of the transform; by default the length of the axis", ge=1, le=LONGEST)] = (
        None
    )
    power: Annotated[int, Arg("2: powers, 1: magnitudes", ge=1, le=2)] = 2

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.FLOAT):
            raise SpecError(f"takes FLOAT, got {data}; cast it first")
        if data.shape is None:
            return Spec(None, DALIDataType.FLOAT, data.layout)
        axis = self._axis(len(data.shape))
        shape = list(data.shape)
        extent = self.nfft if self.nfft is not None else shape[axis]
        shape[axis] = None if extent is None else extent // 2 + 1
        return Spec(tuple(shape), DALIDataType.FLOAT, data.layout)

    def _axis(self, ndim: int) -> int:
        if not -ndim <= self.axis < ndim:
            raise SpecError(f"axis {self.axis} does not exist in an array of {ndim} dimensions")
        return self.axis % ndim

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        axis = self._axis(data.ndim)
        extents = data.shapes[:, axis] if self.nfft is None else np.full(len(data), self.nfft, np.int32)
        shapes = data.shapes.copy()
        shapes[:, axis] = extents // 2 + 1
        for i in np.flatnonzero(data.sizes == 0).tolist():
            ctx.reject(i, "bad_shape", "the array is empty")
            shapes[i] = 0
        out = Batch.allocate(ctx.empty, shapes, np.float32, data.layout, data.samples)
        for i in np.flatnonzero(data.sizes).tolist():
            values = np.fft.rfft(data.sample(i), int(extents[i]), axis=axis)
            powers = values.real**2 + values.imag**2
            out.sample(i)[...] = np.sqrt(powers) if self.power == 1 else powers
        return out
