"""Compiled loops for beta-distributed numbers from Philox streams: ratios of gamma-distributed numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from .philox_cpu import draw


@njit(nogil=True, cache=True)
def _unit(key: Any, sequence: Any, at: Any) -> Any:
    """Return a random float64 in (0, 1), from two random words."""
    word = draw(key, sequence, at) | draw(key, sequence, at + 1) << np.uint64(32)
    return (float(word >> np.uint64(11)) + 0.5) * 2.0**-53


@njit(nogil=True, cache=True)
def _log_gamma_variate(key: Any, sequence: Any, at: Any, shape: Any) -> Any:
    """Return the logarithm of a gamma-distributed number, made from random word ``at`` on, and the index of the next
    word.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 26(3), 2000); for shapes below 1,
    times their power of a uniform number, which only a logarithm can represent.
    """
    boost = 0.0
    if shape < 1:
        boost = math.log(_unit(key, sequence, at)) / shape
        at += 2
        shape += 1
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        u, turn = _unit(key, sequence, at), _unit(key, sequence, at + 2)
        normal = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * turn)
        test = _unit(key, sequence, at + 4)
        at += 6
        v = 1.0 + c * normal
        if v > 0:
            v = v * v * v
            if math.log(test) < 0.5 * normal * normal + d - d * v + d * math.log(v):
                return math.log(d * v) + boost, at


@njit(nogil=True, cache=True)
def beta_variates(key: Any, sequences: Any, counts: Any, skip: Any, alpha: Any, beta: Any, out: Any) -> None:
    """Write ``counts`` [N] beta-distributed numbers per sample to ``out`` [T]; number j begins at word j * ``skip``."""
    row = 0
    for i in range(len(counts)):
        for j in range(counts[i]):
            x, at = _log_gamma_variate(key, sequences[i], j * skip, alpha[i])
            y, at = _log_gamma_variate(key, sequences[i], at, beta[i])
            out[row] = 1.0 / (1.0 + math.exp(min(y - x, 700.0)))
            row += 1
