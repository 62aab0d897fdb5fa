"""Low-pass filters for resampling: dali-run's own, DALI's and torchaudio's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

BETA = 8.555504641634386
"""Parameter beta of the Kaiser window of the resampling filter. With sixteen lobes, window and roll-off are those of
resampy's kaiser_fast."""
STEPS = 512
"""Number of entries per lobe in the table of the sinc filter. Linear interpolation between entries has an error of at
most 5e-6."""
_DALI_STEPS = 64
MAX_PHASES = 1024
"""Maximum number of phases (positions of an output between two inputs) for which filter weights are tabulated. Random
rates have thousands: such a table took 80 ms, and would be used only once."""
_MAX = 1 << 18  # maximum numbers in a table of taps for every phase
_MAX_TORCHAUDIO = 1 << 24
TURNS = 64
"""Number of outputs per phase (position between two inputs) that a block of GPU threads computes.
cuda/audio/resample.cu has the same constant."""
GROUP, WARPS = 8, 8
"""Number of phases (positions between two inputs) that a warp computes; and maximum number of warps that share
inputs."""
_TORCHAUDIO_LOBES, _TORCHAUDIO_ROLLOFF = 6, 0.99


def lobes_of(quality: float) -> int:
    """Return the number of lobes of the sinc filter on each side, for the resampling argument ``quality``. By DALI's
    formula, 3, 16 and 64 for quality 0, 50 and 100."""
    return math.floor(0.007 * quality * quality - 0.09 * quality + 3 + 0.5)


def rolloff_of(lobes: int) -> float:
    """Return the cut-off frequency of the low-pass filter, as a fraction of the lower rate's Nyquist frequency. The
    transition band ends about there."""
    return max(0.75, 1 - 2.4 / lobes)


