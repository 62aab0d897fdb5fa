"""The Python API on a GPU, and the same graphs placed as for a GPU with CPU kernels in their stead."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline, load_spec, pipeline_def
from dali_run.ops.errors import SpecError
from dali_run.ops.gpu.lane import gpu_count
from dali_run.pipelines.compile.place import Target


@pytest.fixture(params=["null", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``null`` runs everywhere."""
    kind: str = request.param
    if kind == "null":
        monkeypatch.setattr(Pipeline, "_target", lambda self: Target("null", auto_mixed=False))
    else:  # a pipeline falls back to the CPU, which would be compared with itself
        assert gpu_count(), "the GPU tests were demanded, and there is no GPU"
    return kind


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("images")
    for k in range(6):
        y, x = np.mgrid[: 60 + k, :80]
        pixels = np.stack([x * 3 % 256, y * 4 % 256, (x + y + 10 * k) % 256], -1).astype(np.uint8)
        (folder / f"c{k % 2}").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"c{k % 2}" / f"{k:03d}.jpg", quality=92)
    return str(folder)


def host(outputs: Any) -> list[list[np.ndarray]]:
    return [[np.asarray(t.as_cpu()[i]) for i in range(len(t))] for t in outputs]


def train(root: str, **options: Any) -> Pipeline:
    @pipeline_def(batch_size=3, num_threads=2, seed=5, **options)
    def pipe():
        jpegs, labels = fn.readers.file(file_root=root, name="Reader", random_shuffle=True)
        images = fn.decoders.image(jpegs, device="mixed")
        images = fn.resize(images, size=[32, 32])
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, crop=(28, 28), mirror=mirror, std=[255.0]), labels.gpu(), mirror

    return pipe()


