"""Batches, the declaration of operators, and all operators: the lowest layer of the package.

``ops.Resize`` and the like are DALI's operator classes. They need the graph, a higher layer: `dali_run` therefore sets
the function that creates them (`operator_classes`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .compiled import on_import

on_import.watch()

operator_classes: Callable[[str], Any] | None = None
"""Function that returns the class of an operator such as ``Resize``, or a namespace such as ``decoders``, by name. Set
when `dali_run` is imported."""
operator_class_names: Callable[[], list[str]] | None = None
"""Function that returns all names that `operator_classes` accepts; set when `dali_run` is imported."""


def __dir__() -> list[str]:
    return operator_class_names() if operator_class_names else sorted(globals())


def __getattr__(name: str) -> Any:
    own_module = any((Path(__file__).parent / n).exists() for n in (f"{name}.py", name))
    if operator_classes is None or name.startswith("_") or own_module:
        raise AttributeError(f"module 'dali_run.ops' has no attribute {name!r}")
    return operator_classes(name)
