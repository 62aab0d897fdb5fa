"""Loops that conversions of pictures wait for work on many values at once.

LLVM leaves a loop scalar for reasons that no source shows (it did: normalising took four times as long)."""

import re

import pytest
from numba import njit, types

from dali_run.ops.audio import resample_cpu
from dali_run.ops.copies import strided_cpu

LINE = types.Array(types.uint8, 1, "C")
FLOATS = types.Array(types.float32, 1, "C")
NUMBER = types.int64


@pytest.mark.parametrize("target", [FLOATS, LINE], ids=["float32", "uint8"])
@pytest.mark.parametrize(
    ("loop", "arguments"),
    [
        (strided_cpu._run, [NUMBER] * 5 + [types.UniTuple(types.float32, 3)]),
        (strided_cpu._split, [NUMBER] * 5 + [types.Array(types.float32, 2, "C")]),
        (strided_cpu._interleaved, [NUMBER] * 4 + [types.Array(types.float32, 2, "C")]),
    ],
    ids=["run", "split", "interleaved"],
)
def test_affine_steps_are_vectorised(loop, arguments, target) -> None:  # type: ignore[no-untyped-def]
    signature = (LINE, target, *arguments)
    compiled = njit(nogil=True)(loop.py_func)
    compiled.compile(signature)
    assert re.search(r"fmul <\d+ x float>", compiled.inspect_llvm(signature))


@pytest.mark.parametrize(
    ("loop", "arguments"),
    [
        (resample_cpu._between, [FLOATS, NUMBER, NUMBER, types.float32, NUMBER, FLOATS]),
        (resample_cpu._weigh_as_dali, [FLOATS, *[NUMBER] * 3, *[types.float32] * 3, NUMBER, NUMBER, FLOATS]),
    ],
    ids=["between", "as dali"],
)
def test_weights_of_resampling_are_vectorised(loop, arguments) -> None:  # type: ignore[no-untyped-def]
    compiled = njit(nogil=True)(loop.py_func)
    compiled.compile(tuple(arguments))
    assert re.search(r"fmul <\d+ x float>", compiled.inspect_llvm(tuple(arguments)))
