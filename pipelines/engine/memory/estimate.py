"""Estimate how much memory a step needs for each sample, from headers, declared shapes and sizes of inputs.

Called by `BatchBudget`, which admits and cuts batches by these estimates.
"""

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
"""For each output of a step that is needed later: its dtype, and the number of elements per sample (int64[N])."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Estimated memory of one step: most fields have one value in bytes per sample (int64[N]). ``certain`` is a lower
    bound, all other fields are estimates. Created by `estimate_memory`."""

    peak: I64
    """Maximum bytes in use at any time while the step runs, without the step's inputs."""
    kept: I64
    """Bytes of the results that are needed after the step, by later steps or as outputs."""
    certain: I64
    """Lower bound in bytes: the largest need of operators that know it exactly, for example from image headers."""
    largest_operator: str
    """Name of the operator whose need in bytes is ``certain``."""
    peak_total: int
    """Sum of ``peak`` over the samples. Stored, like `kept_total`, so that the thread that launches kernels need not
    add it up."""
    kept_total: int
    """Sum of ``kept`` over the samples."""
    outputs: Outputs = ()
    """Estimated dtype and size of the results that are needed after the step."""

    @property
    def copied(self) -> int:
        """Bytes of results that are in memory twice while chunks are joined. The results in `outputs` do not count,
        because chunks write them directly into the batch's array."""
        return max(0, self.kept_total - sum(int(elements.sum()) * dtype.itemsize for dtype, elements in self.outputs))

    def part(self, low: int, high: int) -> MemoryEstimate:
        """Return the estimate for the samples [low, high) only."""
        peak, kept = self.peak[low:high], self.kept[low:high]
        outputs = tuple((dtype, elements[low:high]) for dtype, elements in self.outputs)
        return MemoryEstimate(
            peak, kept, self.certain[low:high], self.largest_operator, int(peak.sum()), int(kept.sum()), outputs
        )


Facts = tuple[tuple[Edge, Spec], ...]
"""Facts about the batches that a step reads: for each edge (output of a node) its shape, type and layout, as far as
they are known."""


def facts_of(env: Mapping[Edge, Batch]) -> Facts:
    """Return type and layout of the batches in ``env``, and the shape if all samples have the same."""
    facts = []
    for edge, b in env.items():
        shape = tuple(b.shapes[0].tolist()) if b.is_uniform else (None,) * b.ndim
        facts.append((edge, Spec(shape, from_numpy(b.dtype), b.layout)))
    return tuple(facts)


def inferred(nodes: Sequence[Node], facts: Facts) -> dict[Edge, Spec]:
    """Return the specs (dtype, shape, layout) of all outputs of ``nodes``, inferred from the ``facts`` about the
    batches that they read. The batches count, not the graph, because programs feed types and shapes that no graph
    declares."""
    specs = dict(facts)
    for node in nodes:
        declared = (node.specs[k] if k < len(node.specs) else Spec() for k in range(node.op.num_outputs))
        inferred_here: Sequence[Spec] = ()
        if node.inputs and all(e in specs for e in node.inputs):
            with contextlib.suppress(Exception):  # the kernel reports the error
                result = node.op.infer(*(specs[e] for e in node.inputs))
                inferred_here = (result,) if isinstance(result, Spec) else result
        for k, spec in enumerate(declared):
            specs[Edge(node.id, k)] = inferred_here[k] if k < len(inferred_here) else spec
    return specs


