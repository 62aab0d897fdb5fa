"""Apart: a graph with `split_samples` as two, before it and after it, each of which is compiled and run by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from ...ops.base import Arg, Operator, Spec
from ...ops.batch import Batch, Samples
from ...ops.context import Context
from ...ops.errors import SpecError
from ...ops.sequences.split_samples import SplitSamples
from ...readers.base import Reader
from ..graph.nodes import Edge, Graph, Node
from ..graph.renumber import renumber
from .infer import infer
from .place import Target
from .plan import Plan, assign_seeds, compile_graph
from .prune import prune


class SplitOutputs(Operator, name="_parts"):
    """The first node of the graph after the split: parts of samples, and what is repeated for each of them."""

    inputs = (0, 0)
    per_batch = True
    shared = False
    count: Annotated[int, Arg("outputs", ge=1)] = 1

    @property
    def num_outputs(self) -> int:
        return self.count

    def cpu(self, ctx: Context) -> tuple[Batch, ...]:
        given: tuple[Batch, ...] = ctx.source.take(ctx.samples)
        return given


@dataclass(frozen=True, slots=True)
class SplitPlans:
    """The two graphs of a job that makes several samples of one, compiled."""

    whole: Graph
    """Both together, with what is known of each edge."""
    front: Plan
    """On the CPU: up to the split. Its outputs are `data` and `repeated`."""
    back: Plan
    """From the parts on; node 0 gives them."""
    split: SplitSamples
    name: str
    """Of the split, in reports."""
    where: str
    """The place of the split, for messages."""
    data: str
    """The front's output that is cut."""
    beside: tuple[str, ...]
    """Its outputs that are cut like that one."""
    repeated: tuple[str, ...]
    """Its outputs that are repeated for each part, in the order of node 0's further outputs."""
    source: int
    """The id of the node that gives the parts."""

    def first_part(self, outputs: Mapping[str, Batch]) -> tuple[Batch, ...]:
        """The outputs of node `source` for the first part of the first sample of the front's ``outputs``."""
        cut = [outputs[name] for name in (self.data, *self.beside)]
        whole, zero = cut[0].samples.take(slice(0, 1)), np.zeros(1, np.int32)
        samples = Samples(zero, whole.position, whole.epoch, whole.index, whole.origins, zero)
        repeated = (outputs[name].take(slice(0, 1), samples) for name in self.repeated)
        return (*self.split.parts(cut, np.zeros(1, np.int64), zero, samples), *repeated)

    def describe(self) -> dict[str, Any]:
        """Both plans as plain data, as one."""
        first, then = self.front.describe(), self.back.describe()
        n = len(self.front.steps)
        for row in then["stages"]:
            row["id"] = f"{int(row['id'][:2]) + n:02d}{row['id'][2:]}"
        for row in then["operators"]:
            row["stage"] += n
        both = {key: first[key] + then[key] for key in ("stages", "operators", "fused", "promoted")}
        return {**then, **both}


def compile_job(graph: Graph, target: Target, seed: int, *, by_batches: bool = False) -> Plan | SplitPlans:
    """The plan of a job's graph, or its two plans. ``by_batches``: a sample's result depends on the rest of its batch.
    Raises SpecError."""
    split_plans = split_job(graph, target, seed)
    if split_plans is not None and by_batches:
        raise SpecError(f"{split_plans.where}: needs results that do not depend on batches; leave out rng: dali and "
                        "on_error: {policy: replace}")  # fmt: skip
    return split_plans or compile_graph(graph, target, seed)


def split_job(graph: Graph, target: Target, seed: int) -> SplitPlans | None:
    """``graph`` cut at its `split_samples`; None where it has none. Raises SpecError where it cannot be cut there."""
    found = [n for n in graph.nodes if isinstance(n.op, SplitSamples)]
    if not found:
        return None
    if len(found) > 1:
        raise SpecError(f"{found[1].where}: a job has one split_samples, {found[0].where} is the first")
    if found[0].scope:
        raise SpecError(f"{found[0].where}: stands in a branch of a conditional; split before or after it")
    graph = infer(prune(graph))
    seeds = assign_seeds(graph, seed)
    graph = replace(graph, nodes=tuple(replace(n, seed=seeds.get(n.id, n.seed)) for n in graph.nodes))
    split = next((n for n in graph.nodes if isinstance(n.op, SplitSamples)), None)
    if split is None:
        raise SpecError(f"{found[0].where}: no output depends on it; leave it out")
    assert isinstance(split.op, SplitSamples)
    after = {n.id for n in graph.nodes if n.id > split.id and not isinstance(n.op, Reader)}
    wanted = [*(e for n in graph.nodes if n.id in after for e in n.reads), *graph.outputs.values()]
    crossing = tuple(dict.fromkeys(e for e in wanted if e.node not in after and e.node != split.id))
    names = {e: f"{graph.node(e).name}.{e.output}" for e in (*split.inputs, *crossing)}
    front = compile_graph(_front(graph, split, after, names), Target("cpu"), seed)
    back, source = _back(graph, split, after, crossing)
    return SplitPlans(
        graph, front, compile_graph(back, target, seed), split.op, split.name, split.where, names[split.inputs[0]],
        tuple(names[e] for e in split.inputs[1:]), tuple(names[e] for e in crossing), source,
    )  # fmt: skip


def _front(graph: Graph, split: Node, after: set[int], names: Mapping[Edge, str]) -> Graph:
    nodes = [n for n in graph.nodes if n.id not in after and n.id != split.id]
    return prune(renumber(nodes, {name: e for e, name in names.items()}))


def _back(graph: Graph, split: Node, after: set[int], crossing: tuple[Edge, ...]) -> tuple[Graph, int]:
    """The nodes after the split, which is replaced by a node that gives its outputs and what crosses over."""
    op = SplitOutputs(count=split.op.num_outputs + len(crossing))
    specs: tuple[Spec, ...] = (*split.specs, *(graph.spec(e) for e in crossing))
    new = {e: Edge(split.id, split.op.num_outputs + k) for k, e in enumerate(crossing)}
    given = Node(split.id, op, (), {}, split.name, mark=split.mark, specs=specs)

    def moved(e: Edge) -> Edge:
        return new.get(e, e)

    nodes = [given]
    for n in graph.nodes:
        if n.id in after:
            inputs, args = tuple(map(moved, n.inputs)), {k: moved(e) for k, e in n.args.items()}
            scope = tuple((moved(e), branch) for e, branch in n.scope)
            samples_of = None if n.samples_of is None else moved(n.samples_of)
            nodes.append(replace(n, inputs=inputs, args=args, scope=scope, samples_of=samples_of))
    back = prune(renumber(nodes, {k: moved(e) for k, e in graph.outputs.items()}))
    return back, next(n.id for n in back.nodes if isinstance(n.op, SplitOutputs))
