"""pipeline_def: a decorator that turns a function that calls operators into a factory of pipelines."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

from ...ops.base import nearest
from .control_flow import autograph
from .control_flow.user_code import in_user_code
from .debug import DebugPipeline
from .pipeline import Pipeline

_OWN = ("enable_conditionals", "debug")


@overload
def pipeline_def(fn: Callable[..., Any], /) -> Callable[..., Pipeline]: ...
@overload
def pipeline_def(
    fn: None = None, /, *, enable_conditionals: bool = False, **pipeline_kwargs: Any
) -> Callable[[Callable[..., Any]], Callable[..., Pipeline]]: ...
@overload
def pipeline_def(
    fn: Callable[..., Any], /, *, enable_conditionals: bool = False, **pipeline_kwargs: Any
) -> Callable[..., Pipeline]: ...
def pipeline_def(
    fn: Callable[..., Any] | None = None, /, *, enable_conditionals: bool = False, **pipeline_kwargs: Any
) -> Any:
    """Turn a function that calls operators and returns outputs into a factory of pipelines.

    Keyword arguments of Pipeline are set here or, with precedence, when the factory is called. With
    ``enable_conditionals``, `if`, `and`, `or` and `not` work on DataNodes, sample by sample.
    """
    defaults = {"enable_conditionals": enable_conditionals, **pipeline_kwargs}
    if fn is None:
        return functools.partial(_factory, defaults=defaults)
    return _factory(fn, defaults=defaults)


class experimental:  # noqa: N801 # the name of DALI's namespace
    """Namespace of DALI's experimental functions: ``pipeline_def.experimental``."""

    @overload
    @staticmethod
    def pipeline_def(
        fn: None = None, /, *, debug: bool = False, enable_conditionals: bool = False, **pipeline_kwargs: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Pipeline]]: ...
    @overload
    @staticmethod
    def pipeline_def(
        fn: Callable[..., Any], /, *, debug: bool = False, enable_conditionals: bool = False, **pipeline_kwargs: Any
    ) -> Callable[..., Pipeline]: ...
    @staticmethod
    def pipeline_def(
        fn: Callable[..., Any] | None = None, /, *, debug: bool = False, enable_conditionals: bool = False,
        **pipeline_kwargs: Any,
    ) -> Any:  # fmt: skip
        """Turn a function into a factory of pipelines, see `pipeline_def`. With ``debug`` operators run when they are
        called, and ``.get()`` returns their data."""
        defaults = {"enable_conditionals": enable_conditionals, "debug": debug, **pipeline_kwargs}
        if fn is None:
            return functools.partial(_factory, defaults=defaults)
        return _factory(fn, defaults=defaults)


def _factory(fn: Callable[..., Any], *, defaults: Mapping[str, Any]) -> Callable[..., Pipeline]:
    fn_parameters = inspect.signature(fn).parameters
    hides = any(p.kind is p.VAR_KEYWORD for p in fn_parameters.values())
    known = set(inspect.signature(Pipeline).parameters) | set(_OWN)

    @functools.wraps(fn)
    def create(*args: Any, **kwargs: Any) -> Pipeline:
        if hides:  # raised here, so that the rest of the file stays usable
            raise TypeError(
                f"{fn.__name__}(): a definition cannot take **kwargs: they would hide arguments of Pipeline"
            )
        _check_known(defaults, known, fn)
        fn_arguments = {k: v for k, v in kwargs.items() if k in fn_parameters}
        pipeline_arguments = {k: v for k, v in kwargs.items() if k not in fn_parameters}
        _check_known(pipeline_arguments, known, fn)
        settings = {**defaults, **pipeline_arguments}
        conditionals, debug = settings.pop("enable_conditionals", False), settings.pop("debug", False)
        definition = autograph.converted(fn) if conditionals else fn
        if debug:
            return DebugPipeline(functools.partial(definition, *args, **fn_arguments), **settings)
        pipeline = Pipeline(**settings)
        with pipeline, in_user_code() if conditionals else contextlib.nullcontext():
            result = definition(*args, **fn_arguments)
        if result is not None:  # otherwise the definition or the program calls set_outputs
            pipeline.define_outputs(result)
        return pipeline

    create._is_pipeline_def = True  # type: ignore[attr-defined]
    create.pipeline_defaults = dict(defaults)  # type: ignore[attr-defined]
    return create


def _check_known(arguments: Mapping[str, Any], known: set[str], fn: Callable[..., Any]) -> None:
    for name in sorted(set(arguments) - known):
        near = nearest(name, [*inspect.signature(fn).parameters, *known])
        raise TypeError(f"{fn.__name__}() has no argument {name!r}, nor has Pipeline{near}")
