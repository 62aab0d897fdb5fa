"""fn.experimental.numba_function: functions compiled by Numba that write into preallocated outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ops.errors import ArgumentValueError
from ...ops.types import DALIDataType, from_numpy, parse_dtype, to_numpy
from .python_functions import python_function

Setup = Callable[[list[Any], list[Any]], None]


def numba_function(
    *inputs: Any,
    run_fn: Callable[..., Any],
    out_types: Any,
    in_types: Any,
    outs_ndim: Any,
    ins_ndim: Any,
    setup_fn: Setup | None = None,
    batch_processing: bool = False,
    blocks: Sequence[int] | None = None,
    threads_per_block: Sequence[int] | None = None,
    device: str | None = None,
    **arguments: Any,
) -> Any:
    """Call the Numba-compiled function ``run_fn(out0, ..., in0, ...)`` for each sample; it writes into the output
    arrays. Outputs have no layout.

    Outputs have the shapes of the inputs, or the shapes that ``setup_fn(outs, ins)`` writes into
    ``outs[output][sample]``. With ``batch_processing`` the function is called once per batch, with lists of arrays. On
    a GPU it is a numba.cuda kernel, launched with ``blocks`` and ``threads_per_block`` for each sample. Raises
    ValueError if types and dimensions contradict each other or the inputs.
    """
    call = _Function(run_fn, _types(out_types), _types(in_types), _list(outs_ndim), _list(ins_ndim), setup_fn,
                     batch_processing, device == "gpu", blocks, threads_per_block)  # fmt: skip
    if len(inputs) != len(call.in_types):
        raise ArgumentValueError(f"numba_function: in_types has {len(call.in_types)} entries for {len(inputs)} inputs")
    return python_function(*inputs, function=call, num_outputs=len(call.out_types), batch_processing=True,
                           device=device, **arguments)  # fmt: skip


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _types(value: Any) -> list[DALIDataType]:
    return [parse_dtype(v) for v in _list(value)]


class _Function:
    """Adapter of the user's function for python_function, which passes one list of arrays per input."""

    def __init__(
        self, run: Callable[..., Any], out_types: list[DALIDataType], in_types: list[DALIDataType],
        outs_ndim: list[int], ins_ndim: list[int], setup: Setup | None, batches: bool, on_gpu: bool,
        blocks: Sequence[int] | None, threads: Sequence[int] | None,
    ) -> None:  # fmt: skip
        for what, one, other in (("in", in_types, ins_ndim), ("out", out_types, outs_ndim)):
            if len(one) != len(other):
                raise ArgumentValueError(f"numba_function: {what}_types has {len(one)} entries, {what}s_ndim "
                                         f"{len(other)}")  # fmt: skip
        if setup is None and (len(outs_ndim) > len(ins_ndim) or outs_ndim != ins_ndim[: len(outs_ndim)]):
            raise ArgumentValueError("numba_function: without setup_fn each output has the shape of the input at its "
                                     "place, so outs_ndim must be ins_ndim")  # fmt: skip
        if on_gpu and batches:
            raise ArgumentValueError("numba_function: batch_processing is for the CPU")
        for name, value in (("blocks", blocks), ("threads_per_block", threads)):
            if on_gpu and (value is None or len(value) != 3 or min(value) < 1):
                raise ArgumentValueError(f"numba_function: {name} takes three positive numbers on a GPU, got {value!r}")
        self.out_types, self.in_types = out_types, in_types
        self._outs_ndim, self._ins_ndim = outs_ndim, ins_ndim
        self._setup, self._batches = setup, batches
        self._grid = (tuple(blocks or ()), tuple(threads or ())) if on_gpu else None
        self._run, self._compiled = run, None
        self.__name__ = getattr(run, "__name__", "numba_function")

    def __call__(self, *inputs: Any) -> Any:
        self._check(inputs)
        shapes = self._shapes(inputs)
        if self._grid is not None:
            return self._on_gpu(inputs, shapes)
        outs = [[np.empty(tuple(s), to_numpy(t)) for s in rows] for rows, t in zip(shapes, self.out_types, strict=True)]
        run = self._function()
        if self._batches:
            from numba.typed import List

            inputs_of_batch = [List([np.ascontiguousarray(a) for a in x]) for x in inputs]
            run(*(List(o) for o in outs), *inputs_of_batch)
        else:
            for arrays in zip(*outs, *inputs, strict=True):
                run(*arrays)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _function(self) -> Any:
        if self._compiled is None:
            import numba

            compiled = hasattr(self._run, "py_func")
            self._compiled = self._run if compiled else numba.njit(nogil=True)(self._run)  # type: ignore[assignment]
        return self._compiled

    def _check(self, inputs: Sequence[Any]) -> None:
        for k, (arrays, expected, ndim) in enumerate(zip(inputs, self.in_types, self._ins_ndim, strict=True)):
            if len(arrays) and (from_numpy(arrays[0].dtype) != expected or arrays[0].ndim != ndim):
                got = f"{from_numpy(arrays[0].dtype).name} of {arrays[0].ndim} dimensions"
                raise ArgumentValueError(f"numba_function: input {k} is {got}; in_types and ins_ndim declare "
                                         f"{expected.name} of {ndim}")  # fmt: skip

    def _shapes(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the shapes of each output as an array [samples, dimensions]: from the user's setup function, or those
        of the inputs."""
        n = len(inputs[0]) if inputs else 0
        ins = [
            np.array([a.shape for a in x], np.int64).reshape(n, d) for x, d in zip(inputs, self._ins_ndim, strict=True)
        ]
        if self._setup is None:
            return ins[: len(self.out_types)]
        outs: list[Any] = [np.zeros((n, d), np.int64) for d in self._outs_ndim]
        self._setup(outs, ins)
        if any((o < 0).any() for o in outs):
            raise ArgumentValueError("numba_function: setup_fn set a negative length")
        return outs

    def _on_gpu(self, inputs: Sequence[Any], shapes: Sequence[Any]) -> Any:
        import cupy
        from numba import cuda

        if self._compiled is None:
            self._compiled = cuda.jit(self._run)  # type: ignore[no-untyped-call]
        assert self._grid is not None
        outs = [
            [cupy.empty(tuple(int(d) for d in s), to_numpy(t)) for s in rows]
            for rows, t in zip(shapes, self.out_types, strict=True)
        ]
        stream = cuda.external_stream(cupy.cuda.get_current_stream().ptr)
        kernel: Any = self._compiled
        as_array: Any = cuda.as_cuda_array
        for arrays in zip(*outs, *inputs, strict=True):
            kernel[(*self._grid, stream)](*map(as_array, arrays))
        return outs[0] if len(outs) == 1 else tuple(outs)


class NumbaFunction:
    """`numba_function` as a class: created with arguments, called with inputs."""

    def __init__(
        self, run_fn: Callable[..., Any], out_types: Any, in_types: Any, outs_ndim: Any, ins_ndim: Any,
        setup_fn: Setup | None = None, device: str = "cpu", batch_processing: bool = False,
        blocks: Sequence[int] | None = None, threads_per_block: Sequence[int] | None = None, **arguments: Any,
    ) -> None:  # fmt: skip
        self._arguments = {
            "run_fn": run_fn, "out_types": out_types, "in_types": in_types, "outs_ndim": outs_ndim,
            "ins_ndim": ins_ndim, "setup_fn": setup_fn, "device": device, "batch_processing": batch_processing,
            "blocks": blocks, "threads_per_block": threads_per_block, **arguments,
        }  # fmt: skip

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        return numba_function(*inputs, **{**self._arguments, **arguments})
