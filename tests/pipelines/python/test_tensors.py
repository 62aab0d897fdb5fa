"""Tensors and batches as objects: DALI's members that change how data is read, and those that hand it on.

What is expected was read off NVIDIA DALI 2.4; `test_as_dali` asks it again where it is installed.
"""

import ctypes
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, tensors, types
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.python.tensors import stream_number
from tests.kit.fake_cupy import faked

X = np.arange(24, dtype=np.float32).reshape(4, 6)
BITS = X.view(np.int32)


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, or the kind of error."""
    try:
        return call()
    except Exception as e:
        return type(e).__name__


def story(t: Any, types: Any) -> list[Any]:
    """The life of objects of a library's own, step by step; only plain values."""
    said: list[Any] = []

    def say(call: Callable[[], Any]) -> None:
        value = outcome(call)
        said.append(value.tolist() if isinstance(value, np.ndarray) else value)

    one, batch = t.TensorCPU(X, "HW"), t.TensorListCPU(X, "W")
    say(lambda: one.set_layout("WH"))
    say(one.layout)
    say(lambda: one.set_layout("HWC"))
    say(lambda: one.set_layout(""))
    say(one.layout)
    say(lambda: one.set_layout(None))
    say(lambda: one.reinterpret(types.INT32))
    say(lambda: one.dtype == types.INT32)
    say(lambda: np.array(one))
    say(lambda: one.reinterpret(types.UINT8))
    say(one.shape)
    say(lambda: batch.set_layout("C"))
    say(batch.layout)
    say(lambda: batch.set_layout("HWC"))
    say(lambda: batch.reinterpret(types.INT32))
    say(lambda: batch.at(1))
    say(lambda: batch.reinterpret(types.INT16))
    repeated = t.TensorListCPU.broadcast(t.TensorCPU(X, "HW"), 3)
    say(lambda: [len(repeated), repeated.layout(), repeated.shape()])
    say(lambda: repeated.at(2))
    say(lambda: len(t.TensorListCPU.broadcast(t.TensorCPU(X), 0)))
    say(lambda: t.TensorListCPU.broadcast(t.TensorCPU(X), -1))
    say(batch.reset)
    say(lambda: [len(batch), batch.shape(), batch.layout(), batch.dtype == types.NO_TYPE])
    for shape, dim in [
        ((1, 3, 1), None),
        ((1, 3, 1), 0),
        ((1, 3, 1), -1),
        ((1, 3, 1), 1),
        ((1, 3, 1), 5),
        ((2,), None),
    ]:
        squeezed = t.TensorCPU(np.zeros(shape, np.uint8), "HWC"[: len(shape)])
        say(lambda s=squeezed, d=dim: s.squeeze(d))
        say(squeezed.shape)
        say(squeezed.layout)
    say(lambda: squeezed.get_property("layout"))
    say(lambda: squeezed.get_property("source_info"))
    say(lambda: squeezed.get_property("else"))
    filled = np.zeros((4, 6), np.float32)
    say(lambda: t.TensorCPU(X).copy_to_external(pointer(filled)))
    say(lambda: filled)
    dense = np.zeros((4, 6), np.float32)
    say(lambda: t.TensorListCPU(X).copy_to_external(pointer(dense)))
    say(lambda: dense)
    ragged = t.TensorListCPU([t.TensorCPU(np.arange(3)), t.TensorCPU(np.arange(2))])
    joined = np.zeros(5, np.int64)
    say(lambda: ragged.copy_to_external(pointer(joined)))
    say(lambda: joined)
    say(lambda: t.TensorListCPU([t.TensorCPU(X), t.TensorCPU(X)], "AB").layout())
    say(lambda: t.TensorListCPU(t.TensorListCPU(X)).shape())
    layout = types.TensorLayout("HWC")
    say(lambda: [str(layout), len(layout), layout == "HWC", layout == types.TensorLayout("CHW"), layout != "HW",
                 bool(types.TensorLayout("")), types.TensorLayout("AB") < types.TensorLayout("AC")])  # fmt: skip
    say(lambda: types.CUDAStream(7).ptr)
    say(lambda: types.CUDAStream().ptr)
    return said


EXPECTED = [
    None, "WH", "ValueError", None, "", None, None, True, BITS.tolist(), "RuntimeError", [4, 6],
    None, "C", "ValueError", None, BITS[1].tolist(), "RuntimeError",
    [3, "HW", [(4, 6)] * 3], X.tolist(), 0, "ValueError", None, [0, [], "", True],
    True, [3], "W", True, [3, 1], "WC", True, [1, 3], "HW", False, [1, 3, 1], "HWC", "RuntimeError", [1, 3, 1], "HWC",
    False, [2], "H", "H", None, None,
    None, X.tolist(), None, X.tolist(), None, [0, 1, 2, 0, 1], "AB", [(6,)] * 4,
    ["HWC", 3, True, False, True, False, True], 7, 0,
]  # fmt: skip


def test_members_do_what_dalis_do() -> None:
    assert story(tensors, types) == EXPECTED


@pytest.mark.dali
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("nvidia") is None or find_spec("nvidia.dali") is None, reason="DALI is not installed")
def test_as_dali() -> None:
    dali = [importlib.import_module(f"nvidia.dali.{name}") for name in ("tensors", "types")]
    assert story(*dali) == EXPECTED


