"""Run a job from a program: `run_job` is one call with a typed result, for Airflow, Dagster, Prefect, and notebooks."""

from __future__ import annotations

import inspect
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ...ops.errors import JobError, SpecError
from ...ops.storage.json_text import parse_json
from ...writers.bytes import sidecar
from ...writers.shards.mirror import state_of
from ..job.run import FAILED, INTERRUPTED, JobResult, Progress
from ..job.splits import run_one_process
from ..spec.variables import FromProgram
from ..wording import count, duration, rate
from .run import run as run_by_many


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """Samples, time and speed of one operator in a run. Part of a `Report`."""

    name: str
    """Name of the operator in the graph, such as ``Reader`` or ``resize``."""
    op: str
    """Registered name of the operator, such as ``readers.file`` or ``resize``."""
    runs_on: str
    """Where the operator ran: ``cpu``, ``mixed`` or ``gpu``."""
    samples: int
    """Number of samples that the operator processed in this run."""
    cpu_seconds: float
    """Seconds of CPU time in the operator, summed over threads."""
    gpu_seconds: float
    """Seconds of GPU time in the operator, by the GPU's own clock; 0 if the operator ran on the CPU."""
    samples_per_second: float | None
    """Samples per second of the operator's busy time; None if that was too short to measure."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a job ended, and how much time and data it took. ``data`` is the whole report.json, and the other fields are
    the values used most. Returned by `run_job`."""

    name: str
    """The job's name."""
    path: str
    """Path or URL of the output folder."""
    message: str
    """One sentence about what was done."""
    exit_code: int
    """Exit status that ``dali-run run`` would have: 0, or 3 if samples were rejected within the limit."""
    ran: bool
    """Whether this call did any work. If the output was already complete, the value is False, and counts and times are
    those of the run that finished the output."""
    read: int
    """Number of samples that were read in this run."""
    written: int
    """Number of samples that were written in this run."""
    rejected: int
    """Number of samples that were rejected in this run; ``rejects.jsonl`` in the output lists them with the reasons."""
    left_out: int
    """Number of samples that the spec left out on purpose in this run (`keep_if`); ``left_out.jsonl`` lists them."""
    seconds: float
    """Wall time of this run, without start-up."""
    samples_per_second: float | None
    """Samples read per second; None if the run was too short to measure."""
    bottleneck: str
    """One sentence about what limited the speed of the run."""
    advice: str
    """One sentence about what would make the run faster."""
    operators: tuple[OperatorReport, ...]
    """The operators that ran, in the order of the graph. Operators that were fused are listed as one."""
    data: Mapping[str, Any] = field(repr=False)
    """The whole report, as in report.json."""

    @property
    def clean(self) -> bool:
        """Whether no sample was rejected, neither in this run nor in the earlier runs of the job that this run
        continued."""
        return self.exit_code == 0

    def manifest(self) -> dict[str, Any]:
        """Return manifest.json of the finished output: the shards with names, samples, bytes and checksums. Raises
        JobError if the file does not exist yet, as for one part of a job (``num_shards``) while other parts are not
        done."""
        with state_of(self.path) as root:
            try:
                found: dict[str, Any] = sidecar.read_json(root / "manifest.json")
            except OSError as e:
                raise JobError(f"{self.path}: there is no manifest yet: {e.strerror}") from e
        return found

    def shards(self) -> list[str]:
        """Return the paths (or URLs) of the files with records, in order. Raises JobError as `manifest` does."""
        return [f"{self.path.rstrip('/')}/{file['name']}" for s in self.manifest()["shards"] for file in s["files"]]

    def rejects(self) -> list[dict[str, Any]]:
        """Return the lines of rejects.jsonl: for each rejected sample, its origin, the operator, the error code and the
        message."""
        with state_of(self.path) as root:
            log = root / "rejects.jsonl"
            return [parse_json(line) for line in sidecar.read(log).splitlines()] if log.exists() else []

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(o.name)}</td><td>{escape(o.op)}</td><td>{escape(o.runs_on)}</td><td>{o.samples:,}</td>"
            f"<td>{duration(o.gpu_seconds or o.cpu_seconds)}</td><td>{rate(o.samples_per_second)}</td></tr>"
            for o in self.operators
        )
        return (
            f"<p><b>{escape(self.message)}</b><br>{count(self.read, 'sample')} in {duration(self.seconds)}, "
            f"{rate(self.samples_per_second)}. {escape(self.bottleneck)} {escape(self.advice)}</p>"
            "<table><thead><tr><th>name</th><th>operator</th><th>on</th><th>samples</th><th>busy</th><th>rate</th></tr>"
            f"</thead><tbody>{rows}</tbody></table>"
        )


