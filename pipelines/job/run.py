"""Run a job, a spec with a ``write:`` section, from start to end: read, compute, write, report.

Called by the command line, `fleet` and `pipelines.fleet.api`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.base import Operator
from ...ops.batch import Batch
from ...ops.compiled.times import times
from ...ops.errors import DeviceError, JobError, SampleFailedError, SpecError
from ...ops.gpu.early_init import start_ahead, start_named
from ...ops.storage.urls import is_url, plain_path
from ...readers.base import Reader
from ...readers.fetch.extents import cut_short
from ...readers.fetch.gpu_reads import RegistrationCache
from ...version import __version__
from ...writers.bytes import sidecar
from ...writers.shards.config import WriteConfig
from ...writers.shards.lock import Lock
from ...writers.shards.manifest import OutputFiles
from ...writers.shards.mirror import staging_folder, state_of
from ...writers.shards.output import Output
from ...writers.shards.rejects import RejectLimit
from ..compile.place import Target, resolve_target
from ..compile.plan import Plan
from ..compile.split_job import SplitPlans, compile_job
from ..cores import threads_of
from ..engine.compile_ahead import clients_of, compile_ahead
from ..engine.engine import Options
from ..engine.errors import as_user_error
from ..engine.first_sample import undecided
from ..engine.inputs import JobFeed, Sources
from ..engine.lanes import SharedResources
from ..engine.memory.trim import trim
from ..engine.options import lanes_for, read_ahead_depth
from ..engine.warm_up import rehearse
from ..graph.as_json import described
from ..graph.nodes import Graph
from ..spec.build import BuiltSpec, load_spec
from ..spec.model import Spec
from ..spec.shipped import known_spec
from ..tools.machine import facts
from ..wording import count
from .additions import OutputGrowth, find_growth
from .batches import Batches, Finished, RunRange, rows_unplaced
from .known_jobs import remember
from .live import Counts, Live, Recorder
from .look import Look
from .ordered_inputs import LineupFeed
from .parts import PartsBatches
from .schema import schema_of

CLEAN, FAILED, BAD_SPEC, REJECTS, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes of a job: complete; failed; wrong spec; complete, but samples were rejected; interrupted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job, passed to the caller's callback after every batch."""

    done: int
    """Number of positions (in the order of all samples) that are finished in this run."""
    total: int
    """Number of positions (in the order of all samples) that this run has to process."""
    rejected: int
    """Number of samples that were rejected in this run."""
    started: float
    """Value of `time.perf_counter` at the first batch, in seconds."""
    status: Callable[[], Mapping[str, Any]] = dict
    """Function that returns the current state of the job, as `dali-run top` shows it; empty if other processes run
    it."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended. Returned by `run_job`."""

    exit_code: int
    message: str
    """One sentence for the user: what was done, or what ended the job."""
    report: Mapping[str, Any]
    path: Path | str
    """The output folder: a Path, or a URL as a str."""
    final: bool = False
    """Whether another try would fail in the same way: a sample failed in a job whose policy is ``fail``."""
    ran: bool = True
    """Whether this run did any work. If False, the output was complete, and the report is that of the run that
    completed it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec that was read, checked and compiled, before any data are read. Created by `prepare`."""

    built: BuiltSpec
    plan: Plan
    """The plan of the job. If the job splits samples, the plan of everything before the split."""
    split_plans: SplitPlans | None = None
    """The plans before and after the split, if the job splits samples into items; otherwise None."""

    @property
    def whole(self) -> Graph:
        """The whole graph of the job, before and after a split, with the specs (dtype, shape) of the outputs."""
        return self.plan.graph if self.split_plans is None else self.split_plans.whole

    @property
    def target(self) -> Target:
        """The device on which the job runs."""
        return (self.plan if self.split_plans is None else self.split_plans.back).target

    @property
    def spec(self) -> Spec:
        """The contents of the spec file."""
        return self.built.spec


def prepare(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    part: tuple[int, int] | None = None,
    ahead: bool = False,
) -> Prepared:
    """Read and compile a spec. ``part`` (i, n): it is for part i of n of a job. ``ahead``: the job will run in this
    process, so the GPU may be started meanwhile. Raises SpecError and DeviceError."""
    built = load_spec(path, overrides)
    settings = built.spec.pipeline
    if ahead:
        start_named(device or settings.device)
    target = resolve_target(device or settings.device)
    if part is not None:
        check_parts(built.graph, part)
    plan = compile_job(built.graph, target, settings.seed, by_batches=built.spec.depends_on_batches)
    return Prepared(built, plan.front, plan) if isinstance(plan, SplitPlans) else Prepared(built, plan)


