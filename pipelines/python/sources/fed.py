"""Inputs that a program feeds: batches as they are, and videos, each of which becomes the batches of its sequences."""

from __future__ import annotations

import queue
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....ops.errors import JobError, SampleError
from ....readers.video_input import FedSequences, VideoInput, VideoPart
from ..arrays import as_batch


@dataclass(slots=True)
class Input:
    """One operator of a pipeline that gets its data from the program."""

    name: str
    op: Any
    state: Any
    """Where the batches go; the operator's kernel takes them from there."""
    max_batch_size: int
    fed: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    """Given by feed_input, as batches."""
    last: Any = None

    @property
    def has_source(self) -> bool:
        """Asks by itself; else it waits for feed_input."""
        return False

    @property
    def is_function(self) -> bool:
        """The source is asked by number, so that it can go on from anywhere."""
        return False

    @property
    def repeats(self) -> bool:
        """The last batch is given again where nothing else was fed."""
        return False

    @property
    def ready(self) -> bool:
        """There is data for one more batch."""
        return not self.fed.empty() or self.repeats

    def poll(self, iteration: int, epoch: int) -> Any:
        """The data of the next batch: what the source gives, or what was fed. Raises StopIteration at the end."""
        del iteration, epoch
        return self._next_fed()

    def _next_fed(self) -> Any:
        try:
            self.last = self.fed.get_nowait()  # asked once: another thread may feed at any moment
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
        """Take data; it is copied now, unless ``no_copy``. Raises JobError that says what is wrong."""
        raise NotImplementedError

    def batches(self, polled: Any) -> tuple[Sized, ...]:
        """The result of `poll`, checked, as one batch an output. Raises JobError that says what is wrong."""
        raise NotImplementedError

    def say_if_lost(self) -> None:
        """Warn where a checkpoint cannot say how far the source has come."""

    def reset(self) -> None:
        """A new epoch begins."""

    def skip(self, iterations: int) -> None:
        """Go on after ``iterations`` batches of this epoch; the program feeds what follows."""


@dataclass(slots=True)
class FedVideos(Input):
    """One experimental.inputs.video of a pipeline."""

    op: VideoInput
    state: FedSequences

    def feed(self, data: Any, layout: str | None) -> None:
        """Take a video: its file's bytes, uint8 of one dimension, in a list or an array (1, N). Raises JobError."""
        try:
            batch = as_batch(data, layout or "", copy=not self.op.no_copy)
        except (TypeError, ValueError) as e:
            raise JobError(f"{self.name}: {e}") from e
        if len(batch) != 1 or batch.ndim != 1 or batch.dtype != np.uint8 or not batch.on_host:
            raise JobError(f"{self.name}: takes one video at a time, in a list: its file's bytes, an array of uint8; "
                           f"got {len(batch)} of {batch.ndim} dimensions, {batch.dtype}")  # fmt: skip
        try:
            parts = self.op.part_up(batch.sample(0), self.max_batch_size)
        except SampleError as e:
            raise JobError(f"{self.name}: {e}") from None
        for part in parts:
            self.fed.put((part,))

    def batches(self, polled: Any) -> tuple[VideoPart, ...]:
        found: tuple[VideoPart, ...] = polled
        return found
