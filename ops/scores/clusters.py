"""Clusters of rows whose 64-bit hashes are equal, or differ in few bits: connected components, by rows' numbers.

`dali-run dedupe` calls it. Pairs are found by multi-index hashing: the bits are dealt to ``distance + k`` blocks, so
that two hashes that differ in at most ``distance`` bits agree in at least k blocks. For every choice of k blocks the
hashes are sorted by these blocks' bits, and compared within runs of equal ones. With k = 1 this is the scheme of
Norouzi, Punjani and Fleet, "Fast exact search in Hamming space with multi-index hashing" (2014), with exact matches of
blocks; with k > 1 that of Manku, Jain and Das Sarma, "Detecting near-duplicates for web crawling" (2007). Every pair
within the distance is found, so that the clusters do not depend on k, on the blocks, or on the order of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels import Kernels

_loops: Any = Kernels(".clusters_cpu", __package__)

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

MAX_ROWS = (1 << 31) - 1
"""Maximum number of rows, because row numbers are stored as int32."""
MAX_DISTANCE = 32
"""Maximum of ``distance``. Two random 64-bit hashes differ in 32 bits on average, so that above this nearly all rows
would be one cluster."""
_DIGIT = 11
"""Maximum number of bits by which one pass of a radix sort orders the hashes: the pass counts each of 2048 values."""
_SAMPLE = 1 << 18
"""Number of hashes in the random sample by which the number of comparisons is estimated."""
_PASS_SECONDS, _PAIR_SECONDS = 6e-9, 0.6e-9
"""Estimated seconds per hash and pass of a sort, and per comparison of two hashes, on one CPU thread. `plan` chooses
the number of blocks by these."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Plan of a search for similar hashes. Their 64 bits are divided into blocks; two hashes are compared if they are
    equal in ``chosen`` of the blocks."""

    widths: tuple[int, ...]
    """Number of bits of each block into which a hash is divided; the first block has the lowest bits."""
    chosen: int
    """Number k of blocks in which two hashes must be equal to be compared; 0 to compare all pairs."""
    seconds: float
    """Estimated duration of the search on one CPU thread, in seconds."""

    @property
    def tables(self) -> int:
        """Number of ways to choose k of the blocks; the hashes are sorted once for each."""
        return math.comb(len(self.widths), self.chosen)


class Clusters:
    """Clusters of ``n`` rows, as a union-find structure. Created by one caller and used by one thread. Takes 4 bytes
    per row, and 24 more during `join`."""

    def __init__(self, n: int) -> None:
        self._parents: I32 = np.arange(n, dtype=np.int32)

    def join(self, hashes: U64, distance: int = 0, progress: Callable[[str], None] | None = None) -> tuple[int, int]:
        """Join rows whose hashes differ in at most ``distance`` bits. ``hashes`` uint64[n] is overwritten. Return the
        decrease of the number of clusters, by equal hashes and by similar ones. ``progress``: called with a line of
        text before each sort."""
        rows: U32 = np.arange(len(hashes), dtype=np.uint32)
        halves = (hashes, rows), (np.empty_like(hashes), np.empty_like(rows))
        for shift in range(0, 64, 8):  # eight passes: the result is in the first half again
            given, sorted_ = halves if shift % 16 == 0 else halves[::-1]
            _loops.sort_pass(*given, shift, 8, *sorted_)
        different, equal = _loops.join_equal(hashes, rows, self._parents)
        near = 0
        if distance:
            shorter = [(h[:different], r[:different]) for h, r in halves]
            near = self._join_near(shorter, distance, progress)
        return equal, near

    def _join_near(self, halves: Any, distance: int, progress: Callable[[str], None] | None) -> int:
        hashes = halves[0][0]
        bits = by_evenness(hashes)
        found = plan(hashes, distance, bits)
        _loops.permute(hashes, table_of(dealt(bits, found.widths)))
        joined = 0
        for number, blocks in enumerate(itertools.combinations(range(len(found.widths)), found.chosen)):
            if progress is not None:
                progress(f"{len(hashes):,} different hashes: sort {number + 1} of {found.tables}")
            mask = 0
            for shift, width in _digits(found.widths, blocks):
                _loops.sort_pass(*halves[0], shift, width, *halves[1])
                halves = halves[::-1]
                mask |= ((1 << width) - 1) << shift
            joined += _loops.join_near(*halves[0], self._parents, np.uint64(mask), distance)
        return joined

    def roots(self) -> I32:
        """Return for each row the smallest row number in its cluster, int32[n]. Call this last: it overwrites the
        union-find."""
        _loops.roots(self._parents)
        return self._parents


def _digits(widths: tuple[int, ...], blocks: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield (shift, bits) for each pass of a radix sort by the bits of these ``blocks``; ``widths``: bits of each
    block."""
    starts = [0, *itertools.accumulate(widths)]
    for block in blocks:
        for first in range(0, widths[block], _DIGIT):
            yield starts[block] + first, min(_DIGIT, widths[block] - first)


