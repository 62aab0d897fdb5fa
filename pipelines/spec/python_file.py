"""Python pipelines as specs: `my_module.py:pipeline_fn` is accepted wherever a spec's path is."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ...ops.errors import SpecError
from ..plugins import check_allowed
from ..problems import Mark, Problems
from .text import Value, parse, resolve
from .variables import FromProgram, mark_of

_PATH = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
_DEFAULTS = {"batch_size": 64, "on_error": "skip"}
"""Defaults for arguments that a pipeline function does not set itself, equal to those of specs."""


def is_python(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` names a function in a Python file, as ``file.py:name``."""
    return _PATH.fullmatch(os.fspath(path)) is not None


def read_python(
    path: str | os.PathLike[str], overrides: Mapping[str, Any], problems: Problems
) -> tuple[Value | None, Mapping[str, Any]]:
    """Run the pipeline function that ``path`` names. Return its graph as the document of a spec, and the remaining
    overrides. Overrides with the name of a parameter are passed to the function instead. Exceptions of the user's
    module become problems."""
    name = os.fspath(path)
    mark = Mark(name, 1, 1)
    try:
        text, used = _text(name, overrides, problems)
    except SpecError as e:
        problems.add(mark, str(e))
        return None, overrides
    if isinstance(overrides, FromProgram):
        return parse(text, name, problems), overrides.without(used)
    return parse(text, name, problems), {k: v for k, v in overrides.items() if k not in used}


def marked(file: str | os.PathLike[str]) -> str:
    """Return the pipeline function with @autoserialize in ``file`` as ``file:name``. Raises SpecError unless there is
    exactly one."""
    names = [n for n, v in vars(_module(Path(file))).items() if getattr(v, "_is_autoserialize", False)]
    if len(names) != 1:
        raise SpecError(f"{os.fspath(file)} has {len(names)} pipeline functions with @autoserialize; mark exactly "
                        "one, or "
                        f"name the function: {os.fspath(file)}:NAME")  # fmt: skip
    return f"{os.fspath(file)}:{names[0]}"


def _text(path: str, overrides: Mapping[str, Any], problems: Problems) -> tuple[str, set[str]]:
    match = _PATH.fullmatch(path)
    assert match is not None
    module = _module(Path(match["file"]))
    factory = getattr(module, match["name"], None)
    if not getattr(factory, "_is_pipeline_def", False):
        known = [n for n, v in vars(module).items() if getattr(v, "_is_pipeline_def", False)]
        raise SpecError(f"{match['name']!r} is not a function with @pipeline_def in {match['file']}; "
                        f"available: {', '.join(known) or 'none'}")  # fmt: skip
    assert factory is not None
    own_parameters = inspect.signature(factory).parameters
    used = {k for k in overrides if k in own_parameters}
    parameters = {k: _value(overrides[k], mark_of(overrides, k), problems) for k in used}
    defaults = {k: v for k, v in _DEFAULTS.items() if k not in factory.pipeline_defaults}
    try:
        pipeline = factory(**parameters, **defaults)
        return pipeline.to_yaml(), used
    except SpecError:
        raise
    except Exception as e:  # the user's function may raise any exception
        raise SpecError(f"{match['name']}() raised {type(e).__name__}: {e}") from e


def _value(override: Any, mark: Mark, problems: Problems) -> Any:
    return resolve(override, mark, problems) if isinstance(override, str) else override


def _module(file: Path) -> ModuleType:
    name = "dali_run_module_" + re.sub(r"\W", "_", str(file.resolve()))
    module_spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or module_spec is None or module_spec.loader is None:
        raise SpecError(f"there is no file {file}")
    check_allowed(file)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))  # for the file's own imports, as when Python runs it
    try:
        module_spec.loader.exec_module(module)
    except Exception as e:  # the user's module may raise any exception
        del sys.modules[name]
        raise SpecError(f"{file} cannot be imported: {type(e).__name__}: {e}") from e
    finally:
        sys.path.pop(0)
    return module
