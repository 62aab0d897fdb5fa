"""Random generators of the dynamic mode, with DALI's draws: Philox4x32-10, seven numbers for each call of an operator.

A call takes 7 x 32 bits of the generator and makes the state of the operator's own streams of them: 64 bits of key, 128
of counter, and which of the counter's four words comes first (found by comparison with DALI 2.4). The operator's
sample i then draws 65537 i sequences further on, as in pipelines.
"""

from __future__ import annotations

import re
import secrets
import threading
from typing import Any

import numpy as np

from ...ops.errors import ArgumentTypeError, ArgumentValueError
from ...ops.kernels import Kernels

_kernels: Any = Kernels("...ops.draws.philox_cpu", __package__)
_64 = (1 << 64) - 1
_FORMAT = re.compile(r"Philox_([0-9A-F]{16})_([0-9A-F]{16}):([0-9A-F]{16})_([0-3])", re.IGNORECASE)


class RNGState:
    """The state of a generator: its key, and the place of the next draw. ``str`` of it can be stored, as DALI writes
    it, and given to `RNG`."""

    __slots__ = ("at", "key")

    def __init__(self, key: int, at: int) -> None:
        self.key = key
        self.at = at
        """Number of the next draw, below 2^130: four times the counter, and the word of it."""

    @staticmethod
    def parse(text: str) -> RNGState:
        """The state that was written as ``text``. Raises ValueError."""
        found = _FORMAT.fullmatch(text)
        if found is None:
            raise ArgumentValueError(f"{text!r} is no state of a random generator; one looks like {RNGState(7, 0)}")
        key, high, low, phase = (int(part, 16) for part in found.groups())
        return RNGState(key, (high << 64 | low) << 2 | phase)

    def __str__(self) -> str:
        counter, phase = divmod(self.at, 4)
        return f"Philox_{self.key:016X}_{counter >> 64:016X}:{counter & _64:016X}_{phase}"

    def __repr__(self) -> str:
        return f"RNGState({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RNGState) and (self.key, self.at) == (other.key, other.at)

    def __hash__(self) -> int:
        return hash((self.key, self.at))


class RNG:
    """A random generator. Operators that draw take it as ``rng=``; a call gives a number of 32 bits."""

    __slots__ = ("_at", "_key", "_words")

    def __init__(self, seed: int | None = None, state: RNGState | str | None = None) -> None:
        """From a ``seed`` of 64 bits, or going on from a ``state``; from a random seed without either. Raises
        TypeError and ValueError."""
        if seed is not None and state is not None:
            raise ArgumentValueError("seed and state exclude each other")
        self._words = np.empty(7, np.uint32)
        self._key = self._at = 0
        if state is not None:
            self.set_state(state)
        else:
            self._seed(secrets.randbits(64) if seed is None else seed)

    def _seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise ArgumentTypeError(f"a seed is an integer, got {seed!r}")
        self._key, self._at = int(seed) & _64, 0

    @property
    def seed(self) -> int:
        """May only be set: it starts the generator anew."""
        raise AttributeError("the seed of a generator can be set, not read; its state can")

    @seed.setter
    def seed(self, value: int) -> None:
        self._seed(value)

    @property
    def state(self) -> RNGState:
        """Where the generator is."""
        return RNGState(self._key, self._at)

    @state.setter
    def state(self, value: RNGState | str) -> None:
        self.set_state(value)

    @property
    def place(self) -> int:
        """The number of the next draw."""
        return self._at

    def get_state(self, cuda_stream: Any = None) -> RNGState:
        """As `state`; readers have the same method."""
        return self.state

    def set_state(self, value: RNGState | str) -> None:
        """Go on from ``value``, a state or its text. Raises ValueError."""
        state = value if isinstance(value, RNGState) else RNGState.parse(str(value))
        self._key, self._at = state.key, state.at

    def clone(self) -> RNG:
        """Another generator that goes on from here."""
        return RNG(state=self.state)

    def advance(self, n: int) -> None:
        """Leave out ``n`` draws. Raises ValueError for a number below 0."""
        if n < 0:
            raise ArgumentValueError(f"a generator cannot go back, got {n}")
        self._at = (self._at + n) & ((1 << 130) - 1)

    def __call__(self) -> int:
        """The next number, below 2^32."""
        self._draw()
        self.advance(1)
        return int(self._words[0])

    def _draw(self) -> None:
        counter = self._at >> 2
        _kernels.words_from(self._key, counter >> 64, counter & _64, self._at & 3, self._words)

    def seven(self) -> tuple[int, int, int, int]:
        """The numbers for one call of an operator: key, counter (low and high half), word of the operator's streams."""
        self._draw()
        self.advance(7)
        a, b, c, d, e, f, g = self._words.tolist()
        return a | b << 32, c | d << 32, e | f << 32, g & 3

    def __repr__(self) -> str:
        return f"RNG(state={str(self.state)!r})"


class _Local(threading.local):
    def __init__(self) -> None:
        self.rng = RNG()


_local = _Local()


def get_default_rng() -> RNG:
    """This thread's generator, which calls without ``rng=`` draw from."""
    return _local.rng


def set_seed(seed: int) -> None:
    """Start this thread's generator anew."""
    _local.rng.seed = seed