def by_evenness(hashes: U64) -> list[int]:
    """Return the 64 bit positions, ordered by how evenly a bit divides the hashes: blocks of bits that are 1 in half of
    the hashes distinguish most hashes."""
    seen = hashes[:: max(1, len(hashes) // _SAMPLE)]
    uneven = [abs(np.count_nonzero(seen >> np.uint64(b) & np.uint64(1)) * 2 - len(seen)) for b in range(64)]
    return sorted(range(64), key=lambda b: (uneven[b], b))


def dealt(bits: list[int], widths: tuple[int, ...]) -> list[int]:
    """Deal ``bits`` to blocks of ``widths`` bits in turn, like cards to players, and return the new position of each
    bit."""
    starts = [0, *itertools.accumulate(widths)]
    order = sorted((turn, block) for block, width in enumerate(widths) for turn in range(width))
    places = [0] * 64
    for bit, (turn, block) in zip(bits, order, strict=True):
        places[bit] = starts[block] + turn
    return places


def table_of(places: list[int]) -> U64:
    """Return a table for moving bit k of a hash to ``places[k]``, uint64[8, 256]: the moved bits, for each byte of a
    hash and each value of that byte."""
    values, table = np.arange(256, dtype=np.uint64), np.zeros((8, 256), np.uint64)
    for bit, place in enumerate(places):
        table[bit // 8] |= (values >> np.uint64(bit % 8) & np.uint64(1)) << np.uint64(place)
    return table


def plan(hashes: U64, distance: int, bits: list[int]) -> SearchPlan:
    """Return the plan of the search with the least estimated time. The number of comparisons is counted on a sample of
    the hashes, because their bits are neither evenly distributed nor independent."""
    n = len(hashes)
    pairs = n * (n - 1) / 2
    best = SearchPlan((64,), 0, pairs * _PAIR_SECONDS)
    seen = hashes[:: max(1, n // _SAMPLE)].copy()
    for chosen in range(1, min(6, 64 - distance) + 1):
        count = distance + chosen
        widths = tuple(64 // count + (k < 64 % count) for k in range(count))
        tables = math.comb(count, chosen)
        sorts = tables * n * chosen * -(-widths[0] // _DIGIT) * _PASS_SECONDS
        if sorts >= best.seconds:
            continue
        mask = np.uint64(sum(1 << b for b, place in enumerate(dealt(bits, widths)) if place < sum(widths[:chosen])))
        runs = np.unique(seen & mask, return_counts=True)[1].astype(np.float64)
        share = float((runs * (runs - 1)).sum()) / max(1, len(seen) * (len(seen) - 1))
        seconds = sorts + tables * pairs * max(share, 2.0 ** -sum(widths[:chosen])) * _PAIR_SECONDS
        if seconds < best.seconds:
            best = SearchPlan(widths, chosen, seconds)
    return best
