"""Checksums of files: by their definitions, whichever way and by however many threads they are taken."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import JobError
from dali_run.writers import base
from dali_run.writers.base import ShardFile
from dali_run.writers.bytes import checksums_cpu
from dali_run.writers.bytes.background import WriterThreads
from dali_run.writers.bytes.checksums import BLOCK, STEP, Checksums, checksums_of
from dali_run.writers.bytes.files_io import File
from dali_run.writers.bytes.scatter_gather import IoVector

SIZES = (0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12345)
MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip


def xxh64(data: bytes) -> int:
    """By the text of the specification, without the stripes of long inputs being anything special."""

    def turned(x: int, n: int) -> int:
        return (x << n | x >> (64 - n)) & MASK

    def mixed(total: int, word: int) -> int:
        return turned((total + word * P2) & MASK, 31) * P1 & MASK

    at, total = 0, P5
    if len(data) >= 32:
        threads = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while len(data) - at >= 32:
            threads = [mixed(a, int.from_bytes(data[at + 8 * k : at + 8 * k + 8], "little"))
                     for k, a in enumerate(threads)]  # fmt: skip
            at += 32
        total = sum(turned(a, n) for a, n in zip(threads, (1, 7, 12, 18), strict=True)) & MASK
        for a in threads:
            total = ((total ^ mixed(0, a)) * P1 + P4) & MASK
    total = (total + len(data)) & MASK
    for size, make in ((8, lambda w: mixed(0, w)), (4, lambda w: w * P1 & MASK), (1, lambda w: w * P5 & MASK)):
        while len(data) - at >= size:
            total ^= make(int.from_bytes(data[at : at + size], "little"))
            at += size
            turn, factor, plus = {8: (27, P1, P4), 4: (23, P2, P3), 1: (11, P1, 0)}[size]
            total = (turned(total, turn) * factor + plus) & MASK
            if size == 4:
                break
    for shift, factor in ((33, P2), (29, P3), (32, 1)):
        total = (total ^ total >> shift) * factor & MASK
    return total


def crc32c(data: bytes) -> int:
    """Bit by bit would take minutes: byte by byte, by a table that is made bit by bit."""
    table = list(range(256))
    for _ in range(8):
        table = [x >> 1 ^ (0x82F63B78 if x & 1 else 0) for x in table]
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def defined(data: bytes) -> tuple[str, str]:
    leaves = b"".join(xxh64(data[at : at + BLOCK]).to_bytes(8, "little") for at in range(0, len(data), BLOCK))
    return f"{crc32c(data):08x}", hashlib.sha256(leaves).hexdigest()


def content(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def test_published_values_of_xxh64() -> None:
    for text, value in ((b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999)):
        data = np.frombuffer(text + b"beyond", np.uint8)
        assert int(checksums_cpu._xxh64(data.ctypes.data, len(text))) == xxh64(text) == value


@pytest.mark.parametrize("size", SIZES)
def test_by_definition_in_pieces_and_in_files(tmp_path: Path, size: int) -> None:
    data = content(size)
    expected = defined(data.tobytes())
    whole = Checksums()
    whole.extend(data)
    assert whole.result() == expected
    rng, pieces, at = np.random.default_rng(7), Checksums(), 0
    while at < size:
        n = int(rng.integers(1, max(2, size // 3)))
        pieces.extend(data[at : at + n] if n % 2 else data[at : at + n].tobytes())
        at += n
    assert pieces.result() == expected
    path = tmp_path / "file"
    path.write_bytes(data.tobytes())
    with path.open("rb") as file, ThreadPoolExecutor(3) as threads:
        assert checksums_of(file.fileno(), size, threads) == expected


@pytest.mark.parametrize("mean", [1, 5, 40, 3000, 2 * BLOCK])
def test_pieces_that_lie_apart(mean: int) -> None:
    """Stripes, blocks and calls end anywhere in a piece."""
    data = content(3 * BLOCK + 12345 if mean > 100 else BLOCK + 71)
    rng = np.random.default_rng(mean)
    ends = np.cumsum(rng.integers(0, 2 * mean + 1, 3 * len(data) // mean + 10))
    ends = np.unique(np.minimum(ends, len(data)))
    ends = ends[ends > 0]
    apart = [data[a:b].copy() for a, b in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]
    checksums, cuts = Checksums(), sorted({0, 1, len(apart) // 3, len(apart) // 2, len(apart)})
    for first, last in pairwise(cuts):
        table = np.array([(a.ctypes.data, len(a)) for a in apart[first:last]], np.int64).reshape(-1, 2)
        checksums.extend(IoVector(table, np.cumsum(table[:, 1]), tuple(apart)))
    assert checksums.result() == defined(data[: int(ends[-1])].tobytes())


@pytest.mark.parametrize("calls", ["small apart apart", "large apart large", "apart small", "small large apart small"])
@pytest.mark.parametrize("rewritten", [None, 5, BLOCK + 3])
def test_of_a_file_whoever_writes_to_it(
    tmp_path: Path, calls: str, rewritten: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that delivers writes small or large records, or another one does."""
    monkeypatch.setattr(base, "LARGE", BLOCK)
    workers = WriterThreads()
    file = ShardFile(tmp_path / "file", "file", workers)
    expected = bytearray()
    for k, call in enumerate(calls.split()):
        data = content(1000 + k if call == "small" else 2 * BLOCK + 100 * k)
        file.apart = call == "apart"
        file.write(data)
        expected += data.tobytes()
    if rewritten is not None:
        file.rewrite(rewritten, b"other")
        expected[rewritten : rewritten + 5] = b"other"
    info = file.finish()
    workers.stop(JobError("over"))
    assert (tmp_path / "file").read_bytes() == expected
    assert (info.crc32c, info.tree) == defined(bytes(expected))


def test_blocks_in_any_order(tmp_path: Path) -> None:
    size = STEP + 2 * BLOCK + 77
    data = content(size)
    expected = Checksums()
    expected.extend(data)
    file = File(tmp_path / "file")
    file.write(data)
    blocks = list(range(-(-size // BLOCK)))
    np.random.default_rng(3).shuffle(blocks)
    taken = Checksums()
    for k in blocks:
        file.sum(taken, k, min(BLOCK, size - k * BLOCK))
    assert taken.result() == expected.result()
    file.close()


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    file = File(tmp_path / "file")
    file.write(content(3 * BLOCK))
    file.truncate(BLOCK + 5)
    with pytest.raises(OSError, match="cut short") as told:
        file.sum(Checksums(), 0, 3 * BLOCK)
    assert told.value.filename == str(tmp_path / "file")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        Checksums().take(-1 & 0x7FFF_0000, 0, 5)