def check_parts(graph: Graph, part: tuple[int, int]) -> None:
    """Raise SpecError if ``part`` is impossible, or if readers have shards of their own. Parts are ranges of the job's
    samples that begin and end with output shards, so any number of parts writes the same files. Readers do not know of
    parts."""
    index, count = part
    if not 0 <= index < count:
        raise SpecError(f"--shard-id must be from 0 to {count - 1}, got {index}")
    for node in graph.nodes:
        if isinstance(node.op, Reader) and node.op.num_shards != 1:
            raise SpecError(f"{node.where}: has num_shards of its own; leave it out to use --num-shards")


def run_job(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    part: tuple[int, int] | None = None,
    limit: int | None = None,
    fresh: bool = False,
    append: bool = False,
    trace: str | Path | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    made_of: Mapping[str, Any] | None = None,
    amend: Callable[[dict[str, Any]], dict[str, Any]] = lambda report: report,
    prepared: Prepared | None = None,
    look: Look | None = None,
) -> JobResult:
    """Run the job of a spec in this process, or continue it.

    ``append`` adds inputs that are new to the existing output. ``note`` is called with each line about a part of the
    spec that has no effect. ``made_of`` is the spec itself, if the file of the spec will not exist later. ``amend``
    returns the final report with additions. ``prepared`` is the result of `prepare` for these arguments, if the caller
    has it. ``look`` keeps a few samples, to be shown. Raises SpecError for a wrong spec, and DeviceError and JobError
    for errors before the output is open. Later errors are in the result, with a report of what was done until then."""
    if append and (fresh or limit is not None):
        raise SpecError(f"--append adds to the existing output: leave out {'--fresh' if fresh else '--limit'}")
    prepared = prepared or prepare(path, overrides, device=device, part=part, ahead=True)
    if prepared.target.device == "gpu":
        start_ahead(prepared.target.indices)
    for remark in prepared.built.notes:
        note(str(remark))
    config = write_config(prepared, part)
    settings = prepared.spec.pipeline
    command = {"spec": str(known_spec(path).absolute()) if made_of is None else dict(made_of),
               "overrides": dict(overrides or {}), "device": device}  # fmt: skip
    reject_limit = RejectLimit(prepared.spec.on_error.max_errors, prepared.spec.on_error.max_error_rate)
    with Sources(prepared.plan, settings.batch_size) as sources:
        who = identity(prepared, sources)
        if not fresh:
            with state_of(config.where) as root:
                grown = find_growth(root, sources, who, config.identity(), append=append, part=part)
                if grown is not None and not grown.todo:
                    Lock(OutputFiles(root).lock).release()  # the lock of a run that was killed after all was done
                    manifest = sidecar.read_json(root / "manifest.json")
                    return _already_done(manifest["samples"], manifest["rejects"], root, config)
            if grown is not None:
                return _run_grown(prepared, grown, config, who, reject_limit, trace, progress, command, amend, look)
        if undecided(prepared.plan):
            compile_ahead(clients_of(prepared.plan, config.writer))  # before the first sample is computed
        feed = JobFeed(sources, limit)
        whole = len(feed.positions)
        if part is not None:
            feed.positions = config.part_range(feed.positions, part)
        output = Output.open(
            config,
            who,
            start=feed.positions.start,
            total=len(feed.positions),
            whole=whole if part is not None else None,
            part=part,
            reject_limit=reject_limit,
            fresh=fresh,
            inputs=sources.inputs,
            memory=settings.memory.host_bytes(),
            schema=schema_of(prepared, feed, config),
            unplaced=lambda: rows_unplaced(sources),
        )
        with output:
            if output.finished:
                return _already_done(output.written, output.rejected, config.path, config)
            remember(config.url or config.path, command)
            return JobRun(prepared, feed, output, config, trace, progress, command, amend, look=look).run()


def _run_grown(
    prepared: Prepared, grown: OutputGrowth, config: WriteConfig, who: Mapping[str, Any], reject_limit: RejectLimit,
    trace: str | Path | None, progress: Callable[[Progress], None], command: Mapping[str, Any],
    amend: Callable[[dict[str, Any]], dict[str, Any]], look: Look | None,
) -> JobResult:  # fmt: skip
    """Run the remaining work of a job whose inputs have grown, one addition after the other."""
    for todo in grown.todo:
        feed = LineupFeed(grown.lineup, grown.lineup.positions(todo.number))
        output = Output.open(
            config,
            {**who, "inputs": todo.inputs.identity},
            total=len(feed.positions),
            reject_limit=reject_limit,
            addition=todo.addition,
            inputs=todo.listing,
            memory=prepared.spec.pipeline.memory.host_bytes(),
            schema=schema_of(prepared, feed, config),
        )
        with output:
            result = JobRun(prepared, feed, output, config, trace, progress, command, amend, look=look).run()
        if result.exit_code in (FAILED, INTERRUPTED):
            break
    return result


