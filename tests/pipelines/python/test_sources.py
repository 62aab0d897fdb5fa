"""external_source: every kind of source, feeding, checks, worker processes."""

import contextlib
import errno
import functools
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline, ops, pipeline_def
from dali_run.ops.errors import JobError, SpecError
from dali_run.pickling import pickle_by_value
from dali_run.pipelines.python.sources.blocks import Block
from dali_run.pipelines.python.sources.fed import Input
from dali_run.pipelines.python.sources.pickling import dumps, loads
from dali_run.tensors import TensorListCPU


def pipe(source: Any = None, batch_size: int = 2, pipeline: dict[str, Any] | None = None, **arguments: Any) -> Pipeline:
    @pipeline_def(batch_size=batch_size, num_threads=1, **(pipeline or {}))
    def definition():
        made = fn.external_source(source, **arguments)
        return tuple(made) if isinstance(made, list) else made

    return definition()


def take(p: Pipeline, n: int) -> list[Any]:
    """``n`` runs; "end" where the epoch ended, and the next began with reset."""
    out: list[Any] = []
    while len(out) < n:
        try:
            out.append(p.run()[0].as_array().tolist())
        except StopIteration:
            out.append("end")
            p.reset()
    return out


def generator():
    for i in range(3):
        yield np.full(2, i)


class Sequence:
    def __iter__(self):
        return generator()


@pytest.mark.parametrize(("cycle", "expected"), [
    (None, [[0, 0], [1, 1], [2, 2], "end", "end", "end"]),
    (False, [[0, 0], [1, 1], [2, 2], "end", "end", "end"]),
    ("no", [[0, 0], [1, 1], [2, 2], "end", "end", "end"]),
    ("raise", [[0, 0], [1, 1], [2, 2], "end", [0, 0], [1, 1]]),
    ("quiet", [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2]]),
    (True, [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2]]),
])  # fmt: skip
@pytest.mark.parametrize("source", [[np.full(2, i) for i in range(3)], generator, Sequence()])
def test_cycles(source: Any, cycle: Any, expected: list[Any]) -> None:
    with contextlib.closing(pipe(source, cycle=cycle)) as p:
        assert take(p, 6) == expected


def test_what_callables_are_given() -> None:
    seen: list[Any] = []

    def ended(iteration: int) -> np.ndarray:
        seen.append(iteration)
        if iteration == 2:
            raise StopIteration
        return np.full(2, iteration)

    assert take(pipe(ended), 5) == [[0, 0], [1, 1], "end", [0, 0], [1, 1]]
    assert seen[:6] == [0, 1, 2, 0, 1, 2]

    def infos(info: types.BatchInfo) -> np.ndarray:
        return np.array([info.iteration, info.epoch_idx])

    assert take(pipe(infos, batch_info=True), 2) == [[0, 0], [1, 0]]

    def sample(info: types.SampleInfo) -> np.ndarray:
        if info.iteration == 2:
            raise StopIteration
        return np.array([info.idx_in_epoch, info.idx_in_batch, info.iteration, info.epoch_idx])

    got = take(pipe(sample, batch=False), 4)
    assert got == [[[0, 0, 0, 0], [1, 1, 0, 0]], [[2, 0, 1, 0], [3, 1, 1, 0]], "end", [[0, 0, 0, 1], [1, 1, 0, 1]]]

    assert take(pipe(lambda x=5: np.full(2, x)), 2) == [[0, 0], [1, 1]]  # a default counts as an argument, as in DALI
    assert take(pipe(lambda: np.full(2, 7)), 1) == [[7, 7]]
    with pytest.raises(TypeError, match="its parameters are: a, b"):
        pipe(lambda a, b: a)
    with pytest.raises(ValueError, match="cycle is for iterables"):
        pipe(lambda: np.zeros(2), cycle=True)


def test_samples_of_iterables() -> None:
    assert take(pipe([np.array(i) for i in range(4)], batch=False, cycle="raise"), 3) == [[0, 1], [2, 3], "end"]
    # an incomplete batch at the end is left out
    assert take(pipe([np.array(i) for i in range(5)], batch=False), 3) == [[0, 1], [2, 3], "end"]


