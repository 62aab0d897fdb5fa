"""The registries of operators, readers and writers are filled by importing the modules that declare them: ours, entry
points of the group ``dali_run.plugins`` (once something is named that ours do not have), and the Python files that a
spec names.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..ops.base import Operator, find, is_known
from ..ops.errors import SpecError

if TYPE_CHECKING:
    from ..writers.base import Writer

FOLDERS = ("ops", "readers")
ENTRY_POINTS = "dali_run.plugins"
_DECLARES = re.compile(r"\bclass\s+\w+\s*\([^)]*\bname\s*=")
_plugins: dict[Path, ModuleType] = {}


@cache
def load_operators() -> None:
    """Import every module that declares an operator, found by its class statement; the others may import compilers."""
    for module in _declaring():
        importlib.import_module(module)


def find_operator(name: str) -> type[Operator]:
    """The operator ``name`` (or an alias of it), whatever was imported before. Only modules that say the name are
    imported; all of them where it is not found in those, so that the nearest names are known.

    Raises SpecError with the nearest names.
    """
    if not is_known(name):
        for module, text in _declaring().items():
            if f'"{name}"' in text:
                importlib.import_module(module)
    if not is_known(name):
        load_operators()
    return find(name)


def known_writer(name: str) -> type[Writer]:
    """The writer ``name``, of ours or of an installed package. Raises SpecError with the nearest names, and with what
    is wrong with packages that cannot be imported."""
    from ..writers.base import find_writer

    try:
        return find_writer(name)
    except SpecError:
        broken = load_installed_plugins()
    try:
        return find_writer(name)
    except SpecError as e:
        raise SpecError("; ".join([str(e), *broken])) from None


@cache
def _declaring() -> dict[str, str]:
    """The text of every module of ours that declares an operator, by the module's name, sorted."""
    found = {}
    root = __package__.rpartition(".")[0]
    for name in FOLDERS:
        package = importlib.import_module(f"{root}.{name}")
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            if path.name == "__init__.py" or path.stem.endswith("_cpu"):
                continue
            text = path.read_text(encoding="utf-8")
            if _DECLARES.search(text):
                found[".".join([package.__name__, *path.relative_to(folder).with_suffix("").parts])] = text
    return found


@cache
def load_installed_plugins() -> tuple[str, ...]:
    """Import what installed packages announce, once a process. Returns messages about those that cannot be imported:
    a broken package that no spec needs must not stop the work.

    This is also done while specs are only looked at (``running_code(False)``): a spec says which names it needs, never
    what is imported for them. That was decided by whoever installed the packages, as with any other import.
    """
    from importlib.metadata import entry_points

    problems = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as e:  # whatever a third party raises while it is imported
            problems.append(f"plugin {point.name} ({point.value}) cannot be imported: {_reason(e)}")
    return tuple(problems)


class NotRunError(SpecError):
    """Code that a spec brings along was not run, because nobody asked for it."""


_allowed: ContextVar[bool] = ContextVar("allowed", default=True)


@contextlib.contextmanager
def running_code(allowed: bool) -> Iterator[None]:
    """Whether Python files that specs name may be run inside: only looking at a spec must not execute it."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_allowed(path: str | os.PathLike[str]) -> None:
    """To be called before a file that a spec names is run. Raises NotRunError inside of ``running_code(False)``."""
    if not _allowed.get():
        raise NotRunError(f"{os.fspath(path)} is code, and was not run; read it, then give --plugins to run it")


def load_plugin(path: str) -> None:
    """Run the Python file ``path``, once a process, so that the operators in it are declared.

    Raises SpecError where there is no such file, or with what it raised; NotRunError.
    """
    file = Path(path).resolve()
    if file in _plugins:
        return
    if not file.is_file():
        raise SpecError(f"there is no plugin {path}; plugins are found relative to the spec")
    check_allowed(path)
    name = "dali_run_plugin_" + re.sub(r"\W", "_", str(file))
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as e:  # whatever the user's file raises
        del sys.modules[name]
        raise SpecError(f"plugin {path} cannot be imported: {_reason(e)}") from e
    _plugins[file] = module


def _reason(e: Exception) -> str:
    return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
