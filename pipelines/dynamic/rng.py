"""Random generators of the dynamic mode, with DALI's numbers: Philox4x32-10, seven numbers per call of an operator.

A call takes 7 x 32 bits from the generator as the state of the operator's own streams: 64 bits of key, 128 bits of
counter, and which of the counter's four words comes first (found by comparison with DALI 2.4). Sample i of the operator
then begins 65537 i sequences further on, as in pipelines.
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
    """State of a random generator: its key, and the number of the next draw. ``str`` of it is in DALI's format, and can
    be stored and passed to `RNG`."""

    __slots__ = ("at", "key")

    def __init__(self, key: int, at: int) -> None:
        self.key = key
        self.at = at
        """Number of the next draw, below 2^130: 4 * counter + word (the 128-bit counter yields four 32-bit words)."""

    @staticmethod
    def parse(text: str) -> RNGState:
        """Return the state whose ``str`` is ``text``. Raises ValueError."""
        match = _FORMAT.fullmatch(text)
        if match is None:
            raise ArgumentValueError(
                f"{text!r} is not the state of a random generator; one looks like {RNGState(7, 0)}"
            )
        key, high, low, phase = (int(part, 16) for part in match.groups())
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
    """A random generator. Operators that draw random numbers accept it as ``rng=``; calling it returns a number of 32
    bits."""

    __slots__ = ("_at", "_key", "_words")

    def __init__(self, seed: int | None = None, state: RNGState | str | None = None) -> None:
        """Start from a ``seed`` of 64 bits or continue from a ``state``; without either, from a random seed. Raises
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
        """The seed. It can only be set, which restarts the generator; reading it raises an error."""
        raise AttributeError("the seed of a generator can be set, but not read; read its state instead")

    @seed.setter
    def seed(self, value: int) -> None:
        self._seed(value)

    @property
    def state(self) -> RNGState:
        """The generator's current state."""
        return RNGState(self._key, self._at)

    @state.setter
    def state(self, value: RNGState | str) -> None:
        self.set_state(value)

    @property
    def place(self) -> int:
        """Number of the generator's next draw."""
        return self._at

    def get_state(self, cuda_stream: Any = None) -> RNGState:
        """Return the generator's state, like `state`. The method exists because readers have it too."""
        return self.state

    def set_state(self, value: RNGState | str) -> None:
        """Continue from ``value``, a state or its text. Raises ValueError."""
        state = value if isinstance(value, RNGState) else RNGState.parse(str(value))
        self._key, self._at = state.key, state.at

    def clone(self) -> RNG:
        """Return a second generator with the same state."""
        return RNG(state=self.state)

    def advance(self, n: int) -> None:
        """Skip ``n`` draws. Raises ValueError for a negative number."""
        if n < 0:
            raise ArgumentValueError(f"a generator cannot go back, got {n}")
        self._at = (self._at + n) & ((1 << 130) - 1)

    def __call__(self) -> int:
        """Draw a random number below 2^32."""
        self._draw()
        self.advance(1)
        return int(self._words[0])

    def _draw(self) -> None:
        counter = self._at >> 2
        _kernels.words_from(self._key, counter >> 64, counter & _64, self._at & 3, self._words)

    def seven(self) -> tuple[int, int, int, int]:
        """Draw seven numbers, and return them as the state with which one operator call starts its random numbers:
        (key, low half of the counter, high half, word)."""
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
    """Return this thread's default generator, from which calls without ``rng=`` draw."""
    return _local.rng


def set_seed(seed: int) -> None:
    """Restart this thread's default generator from ``seed``."""
    _local.rng.seed = seed