def test_prefetching_asks_ahead() -> None:
    for depth in (1, 2, 4):
        asked: list[int] = []
        p = pipe(lambda i: asked.append(i) or np.full(2, i), pipeline={"prefetch_queue_depth": depth})  # noqa: B023
        p.run()
        assert asked == list(range(depth))
        p.run()
        assert asked == list(range(depth + 1))


def test_several_outputs() -> None:
    p = pipe(lambda i: (np.full((2, 3), i, np.float32), [np.zeros((k + 1, 1), np.uint8) for k in range(2)]),
             num_outputs=2, layout=["X", "HW"], dtype=[types.FLOAT, types.UINT8], ndim=[1, 2])  # fmt: skip
    a, b = p.run()
    assert (a.layout(), b.layout(), b.shape()) == ("X", "HW", [(1, 1), (2, 1)])
    p = pipe(lambda info: (np.array(info.idx_in_epoch), np.array([1])), num_outputs=2, batch=False)
    assert [o.as_array().tolist() for o in p.run()] == [[0, 1], [[1], [1]]]
    (only,) = pipe(lambda: (np.zeros(2),), num_outputs=1).run()
    assert only.as_array().tolist() == [0, 0]
    with pytest.raises(JobError, match="must return 2 outputs, got 1"):
        pipe(lambda: (np.zeros(2),), num_outputs=2).run()
    with pytest.raises(JobError, match="differ in their number"):
        pipe(lambda: (np.zeros(2), np.zeros(1)), num_outputs=2).run()
    with pytest.raises(SpecError, match="layout has 3 entries for 2 outputs"):
        pipe(lambda: None, num_outputs=2, layout=["a", "b", "c"])


def test_lists_of_facts_may_end_before_the_outputs_do() -> None:
    p = pipe(lambda: (np.zeros((2, 1, 3)), np.zeros((2, 5))), num_outputs=2, layout=["HC"], ndim=(2,), dtype=[None])
    assert [(o.layout(), o[0].shape()) for o in p.run()] == [("HC", [1, 3]), ("", [5])]


@pytest.mark.parametrize("operator", [fn.external_source, lambda **k: ops.ExternalSource(**k)()])
def test_outputs_without_a_source_are_fed_one_by_one(operator: Any) -> None:
    def two() -> Any:
        a, b = operator(num_outputs=2, layout=["X", "YZ"])
        return (a, b) if used == 2 else b

    for used in (2, 1):
        p = pipeline_def(two)(batch_size=2, num_threads=1, prefetch_queue_depth=1)
        inputs = ["external_source", "external_source_2"][2 - used :]
        for k in range(2):
            for name in inputs:
                p.feed_input(name, np.full((2, *[1] * (1 + name.endswith("2"))), k))
            assert [(o.layout(), float(o.as_array().max())) for o in p.run()] == [("X", k), ("YZ", k)][2 - used :]
    with pytest.raises(JobError, match="external_source_2: no data"):
        p.run()
    with pytest.raises(ValueError, match="omit name or num_outputs"):
        pipe(num_outputs=2, name="x")


def test_outputs_that_nobody_uses() -> None:
    for given in (2, 3, 1):  # the source may leave them out
        p = pipeline_def(lambda: fn.external_source(lambda: [np.zeros(2)] * given, num_outputs=2)[0])(  # noqa: B023
            batch_size=2, num_threads=1
        )
        with pytest.warns(Warning, match="2 outputs, of which 1 .counted from 0. are not used") as warned:
            p.build()
        assert [w.category for w in warned] == [Warning]
        assert len(p.run()[0]) == 2
    (a, b) = pipe(lambda: np.zeros((2, 2, 3)), num_outputs=2).run()  # whatever can be indexed
    assert a.shape() == b.shape() == [(3,), (3,)]


def anything(*a: Any) -> Any: ...
def keywords(**k: Any) -> Any: ...
def keyword(*, k: int = 1) -> Any: ...
def with_default(a: Any, b: int = 1) -> Any: ...


@pytest.mark.parametrize("source", [anything, keywords, keyword, with_default, functools.partial(anything)])
def test_callbacks_with_other_parameters(source: Any) -> None:
    with pytest.raises(TypeError, match="has no parameters, or one"):
        pipe(source)
    assert take(pipe(functools.partial(lambda i, k: np.full(2, i + k), k=1)), 2) == [[1, 1], [2, 2]]


