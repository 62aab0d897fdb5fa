"""Operators that copy by strides, with additional dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_run.ops.base import Spec, coerce, find, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.types import from_numpy


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
    """Return the spec of a batch: everything that can be known before the batch exists."""
    shape = tuple(int(c[0]) if (c == c[0]).all() else None for c in batch.shapes.T)
    return Spec(shape, from_numpy(batch.dtype), batch.layout)


def wider(case: dict[str, Any]) -> bool:
    """Return whether DALI's CPU backend rejects a case that this project accepts: 5-D crops, unsupported dtypes."""
    return (
        (case["op"] == "crop" and len(case["layout"]) == 5)
        or (case["op"] in ("flip", "pad") and case["dtype"] in ("float16", "float64"))
        or (case["op"], case["layout"], tuple(case["arguments"].get("src_dims", ()))) in RESHAPED
        or (case["op"] == "one_hot" and case["layout"] == "")
        # DALI accepts as many fill_values as the input has channels only if mean has as many; this project always does
        or (case["op"] == "crop_mirror_normalize" and case["arguments"].get("pad_output", False)
            and len(case["arguments"].get("fill_values", [])) == 3)
    )  # fmt: skip


RESHAPED = {(op, "HWC", dims) for op in ("reshape", "reinterpret") for dims in ((-1, 1, 0, 2), (0, 1))}
