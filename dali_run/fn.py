"""DALI's operators as functions, generated from the registry: fn.resize, fn.decoders.image, fn.readers.file, ...

The stub beside this file, fn.pyi, spells them out for type checkers and editors.
"""

from __future__ import annotations

from typing import Any

from .pipelines.functions import Namespace, operator_function

_functions = Namespace(__name__, "", operator_function, str)


def __getattr__(name: str) -> Any:
    return getattr(_functions, name)


def __dir__() -> list[str]:
    return dir(_functions)
