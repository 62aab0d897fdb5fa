"""Cache of filter weights (taps) for resizing windows of whole pixels on a GPU, computed once per window length.

Because torchvision crops before it resizes, the weights of an axis depend only on the window's length, not on its
position; the random crops of a training have a few hundred lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...interfaces import Lane
from ...kernels import Kernels

_loops: Any = Kernels(".libraries_cpu", __package__)

_MOST = 1 << 22
"""Maximum number of filter weights that are cached for resizes to one output size: 16 MiB."""
_KINDS = 4
"""Maximum number of kinds of resizes (size, filter, library) for which filter weights are cached per CUDA stream."""
KEY = "known taps"
"""Key in `Lane.cache` of the cached filter weights."""

Axes = tuple[npt.NDArray[Any], ...]
"""Arrays of a `ResamplePlan`, in this order: lo, hi, size, anchor, shape, kind, flip, domain and arithmetic."""


class KnownTaps:
    """Cached filter weights for one kind of resize (size, filter, library), on one CUDA stream. Used only by the thread
    that launches kernels on the stream."""

    def __init__(self) -> None:
        self.release()

    def release(self) -> None:
        """Drop all cached filter weights of this kind of resize, in host and GPU memory."""
        self._known = np.zeros((2, 512, 6), np.int64)
        self._starts, self._weights = np.empty(0, np.int32), np.empty(0, np.int32)
        self._there: tuple[Any, Any] | None = None

    def of(self, lane: Lane, axes: Axes) -> tuple[npt.NDArray[np.int64], tuple[Any, Any]] | None:
        """Return the filter weights for a plan's ``axes``, from the cache if possible: a table like that of
        `libraries_cpu.whole_axes`, but with pixels counted from each window's start; then first pixels and weights, in
        GPU memory. Return None if samples differ in more than their windows, or if there is too much to cache."""
        _, _, size, anchor, shape, kind, flip, _, rules = axes
        table = np.zeros((len(rules), 2, 6), np.int64)
        missing = np.empty((2 * len(rules), 2), np.int64)
        count = _loops.known_axes(*axes, self._known, table, missing)
        if count:
            if count < 0 or not self._learn(missing[:count], size, anchor, shape, kind, flip, rules):
                return None
            _loops.known_axes(*axes, self._known, table, missing)
        if self._there is None:
            starts, weights = lane.upload(self._starts, self._weights)
            self._there = starts, weights
        return table, self._there

    def _learn(self, missing: Any, size: Any, anchor: Any, shape: Any, kind: Any, flip: Any, rules: Any) -> bool:
        widest = int(missing[:, 1].max())
        if widest >= self._known.shape[1]:
            wider = np.zeros((2, 2 * widest, 6), np.int64)
            wider[:, : self._known.shape[1]] = self._known
            self._known = wider
        starts, weights = [self._starts], [self._weights]
        at, to = len(self._starts), len(self._weights)
        for axis, extent in np.unique(missing, axis=0).tolist():
            found, taken, bits = _loops.taps_of_extent(
                rules[0], extent, size[0, axis], anchor[0, axis], shape[0, axis], kind[0, axis], flip[0, axis]
            )
            low = max(int(found.min(initial=extent)), 0)
            high = min(int(found.max(initial=0)) + taken.shape[1], extent)
            self._known[axis, extent] = at, to, taken.shape[1], bits, low, high - low
            starts.append(found)
            weights.append(taken.reshape(-1))
            at, to = at + len(found), to + taken.size
        if to > _MOST:
            self.release()
            return False
        self._starts, self._weights, self._there = np.concatenate(starts), np.concatenate(weights), None
        return True


def known_taps(lane: Lane, axes: Axes) -> tuple[npt.NDArray[np.int64], tuple[Any, Any]] | None:
    """Return the filter weights for a plan's ``axes``, cached in `Lane.cache`; see `KnownTaps.of`."""
    _, _, size, anchor, shape, kind, flip, _, rules = axes
    kept: _Kept = lane.cache.setdefault(KEY, _Kept())
    key = (int(rules[0]), *(a[0].tobytes() for a in (size, anchor, shape, kind, flip)))
    found = kept.pop(key, None) or KnownTaps()
    if len(kept) >= _KINDS:
        del kept[next(iter(kept))]
    kept[key] = found
    return found.of(lane, axes)


class _Kept(dict[Any, KnownTaps]):
    """Cached filter weights by kind of resize: the properties that all samples of a batch share, such as the size. The
    entry that was used last comes last."""

    def release(self) -> None:
        """Drop the cached filter weights of all resizes, in host and GPU memory."""
        self.clear()
