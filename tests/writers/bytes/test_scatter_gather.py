"""Bytes written from several memory areas equal the bytes written from one, however the system cuts the writes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import JobError
from dali_run.writers import base
from dali_run.writers.base import FieldConfig
from dali_run.writers.bytes import files_io, scatter_gather
from dali_run.writers.bytes.files_io import File
from dali_run.writers.bytes.scatter_gather import LOOSE, IoVector, ScatteredRecords
from dali_run.writers.formats.columns import Column, LargeValues, address, as_they_are, pack, starts_of
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output


def column(rng: np.random.Generator, sizes: Any) -> Column:
    """Values that do not lie in order, with gaps between them, in memory that is read-only."""
    sizes = np.asarray(sizes, np.int64)
    order = rng.permutation(len(sizes))
    starts = np.empty(len(sizes), np.int64)
    starts[order] = starts_of(sizes[order] + 5) + 3
    data = rng.integers(0, 256, int(sizes.sum()) + 5 * len(sizes) + 8, np.uint8)
    data.setflags(write=False)
    return Column(data, starts, sizes)


def scattered(rng: np.random.Generator, own: list[int], *values: list[int]) -> tuple[ScatteredRecords, list[bytes]]:
    """Records of ``own`` bytes, with values of these sizes in their midst; and each record's bytes."""
    n, k = len(own), len(values)
    columns = [column(rng, v) for v in values]
    small = rng.integers(0, 256, sum(own), np.uint8)
    ends = np.cumsum(own)
    starts = ends - own
    cuts = np.sort(rng.integers(0, np.array(own) + 1, (k, n)), axis=0) + starts
    addresses = np.array([c.starts + c.data.ctypes.data for c in columns], np.int64).reshape(k, n)
    sizes = np.array(values, np.int64).reshape(k, n)
    expected = []
    for i in range(n):
        at, out = int(starts[i]), b""
        for j in range(k):
            out += small[at : cuts[j, i]].tobytes() + columns[j].value(i)
            at = int(cuts[j, i])
        expected.append(out + small[at : ends[i]].tobytes())
    return ScatteredRecords(small, starts, ends, cuts, addresses, sizes, tuple(c.data for c in columns)), expected


CASES: list[tuple[list[int], ...]] = [
    ([],),
    ([0],),
    ([5, 0, 7],),
    ([0, 0, 0], [4, 0, 9]),
    ([3, 0, 2], [0, 0, 0]),
    ([3, 1, 0, 4, 4], [100, 0, 70, 1, 8], [0, 9, 0, 1, 3000]),
    ([1] * 40, [2] * 40, [3] * 40, [0] * 40),
]


@pytest.mark.parametrize("case", CASES)
def test_scattered_records(case: tuple[list[int], ...]) -> None:
    rng = np.random.default_rng(1)
    records, expected = scattered(rng, *case)
    assert records.totals.tolist() == [len(e) for e in expected]
    for n in range(len(expected) + 1):
        found = records.io_vector(n)
        assert len(found) == sum(map(len, expected[:n]))
        assert found.packed().tobytes() == b"".join(expected[:n])
        assert (found.table[:, 1] > 0).all()
        assert len(found.table) <= 1 + 2 * int((records.sizes > 0).sum()), "own bytes that adjoin are one piece"
    where = rng.permutation(len(expected))[::2]
    assert pack(records.take(where)).data.tobytes() == b"".join(expected[i] for i in where)
    values = pack(records)
    assert [values.value(i) for i in range(len(values))] == expected


def test_what_is_large_stays_where_it_is() -> None:
    rng = np.random.default_rng(2)
    columns = [column(rng, s) for s in ([LOOSE, LOOSE], [LOOSE, LOOSE - 1], [0, 2 * LOOSE], [3, 4])]
    large_values = LargeValues(columns, 2)
    assert [len(c) for c in large_values.cuts_of] == [2, 0, 2, 0]
    assert large_values.sizes.tolist() == [[LOOSE, LOOSE], [0, 2 * LOOSE]]
    assert LargeValues([], 2).cuts.shape == (0, 2)
    with pytest.raises(ValueError, match="outside of its data"):
        LargeValues([Column(columns[0].data, columns[0].starts + LOOSE, columns[0].sizes)], 2)


@pytest.mark.parametrize("rows", [1, 2, 3, 1024])
def test_every_slice_of_an_io_vector(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_gather, "_ROWS", rows)
    records, expected = scattered(np.random.default_rng(3), [3, 1, 0, 4], [10, 0, 7, 1], [0, 5, 0, 20])
    whole, found = b"".join(expected), records.io_vector(4)
    for at in range(len(whole)):
        for limit in (1, 2, 6, 50, 1 << 30):
            part = found.part(at, limit)
            text = b"".join(ctypes.string_at(a, n) for a, n in part.tolist())
            assert 1 <= len(part) <= rows
            assert 1 <= len(text) <= limit
            assert whole.startswith(text, at)
            assert len(part) == rows or len(text) == min(limit, len(whole) - at)


