"""A graph as the text of a spec, the inverse of `build`: reading the text gives the same graph."""

from __future__ import annotations

import enum
import json
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...ops.base import Parameter, parameters
from ...ops.errors import SpecError
from ...ops.formulas import expression
from ...readers.base import Reader
from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Graph, Node, Scope
from ..problems import Mark, Problems
from .expressions import EXPRESSIONS
from .text import UNPRINTABLE, both_float, is_field_name, resolve

Step = dict[str, Any]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOWHERE = Mark("", 1, 1)
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./%-]*|\$[A-Za-z_][A-Za-z0-9_]*")


def to_yaml(graph: Graph, *, name: str = "", sections: Mapping[str, Any] | None = None) -> str:
    """Return the text of a spec for ``graph``, as it was built (before passes such as fusion).

    ``sections`` (`pipeline`, `write`, `on_error`) are inserted as they are. `copy` steps are added if branches of a
    conditional return the same batch, or one that is needed later. Raises SpecError for arguments that YAML cannot
    represent (Python functions, arrays).
    """
    steps = _Dump(graph)
    lines = ["version: 1"]
    if name:
        lines.append(f"name: {flow(name)}")
    extra = dict(sections or {})
    lines += [f"{key}: {flow(extra.pop(key))}" for key in ("pipeline",) if key in extra]
    lines.append("graph:")
    # a reader reads for whole batches even if it was called in a branch: it goes before the conditional
    nodes = sorted(graph.nodes, key=lambda n: not (isinstance(n.op, Reader) and not n.scope))
    lines += _block(steps.block(nodes, ()), 1)
    lines.append(f"outputs: {flow({k: steps.name(e) for k, e in graph.outputs.items()})}")
    lines += [f"{key}: {flow(value)}" for key, value in extra.items()]
    wrong = [k for k in graph.outputs if not is_field_name(k)]
    if wrong:
        raise SpecError(f"output {wrong[0]!r} cannot be written as YAML: use letters, digits, '_', '.', '-' and '/'")
    return "\n".join(lines) + "\n"


def _block(steps: Sequence[Step], depth: int) -> list[str]:
    """Return the lines of YAML for ``steps``, indented by ``depth`` levels. Only conditionals take more than one
    line."""
    indent = "  " * depth
    lines = []
    for step in steps:
        if "if" not in step:
            lines.append(f"{indent}- {flow(step)}")
            continue
        lines.append(f"{indent}- if: {flow(step['if'])}")
        for key in ("then", "else"):
            inner = step[key]
            lines.append(f"{indent}  {key}:{'' if inner else ' []'}")
            lines += _block(inner, depth + 2)
    return lines


