"""Extents: copies of every byte, and none beside them, whatever the alignments; files that unpack to too much."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dali_run.readers.fetch import extents
from dali_run.readers.fetch.extents_cpu import copy_extents, files_of, lay_out


def test_copies_are_exact_at_all_alignments_and_sizes() -> None:
    source = np.random.default_rng(0).integers(1, 256, 40_000, np.uint8)
    sizes = np.array([0, 1, 8191, 8192, 8193, 8223, 8255, 8256, 20_000], np.int64)
    for shift in (0, 1, 16, 31, 33):
        for align in (0, 1, 7, 16, 31):
            offsets = np.full(len(sizes), shift, np.int64)
            at = np.cumsum(sizes + 64 + align) - sizes
            out = np.zeros(int(at[-1] + sizes[-1]) + 100, np.uint8)
            expected = out.copy()
            for start, size in zip(at.tolist(), sizes.tolist(), strict=True):
                expected[start : start + size] = source[shift : shift + size]
            copy_extents(source, offsets, sizes, out, at)
            assert np.array_equal(out, expected), (shift, align)


def test_gzip_bombs_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has been unpacked till then can be read; the rest is named as damage."""
    monkeypatch.setattr(extents, "FREE_UNPACKED", 1 << 22)
    bomb, honest = tmp_path / "bomb.gz", tmp_path / "honest.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 25)))
    records = np.random.default_rng(1).integers(0, 4, 1 << 24, np.uint8).tobytes()
    honest.write_bytes(gzip.compress(records, 1))
    mapped = extents.Mapped([str(bomb), str(honest)])
    assert list(mapped.damage) == [0]
    assert "more than 200 times its size; if that is right, unpack the file first" in mapped.damage[0]
    assert 1 << 22 < mapped.sizes[0] < 1 << 24
    assert mapped.sizes[1] == len(records)
    limited = extents.Mapped([str(honest)], max_unpacked=1 << 20)
    assert "more than 1048576 bytes" in limited.damage[0]


def test_many_empty_gzip_members_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are bounded by the limits above, and so must be what costs time without giving any."""
    monkeypatch.setattr(extents, "FREE_MEMBERS", 100)
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8).tobytes()
    empties, honest = tmp_path / "empties.gz", tmp_path / "honest.gz"
    empties.write_bytes(gzip.compress(data) + gzip.compress(b"") * 1000)
    honest.write_bytes(gzip.compress(data) * 200)
    mapped = extents.Mapped([str(empties), str(honest)])
    assert list(mapped.damage) == [0]
    assert "more than 100 gzip members" in mapped.damage[0]
    assert mapped.sizes.tolist() == [len(data), 200 * len(data)]


def test_the_file_of_each_place_whatever_their_order() -> None:
    rng = np.random.default_rng(5)
    starts = np.array([0, 4096, 4096, 8192, 40960, 40960], np.int64)  # two files are empty
    inside = np.sort(rng.integers(0, 50_000, 700))
    for offsets in (inside, inside[::-1].copy(), rng.permutation(inside), starts, starts - 1, np.empty(0, np.int64)):
        files = np.empty(len(offsets), np.int64)
        offsets.setflags(write=False)  # as of a mapped index
        low, high = files_of(starts, offsets, files)
        expected = np.searchsorted(starts, offsets, side="right") - 1
        assert np.array_equal(files, expected)
        if len(offsets):
            assert (low, high) == (expected.min(), expected.max())


def test_extents_are_laid_out_one_after_the_other() -> None:
    sizes = np.array([0, 1, 15, 16, 17, 100_000, 0, 5], np.int64)
    at, shapes = np.empty(len(sizes), np.int64), np.empty((len(sizes), 1), np.int32)
    assert lay_out(sizes, 16, at, shapes) == 16 + 16 + 16 + 32 + 100_000 + 16
    assert at.tolist() == [0, 0, 16, 32, 48, 80, 100_080, 100_080]
    assert shapes[:, 0].tolist() == sizes.tolist()
