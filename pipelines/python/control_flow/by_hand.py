"""fn._conditional: operators with which programs split and merge batches themselves, as DALI's conditionals do for
`if`."""

from __future__ import annotations

from typing import Any

from ...graph.conditionals import Condition
from ..data_node import DataNode, apply, as_node, calculate, current_builder, one


def _condition(value: Any, statement: str) -> DataNode:
    return one(apply(Condition, [as_node(value)], {"what": statement}))


def split(input: Any, *, predicate: Any) -> list[DataNode]:
    """Split a batch into two parts, and return them: samples for which ``predicate`` is true, and the others. `merge`
    joins the parts again. Raises SpecError if the predicate has more than one number per sample."""
    builder, data = current_builder(), as_node(input)
    parts = builder.split(data.edge, as_node(predicate).edge)
    return [DataNode(builder, edge, data.device) for edge in parts]


def merge(true_branch: Any, false_branch: Any, *, predicate: Any) -> DataNode:
    """Join two parts into one batch, in the order that the samples had before `split` with the same ``predicate``."""
    builder, then, otherwise = current_builder(), as_node(true_branch), as_node(false_branch)
    edge = builder.merge_by_hand(as_node(predicate).edge, then.edge, otherwise.edge)
    return DataNode(builder, edge, "gpu" if "gpu" in (then.device, otherwise.device) else "cpu")


def not_(input: Any) -> DataNode:
    """Return the negation of a batch of numbers, as bool."""
    return calculate("{} == False", _condition(input, "not"))


def validate_logical(input: Any, *, expression_name: str, expression_side: str) -> DataNode:
    """Return ``input``, an operand of `and` or `or` (``expression_name``). Raises SpecError if it is not one bool per
    sample; ``expression_side`` (left, right) names the operand in messages."""
    del expression_side
    return _condition(input, expression_name)
