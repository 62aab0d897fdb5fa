"""The registry of operators is filled by importing the modules that declare them: all of ops and readers."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

FOLDERS = ("ops", "readers")


@cache
def load_operators() -> None:
    """Import every module that may declare an operator; not the kernels' own (``*_cpu``), which import a compiler."""
    root = __package__.rpartition(".")[0]
    for folder in FOLDERS:
        package = importlib.import_module(f"{root}.{folder}")
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_") and not module.name.endswith("_cpu"):
                importlib.import_module(f"{package.__name__}.{module.name}")
