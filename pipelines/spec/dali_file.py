"""DALI's serialized pipelines as specs: ``pipeline.dali`` is accepted wherever a spec's path is."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ...ops.errors import SpecError
from ..compile.plan import assign_seeds
from ..graph.builder import GraphBuilder
from ..graph.conditionals import Split, without_conditions
from ..graph.nodes import Edge, Graph
from ..graph.renumber import renumber
from ..problems import Mark, Problems
from .serialized.definition import LARGEST, SavedPipeline, parse
from .serialized.graph import convert
from .text import Value
from .text import parse as parse_yaml
from .to_yaml import to_yaml


def read_dali_file(path: str | os.PathLike[str], problems: Problems) -> Value | None:
    """Read the serialized pipeline of DALI at ``path``, and return it as the document of a spec. None if there are
    problems, which are added to ``problems``."""
    name = os.fspath(path)
    try:
        return parse_yaml(spec_text(read_bytes(path)), name, problems)
    except SpecError as e:
        problems.add(Mark(name, 1, 1), str(e))
        return None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a file. At most one byte more than the largest accepted size is read. Raises SpecError if
    it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST + 1)
    except OSError as e:
        raise SpecError(f"{os.fspath(path)} cannot be read: {e.strerror}") from None


def spec_text(data: bytes) -> str:
    """Convert a serialized pipeline of DALI to the text of a spec; outputs are ``output0``, ``output1``, ...

    Raises SpecError, which names the operator that cannot be converted.
    """
    saved = parse(data)
    builder, outputs = convert(saved)
    graph = without_conditions(builder.build({f"output{k}": e for k, e in outputs.items()}))
    return to_yaml(_sources_first(graph, saved.seed), sections={"pipeline": _section(saved)})


def _sources_first(graph: Graph, seed: int | None) -> Graph:
    """Return ``graph``. If it has conditionals, operators without inputs come before all others, because they run for
    the whole batch, although DALI stores them in a branch. Seeds are assigned before, in DALI's order."""
    if not any(isinstance(n.op, Split) for n in graph.nodes):
        return graph
    if seed is not None:
        seeds = assign_seeds(graph, seed)
        graph = replace(graph, nodes=tuple(replace(n, seed=seeds.get(n.id, n.seed)) for n in graph.nodes))
    return renumber(sorted(graph.nodes, key=lambda n: bool(n.reads or n.scope)), graph.outputs)


def graph_of(data: bytes) -> tuple[GraphBuilder, dict[str, Edge], dict[str, Any]]:
    """Convert a serialized pipeline of DALI to a graph in a builder, its outputs by number, and the arguments of its
    Pipeline.

    Raises SpecError.
    """
    saved = parse(data)
    builder, outputs = convert(saved)
    cpu, gpu = saved.cpu_queue, saved.gpu_queue
    arguments = {
        "batch_size": max(saved.batch_size, 0), "num_threads": saved.num_threads if saved.num_threads > 0 else None,
        "device_id": saved.device_id if saved.device_id >= 0 else None, "seed": saved.seed,
        "prefetch_queue_depth": max(cpu, 1) if cpu == gpu else {"cpu_size": max(cpu, 1), "gpu_size": max(gpu, 1)},
    }  # fmt: skip
    return builder, outputs, arguments


def _section(saved: SavedPipeline) -> dict[str, Any]:
    """Return the settings of DALI's pipeline as the ``pipeline:`` section of a spec."""
    section: dict[str, Any] = {}
    if saved.batch_size > 0:
        section["batch_size"] = saved.batch_size
    if saved.num_threads > 0:
        section["num_threads"] = saved.num_threads
    section["device"] = f"gpu:{saved.device_id}" if saved.device_id >= 0 else "cpu"
    if saved.seed is not None and saved.seed >= 0:
        section["seed"] = saved.seed
    cpu, gpu = max(saved.cpu_queue, 1), max(saved.gpu_queue, 1)
    if (cpu, gpu) != (2, 2):
        section["prefetch_queue_depth"] = cpu if cpu == gpu else {"cpu_size": cpu, "gpu_size": gpu}
    return section
