"""Random numbers as PyTorch draws them: ``torch.manual_seed`` governs, or `manual_seed` where torch is not imported.

PyTorch's generator of the CPU is a Mersenne twister, as NumPy has one. Its state is taken over when a call begins to
draw and is handed back at the end, so that a call draws the numbers that torchvision would have drawn, at a fraction of
the cost.
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

_KEYS = 624
_DEFAULT_SEED = 67280421310721
"""PyTorch's."""
_AHEAD = 256
_LOCK = threading.RLock()


def _seeded(seed: int) -> np.random.MT19937:
    """PyTorch's generator after ``manual_seed(seed)``."""
    key: Any = np.random.RandomState(seed & 0xFFFFFFFF).get_state()[1]  # type: ignore[index]
    bits = np.random.MT19937(0)
    bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": _KEYS}}
    return bits


_own = _seeded(_DEFAULT_SEED)


def manual_seed(seed: int) -> None:
    """Seed the random numbers of all transforms, as ``torch.manual_seed`` does (which this calls where torch is
    imported)."""
    global _own
    torch = sys.modules.get("torch")
    if torch is None:
        _own = _seeded(seed)
    else:
        torch.manual_seed(seed)


@cache
def _range(low: float, high: float) -> tuple[float, float]:
    first = np.float32(low)
    return float(np.float32(high) - first), float(first)


class Draws:
    """The random numbers of one call, as a context: while it lasts, no other thread draws."""

    def __init__(self) -> None:
        self._bits: np.random.MT19937 | None = None
        self._before: Any = None
        self._words: list[int] = []
        self._taken = 0

    def __enter__(self) -> Draws:
        _LOCK.acquire()
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self._give_back()
        finally:
            _LOCK.release()

    def _begin(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            self._bits = _own
        else:
            raw = torch.get_rng_state().numpy()
            left, place = int(raw[8:12].view(np.int32)[0]), int(raw[16:24].view(np.uint64)[0])
            key = raw[24 : 24 + 8 * _KEYS].view(np.uint64).astype(np.uint32)
            self._bits = np.random.MT19937(0)
            place = _KEYS if left == 1 else place
            self._bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": place}}
        self._before, self._words, self._taken = self._bits.state, [], 0

    def _give_back(self) -> None:
        if self._bits is None:
            return
        self._bits.state = self._before
        if self._taken:
            self._bits.random_raw(self._taken, output=False)
        torch = sys.modules.get("torch")
        if torch is not None and self._taken:
            state: Any = self._bits.state["state"]
            raw = torch.get_rng_state()
            view = raw.numpy()
            view[8:12].view(np.int32)[0] = _KEYS + 1 - state["pos"]
            view[16:24].view(np.uint64)[0] = state["pos"]
            view[24 : 24 + 8 * _KEYS].view(np.uint64)[:] = state["key"]
            torch.set_rng_state(raw)
        self._bits = None

    def word(self) -> int:
        """The next 32 bits."""
        if self._bits is None:
            self._begin()
        if self._taken >= len(self._words):
            assert self._bits is not None
            self._words += self._bits.random_raw(_AHEAD).tolist()
        self._taken += 1
        return self._words[self._taken - 1]

    def rand(self) -> float:
        """``torch.rand(1)``."""
        return (self.word() & 0xFFFFFF) * 2.0**-24

    def uniform(self, low: float, high: float) -> float:
        """``torch.empty(1).uniform_(low, high)``."""
        span, first = _range(low, high)
        return float(np.float32((self.word() & 0xFFFFFF) * 2.0**-24 * span + first))

    def integer(self, low: int, high: int) -> int:
        """``torch.randint(low, high, (1,))``."""
        return self.word() % (high - low) + low

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