class _Sizes:
    """Numbers of elements, item sizes and dtypes of batches: ``env`` and added outputs. Created for one estimate."""

    def __init__(self, env: Mapping[Edge, Batch], samples: Samples, specs: Mapping[Edge, Spec] | None) -> None:
        self._env, self._samples, self._specs = env, samples, specs
        self.elements: dict[Edge, I64 | int] = {}
        """Elements of each sample, or one number if it is the same for all samples."""
        self._item_bytes = {e: b.dtype.itemsize for e, b in env.items()}
        self.types = {e: b.dtype for e, b in env.items()}

    def of_inputs(self, node: Node) -> list[I64 | int]:
        """Return the numbers of elements of the node's inputs."""
        for e in node.inputs:
            if e not in self.elements:
                self.elements[e] = _spread(self._env[e].sizes, self._env[e].samples, self._samples)
        return [self.elements[e] for e in node.inputs]

    def add_output(self, node: Node, number: int, decoded: I64 | int | None) -> I64 | int:
        """Add an output of a node, and return its bytes. ``decoded``: its elements according to the headers of encoded
        inputs; None if there are no headers."""
        edge = Edge(node.id, number)
        spec = node.specs[number] if number < len(node.specs) else Spec()
        spec = spec if self._specs is None else self._specs.get(edge, spec)
        if spec.dtype is not None:
            self.types[edge] = to_numpy(spec.dtype)
            self._item_bytes[edge] = self.types[edge].itemsize
        else:
            if node.inputs and node.inputs[0] in self.types:
                self.types[edge] = self.types[node.inputs[0]]
            self._item_bytes[edge] = max((self._item_bytes[e] for e in node.inputs), default=1)
        if isinstance(node.op, Merge):
            self.elements[edge] = sum(self.of_inputs(node))
        elif spec.shape is not None and (fixed := [d for d in spec.shape if d is not None]) == list(spec.shape):
            self.elements[edge] = math.prod(fixed)
        else:
            self.elements[edge] = _largest(self.of_inputs(node)) if decoded is None else decoded
        return self.elements[edge] * self._item_bytes[edge]


def estimate_memory(nodes: Sequence[Node], gives: Sequence[Edge], env: Mapping[Edge, Batch], samples: Samples,
            emulate: bool = False, specs: Mapping[Edge, Spec] | None = None) -> MemoryEstimate:  # fmt: skip
    """Estimate the memory that ``nodes`` will need for ``samples``, given the input batches in ``env``. ``gives``: the
    node outputs that are needed afterwards. ``specs``: the specs of the outputs, as `inferred` returns them."""
    n = len(samples)
    sizes = _Sizes(env, samples, specs)
    live: dict[Edge, I64 | int] = {}
    peaks: list[I64 | int] = []
    certain: I64 | int = 0
    largest_operator = ""
    last = {e: node.id for node in nodes for e in node.reads}
    for node in nodes:
        headers = _headers(node, env, emulate)
        temporary: I64 | int = 0
        decoded: I64 | int | None = None
        if headers is not None:
            its = env[node.inputs[0]].samples
            decoded, temporary = (_spread(count, its, samples) for count in headers)
        for k in range(node.op.num_outputs):
            nbytes = sizes.add_output(node, k, decoded)
            if not isinstance(node.op, Split):  # its outputs are views
                live[Edge(node.id, k)] = nbytes
        peaks.append(sum(live.values()) + temporary)
        if headers is not None:
            need = peaks[-1] if len(live) == 1 else live[Edge(node.id)] + temporary
            if not largest_operator:
                largest_operator, certain = node.name, need
            elif np.any(need > certain):
                largest_operator, certain = node.name, np.maximum(certain, need)
        for e in node.reads:
            if last[e] == node.id and e not in gives:
                live.pop(e, None)
    peak, kept = _largest(peaks), sum(live[e] for e in gives if e in live)
    outputs = tuple((sizes.types[e], _each(n, sizes.elements[e])) for e in gives if e in live and e in sizes.types)
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
    """Expand ``values`` of the samples ``theirs`` to all of ``samples``; 0 for samples without a value."""
    if theirs is samples or len(theirs) == len(samples):
        return values
    all_values = np.zeros(len(samples), np.int64)
    at = np.searchsorted(samples.slot, theirs.slot)
    inside = at < len(samples)
    all_values[at[inside]] = values[inside]
    return all_values
