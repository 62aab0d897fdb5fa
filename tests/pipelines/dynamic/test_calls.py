"""Functions of the dynamic mode: for every operator what a pipeline gives; plans, modes, threads, messages."""

from __future__ import annotations

import gc
import io
import re
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dali_run
import dali_run.dynamic as ndd
import dali_run.fn as fn
from dali_run.ops.base import parameters
from dali_run.ops.errors import SampleError
from dali_run.pipelines.dynamic import calls
from dali_run.pipelines.dynamic.functions import names

from ...kit import fake_cupy
from ...kit.engine.rings import left_in_rings
from ...kit.fake_cupy import faked
from ...parity_registry import BATCH, Case, cases_of, ours, wanted

IMAGE = (np.arange(12 * 14 * 3) * 7 % 251).astype(np.uint8).reshape(12, 14, 3)
OPERATORS = {name: op for name, op in wanted().items() if name in names().values()}


def lookup(root: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        root = getattr(root, part)
    return root


def of_pipeline(case: Case) -> list[list[np.ndarray]]:
    """The results of a pipeline for a case."""
    pipe = dali_run.Pipeline(batch_size=BATCH, num_threads=1, device_id=None, exec_pipelined=False, seed=1)

    def fed(arrays: list[np.ndarray], layout: str = "") -> Any:
        return fn.external_source(lambda: arrays, layout=layout or None, batch=True)

    with pipe:
        inputs = [fed(a, lay) for a, lay in zip(case.inputs, case.layouts, strict=True)]
        per_sample = {k: fed(v) for k, v in case.per_sample.items()}
        result = lookup(fn, case.op)(*inputs, **per_sample, **case.arguments)
        pipe.set_outputs(*(result if isinstance(result, list) else [result]))
    pipe.build()
    return [[np.asarray(t.at(i)) for i in range(BATCH)] for t in pipe.run()]


@pytest.mark.filterwarnings("ignore::UserWarning")  # arguments of DALI's that have no effect here
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_gives_what_it_gives_in_a_pipeline(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # dump_image writes where it is
    cls = OPERATORS[name]
    cases = cases_of(cls, list(parameters(cls)))
    linked = (c for c in cases[1:] if c.changed.endswith("as an input") and not isinstance(ours(c), str))
    for case in [cases[0], *([] if cls.random else [next(linked, cases[0])])]:
        inputs = [ndd.batch(a, layout=lay or None) for a, lay in zip(case.inputs, case.layouts, strict=True)]
        per_sample = {k: ndd.batch(v) for k, v in case.per_sample.items()}
        size = {} if inputs else {"batch_size": BATCH}
        got = lookup(ndd, name)(*inputs, **per_sample, **case.arguments, **size)
        outputs = got if isinstance(got, tuple) else (got,)
        assert all(o.batch_size == BATCH for o in outputs)
        if cls.random:  # another generator; test_as_dali.py compares what is drawn
            continue
        for output, wanted_output in zip(outputs, of_pipeline(case), strict=True):
            for a, b in zip(output.tensors, wanted_output, strict=True):
                assert np.asarray(a).dtype == b.dtype
                np.testing.assert_array_equal(np.asarray(a), b)


def test_a_repeated_call_makes_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    image = ndd.tensor(IMAGE, layout="HWC")
    ndd.resize(image, size=[4, 5])
    monkeypatch.setattr(calls, "check_arguments", lambda *_: pytest.fail("a plan was made"))
    monkeypatch.setattr(calls, "infer_node", lambda *_: pytest.fail("the inputs were checked again"))
    assert ndd.resize(image, size=[4, 5]).shape == (4, 5, 3)
    assert ndd.resize(image, size=np.array([4, 5])).shape == (4, 5, 3)


def test_numbers_that_are_equal_but_of_another_type_are_other_constants() -> None:
    x = ndd.tensor(np.uint8([3]))
    assert [str((x + k).dtype) for k in (1, 1.0, True)] == ["i32", "f32", "u8"]


@pytest.mark.parametrize("mode", ndd.EvalMode)
def test_messages_name_the_programs_line(mode: Any) -> None:
    here = re.escape(__file__)
    with mode:
        with pytest.raises(ValueError, match=rf"{here}:\d+: flip: the batches of one call"):
            ndd.flip(ndd.batch([IMAGE] * 2), horizontal=ndd.batch([1, 0, 1]))
        with pytest.raises(TypeError, match=rf"{here}:\d+: flip: has no argument 'horizonal'; did you mean horizontal"):
            ndd.flip(IMAGE, horizonal=1)
        with pytest.raises(ValueError, match=rf"{here}:\d+: resize: cannot resample"):
            ndd.resize(np.zeros((4, 4), np.uint8), size=2)
        with pytest.raises(TypeError, match=rf"{here}:\d+: cast: needs argument 'dtype'"):
            ndd.cast(IMAGE)
        broken = ndd.tensor(np.zeros(10, np.uint8))
        with pytest.raises(SampleError, match=rf"{here}:\d+: decoders.image: sample 0: .*no known image format"):
            ndd.decoders.image(broken).evaluate()


def test_deferred_errors_name_the_line_of_the_call() -> None:
    with ndd.EvalMode.deferred:
        decoded = ndd.decoders.image(np.zeros(10, np.uint8))
        line = sys._getframe().f_lineno - 1
    with pytest.raises(SampleError, match=f"^{re.escape(__file__)}:{line}: "):
        decoded.evaluate()


def test_deferred_calls_run_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = calls.run
    monkeypatch.setattr(calls, "run", lambda plan, *rest: (ran.append(plan.op.name), run(plan, *rest))[1])
    with ndd.EvalMode.deferred, ndd.EvalContext():
        image = ndd.tensor(IMAGE, layout="HWC")
        flipped = ndd.flip(image)
        unused = ndd.brightness(flipped, brightness=2.0)
        assert flipped.device == ndd.Device("cpu")
        assert ran == []
        np.testing.assert_array_equal(np.asarray(flipped), IMAGE[:, ::-1])
        assert ran == ["flip"]
        ndd.EvalContext.current().evaluate_all()
        assert ran == ["flip", "brightness"]
        del unused
    np.testing.assert_array_equal(np.asarray(flipped), IMAGE[:, ::-1])


def test_several_threads_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MIN_SHARED_SECONDS", 0.0)
    images = ndd.batch([IMAGE[: 4 + k] for k in range(7)], layout="HWC")
    angles = ndd.batch([float(10 * k) for k in range(7)])
    made = []
    for threads in (1, 3, 16):
        with ndd.EvalContext(num_threads=threads):
            g = ndd.random.RNG(seed=4)
            made.append([ndd.rotate(images, angle=angles), ndd.noise.gaussian(images, stddev=9.0, rng=g)])
    for other in made[1:]:
        for a, b in zip(made[0], other, strict=True):
            assert a.shape == b.shape
            assert a.layout == b.layout
            for x, y in zip(a.tensors, b.tensors, strict=True):
                np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    with ndd.EvalContext(num_threads=3), pytest.raises(SampleError, match="sample 5"):
        ndd.decoders.image(ndd.batch([_png()] * 5 + [np.zeros(9, np.uint8)]))


def _png() -> np.ndarray:
    encoded = ndd.encoders.image(ndd.tensor(IMAGE, layout="HWC"), format="png")
    return np.asarray(encoded)


def test_threads_have_modes_contexts_and_generators_of_their_own() -> None:
    seen: list[Any] = []
    with ndd.EvalMode.deferred, ndd.EvalContext() as context:
        ndd.random.set_seed(1)
        other = threading.Thread(
            target=lambda: seen.extend(
                [ndd.EvalMode.current(), ndd.EvalContext.current(), ndd.random.get_default_rng()]
            )
        )
        other.start()
        other.join()
        assert seen[0] is ndd.EvalMode.eager
        assert seen[1] is not context
        assert seen[2] is not ndd.random.get_default_rng()


def test_mappings_and_functions_are_arguments_too() -> None:
    """A value that cannot be hashed makes a plan of its own."""
    with pytest.raises(TypeError, match="has no argument 'features'"):
        ndd.flip(IMAGE, features={"a": 1})
    with pytest.raises(TypeError, match="is a list that contains Tensors"):
        ndd.resize(IMAGE, size=[ndd.tensor(3), 4])
    with pytest.raises(TypeError, match="must be a plain value"):
        ndd.cast(IMAGE, dtype=ndd.tensor(1))
    with pytest.raises(TypeError, match="rng must be an RNG"):
        ndd.random.uniform(rng=3)
    with pytest.raises(TypeError, match="draws no random numbers"):
        ndd.flip(IMAGE, rng=ndd.random.RNG(seed=1))


def test_types_go_by_the_names_of_the_dynamic_mode() -> None:
    """NumPy calls eight bytes u8."""
    names = {"u8": "u8", "i16": "i16", "f32": "f32", "uint8": "u8", "float64": "f64", "FLOAT": "f32", "bool": "bool"}
    for given, wanted_name in names.items():
        assert str(ndd.cast([1.0], dtype=given).dtype) == wanted_name
        assert str(ndd.tensor([1.0], dtype=given).dtype) == wanted_name
        assert str(ndd.random.uniform(range=[0, 9], dtype=given).dtype) == wanted_name if given != "bool" else True
    with pytest.raises(ValueError, match="'u7' is not a data type; allowed: i8"):
        ndd.cast([1], dtype="u7")


def test_empty_batches_go_through() -> None:
    none = ndd.batch([], dtype=ndd.uint8, layout="HWC")
    out = ndd.resize(ndd.flip(none), size=4) * 2.0
    assert (out.batch_size, str(out.dtype), out.ndim) == (0, "f32", 3)


def test_imread(tmp_path: Path) -> None:
    path = tmp_path / "ä.png"
    path.write_bytes(_png().tobytes())
    np.testing.assert_array_equal(np.asarray(ndd.imread(path)), IMAGE)
    two = ndd.imread([str(path), path], output_type=dali_run.types.GRAY)
    assert two.shape == [(12, 14, 1)] * 2
    with pytest.raises(SampleError, match="cannot be read"):
        ndd.imread(tmp_path / "missing.png")
    with pytest.raises(TypeError, match="takes a path"):
        ndd.imread(3)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.gpu(emulated=False))])