@pytest.mark.parametrize(("first", "second", "words"), [
    (np.zeros((2, 1), np.uint8), np.zeros((2, 1), np.int32), "UINT8, 1-D, now INT32, 1-D"),
    (np.zeros((2, 1)), np.zeros((2, 1, 1)), "FLOAT64, 1-D, now FLOAT64, 2-D"),
    (TensorListCPU(np.zeros((2, 1)), "X"), TensorListCPU(np.zeros((2, 1)), "Y"), "X, now FLOAT64, 1-D, Y"),
    (TensorListCPU(np.zeros((2, 1)), "X"), np.zeros((2, 1)), "X, now FLOAT64, 1-D$"),
])  # fmt: skip
def test_batches_are_of_one_kind(first: Any, second: Any, words: str) -> None:
    p = pipe([first, [], first, second], pipeline={"prefetch_queue_depth": 1})
    for _ in range(3):
        p.run()
    with pytest.raises(RuntimeError, match=words):
        p.run()
    later = pipe([np.zeros((2, 1)), TensorListCPU(np.zeros((2, 1)), "Y")])  # a layout may come later
    assert [later.run()[0].layout() for _ in range(2)] == ["", "Y"]
    fed = pipe(name="x", layout="X", pipeline={"prefetch_queue_depth": 1})
    with pytest.raises(JobError, match="layout X was declared, got Y"):
        fed.feed_input("x", np.zeros((2, 1)), layout="Y")


def test_data_is_checked() -> None:
    refused: list[tuple[Callable[[], Any], dict[str, Any], str]] = [
        (lambda: np.zeros(2, np.float32), {"dtype": types.UINT8}, "of type UINT8 was declared, got FLOAT"),
        (lambda: np.zeros(2, np.float32), {"ndim": 1}, "of 1 dimensions was declared"),
        (lambda: np.zeros(3, np.float32), {}, "got 3 samples, the pipeline's batch_size is 2"),
        (lambda: np.float32(1), {}, "first dimension counts the samples"),
        (lambda: [np.zeros(1), np.zeros((1, 1))], {}, "share dtype and number of dimensions"),
        (lambda: ["text", "text"], {}, "not an array of numbers"),
    ]
    for source, arguments, message in refused:
        with pytest.raises(JobError, match=message):
            pipe(source, **arguments).run()
    with pytest.raises(SpecError, match="callable or iterable"):
        pipe(3)
    with pytest.raises(TypeError, match="give the generator function itself"):
        pipe((np.zeros(2) for _ in range(3)), cycle=True)

    def fails() -> np.ndarray:
        raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's"):
        pipe(fails).run()


def test_small_and_changing_batches() -> None:
    sizes = [2, 1, 2]
    p = pipe([np.arange(n) for n in sizes])
    assert [len(p.run()[0]) for _ in sizes] == sizes

    @pipeline_def(batch_size=4, num_threads=1)
    def unequal():
        return fn.external_source(lambda: np.zeros(2)), fn.external_source(lambda: np.zeros(3))

    with pytest.raises(JobError, match="equally many samples"):
        unequal().run()


@pytest.mark.parametrize("nothing", [[], (), np.zeros((0, 3), np.float32)])
@pytest.mark.parametrize("promised", [{}, {"dtype": types.FLOAT, "ndim": 1}, {"layout": "X"}])
def test_empty_batches(nothing: Any, promised: dict[str, Any]) -> None:
    """As in DALI: no operator runs, and all outputs are empty."""

    def definition() -> Any:
        x = fn.external_source(name="x", **promised)
        return x, x + 1, fn.random.uniform(), fn.permute_batch(x, indices=[1, 0])

    p = pipeline_def(definition)(batch_size=2, num_threads=1, prefetch_queue_depth=1)
    for _ in range(2):
        p.feed_input("x", nothing)
        assert [len(t) for t in p.run()] == [0] * 4
    with pytest.raises(JobError, match="outputs differ in their number"):
        pipe(lambda: ([], np.zeros(1)), num_outputs=2).run()
    assert len(pipe(lambda: ([], nothing), num_outputs=2).run()[1]) == 0
    assert len(TensorListCPU([])) == 0


