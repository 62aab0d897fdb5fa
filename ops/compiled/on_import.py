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
"""Module of Numba whose import triggers installing the cache of compiled functions. Numba imports it before it compiles
anything."""


class _Finder:
    """Import hook that installs the cache of compiled functions after Python has imported the module `_WAITED_FOR`."""

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
    """Install the cache of compiled functions when Numba is imported, or now if it is imported already."""
    if _WAITED_FOR in sys.modules:
        from . import numba_cache

        numba_cache.install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