def test_on_a_gpu(real: bool) -> None:
    """Or on one that is imitated: data goes there, kernels run there, arguments stay on the host."""
    with nullcontext() if real else faked(memory=True), ndd.EvalContext():
        image = ndd.tensor(IMAGE, layout="HWC")
        there = image.gpu()
        assert str(there.device) == "gpu:0"
        flipped = ndd.flip(there, horizontal=ndd.tensor(1))
        assert str(flipped.device) == "gpu:0"
        np.testing.assert_array_equal(np.asarray(flipped.cpu()), IMAGE[:, ::-1])
        moved = ndd.flip(image, device="gpu")
        np.testing.assert_array_equal(np.asarray(moved.cpu()), IMAGE[:, ::-1])
        with pytest.raises(ValueError, match="device is 'cpu'"):
            ndd.flip(there, device="cpu")
        g = ndd.random.RNG(seed=2)
        g.advance(2)
        noisy = ndd.noise.gaussian(there, stddev=5.0, rng=g.clone()).cpu()
        here = ndd.noise.gaussian(image, stddev=5.0, rng=g)
        assert np.abs(np.asarray(noisy).astype(int) - np.asarray(here).astype(int)).max() <= 1


def test_on_two_gpus() -> None:
    """Calls run where their inputs are, or where they were asked to; nothing is taken from one GPU by another."""
    with faked(devices=2, memory=True) as fake, ndd.EvalContext():
        image = ndd.tensor(IMAGE, layout="HWC")
        second = image.gpu(1)
        assert str(second.device) == "gpu:1"
        for there in (ndd.flip(second), ndd.flip(second, device="gpu"), ndd.flip(image, device="gpu:1")):
            assert str(there.device) == "gpu:1"
            np.testing.assert_array_equal(np.asarray(there.cpu()), IMAGE[:, ::-1])
        assert {number for _, number in fake.launched} == {1}
        moved = ndd.flip(second).gpu(0)
        assert str(moved.device) == "gpu:0"
        np.testing.assert_array_equal(np.asarray(moved.cpu()), IMAGE[:, ::-1])
        assert second.to_device("gpu:1") is second
        assert second.to_device("gpu:1", force_copy=True).data.data.data.ptr != second.data.data.data.ptr
        with ndd.Device("gpu:1"):
            assert str(ndd.random.uniform(shape=3).device) == "gpu:1"
            assert str(image.gpu().device) == "gpu:1"
        with pytest.raises(ValueError, match=r"one GPU, and this one is on gpu:1 and gpu:0; take \.gpu\(1\)"):
            ndd.flip(second, device="gpu:0")
        with pytest.raises(ValueError, match="one GPU"):
            ndd.stack(second, image.gpu(0))