LEFT = """
import os, sys
import numpy as np
import dali_run.fn as fn
from dali_run import Pipeline, pipeline_def

def source(info):
    return np.full(3, info.idx_in_epoch)

if __name__ == "__main__":
    @pipeline_def(batch_size=4, num_threads=1, py_num_workers=3, py_start_method=sys.argv[1])
    def definition():
        return fn.external_source(source, batch=False, parallel=True)

    pipes = [definition() for _ in range(2)]
    for p in pipes:
        p.run()
    if sys.argv[2] == "heir" and not os.fork():  # a child of the program that holds copies of its pipes
        os.read(0, 1)
        os._exit(0)
    print(*(pid for p in pipes for pid in p._session._workers.pids), flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize(("method", "heir"), [("fork", ""), ("spawn", ""), ("fork", "heir")])
def test_workers_end_with_their_program(method: str, heir: str, tmp_path: Path) -> None:
    """It leaves without a word to them."""
    program = tmp_path / "program.py"
    program.write_text(LEFT)
    command = [sys.executable, str(program), method, heir]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert run.wait() == 0
        assert len(pids) == 6
        while any(is_alive(pid) for pid in pids):
            time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_copies() -> None:
    shared = np.zeros((2, 3))

    def source(iteration: int) -> np.ndarray:
        shared[:] = iteration
        return shared

    assert take(pipe(source), 3) == [[[k] * 3] * 2 for k in range(3)]


def test_feed_input() -> None:
    p = pipe(name="x", pipeline={"prefetch_queue_depth": 2})
    p.build()
    assert p.input_feed_count("x") == 2
    for k in range(2):
        p.feed_input("x", [np.full(3, k, np.uint8), np.full(3, k, np.uint8)])
    out = []
    for k in range(2, 5):
        out.append(p.run()[0].as_array()[0].tolist())
        p.feed_input("x", np.full((2, 3), k, np.uint8), layout="X")
    assert out == [[0] * 3, [1] * 3, [2] * 3]
    assert p.run()[0].layout() == "X"
    p.run()
    with pytest.raises(JobError, match=r"x: no data: call feed_input"):
        p.run()
    with pytest.raises(KeyError, match="it has: x"):
        p.feed_input("y", np.zeros(2))
    q = pipe(lambda: np.zeros(2), name="z")
    with pytest.raises(RuntimeError, match="has a source"):
        q.feed_input("z", np.zeros(2))
    with pytest.raises(RuntimeError, match="prefetch_queue_depth=1"):
        p.run(x=np.zeros(2))

    p = pipe(name="x", repeat_last=True, pipeline={"prefetch_queue_depth": 1})
    p.feed_input("x", np.full(2, 3))
    assert take(p, 3) == [[3, 3]] * 3
    p.feed_input("x", p.run()[0])
    assert take(p, 1) == [[3, 3]]
    with pytest.raises(KeyError, match="not an external_source"):
        p.run(other=np.zeros(2))
    with pytest.raises(TypeError, match=r"by its name or its DataNode, got 3\.5"):
        p.feed_input(3.5, np.zeros(2))


def test_names_outside_of_pipelines_are_those_of_the_pipeline() -> None:
    for k in range(2):
        node = fn.external_source(name="x")
        p = Pipeline(batch_size=2, num_threads=1, prefetch_queue_depth=1)
        p.set_outputs(node + 1)
        assert p.run(x=np.array([k, k]))[0].as_array().tolist() == [k + 1] * 2


def test_a_run_waits_for_data_of_another_thread() -> None:
    p = pipe(name="x", blocking=True, pipeline={"prefetch_queue_depth": 1})
    p.build()
    feeder = threading.Timer(0.05, lambda: p.feed_input("x", np.full(2, 7)))
    feeder.start()
    assert take(p, 1) == [[7, 7]]
    feeder.join()


def test_what_is_fed_while_a_run_asks_is_not_left_behind() -> None:
    """Right after a run found nothing, another thread feeds; the last batch is no answer."""

    class Late(queue.SimpleQueue[Any]):
        def empty(self) -> bool:
            nothing = super().empty()
            if nothing:
                self.put("next")
            return nothing

        def get_nowait(self) -> Any:
            try:
                return super().get_nowait()
            except queue.Empty:
                self.put("next")
                raise

    assert Input("x", SimpleNamespace(blocking=True), None, 1, Late(), "last").poll(0, 0) == "next"


def test_tensor_lists_of_ones_own() -> None:
    made = TensorListCPU([np.zeros((1, 2)), np.ones((2, 2))], layout="XY")
    assert (made.shape(), made.layout(), len(made)) == ([(1, 2), (2, 2)], "XY", 2)
    (out,) = pipe(lambda: made).run()
    assert out.layout() == "XY"
    assert out.at(1).tolist() == [[1, 1], [1, 1]]
    (parts,) = pipe(lambda: [made[0], made[1]]).run()
    assert parts.shape() == made.shape()
    assert parts.layout() == "XY"
    assert pipe(lambda: [made[0], made[1]], layout="AB").run()[0].layout() == "AB"


def test_iter_setup_ends() -> None:
    class Feeding(Pipeline):
        def __init__(self) -> None:
            super().__init__(2, 1, None)
            self.left = 3

        def define_graph(self):
            self.node = fn.external_source(name="x")
            return self.node

        def iter_setup(self):
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            self.feed_input(self.node, np.full(2, self.left))

    p = Feeding()
    assert take(p, 4) == [[2, 2], [1, 1], [0, 0], "end"]
    p.left = 1
    assert take(p, 2) == [[0, 0], "end"]


def test_checkpoint_of_sources() -> None:
    def source(info: types.SampleInfo) -> np.ndarray:
        if info.iteration == 3:
            raise StopIteration
        return np.array([info.idx_in_epoch, info.epoch_idx])

    p = pipe(source, batch=False)
    take(p, 6)
    saved = p.checkpoint()
    q = pipe(source, batch=False, pipeline={"checkpoint": saved})
    assert take(q, 6) == take(p, 6)

    r = pipe([np.full(2, i) for i in range(5)], cycle=True)
    take(r, 3)
    s = pipe([np.full(2, i) for i in range(5)], cycle=True, pipeline={"checkpoint": r.checkpoint()})
    with pytest.warns(UserWarning, match="iterable"):
        s.build()
    assert take(s, 4) == take(r, 4)


# -- worker processes --------------------------------------------------------------------------------------------------


def numbered(info: types.SampleInfo) -> np.ndarray:
    if info.iteration == 3:
        raise StopIteration
    return np.array([info.idx_in_epoch, info.epoch_idx, os.getpid()])


def whole(iteration: int) -> tuple[np.ndarray, list[np.ndarray]]:
    if iteration == 4:
        raise StopIteration
    return np.full((3, iteration + 1), iteration), [np.full(k + 1, iteration) for k in range(3)]


def failing(info: types.SampleInfo) -> np.ndarray:
    raise ValueError("in the worker")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_samples_in_processes(method: str) -> None:
    options = {"py_num_workers": 2, "py_start_method": method}
    with contextlib.closing(pipe(numbered, 3, options, batch=False, parallel=True, prefetch_queue_depth=2)) as p:
        p.start_py_workers()
        got = take(p, 8)
        assert got[3] == got[7] == "end"
        flat = np.concatenate([np.array(b) for b in got if b != "end"])
        assert flat[:9, 0].tolist() == list(range(9))
        assert flat[:, 1].tolist() == [0] * 9 + [1] * 9
        assert os.getpid() not in flat[:, 2]
        assert len(set(flat[:, 2].tolist())) == 2
        stats = p.external_source_shm_statistics()
        assert len(stats["capacities"]) >= 2
        assert min(stats["capacities"]) > 0


def test_batches_in_processes() -> None:
    options = {"py_num_workers": 2}
    with contextlib.closing(pipe(whole, 3, options, num_outputs=2, batch=True, parallel=True)) as p:
        for k in range(4):
            a, b = p.run()
            assert a.as_array().tolist() == [[k] * (k + 1)] * 3
            assert [b.at(i).tolist() for i in range(3)] == [[k] * (i + 1) for i in range(3)]
        with pytest.raises(StopIteration):
            p.run()


def test_iterables_in_processes() -> None:
    with contextlib.closing(pipe(generator, 2, {"py_num_workers": 2}, batch=True, parallel=True, cycle="raise")) as p:
        assert take(p, 6) == [[0, 0], [1, 1], [2, 2], "end", [0, 0], [1, 1]]
    with contextlib.closing(pipe(generator, 2, batch=True, parallel=True, cycle=True)) as p:
        assert take(p, 4) == [[0, 0], [1, 1], [2, 2], [0, 0]]


def test_errors_of_processes() -> None:
    with contextlib.closing(pipe(failing, 2, batch=False, parallel=True)) as p, \
            pytest.raises(JobError, match="ValueError: in the worker"):  # fmt: skip
        p.run()
    with contextlib.closing(pipe(lambda i: os._exit(3), 2, batch=True, parallel=True)) as p, \
            pytest.raises(JobError, match="exit code 3"):  # fmt: skip
        p.run()
    with contextlib.closing(pipe(lambda i: os.kill(os.getpid(), 9), 2, batch=True, parallel=True)) as p, \
            pytest.raises(JobError, match="by SIGKILL"):  # fmt: skip
        p.run()
    with pytest.raises(ValueError, match="py_start_method"):
        pipe(failing, 2, {"py_start_method": "thread"}, batch=False, parallel=True).run()


def large(iteration: int) -> np.ndarray:
    return np.full((2, (iteration + 1) << 20), iteration, np.uint8)


def test_batches_of_processes_lie_in_no_file_system() -> None:
    """A container's /dev/shm has 64 MB. Here there are none."""
    programs = "import contextlib; from tests.pipelines.python.test_sources import large, pipe"
    work = """
        with contextlib.closing(pipe(large, 2, {"py_num_workers": 1}, batch=True, parallel=True)) as p:
            print([(a := p.run()[0].as_array()).shape[1] >> 20 for _ in range(4)], a.min(), a.max())
    """
    command = f'mount -t tmpfs -o size=4k none /dev/shm && exec {sys.executable} -c "$WORK"'
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False,
        env={**os.environ, "WORK": f"{programs}\n{textwrap.dedent(work)}"},
    )  # fmt: skip
    if "mount" in ran.stderr or "unshare" in ran.stderr:
        pytest.skip("needs the right to mount")
    assert (ran.stdout.strip(), ran.returncode) == ("[1, 2, 3, 4] 3 3", 0), ran.stderr


