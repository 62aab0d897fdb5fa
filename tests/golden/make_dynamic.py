"""NVIDIA DALI 2.4's names in dynamic mode, and its results for tests/golden/dynamic_programs.py, as dynamic.json:

python tests/golden/make_dynamic.py     (with a Python that has DALI)
"""

from __future__ import annotations

import inspect
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import nvidia.dali.experimental.dynamic as ndd
from dynamic_programs import PROGRAMS, files, plain

warnings.filterwarnings("ignore")


def names(module: Any, prefix: str = "") -> dict[str, Any]:
    """Public names, with the members of classes and the parameters of functions."""
    found: dict[str, Any] = {}
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if inspect.ismodule(value):
            if value.__name__.startswith(f"{ndd.__name__}."):
                found |= names(value, f"{prefix}{name}.")
        elif inspect.isclass(value) and value.__module__.startswith("nvidia"):
            reader = "readers." in prefix
            given = inspect.signature(value).parameters if reader else {}
            members = sorted(m for m in dir(value) if not m.startswith("_"))
            found[prefix + name] = {"members": members, "parameters": [p for p in given if not p.startswith("_")]}
        elif inspect.isfunction(value) and value.__module__.startswith("nvidia"):
            found[prefix + name] = {"parameters": list(inspect.signature(value).parameters)}
        elif isinstance(value, ndd.DType):
            found[prefix + name] = {}
    return found


with tempfile.TemporaryDirectory() as folder:
    root = files(Path(folder))
    results = {name: plain(ndd, work(ndd, root)) for name, work in PROGRAMS.items()}
text = json.dumps({"names": names(ndd), "results": results}, separators=(",", ":"))
(Path(__file__).parent / "dynamic.json").write_text(text.replace('},"', '},\n"') + "\n")
