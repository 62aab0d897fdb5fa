"""Iterators: epochs, last batches and lengths as DALI's (recorded in golden/epochs.json), checkpoints, PyTorch."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import Pipeline, pipeline_def
from dali_run.ops.errors import SpecError
from dali_run.pipelines.compile.place import Target
from dali_run.plugin.base_iterator import LastBatchPolicy
from dali_run.plugin.numpy import DALIGenericIterator, DALIRaggedIterator

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "epochs.json").read_text())
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("files")
    for i in range(11):
        (root / f"{i:03d}").write_bytes(bytes([i]) * (i + 1))
    return [str(p) for p in sorted(root.iterdir())]


def labels(files: list[str], batch_size: int, shard: int = 0, shards: int = 1, **arguments: Any) -> Pipeline:
    own = {k: arguments.pop(k) for k in list(arguments) if k in ("checkpoint", "seed", "on_error")}

    @pipeline_def(batch_size=batch_size, num_threads=1, **own)
    def pipe():
        return fn.readers.file(files=files, name="R", num_shards=shards, shard_id=shard, **arguments)[1]

    return pipe()


def epochs_of(row: dict[str, Any], files: list[str]) -> tuple[list[int], list[int], list[Any]]:
    """Sizes and lengths of the epochs, and what is in them."""
    policy = {"last_batch_policy": LastBatchPolicy[row["policy"]], "auto_reset": True}
    if not row["epochs"][0]:  # there is no first batch
        policy["prepare_first_batch"] = False
    shards = row["shards"]
    if "size" in row:
        own = [labels(files[: row["n"]], row["batch"], s, shards) for s in range(shards)]
        it = DALIGenericIterator(own, ["x"], size=row["size"], last_batch_padded=row["padded"], **policy)
    else:
        options = {"pad_last_batch": row["pad"], "stick_to_shard": row["stick"]}
        own = [labels(files[: row["n"]], row["batch"], s, shards, **options) for s in range(shards)]
        it = DALIGenericIterator(own, ["x"], reader_name="R", **policy)
    sizes, lengths, epochs = [], [], []
    for _ in row["epochs"]:
        sizes.append(it.size)
        lengths.append(len(it))
        epochs.append([[one["x"].reshape(-1).tolist() for one in batch] for batch in it])
    for p in own:
        p.close()
    return sizes, lengths, epochs


def only_padding(row: dict[str, Any]) -> bool:
    """DALI gives batches of nothing but repeats here: it drops the batches of padding, but does not read past them."""
    return row["policy"] == "DROP" and row.get("pad", False) and row["batch"] == 3


def named(row: dict[str, Any]) -> str:
    return "-".join(f"{k}={v}" for k, v in row.items() if k not in ("sizes", "lengths", "epochs"))


@pytest.mark.parametrize("row", [r for r in GOLDEN if not only_padding(r)], ids=named)
def test_epochs_are_dalis(row: dict[str, Any], files: list[str]) -> None:
    sizes, lengths, epochs = epochs_of(row, files)
    assert epochs == row["epochs"]
    assert sizes == row.get("sizes", [row.get("size")] * len(sizes))
    assert lengths == row.get("lengths", lengths)


@pytest.mark.parametrize("row", [r for r in GOLDEN if only_padding(r)], ids=named)
def test_dropped_padding_does_not_come_back(row: dict[str, Any], files: list[str]) -> None:
    _, _, epochs = epochs_of(row, files)
    assert epochs != row["epochs"]
    for epoch in epochs:
        for batch in epoch:
            assert all(len(set(one)) == len(one) for one in batch)


def test_reset_and_auto_reset(files: list[str]) -> None:
    it = DALIGenericIterator(labels(files[:4], 2), ["x"], reader_name="R")
    assert len(list(it)) == 2
    with pytest.raises(StopIteration):
        next(it)
    it.reset()
    next(it)
    with pytest.warns(UserWarning, match="not over"):
        it.reset()
    next(it)
    assert len(list(it)) == 2  # iter() begins a new epoch where one has ended
    assert it.size == 4


def test_wrong_arguments(files: list[str]) -> None:
    pipe = labels(files[:4], 2)
    with pytest.raises(ValueError, match="distinct"):
        DALIGenericIterator(pipe, ["a", "a"], reader_name="R")
    with pytest.raises(ValueError, match="names 2 outputs"):
        DALIGenericIterator(pipe, ["a", "b"], reader_name="R")
    with pytest.raises(ValueError, match="either"):
        DALIGenericIterator(pipe, ["a"], size=4, reader_name="R")
    with pytest.raises(SpecError, match="no reader 'S'"):
        DALIGenericIterator(pipe, ["a"], reader_name="S")
    with pytest.raises(ValueError, match="same batch_size"):
        DALIGenericIterator([pipe, labels(files[:4], 3)], ["a"], reader_name="R")
    with pytest.raises(ValueError, match="size must be"):
        DALIGenericIterator(pipe, ["a"], size=0)
    with pytest.raises(TypeError, match="length is unknown"):
        len(DALIGenericIterator(pipe, ["a"]))


@pytest.mark.parametrize("policy", list(LastBatchPolicy))
def test_checkpoints_continue(policy: LastBatchPolicy, files: list[str]) -> None:
    def make(checkpoints: list[bytes] | None = None) -> DALIGenericIterator:
        own = {} if checkpoints is None else {"checkpoint": checkpoints[0]}
        pipe = labels(files[:7], 2, random_shuffle=True, **own)
        return DALIGenericIterator(pipe, ["x"], reader_name="R", last_batch_policy=policy, auto_reset=True)

    def take(it: DALIGenericIterator, n: int) -> list[Any]:
        out: list[Any] = []
        while len(out) < n:
            try:
                out.append(next(it)[0]["x"].reshape(-1).tolist())
            except StopIteration:
                out.append("end")
        return out

    first = make()
    take(first, 6)
    saved = first.checkpoints()
    assert len(saved[0]) < 2000
    assert take(make(saved), 12) == take(first, 12)


def test_ragged_outputs(files: list[str]) -> None:
    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        return fn.readers.file(files=files, name="R")

    dense = DALIGenericIterator(pipe(), ["data", "label"], reader_name="R")
    with pytest.raises(ValueError, match="samples differ in shape"):
        next(dense)
    batch = next(DALIRaggedIterator(pipe(), ["data", "label"], reader_name="R"))[0]
    assert [a.tolist() for a in batch["data"]] == [[0], [1, 1], [2, 2, 2]]
    assert batch["label"].tolist() == [[0], [1], [2]]


def test_iterators_of_ones_own_find_dalis_names(files: list[str]) -> None:
    class Pairs(DALIGenericIterator):
        def __next__(self) -> Any:
            given = super().__next__()
            assert len(given) == self._num_gpus == len(self._pipes)
            return given[0]["label"], self._pipes[0].epoch_size("R")

        def __len__(self) -> int:
            return super().__len__() * self._num_gpus

    made = Pairs(labels(files[:6], 2), ["label"], reader_name="R", auto_reset=True)
    assert len(made) == len(list(made)) == made._size // 2 == 3
    assert {size for _, size in made} == {6}


def test_epoch_of_a_source() -> None:
    @pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        return fn.external_source([np.full((2, 1), i) for i in range(3)], cycle="raise")

    it = DALIGenericIterator(pipe(), ["x"], auto_reset=True)
    assert [[b[0]["x"][0, 0] for b in it] for _ in range(2)] == [[0, 1, 2]] * 2


@needs_torch
def test_torch_tensors_are_views(files: list[str]) -> None:
    import torch

    from dali_run.plugin.pytorch import DALIGenericIterator as TorchIterator
    from dali_run.plugin.pytorch import DALIRaggedIterator as TorchRagged
    from dali_run.plugin.pytorch import feed_ndarray, to_torch_tensor, to_torch_type

    kept = np.arange(12, dtype=np.float32).reshape(2, 6)

    @pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        return fn.external_source(lambda: kept, no_copy=True)

    p = pipe()
    (out,) = p.run()
    tensor = to_torch_tensor(out)
    assert tensor.data_ptr() == kept.ctypes.data
    assert torch.equal(torch.from_dlpack(out), tensor)
    assert to_torch_type[out.dtype] is tensor.dtype
    into = torch.zeros(2, 6)
    feed_ndarray(out, into)
    assert torch.equal(into, tensor)
    with pytest.raises(ValueError, match="of shape"):
        feed_ndarray(out, torch.zeros(3))
    with pytest.raises(AssertionError):
        feed_ndarray(out, torch.zeros(2, 6, dtype=torch.int64))
    batch = next(TorchIterator(p, ["x"]))[0]["x"]
    assert batch.data_ptr() == kept.ctypes.data

    @pipeline_def(batch_size=3, num_threads=1)
    def ragged():
        return fn.readers.file(files=files, name="R")

    assert (TorchRagged.DENSE_TAG, TorchRagged.SPARSE_LIST_TAG, TorchRagged.SPARSE_COO_TAG) == (
        "dense", "sparse_list", "sparse_coo",
    )  # fmt: skip
    types = [TorchRagged.SPARSE_LIST_TAG, TorchRagged.DENSE_TAG]
    batch = next(TorchRagged(ragged(), ["data", "label"], reader_name="R", output_types=types))[0]
    assert [t.tolist() for t in batch["data"]] == [[0], [1, 1], [2, 2, 2]]
    types = [TorchRagged.SPARSE_COO_TAG, TorchRagged.DENSE_TAG]
    batch = next(TorchRagged(ragged(), ["data", "label"], reader_name="R", output_types=types))[0]
    assert batch["data"].to_dense().tolist() == [[0, 0, 0], [1, 1, 0], [2, 2, 2]]


@needs_torch
def test_torch_function() -> None:
    import torch

    import dali_run.plugin.pytorch.fn as torch_fn
    from dali_run.plugin.pytorch import TorchPythonFunction

    negated = TorchPythonFunction(lambda t: -t)

    @pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        x = fn.external_source(lambda: np.arange(4, dtype=np.float32).reshape(2, 2))
        a = torch_fn.torch_python_function(x, function=lambda t: torch.flip(t, [0]) + 1)
        b, c = torch_fn.torch_python_function(
            x, function=lambda ts: ([t * 2 for t in ts], [t.sum() for t in ts]), num_outputs=2, batch_processing=True
        )
        return a, b, c, negated(c)

    expected = [[[2, 1], [4, 3]], [[0, 2], [4, 6]], [1, 5], [-1, -5]]
    assert [o.as_array().tolist() for o in pipe().run()] == expected


@needs_jax
def test_jax_batches_of_several_pipelines_are_rows(files: list[str]) -> None:
    from dali_run.plugin.jax import DALIGenericIterator as JaxIterator

    batch = next(JaxIterator([labels(files, 4, s, 2) for s in range(2)], ["x"], reader_name="R"))["x"]
    assert batch.tolist() == [[[0], [1], [2], [3]], [[5], [6], [7], [8]]]
    one = next(JaxIterator(labels(files, 2), ["x"], reader_name="R", pmap_compatible=True))["x"]
    assert one.tolist() == [[[0], [1]]]


@needs_jax
def test_jax_iterators_work_where_jax_does(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.plugin import jax as plugin

    def where(decorate: Any, **arguments: Any) -> Any:
        def definition() -> Any:
            return fn.readers.file(files=files, name="R")[1]

        it = plugin.data_iterator(decorate(definition), output_map=["x"], reader_name="R", prepare_first_batch=False)
        pipe = it(batch_size=2, **arguments).pipelines[0]
        return pipe.device_id, pipe.num_threads

    gpu = type("Device", (), {"platform": "gpu", "local_hardware_id": 3})
    assert where(lambda f: f) == (None, 4)
    monkeypatch.setattr(plugin.jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(Pipeline, "_target", lambda self: Target("cpu"))
    assert where(lambda f: f) == (3, 4)
    assert where(lambda f: f, device_id=1, num_threads=2) == (1, 2)
    assert where(pipeline_def(device_id=None, num_threads=1)) == (None, 1)


@needs_jax
def test_jax_wants_a_checkpoint_for_each_device(files: list[str]) -> None:
    import jax

    from dali_run.plugin.jax import data_iterator

    def definition(num_shards: int, shard_id: int) -> Any:
        return fn.readers.file(files=files, name="R", num_shards=num_shards, shard_id=shard_id)[1]

    make = data_iterator(definition, output_map=["x"], reader_name="R", devices=jax.local_devices())
    with pytest.raises(ValueError, match="0 checkpoints for the"):
        make(batch_size=2 * len(jax.local_devices()), checkpoints=[])


@pytest.mark.parametrize("policy", [LastBatchPolicy.PARTIAL, LastBatchPolicy.FILL, LastBatchPolicy.DROP])
def test_samples_that_are_left_out_do_not_shift_the_end_of_an_epoch(files: list[str], policy: LastBatchPolicy) -> None:
    """11 samples in batches of 4: batches are smaller, a batch without samples is skipped, and no sample of the next
    epoch comes in the place of one that was left out."""

    @pipeline_def(batch_size=4, num_threads=1)
    def pipe() -> Any:
        label = fn.readers.file(files=files, name="R")[1]
        fn.keep_if((label < 2) | (label == 3) | (label == 10))
        return label

    it = DALIGenericIterator(pipe(), ["x"], reader_name="R", last_batch_policy=policy, auto_reset=True)
    found = [one["x"].reshape(-1).tolist() for (one,) in it]
    last = {LastBatchPolicy.PARTIAL: [[10]], LastBatchPolicy.FILL: [[10, 0]], LastBatchPolicy.DROP: []}[policy]
    assert found == [[0, 1, 3], *last]
