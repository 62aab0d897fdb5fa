"""Contexts of operators that go from batch to batch: what is the same in all of them is put together once."""

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
    """Of one step; one thread owns it. After each batch `counts` or `forget` is called."""

    def __init__(self, services: Services, allocate: Callable[[int, Any], Any] | None = None) -> None:
        """``allocate`` makes arrays of the host."""
        self._services, self._allocate = services, allocate
        self._known: dict[tuple[int, int], Context] = {}
        self._run: NodePass | None = None
        """The pass that kernels tell facts of."""

    def of(self, node: Node, stage: Stage, it: InFlightBatch, env: Env, lane: Any) -> Context:
        """As `context_of`, for a batch whose numbers follow from its samples."""
        key = node.id, id(lane)
        known = self._known.get(key)
        args = {k: env[e] for k, e in node.args.items()} if node.args else {}
        if known is None:
            if self._run is None:
                self._run = self._services.node_pass(it)
            known = self._known[key] = context_of(node, stage, it.samples, env, self._run)
            known.device = cast("Lane", lane)
            known.allocate = None if lane is not None else self._allocate
        known.samples, known.args = it.samples, args
        return known

    def counts(self) -> None:
        """The batch counts: what kernels told of it is passed on. No batch is held."""
        for known in self._known.values():
            known.args = {}
        if self._run is not None and self._run.reports:
            self._run.reports.deliver()

    def forget(self) -> None:
        """The batch goes another way, which tells the same again; kernels may have noted down samples, too."""
        self._known.clear()
        self._run = None
