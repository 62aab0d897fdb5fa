"""Memory is used again when nobody holds it, and never before."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import pipeline_def
from dali_run.pipelines.engine.memory import buffer_pool
from dali_run.pipelines.engine.memory.buffer_pool import BufferPool

LARGE = 1 << 20


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_comes_back_with_the_last_view() -> None:
    pool = BufferPool()
    first = pool.empty(LARGE, np.float32)
    assert first.shape == (LARGE,)
    assert first.dtype == np.float32
    where, view = address(first), first[5:10].reshape(5, 1)
    view[...] = 7
    del first
    gc.collect()
    second = pool.empty(LARGE, np.float32)
    assert address(second) != where
    second[:] = 0
    assert (view == 7).all()
    del view
    gc.collect()
    third = pool.empty(LARGE - 3, np.float32)  # a little smaller
    assert address(third) == where
    third[:] = 1
    assert (second == 0).all()


def test_small_arrays_and_other_sizes_are_new() -> None:
    pool = BufferPool()
    assert pool.empty(10, np.int16).base is None
    where = address(pool.empty(8 * LARGE, np.uint8))
    small = pool.empty(LARGE, np.uint8)
    assert address(small) != where
    assert address(pool.empty(7 * LARGE, np.uint8)) == where


def test_sizes_that_go_up_and_down_share_blocks() -> None:
    """Each chunk's pictures are of another size."""
    pool, addresses = BufferPool(), set()
    for nbytes in (4.4, 5.1, 4.1, 6.3, 7.9, 4.2, 8.0):
        addresses.add(address(pool.empty(int(nbytes * LARGE), np.uint8)))
    assert len(addresses) == 1


def test_blocks_are_no_larger_than_what_may_be_kept() -> None:
    pool = BufferPool(max_bytes=7 * LARGE)
    pool.empty(5 * LARGE, np.uint8)
    assert [len(b) for b in pool._free] == [7 * LARGE]  # not 8, to which such sizes are rounded up


def test_all_that_is_kept_takes_so_much_at_most() -> None:
    pool = BufferPool(max_blocks=8, max_bytes=5 * LARGE)
    held = [pool.empty(2 * LARGE, np.uint8) for _ in range(4)]
    del held
    gc.collect()
    assert pool.cached == 4 * LARGE


def test_what_waits_longest_makes_way() -> None:
    """Batches become larger in the course of a run: blocks that fit nothing any more must not keep others out."""
    pool = BufferPool(max_blocks=8, max_bytes=6 * LARGE)
    held = [pool.empty(LARGE, np.uint8) for _ in range(4)]
    del held
    where = address(pool.empty(4 * LARGE, np.uint8))
    assert pool.cached == 6 * LARGE
    assert address(pool.empty(4 * LARGE, np.uint8)) == where


def test_only_so_much_is_kept() -> None:
    pool = BufferPool(max_blocks=2)
    held = [pool.empty(LARGE, np.uint8) for _ in range(5)]
    del held
    gc.collect()
    assert len(pool._free) == 2


def test_threads_never_share_a_block() -> None:
    pool, wrong = BufferPool(), []

    def work(number: int) -> None:
        for _ in range(50):
            mine = pool.empty(LARGE, np.uint8)
            mine[:: LARGE // 64] = number
            if (mine[:: LARGE // 64] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_large_arrays_are_not_kept() -> None:
    pool = BufferPool(max_bytes=3 << 20)
    for megabytes, kept in ((2, True), (4, False)):
        first = pool.empty(megabytes << 20, np.uint8)
        address = first.ctypes.data
        first[:] = 7
        del first
        assert bool(pool._free) is kept
        if kept:
            assert pool.empty(megabytes << 20, np.uint8).ctypes.data == address
            pool._free.clear()


def test_what_has_ended_keeps_nothing() -> None:
    """An engine may wait long for the collector, and blocks come back later still."""
    pool = BufferPool()
    out = pool.empty(2 << 20, np.uint8)
    pool.empty(2 << 20, np.uint8)
    assert len(pool._free) == 1
    pool.close()
    assert not pool._free
    del out
    assert not pool._free
    assert len(pool.empty(2 << 20, np.uint8)) == 2 << 20


def test_what_chunks_hold_between_operators_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [np.full((200 + 10 * k, 300, 3), k, np.uint8) for k in range(24)]
    made: list[int] = []

    def counted(n: int, dtype: Any) -> np.ndarray:
        made.append(n)
        return np.empty(n, dtype)

    monkeypatch.setattr(buffer_pool, "host_empty", counted)

    @pipeline_def(batch_size=24, num_threads=1, device_id=None)
    def program() -> Any:
        data = fn.external_source(source=lambda: pictures, layout="HWC")
        return fn.crop(fn.brightness(fn.flip(data, horizontal=1), brightness=2.0), crop=(16, 16))

    pipe = program()
    batches = 8
    for _ in range(batches):
        (out,) = pipe.run()
        assert [int(np.asarray(out[k]).min()) for k in range(24)] == [2 * k for k in range(24)]
    large = [n for n in made if n >= LARGE]
    assert 0 < len(large) < 2 * batches  # three chunks a batch, two arrays each
