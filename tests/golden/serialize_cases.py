"""Serializes pipelines of one operator each with NVIDIA DALI 2.4, for tests/parity_serialized.py:
serialize_cases.py CASES.json OUT.npz. Calls that DALI refuses at once are left out."""

import json
import sys
import warnings

import numpy as np
from nvidia.dali import Pipeline, fn, types
from ragged_cases import _MEMBERS, find


def serialized(case: dict) -> bytes:
    pipe = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with pipe:
        given = {
            k: getattr(types, v) if isinstance(v, str) and v in _MEMBERS else v for k, v in case["arguments"].items()
        }
        inputs = [fn.external_source(name=f"in{k}") for k in range(case["inputs"])]
        tensors = {k: fn.external_source(name=f"arg_{k}") for k in case["per_sample"]}
        outputs = find(case["op"])(*inputs, **given, **tensors)
        outputs = list(outputs.values()) if isinstance(outputs, dict) else outputs
        pipe.set_outputs(*(outputs if isinstance(outputs, (list, tuple)) else [outputs]))
    return pipe.serialize()


def main(path: str, out: str) -> None:
    warnings.simplefilter("ignore")
    files = {}
    with open(path) as file:
        cases = json.load(file)
    for k, case in enumerate(cases):
        try:
            files[str(k)] = np.frombuffer(serialized(case), np.uint8)
        except Exception:  # whatever DALI raises is a refusal
            continue
    np.savez_compressed(out, **files)


if __name__ == "__main__":
    main(*sys.argv[1:])