@pytest.mark.parametrize(
    ("index", "real"), [(0, False), (1, False), pytest.param(0, True, marks=pytest.mark.gpu(emulated=False))]
)
def test_what_is_made_on_a_gpu_is_finished_and_stays_there(index: int, real: bool) -> None:
    """Streams that are imitated do nothing before somebody waits for them, the default one neither: a call that goes on
    with data whose copy nobody waited for would see noise."""
    with nullcontext() if real else faked(devices=2, memory=True, late=True), ndd.EvalContext():
        image = ndd.tensor(IMAGE, layout="HWC").gpu(index)
        batch = ndd.batch([IMAGE, IMAGE[:5], IMAGE[:3]], layout="HWC").gpu(index)
        array = image.data.data.reshape(IMAGE.shape)
        whole = image.data.data.reshape(1, *IMAGE.shape)
        for make in (
            lambda: ndd.tensor(image), lambda: ndd.as_tensor(image), lambda: ndd.tensor(array),
            lambda: image.to_device(f"gpu:{index}", force_copy=True), lambda: ndd.batch(batch).tensors[0],
            lambda: ndd.batch([image, image]).tensors[1], lambda: ndd.batch(batch).select([2, 0]).tensors[1],
            lambda: ndd.batch(whole).tensors[0], lambda: ndd.flip(ndd.flip(image)),
        ):  # fmt: skip
            made = make()
            assert str(made.device) == f"gpu:{index}"
            assert np.array_equal(np.asarray(ndd.flip(made, horizontal=1).cpu()), IMAGE[:, ::-1])
        of_batch = batch.tensors[1].cpu()
        assert np.array_equal(np.asarray(of_batch), IMAGE[:5])
        assert of_batch.data.data.size == IMAGE[:5].size  # not the whole batch
        assert ndd.batch(whole).data.data.data.ptr != array.data.ptr
        assert ndd.as_batch(whole).data.data.data.ptr == array.data.ptr


