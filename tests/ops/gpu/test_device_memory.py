"""The pool of device memory that lanes share: whom a block goes to, what the pool keeps, what belongs to the user."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

from dali_run.ops.gpu import device_memory
from dali_run.ops.gpu.device_memory import (
    MAX_IDLE,
    WINDOW,
    DevicePool,
    OutOfMemoryError,
    block_size,
    limit_pool,
    pool_of,
)
from dali_run.ops.gpu.lane import Lane
from tests.kit.fake_cupy import Fake, faked

MIB = 1 << 20


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with faked() as found:
        clock = [0.0]
        monkeypatch.setattr(device_memory.time, "monotonic", lambda: clock[0])
        found.clock = clock  # type: ignore[attr-defined]
        yield found


def driver_bytes(fake: Fake) -> int:
    """Bytes that the driver was asked for and was not given back."""
    return sum(size for size, _ in fake.blocks.values())


def test_a_block_goes_to_its_stream_at_once_and_to_others_when_that_is_synchronized(fake: Fake) -> None:
    pool = pool_of(0)
    first = pool.allocate(10 * MIB, 1)
    at = first.ptr
    del first
    other = pool.allocate(10 * MIB, 2)
    assert other.ptr != at  # work of stream 1 may still use it
    again = pool.allocate(9 * MIB, 1)
    assert again.ptr == at  # in the order of its stream
    del again
    pool.mark_done(1)
    assert pool.allocate(10 * MIB, 2).ptr == at
    assert driver_bytes(fake) == pool.held == 20 * MIB
    del other


def test_lanes_share_workspaces(fake: Fake) -> None:
    lanes = [Lane(0) for _ in range(4)]
    for k in range(40):
        with lanes[k % 4] as lane:
            held = [lane.empty(50 * MIB, np.uint8), lane.allocate(100 * MIB)]
            del held
        lane.synchronize()
    assert fake.blocks
    assert pool_of(0).held <= block_size(50 * MIB) + block_size(100 * MIB)
    assert pool_of(0).made == 2
    for lane in lanes:
        lane.close()


def test_idle_blocks_go_back_after_seconds(fake: Fake) -> None:
    pool = pool_of(0)
    many = [pool.allocate(100 * MIB, 1) for _ in range(8)]
    kept = many.pop()
    many.clear()
    pool.mark_done(1)
    assert pool.held == 8 * block_size(100 * MIB)  # between two launches all stays
    for _ in range(3):
        fake.clock[0] += WINDOW  # type: ignore[attr-defined]
        pool.mark_done(1)
    assert pool.live <= pool.held <= MAX_IDLE * pool.live
    assert driver_bytes(fake) == pool.held
    del kept


def test_a_pool_holds_no_more_than_its_owners_may_have(fake: Fake) -> None:
    pool, train, val = pool_of(0), object(), object()
    limit_pool(0, train, 100 * MIB)
    held = [pool.allocate(40 * MIB, 1) for _ in range(2)]
    with pytest.raises(OutOfMemoryError, match=r"memory\.gpu"):
        pool.allocate(40 * MIB, 1)
    limit_pool(0, val, 50 * MIB)
    held.append(pool.allocate(40 * MIB, 2))
    held.clear()
    pool.mark_done(1)
    pool.mark_done(2)
    large = pool.allocate(128 * MIB, 1)  # idle blocks of another size make room
    assert pool.held == 128 * MIB
    del large
    pool.mark_done(1)
    limit_pool(0, train, None)
    limit_pool(0, val, None)
    assert pool.held == driver_bytes(fake) == 0


def test_the_program_keeps_its_own_pool_and_allocator(fake: Fake) -> None:
    cupy, asked = sys.modules["cupy"], []

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("CuPy's own pool is the program's")

    default = types.SimpleNamespace(set_limit=touched, free_all_blocks=touched, malloc=touched)
    cupy.get_default_memory_pool, cupy.cuda.get_allocator = lambda: default, lambda: touched
    with Lane(0) as lane:
        lane.upload(np.zeros(3 * MIB, np.uint8))
    lane.release_memory(launching=True)
    lane.close()

    def allocator(size: int) -> object:
        asked.append(size)
        return fake.alloc(size)

    cupy.cuda.get_allocator = lambda: allocator  # RMM's, say
    with Lane(0) as lane:
        held = lane.empty(5 * MIB, np.uint8), lane.empty(100, np.uint8)
    lane.close()
    assert asked == [5 * MIB, 100]
    del held


def test_any_order_of_taking_and_giving_back_adds_up(fake: Fake) -> None:
    rng, pool, held = np.random.default_rng(0), DevicePool(0), {1: [], 2: [], 3: []}
    for _ in range(3000):
        stream = int(rng.integers(1, 4))
        action = rng.integers(0, 8)
        if action < 4:
            held[stream].append(pool.allocate(int(rng.integers(1, 64)) * MIB + 7, stream))
        elif action < 7 and held[stream]:
            held[stream].pop(int(rng.integers(len(held[stream]))))
        else:
            pool.mark_done(stream)
            fake.clock[0] += float(rng.random())  # type: ignore[attr-defined]
        spans = sorted((b.ptr, b.owner.__class__) for blocks in held.values() for b in blocks)
        assert len({ptr for ptr, _ in spans}) == len(spans)  # no block is given out twice
        assert pool.held == driver_bytes(fake)
    for blocks in held.values():
        blocks.clear()
    for stream in held:
        pool.mark_done(stream)
    pool.free_idle()
    assert pool.held == pool.live == driver_bytes(fake) == 0
