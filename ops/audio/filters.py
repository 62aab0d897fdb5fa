"""Low-pass filters for resampling: the kernels of this package, of DALI and of torchaudio."""

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
"""Of the Kaiser window. With sixteen lobes, it and the roll-off are those of resampy's kaiser_fast."""
STEPS = 512
"""Entries of a table for each lobe; lines between them are 5e-6 from the curve."""
_DALI_STEPS = 64
MOST_PHASES = 1024
"""Of ratios that get taps for each phase. Rates that are drawn have thousands: a table that is used once cost 80 ms."""
_MOST = 1 << 18  # numbers in a table for every phase
_MOST_OF_TORCHAUDIO = 1 << 24
TURNS = 64
"""Through all phases that a block of threads on a GPU makes (cuda/audio/resample.cu has the same numbers)."""
GROUP, WARPS = 8, 8
"""Phases of a warp there, and the most warps that share inputs."""
_TORCHAUDIO_LOBES, _TORCHAUDIO_ROLLOFF = 6, 0.99


def lobes_of(quality: float) -> int:
    """Zero crossings on each side of the kernel, as DALI counts them: 3, 16 and 64 for quality 0, 50 and 100."""
    return math.floor(0.007 * quality * quality - 0.09 * quality + 3 + 0.5)


def rolloff_of(lobes: int) -> float:
    """Where the kernel cuts off, in parts of the lower Nyquist frequency: its transition band ends about there."""
    return max(0.75, 1 - 2.4 / lobes)


def _kernel(lobes: int, u: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The kernel at ``u``, in samples of the lower rate; 0 from ``lobes`` on."""
    rolloff = rolloff_of(lobes)
    inside = np.maximum(0.0, 1 - (u / lobes) ** 2)
    values: npt.NDArray[np.float64] = rolloff * np.sinc(rolloff * u) * np.i0(BETA * np.sqrt(inside)) / np.i0(BETA)
    return np.where(np.abs(u) < lobes, values, 0.0)


@lru_cache(16)
def table(lobes: int) -> F32:
    """The kernel from 0 to ``lobes``, STEPS numbers a lobe, and zeros after it."""
    u = np.arange(lobes * STEPS + 2) / STEPS
    return _kernel(lobes, u).astype(np.float32)


@lru_cache(16)
def pairs(lobes: int) -> npt.NDArray[np.uint64]:
    """The entries of `table`, each with the step to the next one above it: as one number, which is one look-up."""
    numbers = table(lobes)
    both = np.stack([numbers, np.append(numbers[1:], numbers[-1:]) - numbers], axis=1)
    return both.view(np.uint64).reshape(-1)


@lru_cache(16)
def dali_table(lobes: int) -> F32:
    """DALI's: a sinc with a Hann window, in float32, from -lobes to lobes; a zero before it and four after."""
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
    """`dali_table` by phases: a line for each part of a sample, of the entries that taps so far apart from an output
    have, and one more for what lies after the last."""
    steps = _DALI_STEPS // 2
    places = 1 + np.arange(steps + 1)[:, None] + steps * np.arange(2 * lobes)
    rows: F32 = dali_table(lobes)[places].reshape(-1)
    return rows


@lru_cache(1)
def through_nodes() -> npt.NDArray[np.float64]:
    """Eight places from -1 to 1 (Chebyshev's nodes), and a line for each power: values there, times the line, are the
    power's coefficient in the polynomial through them. Between frames the kernel is one, to 3e-6."""
    nodes = np.cos(np.pi * (np.arange(8) + 0.5) / 8)
    return np.concatenate([nodes[None], np.linalg.inv(np.vander(nodes, increasing=True))])


@dataclass(frozen=True, slots=True)
class Phases:
    """Resampling by ``up / down``: output k is the sum of ``taps[k % up]`` times inputs from
    k // up * down + ``first[k % up]``."""

    up: int
    down: int
    taps: F32
    """[up, taps]"""
    first: npt.NDArray[np.int64]
    """[up]"""

    @property
    def width(self) -> int:
        """Taps of a phase."""
        return int(self.taps.shape[1])


@dataclass(frozen=True, slots=True)
class Groups(Phases):
    """Phases in groups of GROUP, for threads that make all of them of the same inputs: ``taps`` [groups, inputs,
    GROUP], counted from ``first`` [groups]."""


def _same_rate() -> Phases:
    return Phases(1, 1, np.ones((1, 1), np.float32), np.zeros(1, np.int64))


@lru_cache(64)
def phases(ratio: Fraction, lobes: int) -> Phases | None:
    """The kernel of this package at every phase, of sum 1 each; None where there are too many."""
    if ratio == 1:
        return _same_rate()
    up, down = ratio.numerator, ratio.denominator
    shrink = min(1.0, up / down)
    half = math.ceil(lobes / shrink)
    if up * (2 * half + 1) > _MOST:
        return None
    at = np.arange(up) * down / up
    first = np.floor(at).astype(np.int64) - half
    places = first[:, None] + np.arange(2 * half + 1) - at[:, None]
    taps = _kernel(lobes, places * shrink)
    return Phases(up, down, (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32), first)


@lru_cache(64)
def torchaudio_phases(ratio: Fraction) -> Phases | None:
    """The default of torchaudio.functional.resample: a sinc of six lobes with a squared cosine as its window,
    cut off at 0.99 of the lower Nyquist frequency."""
    if ratio == 1:
        return _same_rate()
    up, down = ratio.numerator, ratio.denominator
    cutoff = min(up, down) * _TORCHAUDIO_ROLLOFF
    width = math.ceil(_TORCHAUDIO_LOBES * down / cutoff)
    if up * (2 * width + down) > _MOST_OF_TORCHAUDIO:
        return None
    t = np.arange(0, -up, -1)[:, None] / up + np.arange(-width, width + down)[None] / down
    t = np.clip(t * cutoff, -_TORCHAUDIO_LOBES, _TORCHAUDIO_LOBES)
    taps = np.sinc(t) * np.cos(t * math.pi / _TORCHAUDIO_LOBES / 2) ** 2 * cutoff / down
    return Phases(up, down, taps.astype(np.float32), np.full(up, -width, np.int64))


@lru_cache(64)
def grouped(find: Callable[..., Phases | None], *of: Any) -> Groups | None:
    """The phases ``find(*of)`` in groups, of the taps that are not 0. Few phases are there several times, so that a
    turn through all of them is work for a block of threads: as often as leaves the least of groups empty."""
    found = find(*of)
    if found is None:
        return None
    if found.taps.size == 1:  # the same rate: what is beside a value is not even multiplied by 0
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


def trimmed(found: Phases) -> Phases:
    """The same without taps of 0 at the ends of all phases."""
    used: Any = np.flatnonzero(np.any(found.taps != 0, axis=0))
    lo, hi = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return Phases(found.up, found.down, np.ascontiguousarray(found.taps[:, lo:hi]), found.first + lo)
