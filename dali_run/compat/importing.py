"""The import hook: ``nvidia.dali`` and its submodules become the modules of this package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ..ops.dali_names import dali_run_name

DALI_VERSION = "2.4.0"
"""The version of DALI whose names and results this package reproduces."""
_OURS = __name__.partition(".")[0]
_THEIRS = "nvidia.dali"
_NAMES = """
experimental experimental.dynamic
experimental.dynamic.capture experimental.dynamic.checkpoint experimental.dynamic.math experimental.dynamic.pytorch
experimental.dynamic.pytorch.nodes experimental.dynamic.random internal python_function_plugin reducers sysconfig
"""
_ABSENT = frozenset(_NAMES.split())
"""Modules of DALI 2.4 that this package may lack. Importing one succeeds; taking a name from it raises ImportError."""


def install() -> None:
    """Let ``nvidia.dali`` be this package, from now on and in this process.

    Raises RuntimeError if the process imported DALI itself before.
    """
    loaded = sys.modules.get(_THEIRS)
    if loaded is not None and not isinstance(loaded, _Dali):
        raise RuntimeError(f"{_THEIRS} was imported before {_OURS}.compat: import {_OURS}.compat first")
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Dali(ModuleType):
    """The module ``nvidia.dali``: it has the names of this package and DALI's version."""

    __version__ = DALI_VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(importlib.import_module(_OURS), name)
        except AttributeError:
            raise AttributeError(f"{_OURS} has no {name!r} for module {_THEIRS!r}{_SEE}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(importlib.import_module(_OURS))})


class _Absent(ModuleType):
    """A module that DALI has and this package does not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}"[len(_THEIRS) + 1 :] in _ABSENT:  # `from nvidia.dali.experimental import dynamic`
            return importlib.import_module(f"{self.__name__}.{name}")
        raise ImportError(f"{self.__name__}.{name}: DALI has this name, {_OURS} does not{_SEE}", name=self.__name__)


_SEE = "; docs/dali-differences.md says what to use instead"


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == "nvidia":
            spec = PathFinder.find_spec(name)  # other packages of NVIDIA may be installed
            return ModuleSpec(name, _Empty(), is_package=True) if spec is None else spec
        if name != _THEIRS and not name.startswith(f"{_THEIRS}."):
            return None
        return ModuleSpec(name, _Loader(), is_package=True)


class _Empty(Loader):
    """Loader of an empty package."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Loader(Loader):
    """Loader that returns the module of this package with the same name after ``nvidia.dali``."""

    _own: tuple[Any, ...] = ()

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        rest = spec.name[len(_THEIRS) + 1 :]
        if not rest:
            return _Dali(_THEIRS, importlib.import_module(_OURS).__doc__)
        ours = f"{_OURS}.{dali_run_name(rest)}"
        try:
            module = importlib.import_module(ours)
        except ModuleNotFoundError as e:
            if e.name is None or not f"{ours}.".startswith(f"{e.name}."):
                raise  # our module imports a module that is missing
            if rest in _ABSENT:
                return _Absent(spec.name, f"{spec.name} is not in {_OURS}{_SEE}.")
            private = any(part.startswith("_") for part in rest.split("."))
            who = (
                f"{_OURS} does not have DALI's private modules"
                if private
                else f"DALI {DALI_VERSION} does not have it either"
            )
            raise ModuleNotFoundError(f"there is no module {spec.name!r} in {_OURS}; {who}", name=spec.name) from None
        self._own = module, module.__spec__, getattr(module, "__loader__", None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._own:  # it was imported before, and keeps its spec and loader
            module.__spec__, module.__loader__ = self._own[1:]
