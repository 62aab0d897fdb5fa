"""Crop, slice, flip, normalise, pad, join and reshape against results of DALI 2.4 (tests/golden/make_strided.py)."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec, coerce, find, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.types import from_numpy
from dali_run.pipelines.plugins import load_operators

load_operators()
GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "strided.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
OPERATORS = sorted({c["op"] for c in CASES})


def source(seed: int, dtype: str, shape: list[int]) -> np.ndarray:
    limits = {"int8": (-128, 128), "uint8": (0, 256), "float16": (-500, 500), "uint32": (0, 70000),
              "uint64": (0, 70000), "uint16": (0, 65536)}  # fmt: skip
    return np.random.default_rng(seed).integers(*limits.get(dtype, (-30000, 30000)), shape).astype(dtype)


def inputs_of(number: int, case: dict[str, Any]) -> list[Batch]:
    batches = []
    for j in range(case["inputs"]):
        samples = [source(1000 * number + 10 * i + j, case["dtype"], s) for i, s in enumerate(case["shapes"])]
        if case["op"] == "one_hot":
            samples = [s % 6 for s in samples]
        batches.append(
            Batch.from_list([np.asarray(s) for s in samples], case["layout"], Samples.numbered(len(samples)))
        )
    for rows in case["positional"]:
        values = [np.array(v, np.int32 if case["whole"] else np.float32) for v in rows]
        batches.append(Batch.from_list(values, "", Samples.numbered(len(values))))
    return batches


def run(number: int, case: dict[str, Any]) -> tuple[Batch, Spec, list[Any]]:
    cls = find(case["op"])
    arguments = {k: coerce(parameter(cls, k), v) for k, v in case["arguments"].items()}
    op = cls(**arguments, per_sample=frozenset(case["per_sample"]))
    op.check()
    inputs = inputs_of(number, case)
    n = len(inputs[0])
    args = {
        k: Batch.from_list([np.array(v, np.float32) for v in rows], "", Samples.numbered(n))
        for k, rows in case["per_sample"].items()
    }
    spec = op.infer(*(known(b) for b in inputs))
    assert isinstance(spec, Spec)
    ctx = Context(op, "cpu", inputs[0].samples, args)
    (out,) = outputs_of(op.kernel("cpu")(ctx, *inputs))
    return out, spec, ctx.rejects


def known(batch: Batch) -> Spec:
    """All that can be known of a batch before it exists."""
    shape = tuple(int(c[0]) if (c == c[0]).all() else None for c in batch.shapes.T)
    return Spec(shape, from_numpy(batch.dtype), batch.layout)


def wider(case: dict[str, Any]) -> bool:
    """Cases that DALI's CPU backend refuses and we take: five-dimensional crops, types that it was not compiled for."""
    return (
        (case["op"] == "crop" and len(case["layout"]) == 5)
        or (case["op"] in ("flip", "pad") and case["dtype"] in ("float16", "float64"))
        or (case["op"], case["layout"], tuple(case["arguments"].get("src_dims", ()))) in RESHAPED
        or (case["op"] == "one_hot" and case["layout"] == "")
        # DALI takes as many fill_values as the input has channels where mean has as many, too; here always
        or (case["op"] == "crop_mirror_normalize" and case["arguments"].get("pad_output", False)
            and len(case["arguments"].get("fill_values", [])) == 3)
    )  # fmt: skip


RESHAPED = {(op, "HWC", dims) for op in ("reshape", "reinterpret") for dims in ((-1, 1, 0, 2), (0, 1))}


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
        except (SpecError, ValueError):
            rejects = ["refused before anything ran"]
        assert rejects, case
