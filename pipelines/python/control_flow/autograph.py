"""Autograph: conditionals on DataNodes, by rewriting the source of the definition and of the functions that it calls.

`statements` analyzes the source, `rewriter` changes it, and the changed functions call `conditionals`.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ....ops.errors import SpecError
from .conditionals import Helper
from .rewriter import HELPER, Rewriter, arguments

F = TypeVar("F", bound=Callable[..., Any])
_KEPT = "_dali_run_do_not_convert"
_DEFINITION = "__dali_run_definition"
_converted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Cache of rewritten functions, by the original. An attribute of the original would be copied by `functools.wraps`."""


def do_not_convert(func: F) -> F:
    """Mark a function that does not use DataNodes, so that it is not rewritten.

    Raises ValueError for a function decorated with `pipeline_def`: without enable_conditionals it is not rewritten
    anyway.
    """
    if getattr(func, "_is_pipeline_def", False):
        raise ValueError("do_not_convert is for functions that a definition calls, not for the definition itself")
    setattr(func, _KEPT, True)
    return func


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` rewritten so that `if`, `and`, `or` and `not` work on DataNodes. Raises SpecError if its
    source code cannot be found."""
    if getattr(function, _KEPT, False):
        return function
    try:
        rewritten: Callable[..., Any] = _rewrite(function)
    except (OSError, TypeError, IndentationError) as e:
        raise SpecError(f"the source of {function.__name__}() cannot be found ({e}), which enable_conditionals needs; "
                        "define the function in a file") from None  # fmt: skip
    return rewritten


def converted_callee(function: Any) -> Any:
    """Return the function that rewritten code calls instead of ``function``: a rewritten copy if ``function`` is user
    code, otherwise ``function`` itself."""
    if type(function) is functools.partial:
        return functools.partial(converted_callee(function.func), *function.args, **function.keywords)
    call = getattr(type(function), "__call__", None)  # noqa: B004 - it is called instead of the object
    # an object whose class has a __call__ method
    if isinstance(call, types.FunctionType) and not getattr(function, _KEPT, False):
        return converted_callee(types.MethodType(call, function)) if _is_users(call) else function
    bound = isinstance(function, types.MethodType)
    plain = function.__func__ if bound else function
    if not isinstance(plain, types.FunctionType) or not _is_users(plain):
        return function
    try:
        rewritten = _rewrite(plain)
    except (OSError, TypeError, SyntaxError):
        return function
    return types.MethodType(rewritten, function.__self__) if bound else rewritten


class _Helper(Helper):
    call = staticmethod(converted_callee)


def _is_users(function: types.FunctionType) -> bool:
    if getattr(function, _KEPT, False) or getattr(function, "_is_pipeline_def", False):
        return False
    if HELPER in function.__code__.co_freevars:
        return False
    module = function.__module__ or ""
    package = __name__.split(".")[0]
    if module.split(".")[0] in (package, "numpy", "torch", "jax", "functools", "contextlib", "typing"):
        return False
    path = function.__code__.co_filename
    return "site-packages" not in path and not path.startswith(("<frozen", _stdlib()))


@functools.cache
def _stdlib() -> str:
    import sysconfig

    return sysconfig.get_paths()["stdlib"]


def _source_of(code: types.CodeType) -> ast.FunctionDef:
    """Return the syntax tree of a function's `def` from its code object. Raises OSError if there is no source text,
    TypeError if it is not a plain function."""
    lines, first = inspect.getsourcelines(code)
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError("it is not a plain function")
    ast.increment_lineno(definition, first - 1)
    return definition


def _source_of_lambda(code: types.CodeType) -> ast.FunctionDef:
    """Return the lambda with the compiled ``code`` as the syntax tree of a `def`. Of several lambdas in one line, the
    one at the positions of ``code`` is chosen. Raises OSError if there is no source text, TypeError if the lambda
    cannot be identified."""
    lines, _ = inspect.findsource(code)
    positions = _places(code)
    candidates = [n for n in _lambdas_of("".join(lines)) if n.lineno == code.co_firstlineno]
    matching = [n for n in candidates if _places_of(n) == positions]
    if len(matching) != 1:
        raise TypeError(f"{len(matching)} lambdas in line {code.co_firstlineno} match")
    node = copy.deepcopy(matching[0])  # a copy, because it will be rewritten
    body = ast.copy_location(ast.Return(node.body), node.body)
    definition = ast.FunctionDef(name=_DEFINITION, args=node.args, body=[body], decorator_list=[])
    definition.type_params = []  # type: ignore[attr-defined] # required by Python 3.12
    return ast.copy_location(definition, node)


@functools.lru_cache(maxsize=4)
def _lambdas_of(source: str) -> list[ast.Lambda]:
    return [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Lambda)]


def _places_of(node: ast.Lambda) -> set[Any]:
    compiled = compile(ast.Expression(node), "<lambda>", "eval")
    return next(_places(c) for c in compiled.co_consts if isinstance(c, types.CodeType))


def _places(code: types.CodeType) -> set[Any]:
    return {p for p in code.co_positions() if None not in p}


def _rewrite(function: Any) -> Any:
    if function in _converted:
        return _converted[function]
    code = function.__code__  # the function's own code, not that of a function that it wraps
    definition = _source_of_lambda(code) if code.co_name == "<lambda>" else _source_of(code)
    definition.decorator_list = []
    definition.name = _DEFINITION  # so that the function's own name in its body keeps its outer meaning
    owner = function.__qualname__.split(".")[-2:-1]
    definition = Rewriter(owner[0] if owner and owner[0] != "<locals>" else "").top(definition)
    factory = ast.FunctionDef(
        name="__factory",
        args=arguments([*code.co_freevars, HELPER]),
        body=[definition],
        decorator_list=[],
    )
    factory.type_params = []  # type: ignore[attr-defined] # required by Python 3.12
    module = ast.fix_missing_locations(ast.Module([factory], []))
    compiled = compile(module, code.co_filename, "exec")
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == _DEFINITION)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) | {HELPER: types.CellType(_Helper)}
    inner = inner.replace(co_name=code.co_name)
    rewritten = types.FunctionType(inner, function.__globals__, function.__name__, function.__defaults__,
                              tuple(cells[n] for n in inner.co_freevars))  # fmt: skip
    rewritten.__kwdefaults__ = function.__kwdefaults__
    rewritten.__doc__, rewritten.__module__, rewritten.__qualname__ = (
        function.__doc__,
        function.__module__,
        function.__qualname__,
    )
    _converted[function] = rewritten
    return rewritten
