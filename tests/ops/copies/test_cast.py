"""cast of batches without gaps on a GPU: four values at a time, by the rules of ops/conversion.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.arrays import cast  # noqa: F401  # declares the operators
from dali_run.ops.conversion import saturate
from dali_run.ops.types import DALIDataType, to_numpy

from ...kit.dali_cases import apply, batch_of, operator
from ...kit.emulated_lane import EmulatedLane

HALVES = np.arange(-3, 70_000, 0.5, np.float32)
FLOATS = np.concatenate(
    [HALVES, np.nextafter(HALVES, np.float32(-9)), np.nextafter(HALVES, np.float32(1e6)),
     np.array([np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38], np.float32)]
)  # fmt: skip
"""Where rounding and saturation change, and the numbers next to those."""
CASES = [
    (FLOATS, "UINT8"), (FLOATS, "UINT16"), (FLOATS, "INT16"), (np.arange(256, dtype=np.uint8), "FLOAT"),
    (np.arange(-40_000, 40_000, 7, dtype=np.int32), "INT8"), (FLOATS, "BOOL"), (FLOATS[::97], "FLOAT64"),
    (np.arange(256, dtype=np.uint8).repeat(40), "INT64"), (np.arange(-40_000, 40_000, 7, dtype=np.int64), "INT16"),
]  # fmt: skip


def check(values: np.ndarray, dtype: str, lane: Any) -> None:
    for extents in ((len(values) - 9, 9), (len(values),), (5, 1, 3)):  # as long as a block, and ends within four
        ends = np.cumsum(extents)
        samples = [values[end - size : end] for end, size in zip(ends, extents, strict=True)]
        batch = batch_of(samples) if isinstance(lane, EmulatedLane) else lane.to_device(batch_of(samples))
        out, rejects = apply(operator("cast", dtype=dtype), batch, lane=lane)
        assert not rejects
        got = lane.to_host(out)
        lane.synchronize()
        for a, b in zip(got, samples, strict=True):
            np.testing.assert_array_equal(a, saturate(b, to_numpy(DALIDataType[dtype])))


@pytest.mark.parametrize(("values", "dtype"), CASES, ids=[f"{v.dtype} {d}" for v, d in CASES])
def test_cuda_run_on_the_cpu(values: np.ndarray, dtype: str) -> None:
    lane = EmulatedLane()
    check(values, dtype, lane)
    assert all(kernel.startswith("cast<") for kernel in lane.launched)


@pytest.mark.gpu
@pytest.mark.parametrize(("values", "dtype"), CASES, ids=[f"{v.dtype} {d}" for v, d in CASES])
def test_gpu(values: np.ndarray, dtype: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        check(values, dtype, lane)
