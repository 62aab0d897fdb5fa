"""The gather kernel, compiled by nvcc, run on the CPU, and on a GPU: records at any byte become what a copy gives."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.gpu.lane import SOURCES, Lane
from dali_run.ops.gpu.readable_by_gpu import GATHERED, RegisteredLease, gathered, lease_of

from ...kit.emulated_lane import EmulatedLane

PAGES = 12


def guarded() -> np.ndarray:
    """Pages before and behind which nothing can be read."""
    whole = np.frombuffer(mmap.mmap(-1, (PAGES + 2) * mmap.PAGESIZE), np.uint8)
    for page in (0, PAGES + 1):
        at = ctypes.c_void_p(whole.ctypes.data + page * mmap.PAGESIZE)
        assert ctypes.CDLL(None).mprotect(at, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return whole[mmap.PAGESIZE : -mmap.PAGESIZE]


def memory(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pages as a host sees them, and as a device does: elsewhere, with the same bytes."""
    rng = np.random.default_rng(seed)
    seen, registered = guarded(), guarded()
    seen[:] = rng.integers(0, 256, len(seen), np.uint8)
    registered[:] = seen
    return seen, registered


def batch_of(
    seen: np.ndarray, registered: np.ndarray, offsets: Any, sizes: Any, dtype: Any = np.uint8, window: int = 0
) -> Batch:
    lease = RegisteredLease(seen.view(dtype), registered.ctypes.data - seen.ctypes.data, window)
    shapes = np.array(sizes, np.int32).reshape(-1, 1)
    return Batch(lease.array(), np.array(offsets, np.int64), shapes, "", Samples.numbered(len(shapes)))


def expected(batch: Batch) -> np.ndarray:
    """The bytes as a copy on the host lays them out, zeros between them."""
    at, nbytes = gathered(batch)
    out = np.zeros(nbytes, np.uint8)
    for k, (start, sample) in enumerate(zip(at.tolist(), batch, strict=True)):
        raw = sample.view(np.uint8)
        out[start * batch.dtype.itemsize :][: len(raw)] = raw
        assert start * batch.dtype.itemsize % GATHERED == 0, k
    return out


def check(batch: Batch) -> None:
    lane = EmulatedLane()
    lease = lease_of(batch.data)
    assert lease is not None
    found = lease.bring(lane, batch)
    assert found.dtype == batch.dtype
    np.testing.assert_array_equal(found.view(np.uint8), expected(batch))


def test_every_alignment_and_length() -> None:
    """Sizes around words, lines and what a warp asks for at a time, at every place in a word."""
    seen, registered = memory()
    sizes = [0, 1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 495, 511, 512, 513, 2047, 2048, 2049, 4097]
    offsets = [3 + 16 * k + 61 * s for k in range(16) for s in range(len(sizes))]
    check(batch_of(seen, registered, [o + o % 16 for o in offsets], sizes * 16))


def test_records_at_the_edges_of_the_memory() -> None:
    """Reads never leave the pages of the records: the device's memory ends where the last one does."""
    seen, registered = memory(1)
    end = len(seen)
    for size in (1, 5, 16, 100, 2048, 3000):
        check(batch_of(seen, registered, [0, end - size, end - size - 1, 7], [size, size, size, size]))


@pytest.mark.parametrize("seed", range(8))
def test_any_records(seed: int) -> None:
    """Overlapping, repeated, empty, in any order; some longer than the part of a warp, and shorter."""
    rng = np.random.default_rng(seed)
    seen, registered = memory(seed)
    n = int(rng.integers(1, 60))
    sizes = rng.integers(0, [1, 40, 3000, 20_000][seed % 4] + 1, n)
    sizes[rng.random(n) < 0.2] = 0
    check(batch_of(seen, registered, rng.integers(0, len(seen) - sizes + 1), sizes))


