"""Ways of programs for DALI that are rare in pipelines of our own. Expected results were printed by DALI 2.4."""

import io
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline, ops, pipeline_def
from dali_run.ops.base import coerce, operators, parameters, strip_optional
from dali_run.ops.errors import JobError, SpecError
from dali_run.pipeline import OperatorConcurrency, StreamPolicy, do_not_convert, experimental
from dali_run.pipelines.plugins import load_operators
from dali_run.plugin.numpy import DALIGenericIterator, LastBatchPolicy
from dali_run.tensors import TensorCPU, TensorListCPU

IMAGE = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
MATRIX = np.arange(12, dtype=np.uint8).reshape(3, 4)


def run(definition: Any, **arguments: Any) -> Any:
    made = pipeline_def(definition, batch_size=2, num_threads=1, device_id=None, **arguments)()
    try:
        return made.run()
    finally:
        made.close()


def given(data: Any, **arguments: Any) -> Any:
    """An external_source of ``data``: a list is a batch, anything else the one sample of which it is made."""
    return fn.external_source(source=lambda: data if isinstance(data, list) else [data, data], **arguments)


def shapes(outputs: Any) -> list[tuple[int, ...]]:
    return outputs[0].shape()


# -- epochs of sources under an iterator of a given size ------------------------------------------------


class Source:
    """``n`` batches, StopIteration, and again, as DALI's documentation has it; batches are numbered through."""

    def __init__(self, n: int) -> None:
        self.n, self.given, self.total = n, 0, 0

    def __iter__(self) -> "Source":
        return self

    def __next__(self) -> list[Any]:
        if self.given == self.n:
            self.given = 0
            raise StopIteration
        self.given += 1
        self.total += 1
        return [np.int32([self.total])] * 5


def epochs(source: Any, size: int, depth: int, auto_reset: bool, policy: LastBatchPolicy, **arguments: Any) -> Any:
    pipe = Pipeline(batch_size=5, num_threads=1, device_id=None, prefetch_queue_depth=depth)
    with pipe:
        pipe.set_outputs(fn.external_source(source=source, **arguments))
    it = DALIGenericIterator(pipe, ["x"], size=size, auto_reset=auto_reset, last_batch_policy=policy)
    found = []
    for _ in range(4):
        found.append([int(batch[0]["x"][0, 0]) for batch in it])
        if not auto_reset:
            it.reset()
    pipe.close()
    return found


@pytest.mark.parametrize("policy", list(LastBatchPolicy))
@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_source_as_long_as_the_iterator_fills_every_epoch(
    n: int, depth: int, auto_reset: bool, policy: LastBatchPolicy
) -> None:
    numbered = np.arange(1, 4 * n + 1).reshape(4, n).tolist()
    same = [list(range(1, n + 1))] * 4
    asked = Source(n)
    batches = [[np.int32([k])] * 5 for k in range(1, n + 1)]
    common = (5 * n, depth, auto_reset, policy)
    assert epochs(Source(n), *common) == numbered
    assert epochs(lambda: next(asked), *common) == numbered
    assert epochs(batches, *common, cycle="quiet") == same
    assert epochs(batches, *common, cycle="raise") == same


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("size", [5, 10, 12, 15, 22])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_no_batch_of_a_source_is_lost_and_no_epoch_empty(n: int, size: int, depth: int) -> None:
    """Whatever the lengths: DALI has epochs here that stay empty, depending on the queue's depth."""
    for policy in (LastBatchPolicy.FILL, LastBatchPolicy.PARTIAL):
        found = epochs(Source(n), size, depth, True, policy)
        assert [k for epoch in found for k in epoch] == list(range(1, sum(map(len, found)) + 1))
        assert all(found)


def test_a_source_that_is_spent_ends_the_epochs() -> None:
    assert epochs([[np.int32([k])] * 5 for k in (1, 2)], 10, 1, True, LastBatchPolicy.FILL) == [[1, 2], [], [], []]


# -- modes of external_source ---------------------------------------------------------------------------


