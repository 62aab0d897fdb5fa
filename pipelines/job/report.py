"""Build the report of a run: what every operator, stage and queue did, and what limited the speed. The schema is
versioned.

Called by jobs and benchmarks.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from ...ops.gpu.device_memory import Owner, pool_of
from ...ops.gpu.lane import Lane
from ..cores import usable_cores
from ..engine.engine import Engine
from ..engine.stats import NodeStats, Stats, Work
from ..engine.threads.channel import Channel
from ..graph.conditionals import Merge, Split

SCHEMA_VERSION = 1
_BUSY = 0.5
"""Minimum share of the time for which a resource must be busy to be called the bottleneck."""
_MIN_BATCHES = 8
"""Minimum number of batches for the report to assume that stages of the run overlapped for most of the time."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy one resource (readers, workers, a GPU, the sink) was, with a sentence and advice for the user. Created
    by `loads_of`."""

    name: str
    share: float
    """Share of the run's time for which the resource was busy, 0 to 1 (above 1 if work overlaps)."""
    sentence: str
    advice: str


def build_report(
    engine: Engine, seconds: float, samples: Mapping[str, int], *, sink_seconds: float = 0.0, sink: str = "write"
) -> dict[str, Any]:
    """Return the report of a finished (or stopped) run as plain data. ``seconds``: elapsed time of the run. ``sink``:
    name of the consumer of batches, such as a writer."""
    stats, plan = engine.stats, engine.plan
    stage_of = {n.name: i for i, s in enumerate(plan.steps) for n in s.nodes}
    operators = [
        _operator(engine, stats.nodes[node.name], stage_of[node.name])
        for node in plan.graph.nodes
        if node.name in stats.nodes and not isinstance(node.op, (Split, Merge))
    ]
    loads = loads_of(engine, operators, seconds, sink_seconds, sink, step_seconds(engine))
    waited = engine.budgets["host"].waited / max(seconds, 1e-9)
    slowest = bottleneck(loads, _channels(engine, 0)[1].passed, waited)
    return {
        "schema_version": SCHEMA_VERSION,
        "device": plan.target.device,
        "threads": engine.options.num_threads,
        "seconds": round(seconds, 6),
        "processor_seconds": round(stats.processor_seconds, 6),
        "samples": dict(samples),
        "samples_per_second": round(samples.get("read", 0) / seconds, 1) if seconds else None,
        "operators": operators,
        "stages": [
            *_stages(engine),
            {
                "id": sink,
                "kind": "sink",
                "operators": [],
                "busy_seconds": round(sink_seconds, 6),
                "waiting_for_input_seconds": round(engine.delivery.waited_empty, 6),
                "blocked_on_output_seconds": 0.0,
            },
        ],
        "queues": [_queue(c) for c in engine.channels],
        "rejected": dict(sorted(stats.rejected.items())),
        "left_out": dict(sorted(stats.left_out.items())),
        "decoders": dict(sorted(stats.decoders.items())),
        "decoder_times": {
            name: {
                "busy_seconds": round(stats.decoder_busy.get(name, 0.0), 6),
                "waited_seconds": round(stats.decoder_waits.get(name, 0.0), 6),
            }
            for name in sorted(stats.decoders)
        },
        "fallbacks": dict(sorted(stats.fallbacks.items())),
        "uploads": dict(sorted(stats.uploads.items())),
        "fused": list(plan.fused),
        "loads": {x.name: round(x.share, 4) for x in loads},
        "bottleneck": {
            "what": slowest.name,
            "share": round(slowest.share, 4),
            "sentence": slowest.sentence,
            "advice": slowest.advice,
        },
        "memory": _memory(engine),
    }


def _operator(engine: Engine, r: NodeStats, stage: int) -> dict[str, Any]:
    """Return the report of one operator, which runs in the plan's step ``stage``."""
    busy = r.gpu_seconds or r.cpu_seconds
    p50, p95 = np.percentile(r.durations, (50, 95)).tolist() if r.durations else (0.0, 0.0)
    return {
        "name": r.name,
        "op": r.op,
        "runs_on": r.runs_on,
        "stage": _stage_id(engine, stage),
        "calls": r.calls,
        "samples": r.samples,
        "bytes_in": r.bytes_in,
        "bytes_out": r.bytes_out,
        "cpu_seconds": round(r.cpu_seconds, 6),
        "gpu_seconds": round(r.gpu_seconds, 6),
        "p50_ms": round(p50 * 1e3, 4),
        "p95_ms": round(p95 * 1e3, 4),
        "samples_per_second": round(r.samples / busy, 1) if busy else None,
        **_waits(engine, stage),
    }


