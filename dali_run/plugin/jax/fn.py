"""Operators that call JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ...ops.errors import SpecError
from ...pipelines.python.python_functions import python_function

__all__ = ["jax_function"]


def jax_function(
    function: Callable[..., Any] | None = None,
    num_outputs: int = 1,
    output_layouts: str | Sequence[str] | None = None,
    sharding: Any = None,
    device: str | None = None,
    preserve: bool = True,
) -> Any:
    """Turn ``function``, which takes and returns jax.Arrays (N, ...), into a function of DataNodes. Use it as a
    decorator, with or without arguments, or call it.

    ``function`` gets whole batches, whose samples must share one shape, and returns ``num_outputs`` arrays: one array,
    or a tuple of several. An output without an entry in ``output_layouts`` gets the layout of the input at the same
    position if it has as many dimensions. ``sharding`` is rejected, because a pipeline and its batches are on one
    device; shard the batches of an iterator instead.
    """
    if sharding is not None:
        raise SpecError("jax_function: sharding is not supported; give it to the iterator (plugin.jax.data_iterator)")
    if function is None:
        return lambda f: jax_function(f, num_outputs, output_layouts, None, device, preserve)
    called = function

    def batches(*columns: Sequence[Any]) -> Any:
        results = called(*(_stacked(c) for c in columns))
        if num_outputs == 0:
            return ()
        several = results if num_outputs > 1 else (results,)
        return tuple([_sample(r, i) for i in range(len(columns[0]))] for r in several)

    def operator(*inputs: Any) -> Any:
        return python_function(*inputs, function=batches, num_outputs=num_outputs, batch_processing=True,
                               output_layouts=output_layouts, device=device, preserve=preserve,
                               keeps_layouts=True)  # fmt: skip

    return operator


def _stacked(samples: Sequence[Any]) -> Any:
    """Return the samples of a batch as one JAX array. Raises ValueError if they differ in shape."""
    if isinstance(samples[0], np.ndarray):
        return jax.numpy.asarray(np.stack(samples))
    import cupy

    whole = cupy.stack(samples)
    cupy.cuda.get_current_stream().synchronize()  # JAX reads on another stream
    return jax.dlpack.from_dlpack(whole)


def _sample(result: Any, i: int) -> Any:
    """Return sample ``i`` of a result: as a NumPy array if the result is on the host, otherwise as a CuPy array."""
    if all(d.platform == "cpu" for d in result.devices()):
        return np.asarray(result[i])
    import cupy

    return cupy.from_dlpack(result[i])
