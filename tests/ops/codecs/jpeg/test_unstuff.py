"""The kernel that takes the stuffing out of a scan, alone: any bytes at any place, against a loop in Python."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from tests.kit.emulated_lane import compiled
from tests.kit.ops.jpeg_harness import EmulatedRuntime, GpuRuntime

EOI = 0xD9
HEADER = 37  # bytes before the first scan


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def runtime(request: pytest.FixtureRequest) -> Any:
    return EmulatedRuntime() if request.param == "emulated" else GpuRuntime()


def expected(scan: bytes, restarts: int) -> tuple[bytes, list[int], int]:
    """Bytes kept, ends of the restart intervals, status."""
    kept, ends, status = bytearray(), [], 0
    i = 0
    while i < len(scan):
        if scan[i] != 0xFF:
            kept.append(scan[i])
            i += 1
            continue
        fill = i
        while i < len(scan) and scan[i] == 0xFF:
            i += 1
        if i == len(scan):
            break
        code = scan[i]
        if code == 0:
            kept.append(0xFF)
            if i - fill > 1:
                status |= jpeg_gpu.EXTRANEOUS
        elif 0xD0 <= code <= 0xD7:
            if len(ends) % 8 != code - 0xD0:
                status |= jpeg_gpu.BAD_RESTART
            ends.append(len(kept))
        else:
            if code != EOI:
                status |= jpeg_gpu.EXTRANEOUS
            break
        i += 1
    if len(ends) != restarts:
        status |= jpeg_gpu.BAD_RESTART
    return bytes(kept), ends, status


def run(runtime: Any, scans: list[bytes], restarts: list[int]) -> list[tuple[bytes, list[int], int]]:
    n = len(scans)
    images = np.zeros(n, jpeg_gpu.IMAGE)
    sizes = np.array([len(s) for s in scans], np.int64)
    gaps = HEADER + np.arange(n) * 7  # every alignment of a scan
    raw_at = np.cumsum(sizes + gaps) - sizes - gaps
    raw = np.full(int((sizes + gaps).sum()), 0xFF, np.uint8)
    words = -(-sizes // 128) * 32 + 32
    for row, scan, start, gap in zip(images, scans, raw_at, gaps, strict=True):
        row["raw"], row["scan"], row["raw_size"] = start, gap, gap + len(scan)
        raw[start + gap : start + gap + len(scan)] = np.frombuffer(scan, np.uint8)
    images["words"], images["segments"] = np.cumsum(words) - words, np.cumsum(restarts) - restarts
    images["segment_count"], images["owner"] = restarts, np.arange(n)
    first = np.zeros(n + 1, np.int32)
    np.cumsum(-(-(sizes + 15) // jpeg_gpu.UNSTUFF_CHUNK), out=first[1:])
    lengths = {"words": 4 * int(words.sum()), "segments": 4 * (sum(restarts) + 1), "stream": 8 * n, "status": 4 * n,
               "tickets": 256, "unstuff_chain": 8 * int(first[-1])}  # fmt: skip
    batch = np.zeros(1, jpeg_gpu.BATCH)
    batch["count"] = batch["records"] = n
    arrays: dict[str, NDArray[np.uint8]] = {k: np.zeros(size, np.uint8) for k, size in lengths.items()}
    arrays |= {"raw": raw, "images": images.view(np.uint8), "unstuff_first": first.view(np.uint8)}
    owners, work = [], runtime.work()

    def upload(data: NDArray[np.uint8]) -> int:
        owner, at = runtime.allocate(data.nbytes)
        owners.append(owner)
        staged = runtime.stage(data.nbytes)
        staged[:] = data
        work.upload(at, staged)
        return int(at)

    for name, array in arrays.items():
        batch[name] = upload(array)
    at = upload(batch.view(np.uint8))
    work.launch("jpeg_unstuff", int(first[-1]), jpeg_gpu.UNSTUFF_THREADS, at)
    work.submit()
    out = {name: runtime.read(int(batch[name][0]), size) for name, size in lengths.items()}
    runtime.check_guards()
    stream = out["stream"].view(np.uint32).reshape(n, 2)
    results = []
    for i, row in enumerate(images):
        whole = out["words"].view(np.uint32)[row["words"] :][: words[i]].byteswap().tobytes()
        ends = out["segments"].view(np.uint32)[row["segments"] :][: stream[i, 1]].tolist()
        results.append((whole[: stream[i, 0]], ends, int(out["status"].view(np.int32)[i])))
    return results


def pattern(rng: np.random.Generator, size: int, dense: float) -> bytes:
    """Data in which a share of the bytes belongs to stuffing, fill and restart markers, in order or not."""
    data = rng.integers(0, 255, size, dtype=np.uint8)
    n, place, nth = max(int(size * dense / 2), 1), np.sort(rng.integers(0, size, max(int(size * dense / 2), 1))), 0
    for at, kind in zip(place, rng.random(n), strict=True):
        piece = b"\xff\0"
        if kind < 0.1:
            piece, nth = bytes([0xFF, 0xD0 + nth % 8]), nth + 1
        elif kind < 0.2:
            piece = bytes([0xFF] * int(rng.integers(1, 40)) + [0xD0 + nth % 8])
            nth += 1
        elif kind < 0.21:
            piece = b"\xff\xff\0"
        elif kind < 0.212:
            piece = bytes([0xFF, 0xD9 if rng.random() < 0.5 else 0xC4])
        part = data[at : at + len(piece)]
        part[:] = np.frombuffer(piece, np.uint8)[: len(part)]
    return data.tobytes()


@pytest.mark.parametrize("dense", [0.0, 0.004, 0.1, 0.9])
def test_against_a_loop(runtime: Any, dense: float) -> None:
    rng = np.random.default_rng(int(1000 * dense))
    sizes = [1, 2, 15, 16, 17, 31, 32, 33, 255, 4000, 8191, 8192, 8193, 20000, 33000, 70000]
    scans = [pattern(rng, size, dense) for size in sizes] + [pattern(rng, 300, dense) for _ in range(20)]
    restarts = [len(expected(scan, 0)[1]) for scan in scans]
    for i, (scan, count, result) in enumerate(zip(scans, restarts, run(runtime, scans, restarts), strict=True)):
        assert result == expected(scan, count), f"scan {i}"


def test_only_stuffing_or_fill_bytes(runtime: Any) -> None:
    """Threads that keep little of their bytes, or nothing; a scan that ends in FF; markers at the seams."""
    scans = [
        b"\xff\0" * 9000,
        b"\xff" * 20000,
        b"\xff" * 20000 + b"\xd9",
        b"\0" * 100,
        b"\xff",
        b"ab\xff",
        b"\xff\xd9" * 99,
    ]
    for at in (30, 31, 32, 8190, 8191, 8192, 8193):
        for tail in (b"\xff\0", b"\xff\xd0", b"\xff\xd9", b"\xff\xc0", b"\xff\xff\0", b"\xff\xff\xff\xd0"):
            scans.append(b"x" * at + tail + b"y" * 50)
            scans.append(b"x" * (at - 5) + tail + b"y" * 17000 + tail)
    restarts = [0, 0, 0, 0, 0, 0, 0] + [len(expected(scan, 0)[1]) for scan in scans[7:]]
    for i, (scan, count, result) in enumerate(zip(scans, restarts, run(runtime, scans, restarts), strict=True)):
        assert result == expected(scan, count), f"scan {i}"


def test_more_restart_markers_than_expected(runtime: Any) -> None:
    """Their ends must not be written beyond the image's own."""
    scan = b"".join(b"abc\xff" + bytes([0xD0 + i % 8]) for i in range(300))
    (first, second) = run(runtime, [scan, b"x"], [3, 0])
    assert first[1:] == ([3, 6, 9], jpeg_gpu.BAD_RESTART)
    assert second == (b"x", [], 0)


