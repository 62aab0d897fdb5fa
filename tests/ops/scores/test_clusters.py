"""Clusters of near hashes against a comparison of all pairs, whatever the search is cut into."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dali_run.ops.scores import clusters
from dali_run.ops.scores.clusters import Clusters, SearchPlan, by_evenness, dealt, plan, table_of
from tests.kit.long import examples

DISTANCES = [0, 1, 3, 4, 8, 32]


def hashes(n: int, seed: int = 0, fixed: int = 0) -> Any:
    """Random hashes; a third are copies of others with up to three bits turned. Bits of ``fixed`` are 1 in all."""
    random = np.random.default_rng([n, seed])
    made = random.integers(0, 1 << 64, n, dtype=np.uint64)
    copies = made[random.integers(0, n, n // 3)]
    for _ in range(3):
        turned = np.uint64(1) << random.integers(0, 64, len(copies)).astype(np.uint64)
        copies ^= np.where(random.random(len(copies)) < 0.6, turned, np.uint64(0))
    made[random.permutation(n)[: len(copies)]] = copies
    return made | np.uint64(fixed)


def by_all_pairs(given: Any, distance: int) -> list[int]:
    """The smallest row of each row's connected component, by a walk from each row over its neighbours."""
    near = np.bitwise_count(given[:, None] ^ given) <= distance
    found = [-1] * len(given)
    for first in range(len(given)):
        waiting = [first] if found[first] < 0 else []
        while waiting:
            row = waiting.pop()
            if found[row] < 0:
                found[row] = first
                waiting += np.flatnonzero(near[row]).tolist()
    return found


def clustered(given: Any, distance: int) -> list[int]:
    made = Clusters(len(given))
    equal, near = made.join(given.copy(), distance)
    roots = made.roots().tolist()
    assert equal == len(given) - len(np.unique(given))
    assert equal + near == len(given) - len(set(roots))
    return roots


@pytest.mark.parametrize("distance", DISTANCES)
def test_clusters_are_connected_components(distance: int) -> None:
    for n in (0, 1, 2, examples(3000, 700)):
        given = hashes(n) if n else np.empty(0, np.uint64)
        assert clustered(given, distance) == by_all_pairs(given, distance)


@pytest.mark.parametrize(("distance", "chosen"), list(itertools.product([1, 3, 6], [0, 1, 2, 3])))
def test_blocks_do_not_matter(distance: int, chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = distance + chosen
    widths = tuple(64 // count + (k < 64 % count) for k in range(count)) if chosen else (64,)
    monkeypatch.setattr(clusters, "plan", lambda *_: SearchPlan(widths, chosen, 0.0))
    given = hashes(400, 1, fixed=0xFF00000000000001)
    assert clustered(given, distance) == by_all_pairs(given, distance)


def test_a_chain_is_one_cluster() -> None:
    """Of hashes that differ from the one before in one bit each, however far the ends are from each other."""
    chain = np.array([(1 << k) - 1 for k in range(65)], np.uint64)
    assert clustered(chain[::-1].copy(), 1) == [0] * 65
    assert clustered(np.delete(chain, 30), 1) == [0] * 30 + [30] * 34


def test_joined_twice_clusters_only_grow() -> None:
    """Content hashes first, then perceptual ones: rows 0 and 1 are equal in the first, 1 and 2 near in the second."""
    made = Clusters(4)
    assert made.join(np.array([7, 7, 8, 9], np.uint64)) == (1, 0)
    assert made.join(np.array([1 << 40, 3, 2, 1 << 20], np.uint64), 1) == (0, 1)
    assert made.roots().tolist() == [0, 0, 0, 3]


def test_bits_are_dealt_by_their_evenness() -> None:
    given = hashes(1000, fixed=0xF0)
    bits = by_evenness(given)
    assert sorted(bits) == list(range(64))
    assert set(bits[-4:]) == {4, 5, 6, 7}
    places = dealt(bits, (22, 21, 21))
    assert sorted(places) == list(range(64))
    assert np.histogram([places[b] for b in bits[:9]], [0, 22, 43, 64])[0].tolist() == [3, 3, 3]
    moved = given.copy()
    clusters._loops.permute(moved, table_of(places))
    assert all(
        ((int(a) >> b) & 1) == ((int(m) >> places[b]) & 1) for a, m in zip(given[:20], moved, strict=False)
        for b in range(64)
    )  # fmt: skip


def test_the_plan_goes_by_the_number_of_hashes_and_their_bits() -> None:
    """More hashes, and bits that say less, take more blocks at a time. Few hashes are compared with each other."""
    bits = list(range(64))
    assert plan(hashes(10), 4, bits).chosen == 0
    given = hashes(1 << 16)
    assert plan(given, 4, bits).chosen >= 1
    poor = given & np.uint64(0x0F0F0F0F0F0F0F0F)
    assert plan(poor, 4, by_evenness(poor)).seconds > plan(given, 4, bits).seconds
