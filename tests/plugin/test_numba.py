"""numba_function: functions that fill in outputs, compiled by Numba."""

from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, types
from dali_run.plugin.numba import NumbaFunction
from dali_run.plugin.numba.fn.experimental import numba_function

SAMPLES = [np.arange(12, dtype=np.uint8).reshape(2, 2, 3), np.arange(18, dtype=np.uint8).reshape(3, 2, 3)]
ONE = {"out_types": [types.UINT8], "in_types": [types.UINT8], "outs_ndim": [3], "ins_ndim": [3]}


def results(call: Any, samples: Any = SAMPLES) -> Any:
    pipe = Pipeline(batch_size=len(samples), num_threads=1, device_id=None)
    with pipe:
        made = call(fn.external_source(source=[samples], layout="HWC"))
        pipe.set_outputs(*(made if isinstance(made, list) else [made]))
    return pipe.run()


def double(out: Any, x: Any) -> None:
    out[:] = x * 2


def transposed(out: Any, x: Any) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[j, i]


def transposed_shape(outs: Any, ins: Any) -> None:
    for k in range(len(outs[0])):
        outs[0][k][0], outs[0][k][1], outs[0][k][2] = ins[0][k][1], ins[0][k][0], ins[0][k][2]


def whole(out: Any, x: Any) -> None:
    for k in range(len(out)):
        out[k][:] = x[k] + k


def two(high: Any, total: Any, x: Any) -> None:
    high[:] = x + 100
    total[0] = x.sum()


def two_shapes(outs: Any, ins: Any) -> None:
    outs[0][:] = ins[0]
    outs[1][:, 0] = 1


def check(output: Any, wanted: list[np.ndarray]) -> None:
    assert output.layout() == ""  # as in DALI
    for k, sample in enumerate(wanted):
        np.testing.assert_array_equal(output.at(k), sample)
        assert output.at(k).dtype == sample.dtype


def test_samples() -> None:
    (output,) = results(lambda x: NumbaFunction(run_fn=double, **ONE)(x))
    check(output, [s * 2 for s in SAMPLES])


def test_setup_says_the_shapes() -> None:
    (output,) = results(lambda x: numba_function(x, run_fn=transposed, setup_fn=transposed_shape, **ONE))
    check(output, [s.transpose(1, 0, 2) for s in SAMPLES])


def test_batches() -> None:
    (output,) = results(lambda x: numba_function(x, run_fn=whole, batch_processing=True, **ONE))
    check(output, [s + k for k, s in enumerate(SAMPLES)])


def test_several_outputs_of_other_types() -> None:
    high, total = results(
        lambda x: numba_function(x, run_fn=two, setup_fn=two_shapes, out_types=[types.UINT8, types.INT64],
                                 in_types=types.UINT8, outs_ndim=[3, 1], ins_ndim=3)
    )  # fmt: skip
    check(high, [s + 100 for s in SAMPLES])
    check(total, [np.array([s.sum()], np.int64) for s in SAMPLES])


WRONG = {
    "types and dimensions": ({**ONE, "ins_ndim": [3, 3]}, "in_types has 1 entries, ins_ndim 2"),
    "inputs": ({**ONE, "in_types": [types.UINT8] * 2, "ins_ndim": [3, 3], "outs_ndim": [3]}, "for 1 inputs"),
    "no setup": ({**ONE, "outs_ndim": [2]}, "without setup_fn"),
    "a GPU's batches": ({**ONE, "device": "gpu", "batch_processing": True}, "for the CPU"),
    "a GPU's blocks": (
        {**ONE, "device": "gpu", "blocks": [1, 1], "threads_per_block": [1, 1, 1]},
        "blocks takes three",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_contradictions_are_said(case: str) -> None:
    arguments, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        results(lambda x: numba_function(x, run_fn=double, **arguments))


def test_other_data_than_promised() -> None:
    with pytest.raises(RuntimeError, match="declare UINT8 of 3"):
        results(lambda x: numba_function(fn.cast(x, dtype=types.FLOAT), run_fn=double, **ONE))
