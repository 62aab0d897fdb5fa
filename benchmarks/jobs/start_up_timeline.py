"""Break down the time of a start: run ``dali-run`` with these arguments and record when its parts began and ended.

    python benchmarks/jobs/start_up_timeline.py FILE run SPEC --device gpu ...

FILE gets a JSON list of [seconds since the process began, seconds that it took, thread, what]. Parts nest: the seconds
of a part that another part calls count in both. Recording takes microseconds. START_UP_WITHOUT=MODULE:FUNCTION replaces
one of the parts by nothing, to measure its benefit (dali_run.ops.gpu.early_init:_start).
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PARTS = {
    "dali_run.ops.gpu.early_init": ["_start"],
    "dali_run.ops.gpu.lane": [
        "gpu_count", "Lane.__init__", "Lane.functions", "load", "_image", "_module", "_text_module",
        "_load_text", "limit_pool", "free_memory", "Lane.synchronize",
    ],
    "dali_run.pipelines.job.run": ["prepare", "compile_ahead", "run_job", "JobRun.__init__", "JobRun._write"],
    "dali_run.pipelines.spec.build": ["load_spec"],
    "dali_run.pipelines.compile.plan": ["compile_job"],
    "dali_run.pipelines.job.batches": ["Batches.warm_up"],
    "dali_run.pipelines.engine.engine": ["Engine.__init__", "Engine.start", "Engine.__next__", "Engine.stop"],
    "dali_run.pipelines.engine.device.open_lanes": ["OpenLanes.open"],
    "dali_run.pipelines.engine.device.executor": [
        "DeviceExecutor._launch_whole", "DeviceExecutor._completed", "DeviceExecutor._make_room",
    ],
    "dali_run.pipelines.engine.host_executor": ["HostExecutor.run_whole", "HostExecutor.compute"],
    "dali_run.pipelines.engine.inputs": ["Sources.__init__"],
    "dali_run.ops.codecs.jpeg.cuda": ["LaneRuntime.__init__"],
    "dali_run.writers.shards.output": ["Output.open", "Output.finish"],
    "cupy.cuda.compiler": ["_compile_using_nvrtc_no_warning", "_compile_with_cache_cuda"],
}  # fmt: skip
"""Functions and methods that are recorded, if they exist."""
IMPORTS = {"numpy", "cupy", "numba", "numba.core.registry", "yaml", "typer", "rich", "PIL", "simplejpeg", *PARTS}
MOST = 40
"""Number of calls that are recorded per function."""

began = float(os.environ.get("START_UP_BEGAN", time.time()))
notes: list[tuple[float, float, str, str]] = []


def note(what: str, start: float) -> None:
    """Record that the call ``what``, which began at ``start``, has ended."""
    notes.append((start - began, time.time() - start, threading.current_thread().name, what))


def noted(call: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wrap a function so that its first calls are recorded."""
    left = [MOST]

    @functools.wraps(call)
    def wrapper(*args: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return call(*args, **named)
        start = time.time()
        try:
            return call(*args, **named)
        finally:
            short = "".join(f" {a}" for a in args if isinstance(a, str) and len(a) < 60)
            note(what + short, start)

    return wrapper


def wrap(module: ModuleType) -> None:
    """Wrap the recorded functions of a module."""
    for path in PARTS.get(module.__name__, ()):
        owner: Any = module
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        found = vars(owner).get(name) if owner is not None else None
        if isinstance(found, (classmethod, staticmethod)):
            setattr(owner, name, type(found)(noted(found.__func__, path)))
        elif found is not None and os.environ.get("START_UP_WITHOUT") == f"{module.__name__}:{path}":
            setattr(owner, name, lambda *_, **__: None)
        elif found is not None:
            setattr(owner, name, noted(found, path))


class Notes(importlib.abc.Loader):
    """Executes a module as its own loader does, and records the time."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        start = time.time()
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        note(f"import {module.__name__}", start)
        wrap(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the recorded modules as the other finders would."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in IMPORTS:
            return None
        for other in sys.meta_path:
            if other is not self and (spec := other.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = Notes(spec.loader)
                return spec
        return None


def main() -> int:
    file, *arguments = sys.argv[1:]
    sys.path[0] = os.environ.get("START_UP_PATH", str(Path(__file__).parents[2]))
    sys.meta_path.insert(0, Finder())
    sys.argv = ["dali-run", *arguments]
    note("the interpreter", began)
    start = time.time()
    code: Any = 0
    try:
        importlib.import_module("dali_run.cli.main").main()
    except SystemExit as e:
        code = e.code
    note("dali-run", start)
    Path(file).write_text(json.dumps(sorted(notes), indent=0))
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
