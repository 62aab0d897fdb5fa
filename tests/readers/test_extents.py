"""Copies of extents: every byte, and none beside them, whatever the alignments."""

from __future__ import annotations

import numpy as np

from dali_run.readers.extents_cpu import copy_extents


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
