"""Run jobs that stop early, and retries of an output's rejects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dali_run.writers.shards.output import Output
from dali_run.writers.shards.retries import next_retry
from tests.kit.writers import Job, bytes_batch, label_batch, samples_of, tensor_batch


def retry(job: Job, path: Path, still_bad: set[int], stop: int | None = None, batch: int = 2) -> None:
    """Retry a job's rejected samples; ``still_bad`` fail again. ``stop``: leave after this many samples."""
    pending = next_retry(path)
    positions = pending.retry.positions
    make = {"image": bytes_batch, "label": label_batch, "tensor": tensor_batch}
    with Output.open(job.config(path), {"seed": 1}, total=len(positions), addition=pending.retry) as out:
        at = out.resume_from
        while at < (len(positions) if stop is None else stop):
            part = positions[at : at + batch]
            samples = samples_of([p for p in part if p not in still_bad])
            rows = [replace(r, message="again") for r in pending.rows if r.position in part and r.position in still_bad]
            out.add(at, at + len(part), samples, {k: make[k](samples) for k in job.fields}, rows)
            at += len(part)
        if stop is None:
            out.finish({})


def half(job: Job, path: Path, stop: int = 30) -> None:
    """Run the job up to position ``stop``, and leave it unfinished."""
    with Output.open(job.config(path), {"seed": 1}, total=job.total) as out:
        for at in range(out.resume_from, stop):
            out.add(at, at + 1, *job.batch(at, at + 1))