def _kernel(lobes: int, u: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Evaluate the low-pass filter at the distances ``u``, in samples of the lower rate. It is 0 from ``lobes`` on."""
    rolloff = rolloff_of(lobes)
    inside = np.maximum(0.0, 1 - (u / lobes) ** 2)
    values: npt.NDArray[np.float64] = rolloff * np.sinc(rolloff * u) * np.i0(BETA * np.sqrt(inside)) / np.i0(BETA)
    return np.where(np.abs(u) < lobes, values, 0.0)


@lru_cache(16)
def table(lobes: int) -> F32:
    """Return the values of the low-pass filter at distances from 0 to ``lobes``, `STEPS` values per lobe, followed by
    zeros."""
    u = np.arange(lobes * STEPS + 2) / STEPS
    return _kernel(lobes, u).astype(np.float32)


@lru_cache(16)
def pairs(lobes: int) -> npt.NDArray[np.uint64]:
    """Return the entries of `table`, each in a 64-bit number together with the difference to the next entry, so that
    one read gets both."""
    numbers = table(lobes)
    both = np.stack([numbers, np.append(numbers[1:], numbers[-1:]) - numbers], axis=1)
    return both.view(np.uint64).reshape(-1)


@lru_cache(16)
def dali_table(lobes: int) -> F32:
    """Return DALI's filter table for resampling: a sinc with a Hann window, float32, at distances from -lobes to lobes.
    One zero precedes the table, and four follow it."""
    coefficients = _DALI_STEPS * lobes + 1
    scale = np.float32(2.0 * lobes) / np.float32(coefficients - 1)
    envelope = np.float32(2.0) / np.float32(coefficients)
    i = np.arange(coefficients, dtype=np.float32) - np.float32((coefficients - 1) // 2)
    x = (i * scale * np.float32(np.pi)).astype(np.float32)
    safe = np.where(np.abs(x) < 1e-5, np.float32(1), x)
    sinc = np.where(np.abs(x) < 1e-5, np.float32(1), np.sin(safe) / safe)
    window = 0.5 * (1 + np.cos((i * envelope).astype(np.float64) * np.pi))
    return np.concatenate([[0], sinc * window, np.zeros(4)]).astype(np.float32)


@lru_cache(16)
def dali_rows(lobes: int) -> F32:
    """Return the entries of `dali_table`, sorted into rows: one row for each fraction of a sample at which an output
    may be. One more row is for positions after the last fraction."""
    steps = _DALI_STEPS // 2
    places = 1 + np.arange(steps + 1)[:, None] + steps * np.arange(2 * lobes)
    rows: F32 = dali_table(lobes)[places].reshape(-1)
    return rows


@lru_cache(1)
def through_nodes() -> npt.NDArray[np.float64]:
    """Return eight positions in [-1, 1] (Chebyshev nodes), and below them a matrix [8, 8] that converts a function's
    values there to polynomial coefficients. Between two frames, such a polynomial equals the filter to 3e-6."""
    nodes = np.cos(np.pi * (np.arange(8) + 0.5) / 8)
    return np.concatenate([nodes[None], np.linalg.inv(np.vander(nodes, increasing=True))])


@dataclass(frozen=True, slots=True)
class Phases:
    """Filter weights for resampling by the ratio ``up / down``, for each of the ``up`` phases (positions of an output
    between two inputs). Output k is the sum of ``taps[k % up]`` times the inputs from k // up * down + ``first[k %
    up]`` on."""

    up: int
    down: int
    taps: F32
    """Filter weights (taps) of each phase, float32[up, taps]."""
    first: npt.NDArray[np.int64]
    """Index of the first input of each phase, int64[up]."""

    @property
    def width(self) -> int:
        """Number of filter weights per phase."""
        return int(self.taps.shape[1])


@dataclass(frozen=True, slots=True)
class Groups(Phases):
    """Filter weights of GROUP phases together: a GPU thread computes their outputs from the same inputs. ``taps`` is
    [groups, inputs, GROUP]; ``first`` [groups] is the first input of each group."""


def _same_rate() -> Phases:
    return Phases(1, 1, np.ones((1, 1), np.float32), np.zeros(1, np.int64))


@lru_cache(64)
def phases(ratio: Fraction, lobes: int) -> Phases | None:
    """Return dali-run's filter weights for resampling by ``ratio``, which add up to 1 in each phase. Return None if
    there are too many phases."""
    if ratio == 1:
        return _same_rate()
    up, down = ratio.numerator, ratio.denominator
    shrink = min(1.0, up / down)
    half = math.ceil(lobes / shrink)
    if up * (2 * half + 1) > _MAX:
        return None
    at = np.arange(up) * down / up
    first = np.floor(at).astype(np.int64) - half
    places = first[:, None] + np.arange(2 * half + 1) - at[:, None]
    taps = _kernel(lobes, places * shrink)
    return Phases(up, down, (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32), first)


@lru_cache(64)
def torchaudio_phases(ratio: Fraction) -> Phases | None:
    """Return the filter weights that torchaudio.functional.resample uses by default: a sinc of six lobes with a squared
    cosine window, cut off at 0.99 of the lower Nyquist frequency. Return None if there are too many phases."""
    if ratio == 1:
        return _same_rate()
    up, down = ratio.numerator, ratio.denominator
    cutoff = min(up, down) * _TORCHAUDIO_ROLLOFF
    width = math.ceil(_TORCHAUDIO_LOBES * down / cutoff)
    if up * (2 * width + down) > _MAX_TORCHAUDIO:
        return None
    t = np.arange(0, -up, -1)[:, None] / up + np.arange(-width, width + down)[None] / down
    t = np.clip(t * cutoff, -_TORCHAUDIO_LOBES, _TORCHAUDIO_LOBES)
    taps = np.sinc(t) * np.cos(t * math.pi / _TORCHAUDIO_LOBES / 2) ** 2 * cutoff / down
    return Phases(up, down, taps.astype(np.float32), np.full(up, -width, np.int64))


@lru_cache(64)
def grouped(find: Callable[..., Phases | None], *of: Any) -> Groups | None:
    """Return the filter ``find(*of)`` with its phases in groups, without weights that are 0. If there are few phases,
    they are repeated so that a block of GPU threads has enough work and most groups are full."""
    found = find(*of)
    if found is None:
        return None
    if found.taps.size == 1:  # the same rate: neighbours of a value must not even be multiplied by 0
        return Groups(64, 64, np.ones((8, 1, GROUP), np.float32), np.zeros(8, np.int64))
    times = max(range(1, max(GROUP * WARPS // found.up, 1) + 1), key=lambda n: (-(-n * found.up % GROUP) / n, n))
    up = found.up * times
    groups = -(-up // GROUP)
    used = np.tile(found.taps != 0, (times, 1))
    least, end = used.argmax(axis=1), used.shape[1] - used[:, ::-1].argmax(axis=1)
    first = (np.arange(times)[:, None] * found.down + found.first).reshape(-1)
    edges = np.arange(0, up, GROUP)
    starts = np.minimum.reduceat(first + least, edges)
    width = max(2, int((np.maximum.reduceat(first + end, edges) - starts).max()))
    taps = np.zeros((groups, width, GROUP), np.float32)
    phase, tap = np.nonzero(used)
    taps[phase // GROUP, first[phase] + tap - starts[phase // GROUP], phase % GROUP] = found.taps[phase % found.up, tap]
    return Groups(up, found.down * times, taps, starts)


def trimmed(source: Phases) -> Phases:
    """Return ``source`` without the weights at both ends that are 0 in every phase."""
    used: Any = np.flatnonzero(np.any(source.taps != 0, axis=0))
    lo, hi = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return Phases(source.up, source.down, np.ascontiguousarray(source.taps[:, lo:hi]), source.first + lo)
