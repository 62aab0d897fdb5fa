"""Random numbers as PyTorch draws them: ``torch.manual_seed`` governs, or `manual_seed` where torch is not imported.

PyTorch's generator of the CPU is a Mersenne twister. Its state is taken over when a call begins to draw and is handed
back at the end, so that a call draws the numbers that torchvision would have drawn, at a fraction of the cost.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.kernels import Kernels

_loops: Any = Kernels("..ops.libraries.torchvision_window_cpu", __package__)

_KEYS, _SHIFT = 624, 397
_DEFAULT_SEED = 67280421310721
"""PyTorch's."""
_LOCK = threading.RLock()

U32 = npt.NDArray[np.uint32]


def _seeded(seed: int) -> U32:
    """The keys of PyTorch's generator after ``manual_seed(seed)``."""
    key: Any = np.random.RandomState(seed & 0xFFFFFFFF).get_state()[1]  # type: ignore[index]
    found: U32 = key.astype(np.uint32)
    return found


def _mixed(y: U32) -> U32:
    found: U32 = (y >> np.uint32(1)) ^ ((y & np.uint32(1)) * np.uint32(0x9908B0DF))
    return found


def _next(key: U32) -> U32:
    """The twister's keys after ``key``. NumPy's own generator would do, but to give it a state, and to get it back,
    takes longer than most calls draw."""
    upper, lower = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
    made, left = np.empty_like(key), _KEYS - _SHIFT
    mixed = _mixed((key[:-1] & upper) | (key[1:] & lower))
    made[:left] = key[_SHIFT:] ^ mixed[:left]
    made[left : 2 * left] = made[:left] ^ mixed[left : 2 * left]
    made[2 * left : -1] = made[left : _SHIFT - 1] ^ mixed[2 * left :]
    made[-1:] = made[_SHIFT - 1 : _SHIFT] ^ _mixed((key[-1:] & upper) | (made[:1] & lower))
    return made


def _tempered(key: U32) -> U32:
    """The words that ``key`` stands for."""
    y = key ^ (key >> np.uint32(11))
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    words: U32 = y ^ (y >> np.uint32(18))
    return words


_own: tuple[U32, int] = _seeded(_DEFAULT_SEED), _KEYS
"""Keys, and how many of their words are drawn."""


def manual_seed(seed: int) -> None:
    """Seed the random numbers of all transforms, as ``torch.manual_seed`` does (which this calls where torch is
    imported)."""
    global _own
    torch = sys.modules.get("torch")
    if torch is None:
        _own = _seeded(seed), _KEYS
    else:
        torch.manual_seed(seed)


@cache
def span(low: float, high: float) -> tuple[float, float]:
    """Width and begin of a range, as ``uniform_`` computes with it."""
    first = np.float32(low)
    return float(np.float32(high) - first), float(first)


