"""Registered files: what is registered when, what is given back for it, and who holds it meanwhile."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.gpu.readable_by_gpu import RegisteredLease, lease_of
from dali_run.readers.fetch import bus_errors
from dali_run.readers.fetch import gpu_reads as lenders
from dali_run.readers.fetch.bus_errors import lost_files
from dali_run.readers.fetch.extents import Mapped, mapped_of
from dali_run.readers.fetch.gpu_reads import RegisteredFiles
from tests.kit.fake_cupy import Fake, faked

WINDOW = 2 * mmap.PAGESIZE
WINDOWS = 12


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setattr(lenders, "WINDOW", WINDOW)
    with faked() as fake:
        yield fake


@pytest.fixture
def mapped(tmp_path: Path) -> Mapped:
    """Twelve windows, in three files."""
    rng = np.random.default_rng(1)
    for k, pages in enumerate((5, 1, 18)):
        (tmp_path / str(k)).write_bytes(rng.bytes(pages * mmap.PAGESIZE - 7 * k))
    return Mapped([str(tmp_path / str(k)) for k in range(3)])


class Lending:
    """A lender, and what it said."""

    def __init__(self, mapped: Mapped, limit: int = 1 << 30) -> None:
        self.mapped = mapped
        self.used = 0
        self.ways: list[str] = []
        self.files = RegisteredFiles((0,), limit, self._account, lambda method, _: self.ways.append(method))

    def _account(self, nbytes: int) -> None:
        self.used = nbytes

    def window(self, k: int, n: int = 1) -> np.ndarray | None:
        """Lend windows k ... k + n - 1."""
        lent = self.files.lend(self.mapped, np.array([k * WINDOW]), np.array([n * WINDOW]))
        if isinstance(lent, str):
            self.ways.append(lent)
            return None
        return lent

    def reason(self) -> str:
        return self.ways[-1]


def test_a_view_shows_the_file_and_says_where_a_device_finds_it(fake: Fake, mapped: Mapped) -> None:
    lending = Lending(mapped)
    lent = lending.window(1, 2)
    assert lent is not None
    np.testing.assert_array_equal(lent, mapped.data)
    lease = lease_of(lent[100:])
    assert isinstance(lease, RegisteredLease)
    (address,) = lease.sources(np.array([0])).tolist()
    assert address != mapped.data.ctypes.data
    assert fake.registered == {address + WINDOW: WINDOW, address + 2 * WINDOW: WINDOW}
    whole = np.frombuffer((np.ctypeslib.ctypes.c_uint8 * len(mapped.data)).from_address(address), np.uint8)
    np.testing.assert_array_equal(whole, mapped.data)  # every file at its place
    assert lending.files.holds(mapped, np.array([WINDOW]), np.array([1]))
    assert not lending.files.holds(mapped, np.array([0, WINDOW]), np.array([1, 1]))
    assert lending.used == 2 * WINDOW
    lending.files.close()
    lenders.wait_until_released()
    assert fake.registered == {}
    assert lending.used == 0
    assert lending.window(1) is None
    assert lending.reason() == "the run is over"


def test_the_last_window_ends_with_the_last_page(fake: Fake, mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenders, "WINDOW", 5 * mmap.PAGESIZE)
    lending = Lending(mapped)
    size = len(mapped.data)
    assert size == 24 * mmap.PAGESIZE
    assert lease_of(lending.files.lend(mapped, np.array([size - 15, 3]), np.array([1, 0])))
    assert list(fake.registered.values()) == [4 * mmap.PAGESIZE]
    lending.files.close()


def test_nothing_is_asked_of_cuda_for_nothing(fake: Fake, mapped: Mapped) -> None:
    lending = Lending(mapped)
    assert lease_of(lending.files.lend(mapped, np.zeros(2, np.int64), np.zeros(2, np.int64)))
    assert fake.registrations == 0
    lending.files.close()


def test_a_data_set_in_order_rolls_through_the_budget(fake: Fake, mapped: Mapped) -> None:
    lending = Lending(mapped, 4 * WINDOW)
    for _ in range(2):
        for k in range(WINDOWS):
            for _ in range(40):  # batches of each window
                lent = lending.window(k)
                assert lent is not None
                assert lending.used == sum(fake.registered.values()) <= 4 * WINDOW
                del lent
    assert fake.registrations == 2 * WINDOWS
    lending.files.close()


def test_what_is_held_is_not_given_back(fake: Fake, mapped: Mapped) -> None:
    lending = Lending(mapped, 2 * WINDOW)
    held = lending.window(0)
    for k in range(1, 6):
        lent = [lending.window(k) is not None for _ in range(2 * lenders._IDLE_BATCHES)]
        assert lent[-1]  # once the one before it has been idle for a while
        assert lent == [True] * len(lent) or k > 1
    assert held is not None
    base = int(lease_of(held).sources(np.array([0]))[0])  # type: ignore[union-attr]
    assert base in fake.registered
    also = lending.window(5)
    for _ in range(2 * lenders._IDLE_BATCHES):
        assert lending.window(6) is None
    assert lending.reason() == "pipeline.memory.host leaves 0 MiB for registered files"
    del held
    assert lending.window(6) is not None
    assert base not in fake.registered
    assert also is not None
    lending.files.close()


def test_an_order_that_jumps_about_keeps_what_it_has(fake: Fake, mapped: Mapped) -> None:
    lending = Lending(mapped, 4 * WINDOW)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        lending.window(int(rng.integers(WINDOWS)))
    assert fake.registrations < 4 * WINDOWS
    assert len(fake.registered) == 4
    before = dict(fake.registered)
    lent = sum(lending.window(k) is not None for k in range(WINDOWS))
    assert lent == 4
    assert fake.registered == before
    lending.files.close()


def test_a_batch_of_many_windows_waits_for_few(fake: Fake, mapped: Mapped) -> None:
    lending = Lending(mapped)
    found = [lending.window(0, WINDOWS) is not None for _ in range(3)]
    assert found == [False, False, True]
    assert lending.ways == ["being registered"] * 2 + ["registered"]
    assert fake.registrations == WINDOWS
    lending.files.close()


def test_a_replaced_file_is_not_registered(fake: Fake, mapped: Mapped) -> None:
    path = Path(mapped.paths[1])  # page 5: the second half of window 2
    path.with_suffix(".new").write_bytes(path.read_bytes())
    os.replace(path.with_suffix(".new"), path)
    lending = Lending(mapped)
    assert [lending.window(k) is not None for k in range(4)] == [True, True, False, True]
    assert lending.ways[2] == "a file was unpacked, or replaced while the job ran"
    lending.files.close()


def test_too_many_files_are_not_mapped_twice(fake: Fake, mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_run.readers.fetch.extents._MAX_FILES", 5)
    lending = Lending(mapped)
    assert lending.window(0) is None
    assert lending.reason() == "3 files are too many to map twice"
    lending.files.close()


def test_what_was_lost_stays_lost_when_a_file_is_mapped_again(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_errors._watched, "lost", set())  # and not for other tests
    with Path(mapped.paths[2]).open("r+b") as file:
        file.truncate(0)
    assert not mapped.data[-4096:].any()  # zeros in the place of what is gone
    assert mapped.paths[2] in lost_files()
    mapped.share().close()
    assert mapped.paths[2] in lost_files()


def test_residents(mapped: Mapped, tmp_path: Path) -> None:
    shared = mapped.share()
    assert shared.missing == []
    assert shared.resident(0, WINDOW) == 1.0  # just written
    shared.close()
    assert mapped_of(mapped.data) is mapped
    assert mapped_of(mapped.data[1:]) is None


def test_threads(fake: Fake, mapped: Mapped) -> None:
    """Several threads lend and let go; nothing is unregistered that somebody holds."""
    lending = Lending(mapped, 6 * WINDOW)
    problems: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        held: list[np.ndarray] = []
        for step in range(300):
            k = (step // 25 + seed) % (WINDOWS - 1)
            lent = lending.window(k, int(rng.integers(1, 3)))
            if lent is not None:
                held.append(lent)
                first = int(lease_of(lent).sources(np.array([k * WINDOW]))[0])  # type: ignore[union-attr]
                if first not in fake.registered:
                    problems.append(f"window {k} of {seed} is not registered")
            if len(held) > 3:
                held.pop(int(rng.integers(len(held))))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert "registered" in lending.ways
    lending.files.close()
    lenders.wait_until_released()
    assert fake.registered == {}


def test_the_next_run_finds_registered_what_the_last_one_has_left(fake: Fake, mapped: Mapped) -> None:
    kept = lenders.RegistrationCache(keep=True)
    used: list[list[int]] = [[], []]
    told: list[list[str]] = [[], []]
    for run in range(2):
        lender = lenders.lender_for(
            "registered", (0,), 1 << 30, used[run].append, lambda method, _, run=run: told[run].append(method), kept
        )
        assert lender is not None
        for k in range(4):
            assert lease_of(lender.of(k).lend(mapped, np.array([(k + 2 * run) * WINDOW]), np.array([WINDOW])))
        lender.close()
        lenders.wait_until_released()
        assert fake.registrations == len(fake.registered) == 4 + 2 * run
    # what the first run had is on the second one's account from its beginning on
    assert used == [[WINDOW * n for n in (1, 2, 3, 4, 0)], [WINDOW * n for n in (4, 5, 6)]]
    assert told == [["registered"] * 4] * 2


def test_the_way_of_containers_is_a_rule() -> None:
    ways = {(threads, repeatedly): lenders.upload_method_for("auto", threads, repeatedly=repeatedly)[0]
            for threads in (1, 3, 4, 11, 12, 64) for repeatedly in (False, True)}  # fmt: skip
    assert [ways[t, False] for t in (1, 3, 4, 64)] == ["registered", "registered", "copy", "copy"]
    assert [ways[t, True] for t in (1, 4, 11, 12, 64)] == ["registered"] * 3 + ["pieces"] * 2
    assert lenders.upload_method_for("registered", 64, repeatedly=False) == ("registered", "upload: registered")
    assert lenders.lender_for("copy", (0,), 1, lambda _: None, lambda *_: None) is None
