"""Process the rejected samples of a finished job again, for example after files were repaired, and add them to its
output. Called by `dali-run retry-failed`."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...ops.batch import part_key
from ...ops.errors import JobError
from ...writers.bytes import sidecar
from ...writers.shards.config import WriteConfig
from ...writers.shards.manifest import output_files_of
from ...writers.shards.mirror import state_of
from ...writers.shards.output import Output
from ...writers.shards.rejects import RejectLimit
from ...writers.shards.retries import PendingRetry, check_same_job, next_retry
from ..engine.first_sample import Decided
from ..engine.inputs import Sources
from .additions import lineup_of
from .convert import is_conversion
from .known_jobs import recall
from .ordered_inputs import LineupFeed
from .run import CLEAN, JobResult, JobRun, Progress, identity, prepare, write_config
from .schema import decided_in


def retry_feed(
    out: Path, sources: Sources, pending: PendingRetry, decided: Decided | None = None
) -> LineupFeed:  # fmt: skip
    """Return a source of samples with only the rejected samples of a job, in their order. ``decided``: types and
    ranks that the job's first sample decided. Raises JobError if the inputs are not those of the job, or have
    another order."""
    lineup = lineup_of(out, sources)
    for row in pending.rows:
        now = lineup.key(row.position)
        if now is not None and row.part >= 0:
            now = part_key(now, row.part)
        if now != row.key:
            raise JobError(
                f"the inputs are not those of the job: sample {row.position} was {row.key!r}, is {now!r}. Repair "
                "files where they are, without adding or removing any"
            )
    return LineupFeed(lineup, pending.retry.positions, decided)


def retry_failed(
    out: Path | str,
    spec: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
) -> JobResult:
    """Process the rejected samples of the finished output ``out`` again, with the spec that this user ran to create the
    output, or with ``spec``.

    The spec that is named in the output is not used: a spec is code that must be trusted, and whoever created the
    output may have written anything into it. Raises SpecError, DeviceError and JobError for errors before the retry
    begins."""
    with state_of(out) as root, tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        pending = next_retry(root)
        if not pending.rows:
            return JobResult(CLEAN, f"{out} has no rejects; nothing to do", {}, out)
        command, claimed = recall(out), _claimed_command(root)
        if isinstance(claimed.get("spec"), dict) and not is_conversion(claimed["spec"]):
            raise JobError(f"{out}: its report was changed: it holds a spec that is not a conversion")
        if command is None:
            if spec is None:
                raise JobError(_which_spec(out, claimed))
            command = {"spec": str(spec.absolute()), "overrides": {}, "device": None}
        path = spec or _spec_of(command, Path(folder))
        if not path.exists():
            raise JobError(f"the spec of {out} is no longer at {path}; name it with --spec")
        earlier = command["overrides"] if isinstance(command["spec"], str) else {}
        prepared = prepare(path, {**earlier, **(overrides or {})}, device=command["device"])
        config = write_config(prepared)
        if not _same_place(config, out):
            raise JobError(f"{path} writes to {config.where}, not to {out}; name the spec of this output with --spec")
        with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
            who = identity(prepared, sources)
            check_same_job(root, who, config.identity())
            schema = sidecar.read_json(root / "manifest.json").get("schema", {})  # the decisions of the first run
            feed = retry_feed(root, sources, pending, decided_in(schema, prepared.plan))
            output = Output.open(config, who, total=len(feed.positions), reject_limit=RejectLimit(),
                                 addition=pending.retry, schema=schema,
                                 memory=prepared.spec.pipeline.memory.host_bytes())  # fmt: skip
            with output:
                selected = frozenset((r.position, r.part) for r in pending.rows)
                return JobRun(prepared, feed, output, config, None, progress, command, selected=selected).run()


def _spec_of(command: Mapping[str, Any], folder: Path) -> Path:
    """Return the path of the spec that ``command`` ran. The spec of a conversion is part of the command; it is first
    written to a file in ``folder``."""
    if isinstance(command["spec"], str):
        return Path(command["spec"])
    if not is_conversion(command["spec"]):
        raise JobError("the command of this job is not a conversion; name the spec of this output with --spec")
    path = folder / "convert.json"
    path.write_text(json.dumps(command["spec"]))
    return path


def _same_place(config: WriteConfig, out: Path | str) -> bool:
    return config.url == str(out).rstrip("/") if config.url else config.path.resolve() == Path(out).resolve()


def _claimed_command(out: Path) -> Mapping[str, Any]:
    """Return the command that created the output, as the output's report claims; the claim may be false."""
    for files in output_files_of(out)[:1]:
        with contextlib.suppress(OSError, ValueError, JobError):
            command = sidecar.read_json(files.report, sidecar.REPORT).get("command")
            return command if isinstance(command, dict) else {}
    return {}


def _which_spec(out: Path | str, claimed: Mapping[str, Any]) -> str:
    """Return advice on which spec to pass, for a job that this user has not run on this machine."""
    begin = f"{out}: you have not run this job on this machine, and what its report says is not trusted; "
    spec, overrides = claimed.get("spec"), claimed.get("overrides")
    if isinstance(spec, dict):
        return begin + "it is a conversion: save what `dali-run convert ... --show` prints, and name it with --spec"
    if not isinstance(spec, str):
        return begin + "name its spec with --spec"
    command = ["dali-run", "retry-failed", str(out), "--spec", spec]
    for key, value in overrides.items() if isinstance(overrides, dict) else ():
        command += ["--set", f"{key}={value}"]
    return begin + f"if it is your own, or you have read it: {shlex.join(command)}"
