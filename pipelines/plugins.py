"""Imports that fill the registries of operators, readers and writers.

Registered are dali-run's own modules, the entry points of the group ``dali_run.plugins`` (loaded when a name is not
among dali-run's own), and the Python files that a spec names.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..ops.base import Operator, find, is_known
from ..ops.errors import SpecError

if TYPE_CHECKING:
    from ..writers.base import Writer

FOLDERS = ("ops", "readers")
ENTRY_POINTS = "dali_run.plugins"
_DECLARES = re.compile(r"\bclass\s+\w+\s*\([^)]*\bname\s*=")


@cache
def load_operators() -> None:
    """Import every module of dali-run that declares an operator. They are found by their class statements, so that
    other modules, which may import compilers, are not imported."""
    for module in _declaring():
        importlib.import_module(module)


def find_operator(name: str) -> type[Operator]:
    """Return the operator ``name``, which may be an alias. Its module need not be imported yet. Only modules that
    contain the name are imported; all of them if none declares it, so that the error can suggest similar names.

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
    """Return the writer ``name`` of dali-run or of an installed package. Raises SpecError with the nearest names and
    with the errors of packages that cannot be imported."""
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
    """Return the source of every module of dali-run that declares an operator, by module name, sorted."""
    sources = {}
    root = __package__.rpartition(".")[0]
    for name in FOLDERS:
        package = importlib.import_module(f"{root}.{name}")
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            if path.name == "__init__.py" or path.stem.endswith("_cpu"):
                continue
            text = path.read_text(encoding="utf-8")
            if _DECLARES.search(text):
                sources[".".join([package.__name__, *path.relative_to(folder).with_suffix("").parts])] = text
    return sources


@cache
def load_installed_plugins() -> tuple[str, ...]:
    """Import the entry points of installed packages, once per process. Return messages about entry points that fail to
    import: a broken package that no spec needs must not stop the work.

    Entry points are imported even while specs are only inspected (``running_code(False)``): a spec cannot choose them.
    They were chosen by the person who installed the packages, like any other import.
    """
    from importlib.metadata import entry_points

    problems = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as e:  # third-party code may raise any exception on import
            problems.append(f"plugin {point.name} ({point.value}) cannot be imported: {_reason(e)}")
    return tuple(problems)


class NotRunError(SpecError):
    """Error for a Python file that a spec names and that was not run, because the user did not allow it."""


_allowed: ContextVar[bool] = ContextVar("allowed", default=True)


@contextlib.contextmanager
def running_code(allowed: bool) -> Iterator[None]:
    """Return a context manager in which the Python files that specs name may be run or not (``allowed``). Inspecting a
    spec must not execute them."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_allowed(path: str | os.PathLike[str]) -> None:
    """Raise NotRunError if `running_code` forbids to run the Python file ``path``. Called before a file that a spec
    names is run."""
    if not _allowed.get():
        raise NotRunError(f"{os.fspath(path)} is code and was not run; read it, then pass --plugins to run it")


def load_plugin(path: str) -> None:
    """Run the Python file ``path``, which defines operators, so that they are registered. Repeated calls in one process
    do nothing.

    Raises SpecError if the file does not exist or raises an exception; NotRunError if running code is not allowed.
    """
    file = Path(path).resolve()
    name = f"dali_run_plugin_{zlib.crc32(os.fsencode(file)):08x}_" + re.sub(r"\W", "_", str(file))
    if name in sys.modules:
        return
    if not file.is_file():
        raise SpecError(f"there is no plugin {path}; plugins are found relative to the spec")
    check_allowed(path)
    module_spec = importlib.util.spec_from_file_location(name, file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as e:  # the user's file may raise any exception
        del sys.modules[name]
        raise SpecError(f"plugin {path} cannot be imported: {_reason(e)}") from e


def _reason(e: Exception) -> str:
    return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
