"""Common code of scripts that take one sample at a time through an operator of NVIDIA DALI 2.4 (CPU) with any number of
inputs, outputs and arguments that are tensors."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

RANGES = {"uint8": (0, 256), "bool": (0, 2), "int8": (-128, 128), "float32": (-1000, 1000)}
"""Of the inputs' values, by type; others are taken from -1000 to 1000, unsigned ones from 0."""


def source(seed, k, dtype, shape):
    """Input ``k`` of case ``seed``; floats are multiples of 1/8."""
    low, high = RANGES.get(dtype, (0 if dtype.startswith("u") else -1000, 1000))
    values = np.random.default_rng([seed, k]).integers(low, high, shape)
    return (values / 8).astype(dtype) if dtype.startswith("float") else values.astype(dtype)


def fed(array, layout):
    """A batch of one ``array``, again and again."""
    return fn.external_source(source=lambda: [array], layout=layout or None)


def run(case, inputs):
    """The operator's results for ``inputs``, a list of arrays; enumerators are given by their names."""
    constants = {
        k: getattr(types, v) if isinstance(v, str) and v.isupper() and hasattr(types, v) else v
        for k, v in case["arguments"].items()
    }
    call = fn
    for part in case["op"].split("."):
        call = getattr(call, part)

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, seed=1)
    def pipe():
        data = [fed(a, layout) for a, (layout, _, _) in zip(inputs, case["inputs"], strict=True)]
        tensors = {k: fed(np.array(v["values"], v["dtype"]), v.get("layout")) for k, v in case["tensors"].items()}
        out = call(*data, **constants, **tensors)
        return tuple(out) if isinstance(out, (list, tuple)) else out

    p = pipe()
    p.build()
    return [(np.array(t.at(0)), t.layout() or "") for t in p.run()]


def make(path: Path, cases: Iterable[dict]) -> None:
    """Write ``path``: the ``cases`` (op, inputs as [layout, type, shape], arguments, tensors as {name:
    {dtype, values}}) as JSON, and what came out of them: an array for every type, with its results in order."""
    found, described = {}, []
    for number, given in enumerate(cases):
        case = {"arguments": {}, "inputs": [], "tensors": {}} | given
        inputs = [source(number, k, dtype, shape) for k, (_, dtype, shape) in enumerate(case["inputs"])]
        try:
            outs = run(case, inputs)
        except RuntimeError as problem:
            raise RuntimeError(f"case {case}") from problem
        for out, _ in outs:
            found.setdefault(out.dtype.name, []).append(out.reshape(-1))
        case["outputs"] = [[layout, out.dtype.name, list(out.shape)] for out, layout in outs]
        described.append(case)
    flat = {name: np.concatenate(parts) for name, parts in found.items()}
    np.savez_compressed(path, cases=json.dumps(described), **flat)
    print(path.name, len(described), "cases", path.stat().st_size, "bytes")
