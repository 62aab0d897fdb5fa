"""Operators mel_filter_bank (spectra on the mel scale) and mfcc (their cepstral coefficients)."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..errors import SpecError
from ..gpu.launch_recording import not_replayable, unchanging
from ..kernels import Kernels
from ..types import DALIDataType

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Formula = Literal["slaney", "htk"]

_cpu: Any = Kernels(".features_cpu", __package__)

# Slaney, "Auditory Toolbox" (1998): linear up to 1 kHz, then logarithmic.
_LINEAR, _BREAK, _STEP = 200.0 / 3, 1000.0, np.log(6.4) / 27


def to_mel(hertz: Any, formula: Formula) -> Any:
    """Convert frequencies in Hz to the mel scale."""
    hertz = np.asarray(hertz, np.float64)
    if formula == "htk":
        return 1127.0 * np.log1p(hertz / 700)
    above = _BREAK / _LINEAR + np.log(np.maximum(hertz, _BREAK) / _BREAK) / _STEP
    return np.where(hertz >= _BREAK, above, hertz / _LINEAR)


def to_hertz(mel: Any, formula: Formula) -> Any:
    """Convert mel values to Hz: the inverse of `to_mel`."""
    mel = np.asarray(mel, np.float64)
    if formula == "htk":
        return 700 * np.expm1(mel / 1127.0)
    above = _BREAK * np.exp(_STEP * (mel - _BREAK / _LINEAR))
    return np.where(mel >= _BREAK / _LINEAR, above, mel * _LINEAR)


@lru_cache(32)
def bank(
    bins: int, rate: float, bands: int, low: float, high: float, formula: Formula, normalize: bool, kaldi: bool
) -> tuple[npt.NDArray[np.int64], F32]:
    """Return triangular filters of mel bands as [bands, 3] (first bin, number of bins, index of the first weight), and
    the weights of all filters. ``bins``: number of frequencies of a spectrum, from a transform of size 2 (bins - 1).
    The sides of triangles are straight in Hz; with ``kaldi`` they are straight in mel, and the last bin belongs to no
    triangle."""
    corners = np.linspace(to_mel(low, formula), to_mel(high, formula), bands + 2)
    hertz = np.arange(bins) * (rate / (2 * (bins - 1) if bins > 1 else 1))
    x = np.asarray(to_mel(hertz, formula) if kaldi else hertz, np.float64)
    edges = np.asarray(corners if kaldi else to_hertz(corners, formula), np.float64)
    if kaldi:
        x = x[:-1]
    filters, packed, at = np.zeros((bands, 3), np.int64), [np.empty(0)], 0
    starts, stops = np.searchsorted(x, edges[:-2], "right"), np.searchsorted(x, edges[2:], "left")
    for m, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        left, middle, right = edges[m : m + 3]
        with np.errstate(divide="ignore", invalid="ignore"):
            up = (x[start:stop] - left) / (middle - left)
            down = (right - x[start:stop]) / (right - middle)
        weights: F64 = np.nan_to_num(np.maximum(0, np.minimum(up, down)), posinf=0)
        if normalize:
            weights *= 2 / (right - left)
        used = np.flatnonzero(weights)
        if len(used):
            first, count = int(used[0]), int(used[-1]) + 1 - int(used[0])
            filters[m] = start + first, count, at
            packed.append(weights[first : first + count])
            at += count
    return filters, np.concatenate(packed).astype(np.float32)


def frequency_axis(layout: str, ndim: int) -> int:
    """Return the index of the axis of frequencies, by DALI's rule: the axis that the layout calls f, else the last but
    one, or the only one."""
    return layout.index("f") if "f" in layout else max(0, ndim - 2)


def rows_around(shapes: npt.NDArray[np.int32], axis: int) -> I64:
    """Return the number of elements before, along and after the dimension ``axis`` of each sample, int64[N, 3]."""
    wide = shapes.astype(np.int64)
    return np.stack([wide[:, :axis].prod(axis=1), wide[:, axis], wide[:, axis + 1 :].prod(axis=1)], axis=1)


def check_floats(spec: Spec) -> None:
    """Raise SpecError unless the data type in ``spec`` is FLOAT."""
    if spec.dtype not in (None, DALIDataType.FLOAT):
        raise SpecError(f"takes FLOAT, got {spec}; cast it first")


def tables_on(lane: Any, key: str, filters: I64, weights: F32) -> tuple[Any, Any]:
    """Return ``filters`` (as int32) and ``weights`` in device memory, cached in `Lane.cache` under ``key``."""
    if key not in lane.cache:
        lane.cache[key] = lane.upload(filters.astype(np.int32))[0], lane.upload(weights)[0]
    there, values = unchanging(lane, *lane.cache[key])
    return there, values


def weigh(
    ctx: Context, data: Batch, axis: int, filters: I64, weights: F32, key: str, invalid: npt.NDArray[np.bool_]
) -> Batch:
    """Return weighted sums of neighbouring elements along ``axis``, such as mel bands. ``filters``, ``weights``: as
    `bank` returns them. ``invalid``: samples that get empty outputs. ``key``: name of the filters in the device's
    cache."""
    shapes = data.shapes.copy()
    shapes[:, axis] = len(filters)
    shapes[invalid] = 0
    out = Batch.allocate(ctx.empty, shapes, np.float32, data.layout, data.samples)
    if out.data.size == 0:
        return out
    rows = np.where(invalid[:, None], 0, rows_around(data.shapes, axis))
    if ctx.stage == "cpu":
        _cpu.filter_bank(data.data, np.ascontiguousarray(data.offsets), rows, filters, weights, out.data, out.offsets)
        return out
    lane = ctx.device
    tables = tables_on(lane, key, filters, weights)
    base, there, to = lane.upload(data.offsets, rows, out.offsets)
    most = int((rows[:, 0] * rows[:, 2]).max()) * len(filters)
    lane.launch("audio/features.cu", "filter_bank", (-(-most // 256), len(data)), 256, data.data, base, there,
                *tables, np.int32(len(filters)), out.data, to)  # fmt: skip
    return out


class MelFilterBank(Operator, name="mel_filter_bank"):
    """Sum spectra in bands of the mel scale, by triangles that overlap by half.

    The input, FLOAT, has nfft / 2 + 1 frequencies along the axis that its layout calls ``f``, else along the last but
    one. With ``normalize`` each triangle has an area of 1 Hz. The defaults are those of librosa.filters.mel;
    ``mel_formula: htk, normalize: false`` gives torchaudio's. With ``parity: kaldi`` the sides of triangles are
    straight on the mel scale; together with ``mel_formula: htk, normalize: false``, this gives the filters of Kaldi and
    torchaudio.compliance.
    """

    replayable = True
    bound = "1e-5 of the largest value"
    example = "{op: mel_filter_bank, in: spectrogram, sample_rate: 16000, nfilter: 80, out: mel}"

    nfilter: Annotated[int, Arg("number of mel bands", ge=1, le=1 << 16)] = 128
    sample_rate: Annotated[float, Arg("sampling rate of the audio in Hz", ge=1)] = 44100.0
    freq_low: Annotated[float, Arg("lower end of the first triangle, Hz", ge=0)] = 0.0
    freq_high: Annotated[float, Arg("upper end of the last triangle, Hz; 0: half of sample_rate", ge=0)] = 0.0
    normalize: Annotated[bool, Arg("divide each triangle by half of its width in Hz, so that its area is 1")] = True
    mel_formula: Annotated[Formula, Arg("slaney: linear up to 1 kHz; htk: 1127 ln(1 + f / 700)")] = "slaney"
    parity: Annotated[Literal["dali", "kaldi"], Arg("library whose triangles are reproduced")] = "dali"

    @cached_property
    def _highest(self) -> float:
        return self.freq_high or self.sample_rate / 2

    def check(self) -> None:
        if self.freq_low >= self._highest:
            raise SpecError(f"freq_low must be below freq_high ({self._highest:g} Hz), got {self.freq_low:g}")
        if self.parity == "kaldi" and self.normalize:
            raise SpecError("Kaldi's triangles are not normalized: give normalize: false with parity: kaldi")

    def infer(self, *specs: Spec) -> Spec:
        check_floats(specs[0])
        if specs[0].shape is None:
            return Spec(None, DALIDataType.FLOAT, specs[0].layout)
        if not specs[0].shape:
            raise SpecError(f"takes spectra, got {specs[0]}")
        shape = list(specs[0].shape)
        shape[frequency_axis(specs[0].layout, len(shape))] = self.nfilter
        return Spec(tuple(shape), DALIDataType.FLOAT, specs[0].layout)

    def cpu(self, ctx: Context, spectra: Batch) -> Batch:
        axis = frequency_axis(spectra.layout, spectra.ndim)
        all_bins = spectra.shapes[:, axis]
        full = np.flatnonzero(spectra.sizes)
        bins = int(all_bins[full[0]]) if len(full) else 1
        if (all_bins[full] != bins).any():
            return self._of_several_sizes(ctx, spectra, axis)
        return self._of_one_size(ctx, spectra, axis, bins)

    gpu = cpu

    def _of_one_size(self, ctx: Context, spectra: Batch, axis: int, bins: int) -> Batch:
        key, filters, weights = self.tables(bins)
        return weigh(ctx, spectra, axis, filters, weights, key, spectra.sizes == 0)

    def tables(self, bins: int) -> tuple[str, I64, F32]:
        """Return a name for caching, and the filters and weights (see `bank`) for spectra of ``bins`` frequencies."""
        filters, weights = bank(
            bins, self.sample_rate, self.nfilter, self.freq_low, self._highest, self.mel_formula, self.normalize,
            self.parity == "kaldi",
        )  # fmt: skip
        key = f"mel {bins} {self.sample_rate} {self.nfilter} {self.freq_low} {self._highest} {self.mel_formula} " \
              f"{self.normalize} {self.parity}"  # fmt: skip
        return key, filters, weights

    def _of_several_sizes(self, ctx: Context, spectra: Batch, axis: int) -> Batch:
        """Compute the mel spectra of a batch whose spectra have different numbers of frequencies. This is rare, so
        samples are computed one by one."""
        from ..batch import concat

        not_replayable(ctx.device)  # samples are joined by separate copies
        parts = []
        for i in range(len(spectra)):
            one = spectra.take(slice(i, i + 1))
            parts.append(self._of_one_size(ctx, one, axis, int(one.shapes[0, axis])))
        return concat(parts, spectra.samples, ctx.empty)


@lru_cache(16)
def cosines(kind: int, bands: int, count: int, orthonormal: bool, lifter: float) -> F32:
    """Return the discrete cosine transform of type ``kind`` (1 to 4) as a matrix [count, bands]: half of
    scipy.fft.dct's, or equal to it if orthonormal. Liftering multiplies coefficient k by 1 + L / 2 sin(pi (k + 1) /
    L)."""
    k, n = np.arange(count)[:, None], np.arange(bands)[None]
    if kind == 1:
        matrix = np.cos(np.pi * k * n / max(bands - 1, 1))
        matrix[:, 0] /= 2
        matrix[:, -1] = matrix[:, -1] / 2 if bands > 1 else matrix[:, -1]
    elif kind == 2:
        matrix = np.cos(np.pi * k * (2 * n + 1) / (2 * bands))
    elif kind == 3:
        matrix = np.cos(np.pi * (2 * k + 1) * n / (2 * bands))
        matrix[:, 0] /= 2
    else:
        matrix = np.cos(np.pi * (2 * k + 1) * (2 * n + 1) / (4 * bands))
    if orthonormal:
        matrix = matrix * np.sqrt(2 / bands)
        if kind == 2:
            matrix[0] /= np.sqrt(2)
        elif kind == 3:
            matrix[:, 0] *= np.sqrt(2)
    if lifter:
        matrix = matrix * (1 + lifter / 2 * np.sin(np.pi * (k + 1) / lifter))
    return matrix.astype(np.float32)


class Mfcc(Operator, name="mfcc"):
    """Compute mel frequency cepstral coefficients: a cosine transform along the bands of a mel spectrogram (FLOAT,
    usually in decibels).

    The first ``n_mfcc`` coefficients are output (all if there are fewer). Without ``normalize``, coefficients are half
    of scipy.fft.dct's, as in DALI.
    """

    replayable = True
    bound = "1e-5 of the largest value"
    example = "{op: mfcc, in: decibels, n_mfcc: 13, out: coefficients}"

    n_mfcc: Annotated[int, Arg("number of coefficients", ge=1)] = 20
    dct_type: Annotated[int, Arg("type of the cosine transform, 1 to 4", ge=1, le=4)] = 2
    normalize: Annotated[bool, Arg("use an orthonormal transform")] = False
    axis: Annotated[int, Arg("index of the axis of the bands", ge=0)] = 0
    lifter: Annotated[float, Arg("L of the factors 1 + L / 2 sin(pi (k + 1) / L); 0 for none", ge=0)] = 0.0

    def check(self) -> None:
        if self.normalize and self.dct_type == 1:
            raise SpecError("the transform of type 1 has no orthonormal form; take dct_type 2, 3 or 4")

    def infer(self, *specs: Spec) -> Spec:
        check_floats(specs[0])
        if specs[0].shape is None:
            return Spec(None, DALIDataType.FLOAT, specs[0].layout)
        shape = list(specs[0].shape)
        self._check_axis(len(shape))
        extent = shape[self.axis]
        shape[self.axis] = None if extent is None else min(extent, self.n_mfcc)
        return Spec(tuple(shape), DALIDataType.FLOAT, specs[0].layout)

    def _check_axis(self, ndim: int) -> None:
        if self.axis >= ndim:
            raise SpecError(f"axis {self.axis} does not exist in an input of {ndim} dimensions")

    def cpu(self, ctx: Context, spectra: Batch) -> Batch:
        from ..batch import concat

        self._check_axis(spectra.ndim)
        extents = spectra.shapes[:, self.axis]
        full = spectra.sizes > 0
        if len(np.unique(extents[full])) <= 1:
            return self._of_one_size(ctx, spectra, int(extents[full][0]) if full.any() else 1)
        not_replayable(ctx.device)
        parts = [spectra.take(slice(i, i + 1)) for i in range(len(spectra))]
        return concat(
            [self._of_one_size(ctx, p, int(p.shapes[0, self.axis])) for p in parts], spectra.samples, ctx.empty
        )

    gpu = cpu

    def _of_one_size(self, ctx: Context, spectra: Batch, bands: int) -> Batch:
        count = min(self.n_mfcc, max(bands, 1))
        matrix = cosines(self.dct_type, max(bands, 1), count, self.normalize, self.lifter)
        filters = np.stack([np.zeros(count, np.int64), np.full(count, bands), np.arange(count) * bands], axis=1)
        key = f"mfcc {self.dct_type} {bands} {count} {self.normalize} {self.lifter}"
        return weigh(ctx, spectra, self.axis, filters.astype(np.int64), matrix.reshape(-1), key, spectra.sizes == 0)
