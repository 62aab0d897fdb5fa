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
"""Prefix of the names of hidden outputs, which are kept although no output needs them. Names in programs and specs
never begin with it."""
DeviceRequest = Literal["auto", "cpu", "mixed", "gpu"]


class Edge(NamedTuple):
    """Output number ``output`` of node ``node``. A tuple, because engines look up batches by edges all the time."""

    node: int
    output: int = 0


Scope = tuple[tuple[Edge, bool], ...]
"""The branches of conditionals that a node belongs to, outermost first: (predicate, branch)."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in a graph. Created by `GraphBuilder` and by passes; never changed."""

    id: int
    """Index in ``Graph.nodes``; inputs always have smaller ones."""
    op: Operator
    inputs: tuple[Edge, ...]
    args: Mapping[str, Edge]
    name: str
    """Name for users and reports, unique in the graph."""
    device: DeviceRequest = "auto"
    seed: int | None = None
    mark: Mark | None = None
    scope: Scope = ()
    samples_of: Edge | None = None
    """For operators without inputs inside a branch: an edge that has the samples of the branch."""
    # filled by passes
    specs: tuple[Spec, ...] = ()
    """Specs of the outputs (filled in by `infer`)."""
    stage: Stage = "cpu"
    """Stage in which the node runs (filled in by `place`)."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Names of the nodes that were joined into this one, by the prefixes of their arguments (filled in by `fuse`)."""

    @property
    def reads(self) -> tuple[Edge, ...]:
        """All edges that this node reads."""
        extra = (self.samples_of,) if self.samples_of is not None and not self.inputs else ()
        return (*self.inputs, *self.args.values(), *extra)

    @property
    def where(self) -> str:
        """Place of the node for messages: ``spec.yaml:12:5: step 3 (resize)`` or ``resize``."""
        return f"{self.mark}: {self.mark.label or self.name}" if self.mark else self.name


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run, and the named edges that leave the graph. Never changed."""

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Edge]

    def node(self, edge: Edge) -> Node:
        """Return the node whose output ``edge`` is."""
        return self.nodes[edge.node]

    def spec(self, edge: Edge) -> Spec:
        """Return the spec of ``edge``, as far as it is known (after infer)."""
        specs = self.nodes[edge.node].specs
        return specs[edge.output] if specs else Spec()
