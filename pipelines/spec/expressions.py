"""Steps of a spec whose inputs are the names in an expression."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...ops.formulas import expression


@dataclass(frozen=True, slots=True)
class Expression:
    """Kind of step whose inputs are the names in an expression, such as ``images * 2``."""

    key: str
    """Key of the expression in the step, for example ``if`` in ``{op: keep_if, if: width >= 256}``."""
    argument: str
    """Name of the operator's argument that gets the expression."""
    example: str


EXPRESSIONS = {
    "expr": Expression("expr", "expr", "images * 2 + 1"),
    "keep_if": Expression("if", "condition", "width >= 256"),
}
"""Kinds of steps whose inputs are the names in an expression, by operator name."""


def without_indices(text: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of the operator `expr` for an expression. Indexed names such as ``shape[0]`` are replaced by
    plain names, because the indexed elements become inputs."""
    new: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") if "[" in name else name
        while plain in new.values() or (plain != name and plain in names):
            plain += "_"
        new[name] = plain
    return {"expr": text if tuple(new.values()) == names else expression.renamed(text, new), "names": (*new.values(),)}
