"""DALI's functions that load plugins. A plugin of this package is a Python file that declares operators; compiled
plugins work only with DALI."""

from __future__ import annotations

from pathlib import Path

from .ops.errors import SpecError
from .pipelines.plugins import load_plugin

__all__ = ["load_directory", "load_library"]


def load_library(library_path: str, global_symbols: bool = False) -> None:
    """Run the Python file ``library_path``, so that its operators are declared.

    ``global_symbols`` is accepted for compatibility with DALI and ignored. Raises RuntimeError (SpecError) for a
    compiled library, and if the file does not exist.
    """
    del global_symbols
    if not str(library_path).endswith(".py"):
        raise SpecError(f"{library_path} is a compiled library, which works only with DALI; declare the operator in "
                        "Python (ops/README.md) and load that file")  # fmt: skip
    load_plugin(str(library_path))


def load_directory(plugin_dir_path: str, global_symbols: bool = False) -> None:
    """Call `load_library` for every Python file of a folder, and for every compiled DALI plugin (libdali_*.so) in its
    subfolders.

    Raises RuntimeError (SpecError) as `load_library` does.
    """
    root = Path(plugin_dir_path)
    if not root.is_dir():
        raise SpecError(f"folder {plugin_dir_path} does not exist")
    for path in sorted([*root.glob("*.py"), *root.glob("*/libdali_*.so")]):
        load_library(str(path), global_symbols)
