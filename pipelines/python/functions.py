"""fn and ops: a function and a class for every operator of the registry, generated when they are first used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from ...ops.base import Operator, find, hint, nearest, operators, parameters, type_name
from ...ops.errors import ArgumentNameError
from ..graph.legacy_names import callable_names, class_name
from ..plugins import load_installed_plugins, load_operators
from .data_node import apply
from .python_functions import dl_tensor_python_function, python_function
from .sources.source import external_source

Wrapper = Callable[..., Any]
WRAPPERS: dict[str, Wrapper] = {
    "external_source": external_source,
    "python_function": python_function,
    "dl_tensor_python_function": dl_tensor_python_function,
}
"""Functions that are written by hand for ``fn``, because their calls accept more than inputs and arguments, by the name
of their operator."""


def names() -> dict[str, str]:
    """Return all names of functions under ``fn``, each with the name of its operator."""
    load_operators()
    registered = operators()
    return callable_names(registered, (alias for op in registered.values() for alias in op.aliases))


class Namespace(ModuleType):
    """``fn`` or one of its namespaces (``fn.decoders``), whose members are looked up in the registry of operators."""

    def __init__(self, module: str, prefix: str, make: Callable[[str], Any], spell: Callable[[str], str]) -> None:
        super().__init__(module, "Generated from the registry of operators.")
        self._prefix = prefix
        self._make = make
        self._spell = spell

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._find(name)
        setattr(self, name, value)
        return value

    def _find(self, name: str) -> Any:
        full = self._prefix + name
        for last in (False, True):
            known = {self._spell(n): n for n in names()}
            if full in known:
                return self._make(known[full])
            if any(k.startswith(full + ".") for k in known):
                return Namespace(f"{self.__name__}.{name}", full + ".", self._make, self._spell)
            if not last:
                load_installed_plugins()  # entry points cost time, and are loaded only for names that are not known yet
        raise AttributeError(f"{self.__name__} has no {name!r}{hint(full, known)}")

    def __dir__(self) -> list[str]:
        spelled = [self._spell(n) for n in names()]
        return sorted({n[len(self._prefix) :].split(".")[0] for n in spelled if n.startswith(self._prefix)})


def operator_function(name: str) -> Wrapper:
    """Return the function ``fn.<name>``. It is called with inputs and arguments, and returns a DataNode, or a list of
    them."""
    cls = find(names()[name])
    if cls.name in WRAPPERS:
        return WRAPPERS[cls.name]

    def function(*inputs: Any, **arguments: Any) -> Any:
        return apply(cls, inputs, arguments)

    function.__name__ = function.__qualname__ = name.split(".")[-1]
    function.__module__ = "dali_run.fn" + "".join("." + p for p in name.split(".")[:-1])
    function.__doc__ = describe(cls)
    function.__signature__ = signature(cls)  # type: ignore[attr-defined]
    return function


def operator_behind(room: str, name: str) -> str:
    """Return the name of the operator behind ``fn.<name>`` or ``ops.<name>`` (``room`` is ``fn`` or ``ops``); an empty
    text if there is none."""
    known = names()
    return known.get(name, "") if room == "fn" else next((n for n in known if class_name(n) == name), "")


def wrapped() -> Collection[str]:
    """Return the names of the operators with a function under ``fn`` that is written by hand instead of generated."""
    return WRAPPERS.keys()


def wraps(name: str) -> bool:
    """Return whether the function ``fn.<name>`` is written by hand instead of generated."""
    return find(names()[name]).name in WRAPPERS


def known_arguments(name: str) -> set[str]:
    """Return the names of all arguments that ``fn.<name>`` accepts."""
    extra = set(inspect.signature(operator_function(name)).parameters) if wraps(name) else set()
    return (
        extra | {"device", "name", "seed", "preserve", "bytes_per_sample_hint"} | set(parameters(find(names()[name])))
    )


def signature(cls: type[Operator]) -> inspect.Signature:
    """Return the signature of the ``fn`` function of operator ``cls``."""
    low, high = cls.inputs
    kinds = inspect.Parameter
    signature_parameters = [kinds(f"input{i}", kinds.POSITIONAL_ONLY) for i in range(low)]
    if high > low:
        signature_parameters.append(kinds("inputs", kinds.VAR_POSITIONAL))
    for p in parameters(cls).values():
        default = kinds.empty if p.required else p.default
        signature_parameters.append(kinds(p.name, kinds.KEYWORD_ONLY, default=default))
    signature_parameters += [kinds(n, kinds.KEYWORD_ONLY, default=None) for n in ("device", "name", "seed", "preserve")]
    return inspect.Signature(signature_parameters)


def describe(cls: type[Operator]) -> str:
    """Return the docstring for the ``fn`` function of operator ``cls``."""
    lines = [inspect.cleandoc(cls.__doc__ or cls.name), "", f"Runs on: {', '.join(cls.devices)}.", ""]
    rows = [p for p in parameters(cls).values() if not p.arg.deprecated]
    idle = [p.name for p in rows if p.arg.ignored]
    if rows:
        lines.append("Args:")
    for p in rows:
        if p.arg.ignored:
            continue
        default = "required" if p.required else f"default {p.default!r}"
        per_sample = ", or a DataNode" if p.arg.per_sample else ""
        lines.append(f"    {p.name}: {type_name(p.type)}{per_sample}; {p.arg.help} ({default})")
    if idle:
        lines += ["", f"Accepted, without effect: {', '.join(idle)}."]
    return "\n".join(lines)


# -- ops.* classes ----------------------------------------------------------------------------------------------------


class OperatorClass:
    """Base class of the operator classes under ``ops``. An instance is created with arguments and called with inputs,
    and perhaps more arguments."""

    operator_name = ""

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._call = operator_function(self.operator_name)
        problems = [a for a in arguments if a not in self._known()]
        if problems:
            near = nearest(problems[0], sorted(self._known()))
            raise ArgumentNameError(f"{self.operator_name}: has no argument {', '.join(map(repr, problems))}{near}")

    def _known(self) -> set[str]:
        return known_arguments(self.operator_name)

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        return self._call(*inputs, **{**self._arguments, **arguments})

    @property
    def device(self) -> str:
        """Device that was passed to the constructor; ``cpu`` by default."""
        return str(self._arguments.get("device", "cpu"))


class ExternalSourceClass(OperatorClass):
    """The class ops.ExternalSource. The source is passed to the constructor or to the call."""

    operator_name = "external_source"

    def __init__(self, source: Any = None, num_outputs: int | None = None, **arguments: Any) -> None:
        all_arguments = {"source": source, "num_outputs": num_outputs, **arguments}
        super().__init__(**{k: v for k, v in all_arguments.items() if v is not None})


class PythonFunctionClass(OperatorClass):
    """The class ops.PythonFunction. The function is the first argument of the constructor."""

    operator_name = "python_function"

    def __init__(self, function: Callable[..., Any], num_outputs: int = 1, **arguments: Any) -> None:
        super().__init__(function=function, num_outputs=num_outputs, **arguments)


class DLTensorPythonFunctionClass(PythonFunctionClass):
    """The class ops.DLTensorPythonFunction: like PythonFunction, but the function gets DLPack capsules instead of
    arrays."""

    operator_name = "dl_tensor_python_function"


class Compose:
    """The class ops.Compose: a chain of operators, each applied to the outputs of the one before."""

    def __init__(self, op_list: Iterable[Callable[..., Any]]) -> None:
        self._chain = list(op_list)
        if not self._chain:
            raise ValueError("Compose needs at least one operator")

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        result = self._chain[0](*inputs, **arguments)
        for op in self._chain[1:]:
            result = op(*result) if isinstance(result, (list, tuple)) else op(result)
        return result


_CLASSES = {c.operator_name: c for c in (ExternalSourceClass, PythonFunctionClass, DLTensorPythonFunctionClass)}


def operator_class(name: str) -> type[Any]:
    """Return the class ``ops.<Name>`` for the operator ``name``."""
    if names()[name] in _CLASSES:
        return _CLASSES[names()[name]]
    spelled = class_name(name)
    cls = find(names()[name])
    body: Mapping[str, Any] = {"operator_name": name, "__doc__": describe(cls), "__module__": "dali_run.ops"}
    return type(spelled.split(".")[-1], (OperatorClass,), dict(body))


def ops_members() -> list[str]:
    """Return the names of all members of ``ops``: classes, and namespaces that contain classes."""
    spelled = {class_name(n).split(".")[0] for n in names()}
    return sorted(spelled | {"Compose"})


def ops_member(name: str) -> Any:
    """Return the class or namespace ``ops.<name>``. Raises AttributeError."""
    if name == "Compose":
        return Compose
    return Namespace("dali_run.ops", "", operator_class, class_name)._find(name)
