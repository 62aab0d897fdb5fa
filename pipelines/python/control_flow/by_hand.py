"""fn._conditional: batches split and merged by a program itself, as DALI's conditionals do it for `if`."""

from __future__ import annotations

from typing import Any

from ...graph.conditionals import Condition
from ..data_node import DataNode, apply, as_node, calculate, current_builder, one


def _condition(value: Any, what: str) -> DataNode:
    return one(apply(Condition, [as_node(value)], {"what": what}))


def split(input: Any, *, predicate: Any) -> list[DataNode]:
    """Return the samples for which ``predicate`` is true, and the others. Operators on a part run for its samples
    alone, until `merge`. Raises SpecError for a predicate of more than one number."""
    builder, data = current_builder(), as_node(input)
    parts = builder.split(data.edge, as_node(predicate).edge)
    return [DataNode(builder, edge, data.device) for edge in parts]


def merge(true_branch: Any, false_branch: Any, *, predicate: Any) -> DataNode:
    """Return one batch of both parts, in the order of the samples that `split` with the same ``predicate`` divided."""
    builder, then, otherwise = current_builder(), as_node(true_branch), as_node(false_branch)
    edge = builder.merge_by_hand(as_node(predicate).edge, then.edge, otherwise.edge)
    return DataNode(builder, edge, "gpu" if "gpu" in (then.device, otherwise.device) else "cpu")


def not_(input: Any) -> DataNode:
    """Return the negation of a batch of numbers, as bool."""
    return calculate("{} == False", _condition(input, "not"))


def validate_logical(input: Any, *, expression_name: str, expression_side: str) -> DataNode:
    """Return ``input``, an operand of `and` or `or` (``expression_name``). Raises SpecError if it is not one bool per
    sample; ``expression_side`` (left, right) is for people."""
    del expression_side
    return _condition(input, expression_name)
