"""Many floats become integers as a few do: the compiled loop has the rules of the NumPy expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.conversion import _MIN_COMPILED, saturate

EDGES = [0, -0.0, 0.5, -0.5, 1.5, -2.5, 0.49999997, 254.5, 255.5, 127.5, -128.5, 65535.5, 3e9, -3e9, 2147483520,
         2147483648, 4294967295, 9.2e18, 9.3e18, -9.3e18, 1e-40, 1e38, -1e38, np.inf, -np.inf, np.nan]  # fmt: skip


@pytest.mark.parametrize("to", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_many_values_are_rounded_as_a_few_are(kind: Any, to: str) -> None:
    random = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        parts = [
            np.array(EDGES),
            random.normal(0, 300, 4000),
            random.normal(0, 3e9, 4000),
            random.normal(0, 9e18, 4000),
        ]
        values = np.concatenate(parts).astype(kind)
    few = [saturate(values[lo : lo + 100], to) for lo in range(0, len(values), 100)]
    assert len(values) >= _MIN_COMPILED > 100
    np.testing.assert_array_equal(saturate(values, to), np.concatenate(few))
