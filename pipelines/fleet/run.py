"""Run a job with several workers: choose where they run, and combine their results into one.

Called by `dali-run run` and by `fleet.api`; a job for one process goes to `job.run.run_job`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...ops.errors import SpecError
from ...writers.bytes import sidecar
from ...writers.shards.config import WriteConfig
from ...writers.shards.manifest import output_files_of, part_files_of
from ...writers.shards.mirror import state_of
from ...writers.shards.rejects import RejectLimit
from ..compile.place import Target
from ..engine.compile_ahead import clients_of, compile_ahead
from ..engine.inputs import opened_once
from ..job.known_jobs import remember
from ..job.look import Look
from ..job.part import check_divisible
from ..job.run import CLEAN, REJECTS, JobResult, Prepared, Progress, prepare, run_job, write_config, written_text
from ..job.splits import run_each_part, split_parts
from ..spec.shipped import known_spec
from ..tools.machine import facts
from ..wording import count
from .driver import Driver, WorkerGroup
from .job_message import JobMessage
from .job_output import JobOutput
from .machine import share_cpu, share_gpus
from .processes import Processes
from .reports import merged

_PROCESSES = re.compile(r"processes(:[1-9][0-9]{0,3})?")
_RAY = re.compile(r"ray(://.+)?")


def run(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    on: str | None = None,
    workers: int | None = None,
    cores: int | None = None,
    device: str | None = None,
    limit: int | None = None,
    fresh: bool = False,
    append: bool = False,
    trace: str | Path | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    look: Look | None = None,
    made_of: Mapping[str, Any] | None = None,
    amend: Callable[[dict[str, Any]], dict[str, Any]] = lambda report: report,
) -> JobResult:
    """Run the job of a spec, or continue it, with workers ``on`` this machine (``processes:4``) or a Ray cluster
    (``ray``, ``ray://host:10001``).

    Without ``on``, a job on several GPUs has a process for each; all other jobs are run by `run_job` in this process,
    because only `run_job` keeps samples for ``look``. ``workers``: the maximum number of workers, with ``cores`` each,
    on a cluster. ``made_of``, ``amend`` and the exceptions are those of `run_job`. The output equals that of a single
    process, to the byte, if its shards are cut by samples."""
    if on is not None:
        check(on, append, trace)
    local = on is None or _PROCESSES.fullmatch(on) is not None
    # the driver's machine need not have a GPU
    compile_device = device if local else "cpu" if device == "cpu" else "null"
    path = known_spec(path)
    prepared = prepare(path, overrides, device=compile_device, ahead=on is None)
    if names := split_parts(prepared):
        arguments: dict[str, Any] = {
            "on": on, "workers": workers, "cores": cores, "device": device, "limit": limit, "fresh": fresh,
            "append": append, "trace": trace, "progress": progress, "note": note, "look": look, "made_of": made_of,
            "amend": amend,
        }  # fmt: skip
        return run_each_part(names, prepared, overrides or {}, lambda changes: run(path, changes, **arguments))
    target = prepared.plan.target
    several = len(target.indices) > 1
    why_one_process = _why_one_process(prepared, append, trace) if several else ""
    one_process = on is None and (not several or bool(why_one_process))
    if one_process and why_one_process:
        note(f"one process drives all GPUs, because {why_one_process}; a process for each does about twice as much")
    config = write_config(prepared)
    if one_process or (not fresh and _in_one_piece(config)):
        if not local:
            prepared = prepare(path, overrides, device=device)
        return run_job(path, overrides, device=device, limit=limit, fresh=fresh, append=append, trace=trace,
                       progress=progress, note=note, prepared=prepared, look=look, made_of=made_of,
                       amend=amend)  # fmt: skip
    for remark in prepared.built.notes:
        note(str(remark))
    _check_files(path, prepared, config, note)
    job = _text(path, overrides or {}, target, limit)
    command = {
        "spec": job.path if made_of is None else dict(made_of),
        "overrides": dict(overrides or {}),
        "device": device,
        "on": on,
    }
    if fresh and local:
        opened_once(prepared.plan)  # before the existing output is removed
    with JobOutput(config, fresh=fresh) as output:
        if output.was_joined:
            return _finish_join(output)
        remember(config.url or config.path, command)
        if on is not None and not local:
            from .on_ray import Actors

            return _drive(output, Actors(job, on, workers, cores, note), prepared, command, progress, note, amend)
        group = _processes(on, workers, job, prepared, config)
        return _drive(output, group, prepared, command, progress, note, amend)


def _check_files(path: Path, prepared: Prepared, config: WriteConfig, note: Callable[[str], None]) -> None:
    """Raise SpecError if job parts would make other files than one process. Call ``note`` if files may differ."""
    if why := check_divisible(prepared):
        if not config.by_content:
            raise SpecError(f"{path}: parts of this job would not make the files of one process: {why}")
        note(f"{why}, so every part has shards of its own: files are cut differently than by one process")


def _processes(
    on: str | None, workers: int | None, job: JobMessage, prepared: Prepared, config: WriteConfig
) -> Processes:
    """Return the group of processes on this machine that ``on`` and ``workers`` request, after compiling the loops of
    the job once for all of them."""
    compile_ahead(clients_of(prepared.plan, config.writer), check=lambda: opened_once(prepared.plan), background=False)
    n = int(on.partition(":")[2] or 0) if on else 0
    target = prepared.plan.target
    gpus = target.device == "gpu"
    return Processes(job, share_gpus(target.indices, n or workers) if gpus else share_cpu(n or workers or 2))


def _why_one_process(prepared: Prepared, append: bool, trace: object) -> str:
    """Return the reason why one process must run a job on several GPUs; empty if each GPU can have a process."""
    if append:
        return "inputs are added"
    return "the run is traced" if trace is not None else check_divisible(prepared) or ""


def check(on: str, append: bool, trace: object) -> None:
    """Raise SpecError if ``on`` is not a known place for workers, such as ``ray``, or if workers there cannot do what
    is requested."""
    if not (_PROCESSES.fullmatch(on) or _RAY.fullmatch(on)):
        raise SpecError(f"--on must be processes:N, ray or ray://host:port, got {on!r}")
    for is_set, option in ((append, "--append"), (trace is not None, "--trace")):
        if is_set:
            raise SpecError(f"{option} needs one process: leave out --on")


def _drive(
    output: JobOutput, workers: AbstractContextManager[WorkerGroup[Any]], prepared: Prepared,
    command: Mapping[str, Any], progress: Callable[[Progress], None], note: Callable[[str], None],
    amend: Callable[[dict[str, Any]], dict[str, Any]],
) -> JobResult:  # fmt: skip
    on_error = prepared.spec.on_error
    config = output.config
    began, started = time.perf_counter(), datetime.now(UTC)
    with workers as group:
        driver = Driver(output, group, RejectLimit(on_error.max_errors, on_error.max_error_rate),
                        prepared.plan.target.device, progress, note,
                        {"name": prepared.spec.name, "output": config.where})  # fmt: skip
        code, message = driver.run()
        ended = time.perf_counter()
    report = merged(prepared.spec.name, driver.workers, ended - driver.began, driver.counts, command)
    report["over_time"] = driver.watch.over_time()
    report["start_seconds"] = round(driver.began - began, 6)
    report |= {"started": started.isoformat(timespec="seconds"), "machine": facts()}
    report = amend(report)
    if code:
        output.publish_rejects()
        return JobResult(code, message, report, config.url or config.path)
    output.join(report)
    written, rejected, left_out = driver.totals
    text = written_text(config, written, left_out, rejected, f"{config.where}/rejects.jsonl")
    return JobResult(REJECTS if rejected else CLEAN, text, report, config.url or config.path)


def _in_one_piece(config: WriteConfig) -> bool:
    """Return whether the output, finished or not, has the form that one process writes, or consists of parts that were
    already joined into that form."""
    with state_of(config.where) as root:
        outputs = output_files_of(root)
        return bool(outputs) and outputs[0].part is None and not part_files_of(root)


def _finish_join(output: JobOutput) -> JobResult:
    """Complete what an earlier run had begun: join the job parts into one output."""
    root, config = output.config.path, output.config
    report = sidecar.read_json(output.files.report, sidecar.REPORT)
    output.join(report)
    manifest = sidecar.read_json(root / "manifest.json")
    code = REJECTS if manifest["rejects"] else CLEAN
    return JobResult(code, f"wrote {count(manifest['samples'], 'sample')} to {config.where}", report,
                     config.url or config.path)  # fmt: skip


def _text(path: str | Path, overrides: Mapping[str, Any], target: Target, limit: int | None) -> JobMessage:
    spec = Path(path).absolute()
    text = spec.read_bytes().decode("latin-1")
    return JobMessage(str(spec), text, dict(overrides), target.device, limit, os.getcwd())
