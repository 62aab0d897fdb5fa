"""Fast path for small batches: each kernel is called once for the whole batch, without error isolation or memory
accounting.

For a batch of a few numbers, the engine spends most of its time on machinery for batches that fail or exceed the memory
budget. The fast path skips it. If a batch turns out to need it, `FastPath.run` returns None and the batch in flight is
left unchanged; its caller then takes the regular path (`nodes.guarded`), which isolates the samples that fail.
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

_MAX_BYTES = 4 << 20
"""Maximum bytes of all input batches of a step together, and of each host array that a kernel allocates. Larger batches
are computed with error isolation."""
_MAX_FAILURES = 8
"""Maximum number of consecutive batches that may fail on the fast path before it is no longer tried. A batch that
failed is computed again, with error isolation."""


class TooLargeError(Exception):
    """A kernel tried to allocate more than `_MAX_BYTES` bytes, the limit of the fast path."""


def allows_fast_path(node: Node) -> bool:
    """Return whether the kernel of ``node`` may be called for a whole batch without error isolation. If that call
    fails, the kernel is called again for the same batch, with error isolation."""
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
"""Text under which reports count samples that were computed again with error isolation, after a failure."""


class FastPath:
    """A fixed list of nodes, whose kernels are called once per batch without isolating samples that fail. Created by
    `ReplayedStep` and `FastHostStep`; used by one thread only."""

    def __init__(self, services: Services, nodes: Sequence[Node], keep: Collection[Edge]) -> None:
        """``keep``: the node outputs (edges of the graph) that are needed after these nodes have run."""
        self._services, self._keep = services, keep
        self._nodes = [(n, n.stage, [Edge(n.id, k) for k in range(n.op.num_outputs)]) for n in nodes]
        last = {e: n.id for n in nodes for e in n.reads}
        self._frees = {n.id: [e for e in n.reads if last[e] == n.id and e not in keep] for n in nodes}
        self._contexts = Contexts(services, _small_array)
        self.is_applicable = all(map(allows_fast_path, nodes))
        """Whether every node may be called without error isolation (`allows_fast_path`)."""

    def run(self, it: InFlightBatch, env: Env, lane: Any = None) -> list[tuple[int, int, float]] | None:
        """Run the nodes and add their outputs to ``env``.

        Return (bytes read, bytes written, end time in seconds of perf_counter) per node. Return None if a kernel
        produced anything besides its outputs (rejects, checks, work to finish later), or a wrong number of outputs or
        samples; ``env`` may then contain some outputs. Exceptions of kernels propagate."""
        found = None
        try:
            found = self._run(it, env, lane)
        finally:
            if found is None:
                self._contexts.discard()
            else:
                self._contexts.accept()
        return found

    def _run(self, it: InFlightBatch, env: Env, lane: Any) -> list[tuple[int, int, float]] | None:
        samples, found = it.samples, list[tuple[int, int, float]]()
        for node, stage, edges in self._nodes:
            inputs = [env[e] for e in node.inputs]
            if stage == "gpu":
                on_device = 1 if node.op.host_arguments else len(inputs)
                inputs[:on_device] = [lane.to_device(b) for b in inputs[:on_device]]
            drawn = None
            if not inputs and not node.args and stage == "cpu" and type(node.op).drawn is not Operator.drawn:
                seed = self._services.plan.seeds.get(node.id, 0)
                drawn = node.op.drawn(streams_of(seed, samples, self._services.options.rng), samples)
            if drawn is not None:
                outputs: Sequence[Any] = (drawn,)
            else:
                ctx = self._contexts.of(node, stage, it, env, lane)
                outputs = outputs_of(node.op.kernel(stage)(ctx, *inputs))
                if ctx.rejects or ctx.left_out is not None or ctx.checks or ctx.finish is not None:
                    return None
            if len(outputs) != len(edges):
                return None
            written = 0
            for edge, batch in zip(edges, outputs, strict=True):
                if len(batch.offsets) != len(samples.slot):
                    return None
                env[edge] = batch if batch.samples is samples else batch.replace(samples=samples)
                written += batch.nbytes
            found.append((sum([b.nbytes for b in inputs]) if inputs else 0, written, time.perf_counter()))
            for e in self._frees[node.id]:
                env.pop(e, None)
        return found


class FastHostStep:
    """A step on the host that handles only a few numbers per batch (external sources, random numbers, arithmetic), run
    with little overhead. Created by `InlineHost` and `DirectGpu`; used by one thread only."""

    def __init__(self, services: Services, name: str, step: Step) -> None:
        self._services, self._name, self._gives = services, name, step.gives
        sources = [n for n in step.nodes if isinstance(n.op, ExternalSource) and n.stage == "cpu"]
        nodes = [n for n in step.nodes if n not in sources]
        self._sources: list[tuple[Node, FedBatches, list[Edge]]] = [
            (n, services.feed.states[n.id], [Edge(n.id, k) for k in range(n.op.num_outputs)]) for n in sources
        ]
        self._nodes, self._needs = nodes, step.needs
        self._metadata_only = all(n.op.metadata_only for n in nodes)
        self._fast_path = FastPath(services, nodes, step.gives)
        self._failures = 0
        self.is_applicable = (
            self._fast_path.is_applicable
            and services.stats.spans is None
            and all(n.stage == "cpu" for n in nodes)
            and (services.plan.target.device != "null")
        )
        """Whether batches may take the fast path: every node may be called without error isolation."""

    def run(self, it: InFlightBatch) -> bool:
        """Run the step for the batch and add its outputs to ``it.env``. Return False, with the batch unchanged, if the
        batch must be computed in the way that isolates samples that fail."""
        if it.draws or it.dropped or not len(it.samples.slot) or self._failures > _MAX_FAILURES:
            return False
        self._failures += 1
        began, env = time.perf_counter(), {e: it.env[e] for e in self._needs}
        sources = self._read_sources(it, env)
        if sources is None:
            return False
        if not self._metadata_only and sum([b.data.nbytes for b in env.values()]) > _MAX_BYTES:
            return False
        try:
            found = self._fast_path.run(it, env)
        except TooLargeError:
            return False
        except Exception:  # the regular path finds the samples that cause it
            self._services.fell_back(AGAIN, len(it.samples.slot))
            return False
        if found is None:
            return False
        for _, state, _ in self._sources:
            state.drop()
        for e in self._gives:
            it.env[e] = env[e]
        self._failures = 0
        self._services.stats.note(self._record_times, len(it.samples.slot), began, sources + found)
        return True

    def _read_sources(self, it: InFlightBatch, env: Env) -> list[tuple[int, int, float]] | None:
        """Add the data that the program has fed for the batch to ``env``. Return (0, bytes, end time) per source; None
        if some data is missing, or on a GPU."""
        times: list[tuple[int, int, float]] = []
        for _, state, edges in self._sources:
            outputs = state.first(it.request.start, len(it.samples.slot))
            if outputs is None or not all(b.on_host for b in outputs):
                return None
            for edge, batch in zip(edges, outputs, strict=True):
                env[edge] = batch.with_data(batch.data, it.samples, batch.nbytes)
            times.append((0, sum([b.nbytes for b in outputs]), time.perf_counter()))
        return times

    def _record_times(self, samples: int, began: float, found: Sequence[tuple[int, int, float]]) -> None:
        stats = self._services.stats
        nodes = [n for n, *_ in self._sources] + self._nodes
        ends = pairwise([began, *(ended for *_, ended in found)])
        for node, (taken, given, _), (start, end) in zip(nodes, found, ends, strict=True):
            stats.called(node, samples, taken, given, end - start)
        stats.busy(self._name, found[-1][2] - began if found else 0.0)


def _small_array(n: int, dtype: Any) -> Any:
    """Return an uninitialised array of ``n`` elements in host memory. Raises TooLargeError above `_MAX_BYTES` bytes."""
    if n * np.dtype(dtype).itemsize > _MAX_BYTES:
        raise TooLargeError
    return host_empty(n, dtype)
