"""Install the hooks of `numba_cache` when Numba is imported, before it compiles anything, and without importing it."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_WAITED_FOR = "numba.core.decorators"
"""Module of Numba that is imported before anything is compiled: after it, the hook installs the cache of compiled
loops."""


class _Finder:
    """Import hook that finds one module as Python does, and adds a step after its execution."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _WAITED_FOR:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            from . import numba_cache

            numba_cache.install()

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


def watch() -> None:
    """Install the hooks as soon as Numba is imported."""
    if _WAITED_FOR in sys.modules:
        from . import numba_cache

        numba_cache.install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