class PerSample:
    def __call__(self, info: Any) -> Any:
        return np.int32([info.idx_in_epoch])


class PerBatch:
    def __call__(self, iteration: Any) -> Any:
        return [np.int32([7])] * 2


@pytest.mark.parametrize("info", [None, False, True])
def test_what_a_source_is_asked_for_is_up_to_batch_alone(info: Any) -> None:
    out = run(lambda: fn.external_source(source=PerSample(), batch=False, batch_info=info))
    assert out[0].as_array().reshape(-1).tolist() == [0, 1]


@pytest.mark.parametrize("batch", [None, True])
@pytest.mark.parametrize("parallel", [None, False, True])
def test_a_source_gives_batches_unless_told(batch: Any, parallel: Any) -> None:
    out = run(lambda: fn.external_source(source=PerBatch(), batch=batch, parallel=parallel), py_start_method="fork")
    assert shapes(out) == [(1,), (1,)]


def test_blocking_is_for_what_is_fed_and_no_error_beside_a_source() -> None:
    assert shapes(run(lambda: fn.external_source(source=PerBatch(), blocking=True))) == [(1,), (1,)]
    with pytest.raises(SpecError, match="repeat_last is for feed_input"):
        run(lambda: fn.external_source(source=PerBatch(), repeat_last=True))


def test_layouts_that_do_not_fit_are_refused() -> None:
    flat = np.ones((3, 2), np.float32)
    for source in (lambda: [flat, flat], lambda: np.ones((2, 3, 2))):
        with pytest.raises(JobError, match="'HWC' names 3 dimensions, the data has 2"):
            run(lambda source=source: fn.external_source(source=source, layout="HWC"))
    with pytest.raises(SpecError, match="ndim is 2"):
        run(lambda: given(flat, layout="HWC", ndim=2))
    with pytest.raises(ValueError, match="'HWC' names 3 dimensions"):
        TensorListCPU(np.zeros((2, 3, 4)), layout="HWC")
    pipe = Pipeline(2, 1, None)
    with pipe:
        pipe.set_outputs(fn.external_source(name="x"))
    with pytest.raises(JobError, match="'HWC' names 3 dimensions"):
        pipe.feed_input("x", [flat, flat], layout="HWC")


# -- arguments ------------------------------------------------------------------------------------------


def test_paths_may_be_path_objects_wherever_a_text_is_taken() -> None:
    load_operators()
    taken = 0
    for cls in operators().values():
        for p in parameters(cls).values():
            if Any in (p.type, *get_args(strip_optional(p.type))):
                continue
            for make in (lambda x: x, lambda x: [x]):
                try:
                    as_text = coerce(p, make("a/b"))
                except ValueError:
                    continue
                if as_text not in ("a/b", ("a/b",)):
                    continue
                assert coerce(p, make(Path("a/b"))) == as_text, f"{cls.name}: {p.name}"
                taken += 1
    assert taken > 50


