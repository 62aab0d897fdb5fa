"""fn.python_function and fn.dl_tensor_python_function: operators that call Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ops.errors import SpecError
from ...ops.python_function import DLTensorPythonFunction, PythonFunction
from .data_node import DataNode, apply


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
    """Call ``function`` with the arrays of each sample (NumPy; CuPy on a GPU), or with lists of them for whole batches
    (``batch_processing``). It returns an array, or a tuple of ``num_outputs`` arrays. ``output_layouts`` is one layout
    for all outputs, or one per output; with ``keeps_layouts``, an output without a layout gets the layout of the input
    with the same index.

    A function without outputs (``num_outputs=0``) is called although no output depends on it.
    """
    del bytes_per_sample_hint
    if not callable(function):
        raise SpecError(f"python_function: needs function=, a callable, got {function!r}")
    return _called(
        PythonFunction, inputs, function, num_outputs, batch_processing, output_layouts, device, name, preserve,
        keeps_layouts=keeps_layouts,
    )  # fmt: skip


def _called(
    op: type[PythonFunction], inputs: Sequence[Any], function: Callable[..., Any], num_outputs: int,
    batch_processing: bool, output_layouts: str | Sequence[str] | None = None, device: str | None = None,
    name: str | None = None, preserve: bool = False, bytes_per_sample_hint: int | None = None,
    keeps_layouts: bool = False,
) -> Any:  # fmt: skip
    del bytes_per_sample_hint
    layouts = [output_layouts] * num_outputs if isinstance(output_layouts, str) else list(output_layouts or ())
    args = {"function": function, "arity": num_outputs, "batch_processing": batch_processing,
            "output_layouts": layouts, "keeps_layouts": keeps_layouts, "device": device, "name": name,
            "preserve": preserve or num_outputs == 0}  # fmt: skip
    outputs = apply(op, inputs, args)
    return None if num_outputs == 0 and isinstance(outputs, DataNode) else outputs


def dl_tensor_python_function(
    *inputs: Any,
    function: Callable[..., Any] | None = None,
    num_outputs: int = 1,
    batch_processing: bool = False,
    synchronize_stream: bool = True,
    **arguments: Any,
) -> Any:
    """Call ``function`` with a DLPack capsule per input, or with lists of them (``batch_processing``). It returns
    capsules, or objects that support DLPack. On a GPU, ``synchronize_stream`` waits for the data before the call."""
    if not callable(function):
        raise SpecError(f"dl_tensor_python_function: needs function=, a callable, got {function!r}")
    call = DLTensorFunction(function, batch_processing, synchronize_stream)
    return _called(DLTensorPythonFunction, inputs, call, num_outputs, batch_processing, **arguments)


class DLTensorFunction:
    """Wrapper that makes a function of DLPack capsules callable with arrays."""

    def __init__(self, function: Callable[..., Any], batches: bool, waits: bool) -> None:
        self._function, self._batches, self._waits = function, batches, waits
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arrays: Any) -> Any:
        first = arrays[0][0] if self._batches and arrays and len(arrays[0]) else arrays[0] if arrays else None
        if self._waits and hasattr(first, "__cuda_array_interface__"):
            import cupy

            cupy.cuda.get_current_stream().synchronize()
        if self._batches:
            result = self._function(*([_capsule(a) for a in batch] for batch in arrays))
        else:
            result = self._function(*map(_capsule, arrays))
        return self._arrays(result)

    def _arrays(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(self._arrays, result))
        if isinstance(result, list):
            return [_array(r) for r in result]
        return None if result is None else _array(result)


def _capsule(array: Any) -> Any:
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.copy()  # DLPack has no flag for read-only memory
    return array.__dlpack__()


class _Speaker:
    """Wrapper that gives a DLPack capsule the methods that `from_dlpack` of libraries requires."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _array(value: Any) -> Any:
    """Return the array in a DLPack capsule; return any other value unchanged."""
    if type(value).__name__ != "PyCapsule":
        return value
    try:
        return np.from_dlpack(_Speaker(value, (1, 0)))
    except (BufferError, RuntimeError):  # it is on a GPU
        import cupy

        return cupy.from_dlpack(_Speaker(value, (2, cupy.cuda.Device().id)))
