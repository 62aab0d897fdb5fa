"""Steps of a spec whose inputs are the names in an expression."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...ops.formulas import expression


@dataclass(frozen=True, slots=True)
class Expression:
    """A step whose inputs are the names in an expression."""

    key: str
    """Key of the expression in the step."""
    argument: str
    """Argument of the operator."""
    example: str


EXPRESSIONS = {
    "expr": Expression("expr", "expr", "images * 2 + 1"),
    "keep_if": Expression("if", "condition", "width >= 256"),
}
"""Steps whose inputs are the names in an expression, by the operator."""


def without_indices(text: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of `expr` for an expression: elements of batches are inputs with plain names."""
    new: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") if "[" in name else name
        while plain in new.values() or (plain != name and plain in names):
            plain += "_"
        new[name] = plain
    return {"expr": text if tuple(new.values()) == names else expression.renamed(text, new), "names": (*new.values(),)}
