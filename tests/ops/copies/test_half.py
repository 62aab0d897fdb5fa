"""float16 from float32 in compiled loops: NumPy's bits, on processors that have the instruction and others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from dali_run.ops.compiled import target
from dali_run.ops.copies.strided_cpu import half_bits, half_bits_by_hand

PROJECT = Path(__file__).parents[3]

by_hand = numba.njit(half_bits_by_hand)


@numba.njit
def _native(values, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        out[i] = half_bits(values[i])


@numba.njit
def _by_hand(values, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        out[i] = by_hand(values[i])


def values() -> np.ndarray:
    """Every float16, the numbers between each and the next, their neighbours, and every 4,099th float32 at all."""
    split_plans = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    near = [split_plans + np.uint32(d) for d in (0, 1, 0xFFF, 0x1000, 0x1001, 0xFFFFFFFF)]
    return np.concatenate([*near, np.arange(0, 1 << 32, 4099, dtype=np.uint64).astype(np.uint32)]).view(np.float32)


@pytest.mark.parametrize("way", [_native, _by_hand])
def test_bits_are_numpys(way) -> None:  # type: ignore[no-untyped-def]
    given = values()
    out = np.zeros(len(given), np.uint16)
    way(given, out)
    with np.errstate(over="ignore", invalid="ignore"):
        right = given.astype(np.float16)
    nan = np.isnan(given)
    np.testing.assert_array_equal(out[~nan], right.view(np.uint16)[~nan])
    assert np.isnan(out[nan].view(np.float16)).all()
    assert (out[nan] >> 15 == given[nan].view(np.uint32) >> 31).all()


@pytest.mark.skipif(not target.on_x86(), reason="names of x86-64 processors")
@pytest.mark.parametrize("processor", ["generic", "x86-64-v2"])
def test_processors_without_the_instruction(processor: str, tmp_path: Path) -> None:
    """LLVM called a function that no library here has, and ended the process: jobs with float16 on such a processor,
    and two of the loops of every wheel for them."""
    program = """
import json
import numba, numpy as np
from dali_run.ops.compiled.target import compiles_with
from dali_run.ops.copies.strided_cpu import half_bits
assert not compiles_with("f16c")

@numba.njit
def all_of(values, out):
    for i in range(len(values)):
        out[i] = half_bits(values[i])

out = np.zeros(5, np.uint16)
all_of(np.array([1.0, -2.5, 1e-7, 65520.0, 0.1], np.float32), out)
print(json.dumps(out.view(np.float16).tolist()))
"""
    variables = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    with np.errstate(over="ignore"):
        right = np.array([1.0, -2.5, 1e-7, 65520.0, 0.1], np.float32).astype(np.float16)
    assert json.loads(done.stdout) == right.tolist()


@pytest.mark.parametrize(
    ("name", "features", "has"),
    [("x86-64-v3", "", True), ("x86-64-v2", "", False), ("x86-64", "+avx2,+f16c", True), ("generic", None, False),
     (None, "", False), ("skylake", "+avx2", False)],
)  # fmt: skip
def test_the_processor_that_is_compiled_for(
    name: str | None, features: str | None, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(numba.config, "CPU_NAME", name)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", features)
    assert target.compiles_with("f16c") is has
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not target.compiles_with("f16c")
