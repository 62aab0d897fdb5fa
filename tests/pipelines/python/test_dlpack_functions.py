"""dl_tensor_python_function: functions of DLPack capsules, of samples and of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run import fn, ops, pipeline_def
from dali_run.ops.errors import SpecError

DATA = [np.arange(6, dtype=np.float32).reshape(2, 3) + k for k in range(4)]


class Capsule:
    """The form of arrays for libraries that cannot read capsules alone."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def array(capsule: Any) -> np.ndarray:
    assert type(capsule).__name__ == "PyCapsule"
    return np.from_dlpack(Capsule(capsule))


def both(capsule: Any) -> tuple[Any, Any]:
    values = array(capsule)
    return (values * 2).__dlpack__(), values.sum(axis=0)


def all_of_them(capsules: list[Any]) -> list[Any]:
    return [(array(c) + len(capsules)).__dlpack__() for c in capsules]


def outputs(make: Any) -> list[list[np.ndarray]]:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def pipeline() -> Any:
        made = make(fn.external_source(source=lambda: DATA))
        return tuple(made) if isinstance(made, (list, tuple)) else made

    p = pipeline()
    return [[np.asarray(t.at(i)) for i in range(4)] for t in p.run()]


def test_samples() -> None:
    doubled, sums = outputs(lambda x: fn.dl_tensor_python_function(x, function=both, num_outputs=2))
    for k, data in enumerate(DATA):
        np.testing.assert_array_equal(doubled[k], data * 2)
        np.testing.assert_array_equal(sums[k], data.sum(axis=0))


def test_batches_and_the_class() -> None:
    for make in (lambda x: fn.dl_tensor_python_function(x, function=all_of_them, batch_processing=True),
                 lambda x: ops.DLTensorPythonFunction(all_of_them, batch_processing=True)(x)):  # fmt: skip
        (added,) = outputs(make)
        for k, data in enumerate(DATA):
            np.testing.assert_array_equal(added[k], data + 4)


def test_needs_a_function() -> None:
    with pytest.raises(SpecError, match="needs function="):
        outputs(lambda x: fn.dl_tensor_python_function(x))


def test_ops_names_its_classes() -> None:
    names = dir(ops)
    assert {"DLTensorPythonFunction", "Erase", "FileReader", "Compose", "readers", "transforms", "hidden"} <= set(names)
    for name in names:
        assert name.startswith("_") or getattr(ops, name, None) is not None, name
    assert fn.hidden.uniform is not None
    assert ops.experimental.hidden.TensorResize is not None