def test_nothing_to_gather() -> None:
    seen, registered = memory()
    lane = EmulatedLane()
    for sizes in ([], [0, 0, 0]):
        batch = batch_of(seen, registered, [0] * len(sizes), sizes)
        lease = lease_of(batch.data)
        assert lease is not None
        assert len(lease.bring(lane, batch)) == 0
    assert lane.launched == []


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_numbers(dtype: Any) -> None:
    """Members of archives may be numbers: offsets and sizes count elements."""
    seen, registered = memory(3)
    check(batch_of(seen, registered, [1, 500, 7, 0], [33, 0, 1, 700], dtype))


def test_part_of_a_batch() -> None:
    seen, registered = memory(4)
    batch = batch_of(seen, registered, [5, 900, 77, 4000], [100, 3, 0, 911])
    part = batch.take(np.array([1, 3]))
    check(part)
    lease = lease_of(part.data)
    assert lease is not None
    np.testing.assert_array_equal(lease.places(part), [0, 16])
    assert lease_of(part.data[3:]) is lease_of(batch.data)
    assert lease_of(seen) is None


def test_it_compiles_for_the_device(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    command = [compiler, "-arch=sm_90", "-cubin", "-std=c++17", "-o", str(tmp_path / "gather.cubin")]
    subprocess.run([*command, str(SOURCES / "gather.cu")], check=True)


@pytest.mark.parametrize("window", [0, 4096, 12288])
def test_large_records_are_copied_by_pieces(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece reaches from one registered window into another, and none is empty."""
    monkeypatch.setattr("dali_run.ops.gpu.readable_by_gpu._LARGE", 1000)
    seen, registered = memory(3)
    offsets, sizes = [5, 4000, 0, 12287, 4096, 20000], [3000, 9000, 0, 2, 8192, len(seen) - 20000]
    batch = batch_of(seen, registered, offsets, sizes, window=window)
    copies: list[tuple[int, int]] = []

    class Lane(EmulatedLane):
        def copies_in(self, to: Any, host: Any, nbytes: Any) -> None:
            copies.extend(zip((host - registered.ctypes.data).tolist(), nbytes.tolist(), strict=True))
            super().copies_in(to, host, nbytes)

    lane, lease = Lane(), lease_of(batch.data)
    assert lease is not None
    found = lease.bring(lane, batch)
    assert not lane.launched
    for start, sample in zip(gathered(batch)[0].tolist(), batch, strict=True):
        np.testing.assert_array_equal(found[start:][: len(sample)], sample)
    assert min(size for _, size in copies) > 0
    if window:
        assert all(at // window == (at + size - 1) // window for at, size in copies)
        assert len(copies) > 6
    else:
        assert len(copies) == 5


@pytest.mark.gpu
def test_a_gpu_gathers_from_a_registered_file(tmp_path: Path) -> None:
    """A file in the page cache, mapped shared and read-only, many records of all sizes."""
    from dali_run.ops.gpu.registered import register, unregister, why_not

    reason = why_not([0])
    if reason:
        pytest.skip(reason)
    rng = np.random.default_rng(5)
    content = rng.integers(0, 256, (64 << 20) + 777, np.uint8)
    (tmp_path / "data").write_bytes(content.tobytes())
    with (tmp_path / "data").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    registered = np.frombuffer(mapping, np.uint8)
    nbytes = -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE
    register(registered.ctypes.data, nbytes, 0)
    lane = Lane()
    try:
        for mean in (20, 3000, 100_000, 300_000):
            sizes = rng.integers(0, 2 * mean, 512)
            sizes[::7] = 0
            batch = batch_of(content, registered, rng.integers(0, len(content) - sizes), sizes)
            with lane:
                found = lane.download(lane.to_device(batch).data)
                lane.synchronize()
            if mean > 200_000:  # by copy engines: whatever lies between samples stays as it is
                for at, sample in zip(gathered(batch)[0].tolist(), batch, strict=True):
                    np.testing.assert_array_equal(found[at:][: len(sample)], sample)
            else:
                np.testing.assert_array_equal(found, expected(batch))
        end = batch_of(content, registered, [len(content) - 5000, 0], [5000, 3])
        with lane:
            found = lane.download(lane.to_device(end).data)
            lane.synchronize()
        np.testing.assert_array_equal(found, expected(end))
    finally:
        lane.synchronize()
        unregister(registered.ctypes.data, 0)
