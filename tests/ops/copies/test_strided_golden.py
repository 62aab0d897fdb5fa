"""Crop, slice, flip, normalise, pad, join and reshape against results of DALI 2.4 (tests/golden/make_strided.py)."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import from_numpy
from dali_run.pipelines.plugins import load_operators
from tests.kit.ops.strided import run, wider

load_operators()
GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "strided.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
OPERATORS = sorted({c["op"] for c in CASES})


@pytest.mark.parametrize("name", OPERATORS)
def test_results_of_dali(name: str) -> None:
    at = dict.fromkeys(GOLDEN.files, 0)
    compared = 0
    for number, case in enumerate(CASES):
        if "refused" in case:
            continue
        stored: list[np.ndarray] = []
        if "crc" not in case:
            for shape in case["out_shapes"]:
                size = int(np.prod(shape))
                start = at[case["out_dtype"]]
                stored.append(GOLDEN[case["out_dtype"]][start : start + size].reshape(shape))
                at[case["out_dtype"]] += size
        if case["op"] != name:
            continue
        out, spec, rejects = run(number, case)
        assert not rejects, (case, rejects)
        assert [list(s) for s in out.shapes.tolist()] == case["out_shapes"], case
        assert out.dtype.name == case["out_dtype"], case
        assert out.layout == case["out_layout"], case
        assert_agrees(spec, out, case)
        for i, got in enumerate(out):
            if stored:
                assert_close(got, stored[i], case)
            else:
                assert zlib.crc32(np.ascontiguousarray(got).tobytes()) == case["crc"][i], (case, i)
        compared += 1
    assert compared > 0


def assert_agrees(spec: Spec, out: Batch, case: dict[str, Any]) -> None:
    """Shapes, types and layouts are those that infer promised."""
    assert spec.dtype is None or spec.dtype == from_numpy(out.dtype), case
    assert spec.layout == out.layout, (spec, case)
    if spec.shape is None:
        return
    assert len(spec.shape) == out.ndim, (spec, case)
    for extent, column in zip(spec.shape, out.shapes.T, strict=True):
        assert extent is None or (column == extent).all(), (spec, case)


def assert_close(got: np.ndarray, want: np.ndarray, case: dict[str, Any]) -> None:
    if want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5, err_msg=str(case))
    elif want.dtype == np.float16:
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2**-10, atol=1e-5, err_msg=str(case))
    else:
        assert np.abs(got.astype(int) - want.astype(int)).max() == 0, case


@pytest.mark.parametrize("name", sorted({c["op"] for c in CASES if "refused" in c}))
def test_what_dali_refuses_is_refused_or_rejected(name: str) -> None:
    for number, case in enumerate(CASES):
        if case["op"] != name or "refused" not in case or wider(case):
            continue
        try:
            _, _, rejects = run(number, case)
        except (DaliRunError, ValueError):
            rejects = ["refused before anything ran"]
        assert rejects, case
