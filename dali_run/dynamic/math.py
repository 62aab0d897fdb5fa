"""DALI's functions of values, element by element: math.sqrt(x), math.clamp(x, low, high), ..."""

from __future__ import annotations

from typing import Any

from ..pipelines.dynamic.arithmetic import binary, unary
from ..pipelines.dynamic.invocation import calculate

sqrt = unary("sqrt", "Square root.")
rsqrt = unary("rsqrt", "One over the square root.")
cbrt = unary("cbrt", "Cube root.")
exp = unary("exp", "e to the power of the input.")
log = unary("log", "Natural logarithm.")
log2 = unary("log2", "Logarithm to base 2.")
log10 = unary("log10", "Logarithm to base 10.")
abs = unary("abs", "Absolute value.")
fabs = unary("fabs", "Absolute value, as a float.")
floor = unary("floor", "The integer below, as a float.")
ceil = unary("ceil", "The integer above, as a float.")
sin = unary("sin", "Sine of an angle in radians.")
cos = unary("cos", "Cosine of an angle in radians.")
tan = unary("tan", "Tangent of an angle in radians.")
asin = unary("asin", "Arc sine, in radians.")
acos = unary("acos", "Arc cosine, in radians.")
atan = unary("atan", "Arc tangent, in radians.")
sinh = unary("sinh", "Hyperbolic sine.")
cosh = unary("cosh", "Hyperbolic cosine.")
tanh = unary("tanh", "Hyperbolic tangent.")
asinh = unary("asinh", "Inverse hyperbolic sine.")
acosh = unary("acosh", "Inverse hyperbolic cosine.")
atanh = unary("atanh", "Inverse hyperbolic tangent.")
min = binary("min", "The smaller of two values.")
max = binary("max", "The larger of two values.")
pow = binary("pow", "The first to the power of the second; of integers, an integer.")
fpow = binary("fpow", "The first to the power of the second, as a float.")
atan2 = binary("atan2", "The angle of the point (second, first), in radians.")


def clamp(value: Any, lo: Any, hi: Any) -> Any:
    """``value`` within [``lo``, ``hi``]."""
    return calculate("clamp({}, {}, {})", value, lo, hi)
