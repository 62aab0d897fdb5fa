"""Predict how long a job takes on many machines, and what it needs there, from one worker's measured rate and from what
`benchmarks/jobs/scale_model.py` measured of everything else.

Called by `dali-run plan --nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .job_output import parts_for

START_SECONDS = 5.0
"""Seconds until the workers of a job begin to process samples: processes start, import modules, open their data sets.
Listing files takes additional time."""
PART_SECONDS = 0.1
"""Seconds that each job part (a range of shards) takes in addition to its samples, for example for starting threads, a
lock, a journal, and making files durable."""
JOIN_SECONDS = 200e-6
"""Seconds that each shard takes when the parts of a job are joined into one output."""
MANIFEST_BYTES = 744
"""Bytes that each shard with one file and an index takes in the manifest; in the journal it takes 590 more."""
INDEX_BYTES = 20
"""Bytes of memory that each record takes in the index of a machine: offset, size and kind; 8 more if shuffled."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected time and needs of a job if a given number of ``workers`` runs it. Created by `forecast`."""

    workers: int
    parts: int
    seconds: float
    efficiency: float
    """Rate of the job divided by the rate of an ideal job with as many workers that lose no time."""
    read_per_second: float | None
    """Bytes that all workers together read per second; None if that was not measured."""
    written_per_second: float
    index_bytes: float
    """Bytes of memory on each machine for the index of all records."""
    manifest_bytes: float
    idle_workers: int
    """Number of workers that get no part of the job, because there are too few shards."""


def forecast(
    samples: int, rate: float, shard: int, workers: int, device: str, *, shuffled: bool = False,
    written_bytes: float = 0.0, read_bytes: float | None = None, listing: float = 0.0,
) -> Forecast:  # fmt: skip
    """Predict the time of a job of ``samples`` samples in shards of ``shard`` samples. Each of the ``workers``
    processes ``rate`` samples per second. ``written_bytes`` and ``read_bytes`` are per sample. ``listing``: seconds
    that a machine takes to open the data sets."""
    parts = parts_for(samples, shard, workers, device)
    busy = min(workers, parts)
    shards = -(-samples // shard)
    ideal = samples / (rate * workers)
    part = samples / parts / rate
    # workers end at different times; the last parts are small: about half of the mean part (see `job_output.tapered`)
    work = max(samples / (rate * busy) + part / 4 * (busy > 1), part)
    seconds = START_SECONDS + listing + work + PART_SECONDS * parts / busy + JOIN_SECONDS * shards
    return Forecast(
        workers, parts, seconds, min(1.0, ideal / seconds),
        None if read_bytes is None else samples * read_bytes / work, samples * written_bytes / work,
        samples * (INDEX_BYTES + 8 * shuffled), shards * MANIFEST_BYTES, workers - busy,
    )  # fmt: skip


def on_machines(measured: Mapping[str, Any], nodes: int, gpus: int, device: str) -> dict[str, Any] | None:
    """Predict the time of a job on ``nodes`` machines from ``measured``, a forecast for this machine by `job.forecast`.
    Assume one worker per GPU, or one per machine on all cores if ``gpus`` is 0, each as fast as this machine was.
    Return None if the number of samples is not known."""
    samples = measured["samples"]
    if not samples or not measured["samples_per_second"]:
        return None
    expected = forecast(
        samples,
        measured["samples_per_second"],
        -(-samples // (measured["shards"] or 1)),
        nodes * max(1, gpus),
        "gpu" if gpus else "cpu",
        written_bytes=measured["bytes_per_sample"],
        read_bytes=measured["read_bytes_per_sample"],
    )
    return {"nodes": nodes, "gpus": gpus, "measured_on": device, **asdict(expected)}