def _stages(engine: Engine) -> list[dict[str, Any]]:
    """Return the reports of the plan's steps."""
    return [
        {
            "id": _stage_id(engine, i),
            "kind": s.kind,
            "operators": [n.name for n in s.nodes if not isinstance(n.op, (Split, Merge))],
            "busy_seconds": round(_busy(engine, i), 6),
            **_waits(engine, i),
            **_worked(engine, i),
        }
        for i, s in enumerate(engine.plan.steps)
    ]


def _queue(channel: Channel[Any]) -> dict[str, Any]:
    """Return the report of a queue between two threads."""
    return {
        "name": channel.name,
        "depth": channel.depth,
        "batches": channel.passed,
        "mean_fill": round(channel.occupancy / channel.passed, 3) if channel.passed else 0.0,
        "full_seconds": round(channel.waited_full, 6),
        "empty_seconds": round(channel.waited_empty, 6),
    }


def bottleneck(loads: Sequence[Load], batches: int, memory: float = 0.0) -> Load:
    """Return the bottleneck of the run: the busiest resource, unless nothing was busy for half of the time. ``memory``:
    share of the time for which batches waited for room in the host's memory budget."""
    slowest = max(loads, key=lambda x: x.share)
    if slowest.share >= _BUSY and (batches >= _MIN_BATCHES or slowest.advice is not _LOCK_ADVICE):
        return slowest
    idle = f"No stage was busy more than half the time; the busiest was {slowest.name} ({_percent(slowest.share)})"
    if slowest.share >= _BUSY:
        idle = f"The busiest stage was {slowest.name} ({_percent(slowest.share)})"
    if batches < _MIN_BATCHES:
        count = "1 batch is" if batches == 1 else f"{batches} batches are"
        return Load(slowest.name, slowest.share, f"{idle}. {count} too few for the stages to work at the same time.",
                    "Too short to tell: run more samples or lower batch_size.")  # fmt: skip
    if memory >= _BUSY:
        return Load("memory", memory, f"Bottleneck: host memory; batches waited for it {_percent(memory)} of the time.",
                    "A larger pipeline.memory.host, or a smaller batch_size.")  # fmt: skip
    sentence = f"{idle}: the stages wait for each other, or for other programs on this machine."
    return Load(slowest.name, slowest.share, sentence, "A larger prefetch_queue_depth.")


def _stage_id(engine: Engine, i: int) -> str:
    return engine.name_of(engine.plan.steps[i])


def _busy(engine: Engine, i: int) -> float:
    """Return the seconds for which step ``i`` was busy, divided by the number of batches that the step reads at
    once."""
    busy = engine.stats.stages.get(_stage_id(engine, i), 0.0)
    return busy / engine.host_executor.concurrent_reads if i == 0 and engine.plan.steps[i].kind == "whole" else busy


def _channels(engine: Engine, i: int) -> tuple[Channel[Any] | None, Channel[Any]]:
    """Return the queues before and after step ``i`` of the engine; unused ones if the engine could not start."""
    return engine.boxes.get(_stage_id(engine, i), (None, engine.delivery))


def _waits(engine: Engine, i: int) -> dict[str, float]:
    """Return the seconds for which step ``i`` of the engine waited for batches, and for free capacity in the next
    queue."""
    name = _stage_id(engine, i)
    before, after = _channels(engine, i)
    waited, blocked = before.waited_empty if before is not None else 0.0, after.waited_full
    if engine.plan.steps[i].kind == "chunk":
        # A batch is in the queue before the workers have finished it. While they work, a full queue delays only the
        # reading thread; while they have no work, they wait for room in the queue, or else for batches.
        idle = engine.stats.idled.get(name, 0.0)
        blocked = min(blocked, idle)
        waited = idle - blocked
    return {"waiting_for_input_seconds": round(waited, 6), "blocked_on_output_seconds": round(blocked, 6)}


