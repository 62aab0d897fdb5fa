"""MixedOrder: order of a mixture's samples, a pure function of the data sets' sizes, orders, weights and seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...ops.batch import I64, NoOrigins
from ...ops.errors import JobError
from ...ops.streams import philox
from ..order import Order

MAX_EPOCH = 1 << 32
"""Largest number of samples in an epoch of a mixture. The order of an epoch is held in memory, 24 bytes per sample."""


def samples_of_epoch(
    sizes: Sequence[int], weights: Sequence[float], epoch: Literal["shortest", "longest"], count: int | None
) -> I64:
    """Return how many samples of each data set an epoch of a mixture has. ``shortest``: as many as possible without
    repeating a record of any data set; ``longest``: as few as possible so that every record of every data set comes at
    least once. With ``count``, that many samples are divided by the weights. Raises JobError if a data set would give
    none, and if the epoch would have more than `MAX_EPOCH` samples."""
    shares = np.array(weights, np.float64) / math.fsum(weights)
    lengths = np.array(sizes, np.float64) / shares
    total = float(count if count is not None else lengths.min() if epoch == "shortest" else lengths.max())
    if total > MAX_EPOCH:
        raise JobError(f"an epoch of the mixture has {total:.4g} samples; at most {MAX_EPOCH:,} are possible: give "
                       "weights that differ less, or fewer `epoch_samples`")  # fmt: skip
    if count is not None:
        exact = shares * count
        counts = np.floor(exact).astype(np.int64)
        rest = np.argsort(counts - exact, kind="stable")[: count - int(counts.sum())]
        counts[rest] += 1
    elif epoch == "shortest":
        counts = np.floor(shares * lengths.min() + 1e-6).astype(np.int64)
    else:
        counts = np.ceil(shares * lengths.max() - 1e-6).astype(np.int64)
    if not counts.all():
        raise JobError(f"an epoch of the mixture has {counts.tolist()} samples of its data sets: one would give none; "
                       "give it a larger weight, or a longer epoch")  # fmt: skip
    return counts


@dataclass(slots=True)
class MixedOrder(Order):
    """Order of the samples of a mixture. Each data set is read in its own order, pass after pass, and continues from
    one epoch of the mixture to the next. Within an epoch the samples of all data sets are spread evenly. ``size`` is
    the number of samples per epoch."""

    parts: tuple[Order, ...] = ()
    """Order of the records of each data set."""
    counts: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of samples of each data set in an epoch of the mixture."""
    offsets: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index of each data set's first record, counted over the records of all data sets."""
    even: bool = False
    """Whether the samples are interleaved in a fixed pattern, and not at random places."""
    _mixture: tuple[int, I64, I64] | None = field(default=None, repr=False)

    @property
    def _keeps_shard(self) -> bool:
        return True

    def records(self, numbers: I64) -> I64:
        sizes = [p.size for p in self.parts]
        ends = np.cumsum(sizes)
        which = np.searchsorted(ends, numbers % int(ends[-1]), "right")
        inside = numbers % int(ends[-1]) - (ends - sizes)[which]
        found = [self.offsets[k] + self.parts[k].records(np.array([i])) for k, i in zip(which, inside, strict=True)]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def pass_order(self, epoch: int) -> I64:
        low, high = self._range(epoch)
        return self._mixed(epoch)[0][low:high]

    def pass_epochs(self, epoch: int) -> I64:
        low, high = self._range(epoch)
        return self._mixed(epoch)[1][low:high]

    def _mixed(self, epoch: int) -> tuple[I64, I64]:
        """Return two arrays for all samples of an epoch of the mixture: the index of the record, and how often its data
        set was read before (its pass)."""
        if self._mixture is None or self._mixture[0] != epoch:
            index, passes, places = [], [], []
            for k, (part, count) in enumerate(zip(self.parts, self.counts.tolist(), strict=True)):
                samples = part.samples(epoch * count, count, NoOrigins())
                index.append(samples.index + self.offsets[k])
                passes.append(samples.epoch)
                inside = np.full(count, 0.5) if self.even else _uniform(self.seed + k, epoch, count)
                places.append((np.arange(count) + inside) / count)
            order = np.argsort(np.concatenate(places), kind="stable")
            self._mixture = epoch, np.concatenate(index)[order], np.concatenate(passes)[order]
        return self._mixture[1], self._mixture[2]


def _uniform(seed: int, epoch: int, n: int) -> np.ndarray:
    """Return ``n`` random numbers from 0 to 1, which depend on seed and epoch only."""
    low = np.arange(-(-n // 2), dtype=np.uint64)
    words = philox(seed & 0xFFFFFFFFFFFFFFFF, np.full(len(low), epoch, np.uint64), low)
    return words.view(np.uint64).reshape(-1)[:n].astype(np.float64) / 2.0**64
