"""First sample: the types and numbers of dimensions that the spec leaves open, as the first sample of the data set has
them.

What a batch holds is declared, or decided once for a whole data set: by its first record in stored order that no
operator rejects, however batches, chunks, parts and workers are cut. `Sources` asks for it before an engine starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ...ops.base import Spec
from ...ops.batch import Batch, Samples
from ...ops.compiled.warm_up_client import on_behalf
from ...ops.types import from_numpy
from ...readers.base import Reader
from ..compile.plan import Plan
from ..compile.split_job import Parts, SplitPlans
from ..graph.nodes import Edge, Node
from .nodes.node_pass import Env, NodePass
from .nodes.run_nodes import run_nodes

Stored = tuple[Samples, Mapping[int, Samples]]
"""One record of each reader: the samples of the iteration, and those of each reader by its node."""
MAX_TRIED = 100
"""Records that are tried, in stored order, until one is not rejected."""


def undecided(plan: Plan) -> list[Edge]:
    """The outputs of operators whose type or number of dimensions is known only from data of a data set."""
    open_ends = [n for n in _by_records(plan) if any(s.dtype is None or s.shape is None for s in n.specs)]
    return [Edge(n.id, k) for n in open_ends for k in range(n.op.num_outputs) if not isinstance(n.op, (Reader, Parts))]


def _by_records(plan: Plan) -> Iterator[Node]:
    """The nodes of ``plan`` that the host computes from records alone, without the user's program."""
    out = set[int]()
    for node in plan.graph.nodes:
        asked = node.op.per_batch and not isinstance(node.op, (Reader, Parts)) and not node.inputs
        if (
            asked
            or "cpu" not in node.op.stages
            or not (node.op.shared or isinstance(node.op, Parts))
            or {e.node for e in node.reads} & out
        ):
            out.add(node.id)
        else:
            yield node


def first_sample(
    plan: Plan, states: Mapping[int, Any], records: Iterator[Stored], edges: Collection[Edge],
    kinds: Mapping[Edge, Spec] = MappingProxyType({}),
) -> Env:  # fmt: skip
    """For each of ``edges`` the batch of the first of ``records`` that gets there, computed on the host. Empty if some
    cannot be computed there. ``kinds``: what is decided already."""
    nodes = _ancestors(list(_by_records(plan)), edges)
    found: Env = {}
    if not edges or not plan.readers or {e.node for e in edges} - {n.id for n in nodes}:
        return found
    for samples, per_reader in records:
        env = attempt(nodes, NodePass(samples, plan.seeds, states=states, reader_samples=per_reader, kinds=kinds), {})
        found |= {e: env[e] for e in edges if e not in found and len(env.get(e, ()))}
        if len(found) == len(set(edges)):  # branches of conditionals see samples of their own
            break
    return found


def attempt(nodes: Sequence[Node], run: NodePass, env: Env) -> Env:
    """``env`` with the outputs of ``nodes``, as far as the host can compute them for the one sample of ``run``."""
    run.emulate = True
    for node in nodes:
        if all(e in env for e in node.reads):
            with suppress(Exception), on_behalf(node.op.name):  # the run itself says what is wrong
                run_nodes([node], env, run)
    return env


def _ancestors(nodes: Sequence[Node], edges: Collection[Edge]) -> list[Node]:
    """Those of ``nodes`` that ``edges`` depend on, in order."""
    needed = {e.node for e in edges}
    for node in reversed(nodes):
        if node.id in needed:
            needed |= {e.node for e in node.reads}
    return [n for n in nodes if n.id in needed]


def first_part(split_plans: SplitPlans, states: Mapping[int, Any], records: Iterator[Stored]) -> Env:
    """As `first_sample`, for all outputs of the graph after samples were split: the first part of the first record."""
    outputs = split_plans.front.graph.outputs
    nodes = [n for n in _by_records(split_plans.back) if n.id != split_plans.source]
    for stored in records:
        env = first_sample(split_plans.front, states, iter([stored]), list(outputs.values()))
        found = {name: env[e] for name, e in outputs.items() if e in env}
        if len(found) < len(outputs) or not int(split_plans.split.counts(found[split_plans.data])[0]):
            continue
        given = split_plans.first_part(found)
        run = NodePass(given[0].samples, split_plans.back.seeds)
        env = attempt(nodes, run, {Edge(split_plans.source, k): b for k, b in enumerate(given)})
        if all(len(env.get(e, ())) for e in split_plans.back.graph.outputs.values()):
            return env
    return {}


def spec_of(batch: Batch) -> Spec:
    """The shape, type and layout of the first sample of ``batch``."""
    return Spec(tuple(batch.shapes[0].tolist()), from_numpy(batch.dtype), batch.layout)


@dataclass(frozen=True, slots=True)
class Decided:
    """Facts that a data set's first sample decides."""

    kinds: Mapping[Edge, Spec] = field(default_factory=dict)
    """Types and numbers of dimensions, for outputs of operators for which the plan leaves them open."""
    key: str = ""
    """The sample's key; empty if nothing was open, or no record could be computed."""

    @staticmethod
    def by(env: Mapping[Edge, Batch], edges: Collection[Edge]) -> Decided:
        """The facts of the one sample in ``env``, at ``edges``."""
        found = {e: env[e] for e in edges if e in env}
        key = next(iter(found.values())).samples.origin(0).key if found else ""
        return Decided({e: spec_of(b) for e, b in found.items()}, key)
