"""Plain: nodes called one after the other for a whole batch, with nothing around them.

Of a batch of a few numbers, most of the time is what the engine does for batches that fail, or that memory does not
hold. Here nothing of the kind is done: a batch that would need it is left as it was, and goes the other way, which
tells its samples apart.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ....ops.base import Operator, outputs_of
from ....ops.batch import host_empty
from ....ops.context import streams_of
from ....readers.base import Reader
from ....readers.external_source import ExternalSource, FedBatches
from ...compile.schedule import Step
from ...graph.conditionals import Merge, Split
from ...graph.nodes import Edge, Node
from ..in_flight import InFlightBatch
from ..nodes.node_pass import Env
from ..services import Services
from .contexts import Contexts

_SMALL = 4 << 20
"""Bytes of the arrays of a batch that the host computes."""
_MAX_FAILURES = 8
"""Batches in a row that were left as they were."""


class TooLargeError(Exception):
    """A kernel asks for more memory than a batch of a few numbers needs."""


def allows_fast_path(node: Node) -> bool:
    """Its kernel may be called for a whole batch, and called again where that fails."""
    op = node.op
    if (
        node.scope
        or node.samples_of
        or node.stage == "mixed"
        or op.output_after_sync
        or isinstance(op, (Split, Merge, Reader))
    ):
        return False
    return op.shared and not (op.decodes or op.reads_slowly)


AGAIN = "small batches: computed again, so that samples that fail are told apart"
"""Reason for a fallback, in reports."""


class FastPath:
    """Some nodes; one thread owns it."""

    def __init__(self, services: Services, nodes: Sequence[Node], keep: Collection[Edge]) -> None:
        """``keep``: the outputs that are needed afterwards."""
        self._services, self._keep = services, keep
        self._nodes = [(n, n.stage, [Edge(n.id, k) for k in range(n.op.num_outputs)]) for n in nodes]
        last = {e: n.id for n in nodes for e in n.reads}
        self._frees = {n.id: [e for e in n.reads if last[e] == n.id and e not in keep] for n in nodes}
        self._contexts = Contexts(services, _small)
        self.is_applicable = all(map(allows_fast_path, nodes))
        """They may be called so."""

    def run(self, it: InFlightBatch, env: Env, lane: Any = None) -> list[tuple[int, int, float]] | None:
        """Add their outputs to ``env``. For each node the bytes that it takes and gives, and when it ended; None where
        one of them has more to say than its outputs. Raises what kernels raise."""
        found = None
        try:
            found = self._run(it, env, lane)
        finally:
            if found is None:
                self._contexts.forget()
            else:
                self._contexts.counts()
        return found

    def _run(self, it: InFlightBatch, env: Env, lane: Any) -> list[tuple[int, int, float]] | None:
        samples, found = it.samples, list[tuple[int, int, float]]()
        for node, stage, edges in self._nodes:
            inputs = [env[e] for e in node.inputs]
            if stage == "gpu":
                moved = 1 if node.op.host_arguments else len(inputs)
                inputs[:moved] = [lane.to_device(b) for b in inputs[:moved]]
            drawn = None
            if not inputs and not node.args and stage == "cpu" and type(node.op).drawn is not Operator.drawn:
                seed = self._services.plan.seeds.get(node.id, 0)
                drawn = node.op.drawn(streams_of(seed, samples, self._services.options.rng), samples)
            if drawn is not None:
                outputs: Sequence[Any] = (drawn,)
            else:
                ctx = self._contexts.of(node, stage, it, env, lane)
                outputs = outputs_of(node.op.kernel(stage)(ctx, *inputs))
                if ctx.rejects or ctx.checks or ctx.finish is not None:
                    return None
            if len(outputs) != len(edges):
                return None
            given = 0
            for edge, batch in zip(edges, outputs, strict=True):
                if len(batch.offsets) != len(samples.slot):
                    return None
                env[edge] = batch if batch.samples is samples else batch.replace(samples=samples)
                given += batch.nbytes
            found.append((sum([b.nbytes for b in inputs]) if inputs else 0, given, time.perf_counter()))
            for e in self._frees[node.id]:
                env.pop(e, None)
        return found


class FastHostStep:
    """A step of the host, of a few numbers a batch: sources, draws, arithmetic."""

    def __init__(self, services: Services, name: str, step: Step) -> None:
        self._services, self._name, self._gives = services, name, step.gives
        sources = [n for n in step.nodes if isinstance(n.op, ExternalSource) and n.stage == "cpu"]
        nodes = [n for n in step.nodes if n not in sources]
        self._sources: list[tuple[Node, FedBatches, list[Edge]]] = [
            (n, services.feed.states[n.id], [Edge(n.id, k) for k in range(n.op.num_outputs)]) for n in sources
        ]
        self._nodes, self._needs = nodes, step.needs
        self._metadata_only = all(n.op.metadata_only for n in nodes)
        self._plain = FastPath(services, nodes, step.gives)
        self._in_vain = 0
        self.is_applicable = (
            self._plain.is_applicable
            and services.stats.spans is None
            and all(n.stage == "cpu" for n in nodes)
            and (services.plan.target.device != "null")
        )
        """Batches may be tried."""

    def run(self, it: InFlightBatch) -> bool:
        """Take the batch through the step; False, and nothing is done, where it needs more."""
        if it.draws or it.dropped or not len(it.samples.slot) or self._in_vain > _MAX_FAILURES:
            return False
        self._in_vain += 1
        began, taken, env = time.perf_counter(), 0, dict[Edge, Any]()
        for e in self._needs:
            batch = env[e] = it.env[e]
            taken += batch.data.nbytes
        sources: list[tuple[int, int, float]] = []
        for _, state, edges in self._sources:
            outputs = state.first(it.request.start, len(it.samples.slot))
            if outputs is None:
                return False
            for edge, batch in zip(edges, outputs, strict=True):
                if not batch.on_host:
                    return False
                env[edge] = batch.with_data(batch.data, it.samples, batch.nbytes)
                taken += batch.data.nbytes
            sources.append((0, sum([b.nbytes for b in outputs]), time.perf_counter()))
        if taken > _SMALL and not self._metadata_only:
            return False
        try:
            found = self._plain.run(it, env)
        except TooLargeError:
            return False
        except Exception:  # the other way finds the samples that raise it
            self._services.fell_back(AGAIN, len(it.samples.slot))
            return False
        if found is None:
            return False
        for _, state, _ in self._sources:
            state.drop()
        for e in self._gives:
            it.env[e] = env[e]
        self._in_vain = 0
        self._services.stats.note(self._took, len(it.samples.slot), began, sources + found)
        return True

    def _took(self, samples: int, began: float, found: Sequence[tuple[int, int, float]]) -> None:
        stats = self._services.stats
        nodes = [n for n, *_ in self._sources] + self._nodes
        ends = pairwise([began, *(ended for *_, ended in found)])
        for node, (taken, given, _), (start, end) in zip(nodes, found, ends, strict=True):
            stats.called(node, samples, taken, given, end - start)
        stats.busy(self._name, found[-1][2] - began if found else 0.0)


def _small(n: int, dtype: Any) -> Any:
    """Memory for a few numbers."""
    if n * np.dtype(dtype).itemsize > _SMALL:
        raise TooLargeError
    return host_empty(n, dtype)
