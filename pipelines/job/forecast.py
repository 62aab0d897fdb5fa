"""Forecast: how many samples a job will read, and by a short measurement how long it will take and how much it will
write."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ops.errors import DaliRunError, DeviceError, SpecError, without_frames
from ...ops.sequences.split_samples import SplitSamples
from ..compile.place import Target, resolve_target
from ..compile.plan import Plan, compile_graph
from ..engine.inputs import EndlessFeed, JobFeed, Sources
from ..plugins import running_code
from ..spec.build import load_spec
from ..spec.model import Spec

PATIENCE = 5.0
"""Seconds in which a data set must have been listed: nobody wants to wait longer for a plan."""
_FEWEST_BATCHES = 2


def forecast(
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
    plugins: bool = False,
    measure: float = 0.0,
) -> dict[str, Any]:
    """A forecast of how much a job of the spec at ``path`` reads, takes and writes, as plain data; None is unknown.

    ``samples`` are counted from the readers' lists: no record is read. ``why`` says what prevented it. With ``measure``
    the graph runs for so many seconds, without writing: ``samples_per_second``, ``bytes_per_sample`` of what
    would be written, and for the whole job ``seconds`` and ``bytes``. ``shards`` follows from `shard.samples`, or
    from the bytes; with `shard.full` it is unknown.

    Raises SpecError; with ``measure`` also JobError and DeviceError.
    """
    with running_code(plugins):
        built = load_spec(path, overrides)
    spec = built.spec
    try:
        target = resolve_target(device or spec.pipeline.device)
    except DeviceError:
        if measure:
            raise
        target = Target("null")
    plan = compile_graph(built.graph, target, spec.pipeline.seed)
    found: dict[str, Any] = {
        "samples": None,
        "why": "",
        "measured_seconds": measure or None,
        "shards": None,
    } | dict.fromkeys(("samples_per_second", "bytes_per_sample", "read_bytes_per_sample", "seconds", "bytes"))
    if plan.readers:
        found["samples"], found["why"] = _within(PATIENCE if not measure else None, lambda: _count(plan, spec))
    else:
        found["why"] = "no reader: a job of such a spec needs --limit"
    if measure:
        found |= _measured(plan, spec, measure)
        if found["samples"] is not None:
            found["seconds"] = found["samples"] / found["samples_per_second"]
            found["bytes"] = round(found["samples"] * found["bytes_per_sample"])
    if spec.write is not None and found["samples"] is not None and not spec.write.shard_full:
        found["shards"] = _shards(found["samples"], found["bytes"], spec.write.shard_samples, spec.write.shard_bytes)
    return found


def _count(plan: Plan, spec: Spec) -> int:
    with Sources(plan, spec.pipeline.batch_size) as sources:
        return len(JobFeed(sources).positions)


def _shards(samples: int, nbytes: int | None, most_samples: int | None, most_bytes: int | None) -> int | None:
    """How many shards; None where that depends on sizes that are not known."""
    if most_bytes and nbytes is None:
        return None
    by_samples = -(-samples // most_samples) if most_samples else 1
    return max(by_samples, -(-(nbytes or 0) // most_bytes) if most_bytes else 1)


def _within(seconds: float | None, work: Callable[[], int]) -> tuple[int | None, str]:
    """The result of ``work``, or why there is none: it failed, or took longer (it is left alone then: a listing cannot
    be stopped)."""
    ended: list[int | BaseException] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as e:
            ended.append(without_frames(e))

    thread = threading.Thread(target=run, name="dali-run count", daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        return None, f"not counted in {PATIENCE:g} s"
    if isinstance(ended[0], int):
        return ended[0], ""
    if isinstance(ended[0], (DaliRunError, OSError)):
        return None, str(ended[0])
    raise ended[0]


def _measured(plan: Plan, spec: Spec, seconds: float) -> dict[str, float]:
    """Samples a second, and bytes of what would be written for each sample that is read."""
    from ..engine.engine import Engine, Request
    from .run import options_of

    if any(isinstance(n.op, SplitSamples) for n in plan.graph.nodes):
        raise SpecError(f"{spec.file}: a job that splits its samples cannot be measured; try `run --limit`")
    whole = spec.depends_on_batches
    options = replace(options_of(spec, plan.target), whole_batches=whole, merge_requests=not whole)
    size = spec.pipeline.batch_size
    requests = (Request(k * size, size) for k in itertools.count())
    with Sources(plan, size) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        next(engine)  # compiling, opening, filling queues
        read = nbytes = batches = 0
        began = time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds or batches < _FEWEST_BATCHES:
            batch = next(engine)
            read += batch.request.n
            nbytes += sum(b.nbytes for b in batch.outputs(plan).values())
            batches += 1
        readers = [r for n in plan.readers if (r := engine.stats.nodes.get(n.name)) is not None and r.samples]
        fetched = sum(r.bytes_out / r.samples for r in readers)
    return {"samples_per_second": read / taken, "bytes_per_sample": nbytes / read, "read_bytes_per_sample": fetched}
