"""Page-locked blocks are reused: for sizes that fit, by any thread, and at most as many as may be cached."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from dali_run.ops.gpu import page_locked
from dali_run.ops.gpu.page_locked import PageLockedPool

LARGE = page_locked.MIN_BLOCK


class Makes:
    """Makes blocks, and counts them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, nbytes: int) -> Any:
        self.sizes.append(nbytes)
        return bytearray(nbytes)


def test_batches_of_about_one_size_share_blocks() -> None:
    blocks, make = PageLockedPool(), Makes()
    draw = np.random.default_rng(0)
    held: list[Any] = []
    for _ in range(200):  # up to four at a time, of sizes that differ by a tenth
        array = blocks.empty(int(LARGE * draw.uniform(10, 11)), make)
        array[[0, -1]] = 7
        held = [*held[-3:], array[5:].view(np.int8)]
        del array
    assert len(make.sizes) <= 5


def test_a_block_comes_back_with_its_last_view_and_not_before() -> None:
    blocks, make = PageLockedPool(), Makes()
    view = blocks.empty(2 * LARGE, make)[100:].view(np.uint8)[::2]
    other = blocks.empty(2 * LARGE, make)
    assert len(make.sizes) == 2
    assert not np.shares_memory(view, other)
    del view
    gc.collect()
    blocks.empty(2 * LARGE, make)
    assert len(make.sizes) == 2


def test_small_arrays_take_no_large_blocks_and_the_smallest_that_fits_is_taken() -> None:
    blocks, make = PageLockedPool(), Makes()
    arrays = [blocks.empty(n * LARGE, make) for n in (16, 8, 4)]
    places = [a.ctypes.data for a in arrays]
    arrays.clear()
    small = blocks.empty(2 * LARGE, make)
    assert len(make.sizes) == 4
    assert small.ctypes.data not in places
    assert blocks.empty(7 * LARGE, make).ctypes.data == places[1]
    assert blocks.empty(10 * LARGE, make).ctypes.data == places[0]


def test_a_block_that_comes_back_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that begins while another ends: its blocks are all in use, and come back one after the other."""
    monkeypatch.setattr(page_locked, "_PATIENCE", 60.0)
    monkeypatch.setattr(page_locked, "_RATE", 1.0)
    monkeypatch.setattr(page_locked, "_RECENT", 60.0)
    blocks, make = PageLockedPool(), Makes()
    held = [blocks.empty(4 * LARGE, make) for _ in range(3)]
    assert len(make.sizes) == 3, "none came back before: none is waited for"
    held.pop()
    held.append(blocks.empty(4 * LARGE, make))
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            held.pop()

    monkeypatch.setattr(page_locked, "_pause", pause)
    other = blocks.empty(4 * LARGE, make)
    assert len(waited) == 3
    assert len(make.sizes) == 3
    blocks.empty(20 * LARGE, make)
    assert len(waited) == 3, "none of that size ever came back"
    monkeypatch.setattr(page_locked, "_RATE", 1e30)
    assert not np.shares_memory(blocks.empty(4 * LARGE, make), other)
    assert len(make.sizes) == 5, "none came in time"


class Account:
    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def has_room(self, nbytes: int) -> bool:
        return self.used + nbytes <= self.limit


def test_what_lies_idle_is_on_the_accounts_of_all_runs() -> None:
    blocks, make = PageLockedPool(), Makes()
    large, small = Account(100 * LARGE), Account(10 * LARGE)
    assert blocks.smallest_budget > 1 << 60
    for account in (large, small):
        blocks.add_budget(account)
    assert blocks.smallest_budget == small.limit
    blocks.empty(4 * LARGE, make)
    assert blocks.cached == make.sizes[0]
    small.used = 9 * LARGE
    blocks.empty(4 * LARGE, make)
    assert blocks.cached == 0
    blocks.remove_budget(small)
    blocks.remove_budget(small)
    blocks.empty(4 * LARGE, make)
    assert blocks.cached == make.sizes[0]
    blocks.clear()
    assert blocks.cached == 0


def test_what_lies_idle_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_locked, "MAX_CACHED", 8 * LARGE)
    blocks, make = PageLockedPool(), Makes()
    arrays = [blocks.empty(4 * LARGE, make) for _ in range(3)]
    arrays.clear()
    blocks.empty(20 * LARGE, make)  # for which none is large enough: the idle ones go
    count = len(make.sizes)
    blocks.empty(4 * LARGE, make)
    assert len(make.sizes) == count + 1


def test_a_collection_may_give_blocks_back_while_one_is_chosen() -> None:
    """Python before 3.12 collects wherever it makes an object, also while the idle blocks are looked through."""

    class Ring:
        """Nothing but a collection frees it."""

        def __init__(self, held: Any) -> None:
            self.held, self.ring = held, self

    blocks, make, thresholds = PageLockedPool(), Makes(), gc.get_threshold()
    try:
        for k in range(20_000):
            gc.set_threshold(1 + k % 40)  # at every step of `empty` in turn
            Ring(blocks.empty(64, make))
            blocks.empty(64, make)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(blocks._cached) == len(make.sizes), "none is lost, none is there twice"
    assert len({id(b) for b in blocks._cached}) == len(blocks._cached)


def test_where_no_more_can_be_locked_idle_blocks_go_first() -> None:
    blocks, make = PageLockedPool(), Makes()
    blocks.empty(4 * LARGE, make)
    kept = blocks.empty(4 * LARGE, make)  # the same one

    def full(nbytes: int) -> Any:
        if nbytes > 20 * LARGE:
            raise MemoryError
        return make(nbytes)

    assert len(blocks.empty(20 * LARGE, full)) == 20 * LARGE
    with pytest.raises(MemoryError):
        blocks.empty(21 * LARGE, full)
    assert len(kept) == 4 * LARGE
