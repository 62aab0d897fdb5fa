"""Page-locked memory that the system makes and the driver locks: as long as somebody refers to it, and no longer."""

from __future__ import annotations

import gc
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.gpu import lane, page_locked, registered
from tests.kit.fake_cupy import Fake, faked

LARGE = page_locked.MIN_BLOCK


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    registered.same_address.cache_clear()
    with faked() as fake:
        monkeypatch.setattr(lane, "_blocks", page_locked.PageLockedPool())
        monkeypatch.setattr(lane, "_page_locking", {"gpu": 0})
        yield fake
        lane._blocks.clear()
        gc.collect()
        assert fake.registered == {}
    registered.same_address.cache_clear()


def test_large_memory_is_locked_while_it_is_held_or_waits(fake: Fake) -> None:
    array = lane.pinned_empty(3 * LARGE + 5)
    place = array.ctypes.data
    assert len(array) == 3 * LARGE + 5
    assert lane.is_pinned(array)
    assert [(a, n >= len(array)) for a, n in fake.registered.items()] == [(place, True)]
    array[:] = np.arange(len(array)) % 251
    view = array[100:200]
    del array
    gc.collect()
    assert view.tolist() == [k % 251 for k in range(100, 200)]
    del view
    assert list(fake.registered) == [place]  # it waits to be used again
    assert lane.pinned_empty(3 * LARGE).ctypes.data == place


def test_small_memory_is_of_the_pool(fake: Fake) -> None:
    array = lane.pinned_empty(1000)
    assert lane.is_pinned(array)
    assert fake.registered == {}


def test_a_fork_does_not_share_it(fake: Fake) -> None:
    """After one, a page that is written to would be another one than the GPU reads."""
    array = lane.pinned_empty(LARGE + 1)
    text = Path("/proc/self/smaps").read_text()
    places = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (?:.*\n)+?VmFlags: (.*)$", text, re.M)
    flags = [f.split() for a, b, f in places if int(a, 16) <= array.ctypes.data < int(b, 16)]
    assert len(flags) == 1
    assert "wf" in flags[0]


@pytest.mark.parametrize("why", ["refused", "other addresses", "no GPU yet", "shared by forks"])
def test_what_cannot_be_locked_so_is_made_by_the_driver(fake: Fake, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("cudaErrorHostMemoryAlreadyRegistered")

    if why == "refused":
        monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "hostRegister", refused)
    elif why == "other addresses":
        fake.attributes[registered._SAME_ADDRESS] = 0
    elif why == "shared by forks":  # Linux before 4.14: a page that is written to after a fork is not the GPU's
        monkeypatch.setattr(registered, "_OTHER_AFTER_FORK", 9999)
    else:
        lane._page_locking.clear()
    array = lane.pinned_empty(2 * LARGE)
    array[:] = 7
    assert fake.registered == {}
    assert fake.pinned_in_use() >= 2 * LARGE
    assert lane.is_pinned(array)


def test_why_nothing_could_be_registered_is_logged_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("cudaErrorMemoryAllocation")

    lane._tell.cache_clear()
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "hostRegister", refused)
    with caplog.at_level("DEBUG", "dali_run"):
        held = [lane.pinned_empty(n * LARGE) for n in (2, 8)]
    assert [r.getMessage() for r in caplog.records] == [
        "page-locked memory is made by the driver, not registered: RuntimeError: cudaErrorMemoryAllocation"
    ]
    assert all(map(lane.is_pinned, held))
    assert registered.why_not_locked(0) == "cudaHostRegister: cudaErrorMemoryAllocation"


def test_its_end_tells_the_driver_before_the_pages_go(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    block = registered.Locked(2 * mmap.PAGESIZE, 0)
    there: list[bool] = []
    unregister = registered.unregister

    def noted(address: int, index: int) -> None:
        there.append(f"{address:x}-" in Path("/proc/self/maps").read_text())
        unregister(address, index)

    monkeypatch.setattr(registered, "unregister", noted)
    del block
    gc.collect()
    assert there == [True]
