"""Inputs of audio's golden cases, the same for DALI and for the tests."""

import numpy as np


def source(seed, kind, shape):
    """The input of case ``seed``: signals, spectra, or bursts of noise in near silence."""
    random = np.random.default_rng(seed)
    if kind == "zeros":
        return np.zeros(shape, np.float32)
    if kind == "power":
        return (random.random(shape) ** 4 * 10).astype(np.float32)
    if kind == "quiet":
        return (random.standard_normal(shape) * 0.2).clip(-0.99, 0.99).astype(np.float32)
    if kind == "int16":
        return random.integers(-20000, 20000, shape).astype(np.int16)
    if kind.startswith("burst"):
        n = shape[0]
        first = int(random.integers(0, n))
        signal = random.standard_normal(n) * 1e-3
        last = first + int(random.integers(1, n - first + 1))
        signal[first:last] += random.standard_normal(last - first) * 0.3
        return (signal * 30000).astype(np.int16) if kind == "burst_int16" else signal.astype(np.float32)
    return random.standard_normal(shape).astype(np.float32)
