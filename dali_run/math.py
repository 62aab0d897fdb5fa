"""DALI's functions of batches, element by element: math.sqrt(x), math.clamp(x, low, high), ..."""

from __future__ import annotations

from typing import Any

from .pipelines.python.data_node import DataNode, calculate


def sqrt(input: Any) -> DataNode:
    """Square root."""
    return calculate("sqrt({})", input)


def rsqrt(input: Any) -> DataNode:
    """One over the square root."""
    return calculate("rsqrt({})", input)


def cbrt(input: Any) -> DataNode:
    """Cube root."""
    return calculate("cbrt({})", input)


def exp(input: Any) -> DataNode:
    """e to the power of the input."""
    return calculate("exp({})", input)


def log(input: Any) -> DataNode:
    """Natural logarithm."""
    return calculate("log({})", input)


def log2(input: Any) -> DataNode:
    """Logarithm to base 2."""
    return calculate("log2({})", input)


def log10(input: Any) -> DataNode:
    """Logarithm to base 10."""
    return calculate("log10({})", input)


def abs(input: Any) -> DataNode:
    """Absolute value."""
    return calculate("abs({})", input)


def fabs(input: Any) -> DataNode:
    """Absolute value, as a float."""
    return calculate("fabs({})", input)


def floor(input: Any) -> DataNode:
    """The integer below, as a float."""
    return calculate("floor({})", input)


def ceil(input: Any) -> DataNode:
    """The integer above, as a float."""
    return calculate("ceil({})", input)


def sin(input: Any) -> DataNode:
    """Sine of an angle in radians."""
    return calculate("sin({})", input)


def cos(input: Any) -> DataNode:
    """Cosine of an angle in radians."""
    return calculate("cos({})", input)


def tan(input: Any) -> DataNode:
    """Tangent of an angle in radians."""
    return calculate("tan({})", input)


def asin(input: Any) -> DataNode:
    """Arc sine, in radians."""
    return calculate("asin({})", input)


def acos(input: Any) -> DataNode:
    """Arc cosine, in radians."""
    return calculate("acos({})", input)


def atan(input: Any) -> DataNode:
    """Arc tangent, in radians."""
    return calculate("atan({})", input)


def sinh(input: Any) -> DataNode:
    """Hyperbolic sine."""
    return calculate("sinh({})", input)


def cosh(input: Any) -> DataNode:
    """Hyperbolic cosine."""
    return calculate("cosh({})", input)


def tanh(input: Any) -> DataNode:
    """Hyperbolic tangent."""
    return calculate("tanh({})", input)


def asinh(input: Any) -> DataNode:
    """Inverse hyperbolic sine."""
    return calculate("asinh({})", input)


def acosh(input: Any) -> DataNode:
    """Inverse hyperbolic cosine."""
    return calculate("acosh({})", input)


def atanh(input: Any) -> DataNode:
    """Inverse hyperbolic tangent."""
    return calculate("atanh({})", input)


def min(left: Any, right: Any) -> DataNode:
    """The smaller of two."""
    return calculate("min({}, {})", left, right)


def max(left: Any, right: Any) -> DataNode:
    """The greater of two."""
    return calculate("max({}, {})", left, right)


def pow(base: Any, exponent: Any) -> DataNode:
    """``base`` to the power of ``exponent``; integers stay integers."""
    return calculate("pow({}, {})", base, exponent)


def fpow(base: Any, exponent: Any) -> DataNode:
    """``base`` to the power of ``exponent``, as floats."""
    return calculate("fpow({}, {})", base, exponent)


def atan2(left: Any, right: Any) -> DataNode:
    """The angle of the point (right, left), in radians."""
    return calculate("atan2({}, {})", left, right)


def clamp(value: Any, lo: Any, hi: Any) -> DataNode:
    """``value`` brought between ``lo`` and ``hi``."""
    return calculate("clamp({}, {}, {})", value, lo, hi)
