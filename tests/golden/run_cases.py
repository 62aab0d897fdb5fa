"""Runs cases that tests/parity_registry.py wrote through NVIDIA DALI 2.4 (CPU): run_cases.py CASES.npz FOLDER FIRST.

FOLDER/<case>.npz gets the outputs, FOLDER/<case>.txt the reason of a refusal. Without arguments: prints the arguments
of every operator as JSON. DALI may crash on a case: the caller then goes on with the next.
"""

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
from ragged_cases import run


def schemas() -> dict[str, list[str]]:
    """Arguments of every operator on the CPU."""
    found: dict[str, list[str]] = {}

    def walk(at, prefix):
        for name in dir(at):
            member = getattr(at, name)
            if name.startswith("_") or name == "hidden":
                continue
            if inspect.ismodule(member) and member.__name__.startswith("nvidia.dali.fn"):
                walk(member, f"{prefix}{name}.")
            elif callable(member):
                found[prefix + name] = list(inspect.signature(member).parameters)

    walk(fn, "")
    return found


def main(path: str, folder: str, first: str) -> None:
    stored = np.load(path)
    cases = json.loads(str(stored["cases"]))
    for case in cases[int(first) :]:
        n = case["number"]

        inputs = [[stored[key] for key in keys] for keys in case["inputs"]]
        per_sample = {name: [stored[key] for key in keys] for name, keys in case["per_sample"].items()}
        try:
            (outputs,) = run(case["op"], case["arguments"], inputs, per_sample, case["layouts"], 1, 7, case["batch"])
        except Exception as e:  # whatever DALI raises is a refusal
            text = str(e).strip().splitlines() or [type(e).__name__]
            (Path(folder) / f"{n}.txt").write_text(text[-1][:300])
        else:
            flat = {f"{k}/{i}": a for k, out in enumerate(outputs) for i, a in enumerate(out)}
            np.savez(Path(folder) / f"{n}.npz", **flat)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(json.dumps(schemas()))
    else:
        main(*sys.argv[1:])
