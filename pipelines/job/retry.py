"""Retry: what a finished job rejected is tried again, say after the files were repaired, and added to its output."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...writers.shards.config import WriteConfig
from ...writers.shards.manifest import sides
from ...writers.shards.mirror import state_of
from ...writers.shards.output import Output
from ...writers.shards.rejects import Budget
from ...writers.shards.retries import Outstanding, check_same_job, next_retry
from ..engine.inputs import Sources
from .additions import lineup_of
from .convert import is_conversion
from .ordered_inputs import LineupFeed
from .run import CLEAN, JobResult, JobRun, Progress, identity, prepare, write_config


def retry_feed(out: Path, sources: Sources, outstanding: Outstanding) -> LineupFeed:
    """The rejected samples only, in their order. Raises JobError where the inputs are not those of the job, or come in
    another order."""
    lineup = lineup_of(out, sources)
    for row in outstanding.rows:
        now = lineup.key(row.position)
        if now != row.key:
            raise JobError(
                f"the inputs are not those of the job: sample {row.position} was {row.key!r}, is {now!r}. Repair "
                "files where they are, without adding or removing any"
            )
    return LineupFeed(lineup, outstanding.retry.positions)


def retry_failed(
    out: Path | str, spec: Path | None = None, *, progress: Callable[[Progress], None] = lambda _: None
) -> JobResult:
    """Try the rejects of the finished output ``out`` again, with the spec that its report names (or ``spec``).

    Raises SpecError, DeviceError and JobError for what stops it before it begins.
    """
    with state_of(out) as root, tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        outstanding = next_retry(root)
        if not outstanding.rows:
            return JobResult(CLEAN, f"{out} has no rejects; nothing to do", {}, out)
        command = _command(root)
        path = spec or _spec_of(command, Path(folder))
        if not path.exists():
            raise JobError(f"the spec of {out} is not at {path} any more; name it with --spec")
        overrides = command["overrides"] if isinstance(command["spec"], str) else {}
        prepared = prepare(path, overrides, device=command["device"])
        config = write_config(prepared)
        if not _same_place(config, out):
            raise JobError(f"{path} writes to {config.where}, not to {out}; name the spec of this output with --spec")
        with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
            who = identity(prepared, sources)
            check_same_job(root, who, config.identity())
            feed = retry_feed(root, sources, outstanding)
            output = Output.open(config, who, total=len(feed.positions), budget=Budget(), stage=outstanding.retry)
            with output:
                return JobRun(prepared, feed, output, config, None, progress, command).run()


def _spec_of(command: Mapping[str, Any], folder: Path) -> Path:
    """The spec's file; the report of a conversion holds the spec itself, which becomes a file in ``folder``."""
    if isinstance(command["spec"], str):
        return Path(command["spec"])
    if not is_conversion(command["spec"]):  # whoever wrote that report: nothing that it says is to be executed
        raise JobError(
            "the output's report holds a spec that is no conversion; name the spec of this output with --spec"
        )
    path = folder / "convert.json"
    path.write_text(json.dumps(command["spec"]))
    return path


def _same_place(config: WriteConfig, out: Path | str) -> bool:
    return config.url == str(out).rstrip("/") if config.url else config.path.resolve() == Path(out).resolve()


def _command(out: Path) -> dict[str, Any]:
    """How the job was started, by its report."""
    nothing: dict[str, Any] = {"spec": "", "overrides": {}, "device": None}
    for side in sides(out)[:1]:
        try:
            return {**nothing, **json.loads(side.report.read_bytes()).get("command", {})}
        except (OSError, ValueError):
            continue
    return nothing
