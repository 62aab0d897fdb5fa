"""Preview: what a spec means, without touching data: is it right, for which devices, and what would happen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ops.errors import SpecError
from .job import Prepared, prepare, write_config

Overrides = Mapping[str, Any]


def check_spec(path: Path, overrides: Overrides | None = None) -> dict[str, Any]:
    """Everything that is wrong with a spec: ``{"file", "problems": [...], "summary"}``.

    It is compiled for the CPU and for a GPU (which need not be there), unless it insists on one of them.
    """
    try:
        prepared = _compiled(path, overrides, "cpu")
    except SpecError as e:
        if not _insists_on_gpu(path, overrides):
            return _wrong(path, e)
        prepared = None
    try:
        on_gpu = _compiled(path, overrides, "null")
    except SpecError as e:
        return _wrong(path, e)
    return {"file": str(path), "problems": [], "summary": _summary(prepared or on_gpu)}


def _compiled(path: Path, overrides: Overrides | None, device: str) -> Prepared:
    prepared = prepare(path, overrides, device=device)
    if prepared.built.write is not None:
        write_config(prepared)
    return prepared


def _insists_on_gpu(path: Path, overrides: Overrides | None) -> bool:
    from .spec import load_spec

    try:
        return load_spec(path, overrides or {}).pipeline.device.startswith("gpu")
    except SpecError:
        return False


def _wrong(path: Path, error: SpecError) -> dict[str, Any]:
    return {"file": str(path), "problems": str(error).splitlines(), "summary": ""}


def _summary(prepared: Prepared) -> str:
    from .units import count

    write = prepared.built.write
    return f"right: {count(len(prepared.plan.graph.nodes), 'operator')}, " + (
        f"{', '.join(write.fields)} as {write.writer} to {write.path}" if write else "nothing to write"
    )


def describe_job(path: Path, overrides: Overrides | None = None, device: str | None = None) -> dict[str, Any]:
    """The plan of a spec as plain data. Raises SpecError, DeviceError."""
    prepared = prepare(path, overrides, device=device)
    plan: dict[str, Any] = {"name": prepared.spec.name, **prepared.plan.describe()}
    plan["batch_size"] = prepared.spec.pipeline.batch_size
    plan["threads"] = prepared.spec.pipeline.threads
    plan["write"] = None
    if prepared.built.write is not None:
        config = write_config(prepared)
        plan["write"] = {"writer": config.writer, "path": str(config.path), "samples a shard": config.samples,
                         "bytes a shard": config.bytes,
                         "fields": {k: v.encode for k, v in config.fields.items()}}  # fmt: skip
    return plan
