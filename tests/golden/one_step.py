"""Common code of scripts that take samples through one operator of NVIDIA DALI 2.4 (CPU) with several inputs or with
argument inputs: a case is a mapping, see `make`."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def


def source(seed, low, high, dtype, shape):
    """An input: numbers of [low, high), for floats in steps of 1/256."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return (random.integers(int(low * 256), int(high * 256), shape) / 256).astype(dtype)
    return random.integers(low, high, shape).astype(dtype)


def inputs_of(number, case):
    """The arrays that case ``number`` is about."""
    return [source(10 * number + j, i["low"], i["high"], i["dtype"], i["shape"]) for j, i in enumerate(case["inputs"])]


def run(number, case):
    """DALI's results for a case: the outputs of ``batch`` equal samples in ``iterations``, one after the other."""
    arrays, batch = inputs_of(number, case), case.get("batch", 1)
    typed = {
        k: getattr(types, v) if isinstance(v, str) and hasattr(types, v) else v for k, v in case["arguments"].items()
    }
    given = [(a, i.get("layout")) for a, i in zip(arrays, case["inputs"], strict=True)]
    named = {k: (np.array(v["values"], v["dtype"]), v.get("layout")) for k, v in case.get("per_sample", {}).items()}

    def node(array, layout):
        return fn.external_source(source=lambda: [array] * batch, layout=layout or None)

    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=1)
    def pipe():
        function = functools.reduce(getattr, case["op"].split("."), fn)
        return function(*[node(*g) for g in given], **{k: node(*g) for k, g in named.items()}, **typed)

    p = pipe()
    p.build()
    return [np.array(out.at(i)) for _ in range(case.get("iterations", 1)) for out in [p.run()[0]] for i in range(batch)]


def image(dtype="uint8", shape=(13, 17, 3), layout="HWC", low=None, high=None):
    """An input of ``make``'s cases, with values that suit its type."""
    ends = {"uint8": (0, 256), "float32": (0, 1), "int16": (-1000, 1000), "uint16": (0, 65536)}.get(dtype, (-999, 999))
    return {"layout": layout, "dtype": dtype, "shape": shape, "low": ends[0] if low is None else low,
            "high": ends[1] if high is None else high}  # fmt: skip


def make(path: Path, cases: Iterable[dict]) -> None:
    """Write ``path``: the ``cases`` as JSON, and what came out of them, an array for every type, in their order.

    A case has ``op``, ``arguments``, ``inputs`` (see `image`), and may have ``per_sample`` arguments (values, dtype,
    layout), a ``batch`` of equal samples and several ``iterations``.
    """
    found, described = {}, []
    for number, case in enumerate(cases):
        outs = run(number, case)
        for out in outs:
            found.setdefault(out.dtype.name, []).append(out.reshape(-1))
        described.append({**case, "outputs": [{"dtype": out.dtype.name, "shape": out.shape} for out in outs]})
    flat = {name: np.concatenate(parts) for name, parts in found.items()}
    np.savez_compressed(path, cases=json.dumps(described), **flat)
