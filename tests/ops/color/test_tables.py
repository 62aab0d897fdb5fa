"""equalize and lookup_table: DALI's results (golden/make_tables.py: tables.npz), OpenCV's, and the CUDA kernels."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.color import tables  # noqa: F401  # declares the operators
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

from ...kit.dali_cases import apply, batch_of, cases, operator, ours, source
from ...kit.emulated_lane import EmulatedLane


@pytest.mark.parametrize("lane", [None, EmulatedLane()])
@pytest.mark.parametrize("name", ["equalize", "lookup_table"])
def test_results_of_dali(name: str, lane: Any) -> None:
    compared = 0
    for case, inputs, wanted in cases("tables"):
        if case["op"] == name:
            got, rejects = ours(case, inputs, lane)
            assert not rejects
            np.testing.assert_array_equal(got[0], wanted[0])
            assert got[0].dtype == wanted[0].dtype
            compared += 1
    assert compared > 15


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["equalize", "lookup_table"])
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    op = operator(name, **({"keys": [3, 9], "values": [1, 2]} if name == "lookup_table" else {}))
    images = batch_of([source(k, 0, 200, "uint8", [30 + k, 40, 3]) for k in range(5)], "HWC")
    want, _ = apply(op, images)
    with Lane() as lane:
        out, _ = apply(op, lane.to_device(images), lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lane", [None, EmulatedLane()])
def test_equalize_is_that_of_opencv_for_ragged_batches(lane: Any) -> None:
    images = [source(k, 20 * k, 60 + 40 * k, "uint8", [9 + 5 * k, 30 - 4 * k, 3]) for k in range(5)]
    out, _ = apply(operator("equalize"), batch_of([*images, images[0][:0]], "HWC"), lane=lane)
    for got, image in zip(out, images, strict=False):
        want = np.stack([cv2.equalizeHist(np.ascontiguousarray(image[..., c])) for c in range(3)], axis=2)
        np.testing.assert_array_equal(got, want)
    assert out.sample(5).shape == (0, 30, 3)


@pytest.mark.parametrize("lane", [None, EmulatedLane()])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_every_integer_looks_up_its_value(dtype: str, lane: Any) -> None:
    ends = np.iinfo(dtype)
    data = np.array([ends.min, 0, 1, 2, 3, 100, 127, ends.max], dtype)
    out, _ = apply(
        operator("lookup_table", keys=[2, 100], values=[5, 6], default_value=-1),
        batch_of([data, data[:3], np.tile(data, 600)]),  # a block makes 4,096 values
        lane=lane,
    )
    want = [-1, -1, -1, 5, -1, 6, -1, -1]
    np.testing.assert_array_equal(out.sample(0), want)
    np.testing.assert_array_equal(out.sample(1), want[:3])
    np.testing.assert_array_equal(out.sample(2), want * 600)


def test_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="integers"):
        operator("lookup_table").infer(Spec((4,), DALIDataType.FLOAT, ""))
    with pytest.raises(SpecError, match="go together"):
        operator("lookup_table", keys=[1, 2], values=[3])
    with pytest.raises(SpecError, match="uint8"):
        operator("equalize").infer(Spec((4, 4, 3), DALIDataType.INT16, "HWC"))
    with pytest.raises(SpecError, match="takes layouts"):
        operator("equalize").infer(Spec((4, 4, 3, 3), DALIDataType.UINT8, "DHWC"))


@pytest.mark.parametrize("lane", [None, EmulatedLane()])
@pytest.mark.parametrize(("dtype", "into"), [("uint8", "UINT8"), ("int8", "INT8"), ("uint8", "INT8")])
def test_bytes_for_bytes_from_any_place(dtype: str, into: str, lane: Any) -> None:
    """Keys beyond a type's values are no harm; negative values are no keys."""
    op = operator(
        "lookup_table", keys=[0, 5, 100, 128, 255, 60_000], values=[7, 8, 120, -3, 99, 1], default_value=50, dtype=into
    )
    wanted = {0: 7, 5: 8, 100: 120, 128: -3 if into == "INT8" else 0, 255: 99}
    for start, total in ((0, 5000), (3, 4097), (16, 33), (1, 1)):
        whole = np.random.default_rng(total).integers(0, 256, start + total, np.uint8).view(dtype)
        data = batch_of([whole[start:]]).replace(data=whole, offsets=np.array([start]))
        out, _ = apply(op, data, lane=lane)
        want = [wanted.get(int(v), 50) for v in whole[start:]]
        np.testing.assert_array_equal(out.sample(0), want)
