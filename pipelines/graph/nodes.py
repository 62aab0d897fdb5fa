"""The graph: operators and the edges between them. YAML and Python build the same one (`builder`).

A graph is immutable; passes take one and return another. Conditionals are part of it: ``Split`` sends every sample of
an edge to one of two branches by a predicate, ``Merge`` brings the branches' results back into the samples' order, and
the nodes between carry their branch as ``scope``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...ops.base import Operator, Spec, Stage
from ..problems import Mark

KEPT = "*"
"""Prefix of the names of hidden outputs, which are kept although no output needs them. No name of a program's or a
spec's begins so."""
DeviceRequest = Literal["auto", "cpu", "mixed", "gpu"]


class Edge(NamedTuple):
    """Output ``output`` of node ``node``. (A tuple, because engines look batches up by edges all the time.)"""

    node: int
    output: int = 0


Scope = tuple[tuple[Edge, bool], ...]
"""The branches a node stands in, outermost first: (predicate, which branch)."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in the graph."""

    id: int
    """Place in ``Graph.nodes``; inputs always have smaller ones."""
    op: Operator
    inputs: tuple[Edge, ...]
    args: Mapping[str, Edge]
    name: str
    """For people and reports, unique in the graph."""
    device: DeviceRequest = "auto"
    seed: int | None = None
    mark: Mark | None = None
    scope: Scope = ()
    samples_of: Edge | None = None
    """Inside a branch: an edge whose samples are the branch's (for operators without inputs)."""
    # filled by passes
    specs: tuple[Spec, ...] = ()
    """The outputs (from infer)."""
    stage: Stage = "cpu"
    """Where it runs (place)."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The names of the nodes that were joined to this one, by the prefixes of their arguments (fuse)."""

    @property
    def reads(self) -> tuple[Edge, ...]:
        """Every edge that this node needs."""
        extra = (self.samples_of,) if self.samples_of is not None and not self.inputs else ()
        return (*self.inputs, *self.args.values(), *extra)

    @property
    def where(self) -> str:
        """For messages: ``spec.yaml:12:5: step 3 (resize)`` or ``resize``."""
        return f"{self.mark}: {self.mark.label or self.name}" if self.mark else self.name


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run, and the named edges that leave the graph."""

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Edge]

    def node(self, edge: Edge) -> Node:
        """The node that makes ``edge``."""
        return self.nodes[edge.node]

    def spec(self, edge: Edge) -> Spec:
        """The facts known of ``edge`` (after infer)."""
        specs = self.nodes[edge.node].specs
        return specs[edge.output] if specs else Spec()
