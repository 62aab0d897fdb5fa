"""Warm: compile ahead what jobs need, for container images and read-only homes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...ops.compiled import binaries, store
from ...ops.compiled.ahead import Answer, compile_all, missing
from ...ops.compiled.listed import Loop, loops, needed_by
from ..cores import usable_cores
from ..engine.compile_ahead import clients_of
from ..engine.inputs import JobFeed, Sources
from ..engine.warm_up import rehearse, warm_up
from .run import prepare, write_config


def warm(
    spec: Path | None = None, overrides: Mapping[str, Any] | None = None, *, device: str | None = None,
    processes: int | None = None, progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Compile what ``spec`` needs, or all that is listed, unless it is kept already; what was done as plain data.

    A spec's job is also begun on two of its samples where its data is there, so that what is on no list is compiled
    too; nothing is written. Raises SpecError for a wrong spec.
    """
    began = time.perf_counter()
    prepared = prepare(spec, overrides, device=device) if spec is not None else None
    if prepared is None:
        wanted = sorted(loops(), key=lambda loop: -loop.seconds)
    else:
        config = write_config(prepared) if prepared.spec.write is not None else None
        wanted = needed_by(clients_of(prepared.plan, config.writer if config else None))
    todo = missing(wanted)
    failed: list[str] = []
    compiled = 0

    def done(loop: Loop, answer: Answer) -> None:
        nonlocal compiled
        compiled += 1
        if not answer.get("kept"):
            failed.append(f"{loop.module}.{loop.function}: {answer.get('error', 'cannot be kept')}")
        progress(f"compiled {compiled} of {len(todo)} loops: {loop.function}, {answer.get('seconds', 0.0):.1f} s")

    if todo:
        compile_all(todo, processes or usable_cores(), done)
    result: dict[str, Any] = {
        "loops": {"needed": len(wanted), "ready": len(wanted) - len(todo), "compiled": compiled - len(failed),
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
    """Begin the job on two samples; a remark where that was not possible."""
    try:
        with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
            feed = JobFeed(sources, None)
            left = len(feed.positions)
            sink = (lambda given: rehearse(config, given)) if config else (lambda _: None)
            warm_up(prepared.plan, feed, feed.positions.start, left, sink=sink)
    except Exception as e:  # data that is not there yet, in an image most often
        return f"not begun: {e}"
    return "begun on two samples"


def _kernels(progress: Callable[[str], None]) -> dict[str, Any]:
    """Load every listed CUDA kernel where there is a GPU, so that CuPy keeps what the wheel did not bring."""
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
        except Exception as e:  # CuPy raises many kinds
            failed.append(f"{source} {kernel}: {e}")
    return {"listed": len(binaries.listed()), "loaded": loaded, "failed": failed}
