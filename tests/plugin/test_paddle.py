"""dali_run.plugin.paddle with the real PaddlePaddle, on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, pipeline_def, types

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")
plugin = pytest.importorskip("dali_run.plugin.paddle")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    for k in range(10):
        np.save(tmp_path / f"{k}.npy", np.full((2, 3), k, np.float32))
    return tmp_path


def numpy_pipeline(folder: Path, batch_size: int = 4, **reader: Any) -> Pipeline:
    pipe = Pipeline(batch_size=batch_size, num_threads=1, device_id=None)
    with pipe:
        x = fn.readers.numpy(file_root=str(folder), file_filter="*.npy", name="Reader", **reader)
        pipe.set_outputs(x, fn.cast(x[0, 0], dtype=types.INT64))
    return pipe


def labels(iterator: Any) -> list[list[int]]:
    return [np.array(batch[0]["label"]).tolist() for batch in iterator]


def test_classification(numbers: Path) -> None:
    iterator = plugin.DALIClassificationIterator(numpy_pipeline(numbers), reader_name="Reader", auto_reset=True)
    assert len(iterator) == 3
    assert labels(iterator) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert labels(iterator)[0] == [2, 3, 4, 5]
    data = next(iterator)[0]["data"]
    assert list(data.shape()) == [4, 2, 3]
    eager = paddle.to_tensor(data)
    assert eager.dtype == paddle.float32
    assert isinstance(eager, paddle.Tensor)


@pytest.mark.parametrize(("policy", "last"), [("PARTIAL", [8, 9]), ("FILL", [8, 9, 9, 9]), ("DROP", [4, 5, 6, 7])])
def test_last_batches(policy: str, last: list[int], numbers: Path) -> None:
    pipe = numpy_pipeline(numbers, pad_last_batch=True)
    iterator = plugin.DALIGenericIterator(
        pipe, ["data", "label"], reader_name="Reader", last_batch_policy=plugin.LastBatchPolicy[policy]
    )
    assert labels(iterator)[-1] == last


def test_two_pipelines(numbers: Path) -> None:
    pipes = [numpy_pipeline(numbers, num_shards=2, shard_id=k) for k in range(2)]
    iterator = plugin.DALIGenericIterator(pipes, ["data", "label"], reader_name="Reader")
    first = next(iterator)
    assert [np.array(b["label"]).tolist() for b in first] == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_nothing_is_copied(numbers: Path) -> None:
    iterator = plugin.DALIGenericIterator(numpy_pipeline(numbers), ["data", "label"], reader_name="Reader")
    outputs = iterator.next_outputs()[0]
    tensor = iterator.convert("label", outputs[1])
    outputs[1].as_array()[0] = 77
    assert np.array(tensor)[0] == 77


@pytest.mark.parametrize(("level", "shapes"), [(1, [(2, 3), (1, 3), (4, 3)]), (2, [(2, 3), (1, 5), (4, 1)])])
def test_samples_of_different_shapes(level: int, shapes: list[tuple[int, ...]]) -> None:
    samples = [np.arange(np.prod(s), dtype=np.float32).reshape(s) + 100 * k for k, s in enumerate(shapes)]

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def ragged() -> Any:
        return fn.external_source(source=[samples], batch=True)

    tensor = next(plugin.DALIGenericIterator(ragged(), [("x", level)]))[0]["x"]
    lengths = tensor.recursive_sequence_lengths() if hasattr(tensor, "recursive_sequence_lengths") else None
    assert lengths in (None, plugin.recursive_length(plugin_list(samples), level + 1)[1:])
    assert lengths is None or lengths[0] == [s[0] for s in shapes]
    wanted = np.concatenate([s.reshape(-1, *s.shape[level:]) for s in samples])
    np.testing.assert_array_equal(np.array(tensor), wanted)
    clipped = plugin.lod_tensor_clip(tensor, 2)
    np.testing.assert_array_equal(np.array(clipped), wanted[: sum(int(np.prod(s[:level])) for s in shapes[:2])])


def plugin_list(samples: list[np.ndarray]) -> Any:
    from dali_run.tensors import TensorListCPU

    return TensorListCPU(samples)


def test_what_paddle_cannot_take_is_said() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def wrong() -> Any:
        return fn.external_source(source=[[np.zeros(1, np.float32), np.zeros(2, np.float32)]]), fn.constant(
            idata=[1], dtype=types.UINT32
        )

    iterator = plugin.DALIGenericIterator(wrong(), ["ragged", "unsigned"])
    ragged, unsigned = iterator.next_outputs()[0]
    with pytest.raises(ValueError):
        iterator.convert("ragged", ragged)
    with pytest.raises(TypeError, match="UINT32"):
        iterator.convert("unsigned", unsigned)
    with pytest.raises(ValueError, match="must differ"):
        plugin.DALIGenericIterator(wrong(), ["x", ("x", 1)])


def test_feed_ndarray(numbers: Path) -> None:
    (x, _), target = numpy_pipeline(numbers).run(), np.zeros((4, 2, 3), np.float32)
    assert plugin.to_paddle_type(x) == paddle.framework.core.VarDesc.VarType.FP32
    plugin.feed_ndarray(x.as_tensor(), target.ctypes.data)
    assert target[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_training(numbers: Path) -> None:
    layer = paddle.nn.Linear(6, 1)
    optimizer = paddle.optimizer.SGD(1e-3, parameters=layer.parameters())
    losses = []
    for batch in plugin.DALIClassificationIterator(numpy_pipeline(numbers), reader_name="Reader"):
        x, y = (paddle.to_tensor(batch[0][k]) for k in ("data", "label"))
        loss = ((layer(x.reshape([4, 6])) - y.astype("float32").reshape([4, 1])) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert len(losses) == 3
    assert np.isfinite(losses).all()
