"""transforms.* against DALI's results (tests/golden/make_geometry.py)."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SampleError, SpecError
from dali_run.ops.types import DALIDataType, from_numpy

from ...kit.golden import apply, batch_of, cases, operator


def test_equal_to_dali() -> None:
    count = 0
    for case in cases("transforms"):
        (layout, want), got = case.wanted[0], case.run()[0]
        assert (got.sample(0).shape, got.dtype) == (want.shape, want.dtype), str(case)
        assert got.layout[:1] == layout[:1].strip("*"), str(case)
        np.testing.assert_allclose(got.sample(0), want, rtol=2e-5, atol=2e-6 * np.abs(want).max(), err_msg=str(case))
        inputs = [Spec(tuple(b.shapes[0].tolist()), from_numpy(b.dtype), b.layout) for b in case.inputs]
        known = case.operator.infer(*inputs)
        if len(known.shape) == want.ndim:  # an argument per frame is not seen before it comes
            assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), (str(case), known)
        count += 1
    assert count > 90


def test_each_sample_has_its_map() -> None:
    angles = batch_of([np.float32(a) for a in (0, 90, np.nan)])
    out, rejects = apply(operator("transforms.rotation", ("angle",), center=[1, 0]), args={"angle": angles})
    np.testing.assert_allclose(out[0].sample(1), [[0, -1, 1], [1, 0, -1]], atol=1e-6)
    assert [(r.slot, r.code) for r in rejects] == [(2, "bad_argument")]
    boxes = batch_of([np.array(v, np.float32) for v in ([1, 2], [0, 2])])
    out, rejects = apply(operator("transforms.crop", ("from_end",)), args={"from_end": boxes})
    np.testing.assert_allclose(out[0].sample(0), [[1, 0, 0], [0, 0.5, 0]])
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]


def test_refused_before_anything_runs() -> None:
    plane, space = (Spec((d, d + 1), DALIDataType.FLOAT) for d in (2, 3))
    for match, name, arguments, specs in (
        ("does not go with", "translation", {"offset": [1, 2]}, [space]),
        ("does not go with", "rotation", {"angle": 1.0}, [space]),
        ("does not go with", "combine", {}, [plane, space]),
        ("d rows of d \\+ 1", "combine", {}, [plane, Spec((3, 3), DALIDataType.FLOAT)]),
        ("of FLOAT", "combine", {}, [plane, Spec((2, 3), DALIDataType.INT32)]),
        ("different numbers", "crop", {"from_start": [1, 2], "to_end": [1, 2, 3]}, []),
    ):
        with pytest.raises(SpecError, match=match):
            operator(f"transforms.{name}", **arguments).infer(*specs)
    for arguments in ({}, {"shear": [1, 2], "angles": [1, 2]}, {"shear": [1, 2, 3]}):
        with pytest.raises(SpecError):
            operator("transforms.shear", **arguments)
    with pytest.raises(SampleError, match="needs 3 values"):
        apply(operator("transforms.scale", scale=[1, 2], center=[1, 2, 3]))
