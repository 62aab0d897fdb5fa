"""Find the types and numbers of dimensions that a spec leaves open, from the first sample of the data set.

The first sample is the first record, in stored order, that no operator rejects. It decides once for the whole data set,
so that the result does not depend on batches, job parts and workers. `Sources` calls this before an engine starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ...ops.base import Spec
from ...ops.batch import Batch, Samples
from ...ops.compiled.times import on_behalf
from ...ops.types import from_numpy
from ...readers.base import Reader
from ..compile.plan import Plan
from ..compile.split_job import SplitOutputs, SplitPlans
from ..graph.nodes import Edge, Node
from .nodes.node_pass import Env, NodePass
from .nodes.run_nodes import run_nodes

Stored = tuple[Samples, Mapping[int, Samples]]
"""A batch of one record of each reader: its samples, and the samples of each reader by its node id."""
MAX_TRIED = 100
"""Maximum number of records that are tried, in stored order, to find one that is not rejected."""


def undecided(plan: Plan) -> list[Edge]:
    """Return the outputs of operators for which the plan leaves the type or number of dimensions open, so that only the
    data decide it."""
    undeclared = [n for n in _by_records(plan) if any(s.dtype is None or s.shape is None for s in n.specs)]
    return [
        Edge(n.id, k)
        for n in undeclared
        for k in range(n.op.num_outputs)
        if not isinstance(n.op, (Reader, SplitOutputs))
    ]


def _by_records(plan: Plan) -> Iterator[Node]:
    """Yield the nodes of ``plan`` that the host can compute from stored records, without the user's program."""
    excluded = set[int]()
    for node in plan.graph.nodes:
        calls_program = node.op.per_batch and not isinstance(node.op, (Reader, SplitOutputs)) and not node.inputs
        if (
            calls_program
            or "cpu" not in node.op.stages
            or not (node.op.shared or isinstance(node.op, SplitOutputs))
            or {e.node for e in node.reads} & excluded
        ):
            excluded.add(node.id)
        else:
            yield node


def first_sample(
    plan: Plan, states: Mapping[int, Any], records: Iterator[Stored], edges: Collection[Edge],
    kinds: Mapping[Edge, Spec] = MappingProxyType({}),
) -> Env:  # fmt: skip
    """Compute one sample at each of ``edges`` (outputs of nodes) on the host, and return these batches. Each comes from
    the first of ``records`` that no operator before the edge rejects. Return an empty dictionary if an edge cannot be
    computed on the host. ``kinds``: types and ranks that are known already."""
    nodes = _ancestors(list(_by_records(plan)), edges)
    batches: Env = {}
    if not edges or not plan.readers or {e.node for e in edges} - {n.id for n in nodes}:
        return batches
    for samples, per_reader in records:
        env = attempt(nodes, NodePass(samples, plan.seeds, states=states, reader_samples=per_reader, kinds=kinds), {})
        batches |= {e: env[e] for e in edges if e not in batches and len(env.get(e, ()))}
        if len(batches) == len(set(edges)):  # each branch of a conditional sees samples of its own
            break
    return batches


def attempt(nodes: Sequence[Node], run: NodePass, env: Env) -> Env:
    """Run all ``nodes`` that the host can compute for the only sample of ``run``. Return ``env`` with outputs."""
    run.emulate = True
    for node in nodes:
        if all(e in env for e in node.reads):
            with suppress(Exception), on_behalf(node.op.loop_client):  # the run itself reports errors
                run_nodes([node], env, run)
    return env


def _ancestors(nodes: Sequence[Node], edges: Collection[Edge]) -> list[Node]:
    """Return those of ``nodes``, in order, on which ``edges`` depend, directly or through others."""
    needed = {e.node for e in edges}
    for node in reversed(nodes):
        if node.id in needed:
            needed |= {e.node for e in node.reads}
    return [n for n in nodes if n.id in needed]


def first_part(split_plans: SplitPlans, states: Mapping[int, Any], records: Iterator[Stored]) -> Env:
    """Like `first_sample`, for a graph whose operator `split_samples` makes several items of each record. Return the
    batches of all outputs for the first item of the first record that has any."""
    outputs = split_plans.front.graph.outputs
    nodes = [n for n in _by_records(split_plans.back) if n.id != split_plans.source]
    for stored in records:
        env = first_sample(split_plans.front, states, iter([stored]), list(outputs.values()))
        front_outputs = {name: env[e] for name, e in outputs.items() if e in env}
        if len(front_outputs) < len(outputs) or not int(split_plans.split.counts(front_outputs[split_plans.data])[0]):
            continue
        inputs = split_plans.first_part(front_outputs)
        run = NodePass(inputs[0].samples, split_plans.back.seeds)
        env = attempt(nodes, run, {Edge(split_plans.source, k): b for k, b in enumerate(inputs)})
        if all(len(env.get(e, ())) for e in split_plans.back.graph.outputs.values()):
            return env
    return {}


def spec_of(batch: Batch) -> Spec:
    """Return the shape, type and layout of the first sample of ``batch``."""
    return Spec(tuple(batch.shapes[0].tolist()), from_numpy(batch.dtype), batch.layout)


@dataclass(frozen=True, slots=True)
class Decided:
    """Types and ranks that the plan leaves open, taken from a data set's first sample. Created by `Sources`."""

    kinds: Mapping[Edge, Spec] = field(default_factory=dict)
    """Types and numbers of dimensions of the first sample, for the outputs for which the plan leaves them open."""
    key: str = ""
    """Key of the first sample; empty if the plan left nothing open, or if no record could be computed."""

    @staticmethod
    def by(env: Mapping[Edge, Batch], edges: Collection[Edge]) -> Decided:
        """Return the types and ranks that the only sample in ``env`` has at ``edges`` (outputs of nodes)."""
        batches = {e: env[e] for e in edges if e in env}
        key = next(iter(batches.values())).samples.origin(0).key if batches else ""
        return Decided({e: spec_of(b) for e, b in batches.items()}, key)
