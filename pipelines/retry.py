"""Retry: what a finished job rejected is tried again, say after the files were repaired, and added to its output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.batch import Samples
from ..ops.errors import JobError
from ..writers.rejects import Budget
from ..writers.retries import Outstanding, check_same_job, next_retry
from ..writers.shards import Output
from .execute import Request
from .feed import JobFeed, Sources
from .job import CLEAN, JobResult, JobRun, Progress, identity, prepare, write_config


class RetryFeed(JobFeed):
    """The rejected samples only, in their order."""

    def __init__(self, sources: Sources, outstanding: Outstanding) -> None:
        """Raises JobError where the inputs are not those of the job, or come in another order."""
        super().__init__(sources)
        self._chosen = np.array(outstanding.retry.positions, np.int64)
        _, source, job = self._jobs[0]
        for row in outstanding.rows:
            now = source.origin(int(job.index[row.position])).key if row.position in job.positions else None
            if now != row.key:
                raise JobError(
                    f"the inputs are not those of the job: sample {row.position} was {row.key!r}, is {now!r}. Repair "
                    "files where they are, without adding or removing any"
                )
        self.positions = self._everything = range(len(self._chosen))

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """The ``request.n`` rejected samples from the ``request.start``-th on."""
        position = self._chosen[request.start : request.start + request.n]
        slot, epoch = np.arange(len(position), dtype=np.int32), np.zeros(len(position), np.int64)
        per_reader = {i: Samples(slot, position, epoch, job.index[position], source) for i, source, job in self._jobs}
        return next(iter(per_reader.values())), per_reader


def retry_failed(
    out: Path, spec: Path | None = None, *, progress: Callable[[Progress], None] = lambda _: None
) -> JobResult:
    """Try the rejects of the finished output ``out`` again, with the spec that its report names (or ``spec``).

    Raises SpecError, DeviceError and JobError for what stops it before it begins.
    """
    outstanding = next_retry(out)
    if not outstanding.rows:
        return JobResult(CLEAN, f"{out} has no rejects; nothing to do", {}, out)
    command = _command(out)
    path = spec or Path(command["spec"])
    if not path.exists():
        raise JobError(f"the spec of {out} is not at {path} any more; name it with --spec")
    prepared = prepare(path, command["overrides"], device=command["device"])
    config = write_config(prepared)
    if config.path.resolve() != out.resolve():
        raise JobError(f"{path} writes to {config.path}, not to {out}; name the spec of this output with --spec")
    with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
        who = identity(prepared, sources)
        check_same_job(out, who, config.identity())
        feed = RetryFeed(sources, outstanding)
        output = Output.open(config, who, total=len(feed.positions), budget=Budget(), retry=outstanding.retry)
        with output:
            return JobRun(prepared, feed, output, config, None, progress, command).run()


def _command(out: Path) -> dict[str, Any]:
    """How the job was started, by its report."""
    nothing: dict[str, Any] = {"spec": "", "overrides": {}, "device": None}
    try:
        told = json.loads((out / "report.json").read_bytes()).get("command", {})
    except (OSError, ValueError):
        told = {}
    return {**nothing, **told}
