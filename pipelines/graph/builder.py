"""Build a graph by adding operators one after the other. Used by specs (YAML) and by the Python API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...ops.base import Operator, coerce, parameter, parameters
from ...ops.errors import ArgumentNameError, ArgumentValueError, SpecError
from ...ops.types import Library
from ...readers.base import Reader
from ..plugins import find_operator
from ..problems import Mark
from .arguments import check_arguments
from .conditionals import Condition, Merge, Split
from .nodes import KEPT, DeviceRequest, Edge, Graph, Node, Scope


@dataclass(slots=True)
class GraphBuilder:
    """Builds a graph by adding one operator after the other. Used by one thread.

    Raises SpecError if an operator or argument is wrong. The error does not name the place in the user's program, which
    the caller knows."""

    nodes: list[Node] = field(default_factory=list)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default values for arguments of all operators that have them, such as a pipeline's ``parity``."""
    sinks: list[Edge] = field(default_factory=list)
    """Edges whose operators are computed even if no output depends on them."""
    loose: bool = False
    """Whether several operators may have the same name, because they do not belong to a graph yet."""
    _scope: Scope = ()
    _scope_edges: list[Edge] = field(default_factory=list)
    _splits: dict[tuple[Edge, Edge], int] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _conditions: dict[Edge, Edge] = field(default_factory=dict)
    """Predicates that were passed to `split`, each with the edge of its conversion to truth values."""
    _parts: dict[Scope, list[Edge]] = field(default_factory=dict)
    """For each branch that `split` opened: the edges with its samples, from the outermost branch inwards."""
    _given_names: set[str] = field(default_factory=set)
    """Names that the user's program chose for operators."""
    _adopted: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(
        self,
        op: str | type[Operator],
        inputs: Sequence[Edge] = (),
        args: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        device: DeviceRequest = "auto",
        seed: int | None = None,
        mark: Mark | None = None,
    ) -> tuple[Edge, ...]:
        """Add an operator and return its outputs. Values in ``args`` are constants, or Edges for arguments that differ
        per sample.

        A reader always reads for the whole batch. If it is added in a branch of a conditional, its outputs are
        split."""
        cls = find_operator(op) if isinstance(op, str) else op
        fallback = {k: v for k, v in self.defaults.items() if _takes(cls, k, v)}
        all_args = {**fallback, **(args or {})}
        constants, edges, problems = check_arguments(cls, all_args)
        low, high = cls.inputs
        if not low <= len(inputs) <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            problems.append(f"takes {wanted} input{'s' * (wanted != '1')}, got {len(inputs)}")
        if device != "auto" and device not in cls.devices:
            problems.append(f"cannot run on {device}; it has kernels for {', '.join(cls.devices)}")
        if name in self._given_names and not self.loose:
            problems.append(f"the name {name!r} is taken by another operator of this graph")
        if problems:
            kind = ArgumentValueError if all_args.keys() <= parameters(cls).keys() else ArgumentNameError
            raise kind("; ".join(problems))
        if name is not None:
            self._given_names.add(name)
        instance = cls(per_sample=frozenset(edges), num_inputs=len(inputs), **constants)
        instance.check()
        with self._branch_of(*inputs, *edges.values()):
            return self._append(instance, inputs, edges, name=name, device=device, seed=seed, mark=mark)

    def _append(
        self, op: Operator, inputs: Sequence[Edge], args: Mapping[str, Edge], *, name: str | None = None, **rest: Any
    ) -> tuple[Edge, ...]:
        everywhere = isinstance(op, Reader)
        node = Node(
            id=len(self.nodes),
            op=op,
            inputs=tuple(self._reach(e) for e in inputs),
            args={k: self._reach(e) for k, e in args.items()},
            name=self._unique(name or op.name),
            scope=() if everywhere else self._scope,
            samples_of=self._scope_edges[-1] if self._scope_edges and not everywhere else None,
            **rest,
        )
        node = replace(node, id=len(self.nodes))  # _reach may have added splits before it
        self.nodes.append(node)
        return tuple(Edge(node.id, k) for k in range(op.num_outputs))

    def _unique(self, name: str) -> str:
        unique, n = name, 1
        while unique in self._names and not self.loose:
            n += 1
            unique = f"{name}_{n}"
        self._names.add(unique)
        return unique

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> GraphBuilder:
        """Return a builder that already contains ``nodes`` and to which more can be added."""
        return cls(nodes=list(nodes), _names={n.name for n in nodes})

    # -- conditionals -------------------------------------------------------------------------------------------

    def enter(self, predicate: Edge, branch: bool) -> None:
        """Start a branch of a conditional. Operators that are added until `leave` run only for samples whose
        ``predicate`` equals ``branch``."""
        predicate = self._reach(predicate)
        edge = self._split(predicate, predicate, branch)
        self._scope = (*self._scope, (predicate, branch))
        self._scope_edges.append(edge)

    def leave(self) -> None:
        """End the branch that was entered last."""
        self._scope = self._scope[:-1]
        self._scope_edges.pop()

    def merge(self, predicate: Edge, then: Edge, otherwise: Edge) -> Edge:
        """Return one edge that joins the results of both branches of ``predicate``. Called after `leave`, in the scope
        around the conditional. If a branch did not change a variable, its edge is that of the outer scope, which is
        split here."""
        predicate = self._reach(predicate)
        ends = []
        for edge, branch in ((then, True), (otherwise, False)):
            if len(self.scope_of(edge)) <= len(self._scope):
                edge = self._split(self._reach(edge), predicate, branch)
            if self.scope_of(edge) != (*self._scope, (predicate, branch)):
                raise SpecError("a value made inside one branch of a conditional is used outside of it")
            ends.append(edge)
        node = Node(len(self.nodes), Merge(), tuple(ends), {}, self._unique("merge"), scope=self._scope,
                    samples_of=self._scope_edges[-1] if self._scope_edges else None)  # fmt: skip
        self.nodes.append(node)
        return Edge(node.id)

    def split(self, edge: Edge, predicate: Edge) -> tuple[Edge, Edge]:
        """Return two edges: the samples of ``edge`` for which ``predicate`` is true, and the remaining samples.
        Operators that are added for one of them run in its branch, until `merge_by_hand`."""
        with self._branch_of(edge, predicate):
            condition = self._condition(predicate)
            for branch in (True, False):
                samples = [*self._scope_edges, self._split(condition, condition, branch)]
                self._parts[(*self._scope, (condition, branch))] = samples
            edge = self._reach(edge)
            return self._split(edge, condition, True), self._split(edge, condition, False)

    def merge_by_hand(self, predicate: Edge, then: Edge, otherwise: Edge) -> Edge:
        """Join the edges ``then`` and ``otherwise``, which `split` separated by ``predicate``, again; see `merge`."""
        with self._branch_of(predicate):
            return self.merge(self._condition(predicate), then, otherwise)

    def _condition(self, predicate: Edge) -> Edge:
        if predicate not in self._conditions:
            (self._conditions[predicate],) = self.add(Condition, [predicate], {"what": "split"})
        return self._conditions[predicate]

    @contextlib.contextmanager
    def _branch_of(self, *edges: Edge) -> Iterator[None]:
        """Return a context manager. In its body, operators are added to the innermost branch of `split` that has one of
        ``edges``, if that branch is inside the current one."""
        before = self._scope, self._scope_edges
        inner = max((self.scope_of(e) for e in edges), key=len, default=()) if self._parts else ()
        if inner in self._parts and inner[: len(self._scope)] == self._scope:
            self._scope, self._scope_edges = inner, list(self._parts[inner])
        try:
            yield
        finally:
            self._scope, self._scope_edges = before

    def _split(self, edge: Edge, predicate: Edge, branch: bool) -> Edge:
        key = (edge, predicate)
        if key not in self._splits:
            node = Node(len(self.nodes), Split(per_sample=frozenset({"predicate"})), (edge,), {"predicate": predicate},
                        self._unique("split"), scope=self.scope_of(edge))  # fmt: skip
            self.nodes.append(node)
            self._splits[key] = node.id
        return Edge(self._splits[key], 0 if branch else 1)

    def scope_of(self, edge: Edge) -> Scope:
        """Return the branches of conditionals to which ``edge`` belongs, outermost first. (The outputs of a split are
        one level deeper than the split itself.)"""
        node = self.nodes[edge.node]
        if isinstance(node.op, Split):
            return (*node.scope, (node.args["predicate"], edge.output == 0))
        return node.scope

    def _reach(self, edge: Edge) -> Edge:
        """Return an edge with only the samples of ``edge`` that belong to the current branch. A split is added for
        every branch in between."""
        scope = self.scope_of(edge)
        if self._scope[: len(scope)] != scope:
            raise SpecError("a value made inside one branch of a conditional is used outside of it")
        for predicate, branch in self._scope[len(scope) :]:
            edge = self._split(edge, predicate, branch)
        return edge

    # -- whole graphs -------------------------------------------------------------------------------------------

    def adopt(self, other: GraphBuilder, edge: Edge) -> Edge:
        """Copy ``edge``, which belongs to another builder, and all nodes on which it depends into this builder; return
        the edge here. Nodes that were copied before are reused."""
        key = (id(other), edge.node)
        if key not in self._adopted:
            node = other.nodes[edge.node]
            if node.scope or isinstance(node.op, (Split, Merge)):
                raise SpecError("a conditional belongs to the pipeline in which it was written")
            inputs = tuple(self.adopt(other, e) for e in node.inputs)
            args = {k: self.adopt(other, e) for k, e in node.args.items()}
            self.nodes.append(replace(node, id=len(self.nodes), inputs=inputs, args=args, name=self._unique(node.name)))
            self._adopted[key] = self.nodes[-1].id
        return Edge(self._adopted[key], edge.output)

    def build(self, outputs: Mapping[str, Edge]) -> Graph:
        """Return the finished graph, whose ``outputs`` are these edges, by name."""
        for name, edge in outputs.items():
            if self.scope_of(edge) and not name.startswith(KEPT):
                raise SpecError(f"output {name!r} is computed inside a branch of a conditional")
        return Graph(tuple(self.nodes), dict(outputs))


def _takes(cls: type[Operator], name: str, value: Any) -> bool:
    """Return whether an operator has the argument ``name`` and accepts ``value``. For ``parity``, not every operator
    supports every library."""
    if name not in parameters(cls):
        return False
    try:
        coerce(parameter(cls, name), value)
    except ValueError:
        return False
    return True


def parity_defaults(parity: Library) -> dict[str, Any]:
    """Return `GraphBuilder.defaults` for a pipeline whose operators imitate the library ``parity``."""
    return {} if parity == "dali" else {"parity": parity}
