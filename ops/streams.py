"""Random numbers: Philox4x32-10 streams, one per sample, computed for a whole batch at once.

Generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11). A stream is (key, sequence); its draw
number ``k`` is a pure function of the three, so that no state has to be stored, skipped or restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(key: int, high: U64, low: U64) -> U32:
    """Return the four 32-bit words of the generator Philox4x32-10 for each counter ``high`` x 2^64 + ``low``:
    uint32[..., 4], for arrays of equal shape."""
    c0, c1, c2, c3 = low & _LOW, low >> _32, high & _LOW, high >> _32
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _32) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Streams:
    """N random streams, one per sample. Draw number k of a stream is a function of k, the key and the sample's
    counter."""

    key: int
    sequence: U64
    """High half of the counters, uint64[N]."""
    low: int = 0
    """Low half of the counter at draw 0; not 0 if the streams continue from a saved state of a generator."""
    phase: int = 0
    """Index of draw 0 among the four words of its counter; see ``low``."""

    @property
    def handle(self) -> Any:
        """The streams as an argument of compiled loops: the key, or (key, low, phase) if draws do not begin at 0; see
        `philox_cpu.block`."""
        key = np.uint64(self.key)
        return (key, np.uint64(self.low), np.uint64(self.phase)) if self.low or self.phase else key

    @property
    def start(self) -> tuple[Any, Any, Any]:
        """Return the streams as arguments of CUDA kernels: key, counter of draw 0, and index of draw 0 among the
        counter's four words."""
        return np.uint64(self.key), np.uint64(self.low), np.int32(self.phase)

    def draws(self, at: int | npt.NDArray[Any]) -> U32:
        """Return draw number ``at`` of each stream, uint32[N]; for an array of k numbers, uint32[N, k]."""
        at = np.asarray(at, np.uint64) + np.uint64(self.phase)
        number = (at >> np.uint64(2)) + np.uint64(self.low)  # an overflow is carried to the high half
        low = np.broadcast_to(number, (len(self.sequence), *at.shape))
        high = self.sequence.reshape(-1, *(1,) * at.ndim) + (number < np.uint64(self.low)).astype(np.uint64)
        words = philox(self.key, high, low)
        phase = np.broadcast_to((at & np.uint64(3)).astype(np.int64), low.shape)
        return np.take_along_axis(words, phase[..., None], axis=-1)[..., 0]

    def take(self, where: Any) -> Streams:
        """Return the streams of the samples at ``where``."""
        return Streams(self.key, self.sequence[where], self.low, self.phase)


def uniform(draws: U32, low: npt.ArrayLike, high: npt.ArrayLike) -> F32:
    """Convert random draws to float32 numbers in [low, high) by DALI 2.4's formula: min(fma(draw, (b - low) 2^-32,
    low), b), where b is the number next below ``high``. Here the fused multiply-add is computed in float64, in which
    the product is exact; only a sum that is not exact in float64 is rounded twice. Equal to DALI on all values
    compared."""
    if isinstance(low, np.float32) and isinstance(high, np.float32):
        a, b, factor = uniform_range(low, high)
    else:
        a, b, factor = ends_of(np.asarray(low, np.float32), np.asarray(high, np.float32))
    v = (draws.astype(np.float32).astype(np.float64) * factor + a).astype(np.float32)
    below: F32 = np.minimum(v, b)
    return below


def ends_of(a: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return the constants of `uniform` for numbers from ``a`` to ``high``: smallest number, largest number, and factor
    for draws."""
    b = np.nextafter(high, a)
    return a, b, ((b - a) * np.float32(2.0**-32)).astype(np.float64)


uniform_range = lru_cache(64)(ends_of)
"""`ends_of`, cached for the last 64 ranges."""


def seed_sequence(seed: int, n: int) -> U32:
    """Derive ``n`` 32-bit seeds from one, by the algorithm of C++'s std::seed_seq{seed} (ISO C++ [rand.util.seedseq]).
    DALI gives these seeds to the operators without a seed, in the order of a depth-first search from the outputs."""
    words = [seed & 0xFFFFFFFF]
    if n == 0:
        return np.empty(0, np.uint32)
    out = [0x8B8B8B8B] * n
    s = len(words)
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p, q, m = (n - t) // 2, (n - t) // 2 + t, max(s + 1, n)

    def mix(x: int) -> int:
        return x ^ (x >> 27)

    for k in range(m):
        r1 = 1664525 * mix(out[k % n] ^ out[(k + p) % n] ^ out[(k - 1) % n]) & 0xFFFFFFFF
        r2 = (r1 + (s if k == 0 else k % n + words[k - 1] if k <= s else k % n)) & 0xFFFFFFFF
        out[(k + p) % n] = (out[(k + p) % n] + r1) & 0xFFFFFFFF
        out[(k + q) % n] = (out[(k + q) % n] + r2) & 0xFFFFFFFF
        out[k % n] = r2
    for k in range(m, m + n):
        r3 = 1566083941 * mix((out[k % n] + out[(k + p) % n] + out[(k - 1) % n]) & 0xFFFFFFFF) & 0xFFFFFFFF
        r4 = (r3 - k % n) & 0xFFFFFFFF
        out[(k + p) % n] ^= r3
        out[(k + q) % n] ^= r4
        out[k % n] = r4
    return np.array(out, np.uint32)
