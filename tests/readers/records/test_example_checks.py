"""Features found in records: the loops that look it over say what the words say, and tell places as NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.errors import SpecError
from dali_run.readers.fetch.extents import MAX_RECORD
from dali_run.readers.records import example, example_checks_cpu
from dali_run.readers.records.example import Feature, FixedLenFeature, RecordParser, VarLenFeature

FEATURES: dict[str, Feature] = {
    "text": FixedLenFeature((), "string"),
    "text with a default": FixedLenFeature((1,), "string", b"none"),
    "any text": VarLenFeature((), "string"),
    "number": FixedLenFeature((), "int64"),
    "number with a default": FixedLenFeature((), "int64", 7),
    "matrix": FixedLenFeature((2, 3), "float"),
    "nothing": FixedLenFeature((0,), "float"),
    "numbers": VarLenFeature((), "int64"),
    "rows": VarLenFeature((3,), "float"),
}


def found_anything(n: int, rng: np.random.Generator) -> np.ndarray:
    """All that `find_features` might say of ``n`` records, mostly what is wanted."""
    found = np.empty((n, len(FEATURES), 4), np.int64)
    for f, feature in enumerate(FEATURES.values()):
        size = max(1, int(np.prod(feature.shape)))
        found[:, f, 0] = rng.integers(0, 1000, n)
        found[:, f, 1] = found[:, f, 0] + rng.choice([0, 5, MAX_RECORD, MAX_RECORD + 1], n, p=[0.05, 0.91, 0.02, 0.02])
        found[:, f, 2] = rng.choice([size, 0, 1, 2, 4, 3 * size, MAX_RECORD + 1], n, p=[0.9, *[0.1 / 6] * 6])
        kind = {"string": 1, "float": 2, "int64": 3}[feature.dtype]
        found[:, f, 3] = rng.choice([kind, 0, 1, 2, 3, 4], n, p=[0.95, *[0.01] * 5])
    return found


def test_what_is_sifted_out_is_what_has_a_problem_in_words() -> None:
    rng = np.random.default_rng(3)
    wanted = RecordParser.of(FEATURES).wanted
    found = found_anything(4000, rng)
    status = rng.choice(np.array([0, 1], np.int32), len(found), p=[0.95, 0.05])
    good = np.empty(len(found), np.bool_)
    bad = example_checks_cpu.sift(found, status, wanted, MAX_RECORD, good)
    expected = status == 0
    for f, (name, feature) in enumerate(FEATURES.items()):
        problems = example._problems(name, feature, found[:, f], expected)
        assert problems  # each feature has some
        expected[[i for i, _, _ in problems]] = False
    assert np.array_equal(good, expected)
    assert bad == np.count_nonzero(~expected)
    assert 0 < bad < len(found)


def test_places_of_strings_and_of_numbers() -> None:
    rng = np.random.default_rng(4)
    found = found_anything(500, rng)
    good = rng.random(500) < 0.9
    found[~good] = 0
    for f in range(len(FEATURES)):
        start, stop, count = found[:, f, 0], found[:, f, 1], found[:, f, 2]
        offsets, sizes = np.empty(500, np.int64), np.empty(500, np.int64)
        assert example_checks_cpu.texts(found, f, offsets, sizes) == np.count_nonzero(count == 0)
        assert np.array_equal(sizes, np.where(count == 0, 0, stop - start))
        assert np.array_equal(offsets, np.where(sizes == 0, 0, start))
        for default in (0, 6):
            rows, counts, at = np.empty((500, 4), np.int64), np.empty(500, np.int64), np.empty(500, np.int64)
            total = example_checks_cpu.numbers(found, f, good, default, rows, counts, at)
            wanted = np.where(good & (count == 0), default, count)
            assert np.array_equal(rows, found[:, f])
            assert np.array_equal(counts, wanted)
            assert np.array_equal(at, np.cumsum(wanted) - wanted)
            assert total == wanted.sum()


def test_counts_are_divided_by_no_zero() -> None:
    with pytest.raises(SpecError, match="cannot hold 0"):
        VarLenFeature((0,), "float")
    wanted = RecordParser.of(FEATURES).wanted
    fixed = wanted[:, example_checks_cpu.RULES] & example_checks_cpu.FIXED > 0
    assert (wanted[fixed, example_checks_cpu.SIZE] == 0).any()
    assert (wanted[~fixed, example_checks_cpu.SIZE] > 0).all()
