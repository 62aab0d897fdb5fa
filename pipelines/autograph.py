"""Autograph: conditionals on DataNodes, by rewriting the source of the functions that use them, and of those they call.

`statements` looks at the source, `rewriter` changes it, and `conditionals` is what the changed functions call.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..ops.errors import SpecError
from .conditionals import Helper
from .rewriter import HELPER, Rewriter, arguments

F = TypeVar("F", bound=Callable[..., Any])
_KEPT = "_dali_run_do_not_convert"
_DEFINITION = "__dali_run_definition"
_converted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def do_not_convert(func: F) -> F:
    """Mark a function that works on no DataNodes: its source stays as it is."""
    setattr(func, _KEPT, True)
    return func


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with conditionals on DataNodes. Raises SpecError where its source cannot be found."""
    if getattr(function, _KEPT, False):
        return function
    try:
        made: Callable[..., Any] = _rewrite(function)
    except (OSError, TypeError, IndentationError) as e:
        raise SpecError(f"the source of {function.__name__}() cannot be found ({e}), which enable_conditionals needs; "
                        "define the function in a file") from None  # fmt: skip
    return made


def converted_callee(function: Any) -> Any:
    """What a rewritten function calls instead of ``function``: rewritten, if it is the user's."""
    if type(function) is functools.partial:
        return functools.partial(converted_callee(function.func), *function.args, **function.keywords)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - it is called in its place
    if isinstance(call, types.FunctionType) and not getattr(function, _KEPT, False):  # an object of a class with it
        return converted_callee(types.MethodType(call, function)) if _is_users(call) else function
    bound = isinstance(function, types.MethodType)
    plain = function.__func__ if bound else function
    if not isinstance(plain, types.FunctionType) or not _is_users(plain):
        return function
    try:
        made = _rewrite(plain)
    except (OSError, TypeError, SyntaxError):
        return function
    return types.MethodType(made, function.__self__) if bound else made


class _Helper(Helper):
    call = staticmethod(converted_callee)


def _is_users(function: types.FunctionType) -> bool:
    if getattr(function, _KEPT, False) or getattr(function, "_is_pipeline_def", False):
        return False
    if HELPER in function.__code__.co_freevars or function.__name__ == "<lambda>":
        return False
    module = function.__module__ or ""
    here = __name__.split(".")[0]
    if module.split(".")[0] in (here, "numpy", "torch", "jax", "functools", "contextlib", "typing"):
        return False
    path = function.__code__.co_filename
    return "site-packages" not in path and not path.startswith(("<frozen", _stdlib()))


@functools.cache
def _stdlib() -> str:
    import sysconfig

    return sysconfig.get_paths()["stdlib"]


def _rewrite(function: Any) -> Any:
    if function in _converted:
        return _converted[function]
    code = function.__code__
    lines, first = inspect.getsourcelines(code)  # of the function itself, not of what it wraps
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError("it is no plain function")
    definition.decorator_list = []
    definition.name = _DEFINITION  # its own name must go on to mean what it means outside
    owner = function.__qualname__.split(".")[-2:-1]
    definition = Rewriter(owner[0] if owner and owner[0] != "<locals>" else "").top(definition)
    ast.increment_lineno(definition, first - 1)
    factory = ast.FunctionDef(
        name="__factory",
        args=arguments([*code.co_freevars, HELPER]),
        body=[definition],
        decorator_list=[],
    )
    factory.type_params = []  # type: ignore[attr-defined]  # Python 3.12 asks for it
    module = ast.fix_missing_locations(ast.Module([factory], []))
    compiled = compile(module, code.co_filename, "exec")
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == _DEFINITION)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) | {HELPER: types.CellType(_Helper)}
    inner = inner.replace(co_name=code.co_name)
    made = types.FunctionType(inner, function.__globals__, function.__name__, function.__defaults__,
                              tuple(cells[n] for n in inner.co_freevars))  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__doc__, made.__module__, made.__qualname__ = function.__doc__, function.__module__, function.__qualname__
    _converted[function] = made
    return made