class Draws:
    """The random numbers of one call, as a context: while it lasts, no other thread draws."""

    def __init__(self) -> None:
        self._key: U32 | None = None
        self._words: list[int] = []
        self._drawn = np.empty(0, np.uint32)
        """The same as an array."""
        self._taken = 0
        self._renewed = False
        self.used = False
        """Something was drawn."""

    def __enter__(self) -> Draws:
        _LOCK.acquire()
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self._give_back()
        finally:
            _LOCK.release()

    def _begin(self) -> U32:
        self.used = True
        torch = sys.modules.get("torch")
        if torch is None:
            key, self._taken = _own
        else:
            raw = torch.get_rng_state().numpy()
            left, place = int(raw[8:12].view(np.int32)[0]), int(raw[16:24].view(np.uint64)[0])
            key = raw[24 : 24 + 8 * _KEYS].view(np.uint64).astype(np.uint32)
            self._taken = _KEYS if left == 1 else place
        self._temper(key)
        self._renewed = False
        return key

    def _temper(self, key: U32) -> None:
        self._drawn = _tempered(key)
        self._words = self._drawn.tolist()

    def _give_back(self) -> None:
        global _own
        if self._key is None:
            return
        torch = sys.modules.get("torch")
        if torch is None:
            _own = self._key, self._taken
        else:
            raw = torch.get_rng_state()
            view = raw.numpy()
            view[8:12].view(np.int32)[0] = _KEYS + 1 - self._taken
            view[16:24].view(np.uint64)[0] = self._taken
            if self._renewed:
                view[24 : 24 + 8 * _KEYS].view(np.uint64)[:] = self._key
            torch.set_rng_state(raw)
        self._key, self._words, self._drawn, self._taken = None, [], self._drawn[:0], 0

    def word(self) -> int:
        """The next 32 bits."""
        try:
            word = self._words[self._taken]
        except IndexError:
            self._more()
            word = self._words[self._taken]
        self._taken += 1
        return word

    def _more(self) -> None:
        """See to it that there is a word."""
        self._key = self._begin() if self._key is None else self._key
        if self._taken >= _KEYS:
            self._key, self._taken, self._renewed = _next(self._key), 0, True
            self._temper(self._key)

    def rand(self) -> float:
        """``torch.rand(1)``."""
        return (self.word() & 0xFFFFFF) * 2.0**-24

    def rands(self, n: int) -> npt.NDArray[np.float64]:
        """`rand` of ``n`` calls."""
        found = np.empty(n, np.uint32)
        at = 0
        while at < n:
            self._more()
            count = min(n - at, _KEYS - self._taken)
            found[at : at + count] = self._drawn[self._taken : self._taken + count]
            self._taken, at = self._taken + count, at + count
        return (found & np.uint32(0xFFFFFF)).astype(np.float64) * 2.0**-24

    def uniform(self, low: float, high: float) -> float:
        """``torch.empty(1).uniform_(low, high)``."""
        width, first = span(low, high)
        return float(np.float32((self.word() & 0xFFFFFF) * 2.0**-24 * width + first))

    def integer(self, low: int, high: int) -> int:
        """``torch.randint(low, high, (1,))``."""
        return self.word() % (high - low) + low

    def window(self, height: int, width: int, ranges: npt.NDArray[np.float64]) -> tuple[int, int, int, int] | None:
        """A window (top, left, height, width) as torchvision's RandomResizedCrop draws it: its height is 0 where no try
        gave one. None, and nothing is drawn, where the words at hand may not be enough."""
        if self._key is None:
            self._key = self._begin()
        found = np.empty(5, np.int64)
        _loops.crop_window(self._drawn, self._taken, height, width, ranges, found)
        top, left, high, wide, taken = found.tolist()
        if taken < 0:
            return None
        self._taken = taken
        return top, left, high, wide

    def windows(self, height: int, width: int, ranges: npt.NDArray[np.float64], found: npt.NDArray[np.int64]) -> int:
        """As `window` again and again, into the rows of ``found`` [N, 4]; how many. It ends before one that no try
        gives, or for which the words at hand may not be enough: nothing is drawn for that."""
        if self._key is None:
            self._key = self._begin()
        done, self._taken = _loops.crop_windows(self._drawn, self._taken, height, width, ranges, found)
        return int(done)

    def permutation(self, n: int) -> list[int]:
        """``torch.randperm(n)``."""
        order = list(range(n))
        for i in range(n - 1):
            k = i + self.word() % (n - i)
            order[i], order[k] = order[k], order[i]
        return order

    def normal(self, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """``torch.empty(shape).normal_()``; without torch, numbers of the same distribution."""
        torch = sys.modules.get("torch")
        self.used = True
        if torch is not None:
            self._give_back()
            drawn: Any = torch.empty(list(shape), dtype=torch.float32).normal_()
            values: npt.NDArray[np.float32] = drawn.numpy()
            return values
        n = math.prod(shape)
        words = np.array([self.word() & 0xFFFFFF for _ in range(2 * n)], np.float64) * 2.0**-24
        turned: npt.NDArray[np.float64] = np.sqrt(-2 * np.log1p(-words[:n])) * np.cos(2 * np.pi * words[n:])
        made: npt.NDArray[np.float32] = turned.astype(np.float32).reshape(tuple(shape))
        return made

    def choice(self, weights: Sequence[float]) -> int:
        """``torch.multinomial(weights, 1)``; without torch, a draw of the same distribution."""
        torch = sys.modules.get("torch")
        self.used = True
        if torch is not None:
            self._give_back()
            return int(torch.multinomial(torch.tensor(weights), 1))
        at = self.rand() * sum(weights)
        return min(int(np.searchsorted(np.cumsum(weights), at, side="right")), len(weights) - 1)


def logarithms(values: Sequence[float]) -> tuple[float, ...]:
    """``torch.log`` of a tensor of float32."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return tuple(torch.log(torch.tensor(tuple(values), dtype=torch.float32)).tolist())
    return tuple(float(np.float32(math.log(float(np.float32(v))))) for v in values)
