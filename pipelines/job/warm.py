"""Compile in advance what jobs need, for container images and read-only home folders. Called by `dali-run warm`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...ops.compiled import binaries, store
from ...ops.compiled.ahead import Answer, compile_all, missing
from ...ops.compiled.listed import loops, needed_by
from ...ops.compiled.signatures import Loop
from ..cores import usable_cores
from ..engine.compile_ahead import clients_of
from ..engine.inputs import JobFeed, Sources
from ..engine.warm_up import rehearse, warm_up
from .run import prepare, write_config


def warm(
    spec: Path | None = None, overrides: Mapping[str, Any] | None = None, *, device: str | None = None,
    processes: int | None = None, progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Compile the native loops and CUDA kernels that ``spec`` needs, or all that the package lists, unless they are
    cached. Return a summary as plain data. If the data of the spec exist, also run the job on two samples without
    writing, which compiles code that is not in the list. Raises SpecError for a wrong spec."""
    began = time.perf_counter()
    prepared = prepare(spec, overrides, device=device) if spec is not None else None
    if prepared is None:
        needed = sorted(loops(), key=lambda loop: -loop.seconds)
    else:
        config = write_config(prepared) if prepared.spec.write is not None else None
        needed = needed_by(clients_of(prepared.plan, config.writer if config else None))
    not_cached = missing(needed)
    failed: list[str] = []
    compiled = 0

    def done(loop: Loop, answer: Answer) -> None:
        nonlocal compiled
        compiled += 1
        if not answer.get("kept"):
            failed.append(f"{loop.module}.{loop.function}: {answer.get('error', 'cannot be kept')}")
        progress(
            f"compiled {compiled} of {len(not_cached)} CPU kernels: {loop.function}, {answer.get('seconds', 0.0):.1f} s"
        )

    if not_cached:
        compile_all(not_cached, processes or usable_cores(), done)
    result: dict[str, Any] = {
        "loops": {"needed": len(needed), "ready": len(needed) - len(not_cached), "compiled": compiled - len(failed),
                  "failed": failed},
        "folder": str(store.writable_folder() or ""),
        "packs": [pack.path.name for pack in store.packs()],
        "kernels": _kernels(progress),
    }  # fmt: skip
    if prepared is not None:
        result["rehearsed"] = _rehearsed(prepared, config)
    result["seconds"] = round(time.perf_counter() - began, 3)
    return result


def _rehearsed(prepared: Any, config: Any) -> str:
    """Start the job on two samples to compile its code. Return a remark for the user about success or failure."""
    try:
        with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
            feed = JobFeed(sources, None)
            remaining = len(feed.positions)
            sink = (lambda outputs: rehearse(config, outputs)) if config else (lambda _: None)
            warm_up(prepared.plan, feed, feed.positions.start, remaining, sink=sink)
    except Exception as e:  # usually the data do not exist yet, in a container image
        return f"not begun: {e}"
    return "begun on two samples"


def _kernels(progress: Callable[[str], None]) -> dict[str, Any]:
    """Load every listed CUDA kernel if there is a GPU. CuPy then compiles and caches the kernels that were not part of
    the wheel."""
    from ...ops.gpu.lane import gpu_count, load

    if not gpu_count():
        return {"listed": len(binaries.listed()), "loaded": 0, "why": "no GPU"}
    loaded, failed = 0, []
    for source, kernel in binaries.listed():
        progress(f"CUDA kernels of {source} {kernel}".rstrip())
        try:
            for name in [kernel] if kernel else binaries.kernels_of(source):
                load(source, name)
                loaded += 1
        except Exception as e:  # CuPy raises many kinds of errors
            failed.append(f"{source} {kernel}: {e}")
    return {"listed": len(binaries.listed()), "loaded": loaded, "failed": failed}
