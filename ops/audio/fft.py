"""Factorisation of Fourier transforms into passes, for the CPU and for the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

_ROW = 16  # floats per row, as `lanes_cpu.ROW`


@dataclass(frozen=True, slots=True)
class FftPlan:
    """Plan of an in-place fast Fourier transform by decimation in frequency, with one pass per radix. Results are not
    in the order of frequencies; see `row_of_frequency`."""

    radices: npt.NDArray[np.int64]
    twiddles: npt.NDArray[np.float32]
    """Twiddle factors of all passes, as pairs of real and imaginary part. Each butterfly has radix - 1 factors."""
    row_of_frequency: npt.NDArray[np.int64]
    """Row of the transform's result that contains each frequency, int64[size]."""

    @property
    def place_of_rows(self) -> npt.NDArray[np.int64]:
        """Position of each frequency's row in the CPU's working memory, in floats."""
        return self.row_of_frequency * _ROW


@lru_cache(64)
def plan(size: int, max_radix: int = 5, eights: bool = False) -> FftPlan | None:
    """Return the plan of a Fourier transform of ``size`` numbers; None if ``size`` has a prime factor above
    ``max_radix``. ``eights``: use radix 8 for as many passes as possible, which pays on processors with enough
    registers."""
    radices: list[int] = []
    left = size
    for radix in (*[8] * eights, 4, 2, 3, 5, *range(7, max_radix + 1, 2)):
        while left % radix == 0:
            radices.append(radix)
            left //= radix
    if left != 1:
        return None
    twiddles: list[npt.NDArray[Any]] = []
    length, frequency = size, np.zeros(1, np.int64)
    for radix in radices:
        part = length // radix
        turns = np.exp(-2j * np.pi * np.outer(np.arange(part), np.arange(1, radix)) / length)
        twiddles.append(np.stack([turns.real, turns.imag], -1).reshape(-1))
        length = part
    for radix in reversed(radices):
        frequency = np.concatenate([frequency * radix + k for k in range(radix)])
    place = np.empty(size, np.int64)
    place[frequency] = np.arange(size)
    return FftPlan(np.array(radices, np.int64), np.concatenate([np.empty(0), *twiddles]).astype(np.float32), place)
