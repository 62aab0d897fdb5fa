"""Combine the reports of many workers into one: sums over all parts, and the performance of every worker and machine,
with its bottleneck.

Used by `fleet.run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..job.report import SCHEMA_VERSION

_SUMS = (
    "calls", "samples", "bytes_in", "bytes_out", "cpu_seconds", "gpu_seconds", "waiting_for_input_seconds",
    "blocked_on_output_seconds", "busy_seconds", "batches", "full_seconds", "empty_seconds", "waited_seconds",
    "worker_seconds", "processor_seconds", "core_wait_seconds",
)  # fmt: skip
_COUNTS = ("rejected", "left_out", "decoders", "fallbacks", "uploads")


@dataclass
class WorkerReport:
    """Work of one worker in this run. Created by `Driver`."""

    name: str
    node: str
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    """The reports of the job parts that the worker has finished."""
    since: float = 0.0
    """Time of the worker's first message, on the driver's clock, in seconds."""
    idle: float = 0.0
    """Seconds for which the worker had no job part."""
    ended: str = ""
    """Reason why the worker ended; empty if the worker still runs."""


def merged(
    name: str, workers: Sequence[WorkerReport], seconds: float, counts: Mapping[str, int], command: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the report of a whole job that took ``seconds``, merged from the reports of its workers. ``counts``:
    numbers of samples read, written and rejected in this run."""
    reports = [r for w in workers for r in w.reports]
    first = reports[0] if reports else {}
    busy = sum(float(r["seconds"]) for r in reports)
    nodes = sorted({w.node for w in workers})
    bottleneck = _bottleneck(reports)
    return {
        "name": name,
        "schema_version": SCHEMA_VERSION,
        "device": first.get("device", "cpu"),
        "threads": first.get("threads", 0),
        "seconds": round(seconds, 6),
        "processor_seconds": round(sum(float(r.get("processor_seconds", 0)) for r in reports), 6),
        "samples": dict(counts),
        "samples_per_second": round(counts["read"] / seconds, 1) if seconds else None,
        "operators": [_operator(rows) for rows in _by(reports, "operators", "name")],
        "stages": [_summed(rows) for rows in _by(reports, "stages", "id")],
        "queues": [_queue(rows) for rows in _by(reports, "queues", "name")],
        **{key: _counted(r.get(key, {}) for r in reports) for key in _COUNTS},
        "decoder_times": _times([r.get("decoder_times", {}) for r in reports]),
        "fused": list(first.get("fused", [])),
        "loads": _loads(reports),
        "bottleneck": bottleneck,
        **({"schema": first["schema"]} if "schema" in first else {}),
        **_mixtures(reports),
        "memory": _peaks([r.get("memory", {}) for r in reports]),
        "command": dict(command),
        "compiling_seconds": round(max((float(r.get("compiling_seconds", 0)) for r in reports), default=0.0), 6),
        **_kernels([r["cuda_kernels"] for r in reports if "cuda_kernels" in r]),
        "warm_up_seconds": round(sum(float(r.get("warm_up_seconds", 0)) for r in reports), 6),
        "workers": [_worker(w) for w in workers],
        "nodes": [_node(node, [w for w in workers if w.node == node], seconds) for node in nodes],
        "work_seconds": round(busy, 6),
    }


