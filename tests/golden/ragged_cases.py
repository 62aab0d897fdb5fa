"""Common code of scripts that take ragged batches, several inputs and iterations through NVIDIA DALI 2.4 (CPU)."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def


def find(name: str) -> Any:
    """The function ``fn.<name>``."""
    at = fn
    for part in name.split("."):
        at = getattr(at, part)
    return at


_MEMBERS = {n for of in (types.DALIDataType, types.DALIImageType, types.DALIInterpType) for n in of.__members__}


def _given(arrays, layout=None):
    return fn.external_source(source=lambda: arrays, layout=layout or None, batch=True)


def run(op, arguments, inputs, per_sample=None, layouts=(), iterations=1, seed=7, batch=None):
    """Outputs [iteration][output][sample] of ``op`` on ``inputs`` (lists of arrays); ``per_sample``: lists of arrays by
    argument. Enumerators are given by their names."""
    typed = {k: getattr(types, v) if isinstance(v, str) and v in _MEMBERS else v for k, v in arguments.items()}
    batch = batch or len(next(iter([*inputs, *(per_sample or {}).values()])))

    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=seed)
    def pipe():
        layout = [*layouts, *[""] * len(inputs)]
        nodes = [_given(x, lay) for x, lay in zip(inputs, layout, strict=False)]
        given = {k: _given(x) for k, x in (per_sample or {}).items()}
        function = find(op)
        own = {"seed": seed} if "seed" in inspect.signature(function).parameters else {}
        out = function(*nodes, **typed, **given, **own)
        return tuple(out) if isinstance(out, (list, tuple)) else out

    p = pipe()
    p.build()
    found = []
    for _ in range(iterations):
        found.append([[np.array(out.at(i)) for i in range(len(out))] for out in p.run()])
    return found


class Recorder:
    """Cases as JSON, and their arrays, one after the other by type."""

    def __init__(self) -> None:
        self.cases: list[dict[str, Any]] = []
        self._parts: dict[str, list[np.ndarray]] = {}

    def put(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        """Store a batch; what to keep in the case, from which `ragged.Arrays` finds it."""
        dtype = arrays[0].dtype.name
        assert all(a.dtype.name == dtype for a in arrays)
        self._parts.setdefault(dtype, []).extend(np.asarray(a).reshape(-1) for a in arrays)
        return {"dtype": dtype, "shapes": [list(a.shape) for a in arrays]}

    def add(self, op, arguments, inputs, per_sample=None, layouts=(), iterations=1, seed=7, batch=None) -> None:
        """Run one case, and keep it: inputs, arguments, and what came out; or that it was refused."""
        case = {"op": op, "arguments": arguments, "layouts": list(layouts), "iterations": iterations, "seed": seed,
                "inputs": [self.put(x) for x in inputs],
                "per_sample": {k: self.put(x) for k, x in (per_sample or {}).items()}}  # fmt: skip
        if batch:
            case["batch"] = batch
        try:
            outputs = run(op, arguments, inputs, per_sample, layouts, iterations, seed, batch)
        except RuntimeError as e:
            case["refused"] = str(e).strip().splitlines()[-1][:200]
        else:
            case["outputs"] = [[self.put(out) for out in step] for step in outputs]
        self.cases.append(case)

    def save(self, path: Path) -> None:
        flat = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        np.savez_compressed(path, cases=json.dumps(self.cases), **flat)
        for case in self.cases:
            if "refused" in case:
                print(f"DALI refuses {case['op']} {case['arguments']}: {case['refused']}")
