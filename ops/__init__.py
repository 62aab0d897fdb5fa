"""Batches, the declaration of operators, and the operators: the ground floor.

``ops.Resize`` and its like are DALI's operator classes. They call into the graph, which stands above this folder, so
that it is told from there how to make them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .compiled import on_import

on_import.watch()

operator_classes: Callable[[str], Any] | None = None
"""Gives the class, or the namespace of classes, of a name; set by the facade."""
operator_class_names: Callable[[], list[str]] | None = None
"""Gives the names that `operator_classes` knows; set by the facade."""


def __dir__() -> list[str]:
    return operator_class_names() if operator_class_names else sorted(globals())


def __getattr__(name: str) -> Any:
    own_module = any((Path(__file__).parent / n).exists() for n in (f"{name}.py", name))
    if operator_classes is None or name.startswith("_") or own_module:
        raise AttributeError(f"module 'dali_run.ops' has no attribute {name!r}")
    return operator_classes(name)