def test_no_memory_for_batches_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with contextlib.closing(pipe(large, 2, batch=True, parallel=True)) as p, \
            pytest.raises(JobError, match="no memory for 2,097,152 bytes of data for the parent"):  # fmt: skip
        p.run()


def test_a_batch_whose_memory_could_not_be_had_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of processes stay those of their tasks."""
    receive, turns = Block.receive, iter(range(9))

    def refused_once(connection: Any) -> Block:
        found = receive(connection)
        if next(turns) == 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return found

    monkeypatch.setattr(Block, "receive", refused_once)
    with contextlib.closing(pipe(large, 2, {"py_num_workers": 1}, batch=True, parallel=True)) as p:
        with pytest.raises(JobError, match="ulimit -n"):
            p.run()
        found = [p.run()[0].as_array() for _ in range(4)]
    assert [(a.shape[1] >> 20, a.min(), a.max()) for a in found] == [(k + 1, k, k) for k in range(4)]


def test_without_processes() -> None:
    p = pipe(numbered, 2, {"py_num_workers": 0}, batch=False, parallel=True)
    assert p.run()[0].as_array()[0, 2] == os.getpid()


def test_pickling_functions_by_value() -> None:
    offset = 5

    def local(x: int, *, more: int = 2) -> int:
        def inner() -> int:
            return x + offset + more

        return inner()

    copy = loads(dumps(local))
    assert copy is not local
    assert copy(1) == 8
    assert copy(1, more=0) == 6
    assert loads(dumps(numbered)) is numbered
    assert loads(dumps(lambda: np.pi))() == np.pi

    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert loads(dumps(factorial))(5) == 120
    marked = pickle_by_value(whole)
    try:
        assert loads(dumps(marked)) is not whole
    finally:
        del whole._dali_run_by_value
