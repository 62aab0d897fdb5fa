"""Steps of the CPU's decoders on vectors and masks: libjpeg's accurate inverse DCT to the bit, values out of its range
are told, bits go where they belong; by instructions of this processor and by those that any has."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from dali_run.ops.codecs.jpeg import simd_cpu

simd: Any = simd_cpu
U = np.uint64
ROWS = np.array(
    [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
     28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61,
     54, 47, 55, 62, 63]
)  # fmt: skip
"""Of a place in a zig-zag 8 * row + column."""


@njit(nogil=True)
def transformed(coefficients: Any, factors: Any, seen: Any, out: Any) -> None:
    """Blocks [N, 64] to pixels [N, 8, 8]; each has ``seen`` [N, 32] of its own."""
    for i in range(len(coefficients)):
        simd.inverse_dct(
            U(coefficients[i].ctypes.data), U(factors.ctypes.data), U(out[i].ctypes.data), U(8), U(seen[i].ctypes.data)
        )


def pass_over(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """One dimension of jidctint.c's steps on the first axis, before the descaling."""
    z1 = (x[2] + x[6]) * 4433
    even = z1 + x[2] * 6270, z1 - x[6] * 15137
    s0, s1 = (x[0] + x[4]) << 13, (x[0] - x[4]) << 13
    sums = [s0 + even[0], s1 + even[1], s1 - even[1], s0 - even[0]]
    t0, t1, t2, t3 = x[7], x[5], x[3], x[1]
    z1, z2, z3, z4 = t0 + t3, t1 + t2, t0 + t2, t1 + t3
    z5 = (z3 + z4) * 9633
    z1, z2, z3, z4 = z1 * -7373, z2 * -20995, z3 * -16069 + z5, z4 * -3196 + z5
    odd = [t3 * 12299 + z1 + z4, t2 * 25172 + z2 + z3, t1 * 16819 + z2 + z4, t0 * 2446 + z1 + z3]
    return np.stack([*(s + o for s, o in zip(sums, odd, strict=True)),
                     *(s - o for s, o in zip(sums[::-1], odd[::-1], strict=True))])  # fmt: skip


def expected(blocks: NDArray[np.int16], quant: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Pixels of blocks [N, 64] in the order of a zig-zag, and whether all values were in range."""
    x = np.empty(blocks.shape, np.int64)
    x[:, ROWS] = blocks.astype(np.int64) * quant
    x = x.reshape(-1, 8, 8)
    limit = simd.LIMIT
    good = ((x >= -limit) & (x < limit)).all((1, 2))
    x = (pass_over(x.transpose(1, 0, 2)) + (1 << 10)) >> 11  # rows of what comes, blocks, columns
    good &= ((x >= -limit) & (x < limit)).all((0, 2))
    x = (pass_over(x.transpose(2, 0, 1)) + (1 << 17)) >> 18  # columns, rows, blocks
    return np.clip(x.transpose(2, 1, 0) + 128, 0, 255).astype(np.uint8), good


def check_transform() -> None:
    """Blocks of few and many coefficients, small and large, and the largest that there are."""
    rng = np.random.default_rng(5)
    quant = rng.integers(1, 256, 64).astype(np.uint8)
    sizes = 2.0 ** rng.integers(0, 14, (3000, 1)) / quant
    blocks = np.clip(rng.laplace(0, 1, (3000, 64)) * sizes, -32768, 32767).astype(np.int16)
    blocks[rng.random(blocks.shape) < rng.random((3000, 1))] = 0
    blocks[:50, rng.integers(0, 64, 50)] = np.where(rng.random(50) < 0.5, -32768, 32767)
    edges = np.zeros((512, 64), np.int16)
    for k in range(64):  # to both ends of the range, and one beyond
        most = simd.LIMIT // int(quant[k])
        edges[8 * k : 8 * k + 8, k] = [most, most + 1, -most, -most - 1, 1, -1, most - 1, 1 - most]
    blocks = np.concatenate([blocks, edges])
    factors = np.zeros(128, np.int16)
    assert simd.read_factors(np.concatenate([[0], quant]).astype(np.uint8), 1, factors)
    placed = np.zeros_like(blocks)
    placed[:, np.array(simd.PLACES)] = blocks
    seen, out = np.zeros((len(blocks), 32), np.uint16), np.empty((len(blocks), 8, 8), np.uint8)
    transformed(placed, factors, seen, out)
    pixels, good = expected(blocks, quant)
    assert [bool(simd.in_range(s)) for s in seen] == good.tolist()
    assert 500 < good.sum() < len(good) - 500
    np.testing.assert_array_equal(out[good], pixels[good])


@njit(nogil=True)
def refined(blocks: Any, masks: Any, step: Any) -> None:
    """`refine` of blocks [N, 64] by three masks each."""
    for i in range(len(blocks)):
        simd.refine(U(blocks[i].ctypes.data), masks[i, 0], masks[i, 1], masks[i, 2], step)


@njit(nogil=True)
def of_bits(values: Any, masks: Any, out: Any) -> None:
    """Of each value: how many bits it has, itself mirrored, its bits deposited, by both ways."""
    for i in range(len(values)):
        out[i, 0], out[i, 1] = simd.ones(values[i]), simd.mirrored(values[i])
        out[i, 2], out[i, 3] = simd.deposit(values[i], masks[i]), simd.deposit_by_steps(values[i], masks[i])


def check_masks() -> None:
    """Numbers of few and of many bits."""
    rng = np.random.default_rng(3)
    values, masks = (rng.integers(0, 1 << 64, 300, np.uint64) for _ in range(2))
    masks &= np.where(np.arange(300) % 3 == 0, rng.integers(0, 1 << 64, 300, np.uint64), ~U(0))
    masks[:3], values[:3] = [0, ~U(0), 1 << 63], [~U(0), ~U(0), 1]
    out = np.empty((300, 4), np.uint64)
    of_bits(values, masks, out)
    for value, mask, found in zip(values.tolist(), masks.tolist(), out.tolist(), strict=True):
        places = [k for k in range(64) if mask >> k & 1]
        deposited = sum((value >> n & 1) << k for n, k in enumerate(places))
        assert found == [value.bit_count(), int(f"{value:064b}"[::-1], 2), deposited, deposited]
    blocks = rng.integers(-9, 10, (100, 64)).astype(np.int16) * (rng.random((100, 64)) < 0.5)
    bits = rng.integers(0, 4, (100, 64))  # nothing, away from 0, plus, minus
    place = U(1) << np.arange(64, dtype=np.uint64)
    masks = np.stack([((bits == k) * place).sum(1, dtype=np.uint64) for k in (1, 2, 3)], 1)
    away = np.where(blocks < 0, -4, 4)
    right = blocks + np.choose(bits, [0, away, 4, -4])
    made = blocks.astype(np.int16)
    refined(made, masks, 4)
    np.testing.assert_array_equal(made, right)


def check() -> None:
    """All of it."""
    check_transform()
    check_masks()


def test_the_transform_is_libjpegs() -> None:
    check_transform()


def test_masks_of_coefficients() -> None:
    check_masks()


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="other instructions there")
def test_processors_without_avx2_and_bmi2_make_the_same() -> None:
    code = "from dali_run.ops.compiled.target import compiles_with\n" \
           "assert not compiles_with('avx2') | compiles_with('bmi2')\n" \
           "from tests.ops.codecs.jpeg import test_simd; test_simd.check()"  # fmt: skip
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64-v2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
