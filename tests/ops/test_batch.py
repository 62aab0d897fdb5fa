"""Batches: what their index arrays say."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Origin, Samples, elements, part_key
from dali_run.writers.base import Records
from dali_run.writers.formats.columns import keys_of


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


PLACES = {
    "packed": [0, 6, 12, 18], "later": [7, 13, 19, 25], "gaps": [0, 8, 16, 24], "one gap": [0, 6, 12, 19],
    "overlaps": [3, 3, 3, 3], "reversed": [18, 12, 6, 0],
}  # fmt: skip


@pytest.mark.parametrize("offsets", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 6, 1), (0, 3)])
def test_dense_is_the_samples_stacked(shape: tuple[int, ...], offsets: list[int]) -> None:
    data = np.arange(32, dtype=np.float32)
    batch = Batch(data, np.array(offsets), np.tile(np.array(shape, np.int32), (4, 1)), "", Samples.numbered(4))
    for some in (batch, batch.take(slice(1, 3)), batch.take(slice(3, 4)), batch.take(slice(2, 2))):
        assert some.is_uniform == (len(some) > 0)
        dense = some.dense()
        assert dense.dtype == np.float32
        if len(some):
            assert np.array_equal(dense, np.stack(list(some)))
            follow = all(b - a == int(np.prod(shape)) for a, b in zip(some.offsets, some.offsets[1:], strict=False))
            assert np.shares_memory(dense, data) == (follow and dense.size > 0)
        else:
            assert dense.shape == (0, *shape)


def test_numbers_are_dense_without_dimensions() -> None:
    batch = Batch(np.arange(5), np.arange(1, 4), np.empty((3, 0), np.int32), "", Samples.numbered(3))
    assert batch.is_uniform
    assert batch.dense().tolist() == [1, 2, 3]


def test_dense_names_what_differs() -> None:
    batch = Batch.from_list([np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))], "HW", Samples.numbered(3))
    assert not batch.is_uniform
    with pytest.raises(ValueError, match=r"\(2, 3\) for '000000000', \(3, 2\) for '000000002'"):
        batch.dense()


class Named:
    """A data set whose records have names; ``keys`` of many at once, where it is asked to have them."""

    names = ("a/b.mp4", "a.b/c", "ünter/x.tar.gz", ".hidden", "\udcff/n.jpg")

    def __init__(self, many: bool) -> None:
        if many:
            self.keys = lambda index: [self.names[i].encode("utf-8", "surrogateescape") for i in index.tolist()]

    def origin(self, index: int) -> Origin:
        return Origin(self.names[index], "")


@pytest.mark.parametrize("many", [False, True])
def test_names_are_the_keys_of_all_samples(many: bool) -> None:
    """Of records and of parts, in any order, also of none."""
    index = np.array([0, 0, 1, 3, 2, 2, 2, 4, 0], np.int64)
    part = np.array([0, 7, 2, 0, 5, 4, 1_234_567, 3, 1], np.int32)
    for parts in (None, part):
        for n in (9, 1, 0):
            at = np.arange(n, dtype=np.int64)
            samples = Samples(at.astype(np.int32), at, at, index[:n], Named(many), None if parts is None else parts[:n])
            keys = [samples.origin(i).key for i in range(n)]
            assert [name.decode("utf-8", "surrogateescape") for name in samples.names()] == keys
            assert Records(samples, {}).sample_keys() == keys
            column = keys_of(samples)
            assert [bytes(column.data[a : a + k]).decode("utf-8", "surrogateescape") for a, k in
                    zip(column.starts.tolist(), column.sizes.tolist(), strict=True)] == keys  # fmt: skip
    assert part_key("a/b.c.mp4", 3) == "a/b-000003.c.mp4"
    assert part_key("x", 3) == "x-000003"
