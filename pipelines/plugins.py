"""The registry of operators is filled by importing the modules that declare them: all of ops and readers, entry points
of the group ``dali_run.plugins``, and the Python files that a spec names.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from ..ops.errors import SpecError

FOLDERS = ("ops", "readers")
ENTRY_POINTS = "dali_run.plugins"
_DECLARES = re.compile(r"\bclass\s+\w+\s*\([^)]*\bname\s*=")
_plugins: dict[Path, ModuleType] = {}


@cache
def load_operators() -> None:
    """Import every module that declares an operator, found by its class statement; the others may import compilers."""
    root = __package__.rpartition(".")[0]
    for folder in FOLDERS:
        package = importlib.import_module(f"{root}.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.ispkg and not module.name.endswith("_cpu") and _declares(module.name):
                importlib.import_module(module.name)


def _declares(name: str) -> bool:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return False
    return bool(_DECLARES.search(Path(found.origin).read_text(encoding="utf-8")))


@cache
def load_installed_plugins() -> tuple[str, ...]:
    """Import what installed packages announce. Returns what is wrong with those that cannot be imported, for people:
    a broken package that no spec needs must not stop the work."""
    from importlib.metadata import entry_points

    problems = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as e:  # whatever a third party raises while it is imported
            problems.append(f"plugin {point.name} ({point.value}) cannot be imported: {_reason(e)}")
    return tuple(problems)


def load_plugin(path: str) -> None:
    """Run the Python file ``path``, once a process, so that the operators in it are declared.

    Raises SpecError where there is no such file, or with what it raised.
    """
    file = Path(path).resolve()
    if file in _plugins:
        return
    if not file.is_file():
        raise SpecError(f"there is no plugin {path}; plugins are found relative to the spec")
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