def test_batches_of_one_shape_are_dense(tmp_path: Path) -> None:
    """However their samples lie: `as_tensor` works."""
    files = [str(tmp_path / f"{i}.bin") for i in range(3)]
    for i, name in enumerate(files):
        Path(name).write_bytes(bytes([i]) * 16)

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipe() -> Any:
        read, labels = fn.readers.file(files=files)
        ragged = fn.external_source(lambda: [np.zeros(n) for n in (1, 2, 1)])
        nothing = fn.external_source(lambda: [np.zeros((0, 2))] * 3)
        constant = fn.constant(idata=[1, 2])
        return read, labels, fn.permute_batch(read, indices=[2, 0, 0]), constant, nothing, ragged

    *dense, ragged = pipe().run()
    assert [b.is_dense_tensor() for b in dense] == [True] * len(dense)
    assert [b.as_tensor().shape() for b in dense] == [[3, 16], [3, 1], [3, 16], [3, 2], [3, 0, 2]]
    assert np.array(dense[2].as_tensor())[:, 0].tolist() == [2, 0, 0]
    assert not ragged.is_dense_tensor()
    with pytest.raises(ValueError, match="differ in shape"):
        ragged.as_tensor()
    dense[0].reset()
    assert dense[0].is_dense_tensor()


def test_a_view_changes_for_itself_alone() -> None:
    batch = tensors.TensorListCPU(X, "W")
    first = batch[0]
    first.set_layout("C")
    first.reinterpret(types.INT32)
    assert (batch.layout(), batch.dtype, batch[0].layout()) == ("W", types.FLOAT, "W")
    other = tensors.TensorListCPU(batch)
    other.reset()
    assert (len(batch), other.dtype) == (4, DALIDataType.NO_TYPE)
    assert np.shares_memory(first.array, batch.as_array())
    repeated = tensors.TensorListCPU.broadcast(tensors.TensorCPU(X), 2)
    assert np.shares_memory(repeated.at(1), X)
    assert repeated.as_array().tolist() == [X.tolist()] * 2


def test_layouts_are_strings() -> None:
    assert tensors.TensorListCPU(X, types.TensorLayout("W")).layout() == "W"
    assert repr(types.TensorLayout("HWC")) == "TensorLayout('HWC')"


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="null pointer"):
        tensors.TensorCPU(X).copy_to_external(ctypes.c_void_p(0))
    with pytest.raises(ValueError, match=r"names 3 dimensions, the data has 2"):
        tensors.TensorCPU(X, "HWC")
    with pytest.raises(RuntimeError, match="FLOAT have 4 bytes, of UINT8 1"):
        tensors.TensorCPU(X).reinterpret(types.UINT8)
    with pytest.raises(TypeError, match="use TensorCPU"):
        tensors.TensorGPU(X)


def test_streams_of_all_kinds() -> None:
    class Torch:
        cuda_stream = 5

    given = [None, 3, types.CUDAStream(4), Torch(), ctypes.c_void_p(6), ctypes.c_void_p(0)]
    assert [stream_number(s) for s in given] == [0, 3, 4, 5, 6, 0]


@pytest.mark.gpu
def test_members_on_a_gpu() -> None:
    members_on_a_gpu()


def test_members_on_an_emulated_gpu() -> None:
    with faked(memory=True):
        members_on_a_gpu()


def members_on_a_gpu() -> None:
    import cupy

    batch = tensors.TensorListGPU(cupy.asarray(X), "W")
    assert isinstance(batch[1], tensors.TensorGPU)
    assert batch.device_id() == batch[1].device_id() == 0
    whole, one = cupy.zeros((4, 6), cupy.float32), cupy.zeros(6, cupy.float32)
    batch.copy_to_external(ctypes.c_void_p(whole.data.ptr))
    stream = cupy.cuda.Stream(non_blocking=True)
    batch[2].copy_to_external(one.data.ptr, types.CUDAStream(stream.ptr), non_blocking=True)
    stream.synchronize()
    assert cupy.asnumpy(whole).tolist() == X.tolist()
    assert cupy.asnumpy(one).tolist() == X[2].tolist()
    batch.reinterpret(types.INT32)
    batch.set_layout("C")
    assert np.asarray(batch.as_cpu().as_array()).tolist() == BITS.tolist()
    repeated = tensors.TensorListGPU.broadcast(batch[0], 2)
    assert [np.asarray(t).tolist() for t in repeated] == [BITS[0].tolist()] * 2
    batch.reset()
    assert len(batch) == 0


def test_batches_of_ones_own_are_views_until_they_are_fed() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    made = tensors.TensorListCPU(numbers)
    assert made.data_ptr() == numbers.ctypes.data

    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        return fn.external_source(name="x")

    p = pipe()
    for k in range(3):
        numbers[:] = k
        p.feed_input("x", made if k == 1 else numbers)
    assert [p.run()[0].as_array()[0, 0] for _ in range(3)] == [0, 1, 2]


def test_what_is_printed() -> None:
    dense = tensors.TensorListCPU(np.array([[1, 2], [3, 4]], np.uint8), "X")
    described = '\n    dtype=DALIDataType.UINT8,\n    layout="X",\n    device="cpu",'
    described += "\n    num_samples=2,\n    shape=[(2,), (2,)])"
    assert repr(dense) == f"TensorListCPU({described}"
    assert str(dense) == f"TensorListCPU(\n    [[1 2]\n     [3 4]],{described}"
    one = '    dtype=DALIDataType.UINT8,\n    layout="X",\n    device="cpu",\n    shape=(2,))'
    assert str(dense[0]) == f"TensorCPU(\n    [1 2],\n{one}"
    ragged = tensors.TensorListCPU([np.arange(k) for k in range(6)])
    lines = str(ragged).splitlines()
    assert lines[:6] == ["TensorListCPU(", "    [],", "    [0],", "    [0 1],", "    [0 1 2],", "    ...,"]
    dense.reset()
    nothing = '    dtype=DALIDataType.NO_TYPE,\n    device="cpu",\n    num_samples=0,\n    shape=[])'
    assert str(dense) == f"TensorListCPU(\n    [],\n{nothing}"
