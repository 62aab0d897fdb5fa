"""Relay: the decoder of one batch goes on in the next, in the same group of pictures, so that each group is decoded
once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar


class Left(Protocol):
    """A decoder in the middle of a group, and the frames that it gave too soon."""

    def close(self) -> None:
        """Nobody goes on from here."""
        ...


T = TypeVar("T", bound=Left)


class _State(Enum):
    EXPECTED, COMING, THERE, GONE = range(4)


class Relay(Generic[T]):
    """One hand-over, from the batch that `claim`s it to the one that asks by `then` or `wait`.

    Whoever asks waits for work that has begun, and for no other: so nothing waits for a batch that never comes, and a
    hand-over that comes to nothing costs that the group is decoded twice.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        """Of pictures, that is left in the middle (`media.group_of`)."""
        self.reading: Future[Any] | None = None
        """Of what comes before in the file, where others read it than decode it."""
        self._state = _State.EXPECTED
        self._left: T | None = None
        self._then: Callable[[T | None], object] | None = None
        self._lock = threading.Lock()

    @property
    def gone(self) -> bool:
        """Nothing will come of it."""
        return self._state is _State.GONE

    def claim(self) -> None:
        """Its work has begun; `give` or `fail` will follow."""
        with self._lock:
            if self._state is _State.EXPECTED:
                self._state = _State.COMING

    def give(self, left: T) -> None:
        """Hand on ``left``; it is closed where nobody will take it."""
        with self._lock:
            coming, then, self._then = self._state is _State.COMING, self._then, None
            if coming:
                self._state = _State.THERE if then is None else _State.GONE
                self._left = left if then is None else None
        if not coming:
            left.close()
        elif then is not None:
            then(left)

    def fail(self) -> None:
        """There is nothing to hand on, unless it was given already."""
        self._end(_State.EXPECTED, _State.COMING)

    def drop(self) -> None:
        """Nobody will take it."""
        self._end(*_State)

    def _end(self, *states: _State) -> None:
        with self._lock:
            if self._state not in states:
                return
            left, then, self._left, self._then = self._left, self._then, None, None
            self._state = _State.GONE
        if left is not None:
            left.close()
        if then is not None:
            then(None)

    def then(self, work: Callable[[T | None], object]) -> None:
        """Call ``work`` with what was left, here or in the thread that gives it; with None, at once, where the batch
        before has not begun, or failed."""
        with self._lock:
            if self._state is _State.COMING:
                self._then = work
                return
            left, self._left, self._state = self._left, None, _State.GONE
        work(left)

    def wait(self) -> T | None:
        """As `then`, in this thread."""
        there, found = threading.Event(), list[T | None]()

        def take(left: T | None) -> None:
            found.append(left)
            there.set()

        self.then(take)
        there.wait()
        return found[0]


@dataclass(frozen=True, slots=True)
class Ends:
    """The groups that a batch shares with its neighbours."""

    before: Relay[Any] | None = None
    """Where its first frames begin in the middle of a group."""
    after: Relay[Any] | None = None
    """Where its last ones end there."""
    again: frozenset[int] = frozenset()
    """Frames of it that the batch after it wants, too, all of one file."""

    def of(self, *, first: bool, last: bool) -> Ends:
        """Of the part of a batch that is its ``first``, or ``last``, or both."""
        return Ends(self.before if first else None, self.after if last else None, self.again)

    def claim(self) -> None:
        """The batch begins."""
        if self.after is not None:
            self.after.claim()

    def end(self) -> None:
        """The batch is done, or will never be: nobody waits for it any more, nor does it for another."""
        if self.after is not None:
            self.after.fail()
        if self.before is not None:
            self.before.drop()
