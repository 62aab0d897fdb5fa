"""Pass a video decoder from one batch to the next, so that a group of pictures that two batches share is decoded
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
    """Video decoder that has stopped in the middle of a group of pictures (GOP), with frames that it has output
    already."""

    def close(self) -> None:
        """Close the decoder; called if no batch continues from it."""
        ...


T = TypeVar("T", bound=PausedDecoder)


class _State(Enum):
    EXPECTED, COMING, THERE, GONE = range(4)


class DecoderHandoff(Generic[T]):
    """Transfer of a video decoder from one batch to the next, which begins in the middle of the same group of pictures
    (GOP). The first batch calls `claim`; the next batch gets the decoder by `then` or `wait`. The next batch waits only
    if the first one has started, so never for a batch that does not come. If the transfer fails, the group is decoded a
    second time. Any thread may call any method."""

    def __init__(self, group: int) -> None:
        self.group = group
        """Number of the group of pictures (GOP) in which the decoder stops (`media.group_of`)."""
        self.reading: Future[Any] | None = None
        """Future of the thread that reads packets for the first batch; None if its decoding thread also reads."""
        self._state = _State.EXPECTED
        self._left: T | None = None
        self._then: Callable[[T | None], object] | None = None
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether the transfer has ended: the decoder was taken, or there will be none."""
        return self._state is _State.GONE

    def claim(self) -> None:
        """Declare that the first batch has started. It will call `give` or `fail`."""
        with self._lock:
            if self._state is _State.EXPECTED:
                self._state = _State.COMING

    def give(self, decoder: T) -> None:
        """Pass ``decoder`` on to the next batch. Close it if no batch will take it."""
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
        """End the transfer without a decoder, unless `give` was called before."""
        self._end(_State.EXPECTED, _State.COMING)

    def drop(self) -> None:
        """End the transfer because no batch will take the decoder, which is closed if it was given."""
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
        """Call ``work`` with the decoder, in this thread or in the one that calls `give`. If the first batch has not
        started or has failed, call ``work`` with None immediately."""
        with self._lock:
            if self._state is _State.COMING:
                self._then = work
                return
            left, self._left, self._state = self._left, None, _State.GONE
        work(left)

    def wait(self) -> T | None:
        """Wait for the first batch's decoder and return it; return None if that batch has not started or has failed.
        Like `then`, for threads that may block."""
        there, found = threading.Event(), list[T | None]()

        def take(left: T | None) -> None:
            found.append(left)
            there.set()

        self.then(take)
        there.wait()
        return found[0]


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """Transfers of decoders between a batch and its neighbours, because a batch may end in the middle of a group of
    pictures (GOP)."""

    before: DecoderHandoff[Any] | None = None
    """Transfer from the batch before, if this batch's first frames are in the middle of a group of pictures; else
    None."""
    after: DecoderHandoff[Any] | None = None
    """Transfer to the batch after, if this batch's last frames are in the middle of a group of pictures; else None."""
    repeated_frames: frozenset[int] = frozenset()
    """Numbers of the frames, all of one file, that the batch after this one needs again."""

    def of(self, *, first: bool, last: bool) -> SharedGroups:
        """Return the transfers that concern one item of the batch: the ``first`` item, the ``last``, both or
        neither."""
        return SharedGroups(self.before if first else None, self.after if last else None, self.repeated_frames)

    def claim(self) -> None:
        """Declare that this batch has started; see `DecoderHandoff.claim`."""
        if self.after is not None:
            self.after.claim()

    def end(self) -> None:
        """End the transfers from and to both neighbours, because this batch is complete or will never be computed."""
        if self.after is not None:
            self.after.fail()
        if self.before is not None:
            self.before.drop()
