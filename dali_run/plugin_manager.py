"""DALI's loader of plugins. Plugins here are Python files that declare operators; compiled ones are for DALI alone."""

from __future__ import annotations

from pathlib import Path

from .ops.errors import SpecError
from .pipelines.plugins import load_plugin

__all__ = ["load_directory", "load_library"]


def load_library(library_path: str, global_symbols: bool = False) -> None:
    """Run the Python file ``library_path``, so that its operators are declared. ``global_symbols`` is taken for DALI's
    sake. Raises RuntimeError (SpecError) for a compiled library, and where there is no such file."""
    del global_symbols
    if not str(library_path).endswith(".py"):
        raise SpecError(f"{library_path} is a library for DALI, which cannot be used here; declare the operator in "
                        "Python (ops/README.md), and load that file")  # fmt: skip
    load_plugin(str(library_path))


def load_directory(plugin_dir_path: str, global_symbols: bool = False) -> None:
    """`load_library` for every Python file of a folder, and compiled plugins of DALI's below it. Raises RuntimeError
    (SpecError) as that does."""
    root = Path(plugin_dir_path)
    if not root.is_dir():
        raise SpecError(f"there is no folder {plugin_dir_path}")
    for path in sorted([*root.glob("*.py"), *root.glob("*/libdali_*.so")]):
        load_library(str(path), global_symbols)
