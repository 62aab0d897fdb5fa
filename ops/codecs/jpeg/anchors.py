"""Facts that a run remembers of JPEGs that it has decoded on the CPU: where rows and columns of blocks begin in a scan.

The codes of a scan can only be read from the first on, and where a crop shows half of a picture, reading what it does
not show is most of what is left to save. A decoder that starts from a state - the bit at which it stands and the DC
values before - can start anywhere. States at every 64th pixel of every row of blocks are kept from the first time that
a picture is decoded, eight bytes each, and used when it comes again, in the next epoch.

Damage is found wherever it is in a scan that is read as a whole, and what was found then stays true of the same bytes
only: 64 bits computed from all of a file's bytes are kept with its states, and a file that was changed since is read
as a whole again.
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
MOST = 1 << 32
"""Bytes that are kept at most: of 160 GB of JPEGs."""
MOST_WRONG = 1000
"""A data set of which so many files were changed is not what it was, or never the same."""
_UNKNOWN, _NEVER = -1, -2
"""Of a record: nothing is kept; nothing will be, because the decoder does not take it."""

STRIDE = 8
"""Blocks from one state to the next, those of an MCU side by side counted."""
MODE, PLACE, CHECK = 0, 1, 2
"""Columns of ``known``: the use to make of an image's states, where they begin, 64 bits computed from its file."""
NOTHING, LEARN, KNOWN = 0, 1, 2
"""Modes: none; the states are to be written; they are there. What could not be done becomes NOTHING."""

NO_STATES: npt.NDArray[np.uint64] = np.empty(0, np.uint64)


@dataclass
class Anchors:
    """The states of the pictures of one data set, by their record numbers. Threads may share it."""

    budget: int = 1 << 28
    """Bytes of host memory that states may take."""
    used: int = 0
    """States that there is room for no other picture in."""
    wrong: int = 0
    """Pictures whose files had changed."""
    states: npt.NDArray[np.uint64] = field(default_factory=lambda: NO_STATES)
    """For `baseline_cpu.decode_images`."""
    _place: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _check: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def records(self) -> int:
        """Pictures whose states are kept."""
        return int(np.count_nonzero(self._place >= 0))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that states and their tables take."""
        return 8 * self.used + self._place.nbytes + self._check.nbytes

    def begin(self, index: I64, headers: npt.NDArray[Any], windows: I64) -> I64:
        """For `baseline_cpu`: all that is ``known`` of the pictures ``index``, and where there is room to learn more.
        ``headers``: their HEADER rows; of a picture of which all is shown (``windows`` [N, 4]) nothing is used."""
        known = np.zeros((len(index), 3), np.int64)
        shown = (windows[:, 2] - windows[:, 0]) * (windows[:, 3] - windows[:, 1])
        part = (windows[:, 0] >= 0) & (shown < headers["height"].astype(np.int64) * headers["width"])
        with self._lock:
            if self.wrong > MOST_WRONG or not part.any():
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
        """Keep what was learned: ``known`` after the decoding, and its modes before as ``wanted`` [N]."""
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
            room = min(self.budget, MOST) // 8 * 8
            self.states = np.frombuffer(mmap.mmap(-1, max(room, 8)), np.uint64)  # memory as it is first written
        if most > len(self._place):
            size = max(most, 2 * len(self._place), 1024)
            place, check = np.full(size, _UNKNOWN, np.int64), np.zeros(size, np.int64)
            place[: len(self._place)], check[: len(self._check)] = self._place, self._check
            self._place, self._check = place, check


def _states_of(headers: npt.NDArray[Any]) -> I64:
    """How many states pictures have; 0 for those whose scans have restart markers, or that another decoder takes."""
    several = headers["components"] > 1
    h, v = (np.where(several, headers[k][:, 0], 1).clip(1, 2).astype(np.int64) for k in ("h", "v"))
    across = -(-headers["width"].astype(np.int64) // (8 * h))
    down = -(-headers["height"].astype(np.int64) // (8 * v))
    taken = (headers["status"] == _headers.OK) & (headers["restart_interval"] == 0)
    return np.where(taken, -(-across // (STRIDE // h)) * down, 0)