def test_readers_take_path_objects(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(b"abc")
    (tmp_path / "list.txt").write_text("a/x.jpg 3\n")
    reader = ops.readers.File(file_root=tmp_path)
    for definition in (
        lambda: tuple(reader()),
        lambda: tuple(fn.readers.file(files=[tmp_path / "a" / "x.jpg"])),
        lambda: tuple(fn.readers.file(file_root=str(tmp_path), file_list=tmp_path / "list.txt")),
    ):
        assert bytes(run(definition)[0].at(0)) == b"abc"


def test_constants_come_before_anything_else_was_looked_up() -> None:
    program = (
        "import dali_run.types as types\n"
        "from dali_run import pipeline_def\n"
        "@pipeline_def(batch_size=1, num_threads=1, device_id=None)\n"
        "def p():\n"
        "    return types.Constant(42, device='cpu'), types.Constant([], device='cpu')\n"
        "a, b = p().run()\n"
        "print(int(a.at(0)), b.shape())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[0] == "42 [(0,)]", done.stderr


def test_a_node_is_no_iterable() -> None:
    with Pipeline(1, 1, None):
        node = fn.random.uniform()
    assert not isinstance(node, Iterable)
    with pytest.raises(TypeError):
        iter(node)


def test_lists_of_other_lengths_in_each_sample() -> None:
    floats, ints = (
        (lambda *rows: given([np.float32(r) for r in rows])),
        (lambda *rows: given([np.int32(r) for r in rows])),
    )
    data = np.zeros((8, 8, 3), np.float32)
    out = run(lambda: fn.slice(given(data), rel_start=floats([0.1, 0.1], [0.1]), rel_shape=floats([0.5, 0.5], [0.5]),
                               axes=ints([0, 1], [0])))  # fmt: skip
    assert shapes(out) == [(4, 4, 3), (4, 8, 3)]
    out = run(lambda: fn.slice(given(data), ints([1, 2], [3]), ints([4, 5], [2]), axes=ints([0, 1], [1])))
    assert shapes(out) == [(4, 5, 3), (8, 2, 3)]
    out = run(lambda: fn.slice(given(MATRIX), start=1, end=2, axes=ints([], [0])))
    assert shapes(out) == [(1, 1), (1, 4)]
    assert shapes(run(lambda: fn.pad(given(MATRIX), axes=ints([0, 1], [1]), align=[8]))) == [(8, 8), (3, 8)]
    assert shapes(run(lambda: fn.pad(given(MATRIX), axes=ints([], [1]), align=[8]))) == [(8, 8), (3, 8)]
    both = [MATRIX, MATRIX[:2, :3]]
    assert shapes(run(lambda: fn.pad(given(both), axes=ints([0, 1], [1])))) == [(3, 4), (2, 4)]
    out = run(lambda: fn.pad(given(MATRIX), axes=ints([0, 1], [1]), shape=ints([5, 6], [7])))
    assert shapes(out) == [(5, 6), (3, 7)]
    out = run(lambda: fn.random.choice(given([np.arange(3), np.arange(2)]), p=floats([0, 0, 1], [0, 1])))
    assert out[0].as_array().tolist() == [2, 1]


@pytest.mark.parametrize("name", ["start", "end", "shape", "rel_start", "rel_end", "rel_shape"])
@pytest.mark.parametrize("axes", [[], [0, 1]])
def test_empty_lists_say_nothing_of_a_slice(name: str, axes: list[int]) -> None:
    (out,) = run(lambda: fn.slice(given(IMAGE), axes=axes, **{name: []}))
    assert np.array_equal(out.at(0), IMAGE)


def test_empty_lists(tmp_path: Path) -> None:
    (out,) = run(lambda: fn.slice(given(MATRIX), start=[1, 1], end=[2, 3], axes=[]))
    assert out.at(0).tolist() == [[5, 6]]
    (out,) = run(lambda: fn.slice(given(IMAGE, layout="HWC"), start=[1, 1, 1], end=[2, 3, 2], axis_names=""))
    assert out.shape()[0] == (1, 2, 1)
    for arguments in ({"align": []}, {"shape": []}):
        assert shapes(run(lambda a=arguments: fn.pad(given(MATRIX), axes=[0], **a))) == [(3, 4)] * 2
    nothing = lambda: given(np.zeros(0, np.float32))  # noqa: E731
    for mean, std in (([], []), ([], [1.0]), ([0.0], [])):
        (out,) = run(lambda m=mean, s=std: fn.crop_mirror_normalize(given(IMAGE, layout="HWC"), mean=m, std=s))
        assert np.array_equal(out.at(0), IMAGE.transpose(2, 0, 1))
    (out,) = run(lambda: fn.crop_mirror_normalize(given(IMAGE, layout="HWC"), mean=nothing(), std=nothing()))
    assert np.array_equal(out.at(0), IMAGE.transpose(2, 0, 1))
    (out,) = run(lambda: fn.crop_mirror_normalize(given(IMAGE, layout="HWC"), crop=[6, 6], out_of_bounds_policy="pad",
                                                  fill_values=[]))  # fmt: skip
    assert float(out.at(0)[0, 0, 0]) == 0
    assert run(lambda: fn.expand_dims(given(IMAGE, layout="HWC"), axes=[]))[0].layout() == "HWC"
    np.save(tmp_path / "a.npy", MATRIX)
    for name in ("roi_start", "roi_end", "roi_shape", "rel_roi_start", "rel_roi_end", "rel_roi_shape"):
        (out,) = run(lambda n=name: fn.readers.numpy(file_root=tmp_path, roi_axes=[], **{n: []}))
        assert np.array_equal(out.at(0), MATRIX)


def test_a_crop_of_0_is_the_whole_extent() -> None:
    image = lambda: given(IMAGE, layout="HWC")  # noqa: E731
    assert shapes(run(lambda: fn.crop(image(), crop_h=1, crop_w=0))) == [(1, 5, 3)] * 2
    assert shapes(run(lambda: fn.crop(image(), crop_h=0, crop_w=2))) == [(4, 2, 3)] * 2
    assert shapes(run(lambda: fn.crop_mirror_normalize(image(), crop_h=1, crop_w=0))) == [(3, 1, 5)] * 2
    assert shapes(run(lambda: fn.crop(image(), crop_h=given(np.float32(2)), crop_w=0))) == [(2, 5, 3)] * 2
    for wrong in ({"crop_h": 1}, {"crop_w": 0}, {"crop": [2, 2], "crop_w": 0}):
        with pytest.raises(SpecError, match="crop_w"):
            run(lambda w=wrong: fn.crop(image(), **w))


def test_fill_values_for_the_channels_of_the_input() -> None:
    def filled(**arguments: Any) -> list[float]:
        (out,) = run(lambda: fn.crop_mirror_normalize(
            given(np.full((2, 2, 3), 9, np.uint8), layout="HWC"), crop=[4, 4], output_layout="HWC",
            out_of_bounds_policy="pad", **arguments))  # fmt: skip
        return out.at(0)[0, 0].tolist()

    means = {"mean": [1.0, 2.0, 3.0], "std": [1.0, 1.0, 1.0]}
    assert filled(pad_output=True, fill_values=(1, 2, 3), **means) == [1, 2, 3, 0]
    assert filled(pad_output=True, fill_values=(1, 2, 3, 7), **means) == [1, 2, 3, 7]
    assert filled(fill_values=(1, 2, 3)) == [1, 2, 3]
    with pytest.raises(JobError, match="fill_values has 2 values"):
        filled(pad_output=True, fill_values=(1, 2))


# -- calls, layouts, graphs ------------------------------------------------------------------------------------------


def test_one_set_of_inputs_gives_one_result() -> None:
    crop = ops.CropMirrorNormalize(crop=[2, 2])

    def definition() -> Any:
        image = given(IMAGE, layout="HWC")
        return image, crop([image]), fn.flip([image])

    assert [len(t) for t in run(definition)] == [2, 2, 2]


def test_layouts_of_python_functions() -> None:
    two = lambda x: (x, x / 2)  # noqa: E731

    def layouts(data: Any = IMAGE, **arguments: Any) -> list[str]:
        outputs = run(lambda: tuple(fn.python_function(given(data, layout="HWC"), function=two, num_outputs=2,
                                                       **arguments)))  # fmt: skip
        return [t.layout() for t in outputs]

    assert layouts(output_layouts="FGH") == ["FGH", "FGH"]
    assert layouts(output_layouts=["FGH"]) == ["FGH", ""]
    assert layouts() == ["", ""]
    assert layouts(keeps_layouts=True) == ["HWC", ""]
    with pytest.raises(RuntimeError, match="3 layouts for 2 outputs"):
        layouts(output_layouts=["A", "B", "C"])
    with pytest.raises(ValueError, match="'FG' of output_layouts names 2 dimensions"):
        layouts(output_layouts="FG")


@pytest.mark.parametrize("outputs", [0, 1])
def test_what_is_preserved_may_stand_in_a_branch(outputs: int) -> None:
    seen = []

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True, prefetch_queue_depth=1)
    def definition() -> Any:
        x = fn.external_source(lambda info: np.int32([info.idx_in_batch]), batch=False)
        if x[0] > 1:
            y = fn.python_function(x, function=lambda a: (seen.append(int(a[0])), a + 10)[outputs] if outputs else
                                   seen.append(int(a[0])), num_outputs=outputs, preserve=True)  # fmt: skip
            x = y if outputs else x
        return x

    pipe = definition()
    assert pipe.run()[0].as_array().ravel().tolist() == ([0, 1, 12, 13] if outputs else [0, 1, 2, 3])
    pipe.close()
    assert seen[:2] == [2, 3]
    again = Pipeline(2, 1, None)
    with again:
        again.set_outputs(fn.random.uniform())
    assert Pipeline.deserialize(again.serialize()).run()[0].shape() == [(), ()]


def test_a_part_without_samples_has_the_extents_of_the_others(tmp_path: Path) -> None:
    files = []
    for i in range(64):
        files.append(tmp_path / f"{i}.bin")
        files[-1].write_bytes(b"1234")

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def definition() -> Any:
        return fn.readers.file(files=files, labels=list(range(64)), num_shards=17, shard_id=0, name="R")

    pipe = definition()
    it = DALIGenericIterator(pipe, ["data", "label"], reader_name="R", last_batch_policy=LastBatchPolicy.PARTIAL)
    assert [(b[0]["data"].shape, b[0]["label"].shape) for b in it] == [((3, 4), (3, 1)), ((0, 4), (0, 1))]
    pipe.close()


def test_pipelines_are_defined_now_and_checked_when_they_are_made() -> None:
    @pipeline_def(max_batch_size=1)
    def wrong() -> Any:
        return fn.random.uniform()

    @pipeline_def
    def hidden(a: Any, **arguments: Any) -> Any:
        return fn.random.uniform()

    with pytest.raises(TypeError, match="max_batch_size"):
        wrong()
    with pytest.raises(TypeError, match=r"\*\*kwargs"):
        hidden(1, batch_size=2)
    with pytest.raises(ValueError, match="definition itself"):
        do_not_convert(wrong)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_arrays_as_sources(parallel: bool, debug: bool) -> None:
    @experimental.pipeline_def(debug=debug, batch_size=8, num_threads=1, device_id=None, py_start_method="fork")
    def definition() -> Any:
        return fn.external_source(np.arange(16.0).reshape(2, 8, 1), parallel=parallel)

    pipe = definition()
    assert [pipe.run()[0].as_array().ravel().tolist() for _ in range(2)] == np.arange(16.0).reshape(2, 8).tolist()
    with pytest.raises(StopIteration):
        pipe.run()
    pipe.close()


def test_lazy_readers_are_opened_when_they_run(tmp_path: Path) -> None:
    def reading() -> Any:
        return fn.readers.file(file_root=tmp_path / "later", lazy_init=True, name="R")

    pipe = pipeline_def(reading, batch_size=1, num_threads=1, device_id=None)()
    pipe.build()
    again = Pipeline.deserialize(pipe.serialize())
    with pytest.raises(JobError, match="no such folder"):
        pipeline_def(reading, batch_size=1, num_threads=1, device_id=None)().run()
    (tmp_path / "later" / "c").mkdir(parents=True)
    (tmp_path / "later" / "c" / "a.jpg").write_bytes(b"abc")
    assert bytes(pipe.run()[0].at(0)) == b"abc"
    assert again.epoch_size("R") == 1
    for one in (pipe, again):
        one.close()
    eager = pipeline_def(lambda: fn.readers.file(file_root=tmp_path / "none"), batch_size=1, num_threads=1)()
    with pytest.raises(JobError, match="no such folder"):
        eager.build()


def test_more_shards_than_records_are_refused_when_the_pipeline_is_built(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    pipe = pipeline_def(lambda: fn.readers.file(files=[tmp_path / "a"], num_shards=3), batch_size=1, num_threads=1)()
    with pytest.raises(SpecError, match="num_shards is 3"):
        pipe.build()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ([[IMAGE] * 2], "an iterable"),
        (lambda: iter([[IMAGE] * 2]), "a callable that does not receive"),
        (lambda i: [IMAGE] * 2, ""),
        (None, ""),
    ],
)
def test_checkpoints_of_sources_that_hold_state(source: Any, kind: str) -> None:
    pipe = Pipeline(2, 1, None, enable_checkpointing=True)
    with pipe:
        pipe.set_outputs(fn.external_source(source=source, name="x"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pipe.build()
    texts = [str(w.message) for w in said]
    assert [kind in t and "checkpoints do not contain" in t for t in texts] == [True] * bool(kind)
    pipe.close()


def test_deprecated_arguments() -> None:
    image = lambda: given(IMAGE, layout="HWC")  # noqa: E731
    for arguments, words in (({"output_dtype": types.FLOAT}, "deprecated alias for 'dtype'"),
                             ({"image_type": types.RGB}, "has no effect")):  # fmt: skip
        with pytest.warns(DeprecationWarning, match=words):
            run(lambda a=arguments: fn.crop(image(), crop=[1, 1], **a))


def test_arguments_that_dali_refuses() -> None:
    with pytest.raises(JobError, match="do not fill"):
        run(lambda: fn.reshape(given([np.zeros((4, 2)), np.zeros((3, 0))]), rel_shape=[-1, 1]))
    file = io.BytesIO()
    np.save(file, MATRIX)
    for behind in (b"", b"123456789"):
        encoded = np.frombuffer(file.getvalue() + behind, np.uint8)
        if behind:
            with pytest.raises(JobError, match="9 bytes after its data"):
                run(lambda e=encoded: fn.decoders.numpy(given(e)))
        else:
            assert np.array_equal(run(lambda e=encoded: fn.decoders.numpy(given(e)))[0].at(0), MATRIX)
    with pytest.raises(JobError, match="needs an input with a layout"):
        run(lambda: fn.one_hot(given(MATRIX), axis=-1, axis_name="O", num_classes=3))
    (out,) = run(lambda: fn.one_hot(given(MATRIX, layout="HW"), axis=-1, axis_name="O", num_classes=3))
    assert out.layout() == "HWO"
    with pytest.raises(SpecError, match="as numbers of 32 bits are"):
        run(lambda: fn.random.beta(alpha=1e100))


def test_a_shuffling_buffer_of_nothing_where_nothing_is_shuffled(tmp_path: Path) -> None:
    """Programs set it with the shuffling: ``initial_fill=n if train else 0``. DALI's process ends where it shuffles."""
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    files = [str(tmp_path / name) for name in "abc"]
    (_, labels) = run(lambda: tuple(fn.readers.file(files=files, initial_fill=0)))
    assert labels.as_array().ravel().tolist() == [0, 1]
    for shuffled in ({"random_shuffle": True}, {"shuffle": "window"}):
        with pytest.raises(SpecError, match="initial_fill must be at least 1 if records are shuffled"):
            run(lambda a=shuffled: fn.readers.file(files=files, initial_fill=0, **a)[1])


def test_small_things(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    path = np.frombuffer(str(tmp_path / "x").encode(), np.int8)
    assert bytes(run(lambda: fn.io.file.read(types.Constant(path, device="cpu")))[0].at(0)) == b"abc"
    capsule = np.arange(3.0).__dlpack__()
    assert np.array_equal(TensorCPU(capsule), np.arange(3.0))
    policies = {"stream_policy": StreamPolicy.PER_OPERATOR, "concurrency": OperatorConcurrency.FULL}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = Pipeline(1, 1, None, **policies)
        with pipe:
            pipe.set_outputs(fn.random.uniform())
        again = Pipeline.deserialize(pipe.serialize())
    assert (again.stream_policy, again.concurrency) == tuple(policies.values())
    again.close()