def test_training_chain(root: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = train(root, device_id=0)
    assert [n.stage for n in p.plan.graph.nodes if n.op.name.startswith(("crop_mirror", "_fused"))] == ["gpu"] or \
        any(n.stage == "mixed" for n in p.plan.graph.nodes)  # fmt: skip
    got = [host(p.run()) for _ in range(4)]
    monkeypatch.undo()
    q = train(root, device_id=None)
    for a, b in zip(got, (host(q.run()) for _ in range(4)), strict=True):
        np.testing.assert_allclose(np.stack(a[0]), np.stack(b[0]), atol=3 / 255)
        assert np.array_equal(a[1], b[1])
        assert np.array_equal(a[2], b[2])


def test_moving_between_devices(root: str, device: str) -> None:
    @pipeline_def(batch_size=3, num_threads=2, device_id=0)
    def pipe():
        jpegs, _ = fn.readers.file(file_root=root)
        images = fn.decoders.image(jpegs, device="mixed")
        assert images.device == "gpu"
        half = (images / 2).cpu()
        assert half.device == "cpu"
        extents = images.shape()
        assert extents.device == "cpu"
        sizes = fn.cast(extents[:2] / 2, dtype=types.FLOAT)
        return images, half, fn.resize(images, size=sizes), images[10:20, :, 0]

    images, half, small, part = host(pipe().run())
    for a, b, c, d in zip(images, half, small, part, strict=True):
        np.testing.assert_allclose(b, a / 2)
        assert c.shape == (round(a.shape[0] / 2 + 1e-6), 40, 3)
        assert (d == a[10:20, :, 0]).all()


@pytest.mark.gpu
def test_specs_stay_on_the_gpu(root: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(train(root, device_id=0).to_yaml(["x", "label", "mirror"]))
    loaded, python = load_spec(spec), train(root, device_id=0)
    assert (loaded.device_id, loaded.output_names) == (0, ("x", "label", "mirror"))
    for _ in range(3):
        got, want = loaded.run(), python.run()
        assert [t.batch.on_host for t in got] == [False, False, True]
        for a, b in zip(host(got), host(want), strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_conditionals(root: str, device: str) -> None:
    @pipeline_def(batch_size=6, num_threads=2, device_id=0, seed=2, enable_conditionals=True)
    def pipe():
        jpegs, _ = fn.readers.file(file_root=root)
        images = fn.decoders.image(jpegs, device="mixed")
        flag = fn.random.coin_flip(dtype=types.BOOL)
        if flag:
            result = fn.flip(images)
        else:
            result = images
        return images, result, flag

    images, result, flags = host(pipe().run())
    assert 0 < sum(map(int, flags)) < 6
    for a, b, f in zip(images, result, flags, strict=True):
        assert (b == (a[:, ::-1] if f else a)).all()


def test_arguments_stay_on_the_cpu(root: str, device: str) -> None:
    @pipeline_def(batch_size=3, num_threads=2, device_id=0)
    def pipe():
        jpegs, _ = fn.readers.file(file_root=root)
        images = fn.decoders.image(jpegs, device="mixed")
        return fn.flip(images, horizontal=fn.random.coin_flip().gpu())

    with pytest.raises(SpecError, match="comes from the GPU"):
        pipe().run()


def test_sources_on_the_gpu(device: str) -> None:
    @pipeline_def(batch_size=3, num_threads=2, device_id=0)
    def pipe():
        x = fn.external_source(lambda i: [np.full((k + 1, 2), i, np.float32) for k in range(3)], device="gpu")
        return x, x + 1

    p = pipe()
    for i in range(4):
        x, y = host(p.run())
        assert [a.tolist() for a in x] == [[[i, i]] * (k + 1) for k in range(3)]
        assert [a.tolist() for a in y] == [[[i + 1, i + 1]] * (k + 1) for k in range(3)]


@pytest.mark.gpu(emulated=False)
def test_cupy_sources_and_functions() -> None:
    import cupy

    @pipeline_def(batch_size=2, num_threads=2, device_id=0)
    def pipe():
        x = fn.external_source(lambda i: cupy.full((2, 3), i, cupy.float32), device="gpu")
        return x, fn.python_function(x, function=lambda a: cupy.concatenate([a, a]), device="gpu")

    p = pipe()
    for i in range(3):
        x, y = p.run()
        assert not x.batch.on_host
        assert np.asarray(y.as_cpu().as_tensor()).tolist() == [[i] * 6] * 2


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of PyTorch's own
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch_tensors_outlive_their_batch(root: str) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    from dali_run.plugin.pytorch import DALIGenericIterator

    plain = [np.stack(host(p.run())[0]) for p in [train(root, device_id=0)] for _ in range(30)]
    it = DALIGenericIterator(train(root, device_id=0), ["x", "label", "mirror"])
    kept = []
    for k in range(30):
        x = next(it)[0]["x"]
        assert x.is_cuda
        y = x.clone()
        for _ in range(50):  # work that is still queued when the tensor goes
            y = y * 1.0
        kept.append((y + x - y, k))
        del x
    for tensor, k in kept:
        np.testing.assert_allclose(tensor.cpu().numpy(), plain[k], atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of PyTorch's own
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch_sees_arrays_as_they_lie() -> None:
    import cupy
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    from dali_run.pipelines.python.tensors import TensorGPU
    from dali_run.plugin.pytorch import to_torch_tensor

    columns = cupy.arange(12).reshape(3, 4).T
    tensor = to_torch_tensor(TensorGPU(columns))
    assert tensor.tolist() == columns.tolist()
    assert tensor.data_ptr() == columns.data.ptr


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of JAX's own
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax_arrays_outlive_their_batch(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the GPU
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    from dali_run.plugin.jax import DALIGenericIterator

    many = jax.jit(lambda y: jax.lax.fori_loop(0, 2000, lambda _, z: z * 1.0, y) + 0.0)
    plain = [np.stack(host(p.run())[0]) for p in [train(root, device_id=0)] for _ in range(30)]
    it = DALIGenericIterator(train(root, device_id=0), ["x", "label", "mirror"])
    kept = []
    for _ in range(30):
        x = next(it)["x"]
        assert x.devices() == {jax.devices()[0]}
        kept.append(many(x))  # still queued when the array goes
        del x
    for got, want in zip(kept, plain, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*has no effect")
def test_device_id_on_this_machine() -> None:
    pipe = Pipeline(1, 1, 0)
    assert pipe.device_id == 0
    assert pipe._target().device == ("gpu" if gpu_count() else "cpu")
