"""Specs as pipelines: the graph of a YAML file for programs that iterate over it; `Pipeline.to_yaml` the other way."""

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
    """The graph of the spec in the file ``path`` (YAML or JSON, or ``my_module.py:pipeline_fn``) as a Pipeline.

    Outputs are those of ``outputs:``, in their order (`Pipeline.output_names`); ``write:`` is left out. Settings come
    from ``pipeline:`` and ``on_error:``, operators run where a job would run them. ``overrides`` are those of ``--set``
    (``{"data": "/mnt", "pipeline.batch_size": 32}``); ``arguments`` are Pipeline's own, and stronger.

    Raises SpecErrors with everything that is wrong, each at its place in the text; DeviceError where a GPU that the
    spec insists on is missing.
    """
    problems = Problems()
    spec = parse_spec(path, FromProgram("load_spec", overrides or {}), problems)
    if spec is None:
        problems.raise_any()
        raise AssertionError("a spec that cannot be read has a problem")
    _check_known(arguments, spec)
    built = build(replace(spec, write=None), problems)
    given = {**_arguments(spec.pipeline), "on_error": spec.on_error.policy}
    target = None if "device_id" in arguments else resolve_target(spec.pipeline.device)
    if target is not None and target.device != "cpu":
        given["device_id"] = target.indices
    made = SpecPipeline(**{**given, **arguments})
    made._resolved = target
    builder = GraphBuilder.of(built.graph.nodes)
    made._definition.builder = builder
    made._definition.names = list(built.graph.outputs)
    made._definition.outputs = [DataNode(builder, edge) for edge in built.graph.outputs.values()]
    return made


def _check_known(arguments: Mapping[str, Any], spec: Spec) -> None:
    known = inspect.signature(Pipeline).parameters
    variables = list(spec.vars)
    for name in arguments:
        if name in variables and name not in known:
            raise TypeError(f"load_spec has no argument {name!r}: it is a variable of the spec, so give "
                            f"overrides={{{name!r}: ...}}")  # fmt: skip
        if name not in known:
            raise TypeError(f"load_spec has no argument {name!r}, nor has Pipeline"
                            f"{nearest(name, [*known, *variables])}")  # fmt: skip


class SpecPipeline(Pipeline):
    """A pipeline whose graph came from a spec: decoders are placed as in a job."""

    _resolved: Target | None = None
    """The target that the graph is compiled for; None for that of ``device_id``."""

    def _target(self) -> Target:
        return replace(super()._target(), auto_mixed=True) if self._resolved is None else self._resolved


def _arguments(settings: Settings) -> dict[str, Any]:
    """The ``pipeline:`` section as arguments of Pipeline."""
    return {
        "batch_size": settings.batch_size, "num_threads": threads_of(settings.num_threads), "seed": settings.seed,
        "prefetch_queue_depth": settings.prefetch_cpu if settings.prefetch_cpu == settings.prefetch_gpu
        else {"cpu_size": settings.prefetch_cpu, "gpu_size": settings.prefetch_gpu},
        **settings.shared(),
    }  # fmt: skip
