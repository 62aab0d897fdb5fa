"""Empty lists as arguments, which DALI's programs give for "none": the default, a refusal, or nothing; never garbage,
and never an exception that is none of ours."""

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Operator, Spec, operators, parameters
from dali_run.ops.batch import Batch
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import from_numpy
from dali_run.pipelines.plugins import load_operators
from tests.kit.ops.kinds import KINDS, takes

from ..kit.operators import apply, arguments_of_example, operator

load_operators()


def vectors() -> list[tuple[type[Operator], str]]:
    """Operators that compute on inputs, with each of their arguments that is a list. (Pad, which would pad all axes to
    512, has tests in test_as_dali.)"""
    found = [
        o
        for o in operators().values()
        if o.__module__.startswith("dali_run.") and "cpu" in o.stages and o.inputs[1] and o.example
    ]
    found = [o for o in found if not o.random and not o.name.startswith("_") and o.name != "pad"]
    return [(o, p.name) for o in found for p in parameters(o).values() if p.is_vector and not p.arg.deprecated]


def arguments_of(cls: type[Operator]) -> dict[str, Any]:
    return {k: v for k, v in arguments_of_example(cls).items() if not (isinstance(v, str) and v.startswith("$"))}


def result(op: Any, inputs: list[Batch]) -> list[Any] | None:
    """The results, None where the operator refuses."""
    try:
        op.infer(*(Spec((None,) * b.ndim, from_numpy(b.dtype), b.layout) for b in inputs))
        results, rejects = apply(op, *inputs)
    except DaliRunError:
        return None
    batches = results if isinstance(results, tuple) else (results,)
    return None if rejects else [(b.layout, b.dtype, [np.array(a) for a in b]) for b in batches]


def same(a: list[Any] | None, b: list[Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    return all(
        x[:2] == y[:2] and all(np.array_equal(v, w, equal_nan=True) for v, w in zip(x[2], y[2], strict=True))
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(("cls", "name"), vectors(), ids=lambda v: v if isinstance(v, str) else v.name)
def test_an_empty_list_is_the_default_or_refused(cls: type[Operator], name: str) -> None:
    arguments = arguments_of(cls)
    try:
        usual = operator(cls.name, **arguments)
    except (DaliRunError, ValueError):
        pytest.skip("its example needs other operators")
    kinds = [[make() for _ in range(max(1, usual.inputs[0]))] for make in KINDS.values()]
    inputs = next((given for given in kinds if takes(usual, given)), None)
    if inputs is None:
        pytest.skip("its example takes none of the plain inputs")
    try:
        empty = operator(cls.name, **{**arguments, name: []})
    except (DaliRunError, ValueError):
        return  # refused by its check
    found = result(empty, inputs)
    if found is None:
        return
    noise = [np.full(1 << k, 1e30, np.float32) for k in range(4, 16)]  # what is read beside the list, if anything is
    del noise
    assert same(result(empty, inputs), found)
    arguments.pop(name, None)
    try:
        default = result(operator(cls.name, **arguments), inputs)
    except (DaliRunError, ValueError):
        default = None
    finite = all(np.isfinite(a.astype(float)).all() for _, _, samples in found for a in samples)
    assert same(found, default) or (finite and not parameters(cls)[name].arg.or_default)
