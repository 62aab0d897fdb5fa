"""Makes random.npz with NVIDIA DALI 2.4 (CPU): what its generators give, two iterations of three samples each."""

import json
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

SEED, BATCH, ITERATIONS = 1234, 3, 2
NUMBERS = ["UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT", "FLOAT64"]


def cases():
    for p in (0.4, 1.0, 0.001):
        yield "coin_flip", {"probability": p, "shape": [20]}
    for dtype in ("BOOL", "UINT8", "INT32"):
        yield "coin_flip", {"dtype": dtype, "shape": [2, 3]}
    yield "coin_flip", {}
    yield "uniform", {}
    yield "normal", {}
    for dtype in NUMBERS:
        yield "uniform", {"dtype": dtype, "range": [1.0, 9.5], "shape": [12]}
        yield "uniform", {"dtype": dtype, "values": [1.4, 2.5, -1.0], "shape": [12]}
        yield "normal", {"dtype": dtype, "mean": 10.0, "stddev": 4.0, "shape": [3, 4]}
    yield "uniform", {"range": [-10.0, 10.0], "shape": [300]}
    yield "uniform", {"range": [0.0, 1e-3], "shape": [5]}
    yield "normal", {"shape": [300]}


def run(op, arguments):
    typed = {k: types.DALIDataType.__members__[v] if k == "dtype" else v for k, v in arguments.items()}

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1)
    def pipe():
        return getattr(fn.random, op)(seed=SEED, **typed)

    return collect(pipe())


def choose(candidates, arguments):
    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1)
    def pipe():
        return fn.random.choice(np.array(candidates, np.int16), seed=SEED, shape=[9], **arguments)

    return collect(pipe())


def collect(p):
    p.build()
    outputs = [p.run()[0] for _ in range(ITERATIONS)]
    return np.stack([np.array(out[i]) for out in outputs for i in range(BATCH)])


if __name__ == "__main__":
    described, found = [], {}
    for number, (op, arguments) in enumerate(cases()):
        described.append({"op": op, "arguments": arguments})
        found[f"out_{number}"] = run(op, arguments)
    for name, candidates in (("list", [10, 20, 30]), ("rows", [[10, 11], [20, 21], [30, 31]])):
        found[f"choice_{name}"] = choose(candidates, {})
        found[f"choice_{name}_p"] = choose(candidates, {"p": [0.1, 0.2, 0.7]})
    np.savez_compressed(
        Path(__file__).with_name("random.npz"), seed=SEED, batch=BATCH, cases=json.dumps(described), **found
    )
