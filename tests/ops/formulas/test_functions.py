"""Functions of float32 in vectors, beside NumPy's in float64; and values that they leave to NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.formulas import functions_cpu
from dali_run.ops.formulas.arithmetic import _FUNCTIONS, _VECTORS
from tests.kit.ops.formulas import batch, calculate

F32 = np.finfo(np.float32)
ODD = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    F32.max,
    -F32.max,
    F32.tiny,
    1e-45,
    -1e-45,
    1e-30,
    0.5,
    1e5,
    3e6,
    88.8,
]


def _values(low: float, high: float, number: int) -> np.ndarray:
    """Evenly between two numbers, near both, and of all sizes around 0 that lie between."""
    random = np.random.default_rng(number)
    low, high = max(low, -1e30), min(high, 1e30)
    even = random.uniform(max(low, -50), min(high, 50), 4000)
    sizes = 10.0 ** random.uniform(-44, 30, 4000) * random.choice([-1, 1], 4000)
    found = np.concatenate([even, sizes, [low, high], low + np.abs(sizes), high - np.abs(sizes)]).astype(np.float32)
    return found[(found >= low) & (found <= high)]


def _near(got: np.ndarray, exact: np.ndarray) -> None:
    """Not more than a hair over half a unit in the last place away."""
    with np.errstate(over="ignore"):
        want = exact.astype(np.float32)
    there = np.isfinite(want)
    np.testing.assert_array_equal(got[~there], want[~there])
    unit = np.spacing(np.abs(want[there])).astype(np.float64)
    assert (np.abs(got[there].astype(np.float64) - exact[there]) <= 0.501 * unit).all()


@pytest.mark.parametrize("fn", sorted(_VECTORS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_a_unit_in_the_last_place(fn: str) -> None:
    name = _VECTORS[fn]
    values = [_values(float(low), float(high), k) for k, (low, high) in enumerate(functions_cpu.USUAL[name])]
    count = min(len(v) for v in values)
    values = [np.random.default_rng(k).permutation(v)[:count] for k, v in enumerate(values)]
    usual = ~functions_cpu.unusual(name, *values)
    values = [v[usual] for v in values]
    out = np.empty(len(values[0]), np.float32)
    assert len(out) > 3000
    assert getattr(functions_cpu, name)(*values, out)
    _near(out, _FUNCTIONS[fn](*(v.astype(np.float64) for v in values)))


@pytest.mark.parametrize("fn", sorted(_VECTORS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unusual_values_are_numpys_and_change_no_other(fn: str) -> None:
    odd = np.array(ODD, np.float32)
    values = (
        [odd] if len(functions_cpu.USUAL[_VECTORS[fn]]) == 1 else [np.repeat(odd, len(odd)), np.tile(odd, len(odd))]
    )
    text = f"{fn}({', '.join('ab'[: len(values)])})"
    got = calculate(text, *(batch(v) for v in values)).sample(0)
    want = _FUNCTIONS[fn](*values)
    np.testing.assert_allclose(got, want, rtol=4 * float(F32.eps), atol=1e-44)
    alone = [calculate(text, *(batch(v[k : k + 1]) for v in values)).sample(0)[0] for k in range(len(want))]
    np.testing.assert_array_equal(got, np.array(alone, np.float32))
