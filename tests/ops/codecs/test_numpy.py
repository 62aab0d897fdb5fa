"""decoders.numpy: files with one header are copied at once, and give what others give one by one."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

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
