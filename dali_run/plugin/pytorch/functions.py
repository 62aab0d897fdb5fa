"""Operators that call PyTorch functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...pipelines.python.python_functions import python_function
from ...pipelines.python.torch_views import from_array


def torch_python_function(*inputs: Any, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call fn.python_function with a function that takes and returns PyTorch tensors (lists of them with
    ``batch_processing``).

    The inputs of the function are views of the batch.
    """

    def call(*arrays: Any) -> Any:
        def view(array: Any) -> torch.Tensor:
            return from_array(array, complete=False)

        return function(*([view(a) for a in x] if isinstance(x, list) else view(x) for x in arrays))

    return python_function(*inputs, function=call, **arguments)


class TorchPythonFunction:
    """`torch_python_function` as a class: the constructor takes its arguments, the call takes the inputs."""

    def __init__(self, function: Callable[..., Any], num_outputs: int = 1, **arguments: Any) -> None:
        self._arguments = {"function": function, "num_outputs": num_outputs, **arguments}

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        return torch_python_function(*inputs, **{**self._arguments, **arguments})
