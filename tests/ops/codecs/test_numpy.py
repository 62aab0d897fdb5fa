"""decoders.numpy: files with one header are copied at once, and give what others give one by one."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import MAX_LENGTH
from tests.fuzz.targets import npy_of_shape
from tests.kit.operators import apply, batch_of, operator


def npy(array: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    np.save(file, array)
    return np.frombuffer(file.getvalue(), np.uint8)


ARRAYS = [np.random.default_rng(k).normal(0, 100, (7, 5)).astype(np.float32) for k in range(4)]


@pytest.mark.parametrize("dtype", [None, "FLOAT", "INT32"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "fortran", "shapes"])
def test_arrays_are_read_whatever_their_headers_are(kind: str, dtype: Any) -> None:
    if kind == "fortran":
        arrays = [np.asfortranarray(a) for a in ARRAYS]
    elif kind == "shapes":  # as long as the others
        arrays = [a.reshape(5, 7) if k % 2 else a for k, a in enumerate(ARRAYS)]
    else:
        arrays = [a.astype(kind) for a in ARRAYS]
    arguments = {} if dtype is None else {"dtype": dtype}
    out, rejects = apply(operator("decoders.numpy", **arguments), batch_of([npy(a) for a in arrays]))
    assert not rejects
    for found, a in zip(out, arrays, strict=True):
        expected = a if dtype is None else a.astype(np.float32) if dtype == "FLOAT" else np.round(a).astype(np.int32)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype.isnative


def test_a_damaged_file_among_equal_ones_is_rejected_alone() -> None:
    files = [npy(a) for a in ARRAYS]
    files[2] = files[2].copy()
    files[2][12] = 0
    out, rejects = apply(operator("decoders.numpy"), batch_of(files))
    assert [r.slot for r in rejects] == [2]
    np.testing.assert_array_equal(out.sample(3), ARRAYS[3])


SHAPES = [
    ((2**31, 0), "too_large"), ((2**40, 0), "too_large"), ((0, 2**70), "too_large"), ((2**70, 2**70), "too_large"),
    ((MAX_LENGTH, MAX_LENGTH, MAX_LENGTH, 0), "too_large"), ((0, 2**20, 2**20, 2**20, 2**20), "too_large"),
    ((1,) * 33, "bad_shape"), ((0,) * 200, "bad_shape"), ((-1, 0), "corrupt_record"), ((True, 3), "corrupt_record"),
    ((MAX_LENGTH, 4), "truncated"),
]  # fmt: skip


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("shape", "code"), SHAPES)
def test_shapes_that_no_array_has(shape: tuple[int, ...], code: str, alone: bool) -> None:
    """Extents beside a 0 count, too: the product says nothing then. The file is rejected, alone or among others."""
    file = np.frombuffer(npy_of_shape(shape), np.uint8)
    files = [file] * 3 if alone else [npy(ARRAYS[0]), file, npy(ARRAYS[1])]
    decoder, batch = operator("decoders.numpy"), batch_of(files)
    out, rejects = apply(decoder, batch)
    assert [(r.slot, r.code) for r in rejects] == [(i, code) for i in ((0, 1, 2) if alone else (1,))]
    assert out.sizes.sum() == (0 if alone else 70)
    assert decoder.estimate_memory("cpu", batch)[0].tolist() == out.sizes.tolist()


def test_the_longest_empty_array() -> None:
    files = [np.frombuffer(npy_of_shape((MAX_LENGTH, 0))[:-96], np.uint8)] * 2
    out, rejects = apply(operator("decoders.numpy"), batch_of(files))
    assert not rejects
    assert out.shapes.tolist() == [[MAX_LENGTH, 0]] * 2
