"""Batches: what their index arrays say."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples, elements


@pytest.mark.parametrize("n", [0, 1, 2, 64, 65, 300])
@pytest.mark.parametrize("ndim", [0, 1, 3, 5])
def test_elements_are_products_of_extents(n: int, ndim: int) -> None:
    shapes = np.random.default_rng(n).integers(0, 1000, (n, ndim)).astype(np.int32)
    counts = elements(shapes)
    assert counts.dtype == np.int64
    assert counts.tolist() == [int(np.prod(s, dtype=object)) for s in shapes.tolist()]


@pytest.mark.parametrize("n", [1, 7, 100])
def test_a_batch_is_packed_as_it_is_allocated(n: int) -> None:
    shapes = np.random.default_rng(n).integers(0, 9, (n, 2)).astype(np.int64)
    batch = Batch.allocate(np.empty, shapes, np.float32, "HW", Samples.numbered(n))
    sizes = [int(h * w) for h, w in shapes.tolist()]
    assert batch.sizes.tolist() == sizes
    assert batch.offsets.tolist() == [sum(sizes[:k]) for k in range(n)]
    assert batch.nbytes == 4 * sum(sizes) == batch.data.nbytes
    assert batch.is_packed
