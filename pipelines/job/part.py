"""Run one part of a job after the other in one process, with the job opened once. Used by fleet workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...ops.errors import SpecError
from ...readers.fetch.gpu_reads import RegistrationCache
from ...writers.shards.output import Output
from ...writers.shards.rejects import RejectLimit
from ..engine.inputs import JobFeed, Sources
from ..engine.lanes import SharedResources
from .batches import rows_unplaced
from .run import CLEAN, JobResult, JobRun, Prepared, Progress, write_config
from .schema import schema_of


@dataclass(frozen=True, slots=True)
class PartResult:
    """Result of running one part of a job (a range of the job's shards). Returned by `OpenJob.run`."""

    job: JobResult
    written: int
    """Number of samples in the part's shards, including samples written by earlier runs."""
    rejected: int
    left_out: int = 0


class OpenJob:
    """A job whose plan and data sets are open, so that several parts of the job can run.

    Created and closed by a fleet worker. `run` may be called by a second thread while the last part ends. The driver
    controls all parts, so nothing here checks the output as a whole."""

    def __init__(self, prepared: Prepared, sources: Sources, who: Mapping[str, Any], limit: int | None = None) -> None:
        """``who``: facts that identify the job, from `job.run.identity`. Raises SpecError if the readers' samples
        cannot be numbered."""
        self.prepared = prepared
        self.sources = sources
        self.who = who
        self._feed = JobFeed(sources, limit)
        self._schema = schema_of(prepared, self._feed, write_config(prepared))
        # parts may be too short to find out which upload method is faster, and read the same files
        self._uploads = RegistrationCache(repeatedly=False, keep=True)
        self._resources = SharedResources()
        self._warm = False

    def close(self) -> None:
        """Close the GPU lanes (CUDA streams with memory) of the job. No part may run any longer."""
        self._resources.close()

    @property
    def positions(self) -> range:
        """The positions of all samples of the job, in the order of the whole data set."""
        return self._feed.positions

    def run(
        self, part: tuple[int, int], span: range, progress: Callable[[Progress], None], command: Mapping[str, Any]
    ) -> PartResult:
        """Run part i of n of the job (``part`` is (i, n)), which has the positions ``span``, or continue it. Raises the
        exceptions of `run_job`."""
        config = write_config(self.prepared, part)
        feed = self._feed.part(span)
        on_error = self.prepared.spec.on_error
        output = Output.open(
            config,
            self.who,
            start=feed.positions.start,
            total=len(feed.positions),
            whole=len(self.positions),
            part=part,
            reject_limit=RejectLimit(on_error.max_errors, on_error.max_error_rate),
            inputs=self.sources.inputs if part[0] == 0 else None,  # one list for all parts
            led=True,
            memory=self.prepared.spec.pipeline.memory.host_bytes(),
            schema=self._schema,
            unplaced=lambda: rows_unplaced(self.sources),
        )
        with output:
            if output.finished:
                result = JobResult(CLEAN, "was finished before", {}, config.url or config.path, ran=False)
            else:
                run = JobRun(self.prepared, feed, output, config, None, progress, command, warm=self._warm,
                             uploads=self._uploads, resources=self._resources)  # fmt: skip
                self._warm = True
                result = run.run()
        return PartResult(result, output.written, output.rejected, output.left_out)


def check_divisible(prepared: Prepared) -> str | None:
    """Return the reason why several parts of a job would not write the same files as one process; None if they
    would."""
    spec = prepared.spec
    if spec.write is None:
        raise SpecError(f"{spec.file}: there is no `write:` section, so there is nothing to run")
    config = write_config(prepared)
    if config.by_content:
        return f"its shards are cut by {'bytes' if config.bytes is not None else 'the samples that are written (full)'}"
    if config.samples_of_shard(1, None) is None:
        return "its shards have no size; give shard: {samples: N}"
    return None
