"""Inputs that a program feeds: whole batches, or videos, each of which becomes batches of sequences."""

from __future__ import annotations

import queue
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....ops.errors import JobError, SampleError
from ....readers.videos.video_input import FedSequences, VideoBatch, VideoInput
from ..arrays import as_batch


@dataclass(slots=True)
class Input:
    """An operator of a pipeline that gets its data from the program, with the batches that were fed. Created by
    `source.input_of`, owned by the session."""

    name: str
    op: Any
    state: Any
    """Queue from which the operator takes its batches while it runs."""
    max_batch_size: int
    fed: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    """Batches passed to feed_input that are not used yet."""
    last: Any = None

    @property
    def has_source(self) -> bool:
        """Whether a source, such as a callable or iterable, provides the data; otherwise the program calls
        feed_input."""
        return False

    @property
    def is_function(self) -> bool:
        """Whether the source is a function of a sample or batch number, so that it can continue from any position."""
        return False

    @property
    def repeats(self) -> bool:
        """Whether the last batch is used again if the program has fed no other."""
        return False

    @property
    def ready(self) -> bool:
        """Whether the program has provided data for one more batch."""
        return not self.fed.empty() or self.repeats

    def poll(self, iteration: int, epoch: int) -> Any:
        """Return the data of the next batch, from the source or from feed_input. Raises StopIteration at the end."""
        del iteration, epoch
        return self._next_fed()

    def _next_fed(self) -> Any:
        try:
            self.last = self.fed.get_nowait()  # one call, because another thread may feed at any moment
        except queue.Empty:
            if self.repeats:
                return self.last
            if not self.op.blocking:
                raise JobError(
                    f"{self.name}: no data: call feed_input before each run, or run({self.name}=...)"
                ) from None
            self.last = self.fed.get()
        return self.last

    def feed(self, data: Any, layout: str | None) -> None:
        """Store the data of a batch; it is copied at once, unless the operator has ``no_copy``. Raises JobError with
        the reason if it is invalid."""
        raise NotImplementedError

    def batches(self, polled: Any) -> tuple[Sized, ...]:
        """Return the result of `poll` as one checked batch per output. Raises JobError with the reason if it is
        invalid."""
        raise NotImplementedError

    def say_if_lost(self) -> None:
        """Warn if a checkpoint cannot store how far the source has advanced, as for an iterator."""

    def reset(self) -> None:
        """Begin a new epoch of the source."""

    def skip(self, iterations: int) -> None:
        """Continue after ``iterations`` batches of this epoch. The program then feeds only the batches after these."""


@dataclass(slots=True)
class FedVideos(Input):
    """The input of one experimental.inputs.video operator: encoded videos that the program feeds."""

    op: VideoInput
    state: FedSequences

    def feed(self, data: Any, layout: str | None) -> None:
        """Store one encoded video: the bytes of its file, uint8 of one dimension, in a list or an array (1, N). Raises
        JobError."""
        try:
            batch = as_batch(data, layout or "", copy=not self.op.no_copy)
        except (TypeError, ValueError) as e:
            raise JobError(f"{self.name}: {e}") from e
        if len(batch) != 1 or batch.ndim != 1 or batch.dtype != np.uint8 or not batch.on_host:
            raise JobError(f"{self.name}: takes one video at a time, in a list: the bytes of its file as an array "
                           f"of uint8; got {len(batch)} of {batch.ndim} dimensions, {batch.dtype}")  # fmt: skip
        try:
            parts = self.op.split(batch.sample(0), self.max_batch_size)
        except SampleError as e:
            raise JobError(f"{self.name}: {e}") from None
        for part in parts:
            self.fed.put((part,))

    def batches(self, polled: Any) -> tuple[VideoBatch, ...]:
        parts: tuple[VideoBatch, ...] = polled
        return parts