def write_config(prepared: Prepared, part: tuple[int, int] | None = None) -> WriteConfig:
    """Return the ``write:`` section of the spec as the configuration of a writer; with ``part``, for this part of the
    job. Raises SpecError if the spec has no such section, or if the writer rejects the section."""
    spec, fields = prepared.spec, prepared.built.fields
    if spec.write is None or fields is None or prepared.built.writer is None:
        raise SpecError(
            f"{spec.file}: there is no `write:` section, so there is nothing to run (it needs `writer:` and `path:`); "
            "the Python API iterates over such a spec"
        )
    graph = prepared.whole
    prepared.built.writer.check(fields, {name: graph.spec(edge) for name, edge in graph.outputs.items()})
    place = str(spec.write.path)
    return WriteConfig(
        path=staging_folder(place, part) if is_url(place) else Path(plain_path(place)),
        name=spec.name,
        writer=spec.write.writer,
        options={k: v.to_python() for k, v in spec.write.options.items()},
        samples=spec.write.shard_samples,
        bytes=spec.write.shard_bytes,
        full=spec.write.shard_full,
        sha256=spec.write.sha256,
        fields=fields,
        url=place.rstrip("/") if is_url(place) else "",
        split=prepared.split_plans is not None,
        leaves_out=any(
            n.op.leaves_out or (isinstance(n.op, Reader) and n.op.leaves_records_out)
            for n in prepared.built.graph.nodes
        ),
    )


def identity(prepared: Prepared, sources: Sources) -> dict[str, Any]:
    """Return everything that decides the bytes of the output, except the ``write:`` section. Before a job is resumed,
    the value is compared with the stored one."""
    settings = prepared.spec.pipeline
    names = [node.op.name for node in prepared.built.graph.nodes]  # before nodes are joined
    libraries = ["simplejpeg", "pillow"]
    libraries += ["imagecodecs"] * any(n.startswith("decoders.image") for n in names)
    libraries += prepared.built.writer.libraries if prepared.built.writer is not None else ()
    return {
        "graph": described(prepared.built.graph, _locations),
        "seed": settings.seed,
        "rng": settings.rng,
        "replace": prepared.spec.on_error.policy == "replace",
        "batch_size": settings.batch_size if prepared.spec.depends_on_batches else None,
        "device": "gpu" if prepared.target.device == "gpu" else "cpu",
        "inputs": sources.fingerprint(),
        "versions": {"dali-run": _version("dali-run"), **{p: _version(p) for p in libraries}},
    }


def _locations(op: Operator) -> Collection[str]:
    """Return the names of the arguments that locate inputs, such as paths. The job's identity omits these arguments,
    because the inputs themselves are compared."""
    return op.locations if isinstance(op, Reader) else ()


def _version(package: str) -> str:
    """Return the version of an installed package, or "unknown". That of dali-run is known without installing it."""
    try:
        return __version__ if package == "dali-run" else version(package)
    except PackageNotFoundError:
        return "unknown"


def _already_done(written: int, rejected: int, root: Path, config: WriteConfig) -> JobResult:
    report: dict[str, Any] = {}
    if (root / "report.json").exists():
        report = sidecar.read_json(root / "report.json", sidecar.REPORT)
    code = REJECTS if rejected else CLEAN
    return JobResult(code, f"{config.where} is complete already ({count(written, 'sample')}); nothing to do. "
                     "--fresh starts over", report, config.url or config.path, ran=False)  # fmt: skip


def _batches(
    prepared: Prepared, run_range: RunRange, uploads: RegistrationCache | None, resources: SharedResources | None,
    copies: int,
) -> Batches:  # fmt: skip
    """Return the batches of a job: an engine, with the options of the spec, that runs the plan over ``run_range``."""
    options = options_of(prepared.spec, prepared.target)
    options = replace(
        options, uploads=uploads or RegistrationCache(repeatedly=False), resources=resources, copies=copies
    )
    if any(n.op.output_after_sync and n.stage == "gpu" for n in prepared.whole.nodes):
        options = replace(options, lanes=lanes_for(options.gpu_queue, late=True))
    if prepared.split_plans is None:
        return Batches(prepared.plan, run_range, options)
    return PartsBatches(prepared.split_plans, run_range, options)


