"""Lanes on the stand-in for CuPy: what is uploaded arrives, pinned memory is used again, kernels run on their GPU."""

from __future__ import annotations

import ast
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.errors import SpecError
from dali_run.ops.gpu.lane import SOURCES, Arena, Lane, aligned, blocks, is_pinned, pinned_empty
from dali_run.ops.python_function import PythonFunction
from tests.kit.files.jpegs import encode
from tests.kit.ops.jpeg_harness import assert_exact

from ...kit.fake_cupy import faked
from ...kit.operators import apply
from ...kit.ops.jpeg_harness import GpuRuntime, Harness


def test_an_arena_gives_out_pieces_and_takes_them_back() -> None:
    made: list[int] = []

    def allocate(nbytes: int) -> np.ndarray:
        made.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    arena = Arena(allocate, first=1024)
    pieces = [arena.take(n) for n in (1, 300, 0, 200)]
    for k, piece in enumerate(pieces):
        piece[:] = k + 1
    assert [len(p) for p in pieces] == [1, 300, 0, 200]
    assert [p.tolist() == [k + 1] * len(p) for k, p in enumerate(pieces)] == [True] * 4
    assert made == [1024]
    large = arena.take(5000)  # more than is left: a block of its own, and what was given out holds
    assert (pieces[1] == 2).all()
    assert made == [1024, aligned(5000)]
    arena.reset()
    assert arena.take(5000).ctypes.data == large.ctypes.data
    assert len(made) == 2
    arena.take(1)
    assert made[2] == 2 * aligned(5000)


def test_kernels_wait_for_their_lane_and_let_go_of_nothing() -> None:
    """`Lane.synchronize` takes back page-locked memory, also what other kernels of the batch have of it."""
    ops = SOURCES.parent
    own_lanes = {"gpu/uploads.py", "video/nvdec.py"}  # or streams
    called = {
        path.relative_to(ops).as_posix()
        for path in ops.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()) if "synchronize()" in path.read_text() else ast.Module([], []))
        if isinstance(node, ast.Attribute) and node.attr == "synchronize"
        if not ast.unparse(node.value).endswith("stream")
    }
    assert called == own_lanes


def test_what_runs_beside_a_lane_keeps_its_arrays_and_is_waited_for_whatever_is_raised() -> None:
    """Nobody comes to `join` where planning raises: later work of the lane waits all the same, and memory of the first
    does not go to it."""
    ran: list[str] = []

    def kernel(grid: Any, block: Any, args: Any, stream: Any) -> None:
        stream.do(lambda: ran.append(str(args[0])))

    with faked(memory=True, late=True):
        lane = Lane()
        lane._kernels[("a.cu", "k")] = kernel
        array = lane.empty(1 << 21, np.uint8)
        kept = weakref.ref(array)

        def plan(array: Any) -> None:
            with lane:
                lane.launch_beside("a.cu", "k", 1, 32, np.int32(1), array)
                raise ValueError("planning")

        with pytest.raises(ValueError, match="planning"):
            plan(array)
        del array
        gc.collect()
        assert kept() is not None
        lane.launch("a.cu", "k", 1, 32, np.int32(2))
        lane.stream.synchronize()  # its own work alone
        assert ran == ["1", "2"]
        lane.synchronize()
        gc.collect()
        assert kept() is None
        lane.close()


def test_uploads_arrive_as_they_were() -> None:
    arrays = [
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.empty((0, 5), np.int64),
        np.array([True, False]),
        np.zeros(3, jpeg_gpu.PIXELS).view(np.uint8),
        np.arange(7, dtype=np.uint16),
    ]
    with faked(memory=True) as fake, Lane() as lane:
        for _ in range(3):
            found = lane.upload(*arrays)
            for a, b in zip(arrays, found, strict=True):
                assert (b.shape, b.dtype) == (a.shape, a.dtype)
                np.testing.assert_array_equal(b.get(), a)
            lane.synchronize()
        assert fake.uploads == 3


