"""Forecast how many samples a job will read and, by a short measurement, how long it will take and how much it will
write. Called by `dali-run plan`."""

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

MAX_LISTING_SECONDS = 5.0
"""Maximum seconds that a forecast waits for the listing of a data set."""
_MIN_BATCHES = 2
"""Minimum number of batches that are run to measure the speed."""


def forecast(
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
    plugins: bool = False,
    measure: float = 0.0,
) -> dict[str, Any]:
    """Return a forecast of how much a job of the spec at ``path`` reads, takes and writes, as plain data; values that
    are not known are None.

    ``samples`` are counted from the readers' lists, without reading records; if that is impossible, ``why`` is the
    reason. With ``measure`` the graph runs for this many seconds, without writing. The result then has
    ``samples_per_second``, the written ``bytes_per_sample``, and the ``seconds`` and ``bytes`` of the whole job.
    ``shards`` follows from `shard.samples`, or from the bytes; with `shard.full` it is unknown. Raises SpecError; with
    ``measure`` also JobError and DeviceError."""
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
    result: dict[str, Any] = {
        "samples": None,
        "why": "",
        "measured_seconds": measure or None,
        "shards": None,
    } | dict.fromkeys(("samples_per_second", "bytes_per_sample", "read_bytes_per_sample", "seconds", "bytes"))
    if plan.readers:
        result["samples"], result["why"] = _within(
            MAX_LISTING_SECONDS if not measure else None, lambda: _count(plan, spec)
        )
    else:
        result["why"] = "no reader: a job of such a spec needs --limit"
    if measure:
        result |= _measured(plan, spec, measure)
        if result["samples"] is not None:
            result["seconds"] = result["samples"] / result["samples_per_second"]
            result["bytes"] = round(result["samples"] * result["bytes_per_sample"])
    if spec.write is not None and result["samples"] is not None and not spec.write.shard_full:
        result["shards"] = _shards(result["samples"], result["bytes"], spec.write.shard_samples, spec.write.shard_bytes)
    return result


def _count(plan: Plan, spec: Spec) -> int:
    with Sources(plan, spec.pipeline.batch_size) as sources:
        return len(JobFeed(sources).positions)


def _shards(samples: int, nbytes: int | None, max_samples: int | None, max_bytes: int | None) -> int | None:
    """Return the number of shards of the output; None if the number depends on sizes that are not known."""
    if max_bytes and nbytes is None:
        return None
    by_samples = -(-samples // max_samples) if max_samples else 1
    return max(by_samples, -(-(nbytes or 0) // max_bytes) if max_bytes else 1)


def _within(seconds: float | None, work: Callable[[], int]) -> tuple[int | None, str]:
    """Call ``work`` in a thread and return its result, or None and the reason if it failed or took longer than
    ``seconds``. It then continues in its thread, because a listing cannot be stopped."""
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
        return None, f"not counted in {MAX_LISTING_SECONDS:g} s"
    if isinstance(ended[0], int):
        return ended[0], ""
    if isinstance(ended[0], (DaliRunError, OSError)):
        return None, str(ended[0])
    raise ended[0]


def _measured(plan: Plan, spec: Spec, seconds: float) -> dict[str, float]:
    """Run the plan for some ``seconds``; return the samples per second, and the bytes per sample that are read and that
    would be written."""
    from ..engine.engine import Engine, Request
    from .run import options_of

    if any(isinstance(n.op, SplitSamples) for n in plan.graph.nodes):
        raise SpecError(f"{spec.file}: a job that splits its samples cannot be measured; try `run --limit`")
    by_batches = spec.depends_on_batches
    options = replace(options_of(spec, plan.target), whole_batches=by_batches, merge_requests=not by_batches)
    size = spec.pipeline.batch_size
    requests = (Request(k * size, size) for k in itertools.count())
    with Sources(plan, size) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        next(engine)  # compiling, opening, filling queues
        read = nbytes = batches = 0
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds or batches < _MIN_BATCHES:
            batch = next(engine)
            read += batch.request.n
            nbytes += sum(b.nbytes for b in batch.outputs(plan).values())
            batches += 1
        readers = [r for n in plan.readers if (r := engine.stats.nodes.get(n.name)) is not None and r.samples]
        fetched = sum(r.bytes_out / r.samples for r in readers)
    return {"samples_per_second": read / elapsed, "bytes_per_sample": nbytes / read, "read_bytes_per_sample": fetched}