@pytest.mark.parametrize("limit", [None, 1, 777, 5000])
@pytest.mark.parametrize("rows", [2, scatter_gather._ROWS])
def test_a_file_written_from_an_io_vector(
    tmp_path: Path, limit: int | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_gather, "_ROWS", rows)
    monkeypatch.setattr(files_io, "_hook", None)
    rng = np.random.default_rng(4)
    n = 40 if limit == 1 else 2500  # more than the system takes at a time
    records, expected = scattered(rng, rng.integers(0, 9, n).tolist(), rng.integers(0, 30, n).tolist())
    files_io.set_hook(lambda operation, path: limit)
    file = File(tmp_path / "out")
    file.write(b"head")
    file.write(records.io_vector(n))
    file.write(records.io_vector(0))
    file.write(np.frombuffer(b"tail", np.uint8))
    file.close()
    assert (tmp_path / "out").read_bytes() == b"head" + b"".join(expected) + b"tail"
    assert file.size == sum(map(len, expected)) + 8


def test_failed_writes_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = scattered(np.random.default_rng(5), [3], [10])
    file = File(tmp_path / "out")
    with open("/dev/full", "wb") as full, monkeypatch.context() as patch:
        patch.setattr(file, "_fd", full.fileno())
        with pytest.raises(OSError) as caught:
            file.write(records.io_vector(1))
    file.close()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))


def test_a_signal_in_the_midst_of_a_write_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, expected = scattered(np.random.default_rng(6), [3, 4], [10, 2])
    real, calls = files_io._libc.writev, 0

    class Interrupted:
        def writev(self, *args: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                ctypes.set_errno(errno.EINTR)
                return -1
            return int(real(*args))

    monkeypatch.setattr(files_io, "_libc", Interrupted())
    file = File(tmp_path / "out")
    file.write(records.io_vector(2))
    file.close()
    assert calls == 2
    assert (tmp_path / "out").read_bytes() == b"".join(expected)


def test_input_that_is_cut_short_while_it_is_written(tmp_path: Path) -> None:
    """Its bytes were there when they were checked; the system finds that they no longer are."""
    size = 8 * mmap.PAGESIZE
    (tmp_path / "in").write_bytes(bytes(range(256)) * (size // 256))
    with (tmp_path / "in").open("r+b") as source:
        data = np.frombuffer(mmap.mmap(source.fileno(), size, prot=mmap.PROT_READ), np.uint8)
        source.truncate(mmap.PAGESIZE)
    file = File(tmp_path / "out")
    value = as_they_are(Column(data, np.array([100]), np.array([size - 100])))
    with pytest.raises(OSError, match="input file was cut short") as caught:
        file.write(value.io_vector(1))
    file.close()
    assert (caught.value.errno, caught.value.filename) == (errno.EFAULT, str(tmp_path / "out"))


def test_memory_is_held_until_it_is_written() -> None:
    value = as_they_are(Column(np.arange(250, dtype=np.uint8), np.array([0]), np.array([250])))
    found: IoVector = value.io_vector(1)
    del value
    trash = [np.full(250, 1, np.uint8) for _ in range(100)]
    assert found.packed().tolist() == list(range(250))
    assert len(trash) == 100


def test_a_shard_of_input_that_is_cut_short_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(files_io, "_hook", None)
    n, size = 4, 4 * mmap.PAGESIZE
    (tmp_path / "in").write_bytes(bytes(n * size))
    with (tmp_path / "in").open("r+b") as source:
        data = np.frombuffer(mmap.mmap(source.fileno(), n * size, prot=mmap.PROT_READ), np.uint8)
    samples = Samples.numbered(n)
    values = Batch(data, np.arange(n) * size, np.full((n, 1), size, np.int32), "", samples)

    def hook(operation: str, path: str) -> int | None:
        if operation == "write" and ".tar" in path:
            os.truncate(tmp_path / "in", size)
        return None

    files_io.set_hook(hook)
    config = WriteConfig(tmp_path / "out", "x", "webdataset", fields={"bin": FieldConfig("keep")})

    def run() -> None:
        with Output.open(config, {}, total=n) as out:
            out.add(0, n, samples, {"bin": values})
            out.finish()

    with pytest.raises(JobError, match=r"cannot write .*x-00000.*an input file was cut short.*EFAULT"):
        run()
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize(
    ("starts", "sizes", "inside"),
    [
        ([0, 3], [3, 7], True), ([], [], True), ([10, 0], [0, 10], True),
        ([-1, 0], [1, 1], False), ([0, 4], [3, 7], False), ([0, 11], [1, 0], False), ([5, 5], [-1, 0], False),
        ([2**62, 0], [2**62 + 2**61, 0], False),
    ],
)  # fmt: skip
def test_values_that_reach_outside_of_their_data_are_refused(starts: list[int], sizes: list[int], inside: bool) -> None:
    values = Column(np.zeros(10, np.uint8), np.array(starts, np.int64), np.array(sizes, np.int64))
    if inside:
        assert address(values)[1].tolist() == starts
    else:
        with pytest.raises(ValueError, match="reach outside of its data"):
            address(values)
