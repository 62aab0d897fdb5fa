"""Schedule: cut the placed graph into the steps that the executor runs, one after the other for every batch.

whole   host nodes that see the iteration at once: readers, random numbers, whatever is a few bytes a sample
chunk   host nodes with real work: the batch is cut into chunks of a few samples, and each worker thread takes its
        chunk through all of them while it is in the cache
device  mixed and gpu nodes: one lane (stream), whole batches, launches only
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...ops.base import Spec
from ..graph.nodes import Edge, Graph, Node
from .place import is_late

Kind = Literal["whole", "chunk", "device"]
_ORDER: dict[Kind, int] = {"whole": 0, "chunk": 1, "device": 2}
_LIGHT_ELEMENTS = 64
"""A sample of at most this many elements costs less to compute than to hand to another thread."""


@dataclass(frozen=True, slots=True)
class Step:
    """Nodes that run together."""

    kind: Kind
    nodes: tuple[Node, ...]
    needs: tuple[Edge, ...]
    """Edges made by earlier steps that these nodes read."""
    gives: tuple[Edge, ...]
    """Edges of these nodes that later steps or the outputs read."""

    @property
    def name(self) -> str:
        """For reports: ``cpu`` for both host kinds, ``gpu``."""
        return {"whole": "read", "chunk": "cpu", "device": "gpu"}[self.kind]


def schedule(graph: Graph) -> tuple[Step, ...]:
    """The steps of a placed graph in the order in which they run."""
    kinds: list[Kind] = []
    levels: list[int] = []
    for node in graph.nodes:
        reads = [e.node for e in node.reads]
        kind = _kind(graph, node, [kinds[r] for r in reads])
        kinds.append(kind)
        # Late outputs are there once their step is settled: what reads them belongs to a later one.
        levels.append(max((levels[r] + (kinds[r] != kind or is_late(graph.nodes[r])) for r in reads), default=0))
    keys = sorted({(levels[n.id], _ORDER[kinds[n.id]]) for n in graph.nodes})
    late = {(levels[n.id], _ORDER[kinds[n.id]]) for n in graph.nodes if is_late(n)}
    order: dict[tuple[int, int], int] = {}
    for before, key in zip([None, *keys], keys, strict=False):
        # what is launched after a launch, and waits for nothing of the host's, goes along with it
        goes_along = before is not None and before[1] == key[1] == _ORDER["device"] and before not in late
        order[key] = len(set(order.values())) - goes_along
    place = {n.id: order[levels[n.id], _ORDER[kinds[n.id]]] for n in graph.nodes}
    steps = []
    for at in range(len(set(order.values()))):
        nodes = tuple(n for n in graph.nodes if place[n.id] == at)
        if kinds[nodes[0].id] == "device":  # what is handed over comes first, what is launched for it without a gap
            nodes = tuple(sorted(nodes, key=lambda n: bool(n.reads) or n.op.replayable))
        needs = _unique(e for n in nodes for e in n.reads if place[e.node] < at)
        later = [e for n in graph.nodes if place[n.id] > at for e in n.reads]
        gives = _unique(e for e in (*later, *graph.outputs.values()) if place[e.node] == at)
        steps.append(Step(kinds[nodes[0].id], nodes, needs, gives))
    return tuple(steps)


def segments(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps that one thread takes a batch through: host steps up to one whose chunks must be waited for, or that is
    slow, or a device step. The first segment, which also asks for batches, is of the host, even if there is nothing to
    do."""
    found: list[tuple[Step, ...]] = [()]
    for step in steps:
        last = found[-1]
        if step.kind == "device" or (
            last and (last[-1].kind != "whole" or any(n.op.reads_slowly for n in last[-1].nodes))
        ):
            found.append((step,))
        else:
            found[-1] = (*last, step)
    return found


def _unique(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    return tuple(dict.fromkeys(edges))


def _kind(graph: Graph, node: Node, before: list[Kind]) -> Kind:
    if node.stage != "cpu":
        return "device"
    of_device = [e for k, e in zip(before, node.inputs, strict=False) if k == "device"]  # after inputs come arguments
    if node.op.shape_only and of_device and not any(is_late(graph.node(e)) for e in of_device):
        return "device"  # beside the launches: nothing is brought to the host for it
    if node.op.per_batch:
        return "whole"
    small = all(_small(graph.spec(e)) for e in node.inputs) and all(_small(s) for s in node.specs)
    if (small or not node.inputs) and all(k == "whole" for k in before):
        return "whole"
    return "chunk"


def _small(spec: Spec) -> bool:
    if spec.shape is None or any(d is None for d in spec.shape):
        return False
    return int(np.prod([d for d in spec.shape if d is not None], dtype=np.int64)) <= _LIGHT_ELEMENTS
