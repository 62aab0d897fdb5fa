"""Run the last nodes of a device step as one recorded program (`ops.gpu.launch_program`).

Used by `run_nodes` when a device step is launched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

from ....ops.batch import Batch, Samples
from ....ops.context import Context
from ....ops.gpu.launch_program import ProgramCache, programs_of
from ...graph.nodes import Edge, Node
from .node_pass import Env, NodePass, context_of


@dataclass(slots=True)
class RecordedTail:
    """The last nodes of a device step, if their kernel launches can be recorded and then replayed together. The first
    two batches of a shape run node by node. From the third on, the recorded launches are replayed as one program
    (`ops.gpu.launch_program`). Created by `run_nodes` for each pass, through `recorded_tail_of`; used by the launching
    thread."""

    nodes: Sequence[Node]
    first: int
    """Index in ``nodes`` of the first node that belongs to the tail, which is replayed as one program."""
    node_pass: NodePass
    programs: ProgramCache
    samples: Samples
    inputs: dict[Edge, Batch] = field(default_factory=dict)

    def run(self, env: Env, keep: Collection[Edge]) -> bool:
        """Replay the recorded launches of the tail as a program and add its outputs to ``env``. Return False if there
        is no program for batches of these shapes: `run_nodes` then runs the nodes one by one and calls `record`."""
        run, nodes = self.node_pass, self.nodes[self.first :]
        ids = {n.id for n in nodes}
        self.inputs = {e: env[e] for n in nodes for e in n.inputs if e.node not in ids}
        samples = next(iter(self.inputs.values())).samples if self.inputs else run.samples
        run.recorded = None
        if len(samples) == 0 or any(b.samples is not samples for b in self.inputs.values()):
            return False
        if any(not n.inputs for n in nodes) and (run.dropped or samples is not run.samples):
            return False
        self.samples = samples
        run.recorded = []
        if run.mark_device is not None:
            run.mark_device(nodes[0], len(samples), 0, 0, False)

        def context(node: Node) -> Context:
            return context_of(node, "gpu", samples, env, run)

        before = run.state()
        replayed = self.programs.run(run.device, self._key, self.inputs, samples, context)
        if replayed is None:
            run.undo(before)
            return False
        run.recorded = None
        outputs, sizes = replayed
        env |= cast("Env", outputs)
        if run.mark_whole is not None:
            run.mark_whole(nodes, len(samples), sizes)
        return True

    def record(self, keep: Collection[Edge]) -> None:
        """Record the launches of the tail, whose nodes have just run one by one, to replay them for later batches.
        ``keep``: the node outputs that are outputs of the program."""
        run, recorded = self.node_pass, self.node_pass.recorded
        run.recorded = None
        if recorded is not None and len(recorded) == len(self.nodes) - self.first and not run.dropped:
            self.programs.record(run.device, self._key, self.inputs, self.samples, recorded, keep)

    @property
    def _key(self) -> tuple[int, int]:
        return self.nodes[self.first].id, len(self.nodes)


def start_of_tail(nodes: Sequence[Node]) -> int:
    """Return the index in ``nodes`` from which on every node can be replayed as part of one program: its launches can
    be repeated (`replayable`), or it depends on shapes only (`shape_only`)."""
    first, read = len(nodes), set[int]()
    while first:
        node = nodes[first - 1]
        from_shapes = node.op.shape_only and node.id not in read
        if not (from_shapes or (node.stage == "gpu" and node.op.replayable)) or (
            node.samples_of is not None and not node.inputs
        ):
            break
        read |= {e.node for e in node.reads}
        first -= 1
    return first


def recorded_tail_of(nodes: Sequence[Node], run: NodePass) -> RecordedTail | None:
    """Return the last ``nodes`` that can be replayed as one program; None if there are none, or if ``run`` cannot be
    replayed."""
    if run.device is None or run.emulate or run.attempt or len(run.draws) > 1 or not hasattr(run.device, "launches"):
        return None
    first = start_of_tail(nodes)
    return RecordedTail(nodes, first, run, programs_of(run.device), run.samples) if first < len(nodes) else None
