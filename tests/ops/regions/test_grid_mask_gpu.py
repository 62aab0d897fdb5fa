"""The kernels of grid_mask against the loop of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.pipelines.plugins import load_operators

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply, batch_of, operator

load_operators()


@pytest.mark.parametrize(
    ("layout", "dtype", "tail", "kernel"),
    [("HWC", "uint8", 3, "grid_mask_colours"), ("FHWC", "uint8", 3, "grid_mask_colours"),
     ("HWC", "uint8", 4, "grid_mask<unsigned char>"), ("HWC", "float32", 3, "grid_mask<unsigned int>")],
)  # fmt: skip
def test_as_on_the_cpu(layout: str, dtype: str, tail: int, kernel: str) -> None:
    """Of all widths, at every place of a word. The angle leaves no rounding: CPU and GPU agree to the last pixel."""
    random = np.random.default_rng(2)
    lead: tuple[int, ...] = (2,) if layout[0] == "F" else ()
    batch = batch_of([random.integers(1, 256, (*lead, 3 + k % 4, k, tail)).astype(dtype) for k in range(1, 40)], layout)
    batch = batch.replace(data=np.concatenate([np.ones(3, dtype), batch.data]), offsets=batch.offsets + 3)
    op, lane = operator("grid_mask", tile=5, ratio=0.6, shift_x=1.5), EmulatedLane()
    want, _ = apply(op, batch)
    got, rejects = apply(op, batch, lane=lane)
    assert not rejects
    assert lane.launched == [kernel]
    assert 0 < np.count_nonzero(want.data) < want.data.size
    np.testing.assert_array_equal(got.data, want.data)
    turned: Any = operator("grid_mask", tile=7, angle=0.3)
    np.testing.assert_array_equal(apply(turned, batch, lane=lane)[0].data, apply(turned, batch)[0].data)