def _worked(engine: Engine, i: int) -> dict[str, float]:
    """Return the times that worker threads spent in step ``i``; empty if no worker thread computes the step."""
    work = engine.stats.worked.get(_stage_id(engine, i))
    if work is None:
        return {}
    return {
        "worker_seconds": round(work.passed, 6),
        "processor_seconds": round(work.processor, 6),
        "core_wait_seconds": round(work.no_core, 6),
    }


def step_seconds(engine: Engine) -> list[float]:
    """Return, for every step (nodes that run together), the seconds for which the thread of the step was busy."""
    return [_busy(engine, i) for i in range(len(engine.plan.steps))]


def operator_seconds(engine: Engine) -> list[dict[str, Any]]:
    """Return the seconds that every operator has taken so far, as rows for `loads_of`. This is cheap, and may be called
    while the engine's threads run."""
    rows = []
    for i, step in enumerate(engine.plan.steps):
        for node in step.nodes:
            if not isinstance(node.op, (Split, Merge)):
                r = engine.stats.nodes.get(node.name)
                rows.append({"name": node.name, "runs_on": node.stage, "stage": _stage_id(engine, i),
                             "cpu_seconds": r.cpu_seconds if r else 0.0,
                             "gpu_seconds": r.gpu_seconds if r else 0.0})  # fmt: skip
    return rows


def overlap(engine: Engine) -> int:
    """Return the number of lanes (CUDA streams) that compute at the same time, on all GPUs. The sum of their times
    exceeds the elapsed time by up to this factor."""
    return max(1, engine.options.lanes - 1) * len(engine.plan.target.indices)


def _device_loads(
    engine: Engine, operators: Sequence[Mapping[str, Any]], launching: float, seconds: float
) -> Iterator[Load]:
    """Yield two loads: how busy the GPU was with the ``operators`` of a step, and how busy the threads were that launch
    them, for ``launching`` seconds."""
    yield Load(
        "gpu",
        sum(o["gpu_seconds"] for o in operators) / seconds / overlap(engine),
        f"Bottleneck: the GPU, mostly {_worst(operators, 'gpu_seconds')}.",
        "More batches in flight (prefetch_queue_depth.gpu_size), a larger batch_size, or more GPUs (device: gpu:all).",
    )
    share = launching / seconds / len(engine.plan.target.indices)
    yield Load(
        "launching",
        share,
        f"Bottleneck: launching GPU work (its threads were {_percent(share)} busy).",
        "A larger batch_size.",
    )


def loads_of(
    engine: Engine, operators: Sequence[Mapping[str, Any]], seconds: float, sink_seconds: float, sink: str,
    steps: Sequence[float],
) -> list[Load]:  # fmt: skip
    """Return how busy the readers, workers, devices and the sink (the writer) were, from the seconds of ``operators``
    and of the threads of ``steps``."""
    seconds = max(seconds, 1e-9)
    threads = engine.options.num_threads
    loads: list[Load] = []
    for i, step in enumerate(engine.plan.steps):
        if step.kind == "whole":
            loads.append(
                Load(
                    "reading",
                    steps[i] / seconds,
                    f"Bottleneck: reading ({_percent(steps[i] / seconds)} busy).",
                    "Faster storage, a container (TFRecord, LMDB) instead of single files, or more shards.",
                )
            )
        elif step.kind == "device":
            its = [o for o in operators if o["stage"] == _stage_id(engine, i)]
            loads += _device_loads(engine, its, steps[i], seconds)
    chunk = [o for o in operators if engine.plan.steps[int(str(o["stage"])[:2])].kind == "chunk"]
    if chunk:
        loads.append(_workers(engine.stats, chunk, threads, usable_cores(), seconds))
    loads.append(
        Load(
            sink,
            sink_seconds / seconds,
            f"Bottleneck: writing ({_percent(sink_seconds / seconds)} busy).",
            "Faster storage, a cheaper field encoding, or several processes (--num-shards, --shard-id).",
        )
    )
    if compiling := engine.stats.compiling / seconds:
        loads.append(
            Load(
                "compiling",
                compiling,
                f"Bottleneck: compiling CPU kernels ({_percent(compiling)} of the time); later runs reuse them.",
                "Run it again to see its speed; `dali-run warm` compiles ahead.",
            )
        )
    return loads


