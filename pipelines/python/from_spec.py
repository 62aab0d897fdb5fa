"""Specs as pipelines: `load_spec` makes the graph of a YAML file a Pipeline that programs iterate over.
`Pipeline.to_yaml` is the inverse."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...ops.base import nearest
from ..compile.place import Target, resolve_target
from ..cores import threads_of
from ..graph.builder import GraphBuilder
from ..problems import Problems
from ..spec.build import build
from ..spec.model import Settings, Spec, parse_spec
from ..spec.variables import FromProgram
from .data_node import DataNode
from .pipeline import Pipeline


def load_spec(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, **arguments: Any
) -> SpecPipeline:  # fmt: skip
    """Return a Pipeline with the graph of the spec in the file ``path`` (YAML, JSON, or ``my_module.py:pipeline_fn``).

    Outputs are those of ``outputs:``, in their order (`Pipeline.output_names`); ``write:`` is ignored. Settings come
    from ``pipeline:`` and ``on_error:``, and operators run on the same devices as in a job. ``overrides`` are those of
    ``--set`` (``{"data": "/mnt", "pipeline.batch_size": 32}``); ``arguments`` are Pipeline's own, and take precedence.

    Raises SpecErrors with all mistakes, each with its position in the text; DeviceError if the spec requires a GPU that
    is missing.
    """
    problems = Problems()
    spec = parse_spec(path, FromProgram("load_spec", overrides or {}), problems)
    if spec is None:
        problems.raise_any()
        raise AssertionError("a spec that cannot be read has a problem")
    _check_known(arguments, spec)
    built = build(replace(spec, write=None), problems)
    settings = {**_arguments(spec.pipeline), "on_error": spec.on_error.policy}
    target = None if "device_id" in arguments else resolve_target(spec.pipeline.device)
    if target is not None and target.device != "cpu":
        settings["device_id"] = target.indices
    pipeline = SpecPipeline(**{**settings, **arguments})
    pipeline._resolved = target
    builder = GraphBuilder.of(built.graph.nodes)
    pipeline._definition.builder = builder
    pipeline._definition.names = list(built.graph.outputs)
    pipeline._definition.outputs = [DataNode(builder, edge) for edge in built.graph.outputs.values()]
    return pipeline


def _check_known(arguments: Mapping[str, Any], spec: Spec) -> None:
    known = inspect.signature(Pipeline).parameters
    variables = list(spec.vars)
    for name in arguments:
        if name in variables and name not in known:
            raise TypeError(f"load_spec has no argument {name!r}: it is a variable of the spec, so pass "
                            f"overrides={{{name!r}: ...}}")  # fmt: skip
        if name not in known:
            raise TypeError(f"load_spec has no argument {name!r}, nor has Pipeline"
                            f"{nearest(name, [*known, *variables])}")  # fmt: skip


class SpecPipeline(Pipeline):
    """A pipeline whose graph came from a spec. The stages of its decoders are chosen as in a job."""

    _resolved: Target | None = None
    """Device for which the graph is compiled; None to use the one of ``device_id``."""

    def _target(self) -> Target:
        return replace(super()._target(), auto_mixed=True) if self._resolved is None else self._resolved


def _arguments(settings: Settings) -> dict[str, Any]:
    """Return the ``pipeline:`` section of a spec as arguments of Pipeline."""
    return {
        "batch_size": settings.batch_size, "num_threads": threads_of(settings.num_threads), "seed": settings.seed,
        "prefetch_queue_depth": settings.prefetch_cpu if settings.prefetch_cpu == settings.prefetch_gpu
        else {"cpu_size": settings.prefetch_cpu, "gpu_size": settings.prefetch_gpu},
        **settings.shared(),
    }  # fmt: skip
