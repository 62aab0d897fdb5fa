"""Random numbers as PyTorch draws them: from ``torch.manual_seed``, or from `manual_seed` if the program does not
import torch.

PyTorch's generator on the CPU is a Mersenne twister. A call copies its state when it begins to draw and writes it back
at the end. So a call draws the same numbers as torchvision, in a fraction of the time.
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
"""The seed that PyTorch uses by default."""
_LOCK = threading.RLock()

U32 = npt.NDArray[np.uint32]


def _seeded(seed: int) -> U32:
    """Return the state (keys) of PyTorch's generator, a Mersenne Twister, after ``manual_seed(seed)``."""
    key: Any = np.random.RandomState(seed & 0xFFFFFFFF).get_state()[1]  # type: ignore[index]
    keys: U32 = key.astype(np.uint32)
    return keys


def _mixed(y: U32) -> U32:
    mixed: U32 = (y >> np.uint32(1)) ^ ((y & np.uint32(1)) * np.uint32(0x9908B0DF))
    return mixed


def _next(key: U32) -> U32:
    """Return the next state of the Mersenne Twister after the state ``key``. NumPy's generator is not used, because
    setting and reading its state takes longer than drawing the numbers of most calls."""
    upper, lower = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
    keys, left = np.empty_like(key), _KEYS - _SHIFT
    mixed = _mixed((key[:-1] & upper) | (key[1:] & lower))
    keys[:left] = key[_SHIFT:] ^ mixed[:left]
    keys[left : 2 * left] = keys[:left] ^ mixed[left : 2 * left]
    keys[2 * left : -1] = keys[left : _SHIFT - 1] ^ mixed[2 * left :]
    keys[-1:] = keys[_SHIFT - 1 : _SHIFT] ^ _mixed((key[-1:] & upper) | (keys[:1] & lower))
    return keys


def _tempered(key: U32) -> U32:
    """Return the random words that the Mersenne Twister computes from its state ``key``."""
    y = key ^ (key >> np.uint32(11))
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    words: U32 = y ^ (y >> np.uint32(18))
    return words


_own: tuple[U32, int] = _seeded(_DEFAULT_SEED), _KEYS
"""State of the generator that is used without torch: its keys, and how many words of these keys are drawn."""


def manual_seed(seed: int) -> None:
    """Seed the random numbers of all transforms. If the program imports torch, this calls ``torch.manual_seed``."""
    global _own
    torch = sys.modules.get("torch")
    if torch is None:
        _own = _seeded(seed), _KEYS
    else:
        torch.manual_seed(seed)


@cache
def span(low: float, high: float) -> tuple[float, float]:
    """Return the width and the beginning of a range, rounded as ``uniform_`` rounds them."""
    first = np.float32(low)
    return float(np.float32(high) - first), float(first)


class Draws:
    """The random numbers of one call of a transform. A context manager: until it exits, no other thread draws
    numbers."""

    def __init__(self) -> None:
        self._key: U32 | None = None
        self._words: list[int] = []
        self._drawn = np.empty(0, np.uint32)
        """The random words of ``_words`` as an array."""
        self._taken = 0
        self._renewed = False
        self.used = False
        """Whether a number was drawn."""

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
        """Return the next 32 random bits."""
        try:
            word = self._words[self._taken]
        except IndexError:
            self._ensure_word()
            word = self._words[self._taken]
        self._taken += 1
        return word

    def _ensure_word(self) -> None:
        """Make sure that an undrawn word is available."""
        self._key = self._begin() if self._key is None else self._key
        if self._taken >= _KEYS:
            self._key, self._taken, self._renewed = _next(self._key), 0, True
            self._temper(self._key)

    def rand(self) -> float:
        """Return the value of ``torch.rand(1)``."""
        return (self.word() & 0xFFFFFF) * 2.0**-24

    def rands(self, n: int) -> npt.NDArray[np.float64]:
        """Return the results of ``n`` calls of `rand`."""
        words = np.empty(n, np.uint32)
        position = 0
        while position < n:
            self._ensure_word()
            count = min(n - position, _KEYS - self._taken)
            words[position : position + count] = self._drawn[self._taken : self._taken + count]
            self._taken, position = self._taken + count, position + count
        return (words & np.uint32(0xFFFFFF)).astype(np.float64) * 2.0**-24

    def uniform(self, low: float, high: float) -> float:
        """Return the value of ``torch.empty(1).uniform_(low, high)``."""
        width, first = span(low, high)
        return float(np.float32((self.word() & 0xFFFFFF) * 2.0**-24 * width + first))

    def integer(self, low: int, high: int) -> int:
        """Return the value of ``torch.randint(low, high, (1,))``."""
        return self.word() % (high - low) + low

    def window(self, height: int, width: int, ranges: npt.NDArray[np.float64]) -> tuple[int, int, int, int] | None:
        """Return a window (top, left, height, width) as RandomResizedCrop of torchvision draws it.

        Its height is 0 if no try succeeded. If the available words may not be enough, return None and draw nothing.
        """
        if self._key is None:
            self._key = self._begin()
        result = np.empty(5, np.int64)
        _loops.crop_window(self._drawn, self._taken, height, width, ranges, result)
        top, left, rows, columns, taken = result.tolist()
        if taken < 0:
            return None
        self._taken = taken
        return top, left, rows, columns

    def windows(self, height: int, width: int, ranges: npt.NDArray[np.float64], windows: npt.NDArray[np.int64]) -> int:
        """Draw windows as `window` does into the rows of ``windows`` [N, 4], and return how many were drawn.

        It stops before a window for which no try succeeds, or for which the available words may not be enough; it draws
        nothing for that one.
        """
        if self._key is None:
            self._key = self._begin()
        count, self._taken = _loops.crop_windows(self._drawn, self._taken, height, width, ranges, windows)
        return int(count)

    def permutation(self, n: int) -> list[int]:
        """Return the values of ``torch.randperm(n)``."""
        order = list(range(n))
        for i in range(n - 1):
            k = i + self.word() % (n - i)
            order[i], order[k] = order[k], order[i]
        return order

    def normal(self, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the values of ``torch.empty(shape).normal_()``; without torch, numbers of the same distribution."""
        torch = sys.modules.get("torch")
        self.used = True
        if torch is not None:
            self._give_back()
            drawn: Any = torch.empty(list(shape), dtype=torch.float32).normal_()
            values: npt.NDArray[np.float32] = drawn.numpy()
            return values
        n = math.prod(shape)
        words = np.array([self.word() & 0xFFFFFF for _ in range(2 * n)], np.float64) * 2.0**-24
        normals: npt.NDArray[np.float64] = np.sqrt(-2 * np.log1p(-words[:n])) * np.cos(2 * np.pi * words[n:])
        numbers: npt.NDArray[np.float32] = normals.astype(np.float32).reshape(tuple(shape))
        return numbers

    def choice(self, weights: Sequence[float]) -> int:
        """Return the value of ``torch.multinomial(weights, 1)``; without torch, a number of the same distribution."""
        torch = sys.modules.get("torch")
        self.used = True
        if torch is not None:
            self._give_back()
            return int(torch.multinomial(torch.tensor(weights), 1))
        position = self.rand() * sum(weights)
        return min(int(np.searchsorted(np.cumsum(weights), position, side="right")), len(weights) - 1)


def logarithms(values: Sequence[float]) -> tuple[float, ...]:
    """Return the values of ``torch.log`` of a float32 tensor."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return tuple(torch.log(torch.tensor(tuple(values), dtype=torch.float32)).tolist())
    return tuple(float(np.float32(math.log(float(np.float32(v))))) for v in values)
