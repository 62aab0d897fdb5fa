"""Estimates the memory that a step will hold for each sample, from headers, declared shapes and sizes of inputs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....ops.base import Spec
from ....ops.batch import I64, Batch, Samples
from ....ops.types import from_numpy, to_numpy
from ...graph.conditionals import Merge, Split
from ...graph.nodes import Edge, Node

Outputs = tuple[tuple[np.dtype[Any], I64], ...]
"""Type, and elements for each sample, of outputs."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes for each of N samples, int64[N] each; estimates, but for ``certain``."""

    peak: I64
    """Held at a time while the step runs, its inputs not counted."""
    kept: I64
    """Held for later steps and outputs."""
    certain: I64
    """Need of the most demanding operator that knows its need, from image headers for example."""
    largest_operator: str
    """Name of that operator."""
    peak_total: int
    """Sum of ``peak``; this and the next are computed by the estimating thread, to spare the one that launches."""
    kept_total: int
    """Sum of ``kept``."""
    outputs: Outputs = ()
    """The outputs of the step, as they are likely to be."""

    @property
    def copied(self) -> int:
        """Bytes of results that are in memory twice while chunks are joined. Chunks write `outputs` to their final
        place, so these are not copied."""
        return max(0, self.kept_total - sum(int(elements.sum()) * dtype.itemsize for dtype, elements in self.outputs))

    def part(self, low: int, high: int) -> MemoryEstimate:
        """For the samples [low, high)."""
        peak, kept = self.peak[low:high], self.kept[low:high]
        outputs = tuple((dtype, elements[low:high]) for dtype, elements in self.outputs)
        return MemoryEstimate(
            peak, kept, self.certain[low:high], self.largest_operator, int(peak.sum()), int(kept.sum()), outputs
        )


Facts = tuple[tuple[Edge, Spec], ...]
"""The known facts of the batches that a step takes."""


def facts_of(env: Mapping[Edge, Batch]) -> Facts:
    """The facts about batches that are there: their types, and extents where all samples have the same."""
    found = []
    for edge, b in env.items():
        shape = tuple(b.shapes[0].tolist()) if b.is_uniform else (None,) * b.ndim
        found.append((edge, Spec(shape, from_numpy(b.dtype), b.layout)))
    return tuple(found)


def inferred(nodes: Sequence[Node], facts: Facts) -> dict[Edge, Spec]:
    """The specs of outputs, given batches that are there: operators know more of them than of the graph, to
    which programs feed batches of types and shapes that they do not declare."""
    known = dict(facts)
    for node in nodes:
        declared = (node.specs[k] if k < len(node.specs) else Spec() for k in range(node.op.num_outputs))
        said: Sequence[Spec] = ()
        if node.inputs and all(e in known for e in node.inputs):
            with contextlib.suppress(Exception):  # the kernel tells what is wrong
                given = node.op.infer(*(known[e] for e in node.inputs))
                said = (given,) if isinstance(given, Spec) else given
        for k, spec in enumerate(declared):
            known[Edge(node.id, k)] = said[k] if k < len(said) else spec
    return known


def estimate_memory(nodes: Sequence[Node], gives: Sequence[Edge], env: Mapping[Edge, Batch], samples: Samples,
            emulate: bool = False, specs: Mapping[Edge, Spec] | None = None) -> MemoryEstimate:  # fmt: skip
    """The memory that ``nodes`` will hold for ``samples``, given the batches of ``env``. ``specs``: of their outputs,
    see `inferred`."""
    n = len(samples)
    elements: dict[Edge, I64 | int] = {}  # one number where it is that of all samples
    live: dict[Edge, I64 | int] = {}
    peaks: list[I64 | int] = []
    certain: I64 | int = 0
    largest_operator = ""
    last = {e: node.id for node in nodes for e in node.reads}
    item = {e: b.dtype.itemsize for e, b in env.items()}
    types = {e: b.dtype for e, b in env.items()}

    def of(edges: Sequence[Edge]) -> list[I64 | int]:
        for e in edges:
            if e not in elements:
                elements[e] = _spread(env[e].sizes, env[e].samples, samples)
        return [elements[e] for e in edges]

    for node in nodes:
        found = _headers(node, env, emulate)
        besides: I64 | int = 0
        if found is not None:
            its = env[node.inputs[0]].samples
            besides = _spread(found[1], its, samples)
        for k in range(node.op.num_outputs):
            edge = Edge(node.id, k)
            spec = node.specs[k] if k < len(node.specs) else Spec()
            spec = spec if specs is None else specs.get(edge, spec)
            if spec.dtype is not None:
                types[edge] = to_numpy(spec.dtype)
            elif node.inputs and node.inputs[0] in types:
                types[edge] = types[node.inputs[0]]
            item[edge] = to_numpy(spec.dtype).itemsize if spec.dtype else max((item[e] for e in node.inputs), default=1)
            if isinstance(node.op, Merge):
                elements[edge] = sum(of(node.inputs))
            elif spec.shape is not None and (fixed := [d for d in spec.shape if d is not None]) == list(spec.shape):
                elements[edge] = math.prod(fixed)
            elif found is not None:
                elements[edge] = _spread(found[0], its, samples)
            else:
                elements[edge] = _largest(of(node.inputs))
            if not isinstance(node.op, Split):  # whose outputs are views
                live[edge] = elements[edge] * item[edge]
        peaks.append(sum(live.values()) + besides)
        if found is not None:
            need = peaks[-1] if len(live) == 1 else live[Edge(node.id)] + besides
            if not largest_operator:
                largest_operator, certain = node.name, need
            elif np.any(need > certain):
                largest_operator, certain = node.name, np.maximum(certain, need)
        for e in node.reads:
            if last[e] == node.id and e not in gives:
                live.pop(e, None)
    peak, kept = _largest(peaks), sum(live[e] for e in gives if e in live)
    outputs = tuple((types[e], _each(n, elements[e])) for e in gives if e in live and e in types)
    return MemoryEstimate(
        _each(n, peak), _each(n, kept), _each(n, certain), largest_operator, _total(n, peak), _total(n, kept), outputs
    )


def _largest(values: Sequence[I64 | int]) -> I64 | int:
    largest: I64 | int = values[0] if values else 0
    for value in values[1:]:
        largest = np.maximum(largest, value)
    return largest


def _each(n: int, values: I64 | int) -> I64:
    if isinstance(values, np.ndarray):
        return values
    each = np.empty(n, np.int64)
    each[:] = values
    return each


def _total(n: int, values: I64 | int) -> int:
    return int(values.sum()) if isinstance(values, np.ndarray) else n * int(values)


def _headers(node: Node, env: Mapping[Edge, Batch], emulate: bool) -> tuple[I64, I64] | None:
    if not node.inputs or any(e not in env for e in node.inputs):
        return None
    return node.op.estimate_memory("cpu" if emulate else node.stage, *(env[e] for e in node.inputs))


def _spread(values: I64, theirs: Samples, samples: Samples) -> I64:
    """Values of some of ``samples`` as values of all; 0 for the others."""
    if theirs is samples or len(theirs) == len(samples):
        return values
    whole = np.zeros(len(samples), np.int64)
    at = np.searchsorted(samples.slot, theirs.slot)
    inside = at < len(samples)
    whole[at[inside]] = values[inside]
    return whole
