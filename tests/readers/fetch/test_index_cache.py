"""Cached indexes: only for large containers, only the very same file, never half of one."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dali_run.readers.fetch import index_cache

COLUMNS = [np.arange(5), np.arange(3) * -7, np.empty(0, np.int64)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def key(**changes: int) -> dict[str, int]:
    return {"version": 1, "size": 1 << 30, "mtime_ns": 123456789, **changes}


def test_kept_beside_the_file_for_this_file_only(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tar")
    index_cache.store(path, "tar", **key(), columns=COLUMNS)
    assert os.listdir(tmp_path) == [".a.tar.tar-index"]
    loaded = index_cache.load(path, "tar", **key(), columns=3)
    assert loaded is not None
    for a, b in zip(loaded, COLUMNS, strict=True):
        np.testing.assert_array_equal(a, b)
    for changed in (key(version=2), key(size=1 << 31), key(mtime_ns=5)):
        assert index_cache.load(path, "tar", **changed, columns=3) is None
    assert index_cache.load(path, "tar", **key(), columns=2) is None
    assert index_cache.load(path, "lmdb", **key(), columns=3) is None


def test_kept_in_the_users_cache_where_the_folder_cannot_be_written(cache: Path) -> None:
    path = "/proc/a.tar"  # nobody may write there
    index_cache.store(path, "tar", **key(), columns=COLUMNS)
    assert len(list((cache / "dali-run" / "index").iterdir())) == 1
    assert index_cache.load(path, "tar", **key(), columns=3) is not None


def test_nowhere_to_write_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    index_cache.store("/proc/a.tar", "tar", **key(), columns=COLUMNS)
    assert index_cache.load("/proc/a.tar", "tar", **key(), columns=3) is None


def test_small_files_have_none(tmp_path: Path) -> None:
    index_cache.store(str(tmp_path / "a.tar"), "tar", **key(size=1000), columns=COLUMNS)
    assert os.listdir(tmp_path) == []


def test_damaged_ones_are_not_believed(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tar")
    index_cache.store(path, "tar", **key(), columns=COLUMNS)
    place = tmp_path / ".a.tar.tar-index"
    raw = place.read_bytes()
    for size in range(len(raw)):
        place.write_bytes(raw[:size])
        assert index_cache.load(path, "tar", **key(), columns=3) is None
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        place.write_bytes(damaged)
        assert index_cache.load(path, "tar", **key(), columns=3) is None, at


def test_columns_of_several_files_are_joined_and_let_go() -> None:
    parts = [(np.arange(k), np.arange(k) * 2.5, np.full(k, k, np.int32)) for k in (3, 0, 5)]
    expected = [np.concatenate(c) for c in zip(*parts, strict=True)]
    for found, right in zip(index_cache.joined(parts), expected, strict=True):
        np.testing.assert_array_equal(found, right)
        assert found.dtype == right.dtype
    assert parts == []
    alone = np.arange(4)
    assert index_cache.joined([(alone,)])[0] is alone  # there is no second one to make


def test_reading_and_writing_one_takes_no_copies(tmp_path: Path) -> None:
    """Of a billion records an index has 24 GB: beside the columns there may be little."""
    path, columns = str(tmp_path / "a.tar"), [np.arange(1 << 20), np.arange(1 << 20)]
    nbytes = sum(c.nbytes for c in columns)
    tracemalloc.start()
    try:
        index_cache.store(path, "tar", **key(), columns=columns)
        assert tracemalloc.get_traced_memory()[1] < nbytes / 2
        tracemalloc.reset_peak()
        found = index_cache.load(path, "tar", **key(), columns=2)
        assert tracemalloc.get_traced_memory()[1] < nbytes * 3 / 2
    finally:
        tracemalloc.stop()
    assert found is not None
    assert [c.sum() for c in found] == [c.sum() for c in columns]
