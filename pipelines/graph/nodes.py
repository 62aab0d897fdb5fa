"""A graph of operators and the edges between them. YAML and Python build the same graph (`builder`).

A graph is immutable; passes take one and return another. Conditionals are part of it: ``Split`` sends every sample of
an edge to one of two branches by a predicate, ``Merge`` brings the branches' results back into the samples' order, and
the nodes in between have their branch as ``scope``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...ops.base import Operator, Spec, Stage
from ..problems import Mark

KEPT = "*"
"""Prefix of the names of hidden outputs: edges that are computed although no output of the user depends on them. Names
in programs and specs never begin with it."""
DeviceRequest = Literal["auto", "cpu", "mixed", "gpu"]


class Edge(NamedTuple):
    """One output of a node: output number ``output`` of the node with the id ``node``. It is a tuple because engines
    look up batches by edges all the time."""

    node: int
    output: int = 0


Scope = tuple[tuple[Edge, bool], ...]
"""The branches of conditionals to which a node belongs, outermost first. Each is the edge of the predicate, and its
value in the branch."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in a graph. Created by `GraphBuilder` and by compiler passes; never changed."""

    id: int
    """Index of the node in ``Graph.nodes``; the nodes that it reads have smaller ones."""
    op: Operator
    inputs: tuple[Edge, ...]
    args: Mapping[str, Edge]
    name: str
    """Name of the node for users and reports, unique in the graph."""
    device: DeviceRequest = "auto"
    seed: int | None = None
    mark: Mark | None = None
    scope: Scope = ()
    samples_of: Edge | None = None
    """For a node without inputs inside a branch of a conditional: an edge with the samples of that branch."""
    # filled by passes
    specs: tuple[Spec, ...] = ()
    """Specs (dtype, shape, layout) of the outputs; filled in by the pass `infer`."""
    stage: Stage = "cpu"
    """Where the node runs: cpu, mixed or gpu; filled in by the pass `place`."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """If the pass `fuse` joined several nodes into this one: their names, by the prefixes of their arguments."""

    @property
    def reads(self) -> tuple[Edge, ...]:
        """All edges that this node reads: inputs, arguments and `samples_of`."""
        extra = (self.samples_of,) if self.samples_of is not None and not self.inputs else ()
        return (*self.inputs, *self.args.values(), *extra)

    @property
    def reads_to_gpu(self) -> bool:
        """Whether the node is a reader that runs in host threads although its ``device`` is gpu: operators that take
        its output run on the GPU."""
        return self.device == "gpu" and "gpu" not in self.op.stages

    @property
    def where(self) -> str:
        """Place of the node for messages: ``spec.yaml:12:5: step 3 (resize)``, or only ``resize``."""
        return f"{self.mark}: {self.mark.label or self.name}" if self.mark else self.name


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of operators: nodes, in an order in which they can run, and outputs (edges) by name. Immutable."""

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Edge]

    def node(self, edge: Edge) -> Node:
        """Return the node whose output ``edge`` is."""
        return self.nodes[edge.node]

    def spec(self, edge: Edge) -> Spec:
        """Return the spec (dtype, shape, layout) of ``edge``, as far as the pass `infer` knows it."""
        specs = self.nodes[edge.node].specs
        return specs[edge.output] if specs else Spec()
