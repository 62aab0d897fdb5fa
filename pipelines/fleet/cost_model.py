"""How long a job will take on many machines, and what it asks of them: from one worker's measured rate, and from what
`benchmarks/jobs/scale_model.py` measured of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .job_output import parts_for

START_SECONDS = 5.0
"""Until workers are at work: processes start, import, open their data sets. A listing comes on top."""
PART_SECONDS = 0.1
"""That a part costs beside its samples: threads, a lock, a journal, files that are made durable."""
JOIN_SECONDS = 200e-6
"""That a shard costs when the parts become one output."""
MANIFEST_BYTES = 744
"""Of a shard with one file and an index; 590 in the journal."""
INDEX_BYTES = 20
"""Of a record in a machine's memory: where it lies, its size, its kind; a shuffled order has 8 more."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected time of a job with so many workers."""

    workers: int
    parts: int
    seconds: float
    efficiency: float
    """Of so many workers that lose no time at all."""
    read_per_second: float | None
    """Bytes, by all workers together; None where that was not measured."""
    written_per_second: float
    index_bytes: float
    """In the memory of each machine."""
    manifest_bytes: float
    idle_workers: int
    """Workers for which there is no part: too few shards."""


def forecast(
    samples: int, rate: float, shard: int, workers: int, device: str, *, shuffled: bool = False,
    written_bytes: float = 0.0, read_bytes: float | None = None, listing: float = 0.0,
) -> Forecast:  # fmt: skip
    """``samples`` in shards of ``shard``, by ``workers`` that each do ``rate`` samples a second. ``*_bytes`` are those
    of a sample, ``listing`` the seconds in which a machine opens the data sets."""
    parts = parts_for(samples, shard, workers, device)
    busy = min(workers, parts)
    shards = -(-samples // shard)
    ideal = samples / (rate * workers)
    part = samples / parts / rate
    # workers end at different times; the last parts are small: about half of the mean part (see `whole.tapered`)
    work = max(samples / (rate * busy) + part / 4 * (busy > 1), part)
    seconds = START_SECONDS + listing + work + PART_SECONDS * parts / busy + JOIN_SECONDS * shards
    return Forecast(
        workers, parts, seconds, min(1.0, ideal / seconds),
        None if read_bytes is None else samples * read_bytes / work, samples * written_bytes / work,
        samples * (INDEX_BYTES + 8 * shuffled), shards * MANIFEST_BYTES, workers - busy,
    )  # fmt: skip


def on_machines(measured: Mapping[str, Any], nodes: int, gpus: int, device: str) -> dict[str, Any] | None:
    """The time of a `job.forecast`'s job on ``nodes`` machines, with a worker for each of ``gpus`` GPUs or, where
    that is 0, one on all cores, each as fast as this machine was when it was measured. None where the number of samples
    is not known."""
    samples = measured["samples"]
    if not samples or not measured["samples_per_second"]:
        return None
    found = forecast(
        samples,
        measured["samples_per_second"],
        -(-samples // (measured["shards"] or 1)),
        nodes * max(1, gpus),
        "gpu" if gpus else "cpu",
        written_bytes=measured["bytes_per_sample"],
        read_bytes=measured["read_bytes_per_sample"],
    )
    return {"nodes": nodes, "gpus": gpus, "measured_on": device, **asdict(found)}
