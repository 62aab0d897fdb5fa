"""Elementwise arithmetic: Python's operators and functions by name, for nodes of a graph and for data of the dynamic
mode.

Both become calls of the operator `expr`, made by ``calculate(template, *operands)``, for example with ``"{} + {}"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

UNARY = {
    "sqrt": "Square root.",
    "rsqrt": "One over the square root.",
    "cbrt": "Cube root.",
    "exp": "e to the power of the input.",
    "log": "Natural logarithm.",
    "log2": "Logarithm to base 2.",
    "log10": "Logarithm to base 10.",
    "abs": "Absolute value.",
    "fabs": "Absolute value, as a float.",
    "floor": "The integer below, as a float.",
    "ceil": "The integer above, as a float.",
    "sin": "Sine of an angle in radians.",
    "cos": "Cosine of an angle in radians.",
    "tan": "Tangent of an angle in radians.",
    "asin": "Arc sine, in radians.",
    "acos": "Arc cosine, in radians.",
    "atan": "Arc tangent, in radians.",
    "sinh": "Hyperbolic sine.",
    "cosh": "Hyperbolic cosine.",
    "tanh": "Hyperbolic tangent.",
    "asinh": "Inverse hyperbolic sine.",
    "acosh": "Inverse hyperbolic cosine.",
    "atanh": "Inverse hyperbolic tangent.",
}
"""Mathematical functions of one argument, such as ``sqrt``, each with its docstring."""
BINARY = {
    "min": "The smaller of two values.",
    "max": "The larger of two values.",
    "atan2": "The angle of the point (right, left), in radians.",
}
POWERS = {
    "pow": "``base`` to the power of ``exponent``; integers stay integers.",
    "fpow": "``base`` to the power of ``exponent``, as floats.",
}


def unary(calculate: Callable[..., T], module: str) -> list[Callable[[Any], T]]:
    """Return one function per entry of `UNARY`, for the public module ``module``; calls are computed by
    ``calculate``."""

    def made(name: str, about: str) -> Callable[[Any], T]:
        return _member(lambda input: calculate(f"{name}({{}})", input), calculate, module, name, about)

    return [made(name, about) for name, about in UNARY.items()]


def binary(calculate: Callable[..., T], module: str) -> list[Callable[[Any, Any], T]]:
    """Return one function of two arguments per entry of `BINARY`, then of `POWERS`, for the public module ``module``;
    calls are computed by ``calculate``."""

    def made(name: str, about: str) -> Callable[[Any, Any], T]:
        return _member(
            lambda left, right: calculate(f"{name}({{}}, {{}})", left, right), calculate, module, name, about
        )

    def power(name: str, about: str) -> Callable[[Any, Any], T]:
        call: Callable[[Any, Any], T] = lambda base, exponent: calculate(f"{name}({{}}, {{}})", base, exponent)  # noqa: E731
        return _member(call, calculate, module, name, about)

    return [made(*f) for f in BINARY.items()] + [power(*f) for f in POWERS.items()]


def _member(call: F, calculate: Callable[..., T], module: str, name: str, about: str) -> F:
    function: Any = call
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = module, about
    result = calculate.__annotations__["return"]
    function.__annotations__ = {**dict.fromkeys(function.__code__.co_varnames, "Any"), "return": result}
    return call


class Arithmetic(Generic[T]):
    """Base class of values with Python's arithmetic operators. A subclass defines `_calculate`, which computes each
    result."""

    __slots__ = ()

    @staticmethod
    def _calculate(template: str, *operands: Any) -> T:
        raise NotImplementedError

    def __add__(self, other: Any) -> T:
        return self._calculate("{} + {}", self, other)

    def __radd__(self, other: Any) -> T:
        return self._calculate("{} + {}", other, self)

    def __sub__(self, other: Any) -> T:
        return self._calculate("{} - {}", self, other)

    def __rsub__(self, other: Any) -> T:
        return self._calculate("{} - {}", other, self)

    def __mul__(self, other: Any) -> T:
        return self._calculate("{} * {}", self, other)

    def __rmul__(self, other: Any) -> T:
        return self._calculate("{} * {}", other, self)

    def __truediv__(self, other: Any) -> T:
        return self._calculate("{} / {}", self, other)

    def __rtruediv__(self, other: Any) -> T:
        return self._calculate("{} / {}", other, self)

    def __floordiv__(self, other: Any) -> T:
        return self._calculate("{} // {}", self, other)

    def __rfloordiv__(self, other: Any) -> T:
        return self._calculate("{} // {}", other, self)

    def __mod__(self, other: Any) -> T:
        return self._calculate("{} % {}", self, other)

    def __rmod__(self, other: Any) -> T:
        return self._calculate("{} % {}", other, self)

    def __pow__(self, other: Any) -> T:
        return self._calculate("{} ** {}", self, other)

    def __rpow__(self, other: Any) -> T:
        return self._calculate("{} ** {}", other, self)

    def __and__(self, other: Any) -> T:
        return self._calculate("{} & {}", self, other)

    def __rand__(self, other: Any) -> T:
        return self._calculate("{} & {}", other, self)

    def __or__(self, other: Any) -> T:
        return self._calculate("{} | {}", self, other)

    def __ror__(self, other: Any) -> T:
        return self._calculate("{} | {}", other, self)

    def __xor__(self, other: Any) -> T:
        return self._calculate("{} ^ {}", self, other)

    def __rxor__(self, other: Any) -> T:
        return self._calculate("{} ^ {}", other, self)

    def __lshift__(self, other: Any) -> T:
        return self._calculate("{} << {}", self, other)

    def __rlshift__(self, other: Any) -> T:
        return self._calculate("{} << {}", other, self)

    def __rshift__(self, other: Any) -> T:
        return self._calculate("{} >> {}", self, other)

    def __rrshift__(self, other: Any) -> T:
        return self._calculate("{} >> {}", other, self)

    def __lt__(self, other: Any) -> T:
        return self._calculate("{} < {}", self, other)

    def __le__(self, other: Any) -> T:
        return self._calculate("{} <= {}", self, other)

    def __gt__(self, other: Any) -> T:
        return self._calculate("{} > {}", self, other)

    def __ge__(self, other: Any) -> T:
        return self._calculate("{} >= {}", self, other)

    def __eq__(self, other: object) -> T:  # type: ignore[override] # elementwise, as in NumPy
        return self._calculate("{} == {}", self, other)

    def __ne__(self, other: object) -> T:  # type: ignore[override]
        return self._calculate("{} != {}", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> T:
        return self._calculate("-{}", self)

    def __pos__(self) -> T:
        return self._calculate("+{}", self)

    def __abs__(self) -> T:
        return self._calculate("abs({})", self)

    def __invert__(self) -> T:
        return self._calculate("~{}", self)
