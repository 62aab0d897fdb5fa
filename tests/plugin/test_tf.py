"""dali_run.plugin.tf with the real TensorFlow, on the CPU."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, pipeline_def, types

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
dali_tf = pytest.importorskip("dali_run.plugin.tf")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    for k in range(10):
        np.save(tmp_path / f"{k}.npy", np.full((2, 3), k, np.float32))
    return tmp_path


@pipeline_def
def read(folder: Path) -> Any:
    x = fn.readers.numpy(file_root=str(folder), file_filter="*.npy", name="Reader")
    return x, fn.cast(x[0, 0], dtype=types.INT32)


def values(dataset: Any) -> list[list[int]]:
    return [element[1].numpy().tolist() for element in dataset]


def test_dataset(numbers: Path) -> None:
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=None)
    data = dali_tf.DALIDataset(pipe, (tf.float32, tf.int32), ((4, 2, 3), (4,)))
    assert isinstance(data, tf.data.Dataset)
    assert data.element_spec == (tf.TensorSpec((4, 2, 3), tf.float32), tf.TensorSpec((4,), tf.int32))
    assert values(data.take(3)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert values(data.take(1)) == [[0, 1, 2, 3]]  # again from the beginning
    first = next(iter(data))[0]
    np.testing.assert_array_equal(first[:, 0, 0], [0, 1, 2, 3])


def test_arguments_of_the_dataset_come_first(numbers: Path) -> None:
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=0)
    data = dali_tf.DALIDataset(pipe, (tf.float32, tf.int32), batch_size=2, num_threads=2, device_id=None)
    assert values(data.take(2)) == [[0, 1], [2, 3]]
    with pytest.warns(DeprecationWarning, match="output_dtypes"):
        data = dali_tf.DALIDataset(pipe, dtypes=[tf.float32, tf.int32], batch_size=1, device_id=None)
    assert values(data.take(1)) == [[0]]


def test_datasets_go_on_through_tensorflow(numbers: Path) -> None:
    pipe = read(numbers, batch_size=5, num_threads=1, device_id=None)
    data = dali_tf.DALIDataset(pipe, (tf.float32, tf.int32), ((5, 2, 3), (5,))).with_options(dali_tf.dataset_options())
    doubled = data.map(lambda x, y: (x * 2, y)).unbatch().batch(2).prefetch(1).take(5)
    assert values(doubled) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]

    @tf.function
    def total(dataset: Any) -> Any:
        found = tf.constant(0)
        for _, y in dataset.take(2):
            found += tf.reduce_sum(y)
        return found

    assert int(total(data)) == 45


def test_keras_trains_on_it(numbers: Path) -> None:
    pipe = read(numbers, batch_size=5, num_threads=1, device_id=None)
    data = dali_tf.DALIDataset(pipe, (tf.float32, tf.int32), ((5, 2, 3), (5,)))
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    history = model.fit(data, steps_per_epoch=2, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def test_one_output_is_a_tuple_of_one() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def one() -> Any:
        return fn.constant(fdata=[1.5, 2.5])

    data = dali_tf.DALIDataset(one(), tf.float32, (2, 2))
    (element,) = next(iter(data))
    assert element.numpy().tolist() == [[1.5, 2.5]] * 2


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a type": ((tf.uint8, tf.int32), None, "output 0 is float32, but output_dtypes promises uint8"),
    "a shape": ((tf.float32, tf.int32), ((4, 9, 9), None), r"output 0 has the shape \(4, 2, 3\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_broken_promises_are_told(case: str, numbers: Path) -> None:
    dtypes, shapes, words = WRONG[case]
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=None)
    with pytest.raises(tf.errors.OpError, match=words):
        next(iter(dali_tf.DALIDataset(pipe, dtypes, shapes)))


def test_wrong_arguments(numbers: Path) -> None:
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=None)
    with pytest.raises(TypeError, match=r"tf\.DType"):
        dali_tf.DALIDataset(pipe, ("float32", "int32"))
    with pytest.raises(ValueError, match="2 outputs"):
        dali_tf.DALIDataset(pipe, tf.float32)
    with pytest.raises(ValueError, match="output_shapes"):
        dali_tf.DALIDataset(pipe, (tf.float32, tf.int32), ((4, 2, 3),))
    with pytest.raises(ValueError, match="only one of the two"):
        dali_tf.DALIDataset(pipe, (tf.float32, tf.int32), dtypes=(tf.float32, tf.int32))


def test_ragged_batches_are_told(tmp_path: Path) -> None:
    for k in range(2):
        np.save(tmp_path / f"{k}.npy", np.zeros(k + 1, np.float32))

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def ragged() -> Any:
        return fn.readers.numpy(file_root=str(tmp_path), file_filter="*.npy")

    with pytest.raises(tf.errors.OpError, match="different shapes"):
        next(iter(dali_tf.DALIDataset(ragged(), tf.float32)))


# -- inputs -----------------------------------------------------------------------------------------------------------


@pipeline_def(batch_size=3, num_threads=1, device_id=None)
def fed() -> Any:
    a = fn.external_source(name="a", dtype=types.FLOAT, ndim=1)
    b = fn.external_source(name="b", dtype=types.INT32, ndim=0)
    return a * 2, b


def test_datasets_as_inputs() -> None:
    rows = np.arange(14, dtype=np.float32).reshape(7, 2)
    samples = tf.data.Dataset.from_tensor_slices(rows)
    batches = tf.data.Dataset.from_tensor_slices(np.arange(7, dtype=np.int32)).batch(3)
    data = dali_tf.experimental.DALIDatasetWithInputs(
        fed(), (tf.float32, tf.int32), ((None, 2), (None,)),
        input_datasets={"a": samples, "b": dali_tf.experimental.Input(batches, batch=True)},
    )  # fmt: skip
    got = list(data)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in got]), rows * 2)
    assert [y.numpy().tolist() for _, y in got] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(list(data)) == 3  # inputs begin anew, too


def test_inputs_with_shapes_of_their_own_and_strings() -> None:
    encoded = tf.data.Dataset.from_tensor_slices([b"abc", b"de"])

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def lengths() -> Any:
        x = fn.external_source(name="x", dtype=types.UINT8, ndim=1)
        return x.shape(), fn.pad(x)

    data = dali_tf.experimental.DALIDatasetWithInputs(lengths(), (tf.int64, tf.uint8), input_datasets={"x": encoded})
    shapes, padded = next(iter(data))
    assert shapes.numpy().tolist() == [[3], [2]]
    assert bytes(padded.numpy()[0]) == b"abc"


def test_layouts_of_inputs() -> None:
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def flipped() -> Any:
        return fn.flip(fn.external_source(name="x", dtype=types.UINT8, ndim=3))

    picture = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    given = dali_tf.experimental.Input(tf.data.Dataset.from_tensors(picture), layout="HWC", batch=True)
    data = dali_tf.experimental.DALIDatasetWithInputs(flipped(), tf.uint8, input_datasets={"x": given})
    np.testing.assert_array_equal(next(iter(data))[0], picture[:, :, ::-1])


def test_sources_of_the_pipeline() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def counted() -> Any:
        return fn.external_source(source=lambda i: [np.int32(i)] * 2 if i < 3 else stop(), batch=True)

    def stop() -> Any:
        raise StopIteration

    data = dali_tf.experimental.DALIDatasetWithInputs(counted(), tf.int32)
    assert [x.numpy().tolist() for (x,) in data] == [[0, 0], [1, 1], [2, 2]]


def test_inputs_that_do_not_fit() -> None:
    one = tf.data.Dataset.from_tensors(np.zeros(2, np.float32))
    dtypes = (tf.float32, tf.int32)
    with pytest.raises(ValueError, match="DALIDatasetWithInputs"):
        dali_tf.DALIDataset(fed(), dtypes)
    with pytest.raises(ValueError, match="no external_source 'c'"):
        dali_tf.experimental.DALIDatasetWithInputs(fed(), dtypes, input_datasets={"c": one})
    with pytest.raises(ValueError, match="'b' has neither a source"):
        dali_tf.experimental.DALIDatasetWithInputs(fed(), dtypes, input_datasets={"a": one})
    with pytest.raises(TypeError, match=r"tf\.data\.Dataset"):
        dali_tf.experimental.DALIDatasetWithInputs(fed(), dtypes, input_datasets={"a": [1], "b": one})


# -- the iterator -----------------------------------------------------------------------------------------------------


def test_iterator_eagerly(numbers: Path) -> None:
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=None)
    following = dali_tf.DALIIterator()
    asked = {"shapes": [(4, 2, 3), (4,)], "dtypes": [tf.float32, tf.int32]}
    got = [following(pipeline=pipe, **asked)[1].numpy().tolist() for _ in range(3)]
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    text = dali_tf.serialize_pipeline(pipe)
    assert following(serialized_pipeline=text, **asked)[1].numpy().tolist() == [0, 1, 2, 3]
    assert following(serialized_pipeline=text, **asked)[1].numpy().tolist() == [4, 5, 6, 7]


def test_iterator_in_a_graph(numbers: Path) -> None:
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=None)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, y = dali_tf.DALIIterator()(pipeline=pipe, shapes=[(4, 2, 3), (4,)], dtypes=[tf.float32, tf.int32])
        assert x.shape == (4, 2, 3)
        assert [session.run(y).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_iterator_gives_sparse_tensors(tmp_path: Path) -> None:
    for k in range(2):
        np.save(tmp_path / f"{k}.npy", np.arange(1, k + 2, dtype=np.int32))

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def ragged() -> Any:
        return fn.readers.numpy(file_root=str(tmp_path), file_filter="*.npy")

    (found,) = dali_tf.DALIIterator()(pipeline=ragged(), sparse=[True], dtypes=[tf.int32], batch_size=2)
    assert tf.sparse.to_dense(found).numpy().tolist() == [[1, 0], [1, 2]]


def test_iterator_ends_as_tensorflows_do() -> None:
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def short() -> Any:
        return fn.external_source(source=[np.zeros((1, 2), np.float32)])

    pipe, following = short(), dali_tf.DALIIterator()
    following(pipeline=pipe, dtypes=[tf.float32], batch_size=1)
    with pytest.raises(tf.errors.OutOfRangeError):
        following(pipeline=pipe, dtypes=[tf.float32], batch_size=1)
    with pytest.raises(ValueError, match="not both"):
        following(dtypes=[tf.float32])


def test_a_dataset_that_is_dropped_stops_its_pipelines(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close = Pipeline.close

    def noted(self: Pipeline) -> None:
        closed.append(id(self))
        close(self)

    monkeypatch.setattr(Pipeline, "close", noted)
    pipe = read(numbers, batch_size=4, num_threads=1, device_id=None)
    data = dali_tf.DALIDataset(pipe, (tf.float32, tf.int32))
    for _ in data.take(1):
        pass
    del _
    gc.collect()
    assert len(closed) == 1
