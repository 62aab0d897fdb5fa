"""Determine the schema of a job: types, numbers of dimensions and shapes that its spec leaves open, as the data set's
first sample decides them.

The first line of the journal holds the schema, so every part and every later run of a job has the same one. Called by
`job.run` and `job.part`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...ops.base import Spec
from ...ops.types import DALIDataType
from ...readers.base import Reader
from ...writers.shards.config import WriteConfig
from ..compile.plan import Plan
from ..engine.first_sample import Decided, Stored, first_part, first_sample
from ..engine.inputs import JobFeed
from ..graph.nodes import Edge

if TYPE_CHECKING:
    from .run import Prepared


def schema_of(prepared: Prepared, feed: JobFeed, config: WriteConfig) -> dict[str, Any]:
    """Return what the first sample of the data set decided for a job, as JSON for the journal. Empty if the spec leaves
    nothing open.

    ``steps``: types and ranks of operators' outputs. ``fields``: types and shapes for the writer. ``first_sample``: the
    key of that sample."""
    graph = (prepared.plan if prepared.split_plans is None else prepared.split_plans.back).graph
    writer, key = config.check(), feed.decided.key
    fields = writer.schema(config.fields, {name: graph.spec(edge) for name, edge in graph.outputs.items()})
    if fields is None:
        specs, first = _from_first_sample(prepared, feed)
        fields, key = writer.schema(config.fields, specs) if specs else None, key or first
    schema = {"steps": _steps(prepared.plan, feed.decided), "fields": fields, "first_sample": key}
    return {k: v for k, v in schema.items() if v}


def _from_first_sample(prepared: Prepared, feed: JobFeed) -> tuple[dict[str, Spec], str]:
    """Return the specs (dtype, shape) that the job's outputs have for the first sample of the data set, and that
    sample's key."""
    if prepared.split_plans is not None:
        graph = prepared.split_plans.back.graph
        env = first_part(prepared.split_plans, feed.states, feed.stored())
    else:
        graph = prepared.plan.graph
        edges = list(graph.outputs.values())
        env = first_sample(prepared.plan, feed.states, _records(prepared, feed), edges, feed.kinds)
    decided = Decided.by(env, list(graph.outputs.values()))
    return {name: decided.kinds[e] for name, e in graph.outputs.items() if e in decided.kinds}, decided.key


def _records(prepared: Prepared, feed: JobFeed) -> Iterator[Stored]:
    """Yield records of the job to find its first sample: single records in stored order, or the whole first batch if
    the shape of a sample depends on its batch."""
    if any(n.op.per_batch and n.inputs and not isinstance(n.op, Reader) for n in prepared.plan.graph.nodes):
        yield feed.first_batch(prepared.spec.pipeline.batch_size)
    else:
        yield from feed.stored()


def _steps(plan: Plan, decided: Decided) -> dict[str, Any]:
    """Return type and number of dimensions of each operator output for which the compiled graph left them open, by node
    name and output number."""
    nodes = {n.id: n.name for n in plan.graph.nodes}
    return {
        f"{nodes[e.node]}.{e.output}": [k.dtype.name if k.dtype else None, k.ndim] for e, k in decided.kinds.items()
    }


def decided_in(schema: Mapping[str, Any], plan: Plan) -> Decided:
    """Return the types and ranks that the ``schema`` of a journal records, for the nodes of ``plan``."""
    names = {f"{n.name}.{k}": Edge(n.id, k) for n in plan.graph.nodes for k in range(n.op.num_outputs)}
    kinds = {
        names[name]: Spec((None,) * ndim, DALIDataType[dtype] if dtype else None)
        for name, (dtype, ndim) in schema.get("steps", {}).items()
        if name in names
    }
    return Decided(kinds, schema.get("first_sample", ""))
