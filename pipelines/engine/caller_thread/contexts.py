"""Reuse the contexts of operators from batch to batch, so that the parts that never differ are assembled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ....ops.base import Stage
from ....ops.context import Context
from ....ops.interfaces import Lane
from ...graph.nodes import Node
from ..in_flight import InFlightBatch
from ..nodes.node_pass import Env, NodePass, context_of
from ..services import Services


class Contexts:
    """The contexts of one step's operators (`ops.context.Context`: what a kernel gets besides its inputs), reused from
    batch to batch. Created by `FastPath` and `ReplayedStep`; used by one thread only. After each batch, either `accept`
    or `discard` must be called."""

    def __init__(self, services: Services, allocate: Callable[[int, Any], Any] | None = None) -> None:
        """``allocate(n, dtype)`` creates the arrays of the kernels in host memory; with None they use their default."""
        self._services, self._allocate = services, allocate
        self._contexts: dict[tuple[int, int], Context] = {}
        self._run: NodePass | None = None
        """Object to which kernels report facts about the current batch, such as the number of decoded images. None
        before the first batch."""

    def of(self, node: Node, stage: Stage, it: InFlightBatch, env: Env, lane: Any) -> Context:
        """Return the context of ``node``, which its kernel gets besides its inputs. Only for batches whose random
        numbers follow from their samples, not from the saved state of a generator."""
        key = node.id, id(lane)
        context = self._contexts.get(key)
        args = {k: env[e] for k, e in node.args.items()} if node.args else {}
        if context is None:
            if self._run is None:
                self._run = self._services.node_pass(it)
            context = self._contexts[key] = context_of(node, stage, it.samples, env, self._run)
            context.device = cast("Lane", lane)
            context.allocate = None if lane is not None else self._allocate
        context.samples, context.args = it.samples, args
        return context

    def accept(self) -> None:
        """Add the kernels' reports for this batch to the statistics, and drop all references to the batch."""
        for context in self._contexts.values():
            context.args = {}
        if self._run is not None and self._run.reports:
            self._run.reports.deliver()

    def discard(self) -> None:
        """Discard all contexts, with the samples and facts that kernels recorded in them. Called if the batch is
        computed again from the start, because kernels then report again."""
        self._contexts.clear()
        self._run = None
