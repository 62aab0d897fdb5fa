"""Cut the placed graph into the steps that the engine runs, one after the other for every batch. Called by
`compile_graph`.

whole   host nodes that see the whole batch at once: readers, random numbers, all nodes of a few bytes per sample
chunk   host nodes with real work: the batch is cut into chunks of a few samples, and each worker thread takes its
        chunk through all of the nodes while it is in the cache
device  mixed and gpu nodes: one lane (CUDA stream), whole batches, launches only
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
_MAX_TRIVIAL_ELEMENTS = 64
"""Maximum number of elements per sample for which computing the batch costs less than passing it to another thread."""


@dataclass(frozen=True, slots=True)
class Step:
    """Nodes of a plan that run together: a whole batch at a time, in chunks by CPU workers, or on a device. Created by
    `schedule`; never changed."""

    kind: Kind
    nodes: tuple[Node, ...]
    needs: tuple[Edge, ...]
    """Edges (node outputs) that these nodes read and earlier steps compute."""
    gives: tuple[Edge, ...]
    """Edges (node outputs) that these nodes compute and that later steps, or the graph's outputs, need."""

    @property
    def name(self) -> str:
        """Name of the step in reports: ``read``, ``cpu`` or ``gpu``."""
        return {"whole": "read", "chunk": "cpu", "device": "gpu"}[self.kind]


def schedule(graph: Graph) -> tuple[Step, ...]:
    """Divide the nodes of a placed graph into steps, and return these in the order in which they run."""
    kinds: list[Kind] = []
    levels: list[int] = []
    for node in graph.nodes:
        reads = [e.node for e in node.reads]
        kind = _kind(graph, node, [kinds[r] for r in reads])
        kinds.append(kind)
        # Late outputs exist only when their step is complete: nodes that read them belong to a later step.
        levels.append(max((levels[r] + (kinds[r] != kind or is_late(graph.nodes[r])) for r in reads), default=0))
    keys = sorted({(levels[n.id], _ORDER[kinds[n.id]]) for n in graph.nodes})
    late = {(levels[n.id], _ORDER[kinds[n.id]]) for n in graph.nodes if is_late(n)}
    order: dict[tuple[int, int], int] = {}
    for before, key in zip([None, *keys], keys, strict=False):
        # a device node after a launch joins its step if it waits for nothing on the host
        goes_along = before is not None and before[1] == key[1] == _ORDER["device"] and before not in late
        order[key] = len(set(order.values())) - goes_along
    place = {n.id: order[levels[n.id], _ORDER[kinds[n.id]]] for n in graph.nodes}
    steps = []
    for at in range(len(set(order.values()))):
        nodes = tuple(n for n in graph.nodes if place[n.id] == at)
        if (
            kinds[nodes[0].id] == "device"
        ):  # nodes that only pass on data come first, so that the launches follow each other without a gap
            nodes = tuple(sorted(nodes, key=lambda n: bool(n.reads) or n.op.replayable))
        needs = _unique(e for n in nodes for e in n.reads if place[e.node] < at)
        later = [e for n in graph.nodes if place[n.id] > at for e in n.reads]
        gives = _unique(e for e in (*later, *graph.outputs.values()) if place[e.node] == at)
        steps.append(Step(kinds[nodes[0].id], nodes, needs, gives))
    return tuple(steps)


def segments(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Group consecutive steps that the same thread runs. A group is either one device step, or a sequence of host
    steps. A sequence ends after a slow host step, or after one whose chunks worker threads compute. The first group has
    only host steps, and may be empty, because its thread also takes requests for batches."""
    groups: list[tuple[Step, ...]] = [()]
    for step in steps:
        last = groups[-1]
        if step.kind == "device" or (
            last and (last[-1].kind != "whole" or any(n.op.reads_slowly for n in last[-1].nodes))
        ):
            groups.append((step,))
        else:
            groups[-1] = (*last, step)
    return groups


def _unique(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    return tuple(dict.fromkeys(edges))


def _kind(graph: Graph, node: Node, before: list[Kind]) -> Kind:
    if node.stage != "cpu":
        return "device"
    of_device = [e for k, e in zip(before, node.inputs, strict=False) if k == "device"]  # arguments follow the inputs
    if node.op.shape_only and of_device and not any(is_late(graph.node(e)) for e in of_device):
        return "device"  # computed with the launches: no data are copied to the host for it
    if node.op.per_batch:
        return "whole"
    small = all(_small(graph.spec(e)) for e in node.inputs) and all(_small(s) for s in node.specs)
    if (small or not node.inputs) and all(k == "whole" for k in before):
        return "whole"
    return "chunk"


def _small(spec: Spec) -> bool:
    if spec.shape is None or any(d is None for d in spec.shape):
        return False
    return int(np.prod([d for d in spec.shape if d is not None], dtype=np.int64)) <= _MAX_TRIVIAL_ELEMENTS
