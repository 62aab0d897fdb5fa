"""Join arithmetic: an expr node that only another expr node reads becomes part of it, so that the data are passed over
once. Called by `compile_graph`."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace

from ...ops.errors import SpecError
from ...ops.formulas.arithmetic import Expr
from ..graph.nodes import Edge, Graph, Node
from .prune import prune

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def join_arithmetic(graph: Graph) -> Graph:
    """Return the graph with arithmetic nodes (`expr`) merged: a node that only one other `expr` node reads becomes a
    part of that node. Results keep their values, types and layouts."""
    readers = Counter(e for n in graph.nodes for e in n.reads)
    readers.update(graph.outputs.values())
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.op, Expr):
            for k in reversed(range(len(node.inputs))):
                before = nodes[node.inputs[k].node]
                if isinstance(before.op, Expr) and readers[node.inputs[k]] == 1 and _same_place(before, node):
                    node = _joined(before, node, k, nodes) or node
        nodes.append(node)
    changed = any(a is not b for a, b in zip(nodes, graph.nodes, strict=True))
    return prune(replace(graph, nodes=tuple(nodes))) if changed else graph


def _same_place(before: Node, node: Node) -> bool:
    return before.stage == node.stage and before.scope == node.scope


def _joined(before: Node, node: Node, k: int, nodes: list[Node]) -> Node | None:
    """Return ``node`` with the expression of ``before`` in place of its input number ``k``; None if that would change
    results or types."""
    assert isinstance(before.op, Expr)
    assert isinstance(node.op, Expr)
    inputs = tuple(dict.fromkeys((*node.inputs[:k], *before.inputs, *node.inputs[k + 1 :])))
    if len(inputs) > len(_LETTERS):
        return None
    letter = {edge: _LETTERS[i] for i, edge in enumerate(inputs)}
    inner = _renamed(before.op, before.inputs, letter, {})
    outer = _renamed(node.op, node.inputs, letter, {node.inputs[k]: inner})
    try:
        op = Expr(expr=ast.unparse(outer))
        op.check()
        specs = (op.infer(*(nodes[e.node].specs[e.output] for e in inputs)),)
    except SpecError:  # too long, too deep, or layouts that are compatible only step by step
        return None
    return replace(node, op=op, inputs=inputs) if specs == node.specs else None


def _renamed(op: Expr, inputs: tuple[Edge, ...], letter: dict[Edge, str], written: dict[Edge, ast.expr]) -> ast.expr:
    """Return the expression ``op`` as text, with its inputs named as in ``letter``, and with the edges in ``written``
    replaced by the expressions that compute them."""
    names = op.names or tuple(_LETTERS[: len(inputs)])
    edge_of = dict(zip(names, inputs, strict=True))

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            edge = edge_of.get(node.id)
            if edge is None:
                return node
            return written[edge] if edge in written else ast.Name(letter[edge], ast.Load())

        def visit_Call(self, node: ast.Call) -> ast.expr:
            return ast.Call(node.func, [self.visit(a) for a in node.args], [])

    result: ast.expr = Rename().visit(ast.parse(op.expr.strip(), mode="eval").body)
    return result