_LOCK_ADVICE = "Fewer threads, several processes (--on processes:N), or a larger batch_size."
"""Advice if threads wait for the interpreter's lock; a job of few batches says too little for it."""
_CPU_BOUND = 0.7
"""Share of the worker threads' time on processors above which the report advises to use more cores."""


def _workers(stats: Stats, operators: Sequence[Mapping[str, Any]], threads: int, cores: int, seconds: float) -> Load:
    """Return how busy the worker threads were, and what kept them from computing: missing cores or Python's lock."""
    share = sum(o["cpu_seconds"] for o in operators) / (threads * seconds)
    work = _total(stats)
    computing, no_core = work.processor / work.passed, work.no_core / work.passed
    used = f"{share * threads * min(computing, 1):.1f} of {cores} core{'s' * (cores > 1)} used"
    busy = f"{threads} thread{'s' * (threads > 1)}, {_percent(share)} busy, {used}"
    if computing >= _CPU_BOUND:
        more = f"More threads (--set pipeline.num_threads={cores})" if threads < cores else "A machine with more cores"
        sentence = f"Bottleneck: CPU workers ({busy}, mostly in {_worst(operators, 'cpu_seconds')})."
        return Load("cpu", share, sentence, f"{more}, or a GPU (device: gpu).")
    if no_core >= 1 - computing - no_core:
        advice = "End other programs on this machine, or use one with more cores."
        if threads > cores:
            advice = f"As many threads as cores (--set pipeline.num_threads={cores})."
        return Load("cpu", share, f"Bottleneck: CPU workers wait for cores that run other threads ({busy}).", advice)
    return Load("cpu", share, f"Bottleneck: CPU workers wait for Python's lock, one thread at a time ({busy}).",
                _LOCK_ADVICE)  # fmt: skip


def _total(stats: Stats) -> Work:
    """Return the times of all worker threads, added up. In a run without chunks, all time counts as computing."""
    works = list(stats.worked.values()) or [Work(1.0, 1.0)]
    return Work(max(1e-9, sum(w.passed for w in works)), sum(w.processor for w in works), sum(w.no_core for w in works))


def _worst(operators: Sequence[Mapping[str, Any]], key: str) -> str:
    total = sum(o[key] for o in operators) or 1.0
    worst = max(operators, key=lambda o: o[key], default=None)
    return f"{worst['name']} ({_percent(worst[key] / total)})" if worst else "no operator"


def _percent(share: float) -> str:
    return f"{min(share, 1):.0%}"  # work before the clock started also counts


def _memory(engine: Engine) -> dict[str, float]:
    """Return the values in the memory section of the report, by key.

    ``*_peak_bytes``: maximum that batches and tasks reserved, per budget. ``peak_host_bytes``: maximum of the process.
    ``gpu_pool_bytes``: maximum of the built-in pool of GPU memory. ``gpu_*_bytes``: use of this pool when it was
    fullest: outputs and intermediate results (``gpu_arrays_bytes``), workspaces of kernels, files. ``remembered_*``:
    facts that are kept about the records of a data set that is read repeatedly."""
    memory: dict[str, float] = {"peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    for name, budget in engine.budgets.items():
        memory[f"{name}_budget_bytes"] = budget.limit
        memory[f"{name}_peak_bytes"] = budget.peak
        memory[f"{name}_waited_seconds"] = round(budget.waited, 6)
    if (remembered := engine.services.remembered) is not None:
        memory |= {"remembered_bytes": remembered.nbytes(), "remembered_records": remembered.records()}
    if any(isinstance(lane, Lane) for lane in engine.lanes.all):
        import cupy

        pools = [pool_of(index) for index in engine.plan.target.indices]
        memory["gpu_pool_bytes"] = sum(pool.peak_held for pool in pools)
        for kind in get_args(Owner):
            memory[f"gpu_{kind}_bytes"] = sum(pool.peaks[kind] for pool in pools)
        memory["pinned_pool_blocks_free"] = int(cupy.get_default_pinned_memory_pool().n_free_blocks())
    return memory