def test_the_next_lane_has_the_stream_of_a_closed_one() -> None:
    with faked(memory=True):
        first, second = Lane(), Lane()
        assert first.stream is not second.stream
        first.close()
        first.close()
        third, fourth = Lane(), Lane()
        assert third.stream is first.stream
        assert fourth.stream not in (first.stream, second.stream)


@pytest.mark.parametrize("pinned", [True, False])
def test_batches_there_and_back(pinned: bool) -> None:
    with faked(memory=True), Lane() as lane:
        data = pinned_empty(100)
        data[:] = np.arange(100)
        assert is_pinned(data)
        assert not is_pinned(data.copy())
        batch = Batch(data if pinned else data.copy(), np.array([60, 10]), np.array([[20], [30]], np.int32), "",
                      Samples.numbered(2))  # fmt: skip
        there = lane.to_device(batch)
        assert not there.on_host
        assert there.offsets.tolist() == [50, 0]
        back = lane.to_host(there)
        lane.synchronize()
        assert [s.tolist() for s in back] == [list(range(60, 80)), list(range(10, 40))]
        assert lane.to_device(there) is there
        assert lane.to_host(back) is back


def test_the_decoder_of_a_lane_decodes() -> None:
    with faked(memory=True):
        assert_exact(Harness(GpuRuntime()), [encode(40, 31), encode(17, 60, gray=True)])


class Foreign:
    """An array of another library's, whose kernels are queued on a stream of its own."""

    def __init__(self, values: np.ndarray) -> None:
        import cupy

        self._stream = cupy.cuda.Stream(non_blocking=True)
        with self._stream:
            self._array = cupy.array(values)

    @property
    def __cuda_array_interface__(self) -> Any:
        return self._array.__cuda_array_interface__

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        stream.wait_event(self._stream.record())
        return self._array


def test_results_of_other_libraries_are_waited_for_and_held() -> None:
    """Functions of PyTorch's, say, return before their kernels have run, and their memory is used again."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    batch = Batch.from_dense(np.stack([values, values]), "", Samples.numbered(2))
    made: list[Foreign] = []

    def function(array: Any) -> Foreign:
        made.append(Foreign(values + 10 * len(made)))
        return made[-1]

    op = PythonFunction(function=function)
    with faked(memory=True, late=True), Lane() as lane:
        (out,), rejects = apply(op, lane.to_device(batch), lane=lane)
        assert not rejects
        assert all(any(held is one._array for held in lane._in_flight) for one in made)
        host = lane.to_host(out)
        lane.synchronize()
        assert [a.tolist() for a in host] == [values.tolist(), (values + 10).tolist()]
        assert not lane._in_flight


def test_kernels_run_on_the_gpu_of_their_lane() -> None:
    with faked(2) as fake:
        for index in (1, 0):
            lane = Lane(index)
            with lane:
                runtime = jpeg_gpu.LaneRuntime(lane)
                work = runtime.work()
                work.launch("jpeg_tables", 1, 32, 0)
                assert len(fake.launched) == 2 * (1 - index), "work begins when it is submitted"
                work.submit()
                work.submit()
                lane.launch("image.cu", "scatter", (1, 1), 32)
                lane.launch("image.cu", "scatter", 0, 32)
                mark = lane.mark()
                later = lane.mark()
                assert 0 <= lane.seconds_since(mark, later) < 60
                lane.reuse_marks([mark, later])
                assert lane.mark() is later, "made once"
        assert fake.launched == [("jpeg_tables", 1), ("scatter", 1), ("jpeg_tables", 0), ("scatter", 0)]


def test_grids_are_as_large_as_cuda_takes_them() -> None:
    assert blocks(7) == (7,)
    assert blocks((3, 65535)) == (3, 65535)
    assert blocks((3, 0)) == blocks(0) == ()
    with pytest.raises(SpecError, match="65,536 samples at once are more than the 65,535"):
        blocks((3, 65536))
