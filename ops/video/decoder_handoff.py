"""Hand a paused video decoder from one batch to the next, so that a group of pictures that two batches share is decoded
once.

`readers.video` creates a `DecoderHandoff` per shared group; `video.nvdec` passes decoders through it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar


class PausedDecoder(Protocol):
    """A video decoder that stopped in the middle of a group of pictures, with the frames that it output before they
    were requested."""

    def close(self) -> None:
        """Close the decoder; called if no batch continues from it."""
        ...


T = TypeVar("T", bound=PausedDecoder)


class _State(Enum):
    EXPECTED, COMING, THERE, GONE = range(4)


class DecoderHandoff(Generic[T]):
    """A decoder that is passed from the batch that called `claim` to the batch that requests it by `then` or `wait`.

    The requesting batch waits only if the earlier batch has already started; so it never waits for a batch that never
    comes. If the handoff fails, the group is decoded a second time. Any thread may call any method.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        """Number of the group of pictures in which the decoder pauses (`media.group_of`)."""
        self.reading: Future[Any] | None = None
        """Future of the thread that reads the earlier packets of the file; None if the thread that decodes also
        reads."""
        self._state = _State.EXPECTED
        self._left: T | None = None
        self._then: Callable[[T | None], object] | None = None
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether the handoff has ended: the decoder was taken, or none will be passed on."""
        return self._state is _State.GONE

    def claim(self) -> None:
        """Declare that the earlier batch has started; it will call `give` or `fail`."""
        with self._lock:
            if self._state is _State.EXPECTED:
                self._state = _State.COMING

    def give(self, decoder: T) -> None:
        """Pass ``decoder`` on to the later batch; it is closed if no batch will take it."""
        with self._lock:
            coming, then, self._then = self._state is _State.COMING, self._then, None
            if coming:
                self._state = _State.THERE if then is None else _State.GONE
                self._left = decoder if then is None else None
        if not coming:
            decoder.close()
        elif then is not None:
            then(decoder)

    def fail(self) -> None:
        """End the handoff without a decoder, unless one was given already."""
        self._end(_State.EXPECTED, _State.COMING)

    def drop(self) -> None:
        """End the handoff because no batch will take the decoder; a decoder that was given is closed."""
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
        """Call ``work`` with the paused decoder, in this thread or in the one that calls `give`. If the earlier batch
        has not started or has failed, call it with None at once."""
        with self._lock:
            if self._state is _State.COMING:
                self._then = work
                return
            left, self._left, self._state = self._left, None, _State.GONE
        work(left)

    def wait(self) -> T | None:
        """Wait until the earlier batch has passed on its decoder, and return it; None if that batch has not started or
        has failed. Like `then`, for threads that may block."""
        there, found = threading.Event(), list[T | None]()

        def take(left: T | None) -> None:
            found.append(left)
            there.set()

        self.then(take)
        there.wait()
        return found[0]


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """Groups of pictures that one batch shares with the batches before and after it, because a batch ends in the middle
    of a group."""

    before: DecoderHandoff[Any] | None = None
    """Handoff from the batch before, if this batch's first frames lie in the middle of a group; else None."""
    after: DecoderHandoff[Any] | None = None
    """Handoff to the batch after, if this batch's last frames lie in the middle of a group; else None."""
    repeated_frames: frozenset[int] = frozenset()
    """Numbers of the frames that the batch after this one also needs, all of one file."""

    def of(self, *, first: bool, last: bool) -> SharedGroups:
        """Return the shared groups of pictures for one item of the batch, which is the ``first`` item, the ``last``,
        both or neither."""
        return SharedGroups(self.before if first else None, self.after if last else None, self.repeated_frames)

    def claim(self) -> None:
        """Declare that the batch has started."""
        if self.after is not None:
            self.after.claim()

    def end(self) -> None:
        """End the handoffs to both neighbouring batches, because this batch is complete, or will never be computed."""
        if self.after is not None:
            self.after.fail()
        if self.before is not None:
            self.before.drop()