def _mixtures(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of samples from each data set of a mixture, by reader, added over all job parts."""
    total: dict[str, Counter[str]] = {}
    for report in reports:
        for reader, counts in report.get("mixtures", {}).items():
            total.setdefault(reader, Counter()).update(counts)
    return {"mixtures": {reader: dict(counts) for reader, counts in total.items()}} if total else {}


def _kernels(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the facts about CUDA kernels from all workers: counts of compiled images, and seconds of waiting for the
    compiler NVRTC. Seconds for which several workers waited at once count once."""
    waited: dict[str, float] = {}
    for name, seconds in (pair for one in tables for pair in one["nvrtc"].items()):
        waited[name] = max(seconds, waited.get(name, 0.0))
    return {"cuda_kernels": {"images": sum(one["images"] for one in tables), "nvrtc": waited}} if tables else {}


def _by(reports: Iterable[Mapping[str, Any]], table: str, key: str) -> list[list[Mapping[str, Any]]]:
    """Group the rows of ``table`` in all reports by their value of ``key``."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for report in reports:
        for row in report.get(table, []):
            groups.setdefault(row[key], []).append(row)
    return list(groups.values())


def _summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = {k: sum(r.get(k, 0) for r in rows) for k in _SUMS if any(k in r for r in rows)}
    return {**rows[0], **{k: round(v, 6) if isinstance(v, float) else v for k, v in sums.items()}}


def _operator(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row = _summed(rows)
    calls = max(row["calls"], 1)
    busy = row["gpu_seconds"] or row["cpu_seconds"]
    for key in ("p50_ms", "p95_ms"):  # percentiles of all calls are not known: the mean over parts, weighted by calls
        row[key] = round(sum(r[key] * r["calls"] for r in rows) / calls, 4)
    row["samples_per_second"] = round(row["samples"] / busy, 1) if busy else None
    return row


def _queue(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row = _summed(rows)
    row["mean_fill"] = round(sum(r["mean_fill"] * r["batches"] for r in rows) / max(row["batches"], 1), 3)
    return row


def _counted(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _times(tables: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    names = sorted({n for t in tables for n in t})
    keys = ("busy_seconds", "waited_seconds")
    return {n: {k: round(sum(t[n][k] for t in tables if n in t), 6) for k in keys} for n in names}


def _peaks(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the maximum of each value over the workers. Only values that are waiting times are added up."""
    peaks: dict[str, float] = {}
    for table in tables:
        for key, value in table.items():
            peaks[key] = peaks.get(key, 0) + value if key in _SUMS else max(peaks.get(key, 0), value)
    return peaks


def _loads(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the load of each resource (share of the working time for which it was busy), averaged over all job parts,
    weighted by duration."""
    seconds = sum(float(r["seconds"]) for r in reports) or 1.0
    names = {n: None for r in reports for n in r.get("loads", {})}
    return {n: round(sum(r["loads"].get(n, 0) * r["seconds"] for r in reports) / seconds, 4) for n in names}


def _bottleneck(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bottleneck that limited the job parts for the longest time in total."""
    weights: Counter[str] = Counter()
    for r in reports:
        weights[r["bottleneck"]["what"]] += r["seconds"]
    if not weights:
        sentence = "Nothing was left to do."
        return {"what": "nothing", "share": 0.0, "sentence": sentence, "advice": ""}
    what = weights.most_common(1)[0][0]
    longest = max((r for r in reports if r["bottleneck"]["what"] == what), key=lambda r: float(r["seconds"]))
    return dict(longest["bottleneck"])


def _worker(w: WorkerReport) -> dict[str, Any]:
    read = sum(int(r["samples"]["read"]) for r in w.reports)
    busy = sum(float(r["seconds"]) for r in w.reports)
    return {
        "name": w.name,
        "node": w.node,
        "parts": len(w.reports),
        "samples": read,
        "busy_seconds": round(busy, 6),
        "idle_seconds": round(w.idle, 6),
        "samples_per_second": round(read / busy, 1) if busy else None,
        "bottleneck": _bottleneck(w.reports)["sentence"],
        "stages": {rows[0]["id"]: _shares(rows, w.reports, busy) for rows in _by(w.reports, "stages", "id")},
        **({"ended": w.ended} if w.ended else {}),
    }


def _shares(
    rows: Sequence[Mapping[str, Any]], reports: Sequence[Mapping[str, Any]], seconds: float
) -> dict[str, float]:
    """Return three shares of a worker's ``seconds``, in which one of its stages was busy, waited for input, and was
    blocked by a full queue."""
    row = _summed(rows)
    if row["kind"] == "chunk":  # the work is in the worker threads, not in the stage's own thread
        operators = [o for r in reports for o in r["operators"] if o["name"] in row["operators"]]
        busy = sum(o["gpu_seconds"] or o["cpu_seconds"] for o in operators)
        row["busy_seconds"] = busy / max(1, max(int(r.get("threads", 1)) for r in reports))
    keys = ("busy_seconds", "waiting_for_input_seconds", "blocked_on_output_seconds")
    return {k.removesuffix("_seconds"): round(row[k] / seconds, 4) if seconds else 0.0 for k in keys}


def _node(name: str, workers: Sequence[WorkerReport], seconds: float) -> dict[str, Any]:
    reports = [r for w in workers for r in w.reports]
    read = sum(int(r["samples"]["read"]) for r in reports)
    return {
        "name": name,
        "workers": len({w.name for w in workers}),
        "samples": read,
        "samples_per_second": round(read / seconds, 1) if seconds else None,
        "loads": _loads(reports),
        "bottleneck": _bottleneck(reports),
    }
