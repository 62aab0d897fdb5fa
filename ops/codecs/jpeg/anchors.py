"""Cache of a run for JPEGs that the CPU has decoded: where rows and columns of blocks begin in a scan.

The codes of a scan can only be read from the first on; if a crop shows half of an image, reading the part before it is
most of the remaining work. A decoder that starts from a state - the bit position and the DC values before - can start
anywhere. States at every 64th pixel of every row of blocks are stored when an image is decoded for the first time,
eight bytes each, and used in the next epochs.

If a scan is read as a whole, damage is detected wherever it is, and the result stays true for the same bytes only: 64
bits computed from all of a file's bytes are stored with its states, and a file that was changed since is read as a
whole again.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels import Kernels

_headers: Any = Kernels(".header", __package__)

I64 = npt.NDArray[np.int64]
MAX_BYTES = 1 << 32
"""Maximum bytes of stored decoder states, from which images can be decoded partly: enough for 160 GB of JPEGs."""
MAX_WRONG = 1000
"""Number of changed files after which stored decoder states are no longer used: the data set has changed, or gives
other files each time."""
_UNKNOWN, _NEVER = -1, -2
"""Values for an image without decoder states. _UNKNOWN: none are stored yet. _NEVER: none will be stored, because the
decoder does not support the image."""

STRIDE = 8
"""Distance between two stored decoder states, in 8 x 8 blocks along a row. An MCU counts as many blocks as its
horizontal sampling factor."""
MODE, PLACE, CHECK = 0, 1, 2
"""Columns of the array ``known`` [N, 3], one row per image to decode: mode (NOTHING, LEARN or KNOWN), index of the
image's first decoder state, and a 64-bit checksum of its file."""
NOTHING, LEARN, KNOWN = 0, 1, 2
"""Use of decoder states for an image. NOTHING: they are not used. LEARN: they are found and stored while decoding.
KNOWN: they are stored already. The decoder sets NOTHING if it could not store or use them."""

NO_STATES: npt.NDArray[np.uint64] = np.empty(0, np.uint64)


@dataclass
class Anchors:
    """Decoder states, which are positions in the coded bytes of JPEGs where decoding can start, of one data set's
    images, by record number. Created by `Context.facts` for a job; threads may share it."""

    budget: int = 1 << 28
    """Maximum bytes of host memory for decoder states."""
    used: int = 0
    """Number of decoder states in `states` that are assigned to images."""
    wrong: int = 0
    """Number of images whose files have changed since their decoder states were stored."""
    states: npt.NDArray[np.uint64] = field(default_factory=lambda: NO_STATES)
    """Array of all decoder states of the data set, which `baseline_cpu.decode_images` reads and writes."""
    _place: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _check: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def records(self) -> int:
        """Number of images whose decoder states are stored."""
        return int(np.count_nonzero(self._place >= 0))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that decoder states and their tables occupy."""
        return 8 * self.used + self._place.nbytes + self._check.nbytes

    def begin(self, index: I64, headers: npt.NDArray[Any], windows: I64) -> I64:
        """Return the array ``known`` [N, 3] for `baseline_cpu.decode_images`, which assigns decoder states, or space
        for new ones, to each of the images ``index``. ``headers``: HEADER rows of the images. ``windows`` [N, 4]:
        pixels to decode; images that are decoded as a whole use no states."""
        known = np.zeros((len(index), 3), np.int64)
        shown = (windows[:, 2] - windows[:, 0]) * (windows[:, 3] - windows[:, 1])
        part = (windows[:, 0] >= 0) & (shown < headers["height"].astype(np.int64) * headers["width"])
        with self._lock:
            if self.wrong > MAX_WRONG or not part.any():
                return known
            self._grow(int(index.max(initial=-1)) + 1)
            place = np.where(part, self._place[index], _NEVER)
            known[:, PLACE], known[:, CHECK] = place, self._check[index]
            known[:, MODE] = np.where(place >= 0, KNOWN, NOTHING)
            fresh = np.flatnonzero(place == _UNKNOWN)
            if len(fresh):
                counts = _states_of(headers[fresh])
                ends = self.used + np.cumsum(counts)
                learned = (counts > 0) & (ends <= len(self.states))
                known[fresh, MODE] = np.where(learned, LEARN, NOTHING)
                known[fresh, PLACE] = ends - counts
                self.used = int(ends[learned][-1]) if learned.any() else self.used
        return known

    def end(self, index: I64, known: I64, wanted: I64) -> None:
        """Register decoder states that were found while decoding the images ``index``. ``known``: the array from
        `begin`, as the decoder has changed it. ``wanted`` [N]: the modes in that array before decoding."""
        if (known[:, MODE] == wanted).all() and not (wanted == LEARN).any():
            return
        with self._lock:
            learned = (wanted == LEARN) & (known[:, MODE] == LEARN)
            self._place[index[learned]], self._check[index[learned]] = known[learned, PLACE], known[learned, CHECK]
            self._place[index[(wanted == LEARN) & ~learned]] = _NEVER
            changed = (wanted == KNOWN) & (known[:, MODE] != KNOWN)
            self._place[index[changed]] = _UNKNOWN
            self.wrong += int(np.count_nonzero(changed))

    def _grow(self, most: int) -> None:
        if not len(self.states):
            room = min(self.budget, MAX_BYTES) // 8 * 8
            # takes up memory only when it is first written
            self.states = np.frombuffer(mmap.mmap(-1, max(room, 8)), np.uint64)
        if most > len(self._place):
            size = max(most, 2 * len(self._place), 1024)
            place, check = np.full(size, _UNKNOWN, np.int64), np.zeros(size, np.int64)
            place[: len(self._place)], check[: len(self._check)] = self._place, self._check
            self._place, self._check = place, check


def _states_of(headers: npt.NDArray[Any]) -> I64:
    """Return the number of decoder states to store for each image. It is 0 for images with restart markers, and for
    images that another decoder decodes."""
    several = headers["components"] > 1
    h, v = (np.where(several, headers[k][:, 0], 1).clip(1, 2).astype(np.int64) for k in ("h", "v"))
    across = -(-headers["width"].astype(np.int64) // (8 * h))
    down = -(-headers["height"].astype(np.int64) // (8 * v))
    taken = (headers["status"] == _headers.OK) & (headers["restart_interval"] == 0)
    return np.where(taken, -(-across // (STRIDE // h)) * down, 0)
