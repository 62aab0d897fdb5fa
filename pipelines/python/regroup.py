"""Regroup: samples of a pipeline's batches, collected into full batches or into batches of one shape."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.batch import I64, Batch, Samples, concat
from .tensors import TensorList

Outputs = tuple[TensorList, ...]
Key = tuple[int, ...]


class Regroup:
    """Samples of a pipeline that wait until there are enough for a batch (settings ``batching: full`` and ``batching:
    shapes``). Owned by an iterator; for one thread at a time."""

    def __init__(self, batch_size: int, by_shape: bool, delivered: Sequence[int] = ()) -> None:
        """``by_shape``: whether the first outputs of all samples in a batch have equal shapes. ``delivered``: positions
        of samples to drop, because they were delivered before a checkpoint."""
        self._batch_size, self._by_shape = batch_size, by_shape
        self._waiting: dict[Key, deque[Outputs]] = {}
        self._skip = np.array(sorted(delivered), np.int64)
        self._delivered: list[I64] = []

    def add(self, outputs: Outputs) -> None:
        """Add the samples of one batch of the pipeline to the waiting samples."""
        first = outputs[0].batch
        positions = first.samples.position
        fresh = np.flatnonzero(~np.isin(positions, self._skip))
        shapes = first.shapes[fresh] if self._by_shape else np.zeros((len(fresh), 0), np.int32)
        keys, member = np.unique(shapes, axis=0, return_inverse=True) if shapes.shape[1] else (shapes[:1], None)
        for k, key in enumerate(keys.tolist() if len(fresh) else []):
            inside = fresh if member is None else fresh[member.reshape(-1) == k]
            self._waiting.setdefault(tuple(key), deque()).append(_taken(outputs, inside))

    def full(self) -> Outputs | None:
        """Remove and return a full batch of waiting samples; None if there are too few."""
        ready = sorted(key for key, pieces in self._waiting.items() if _count(pieces) >= self._batch_size)
        return self._next(ready[0], self._batch_size) if ready else None

    def rest(self, *, fill: bool) -> Outputs | None:
        """Remove and return waiting samples at the end of an epoch, at most one batch per call; None if none are left.
        ``fill`` repeats the last sample of a group until the batch is full."""
        if not self._waiting:
            return None
        outputs = self._next(min(self._waiting), self._batch_size)
        if fill:
            outputs = _taken(outputs, np.minimum(np.arange(self._batch_size), len(outputs[0]) - 1))
        return outputs

    def clear(self) -> None:
        """Drop the waiting samples and the record of delivered samples. Called at the end of an epoch."""
        self._waiting.clear()
        self._delivered.clear()
        self._skip = np.zeros(0, np.int64)

    def first_position(self) -> int | None:
        """Return the lowest position, in the order of samples, of a waiting sample; None if none waits."""
        waiting = [piece[0].batch.samples.position[0] for pieces in self._waiting.values() for piece in pieces]
        return int(min(waiting)) if waiting else None

    def delivered_from(self, position: int) -> list[int]:
        """Return the positions of delivered samples from ``position`` on, ascending. Forget earlier ones."""
        known = np.concatenate([self._skip, *self._delivered]) if self._delivered else self._skip
        known = np.unique(known[known >= position])
        self._delivered = [known]
        positions: list[int] = known.tolist()
        return positions

    def _next(self, key: Key, most: int) -> Outputs:
        """Remove at most ``most`` of the first waiting samples of the group ``key`` (samples of equal shapes), and
        return them as a batch."""
        pieces, chosen, n = self._waiting[key], list[Outputs](), 0
        while pieces and n < most:
            piece = pieces.popleft()
            free = most - n
            if len(piece[0]) > free:
                pieces.appendleft(_taken(piece, np.arange(free, len(piece[0]))))
                piece = _taken(piece, np.arange(free))
            chosen.append(piece)
            n += len(piece[0])
        if not pieces:
            del self._waiting[key]
        outputs = chosen[0] if len(chosen) == 1 else tuple(map(_joined, zip(*chosen, strict=True)))
        self._delivered.append(outputs[0].batch.samples.position)
        return outputs


def _count(pieces: Sequence[Outputs]) -> int:
    return sum(len(piece[0]) for piece in pieces)


def _taken(outputs: Outputs, selected: Any) -> Outputs:
    """Return each output with only the samples at the indices ``selected``; nothing is copied."""
    return tuple(type(t)(t.batch.take(selected)) for t in outputs)


def _joined(lists: Sequence[TensorList]) -> TensorList:
    """Join several lists of tensors into one packed list on their device."""
    batches: list[Batch] = [t.batch for t in lists]
    parts = [b.samples for b in batches]
    samples = Samples(
        np.arange(sum(map(len, parts)), dtype=np.int32),
        np.concatenate([p.position for p in parts]),
        np.concatenate([p.epoch for p in parts]),
        np.concatenate([p.index for p in parts]),
        parts[0].origins,
    )
    whole = concat(batches, samples)
    if not whole.on_host:
        import cupy

        cupy.cuda.get_current_stream().synchronize()  # the caller's stream does not wait for the copies
    return type(lists[0])(whole)
