"""Every operator through a file of DALI's: `python -m tests.parity_serialized --python PYTHON`, one that has DALI 2.4.

The calls are those of tests/parity_registry.py, with the examples of readers and the like. DALI serializes a pipeline
of each; what is read from the file must be the operator that the call makes here, or be refused as the call is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dali_run.ops.base import Operator, coerce, operators, parameter, parameters
from dali_run.ops.errors import SpecError
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.spec.serialized.definition import parse
from dali_run.pipelines.spec.serialized.graph import convert
from tests import parity_registry

SERIALIZE = Path(__file__).parent / "golden" / "serialize_cases.py"


def cases(python: Path) -> Iterator[dict[str, Any]]:
    """Calls of all operators that DALI has."""
    known = parity_registry.arguments_of_dali(python)
    tried = parity_registry.wanted()
    for name, op in tried.items():
        for case in parity_registry.cases_of(op, known.get(name, [])):
            yield {
                "op": name,
                "arguments": case.arguments,
                "inputs": len(case.inputs),
                "per_sample": list(case.per_sample),
            }
    for name, op in operators().items():
        if name in tried or name not in known or not op.example:
            continue
        step = yaml.safe_load(op.example)
        named = step.get("in", [])
        given = {k: v for k, v in step.items() if k in known[name] and k in parameters(op)}
        linked = [k for k, v in given.items() if isinstance(v, str) and v.startswith("$")]
        yield {"op": name, "arguments": {k: v for k, v in given.items() if k not in linked},
               "inputs": 1 if isinstance(named, str) else len(named), "per_sample": linked}  # fmt: skip


def called(case: dict[str, Any]) -> Operator | str:
    """The operator that the call makes here, or why it is refused."""
    cls, builder = operators()[case["op"]], GraphBuilder()
    given = [builder.add("external_source")[0] for _ in range(case["inputs"])]
    tensors = {k: builder.add("external_source")[0] for k in case["per_sample"]}
    try:
        edges = builder.add(cls, given, {**case["arguments"], **tensors})
    except SpecError as e:
        return str(e)
    return builder.nodes[edges[0].node].op


def read(data: bytes, name: str) -> Operator | str:
    """The operator ``name`` in a file, or why it is refused."""
    try:
        builder, _ = convert(parse(data))
    except SpecError as e:
        return str(e)
    return next(n.op for n in reversed(builder.nodes) if n.op.name == name)


def difference(case: dict[str, Any], wanted: Operator | str, got: Operator | str) -> str:
    """The differences; an empty text where all is equal. Floats are float32 in the file."""
    if isinstance(wanted, str) or isinstance(got, str):
        return "" if isinstance(wanted, str) and isinstance(got, str) else f"{wanted} / {got}"
    if wanted.per_sample != got.per_sample:
        return f"inputs for {sorted(wanted.per_sample)} / {sorted(got.per_sample)}"
    for name in case["arguments"]:
        a, b = getattr(wanted, name), getattr(got, name)
        floats = isinstance(a, float) or (isinstance(a, tuple) and any(isinstance(v, float) for v in a))
        if not (np.array_equal(np.float32(a), np.float32(b)) if floats and b is not None else a == b):
            p = parameter(type(wanted), name)
            if not p.arg.deprecated and coerce(p, a) != coerce(p, b):
                return f"{name}: {a!r} / {b!r}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.environ.get("DALI_PYTHON"), help="a Python with DALI 2.4")
    asked = parser.parse_args()
    if not asked.python:
        parser.error("which Python has DALI? --python PATH")
    load_operators()
    python = Path(asked.python).absolute()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # some operators write files
        told = list(cases(python))
        (Path(folder) / "cases.json").write_text(json.dumps(told))
        subprocess.run([python, SERIALIZE, Path(folder) / "cases.json", Path(folder) / "files.npz"], check=True)
        files = np.load(Path(folder) / "files.npz")
        wrong, refused = 0, 0
        for k, case in enumerate(told):
            if str(k) not in files.files:
                continue
            wanted = called(case)
            found = difference(case, wanted, read(files[str(k)].tobytes(), case["op"]))
            refused += isinstance(wanted, str) and not found
            if found:
                wrong += 1
                print(f"{case['op']} {case['arguments']}: {found}")
        names = {c["op"] for c in told}
        print(f"{len(files.files)} calls of {len(names)} operators serialized by DALI: {wrong} differ, {refused} are "
              "refused as the call is")  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
