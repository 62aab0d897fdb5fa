"""Errors: of the types that DALI raises, and with the line of the program, the operator and the sample."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
import dali_run.ops as ops
from dali_run import Pipeline, pipeline_def
from dali_run.ops.errors import DaliRunError, JobError, SpecError
from dali_run.plugin.numpy import DALIGenericIterator, LastBatchPolicy
from dali_run.tensors import TensorCPU, TensorListCPU

IMAGE = np.zeros((4, 5, 3), np.uint8)


def given(data: Any, **arguments: Any) -> Any:
    return fn.external_source(source=lambda: data if isinstance(data, list) else [data, data], **arguments)


def run(definition: Any, **arguments: Any) -> Any:
    made = pipeline_def(definition, batch_size=2, num_threads=1, device_id=None, **arguments)()
    try:
        return made.run()
    finally:
        made.close()


def endless() -> Any:
    while True:
        yield [IMAGE] * 2


@pytest.mark.parametrize(
    ("kind", "words", "call"),
    [
        (KeyError, "resize: has no argument 'foo'", lambda: fn.resize(given(IMAGE), foo=1)),
        (KeyError, "has no argument 'foo'", lambda: ops.Resize(foo=1)),
        (ValueError, "takes 1 input, got 0", lambda: fn.resize()),
        (ValueError, "takes 1 input, got 3", lambda: fn.resize(given(IMAGE), given(IMAGE), given(IMAGE))),
        (ValueError, "size", lambda: fn.resize(given(IMAGE), size="abc")),
        (ValueError, "interp_type", lambda: fn.resize(given(IMAGE), interp_type="abc")),
        (ValueError, "device must be", lambda: fn.flip(given(IMAGE), device="xpu")),
        (TypeError, "not a number", lambda: fn.flip("text")),
        (RuntimeError, "step of a slice", lambda: given(IMAGE)[::0]),
        (ValueError, "cycle is for iterables", lambda: fn.external_source(source=lambda: 1, cycle=True)),
        (ValueError, "cycle is for iterables", lambda: fn.external_source(cycle=True)),
        (TypeError, "generator function itself", lambda: fn.external_source(source=endless(), cycle="raise")),
        (ValueError, "'quiet'", lambda: fn.external_source(source=endless, cycle="foo")),
        (TypeError, "callable or iterable", lambda: fn.external_source(source=5)),
        (TypeError, "its parameters are: a, b", lambda: fn.external_source(source=lambda a, b: 1)),
        (RuntimeError, "parallel is for a source", lambda: fn.external_source(parallel=True)),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call(kind: type[Exception], words: str, call: Any) -> None:
    with Pipeline(2, 1, None), pytest.raises(kind, match=words) as caught:
        call()
    assert isinstance(caught.value, (RuntimeError, TypeError))


@pytest.mark.parametrize("name", ["crop", "resize", "crop_mirror_normalize", "flip"])
def test_layouts_that_an_operator_does_not_take(name: str) -> None:
    arguments = {"resize": {"size": [1, 1]}, "flip": {}}.get(name, {"crop": [1, 1]})
    with pytest.raises(ValueError, match=f"{name}: takes layouts .*HWC") as caught:
        run(lambda: getattr(fn, name)(given(IMAGE, layout="ABC"), **arguments))
    assert isinstance(caught.value, SpecError)


def test_errors_name_the_line_the_operator_and_the_sample() -> None:
    def wrong_layout() -> Any:
        return fn.crop(given(IMAGE, layout="ABC"), crop=[1, 1])  # this line

    def wrong_shape() -> Any:
        return fn.reshape(given([np.zeros((3, 3)), np.zeros((3, 4))]), shape=[9])  # this line

    def no_image() -> Any:
        return fn.crop(given(np.zeros(3, np.uint8)), crop=[1, 1])  # this line

    for definition, operator, sample in ((wrong_layout, "crop", ""), (wrong_shape, "reshape", "000000001"),
                                         (no_image, "crop", "")):  # fmt: skip
        with pytest.raises(DaliRunError) as caught:
            run(definition)
        line = definition.__code__.co_firstlineno + 1
        assert f"{__file__}:{line}" in str(caught.value)
        assert operator in str(caught.value)
        assert sample in str(caught.value)


@pytest.mark.parametrize("what", ["an image", "two numbers"])
def test_an_argument_of_one_number_takes_no_image(what: str) -> None:
    """Each sample was refused, when the pipeline ran."""

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def turned() -> Any:
        images = given(IMAGE, layout="HWC")
        angle = images if what == "an image" else fn.random.uniform(shape=[2])
        return fn.rotate(images, angle=angle)  # this line

    line = test_an_argument_of_one_number_takes_no_image.__code__.co_firstlineno
    with pytest.raises(SpecError, match="argument 'angle' takes one number for each sample, got") as caught:
        turned().build()
    assert f"{__file__}:{line + 8}: rotate: " in str(caught.value)


def test_an_exception_in_an_operator_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.ops.images.crop import Crop

    def fails(self: Any, ctx: Any, images: Any) -> Any:
        raise IndexError("my fault")

    monkeypatch.setattr(Crop, "cpu", fails)
    with pytest.raises(JobError, match=r"^00000000\d: .*test_errors.py:\d+: crop: IndexError: my fault"):
        run(lambda: fn.flip(fn.crop(fn.flip(given(IMAGE, layout="HWC")), crop=[1, 1])))


def test_conditionals_say_where_in_user_code() -> None:
    class OwnError(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a, b)

    def helper(what: Any) -> None:
        raise what

    def definition(what: Any) -> Any:
        x = fn.random.uniform()
        helper(what)
        return x

    make = pipeline_def(definition, batch_size=2, num_threads=1, device_id=None, enable_conditionals=True)
    for what in (ValueError("mine"), KeyError("mine"), SpecError("mine")):
        with pytest.raises(type(what)) as caught:
            make(what)
        said = str(caught.value)
        assert said.startswith("in user code:")
        assert f'File "{__file__}", line {definition.__code__.co_firstlineno + 2}, in definition' in said
        assert "in helper" in said
        assert caught.value.__cause__ is what
    with pytest.raises(OwnError) as own:
        make(OwnError(1, 2))
    assert own.value.args == (1, 2)
    assert own.value.__notes__[0].startswith("in user code:")


def test_a_variable_that_only_one_branch_assigns() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None, enable_conditionals=True)
    def definition() -> Any:
        if fn.random.coin_flip():
            x = fn.random.uniform()
        return x

    with pytest.raises(RuntimeError, match="only one branch"):
        definition()
    with pytest.raises(UnboundLocalError):
        definition()


def test_batches_that_are_no_tensors() -> None:
    ragged = TensorListCPU([TensorCPU(np.zeros(3)), TensorCPU(np.zeros(4))])
    for call in (ragged.as_tensor, ragged.as_array, lambda: ragged.as_reshaped_tensor([7])):
        with pytest.raises(RuntimeError):
            call()
        with pytest.raises(ValueError, match="shape"):
            call()
    dense = TensorListCPU(np.zeros((2, 3)))
    with pytest.raises(RuntimeError, match="7"):
        dense.as_reshaped_tensor([7])
    for other in (np.zeros(3, np.uint8), np.zeros((3, 1))):
        for kind in (TypeError, ValueError):
            with pytest.raises(kind, match="share dtype"):
                TensorListCPU([TensorCPU(np.zeros(3)), TensorCPU(other)])


def test_serialize_and_iterators() -> None:
    pipe = Pipeline(4, 1, None)
    with pipe:
        pipe.set_outputs(fn.random.uniform())
    with pytest.raises(TypeError, match="filename="):
        pipe.serialize("text")
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind, match="size must be"):
            DALIGenericIterator(pipe, ["a"], size=0)
    with pytest.raises(RuntimeError, match="no full batch"):
        DALIGenericIterator(pipe, ["a"], size=3, last_batch_policy=LastBatchPolicy.DROP)
    pipe.close()


def test_operators_that_dali_has_and_this_engine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.ops.base import find
    from dali_run.ops.dali_names import DALI_NAMES
    from dali_run.pipelines.plugins import find_operator

    missing = "readers.video_resize"
    assert missing in DALI_NAMES
    from dali_run.ops import base

    monkeypatch.setattr(base, "_OPS", {k: v for k, v in base._OPS.items() if k != missing})
    with pytest.raises(SpecError, match="DALI has one, dali-run does not"):
        find(missing)
    with pytest.raises(SpecError) as caught:
        find_operator("readers.fil")
    assert "did you mean readers.file" in str(caught.value)
    assert "_" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *((name, value) for name in ("batch_size", "num_threads", "seed", "py_num_workers", "prefetch_queue_depth",
                                     "output_ndim", "device_id") for value in ("abc", 1.5, b"x", {}, np.nan)),
        *((name, value) for name in ("on_error", "py_start_method", "stream_policy", "concurrency", "upload", "rng",
                                     "isolation", "parity") for value in ("abc", 1.5, ["fail"], b"skip")),
        *(("memory", value) for value in ("abc", 1.5, b"x", -3)),
        *((name, value) for name in ("output_dtype", "output_layout") for value in (1.5, b"x", [1.5])),
        *(("checkpoint", value) for value in (1.5, {}, 7)),
    ],
)  # fmt: skip
def test_an_argument_of_pipeline_that_is_wrong_is_named(name: str, wrong: Any) -> None:
    """`on_error="skp"` dropped samples that fail, in silence."""
    with pytest.raises((TypeError, ValueError), match=name):
        Pipeline(**{"batch_size": 2, "num_threads": 1, "device_id": None, name: wrong})


@pytest.mark.parametrize("fed", [True, False])
def test_a_pipeline_that_was_closed_says_so(fed: bool) -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None, enable_checkpointing=True, prefetch_queue_depth=1)
    def definition() -> Any:
        return fn.external_source(name="x") if fed else fn.random.coin_flip()

    pipe = definition()
    pipe.enable_api_check(False)
    pipe.close()  # before it began
    if fed:
        pipe.feed_input("x", [IMAGE] * 2)
    (kept,) = pipe.run()
    pipe.close()
    pipe.close()
    calls = [pipe.run, pipe.schedule_run, pipe.reader_meta, pipe.checkpoint]
    for call in calls + ([lambda: pipe.feed_input("x", [IMAGE] * 2)] if fed else []):
        with pytest.raises(RuntimeError, match="the pipeline is closed"):
            call()
    assert len(kept) == 2
    kept.as_array()


def test_a_pipeline_is_not_copied() -> None:
    pipe = Pipeline(2, 1, None)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(pipe)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("odd", [0, 5, 11])
def test_a_batch_that_a_program_feeds_is_of_one_kind(threads: int, odd: int) -> None:
    """As DALI: a RuntimeError, whichever sample is odd, and however the batch is cut for the threads."""
    files = []
    for i in range(12):
        file = io.BytesIO()
        np.save(file, np.zeros((2, 3, 1) if i == odd else (2, 3), np.float32))
        files.append(np.frombuffer(file.getvalue(), np.uint8))

    @pipeline_def(batch_size=12, num_threads=threads, device_id=None)
    def pipe() -> Any:
        return fn.decoders.numpy(fn.external_source(source=lambda: files))

    with pytest.raises(RuntimeError, match=r"float32, [23]-D.* is float32, [23]-D"):
        pipe().run()
    del files[odd]
    pipe_of_eleven = pipe()
    assert len(pipe_of_eleven.run()[0]) == 11