def run_job(
    spec: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    on: str | None = None,
    workers: int | None = None,
    cores: int | None = None,
    num_shards: int = 1,
    shard_id: int = 0,
    limit: int | None = None,
    fresh: bool = False,
    append: bool = False,
    progress: Callable[[Progress], None] | None = None,
    note: Callable[[str], None] | None = None,
    **variables: Any,
) -> Report:
    """Run the job of a spec, or continue it where it stopped, as ``dali-run run`` does.

    ``spec`` is the path of a YAML or JSON file, ``my_module.py:pipeline_fn``, or a spec as a mapping, whose relative
    paths start from the working directory. ``variables`` set the variables that the spec declares under ``vars:``
    (``data="/mnt/train"``); ``overrides`` set any value by its path (``{"pipeline.batch_size": 256}``) and take
    precedence. ``device``, ``limit``, ``fresh``, ``append``, and ``num_shards`` with ``shard_id`` are the options of
    the command. ``progress`` is called after every batch, ``note`` with every line about a part of the spec that has no
    effect. ``on`` distributes the job to processes (``processes:4``) or a Ray cluster (``ray``), with at most
    ``workers`` workers of ``cores`` cores each.

    After a failure, the same call continues the job: an orchestrator only has to call it again. If the output is
    already complete, nothing is done and ``ran`` is False. Raises SpecError (everything that is wrong with the spec),
    DeviceError (a GPU that the spec requires is missing), JobError (the job failed: the reason, and what to do),
    KeyboardInterrupt (interrupted; finished shards are kept)."""
    changes = FromProgram("run_job", _with_plain_paths(overrides or {}), _with_plain_paths(variables), _ARGUMENTS)
    part = (shard_id, num_shards) if num_shards != 1 or shard_id else None
    if part is not None and on is not None:
        raise SpecError("on runs all parts of the job: leave out num_shards and shard_id")
    options: dict[str, Any] = {
        "device": device, "limit": limit, "fresh": fresh, "append": append, "progress": progress or (lambda _: None),
        "note": note or (lambda _: None),
    }  # fmt: skip
    if not isinstance(spec, Mapping):
        file = os.fspath(spec)
        if part is not None:
            return _report(run_one_process(file, changes, part=part, **options))
        return _report(run_by_many(file, changes, on=on, workers=workers, cores=cores, **options))
    try:
        plain = parse_json(json.dumps(spec, default=os.fspath))
    except (TypeError, ValueError, RecursionError) as e:
        raise SpecError(f"the spec is not plain data: {e}") from None
    if isinstance(plain.get("plugins"), list):
        plain["plugins"] = [os.path.abspath(p) if isinstance(p, str) else p for p in plain["plugins"]]
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        spec_file = Path(folder) / "job.json"
        spec_file.write_text(json.dumps(plain, indent=2), encoding="utf-8")
        try:
            if on is not None:
                return _report(run_by_many(spec_file, changes, on=on, workers=workers, cores=cores, **options))
            return _report(run_one_process(spec_file, changes, part=part, made_of=plain, **options))
        except SpecError as e:  # the temporary file no longer exists when the message is read
            raise SpecError(re.sub(rf"^{re.escape(str(spec_file))}(:\d+)*: ", "", str(e), flags=re.MULTILINE)) from None


_ARGUMENTS = [name for name, p in inspect.signature(run_job).parameters.items() if p.kind is p.KEYWORD_ONLY]


def _with_plain_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in values.items()}


def _report(result: JobResult) -> Report:
    if result.exit_code == INTERRUPTED:
        raise KeyboardInterrupt(result.message)
    if result.exit_code == FAILED:
        raise JobError(result.message)
    data = result.report
    samples = data.get("samples", {})
    bottleneck = data.get("bottleneck", {})
    names = ("name", "op", "runs_on", "samples", "cpu_seconds", "gpu_seconds", "samples_per_second")
    return Report(
        name=data.get("name", ""),
        path=str(result.path),
        message=result.message,
        exit_code=result.exit_code,
        ran=result.ran,
        read=samples.get("read", 0),
        written=samples.get("written", 0),
        rejected=samples.get("rejected", 0),
        left_out=samples.get("left_out", 0),
        seconds=data.get("seconds", 0.0),
        samples_per_second=data.get("samples_per_second"),
        bottleneck=bottleneck.get("sentence", ""),
        advice=bottleneck.get("advice", ""),
        operators=tuple(OperatorReport(**{k: o.get(k) for k in names}) for o in data.get("operators", ())),
        data=data,
    )
