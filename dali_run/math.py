"""DALI's element-wise functions in a pipeline: math.sqrt(x), math.clamp(x, low, high), ..."""

from __future__ import annotations

from typing import Any

from .pipelines.python.arithmetic import binary, unary
from .pipelines.python.data_node import DataNode, calculate

(
    sqrt, rsqrt, cbrt, exp, log, log2, log10, abs, fabs, floor, ceil, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh,
    asinh, acosh, atanh,
) = unary(calculate, __name__)  # fmt: skip
min, max, atan2, pow, fpow = binary(calculate, __name__)


def clamp(value: Any, lo: Any, hi: Any) -> DataNode:
    """Return ``value`` with every element limited to [``lo``, ``hi``]."""
    return calculate("clamp({}, {}, {})", value, lo, hi)