def test_a_context_that_is_gone_gives_its_streams_back() -> None:
    with faked(memory=True):
        for _ in range(5):
            with ndd.EvalContext():
                ndd.tensor(IMAGE, layout="HWC").gpu()
            gc.collect()
        assert len(fake_cupy._streams) == 1


def test_calls_on_a_gpu_leave_nothing_to_the_collector() -> None:
    """A context and the checks that its kernel left were a ring, which kept the memory of the call."""
    file = io.BytesIO()
    Image.fromarray(IMAGE).save(file, "JPEG")
    encoded = np.frombuffer(file.getvalue(), np.uint8)

    def call() -> None:
        assert np.asarray(ndd.decoders.image(encoded, device="gpu").cpu()).shape == IMAGE.shape

    with faked(memory=True), ndd.EvalContext():
        call()  # what is compiled once leaves rings of its own
        assert left_in_rings(call) == {}


@pytest.mark.parametrize("threads", [1, 3])
def test_lists_of_other_lengths_in_each_sample(threads: int) -> None:
    """Each sample's result is the one that it has alone, and a list that no sample may have is told with its line."""
    images = ndd.batch([np.arange(48, dtype=np.uint8).reshape(4, 4, 3) + k for k in range(4)], layout="HWC")
    sizes = [[2.0], [2.0, 3.0], [3.0], [3.0, 1.0]]
    with ndd.EvalContext(num_threads=threads):
        for _ in range(3):  # what a call took decides whether the next one is cut for the threads
            together = ndd.resize(images, size=ndd.batch(sizes))
        for k, size in enumerate(sizes):
            alone = ndd.resize(images.select([k]), size=size)
            np.testing.assert_array_equal(np.asarray(together.tensors[k]), np.asarray(alone.tensors[0]))
        here = re.escape(__file__)
        with pytest.raises(RuntimeError, match=rf"{here}:\d+: resize: sample 1: size needs 1 or 2 numbers, got 3"):
            ndd.resize(images, size=ndd.batch([[2.0], [2.0, 3.0, 4.0], [3.0], [1.0]])).evaluate()
        with pytest.raises(RuntimeError, match=rf"{here}:\d+: full: the fill value has 3 dimensions, the output 1"):
            ndd.full(images, shape=[2]).evaluate()
