"""Pipeline: building, running, checkpoints, serialisation, facts - every method and property of DALI's class."""

import gc
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run
import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline, pipeline_def
from dali_run.ops.errors import DaliRunError, JobError, SpecError
from dali_run.pipeline import experimental
from dali_run.pipelines.python import settings as pipeline_settings


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten files in two folders; the content of a file is its number."""
    folder = tmp_path_factory.mktemp("data")
    for i in range(10):
        (folder / "ab"[i % 2]).mkdir(exist_ok=True)
        (folder / "ab"[i % 2] / f"{i}.jpg").write_bytes(bytes([i]))
    return str(folder)


def reading(root: str, **arguments: Any) -> Pipeline:
    of_reader = ("random_shuffle", "num_shards", "shard_id", "pad_last_batch")
    options = {k: arguments.pop(k) for k in list(arguments) if k not in of_reader}

    @pipeline_def(**{"batch_size": 3, "num_threads": 2, "seed": 7, **options})
    def pipe():
        data, labels = fn.readers.file(file_root=root, name="Reader", **arguments)
        return data, labels, fn.random.uniform(range=(0.0, 1.0))

    return pipe()


def ids(outputs: Any) -> list[int]:
    return outputs[0].as_array().reshape(-1).tolist()


def test_wraps_like_dali(root: str) -> None:
    pipe = reading(root)
    assert [ids(pipe.run()) for _ in range(5)] == [[0, 2, 4], [6, 8, 1], [3, 5, 7], [9, 0, 2], [4, 6, 8]]
    assert pipe.run()[1].as_array().dtype == np.int32


def test_schedule_share_release(root: str) -> None:
    expected = [ids(p.run()) for p in [reading(root)] for _ in range(4)]
    pipe = reading(root)
    got = []
    pipe.schedule_run()
    for _ in range(4):
        got.append(ids(pipe.share_outputs()))
        pipe.release_outputs()
        pipe.schedule_run()
    assert got == expected
    assert not pipe.empty()
    assert len(ids(pipe.outputs())) == 3
    assert pipe.output_stream() == 0


def test_ways_to_build() -> None:
    pipe = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with pipe:
        assert Pipeline.current() is pipe
        pipe.set_outputs(fn.constant(idata=[1]), 5, np.array([1.5, 2.5]))
    assert Pipeline.current() is None
    assert [o.as_array()[0].tolist() for o in pipe.run()] == [[1], 5, [1.5, 2.5]]
    with pytest.raises(RuntimeError, match="already built"):
        pipe.set_outputs(1)

    class Old(Pipeline):
        def define_graph(self):
            return fn.constant(idata=[3])

    assert Old(2, 1, None).run()[0].as_array().tolist() == [[3], [3]]

    outside = fn.constant(idata=[4])
    pipe = Pipeline(2, 1)
    pipe.set_outputs(outside + 1)
    assert pipe.run()[0].as_array().tolist() == [[5], [5]]
    Pipeline.push_current(pipe)
    assert Pipeline.current() is pipe
    Pipeline.pop_current()
    with pytest.raises(NotImplementedError):
        Pipeline(2, 1).run()
    with pytest.raises(TypeError, match="output 0"):
        Pipeline(2, 1).set_outputs("text")


def test_pipeline_def_arguments() -> None:
    @pipeline_def
    def pipe(value):
        return fn.constant(idata=[value])

    assert pipe(3, batch_size=1, num_threads=1).run()[0].as_array().tolist() == [[3]]
    with pytest.raises(TypeError, match="no argument 'batchsize'"):
        pipe(3, batchsize=1)
    with pytest.raises(TypeError, match="no argument 'threads'"):
        pipeline_def(threads=3)(lambda: 1)()
    for unset in ({}, {"batch_size": 0}, {"batch_size": -1}):
        unfinished = pipe(3, **unset)
        assert unfinished.max_batch_size == 0
        with pytest.raises(ValueError, match="batch_size must be"):
            unfinished.run()
    for wrong in ({"prefetch_queue_depth": 0}, {"prefetch_queue_depth": {"cpu": 1}}, {"num_threads": 0},
                  {"output_ndim": -2}):  # fmt: skip
        with pytest.raises(ValueError, match=r"must|prefetch"):
            pipe(3, batch_size=1, **wrong)
    with pytest.raises(TypeError, match="takes integers"):
        pipe(3, batch_size=1, prefetch_queue_depth="2")


def test_facts(root: str) -> None:
    pipe = reading(root, prefetch_queue_depth={"cpu_size": 3, "gpu_size": 2}, num_shards=3, shard_id=1)
    facts = {"epoch_size": 10, "epoch_size_padded": 10, "number_of_shards": 3, "shard_id": 1, "pad_last_batch": 0,
             "stick_to_shard": 0}  # fmt: skip
    assert pipe.reader_meta("Reader") == facts
    assert pipe.reader_meta() == {"Reader": facts}
    assert pipe.epoch_size() == {"Reader": 10}
    assert pipe.epoch_size("Reader") == 10
    with pytest.raises(SpecError, match="no reader 'X'"):
        pipe.epoch_size("X")
    assert reading(root, num_shards=3, pad_last_batch=True).epoch_size("Reader") == 12
    properties = {
        "batch_size": 3, "max_batch_size": 3, "num_threads": 2, "device_id": None, "seed": 7, "num_outputs": 3,
        "exec_pipelined": True, "exec_async": True, "exec_separated": True, "exec_dynamic": False,
        "cpu_queue_size": 3, "gpu_queue_size": 2, "set_affinity": False, "max_streams": -1,
        "default_cuda_stream_priority": 0, "enable_memory_stats": False, "py_num_workers": 1,
        "py_start_method": "fork", "is_restored_from_checkpoint": False,
        "prefetch_queue_depth": {"cpu_size": 3, "gpu_size": 2},
    }  # fmt: skip
    assert {k: getattr(pipe, k) for k in properties} == properties
    pipe.run()
    table = pipe.executor_statistics()
    assert table["Reader"]["samples"] >= 3
    assert table["Reader"]["cpu_seconds"] > 0
    assert table["Reader"]["real_memory_size"][0] > 0
    pipe.enable_api_check(True)
    assert pipe.external_source_shm_statistics() == {"capacities": [], "per_sample_capacities": []}


def test_ignored_arguments_say_so_once() -> None:
    arguments = {"bytes_per_sample": 5, "max_streams": 2, "default_cuda_stream_priority": 1, "set_affinity": True,
                 "stream_policy": dali_run.StreamPolicy.SINGLE,
                 "concurrency": dali_run.OperatorConcurrency.FULL}  # fmt: skip
    pipeline_settings.say_once.cache_clear()
    with warnings.catch_warnings(record=True) as first:
        warnings.simplefilter("always")
        Pipeline(1, 1, **arguments)
    with warnings.catch_warnings(record=True) as second:
        warnings.simplefilter("always")
        Pipeline(1, 1, **arguments)
    assert all("has no effect" in str(w.message) for w in first)
    assert {name for name in arguments for w in first if name in str(w.message)} == set(arguments)
    assert second == []


def test_warnings_point_at_the_program_s_line(root: str) -> None:
    """Wherever in the package they arise."""
    pipeline_settings.say_once.cache_clear()

    @pipeline_def(batch_size=2, num_threads=1, device_id=None, bytes_per_sample=3)
    def told() -> Any:
        files, _ = fn.readers.file(file_root=root, name="Reader", read_ahead=True)
        return files, fn.external_source(source=lambda _: [np.zeros(3, np.uint8)] * 2, layout="HWC")

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        pipe = told()
        pipe.build()
        pipe.run()
    said = [str(w.message) for w in found]
    assert [any(words in s for s in said) for words in ("bytes_per_sample", "read_ahead", "layout 'HWC'")] == [True] * 3
    assert {w.filename for w in found} == {__file__}


@pytest.mark.parametrize("options", [{}, {"exec_pipelined": False}, {"exec_async": False}, {"prefetch_queue_depth": 1},
                                     {"exec_dynamic": True}, {"num_threads": 1}])  # fmt: skip
def test_options_change_nothing(options: dict[str, Any], root: str) -> None:
    plain, other = reading(root, random_shuffle=True), reading(root, random_shuffle=True, **options)
    for _ in range(4):
        a, b = plain.run(), other.run()
        assert ids(a) == ids(b)
        assert (a[2].as_array() == b[2].as_array()).all()


def test_output_checks(root: str) -> None:
    good = {"output_dtype": [types.UINT8, None, types.FLOAT], "output_ndim": [1, 1, 0]}
    pipe = reading(root, **good)
    pipe.run()
    assert pipe.output_dtype() == [types.UINT8, None, types.FLOAT]
    assert pipe.output_ndim() == [1, 1, 0]
    assert reading(root).output_layout() == [None] * 3
    with pytest.raises(RuntimeError, match="output 0 has dtype UINT8; output_dtype requires FLOAT"):
        reading(root, output_dtype=types.FLOAT).run()
    with pytest.raises(RuntimeError, match="output 2 has ndim 0"):
        reading(root, output_ndim=1).run()
    with pytest.raises(RuntimeError, match="2 entries for 3 outputs"):
        reading(root, output_ndim=[1, 1]).run()
    with pytest.raises(RuntimeError, match="layout"):
        reading(root, output_layout="HWC").run()


def test_checkpoint(root: str, tmp_path: Path) -> None:
    pipe = reading(root, random_shuffle=True, enable_checkpointing=True)
    for _ in range(5):
        pipe.run()
    saved = pipe.checkpoint(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == saved
    state = json.loads(saved)
    assert state["readers"] == {"Reader": {"epoch": 1, "position": 5}}
    assert len(saved) < 600
    again = reading(root, random_shuffle=True, checkpoint=saved, seed=99)
    assert again.is_restored_from_checkpoint
    for _ in range(4):
        a, b = pipe.run(), again.run()
        assert ids(a) == ids(b)
        assert (a[2].as_array() == b[2].as_array()).all()
    with pytest.raises(JobError, match="other operators or arguments"):
        reading(root, checkpoint=saved).run()
    for broken in (b"", b"[]", b"\x80\x04.", saved.replace(b'"version": 1', b'"version": 2')):
        with pytest.raises(JobError, match="checkpoint"):
            reading(root, checkpoint=broken).run()


def test_serialize(root: str, tmp_path: Path) -> None:
    pipe = reading(root, random_shuffle=True)
    text = pipe.serialize(filename=tmp_path / "pipe")
    json.loads(text)
    again = Pipeline.deserialize(text)
    from_file = Pipeline.deserialize(filename=tmp_path / "pipe", batch_size=2)
    assert (again.max_batch_size, from_file.max_batch_size) == (3, 2)
    other = Pipeline(3, 2, None, 7)
    other.deserialize_and_build(text)
    for _ in range(3):
        a, b, c = pipe.run(), again.run(), other.run()
        assert ids(a) == ids(b) == ids(c)
        assert (a[2].as_array() == b[2].as_array()).all()
    assert len(from_file.run()[0]) == 2
    with pytest.raises(ValueError, match="either"):
        Pipeline.deserialize(text, filename="x")
    with pytest.raises(ValueError, match="either"):
        Pipeline.deserialize()

    class Old(Pipeline):
        def define_graph(self):
            return fn.constant(idata=[3])

    built = Pipeline.deserialize(Pipeline(1, 1).serialize(define_graph=lambda: fn.constant(idata=[3])))
    assert built.run()[0].as_array().tolist() == [[3]]
    assert Pipeline.deserialize(Old(1, 1).serialize()).run()[0].as_array().tolist() == [[3]]


@pytest.mark.parametrize("damage", [
    lambda d: d.update(kind="x"), lambda d: d.update(version=9), lambda d: d["nodes"][0].update(op="nothing"),
    lambda d: d["nodes"][0]["values"].update(nothing=1), lambda d: d["outputs"].update({"0": [99, 0]}),
    lambda d: d["nodes"][0].update(inputs=[[0, 0]]), lambda d: d.pop("nodes"), lambda d: d["nodes"].insert(0, 3),
])  # fmt: skip
def test_damaged_serialisation(damage: Any, root: str) -> None:
    whole = json.loads(reading(root).serialize())
    damage(whole)
    with pytest.raises(SpecError):
        Pipeline.deserialize(json.dumps(whole))


def test_serialize_with_conditionals_and_sources() -> None:
    @pipeline_def(batch_size=4, num_threads=1, enable_conditionals=True, seed=1)
    def pipe():
        x = fn.external_source(name="x", dtype=types.INT32, ndim=0)
        if x > 1:
            x = x + fn.random.uniform(range=(1, 5), dtype=types.INT32)
        return x

    first = pipe(prefetch_queue_depth=1)
    second = Pipeline.deserialize(first.serialize())
    data = np.arange(4, dtype=np.int32)
    a, b = first.run(x=data)[0].as_array(), second.run(x=data)[0].as_array()
    assert (a == b).all()
    assert a[:2].tolist() == [0, 1]
    assert (a[2:] > data[2:]).all()

    @pipeline_def(batch_size=1, num_threads=1)
    def function():
        return fn.python_function(fn.constant(idata=[1]), function=lambda x: x)

    with pytest.raises(SpecError, match="not plain data"):
        function().serialize()


def test_serialized_conditionals_in_another_process(tmp_path: Path) -> None:
    """Where nothing but Pipeline was imported."""

    @pipeline_def(batch_size=2, num_threads=1, enable_conditionals=True)
    def branching():
        x = fn.full(1.0)
        if x > 0:
            x = x + 1
        return x

    branching().serialize(filename=tmp_path / "pipe")
    program = f"from dali_run import Pipeline\nprint(Pipeline.deserialize(filename={str(tmp_path / 'pipe')!r}).run())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "dtype=DALIDataType.FLOAT" in done.stdout, done.stderr


def test_yaml_both_ways(root: str, tmp_path: Path) -> None:
    pipe = reading(root, random_shuffle=True)
    text = pipe.to_yaml(["data", "label", "number"])
    (tmp_path / "spec.yaml").write_text(text)
    from dali_run.pipelines.graph.as_json import digest
    from dali_run.pipelines.spec.build import load_spec

    built = load_spec(tmp_path / "spec.yaml")

    graph = pipe._definition.builder.build(
        {n: pipe._named_outputs()[k] for n, k in (("data", "0"), ("label", "1"), ("number", "2"))}
    )
    assert digest(built.graph) == digest(graph)
    back = dali_run.load_spec(tmp_path / "spec.yaml")
    assert digest(
        back._definition.builder.build(dict(zip(graph.outputs, back._named_outputs().values(), strict=True)))
    ) == digest(graph)
    with pytest.raises(SpecError, match="1 names for 3 outputs"):
        pipe.to_yaml(["a"])


def test_dot_file(root: str, tmp_path: Path) -> None:
    reading(root).save_graph_to_dot_file(tmp_path / "g.dot", show_tensors=True, use_colors=True)
    text = (tmp_path / "g.dot").read_text()
    assert text.startswith("digraph")
    assert '"Reader" -> "Reader[0]"' in text
    assert text.count("{") == text.count("}")


def test_sinks_and_preserve() -> None:
    called = []

    @pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        x = fn.constant(idata=[1])
        fn.python_function(x, function=lambda a: called.append(a.tolist()), num_outputs=0)
        fn.python_function(x, function=lambda a: called.append("pruned") or a)
        kept = fn.python_function(x, function=lambda a: called.append("sink") or a)
        Pipeline.current().add_sink(kept)
        return x

    p = pipe(prefetch_queue_depth=1)
    p.run()
    p.close()
    assert [1] in called
    assert "sink" in called
    assert "pruned" not in called


def test_python_function() -> None:
    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        x = fn.external_source(lambda: np.arange(3, dtype=np.float32))
        double = fn.python_function(x, function=lambda a: a * 2)
        low, high = fn.python_function(x, double, function=lambda a, b: (a - 1, np.stack([a, b])), num_outputs=2,
                                       output_layouts=["", "X"])  # fmt: skip
        batch = fn.python_function(x, function=lambda a: [v + len(a) for v in a], batch_processing=True)
        return double, low, high, batch

    out = pipe().run()
    assert [o.as_array().tolist() for o in out] == [[0, 2, 4], [-1, 0, 1], [[0, 0], [1, 2], [2, 4]], [3, 4, 5]]
    assert out[2].layout() == "X"
    with pytest.raises(SpecError, match="callable"):
        fn.python_function(function=3)

    @pipeline_def(batch_size=3, num_threads=1)
    def fails():
        def function(a):
            if a == 1:
                raise ValueError("one is bad")
            return a

        x = fn.external_source(lambda: np.arange(3, dtype=np.float32))
        return fn.python_function(x, function=function)

    with pytest.raises(JobError, match=r"user_function: function: ValueError: one is bad"):
        fails().run()
    assert fails(on_error="skip").run()[0].as_array().tolist() == [0, 2]


@pytest.mark.parametrize("odd", [np.arange(3, dtype=np.int64), np.zeros((1, 3), np.float32)], ids=["type", "rank"])
@pytest.mark.parametrize("batch_processing", [False, True])
def test_a_function_gives_a_batch_of_one_kind(odd: np.ndarray, batch_processing: bool) -> None:
    """No sample of a mixed batch decides for its neighbours, wherever the odd one is, with any policy; a batch of one
    sample is what it is."""

    def results(i: Any) -> np.ndarray:
        return odd if int(i) == at else np.zeros(3, np.float32)

    @pipeline_def(num_threads=2, on_error="skip")
    def pipe():
        x = fn.external_source(lambda info: np.int64(info.idx_in_epoch), batch=False)
        function = (lambda batch: [results(i) for i in batch]) if batch_processing else results
        return fn.python_function(x, function=function, batch_processing=batch_processing)

    for at in (0, 3, 6):
        for size in (7, 20):
            with pytest.raises(RuntimeError, match=f"for sample '{0:09d}' .* for sample '{at or 1:09d}' of one batch"):
                pipe(batch_size=size).run()
        alone = pipe(batch_size=1)
        kinds = [(a.dtype, a.ndim) for a in (alone.run()[0].as_array()[0] for _ in range(8))]
        assert kinds == [(odd.dtype, odd.ndim) if i == at else (np.float32, 1) for i in range(8)]


def test_missing_gpu_is_said(root: str) -> None:
    from dali_run.ops.gpu.lane import gpu_count
    from dali_run.pipelines.python import settings as pipeline

    if gpu_count():
        pytest.skip("there is a GPU")
    pipeline.say_once.cache_clear()
    with pytest.warns(UserWarning, match="GPU 0 was requested"):
        reading(root, device_id=0).run()


def test_several_gpus(root: str) -> None:
    assert reading(root, device_id=-1).device_id is None
    assert reading(root, device_id=[1]).device_id == 1
    pipe = reading(root, device_id=[0, 2])
    assert pipe.device_id == (0, 2)
    for wrong in ([], [0, 0], [0, -1]):
        with pytest.raises(ValueError, match="different numbers"):
            reading(root, device_id=wrong)


def test_debug_mode(root: str) -> None:
    def definition():
        data, labels = fn.readers.file(file_root=root, name="Reader", seed=3)
        return data, labels, fn.random.uniform(range=(0.0, 1.0), seed=5)

    eager = experimental.pipeline_def(definition, debug=True)(batch_size=3, num_threads=1)
    plain = pipeline_def(definition)(batch_size=3, num_threads=1)
    for _ in range(5):
        a, b = eager.run(), plain.run()
        assert ids(a) == ids(b)
        assert (a[2].as_array() == b[2].as_array()).all()

    @experimental.pipeline_def(debug=True, batch_size=4, num_threads=1, enable_conditionals=True)
    def steps():
        x = fn.external_source(lambda i: np.arange(4) + i)
        seen = x.get().as_array()
        if x > 1:
            y = x * 10
        else:
            y = x
        assert (y.get().as_array() == np.where(seen > 1, seen * 10, seen)).all()
        return y[...] if False else y

    p = steps()
    assert [p.run()[0].as_array().tolist() for _ in range(2)] == [[0, 1, 20, 30], [1, 20, 30, 40]]

    flip = []

    @experimental.pipeline_def(debug=True, batch_size=1, num_threads=1)
    def changes():
        flip.append(1)
        x = fn.constant(idata=[1])
        return x + 1 if len(flip) % 2 else fn.cast(x, dtype=types.FLOAT)

    q = changes()
    q.run()
    with pytest.raises(RuntimeError, match="must be the same"):
        q.run()


def test_tensor_lists() -> None:
    @pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        return fn.external_source(
            [[np.full((2, 3), 1, np.uint8), np.full((4, 3), 2, np.uint8)]], layout="HW", cycle=True
        )

    (ragged,) = pipe().run()
    assert (len(ragged), ragged.dtype, ragged.layout()) == (2, types.UINT8, "HW")
    assert ragged.shape() == [(2, 3), (4, 3)]
    assert not ragged.is_dense_tensor()
    with pytest.raises(ValueError, match="differ in shape"):
        ragged.as_array()
    assert ragged.at(1).shape == (4, 3)
    assert ragged[-1].shape() == [4, 3]
    with pytest.raises(IndexError):
        ragged[2]
    one = ragged[0]
    assert np.shares_memory(np.asarray(one), ragged.at(0))
    assert np.from_dlpack(one).tolist() == [[1] * 3] * 2
    assert one.data_ptr() == ragged.data_at(0)
    assert (one.layout(), one.dtype, one.as_cpu() is one) == ("HW", types.UINT8, True)
    assert "TensorListCPU" in repr(ragged)
    assert "TensorCPU" in repr(one)


def test_errors_are_for_people(root: str) -> None:
    with pytest.raises(DaliRunError, match="resize_x"):
        fn.resize(fn.constant(idata=[1]), resize_xx=3)
    with pytest.raises(SpecError, match="device must be"):
        fn.copy(fn.constant(idata=[1]), device="tpu")
    with pytest.raises(TypeError, match="is not iterable"):
        _a, _b = fn.constant(idata=[1])
    with pytest.raises(TypeError, match="no length"):
        len(fn.constant(idata=[1]))
    with pytest.raises(TypeError, match="not a number"):
        fn.copy("text")


def test_dropped_pipelines_stop(root: str) -> None:
    def alive() -> set[threading.Thread]:
        return set(threading.enumerate())

    before = alive()
    pipe = reading(root, batch_size=16)  # more than the caller makes by itself
    pipe.run()
    assert alive() - before
    del pipe
    gc.collect()
    for thread in alive() - before:  # they are told to stop by one of them
        thread.join(60)
    assert not alive() - before

    pipe = reading(root, batch_size=16)
    pipe.run()
    pipe.close()
    pipe.close()
    assert not alive() - before


def test_pipelines_are_left_alone_while_the_interpreter_goes(root: str) -> None:
    pipe = reading(root)
    pipe.run()
    pipe.__del__(lambda: True)
    pipe.run()


def test_debug_mode_knows_its_readers(root: str) -> None:
    from dali_run.pipeline import experimental
    from dali_run.plugin.numpy import DALIGenericIterator, LastBatchPolicy

    def definition():
        _, label = fn.readers.file(file_root=root, name="Reader", random_shuffle=True)
        other, _ = fn.readers.file(file_root=root, name="Other", num_shards=2, shard_id=1)
        return label, fn.cast(label, dtype=types.FLOAT), other

    eager = experimental.pipeline_def(definition, debug=True)(batch_size=4, num_threads=1, seed=3)
    graph = pipeline_def(definition)(batch_size=4, num_threads=1, seed=3)
    assert eager.reader_meta() == graph.reader_meta()
    assert eager.reader_meta("Other") == graph.reader_meta("Other")
    assert eager.epoch_size("Reader") == graph.epoch_size("Reader")
    with pytest.raises(SpecError, match="no reader 'Missing'"):
        eager.reader_meta("Missing")
    for _ in range(3):  # the batch that was made for the question is the first
        assert [o.as_array().tolist() for o in eager.run()[:2]] == [o.as_array().tolist() for o in graph.run()[:2]]
    made = experimental.pipeline_def(lambda: fn.readers.file(file_root=root, name="R"), debug=True)
    policy = LastBatchPolicy.PARTIAL
    batches = DALIGenericIterator(
        made(batch_size=4, num_threads=1), ["data", "label"], reader_name="R", last_batch_policy=policy
    )
    found = [n for b in batches for n in b[0]["data"].reshape(-1).tolist()]
    assert len(found) == graph.epoch_size("Reader")
