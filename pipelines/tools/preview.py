"""Preview of a spec without reading data, for `validate` and `plan`: its mistakes, its devices, and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ops.errors import DeviceError, SpecError
from ...readers.fetch.gpu_reads import describe
from ..compile.place import Target, resolve_target
from ..compile.split_job import compile_job
from ..cores import threads_of
from ..engine.credits import described
from ..engine.options import lanes_for
from ..plugins import NotRunError, running_code
from ..problems import Problem, SpecErrors
from ..spec.build import BuiltSpec, load_spec
from ..wording import count

Overrides = Mapping[str, Any]


def check_spec(path: Path, overrides: Overrides | None = None, plugins: bool = False) -> dict[str, Any]:
    """Check a spec: ``{"file", "problems": [{"file", "line", "column", "text"}], "notes": [...], "summary"}``; notes
    are remarks that are not mistakes.

    The spec is compiled for the CPU and for a GPU (which this machine need not have), unless it requires one of them.
    Python files that it names are run only with ``plugins``; otherwise a note lists the steps that could not be
    checked.
    """
    problems: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    summary = ""
    try:
        with running_code(plugins):
            built = load_spec(path, overrides)
        for target in _targets(built.spec.pipeline.device):
            compile_job(built.graph, target, built.spec.pipeline.seed, by_batches=built.spec.depends_on_batches)
        summary = _summary(built)
        notes = [_as_data(n) for n in built.notes]
    except NotRunError as e:
        summary = "valid except for its plugins, which were not run"
        notes = [{"text": f"{path}: {e}"}]
    except SpecErrors as e:
        problems = [_as_data(p) for p in e.problems]
    except SpecError as e:
        problems = [{"text": line} for line in str(e).splitlines()]
    return {"file": str(path), "problems": problems, "notes": notes, "summary": summary}


def _as_data(p: Problem) -> dict[str, Any]:
    place = {"file": p.mark.file, "line": p.mark.line, "column": p.mark.column} if p.mark else {}
    return {**place, "text": p.text}


def problem_line(problem: Mapping[str, Any]) -> str:
    """Return a problem of `check_spec` as a line: ``file:line:column: text``."""
    if "file" not in problem:
        return str(problem["text"])
    return f"{problem['file']}:{problem['line']}:{problem['column']}: {problem['text']}"


def _target_of(device: str) -> Target:
    """Return the target (device to compile for) that ``device`` names. The machine need not have the GPU; graphs can
    then be compiled for it, but not run."""
    try:
        return resolve_target(device)
    except DeviceError:
        return Target("null")


def _targets(device: str) -> list[Target]:
    if device == "cpu":
        return [Target("cpu")]
    if device == "auto":
        return [Target("cpu"), Target("null")]
    return [Target("null")]


def _arrays() -> str:
    from ...ops.gpu import direct_storage

    return direct_storage.describe()


def _summary(built: BuiltSpec) -> str:
    write = built.spec.write
    output_text = f"{', '.join(built.graph.outputs)} as {write.writer} to {write.path}" if write else "nothing to write"
    return f"valid: {count(len(built.graph.nodes), 'operator')}, {output_text}"


def describe_job(
    path: Path, overrides: Overrides | None = None, device: str | None = None, plugins: bool = False
) -> dict[str, Any]:
    """Return the plan of a spec as data for JSON. Python files that it names are run only with ``plugins``. Raises
    SpecError, DeviceError."""
    with running_code(plugins):
        built = load_spec(path, overrides)
    settings, write = built.spec.pipeline, built.spec.write
    target = _target_of(device or settings.device)
    compiled = compile_job(built.graph, target, settings.seed, by_batches=built.spec.depends_on_batches)
    plan: dict[str, Any] = {"name": built.spec.name, **compiled.describe()}
    plan |= {"batch_size": settings.batch_size, "num_threads": settings.num_threads, "write": None}
    plan["memory"] = settings.memory.describe(target.device, described(lanes_for(settings.prefetch_gpu)))
    containers = any(getattr(n.op, "maps_files", False) for n in built.graph.nodes)
    plan["upload"] = None
    if containers and target.device != "cpu":
        indices = target.indices if target.device == "gpu" else ()
        threads = threads_of(settings.num_threads)
        plan["upload"] = describe(settings.upload, indices, threads, repeatedly=write is None)
    reads = target.device != "cpu" and any(n.reads_to_gpu for n in built.graph.nodes)
    plan["arrays"] = _arrays() if reads else None
    decodes = any(n.op.decodes for n in built.graph.nodes)
    plan["isolation"] = {"mode": settings.isolation, "timeout": settings.decode_timeout} if decodes else None
    if write is not None:
        plan["write"] = {
            "writer": write.writer,
            "path": write.path,
            "shard": {"samples": write.shard_samples, "bytes": write.shard_bytes},
            "fields": {name: config.encode for name, config in (built.fields or {}).items()},
        }
    return plan
