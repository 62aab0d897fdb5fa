"""Cut a graph at `split_samples` into two, before it and after it, each of which is compiled and run by itself. Called
by `job.run.prepare`."""

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
    """First node of the graph after `split_samples`. It outputs the items into which samples were split, and the data
    that each item shares with the others of its sample."""

    inputs = (0, 0)
    per_batch = True
    shared = False
    count: Annotated[int, Arg("outputs", ge=1)] = 1

    @property
    def num_outputs(self) -> int:
        return self.count

    def cpu(self, ctx: Context) -> tuple[Batch, ...]:
        outputs: tuple[Batch, ...] = ctx.source.take(ctx.samples)
        return outputs


@dataclass(frozen=True, slots=True)
class SplitPlans:
    """The two plans of a job that splits each sample into several items: before and after the split. Created by
    `split_job`; never changed."""

    whole: Graph
    """The graph of the whole job, before it was cut in two, with the specs (dtype, shape) of all edges."""
    front: Plan
    """The plan before the split, which runs on the CPU. `data`, `beside` and `repeated` name its outputs."""
    back: Plan
    """The plan after the split, which processes the items. They come from its node with the id `source`."""
    split: SplitSamples
    name: str
    """Name of the operator `split_samples` in reports."""
    where: str
    """Place of the operator `split_samples` in the spec, for messages."""
    data: str
    """Name of the output of `front` that is cut into items."""
    beside: tuple[str, ...]
    """Names of the further outputs of `front` that are cut into items in the same way as `data`."""
    repeated: tuple[str, ...]
    """Names of the outputs of `front` that are copied to every item of a sample. Node `source` outputs them after the
    items, in this order."""
    source: int
    """Id of the node in `back` that outputs the items (a `SplitOutputs`)."""

    def first_part(self, outputs: Mapping[str, Batch]) -> tuple[Batch, ...]:
        """Return what node `source` outputs for the first item of the first sample. ``outputs``: batches of the outputs
        of `front`, by name."""
        cut = [outputs[name] for name in (self.data, *self.beside)]
        sample, zero = cut[0].samples.take(slice(0, 1)), np.zeros(1, np.int32)
        samples = Samples(zero, sample.position, sample.epoch, sample.index, sample.origins, zero)
        repeated = (outputs[name].take(slice(0, 1), samples) for name in self.repeated)
        return (*self.split.parts(cut, np.zeros(1, np.int64), zero, samples), *repeated)

    def describe(self) -> dict[str, Any]:
        """Return both plans as plain data, joined into one plan, for ``dali-run plan --json``."""
        first, then = self.front.describe(), self.back.describe()
        n = len(self.front.steps)
        for row in then["stages"]:
            row["id"] = f"{int(row['id'][:2]) + n:02d}{row['id'][2:]}"
        for row in then["operators"]:
            row["stage"] += n
        both = {key: first[key] + then[key] for key in ("stages", "operators", "fused", "promoted")}
        return {**then, **both}


def compile_job(graph: Graph, target: Target, seed: int, *, by_batches: bool = False) -> Plan | SplitPlans:
    """Return the plan of a job's graph, or the two plans before and after `split_samples` if it has that.
    ``by_batches``: a sample's result depends on the rest of its batch, so that samples cannot be split. Raises
    SpecError."""
    split_plans = split_job(graph, target, seed)
    if split_plans is not None and by_batches:
        raise SpecError(f"{split_plans.where}: needs results that do not depend on batches; leave out rng: dali and "
                        "on_error: {policy: replace}")  # fmt: skip
    return split_plans or compile_graph(graph, target, seed)


def split_job(graph: Graph, target: Target, seed: int) -> SplitPlans | None:
    """Cut ``graph`` at its operator `split_samples`, and compile the graphs before and after it. Return None if it has
    no such operator. Raises SpecError if it cannot be cut there."""
    split_nodes = [n for n in graph.nodes if isinstance(n.op, SplitSamples)]
    if not split_nodes:
        return None
    if len(split_nodes) > 1:
        raise SpecError(f"{split_nodes[1].where}: a job has one split_samples, {split_nodes[0].where} is the first")
    if split_nodes[0].scope:
        raise SpecError(
            f"{split_nodes[0].where}: is in a branch of a conditional; split before or after the conditional"
        )
    graph = infer(prune(graph))
    seeds = assign_seeds(graph, seed)
    graph = replace(graph, nodes=tuple(replace(n, seed=seeds.get(n.id, n.seed)) for n in graph.nodes))
    split = next((n for n in graph.nodes if isinstance(n.op, SplitSamples)), None)
    if split is None:
        raise SpecError(f"{split_nodes[0].where}: no output depends on it; leave it out")
    assert isinstance(split.op, SplitSamples)
    after = {n.id for n in graph.nodes if n.id > split.id and not isinstance(n.op, Reader)}
    needed = [*(e for n in graph.nodes if n.id in after for e in n.reads), *graph.outputs.values()]
    crossing = tuple(dict.fromkeys(e for e in needed if e.node not in after and e.node != split.id))
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
    """Return the graph after the split, and the id of its first node, a `SplitOutputs`, which replaces `split_samples`.
    It outputs the items, and the data from before the split that later nodes need (``crossing``)."""
    op = SplitOutputs(count=split.op.num_outputs + len(crossing))
    specs: tuple[Spec, ...] = (*split.specs, *(graph.spec(e) for e in crossing))
    new = {e: Edge(split.id, split.op.num_outputs + k) for k, e in enumerate(crossing)}
    source = Node(split.id, op, (), {}, split.name, mark=split.mark, specs=specs)

    def moved(e: Edge) -> Edge:
        return new.get(e, e)

    nodes = [source]
    for n in graph.nodes:
        if n.id in after:
            inputs, args = tuple(map(moved, n.inputs)), {k: moved(e) for k, e in n.args.items()}
            scope = tuple((moved(e), branch) for e, branch in n.scope)
            samples_of = None if n.samples_of is None else moved(n.samples_of)
            nodes.append(replace(n, inputs=inputs, args=args, scope=scope, samples_of=samples_of))
    back = prune(renumber(nodes, {k: moved(e) for k, e in graph.outputs.items()}))
    return back, next(n.id for n in back.nodes if isinstance(n.op, SplitOutputs))
