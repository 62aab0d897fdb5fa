"""fn.python_function and its like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ops.errors import SpecError
from ...ops.python_function import PythonFunction
from .data_node import DataNode, apply
from .functions import wrap


@wrap("python_function")
def python_function(
    *inputs: Any,
    function: Callable[..., Any] | None = None,
    num_outputs: int = 1,
    batch_processing: bool = False,
    output_layouts: str | Sequence[str] | None = None,
    device: str | None = None,
    name: str | None = None,
    preserve: bool = False,
    bytes_per_sample_hint: int | None = None,
    keeps_layouts: bool = False,
) -> Any:
    """Call ``function`` with the arrays of each sample (NumPy, CuPy on a GPU), or with lists of them for whole batches
    (``batch_processing``). It returns an array, or a tuple of ``num_outputs`` arrays. ``output_layouts`` is one for
    all outputs, or one for each; ``keeps_layouts`` gives those without one that of the input at their place.

    A function without outputs (``num_outputs=0``) is kept although nothing depends on it.
    """
    del bytes_per_sample_hint
    if not callable(function):
        raise SpecError(f"python_function: needs function=, something callable, got {function!r}")
    layouts = [output_layouts] * num_outputs if isinstance(output_layouts, str) else list(output_layouts or ())
    args = {"function": function, "arity": num_outputs, "batch_processing": batch_processing,
            "output_layouts": layouts, "keeps_layouts": keeps_layouts, "device": device, "name": name,
            "preserve": preserve or num_outputs == 0}  # fmt: skip
    made = apply(PythonFunction, inputs, args)
    return None if num_outputs == 0 and isinstance(made, DataNode) else made
