"""Python pipelines as specs: `my_module.py:pipeline_fn` wherever the path of a spec is taken."""

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
"""Of a pipeline function that does not say: those of a spec."""


def is_python(path: str | os.PathLike[str]) -> bool:
    """``path`` names a function in a Python file."""
    return _PATH.fullmatch(os.fspath(path)) is not None


def read_python(
    path: str | os.PathLike[str], overrides: Mapping[str, Any], problems: Problems
) -> tuple[Value | None, Mapping[str, Any]]:
    """The document of the pipeline that ``path`` makes, and the overrides that are left: those with the name of an
    argument of the function are given to it. Exceptions of the module's own become problems."""
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
    """The one pipeline function of ``file`` with @autoserialize, as ``file:name``. Raises SpecError."""
    found = [n for n, v in vars(_module(Path(file))).items() if getattr(v, "_is_autoserialize", False)]
    if len(found) != 1:
        raise SpecError(f"{os.fspath(file)} has {len(found)} pipeline functions with @autoserialize, and needs one; or "
                        f"name the function: {os.fspath(file)}:NAME")  # fmt: skip
    return f"{os.fspath(file)}:{found[0]}"


def _text(path: str, overrides: Mapping[str, Any], problems: Problems) -> tuple[str, set[str]]:
    found = _PATH.fullmatch(path)
    assert found is not None
    module = _module(Path(found["file"]))
    factory = getattr(module, found["name"], None)
    if not getattr(factory, "_is_pipeline_def", False):
        known = [n for n, v in vars(module).items() if getattr(v, "_is_pipeline_def", False)]
        raise SpecError(f"{found['name']!r} is no function with @pipeline_def in {found['file']}; "
                        f"there are: {', '.join(known) or 'none'}")  # fmt: skip
    assert factory is not None
    own = inspect.signature(factory).parameters
    used = {k for k in overrides if k in own}
    given = {k: _value(overrides[k], mark_of(overrides, k), problems) for k in used}
    defaults = {k: v for k, v in _DEFAULTS.items() if k not in factory.pipeline_defaults}
    try:
        pipeline = factory(**given, **defaults)
        return pipeline.to_yaml(), used
    except SpecError:
        raise
    except Exception as e:  # whatever the user's function raises
        raise SpecError(f"{found['name']}() raised {type(e).__name__}: {e}") from e


def _value(given: Any, mark: Mark, problems: Problems) -> Any:
    return resolve(given, mark, problems) if isinstance(given, str) else given


def _module(file: Path) -> ModuleType:
    name = "dali_run_module_" + re.sub(r"\W", "_", str(file.resolve()))
    found = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or found is None or found.loader is None:
        raise SpecError(f"there is no file {file}")
    check_allowed(file)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))  # its own imports, as when it is run
    try:
        found.loader.exec_module(module)
    except Exception as e:  # whatever the user's module raises
        del sys.modules[name]
        raise SpecError(f"{file} cannot be imported: {type(e).__name__}: {e}") from e
    finally:
        sys.path.pop(0)
    return module