class JobRun:
    """One run of a job whose output is open for writing. Created by `run_job`, `OpenJob` and `retry_failed`; used by
    one thread."""

    def __init__(
        self, prepared: Prepared, feed: JobFeed, output: Output, config: WriteConfig,
        trace: str | Path | None, progress: Callable[[Progress], None], command: Mapping[str, Any],
        amend: Callable[[dict[str, Any]], dict[str, Any]] = lambda report: report, *, warm: bool = False,
        selected: frozenset[tuple[int, int]] | None = None, look: Look | None = None,
        uploads: RegistrationCache | None = None, resources: SharedResources | None = None,
    ) -> None:  # fmt: skip
        """``command``: how the job was started, for the report. ``amend`` returns the final report with additions.
        ``warm``: this process ran a part of the job before, so everything is compiled. ``selected``: see `RunRange`.
        ``look`` keeps a few samples, to be shown. ``uploads`` and ``resources``: see `Options`."""
        compile_ahead(clients_of(prepared.plan, config.writer))
        self.started = datetime.now(UTC)
        self.amend = amend
        self.look = look
        self.prepared = prepared
        self.command = command
        self.output = output
        self.feed = feed
        self.config = config
        self.name = prepared.spec.name
        self.trace = trace
        self.progress = progress
        self.first = output.resume_from
        self.written_before = output.written
        self.rejected_before = output.rejected
        self.left_out_before = output.left_out - sum(output.unplaced.values())
        self.stop = feed.positions.stop
        self.total = self.stop - self.first
        self.writing = 0.0
        self.read = self.rejected = self.left_out = 0
        self.live = Live(config.url or config.path, output.part, {
            "name": self.name, "total": self.total, "device": prepared.target.device,
            "threads": threads_of(prepared.spec.pipeline.num_threads),
        })  # fmt: skip
        progress(Progress(0, self.total, 0, time.perf_counter(), self.live.of))
        run_range = RunRange(
            feed, self.first, prepared.spec.pipeline.batch_size, prepared.spec.depends_on_batches, trace is not None,
            selected,
        )  # fmt: skip
        self.batches = _batches(prepared, run_range, uploads, resources, output.copies)
        try:
            self.warm_up = 0.0 if warm else self.batches.warm_up(lambda outputs: rehearse(config, outputs))
        except BaseException as e:  # also after Ctrl-C, because decoder processes may run already
            self.batches.stop()
            user_error = as_user_error(e)
            self.live.end("interrupted" if isinstance(e, KeyboardInterrupt) else "failed", str(user_error))
            if user_error is e:
                raise
            raise user_error from e
        stats = self.batches.engine.stats
        for reader, n in output.unplaced.items():
            stats.count(stats.left_out, reader, n)
        self.began = time.perf_counter()
        self.recorder = Recorder(
            self.batches.engine, lambda: Counts(self.read, self.rejected, self.left_out, self.writing)
        )

    def run(self) -> JobResult:
        """Run the job to its end and return the result. Expected errors are in the result; only unexpected exceptions
        propagate."""
        self.live.start(self.recorder)
        try:
            return self._run()
        except BaseException as e:
            self.live.end("failed", str(e))
            raise
        finally:
            self.recorder.end()
            trim()  # jobs one after the other in one process

    def _run(self) -> JobResult:
        try:
            with self.batches:
                for batch in self.batches:
                    self._write(batch)
                    self.progress(Progress(self.read, self.total, self.rejected, self.began, self.live.of))
            report = self._report()
            self.output.finish(report)  # writes the last shard: a full disk, or too many rejects, may end the job here
        except KeyboardInterrupt:
            return self._ended(INTERRUPTED, f"interrupted after {self.read} of {self.total} samples; run the same "
                               "command again: it continues")  # fmt: skip
        except JobError as e:
            return self._ended(FAILED, str(e), final=isinstance(e, SampleFailedError))
        except DeviceError as e:
            return self._ended(FAILED, f"{e}. Run the same command again: it continues after the last finished shard")
        except MemoryError as e:
            remedy = "lower pipeline.batch_size or memory.host, and run the same command again: it continues"
            return self._ended(FAILED, f"out of memory while writing: {str(e) or 'an allocation failed'}; {remedy}")
        code = REJECTS if self.output.rejected else CLEAN
        text = written_text(self.config, self.output.written, self.output.left_out, self.output.rejected,
                            self.output.reject_counter.log)  # fmt: skip
        return self._result(code, text, report)

    def _write(self, batch: Finished) -> None:
        if self.look is not None:  # before too many rejects may end the job
            places = self.feed.places(np.array([r.position for r in batch.rejects], np.int64))
            self.look.add_rejects(list(zip(places.tolist(), batch.rejects, strict=True)))
        began, compiling = time.perf_counter(), times.in_this_thread()
        self.output.add(
            batch.start,
            batch.stop,
            batch.samples,
            batch.outputs,
            batch.rejects,
            lambda: _check_intact(batch.outputs),
            batch.left_out,
        )
        self.writing += time.perf_counter() - began - (times.in_this_thread() - compiling)
        self.batches.engine.stats.span("write", "write", began, time.perf_counter(), batch.number)
        self.read += batch.stop - batch.start
        self.rejected += len(batch.rejects)
        self.left_out += len(batch.left_out)
        if self.look is not None:
            self.look.add_written(self.feed.places(batch.samples.position).tolist(), batch.samples, batch.outputs)

    def _report(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self.began
        rejected = self.output.rejected - self.rejected_before  # the writer's own rejects included
        counts = {"read": self.read, "written": self.output.written - self.written_before, "rejected": rejected}
        if self.config.leaves_out:
            counts["left_out"] = self.output.left_out - self.left_out_before
        report = {"name": self.name, **self.batches.report(seconds, counts, self.writing)}
        report["command"] = self.command
        report["warm_up_seconds"] = round(self.warm_up, 6)
        report["over_time"] = self.recorder.over_time()
        report["started"] = self.started.isoformat(timespec="seconds")
        report["machine"] = facts()
        report["compiling_seconds"] = round(times.new_seconds(), 6)
        if self.prepared.target.device == "gpu":
            waited = {name: round(seconds, 6) for name, seconds in times.nvrtc.items()}
            report["cuda_kernels"] = {"images": times.images, "nvrtc": waited}
        if self.first:
            report["resumed_from"] = self.first
        if mixtures := self.feed.mixtures():
            names = {n.id: n.name for n in self.prepared.plan.graph.nodes}
            report["mixtures"] = {names[node]: counts for node, counts in mixtures.items()}
        if "first_sample" in self.output.schema:
            report["schema"] = self.output.schema
        return self.amend(report)

    def _ended(self, code: int, message: str, *, final: bool = False) -> JobResult:
        report = self._report()
        self.output.abort()
        return replace(self._result(code, message, report), final=final)

    def _result(self, code: int, message: str, report: dict[str, Any]) -> JobResult:
        if self.trace is not None:
            Path(self.trace).write_text(json.dumps(self.batches.engine.stats.chrome_trace()))
        if self.look is not None and code != INTERRUPTED:
            split_plans = self.prepared.split_plans
            self.look.read_inputs(split_plans.front if split_plans is not None else self.prepared.plan, self.feed,
                                  self.prepared.spec.pipeline.rng)  # fmt: skip
        self.live.end({FAILED: "failed", INTERRUPTED: "interrupted"}.get(code, "finished"), message)
        return JobResult(code, message, report, self.config.url or self.config.path)


def written_text(config: WriteConfig, written: int, left_out: int, rejected: int, reject_log: str) -> str:
    """Return the sentence for the user about a finished job: how many samples were written, left out and rejected."""
    omitted = f", left out {left_out} (see {config.where}/left_out.jsonl)" * bool(left_out)
    failed = f", {rejected} rejected (see {reject_log})" * bool(rejected)
    return f"wrote {count(written, 'sample')} to {config.where}{omitted}{failed}"


def options_of(spec: Spec, target: Target) -> Options:
    """Return the engine's options, from the ``pipeline:`` and ``on_error:`` sections of the spec."""
    settings = spec.pipeline
    threads = threads_of(settings.num_threads)
    return Options(
        num_threads=threads,
        cpu_queue=read_ahead_depth(
            settings.prefetch_cpu, threads, asked=settings.prefetch_asked or target.device != "gpu"
        ),
        gpu_queue=settings.prefetch_gpu,
        lanes=lanes_for(settings.prefetch_gpu) if target.device != "cpu" else 1,
        policy=spec.on_error.policy,
        **settings.shared(),
    )


def _check_intact(outputs: Mapping[str, Batch]) -> None:
    """Raise JobError if a file was truncated after a batch with its records was delivered: zeros may then have been
    written to a shard instead of the records' bytes."""
    for batch in outputs.values():
        if batch.on_host and (path := cut_short(batch.data.ctypes.data, batch.offsets * batch.dtype.itemsize)):
            raise JobError(
                f"{path}: the input file was cut short, or could not be read, while a record was copied from it; run "
                "the same command again: it continues after the last finished shard"
            )