LOOK_BACK = r"""
#include "jpeg_unstuff.cu"
KERNEL look(const u64 *chain, const i32 *firsts, u64 *out) {
    int work = blockIdx.x;
    u64 sum = look_back(chain, firsts[work], work);
    if (threadIdx.x == 0) out[work] = sum;
}
"""
ALONE, READY, ENDED = 1 << 62, 1 << 63, 1 << 61


@pytest.mark.parametrize("ready", [0.0, 0.02, 0.5, 1.0])
def test_look_back(ready: float) -> None:
    """Whatever mixture of chunks has summed up already, the sum is the same; the first chunk always has."""
    rng = np.random.default_rng(3)
    alone, whole, firsts, sums = [], [], [], []
    for chunks in (1, 2, 31, 32, 33, 34, 65, 200):
        first, kept, marks, ended = len(alone), 0, 0, False
        for _ in range(chunks):
            sums.append(kept | marks << 32 | (ENDED if ended else 0))
            own, found, ends = int(rng.integers(0, 8193)), int(rng.integers(0, 4)), bool(rng.random() < 0.02)
            alone.append(own | found << 32 | (ENDED if ends else 0) | ALONE)
            if not ended:
                kept, marks, ended = kept + own, marks + found, ends
            whole.append(kept | marks << 32 | (ENDED if ended else 0) | READY)
            firsts.append(first)
    known = rng.random(len(alone)) < ready
    known[np.unique(firsts)] = True
    chain = np.where(known, np.array(whole, np.uint64), np.array(alone, np.uint64))
    out, places = np.zeros(len(chain), np.uint64), np.array(firsts, np.int32)
    arguments = [ctypes.c_void_p(a.ctypes.data) for a in (chain, places, out)]
    compiled(LOOK_BACK, "look")(len(chain), 1, 32, (ctypes.c_void_p * 3)(*map(ctypes.addressof, arguments)))
    assert out.tolist() == sums
