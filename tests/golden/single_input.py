"""Common code of scripts that take one sample at a time through one operator of NVIDIA DALI 2.4 (CPU)."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def


def source(seed, low, high, dtype, shape):
    """The input of case ``seed``: integers in [low, high)."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def run(op, arguments, layout, data):
    """The operator's result for ``data``; enumerators are given by their names."""
    typed = {k: getattr(types, v) if isinstance(v, str) and v.isupper() else v for k, v in arguments.items()}

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, seed=1)
    def pipe():
        return getattr(fn, op)(fn.external_source(source=lambda: [data], layout=layout or None), **typed)

    p = pipe()
    p.build()
    return np.array(p.run()[0].at(0))


def make(path: Path, cases: Iterable[tuple], ranges: Mapping[str, tuple[int, int]]) -> None:
    """Write ``path``: the ``cases`` (operator, arguments, layout, type and shape of its input) as JSON, and what came
    out of them: an array for every type, with its cases in order. ``ranges``: of the inputs' values, by type."""
    found, described = {}, []
    for number, (op, arguments, layout, dtype, shape) in enumerate(cases):
        out = run(op, arguments, layout, source(number, *ranges[dtype], dtype, shape))
        found.setdefault(out.dtype.name, []).append(out.reshape(-1))
        described.append({"op": op, "arguments": arguments, "layout": layout, "dtype": dtype, "shape": shape})
        described[-1] |= {"out_dtype": out.dtype.name, "out_shape": out.shape}
    flat = {name: np.concatenate(parts) for name, parts in found.items()}
    np.savez_compressed(path, cases=json.dumps(described), **flat)