class _Dump:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Edge, str] = {}
        """Name in the spec of every edge of the graph, except outputs of Split, the node at the start of a
        conditional."""
        self.taken: set[str] = set()
        self.node_names: set[str] = set()
        """Names that reading the spec would give to the steps written so far."""
        self.copies: dict[tuple[int, bool], list[Step]] = {}
        """`copy` steps to add at the end of a branch, by (id of the Merge node that ends the conditional, branch)."""
        self.readers = self._readers()
        for output, edge in graph.outputs.items():
            self._call(self._base(edge), output)
        for node in reversed(graph.nodes):
            if isinstance(node.op, Merge):
                self._name_merge(node)

    # -- edges and their names ------------------------------------------------------------------------------------

    def _base(self, edge: Edge) -> Edge:
        """Return the edge before the outermost conditional from which the samples of ``edge`` come; ``edge`` itself
        outside of conditionals."""
        while isinstance(self.graph.node(edge).op, Split):
            edge = self.graph.node(edge).inputs[0]
        return edge

    def _readers(self) -> dict[Edge, list[int]]:
        readers: dict[Edge, list[int]] = {}
        for node in self.graph.nodes:
            if not isinstance(node.op, Split):
                for edge in (*node.inputs, *node.args.values()):
                    readers.setdefault(self._base(edge), []).append(node.id)
            for predicate, _ in node.scope:
                readers.setdefault(self._base(predicate), []).append(node.id)
        return readers

    def name(self, edge: Edge) -> str:
        """Return the name of the batch ``edge`` in the spec."""
        edge = self._base(edge)
        if edge not in self.names:
            node = self.graph.node(edge)
            stem = re.sub(r"\W+", "_", node.name, flags=re.ASCII).strip("_") or "batch"
            self._call(edge, stem if node.op.num_outputs == 1 else f"{stem}_{edge.output}")
        return self.names[edge]

    def _call(self, edge: Edge, wish: str) -> str:
        if edge in self.names:
            return self.names[edge]
        wish = re.sub(r"\W+", "_", wish, flags=re.ASCII)
        if not _IDENTIFIER.fullmatch(wish) or keyword.iskeyword(wish) or wish == "_":
            wish = f"batch_{wish}"
        name, n = wish, 1
        while name in self.taken:
            n += 1
            name = f"{wish}_{n}"
        self.taken.add(name)
        self.names[edge] = name
        return name

    def _name_merge(self, merge: Node) -> None:
        """Give the results of both branches of a conditional the name of the merged result. For a result that cannot
        have this name, record a `copy` step."""
        result = Edge(merge.id)
        ends = [(branch, end, self._base(end)) for branch, end in zip((True, False), merge.inputs, strict=True)]
        passed = [base for _, end, base in ends if base != end]
        new_ends = [base for _, end, base in ends if base == end]
        shared = (
            passed[0]
            if len(passed) == 1 and len(new_ends) == 1 and self._may_rebind(passed[0], new_ends[0], merge)
            else None
        )
        if shared is not None and result not in self.names:
            self.names[result] = self.name(shared)
        elif shared is not None and shared not in self.names:
            self.names[shared] = self.names[result]
        name = self.name(result)
        for branch, end, base in ends:
            if base == end and base not in self.names:
                self.names[base] = name
            elif self.names.get(base) != name:
                step = {"op": "copy", "in": self.name(base), "out": name}
                self.copies.setdefault((merge.id, branch), []).append(step)

    def _may_rebind(self, outer: Edge, inner: Edge, merge: Node) -> bool:
        """Return whether ``inner``, a batch of a branch, may have the same name as ``outer``, a batch from before the
        conditional. It may if no later step reads ``outer``."""
        later = [n for n in self.readers.get(outer, []) if n > inner.node and n != merge.id]
        return (
            outer.node < inner.node and not later and outer not in [self._base(e) for e in self.graph.outputs.values()]
        )

    # -- steps ----------------------------------------------------------------------------------------------------

    def block(self, nodes: Sequence[Node], scope: Scope) -> list[Step]:
        """Return the steps of the spec for ``nodes``. They belong to ``scope`` (the branches of conditionals around
        them) or to a conditional inside it."""
        steps: list[Step] = []
        pending = [n for n in nodes if not isinstance(n.op, Split)]
        at = 0
        while at < len(pending):
            node = pending[at]
            if node.scope == scope and not isinstance(node.op, Merge):
                steps.append(self.step(node))
                at += 1
                continue
            predicate = self._predicate(node, scope)
            inner: list[Node] = []
            merges: list[Node] = []
            while at < len(pending):
                if (
                    not merges
                    and self._is_plain(pending[at], scope)
                    and self._merged_later(pending[at:], scope, predicate)
                ):
                    # computed between the branches and their merge; it depends on neither
                    steps.append(self.step(pending[at]))
                    at += 1
                    continue
                if self._predicate(pending[at], scope) != predicate:
                    break
                if pending[at].scope != scope and merges:
                    break  # another conditional with the same predicate, after the first one was merged
                (merges if pending[at].scope == scope else inner).append(pending[at])
                at += 1
            steps.append(self._conditional(predicate, inner, merges, scope))
        return steps

    def _is_plain(self, node: Node, scope: Scope) -> bool:
        return node.scope == scope and not isinstance(node.op, Merge)

    def _merged_later(self, nodes: Sequence[Node], scope: Scope, predicate: Edge | None) -> bool:
        """Return whether the current conditional's results are merged before the next conditional begins."""
        after = next((n for n in nodes if not self._is_plain(n, scope)), None)
        return after is not None and after.scope == scope and self._predicate(after, scope) == predicate

    def _predicate(self, node: Node, scope: Scope) -> Edge | None:
        """Return the condition of the conditional, directly inside ``scope``, that contains ``node``; None if there is
        none."""
        if len(node.scope) > len(scope):
            return node.scope[len(scope)][0]
        if isinstance(node.op, Merge):
            end = self.graph.node(node.inputs[0])
            if isinstance(end.op, Split):
                return end.args["predicate"]
            return end.scope[len(scope)][0]
        return None

    def _conditional(self, predicate: Edge | None, inner: Sequence[Node], merges: Sequence[Node], scope: Scope) -> Step:
        assert predicate is not None
        step: Step = {"if": f"${self.name(predicate)}"}
        for key, branch in (("then", True), ("else", False)):
            own = [n for n in inner if n.scope[len(scope)][1] == branch]
            step[key] = self.block(own, (*scope, (predicate, branch)))
            for merge in merges:
                step[key] += self.copies.get((merge.id, branch), [])
        return step

    def step(self, node: Node) -> Step:
        step: Step = {"op": node.op.name}
        if node.op.name in EXPRESSIONS:
            step[EXPRESSIONS[node.op.name].key] = self._expression(node)
        elif node.inputs:
            names = [self.name(e) for e in node.inputs]
            step["in"] = names[0] if len(names) == 1 else names
        if node.name != self._builder_name(node):
            step["name"] = node.name
        if node.device != "auto":
            step["device"] = node.device
        if node.seed is not None:
            step["seed"] = node.seed
        if node.op.name not in EXPRESSIONS:
            for p in parameters(type(node.op)).values():
                value = self._argument(node, p)
                if value is not None:
                    step[p.name] = value[0]
        outputs = [self.name(Edge(node.id, k)) for k in range(node.op.num_outputs)]
        step["out"] = outputs[0] if len(outputs) == 1 else outputs
        return step

    def _builder_name(self, node: Node) -> str:
        """Return the name that the node's step would get automatically when the spec is read."""
        name, n = node.op.name, 1
        while name in self.node_names:
            n += 1
            name = f"{node.op.name}_{n}"
        self.node_names.add(node.name)
        return name

    def _argument(self, node: Node, p: Parameter) -> tuple[Any] | None:
        """Return the value of argument ``p`` in a tuple of one element; None if it is the default."""
        if p.name in node.args:
            return (_Reference(self.name(node.args[p.name])),)
        value = getattr(node.op, p.name)
        if not p.required and _same(value, p.default):
            return None
        try:
            return (_plain(value),)
        except TypeError as e:
            raise SpecError(f"{node.where}: argument {p.name!r} cannot be written as YAML: {e}") from None

    def _expression(self, node: Node) -> str:
        """Return the node's expression, in which its inputs have their names in the spec."""
        text = str(getattr(node.op, EXPRESSIONS[node.op.name].argument))
        input_names = getattr(node.op, "names", ()) or tuple("abcdefghijklmnopqrstuvwxyz")
        names = {n: self.name(e) for n, e in zip(input_names, node.inputs, strict=False)}
        used = expression.names(expression.parse(text))
        return text if all(names[n] == n for n in used) else expression.renamed(text, names)


# -- values -----------------------------------------------------------------------------------------------------------


class _Reference(str):
    """The name of a batch as the value of an argument, which is written with a ``$``."""

    __slots__ = ()


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b) if not isinstance(a, np.ndarray) else False


def _plain(value: Any) -> Any:
    """Convert ``value`` to a value that YAML can represent. Raises TypeError with the reason if that is impossible."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is not a number in YAML")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        escaped = value.replace("${", "$${")
        return f"${escaped}" if value.startswith("$") and not value.startswith("${") else escaped
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    raise TypeError(f"{type(value).__name__} cannot be represented")


def flow(value: Any) -> str:
    """Return ``value`` as YAML on one line."""
    if isinstance(value, _Reference):
        return f"${value}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(k))}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        return both_float(text) if "e" in text else text
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text: str) -> str:
    """Return ``text`` for YAML, in quotes if a YAML reader might interpret it differently."""
    problems = Problems()
    if _PLAIN.fullmatch(text) and isinstance(resolve(text, _NOWHERE, problems), str) and not problems:
        return text
    return UNPRINTABLE.sub(lambda m: f"\\U{ord(m[0]):08x}", json.dumps(text, ensure_ascii=False))
