"""The dynamic mode's functions and reader classes, generated from the operator registry when they are first used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from ...ops.base import Operator, find, hint, operators, parameters, type_name
from ...readers.base import Reader
from ..graph.legacy_names import LEGACY, class_name
from ..plugins import load_installed_plugins, load_operators
from ..python.functions import wrapped
from .readers import reader_class
from .values import invoke

_INTERNAL = ("constant", "expr", "keep_if", "shapes", "tensor_subscript")
"""Operators without a public function. Most implement arithmetic, shapes and indices of tensors; ``keep_if`` is for
whole data sets."""
_FORMER = ("experimental.decoders.", "experimental.peek_image_shape", "experimental.readers.")
"""Prefixes of former operator names that DALI's dynamic mode also accepts."""


def names() -> dict[str, str]:
    """Return the names of all functions and reader classes of the dynamic mode, each with the name of its operator."""
    load_operators()
    known: dict[str, str] = {}
    excluded = wrapped()
    for name, cls in operators().items():
        spelled = [name, *(a for a in cls.aliases if a.startswith("experimental."))]
        if name.startswith("_") or name in _INTERNAL or name in excluded:
            continue
        for one in spelled:
            known[class_name(one) if is_reader(cls) else one] = name
    for old, new in LEGACY.items():
        if old.startswith(_FORMER) and new in known and ".hidden." not in old:
            known[old] = new
    return known


def is_reader(cls: type[Operator]) -> bool:
    """Return whether operator ``cls`` becomes a reader class with `next_epoch` instead of a function."""
    return issubclass(cls, Reader)


@cache
def member(name: str) -> Any:
    """Return the function or reader class called ``name``."""
    cls = find(names()[name])
    return reader_class(name, cls, describe(cls)) if is_reader(cls) else function(name, cls)


def function(name: str, cls: type[Operator]) -> Callable[..., Any]:
    """Return the function ``name`` of the dynamic mode that calls operator ``cls``."""
    draws = cls.random

    def call(*inputs: Any, batch_size: int | None = None, device: Any = None, rng: Any = None, **arguments: Any) -> Any:
        return invoke(cls, inputs, arguments, batch_size, device, rng)

    call.__name__ = call.__qualname__ = name.split(".")[-1]
    call.__module__ = "dali_run.dynamic" + "".join("." + p for p in name.split(".")[:-1])
    call.__doc__ = describe(cls)
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*positional(cls), *keywords(cls), *extra(draws)]
    )
    return call


_KIND = inspect.Parameter


def positional(cls: type[Operator]) -> list[inspect.Parameter]:
    """Return the signature's parameters for the inputs of operator ``cls``."""
    low, high = cls.inputs
    inputs = [_KIND("input" if low == 1 else f"input{k}", _KIND.POSITIONAL_ONLY) for k in range(low)]
    return [*inputs, _KIND("inputs", _KIND.VAR_POSITIONAL)] if high > low else inputs


def keywords(cls: type[Operator]) -> list[inspect.Parameter]:
    """Return the signature's parameters for the arguments of operator ``cls``."""
    return [
        _KIND(p.name, _KIND.KEYWORD_ONLY, default=_KIND.empty if p.required else p.default)
        for p in parameters(cls).values()
    ]


def extra(draws: bool) -> list[inspect.Parameter]:
    """Return the parameters that every function has, such as ``batch_size``; for a random operator (``draws``) also
    ``rng``."""
    return [_KIND(n, _KIND.KEYWORD_ONLY, default=None) for n in ("batch_size", "device", *["rng"] * draws)]


def describe(cls: type[Operator]) -> str:
    """Return the docstring for the dynamic mode's function of operator ``cls``."""
    lines = [inspect.cleandoc(cls.__doc__ or cls.name), "", f"Runs on: {', '.join(cls.devices)}.", "", "Args:"]
    for p in parameters(cls).values():
        if not p.arg.deprecated:
            default = "required" if p.required else f"default {p.default!r}"
            per_sample = ", or a Tensor or Batch" if p.arg.per_sample else ""
            lines.append(f"    {p.name}: {type_name(p.type)}{per_sample}; {p.arg.help} ({default})")
    lines.append("    batch_size: number of samples of the result, if no input is a batch")
    lines.append("    device: the device to run on; by default that of the inputs")
    if cls.random:
        lines.append("    rng: the random generator; by default the thread's")
    return "\n".join(lines)


class Namespace(ModuleType):
    """A namespace of the dynamic mode, for example ``decoders``. A member that is not in ``own`` is looked up in the
    registry of operators."""

    def __init__(self, module: str, prefix: str, own: Mapping[str, Any] | None = None) -> None:
        super().__init__(module, "Generated from the registry of operators.")
        self._prefix = prefix
        self.__dict__.update(own or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = look_up(self.__name__, self._prefix, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*members(self._prefix), *(n for n in self.__dict__ if not n.startswith("_"))})


def look_up(module: str, prefix: str, name: str) -> Any:
    """Return the member ``name`` of a namespace, whose full names begin with ``prefix``, such as ``decoders.``. Raises
    AttributeError."""
    full = prefix + name
    for last in (False, True):
        known = names()
        if full in known:
            return member(full)
        if any(k.startswith(full + ".") for k in known):
            return Namespace(f"{module}.{name}", full + ".")
        if not last:
            load_installed_plugins()  # entry points cost time, and are loaded only for names that are not known yet
    raise AttributeError(f"{module} has no {name!r}{hint(full, known)}")


def members(prefix: str) -> list[str]:
    """Return the names of the functions and classes in the namespace ``prefix``."""
    return sorted({n[len(prefix) :].split(".")[0] for n in names() if n.startswith(prefix)})
