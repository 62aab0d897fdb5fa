"""The operators of conditionals: Split, Merge and Condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from ...ops.base import Arg, Operator, Spec
from ...ops.batch import Batch
from ...ops.context import Context
from ...ops.errors import SpecError
from ...ops.types import DALIDataType
from .nodes import Edge, Graph
from .renumber import renumber


class Split(Operator, name="_conditional.split"):
    """Divide the samples of a batch: those for which the predicate is true go to the first output, all others to the
    second."""

    inputs = (1, 1)
    predicate: Annotated[bool, Arg("which branch", per_sample=True, required=True)] = False

    @property
    def num_outputs(self) -> int:
        return 2

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return (specs[0], specs[0])

    def cpu(self, ctx: Any, data: Any) -> Any:
        raise AssertionError("the engine splits batches itself")

    gpu = cpu


class Merge(Operator, name="_conditional.merge"):
    """Join the results of both branches of a conditional, in the original order of the samples."""

    inputs = (2, 2)

    def infer(self, *specs: Spec) -> Spec:
        a, b = specs
        if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
            raise SpecError(f"the branches of a conditional give different types: {a} and {b}; cast one of them")
        if a.ndim is not None and b.ndim is not None and a.ndim != b.ndim:
            raise SpecError(f"the branches of a conditional give different numbers of dimensions: {a} and {b}")
        if a.shape is None or b.shape is None:
            shape = b.shape if a.shape is None else a.shape
            shape = None if shape is None else (None,) * len(shape)
        else:
            shape = tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True))
        if a.layout and b.layout and a.layout != b.layout:
            raise SpecError(f"the branches of a conditional give different layouts: {a} and {b}; transpose one of them")
        return Spec(shape, b.dtype if a.dtype is None else a.dtype, a.layout or b.layout)

    def cpu(self, ctx: Any, then: Any, otherwise: Any) -> Any:
        raise AssertionError("the engine merges batches itself")

    gpu = cpu


class Condition(Operator, name="_conditional.condition"):
    """Convert the values of the condition of an ``if`` to truth values (booleans)."""

    what: Annotated[str, Arg("where it stands")] = "if"

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is not None and len(data.shape) > 0:
            raise SpecError(f"the condition of `{self.what}` must be a scalar (0 dimensions), got {data}; index it "
                            "first: x[0]")  # fmt: skip
        if self.what in ("and", "or") and data.dtype not in (None, DALIDataType.BOOL):
            raise SpecError(f"`{self.what}` takes bool, got {data}; compare it first, or cast it to BOOL")
        return Spec((), DALIDataType.BOOL)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        if data.ndim:
            raise SpecError(f"the condition of `{self.what}` must be a scalar (0 dimensions), got samples of "
                            f"{data.ndim} dimensions; index it first: x[0]")  # fmt: skip
        if self.what in ("and", "or") and data.dtype.kind != "b":
            raise SpecError(f"`{self.what}` takes bool, got {data.dtype}; compare it first, or cast it to BOOL")
        return Batch.from_dense(data.data[data.offsets] != 0, "", data.samples)


def without_conditions(graph: Graph) -> Graph:
    """Return the graph without `Condition` nodes; nodes that read them read their inputs instead. YAML needs none,
    because it accepts any number as a condition."""
    through = {n.id: n.inputs[0] for n in graph.nodes if isinstance(n.op, Condition)}

    def before(edge: Edge) -> Edge:
        while edge.node in through:
            edge = through[edge.node]
        return edge

    remaining = [
        replace(
            n,
            inputs=tuple(map(before, n.inputs)),
            args={k: before(e) for k, e in n.args.items()},
            scope=tuple((before(e), branch) for e, branch in n.scope),
            samples_of=None if n.samples_of is None else before(n.samples_of),
        )
        for n in graph.nodes
        if n.id not in through
    ]
    return renumber(remaining, {k: before(e) for k, e in graph.outputs.items()})
