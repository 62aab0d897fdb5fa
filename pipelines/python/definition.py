"""Definition: the graph of a pipeline as a Python program defines it. Owned by `Pipeline`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...ops.types import Library
from ..graph.builder import GraphBuilder, parity_defaults
from ..graph.nodes import KEPT, Edge
from .data_node import DataNode, as_node


class Definition:
    """The graph of one pipeline while it is being defined: the operators that were called and the outputs that were
    set. Owned by one `Pipeline`."""

    def __init__(self, parity: Library) -> None:
        """``parity`` is the library whose results operators reproduce, such as DALI, unless a call names another
        one."""
        self.builder = GraphBuilder(defaults=parity_defaults(parity))
        self.outputs: list[DataNode] | None = None
        self.names: list[str] | None = None
        """Names of the outputs, if the definition returned a dict; else None."""
        self._sinks: list[DataNode] = []

    def set_outputs(self, values: Iterable[Any]) -> None:
        """Set the outputs; numbers and arrays become constants. Raises TypeError for anything else. The pipeline must
        be the one being defined."""
        outputs = []
        for i, node in enumerate(values):
            if isinstance(node, (list, tuple)) and any(isinstance(n, DataNode) for n in node):
                raise TypeError(f"output {i} is a list of DataNodes: return them one by one (return a, b)")
            try:
                outputs.append(as_node(node))
            except TypeError as e:
                raise TypeError(f"output {i} of the pipeline: {e}") from None
        self.outputs = outputs

    def several(self, result: Any) -> tuple[Any, ...]:
        """Return ``result``, the return value of a pipeline's definition, as a tuple of outputs. It is one value,
        several, or a dict whose keys become names of outputs. A list of numbers is one array."""
        if isinstance(result, Mapping):
            self.names = [str(k) for k in result]
            result = tuple(result.values())
        if isinstance(result, list) and any(isinstance(r, DataNode) for r in result):
            result = tuple(result)
        return result if isinstance(result, tuple) else (result,)

    def adopt(self, builder: GraphBuilder, edges: Mapping[str, Edge]) -> None:
        """Use ``builder``, a graph that was built elsewhere. ``edges`` are the outputs by number, and the sinks (nodes
        that run although no output needs them)."""
        self.builder = builder
        outputs = {n: e for n, e in edges.items() if not n.startswith(KEPT)}
        self.outputs = [DataNode(builder, outputs[n]) for n in sorted(outputs, key=int)]
        builder.sinks = [e for n, e in edges.items() if n.startswith(KEPT)]

    def add_sink(self, node: DataNode) -> None:
        """Keep ``node`` and the nodes that it depends on, although no output needs them."""
        self._sinks.append(node)

    def named_outputs(self) -> dict[str, Edge]:
        """Return the graph's results by name: outputs by number, then sinks (nodes that run although no output needs
        them)."""
        assert self.outputs is not None
        nodes = [*self.outputs, *self._sinks]
        edges = [n.edge if n.builder is self.builder else self.builder.adopt(n.builder, n.edge) for n in nodes]
        edges += self.builder.sinks
        return {str(i) if i < len(self.outputs) else f"{KEPT}{i}": e for i, e in enumerate(edges)}
