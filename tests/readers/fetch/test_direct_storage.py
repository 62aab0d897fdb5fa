"""kvikio as a way to a GPU: with a stand-in that has its interface, and with kvikio itself where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.gpu.readable_by_gpu import gathered, in_device_memory, lease_of
from dali_run.readers.fetch.direct_storage import KvikioFiles, runs_of, why_not_kvikio
from dali_run.readers.fetch.extents import Mapped
from tests.kit.engine.fake_kvikio import CuFile, Future
from tests.kit.fake_cupy import faked


def files(folder: Path) -> Mapped:
    rng = np.random.default_rng(3)
    for k, size in enumerate((300_001, 5, 90_000)):
        (folder / f"{k}").write_bytes(rng.bytes(size))
    return Mapped([str(folder / f"{k}") for k in range(3)])


def some(mapped: Mapped) -> tuple[np.ndarray, np.ndarray]:
    """Extents in any order: two in a row, one twice, an empty one, the last byte, one of another file."""
    a, c = int(mapped.starts[0]), int(mapped.starts[2])
    offsets = [a + 200_001, a + 17, a + 50_017, 0, a + 300_000, c + 4000, a + 17]
    return np.array(offsets, np.int64), np.array([90_000, 50_000, 17, 0, 1, 60_000, 50_000], np.int64)


def shown(lent: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> Batch:
    return Batch(lent, offsets, sizes.astype(np.int32).reshape(-1, 1), "", Samples.numbered(len(sizes)))


def test_what_lies_together_is_read_at_once(tmp_path: Path) -> None:
    mapped = files(tmp_path)
    lows, lengths = runs_of(mapped, *some(mapped))
    a, c = mapped.starts[[0, 2]].tolist()
    assert lows.tolist() == [a, a + 200_001 // 4096 * 4096, c]  # 50,034 ... 200,001 is too far
    assert (lows + lengths).tolist() == [a + 50_034, a + 300_001, c + 64_000]


@pytest.mark.usefixtures("kvikio")
def test_records_are_read_from_files_into_the_device(tmp_path: Path) -> None:
    mapped = files(tmp_path)
    offsets, sizes = some(mapped)
    told: dict[str, int] = {}
    with faked(memory=True) as fake:
        lender = KvikioFiles((0,), told.__setitem__)
        lent = lender.of(5).lend(mapped, offsets, sizes)
        assert not isinstance(lent, str)
        assert lender.of(0).holds(mapped, offsets, sizes)
        batch = shown(lent, offsets, sizes)
        for i, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            np.testing.assert_array_equal(batch.sample(i), mapped.data[offset : offset + size])
        assert in_device_memory(batch.data)
        lane = Lane()
        for part in (batch, batch.take(np.array([5, 3, 2]))):
            uploads = fake.uploads
            device = lane.to_device(part)
            assert fake.uploads == uploads + 1  # the table of records
            at, nbytes = gathered(part)
            np.testing.assert_array_equal(device.offsets, at)
            found = device.data.get()
            assert len(found) == nbytes
            for i, start in enumerate(at.tolist()):
                np.testing.assert_array_equal(found[start : start + int(part.sizes[i])], part.sample(i))
        lane.synchronize()
        lender.close()
        assert lender.of(0).lend(mapped, offsets, sizes) == "the run is over"
    assert [(Path(p).name, a % 4096) for p, a, _ in CuFile.reads] == [("0", 0), ("0", 0), ("2", 0)]
    assert told == {"kvikio": int(sizes.sum())}


@pytest.mark.usefixtures("kvikio")
def test_every_read_is_waited_for_where_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block that they read into goes back to the pool then."""
    mapped = files(tmp_path)
    offsets, sizes = some(mapped)
    waited: list[int] = []

    class Failing(Future):
        def get(self) -> int:
            waited.append(self._read)
            if len(waited) == 1:
                raise OSError("the disk is broken")
            return self._read

    real = CuFile.pread
    monkeypatch.setattr(CuFile, "pread", lambda *args, **named: Failing(real(*args, **named).get()))
    told: list[str] = []
    with faked(memory=True):
        lender = KvikioFiles((0,), lambda way, _: told.append(way))
        before = len(CuFile.reads)
        assert lender.of(0).lend(mapped, offsets, sizes) == "kvikio: the disk is broken"
        assert len(waited) == len(CuFile.reads) - before > 1
        lender.close()
    assert not told


@pytest.mark.usefixtures("kvikio")
def test_what_cannot_be_read_that_way_is_copied(tmp_path: Path) -> None:
    mapped = files(tmp_path)
    offsets, sizes = some(mapped)
    told: list[str] = []
    replaced = "kvikio: a file was unpacked, or replaced while the job ran"
    with faked(memory=True):
        lender = KvikioFiles((0,), lambda way, _: told.append(way))
        few = np.array([3, 4]), np.array([10, 4095])
        assert lender.of(0).lend(mapped, *few) == "records of few bytes"
        (tmp_path / "0").write_bytes(b"another file")
        assert lender.of(0).lend(mapped, offsets, sizes) == replaced
        other = files(tmp_path)
        with (tmp_path / "2").open("r+b") as file:
            file.truncate(30_000)
        assert lender.of(0).lend(other, offsets, sizes) == replaced
        again = files(tmp_path)
        assert lease_of(lender.of(0).lend(again, offsets, sizes))
        with (tmp_path / "2").open("r+b") as file:
            file.truncate(30_000)
        assert lender.of(0).lend(again, offsets, sizes) == "kvikio: a file ends early"
        lender.close()
    assert told == ["kvikio"]


def test_without_kvikio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    assert why_not_kvikio().startswith("kvikio ")
    mapped = files(tmp_path)
    told: dict[str, int] = {}
    lender = KvikioFiles((0,), told.__setitem__)
    assert not lender.of(0).holds(mapped, *some(mapped))
    assert lender.of(0).lend(mapped, *some(mapped)) == why_not_kvikio()
    assert not told


@pytest.mark.gpu
def test_the_real_kvikio(tmp_path: Path) -> None:
    pytest.importorskip("kvikio")
    mapped = files(tmp_path)
    offsets, sizes = some(mapped)
    told: dict[str, int] = {}
    lender = KvikioFiles((0,), told.__setitem__)
    try:
        lent = lender.of(0).lend(mapped, offsets, sizes)
        assert not isinstance(lent, str), lent
        batch = shown(lent, offsets, sizes)
        assert lease_of(batch.data) is not None
        lane = Lane()
        with lane:
            device = lane.to_device(batch)
            found = lane.download(device.data)
            lane.synchronize()
        for i, start in enumerate(device.offsets.tolist()):
            np.testing.assert_array_equal(found[start : start + int(batch.sizes[i])], batch.sample(i))
    finally:
        lender.close()
