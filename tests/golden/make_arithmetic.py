"""Writes arithmetic.json: what NVIDIA DALI 2.4 (CPU) gives for expressions over small arrays of every type.

Run with a Python that has nvidia-dali: python make_arithmetic.py
"""

import itertools
import json
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.math as dmath
from nvidia.dali import pipeline_def

VALUES = {
    "bool": [True, False, True, False],
    "uint8": [200, 100, 3, 0],
    "int8": [-100, 100, -3, 2],
    "uint16": [60000, 7, 1, 300],
    "int16": [-30000, 30000, 5, -1],
    "uint32": [4000000000, 3, 1, 0],
    "int32": [-7, 2000000000, 1, 3],
    "uint64": [2**63 + 5, 2, 1, 9],
    "int64": [-(2**40), 5, -1, 7],
    "float32": [1.5, -2.5, 0.5, 300.25],
    "float64": [-1.25, 2.0, 1e10, 3.0],
}
BINARY = ["a + b", "a - b", "a * b", "a / b", "a & b", "a | b", "a ^ b", "a < b", "a <= b", "a == b", "a != b", "a > b",
          "a >= b", "min(a, b)", "max(a, b)", "atan2(a, b)"]  # fmt: skip
DIVIDED = ["a // (b | 1)", "a % (b | 1)"]  # without integers divided by zero, which end the process
UNARY = ["-a", "+a", "~a", "abs(a)", "fabs(a)", "sqrt(fabs(a))", "floor(a)", "ceil(a)", "cbrt(a)", "sin(a)", "atan(a)",
         "log(fabs(a) + 1.0)", "tanh(a)", "rsqrt(fabs(a) + 1.0)", "a * 2", "a + 2.5", "3 - a", "a / 4", "a // 3",
         "a % 7", "a ** 2", "a ** 2.0", "a ** -1", "2 ** (a % 5)", "fpow(a, 2)", "pow(a, 3)", "clamp(a, -5, 50)",
         "clamp(a, 0.5, 2.5)", "a << 1", "a >> 2", "a & 6", "a * True", "a < 1", "a >= 0.5", "(a > 1) & (a < 150)",
         "(a > 1) + (a < 150)", "(a > 1) * (a < 150)", "-(a > 1)", "a + a * 2 - 1"]  # fmt: skip


def run(text, inputs):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        nodes = {n: fn.external_source(source=itertools.repeat([v])) for n, v in inputs.items()}
        functions = {n: getattr(dmath, n) for n in dir(dmath) if not n.startswith("_")}
        return eval(text, {**functions, **nodes})

    p = pipeline()
    p.build()
    return np.array(p.run()[0].at(0))


def case(text, types):
    inputs = {n: np.array(VALUES[t], t) for n, t in zip("ab", types, strict=False)}
    record = {"expr": text, "inputs": dict(zip("ab", types, strict=False))}
    try:
        result = run(text, inputs)
    except Exception:
        return {**record, "refused": True}
    return {**record, "dtype": result.dtype.name, "values": result.tolist()}


def main():
    cases = []
    for types in itertools.combinations(VALUES, 2):
        cases += [case(text, types) for text in BINARY]
    for types in itertools.combinations([t for t in VALUES if t[0] != "f" and t != "bool"], 2):
        cases += [case(text, types) for text in DIVIDED]
    for t in VALUES:
        cases += [case(text, (t,)) for text in UNARY]
        cases += [case(text, (t, t)) for text in BINARY[:5]]
    lines = ",\n".join(json.dumps(c) for c in cases)
    Path(__file__).with_suffix("").with_name("arithmetic.json").write_text(
        json.dumps({"values": VALUES})[:-1] + ', "cases": [\n' + lines + "\n]}\n"
    )


if __name__ == "__main__":
    main()
