# ruff: noqa: RET504  # the examples are kept as they are written
"""The examples of DALI's own documents, with nothing but the name of the package changed."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dali_run as dali
import dali_run.fn as fn
import dali_run.ops as ops
import dali_run.types as types
from dali_run import pipeline_def
from dali_run.ops.base import operators
from dali_run.pipeline import Pipeline, do_not_convert
from dali_run.plugin.numpy import DALIGenericIterator
from dali_run.types import DALIDataType

pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect:UserWarning", "ignore:layout 'HWC':UserWarning",
                                        "ignore::DeprecationWarning")  # fmt: skip
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
COUNT = 21


@pytest.fixture(scope="module")
def images_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """21 JPEGs of different sizes in three folders."""
    root = tmp_path_factory.mktemp("images")
    for k in range(COUNT):
        y, x = np.mgrid[: 60 + k, :80]
        pixels = np.stack([x * 3 % 256, y * 4 % 256, (x + y + 10 * k) % 256], -1).astype(np.uint8)
        folder = root / f"c{k % 3}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{k:03d}.jpg", quality=92)
    return str(root)


def need(*names: str) -> None:
    """Skip where an operator of the example is not there yet."""
    fn.__dir__()
    missing = [n for n in names if n not in operators()]
    if missing:
        pytest.skip(f"operators not available: {', '.join(missing)}")


def torch_iterator() -> type:
    """The iterator of the examples: PyTorch's where it is installed, else NumPy's."""
    if importlib.util.find_spec("torch") is None:
        return DALIGenericIterator
    from dali_run.plugin.pytorch import DALIGenericIterator as TorchIterator

    return TorchIterator


# -- seed 000: the documentation's front page --------------------------------------------------------------------------


def test_training_loop(images_dir: str) -> None:
    @pipeline_def(num_threads=4, device_id=0)
    def get_dali_pipeline():
        images, labels = fn.readers.file(file_root=images_dir, random_shuffle=True, name="Reader")
        # decode data on the GPU
        images = fn.decoders.image_random_crop(images, device="mixed", output_type=types.RGB)
        # the rest of processing happens on the GPU as well
        images = fn.resize(images, resize_x=256, resize_y=256)
        images = fn.crop_mirror_normalize(
            images,
            crop_h=224,
            crop_w=224,
            mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
            std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
            mirror=fn.random.coin_flip(),
        )
        return images, labels

    train_data = torch_iterator()([get_dali_pipeline(batch_size=16)], ["data", "label"], reader_name="Reader")
    shapes = []
    for data in train_data:
        x, y = data[0]["data"], data[0]["label"]
        shapes.append((tuple(x.shape), tuple(y.shape)))
    assert shapes == [((16, 3, 224, 224), (16, 1))] * 2
    assert str(x.dtype).endswith("float32")


# -- seed 001: classes with define_graph -------------------------------------------------------------------------------


class HybridTrainPipe(Pipeline):
    def __init__(self, batch_size, data_dir, num_threads=4, device_id=0, crop=224, dali_cpu=False):
        super(HybridTrainPipe, self).__init__(batch_size, num_threads, device_id, seed=12 + device_id)  # noqa: UP008
        self.input = ops.FileReader(file_root=data_dir, random_shuffle=True)
        dali_device = "cpu" if dali_cpu else "gpu"
        decoder_device = "cpu" if dali_cpu else "mixed"
        device_memory_padding = 211025920 if decoder_device == "mixed" else 0
        host_memory_padding = 140544512 if decoder_device == "mixed" else 0
        self.decode = ops.ImageDecoderRandomCrop(
            device=decoder_device,
            output_type=types.RGB,
            device_memory_padding=device_memory_padding,
            host_memory_padding=host_memory_padding,
            random_aspect_ratio=[0.8, 1.25],
            random_area=[0.6, 1.0],
            num_attempts=100,
        )
        self.res = ops.Resize(device=dali_device, resize_x=crop, resize_y=crop, interp_type=types.INTERP_TRIANGULAR)
        self.cmnp = ops.CropMirrorNormalize(
            device="gpu",
            output_dtype=types.FLOAT,
            output_layout=types.NCHW,
            crop=(crop, crop),
            image_type=types.RGB,
            mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
            std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
        )
        self.coin = ops.CoinFlip(probability=0.5)

    def define_graph(self):
        rng = self.coin()
        self.jpegs, self.labels = self.input(name="Reader")
        images = self.decode(self.jpegs)
        images = self.res(images)
        output = self.cmnp(images.gpu(), mirror=rng)
        return [output, self.labels]


class HybridValPipe(Pipeline):
    def __init__(self, batch_size, data_dir, num_threads=4, device_id=0, crop=224, size=224):
        super(HybridValPipe, self).__init__(batch_size, num_threads, device_id, seed=12 + device_id)  # noqa: UP008
        self.input = ops.FileReader(file_root=data_dir, random_shuffle=False)
        self.decode = ops.ImageDecoder(device="mixed", output_type=types.RGB)
        self.res = ops.Resize(device="gpu", resize_shorter=size, interp_type=types.INTERP_TRIANGULAR)
        self.cmnp = ops.CropMirrorNormalize(
            device="gpu",
            output_dtype=types.FLOAT,
            output_layout=types.NCHW,
            crop=(crop, crop),
            image_type=types.RGB,
            mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
            std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
        )

    def define_graph(self):
        self.jpegs, self.labels = self.input(name="Reader")
        images = self.decode(self.jpegs)
        images = self.res(images)
        output = self.cmnp(images)
        return [output, self.labels]


@pytest.mark.parametrize("pipe_class", [HybridTrainPipe, HybridValPipe])
@needs_torch
def test_classification_iterator(pipe_class: type, images_dir: str) -> None:
    from dali_run.plugin.pytorch import DALIClassificationIterator

    pipe = pipe_class(batch_size=8, data_dir=images_dir)
    pipe.build()
    num_train = pipe.epoch_size("Reader")
    assert num_train == COUNT
    train_loader = DALIClassificationIterator(pipe, size=num_train)
    seen = 0
    for data in train_loader:
        inputs, labels = data[0]["data"], data[0]["label"].squeeze().long()
        assert tuple(inputs.shape) == (8, 3, 224, 224)
        assert labels.max() <= 2
        seen += 1
    assert seen == 3


@pytest.mark.parametrize("pipe_class", [HybridTrainPipe, HybridValPipe])
def test_classes_run(pipe_class: type, images_dir: str) -> None:
    pipe = pipe_class(batch_size=4, data_dir=images_dir)
    images, labels = pipe.run()
    assert images.as_cpu().as_array().shape == (4, 3, 224, 224)
    assert images.layout() == "CHW"
    assert labels.as_array().shape == (4, 1)


class MyPipe(Pipeline):
    def __init__(self, fn, batch_size=1, num_threads=1, device_id=0, crop=224, size=224):
        super(MyPipe, self).__init__(batch_size, num_threads, device_id)  # noqa: UP008
        self.path = fn
        self.input = ops.ExternalSource()
        self.decode = ops.ImageDecoder(device="mixed", output_type=types.RGB)
        self.res = ops.Resize(device="gpu", resize_shorter=size, interp_type=types.INTERP_NN)
        self.cmnp = ops.CropMirrorNormalize(
            device="gpu",
            output_dtype=types.FLOAT,
            output_layout=types.NCHW,
            crop=(crop, crop),
            image_type=types.RGB,
            mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
            std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
        )

    def define_graph(self):
        self.jpegs = self.input()
        images = self.decode(self.jpegs)
        images = self.res(images)
        output = self.cmnp(images)
        return output

    def iter_setup(self):
        images = []
        with open(self.path, "rb") as fp:
            images.append(np.frombuffer(fp.read(), dtype=np.uint8))
        self.feed_input(self.jpegs, images, layout="HWC")


def test_prediction_with_feed_input(images_dir: str) -> None:
    pipe = MyPipe(f"{images_dir}/c0/000.jpg")
    pipe.build()
    dali_iterator = torch_iterator()(pipe, ["images"], 1)
    img = dali_iterator.next()[0]["images"]
    assert tuple(img.shape) == (1, 3, 224, 224)


# -- seed 002: JAX (in a process of its own: the number of CPU devices is fixed when JAX starts) ----------------------


JAX = """
import sys
image_dir, rotate = sys.argv[1], sys.argv[2] == "1"
import warnings
warnings.filterwarnings("ignore", ".*has no effect.*")
import jax
import dali_run.fn as fn
from dali_run.plugin.jax import data_iterator

def simple_pipeline():
    jpegs, labels = fn.readers.file(file_root=image_dir, name="image_reader")
    images = fn.decoders.image(jpegs)
    images = fn.resize(images, resize_x=256, resize_y=256)
    return images, labels

iterator_fn = data_iterator(simple_pipeline, output_map=["images", "labels"], reader_name="image_reader")
iterator = iterator_fn(batch_size=1)
output = next(iterator)
assert list(output) == ["images", "labels"]
assert isinstance(output["images"], jax.Array)
assert output["images"].shape == (1, 256, 256, 3) and output["labels"].shape == (1, 1)
output = next(iterator)

@data_iterator(output_map=["images", "labels"], reader_name="image_reader")
def iterator_fn():
    jpegs, labels = fn.readers.file(file_root=image_dir, name="image_reader")
    images = fn.decoders.image(jpegs, device="mixed")
    images = images.gpu()
    images = fn.resize(images, resize_x=256, resize_y=256)
    return images, labels

iterator = iterator_fn(batch_size=1)
assert len(iterator) == 21
assert [i for i, batch in enumerate(iterator)] == list(range(21))
batch = next(iterator_fn(batch_size=8))
assert batch["images"].shape == (8, 256, 256, 3) and batch["labels"].shape == (8, 1)

@data_iterator(output_map=["images", "labels"], reader_name="image_reader")
def iterator_fn():
    jpegs, labels = fn.readers.file(file_root=image_dir, name="image_reader", random_shuffle=True)
    images = fn.decoders.image(jpegs, device="mixed")
    images = fn.resize(images, resize_x=256, resize_y=256)
    return images, labels

first, again = (next(iterator_fn(batch_size=8, seed=0))["labels"].tolist() for _ in range(2))
assert first == again

from jax.sharding import Mesh, PartitionSpec, NamedSharding
mesh = Mesh(jax.devices(), axis_names=("batch"))
sharding = NamedSharding(mesh, PartitionSpec("batch"))

@data_iterator(output_map=["images", "labels"], reader_name="image_reader", sharding=sharding)
def iterator_fn(num_shards=1, shard_id=0):
    jpegs, labels = fn.readers.file(
        file_root=image_dir, name="image_reader", num_shards=num_shards, shard_id=shard_id,
    )
    images = fn.decoders.image(jpegs, device="mixed")
    if rotate:
        angle = fn.random.uniform(range=(-10.0, 10.0))
        images = fn.rotate(images, angle=angle, fill_value=0)
    images = fn.resize(images, resize_x=256, resize_y=256)
    return images, labels.gpu()

batch = next(iterator_fn(batch_size=8))
images = batch["images"]
assert images.shape == (8, 256, 256, 3)
assert len(images.devices()) == 2 and images.sharding == sharding
assert [s.data.shape for s in images.addressable_shards] == [(4, 256, 256, 3)] * 2
assert batch["labels"].reshape(-1).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]

def run_iterator(iterator, epoch_num=10):
    for epoch in range(epoch_num):
        for batch in iterator:
            pass

run_iterator(iterator_fn(batch_size=8, num_threads=1), 2)

from dali_run.pipeline import pipeline_def
from dali_run.plugin.jax import DALIGenericIterator

@pipeline_def
def simple_pipeline():
    jpegs, labels = fn.readers.file(file_root=image_dir, name="image_reader")
    images = fn.decoders.image(jpegs, device="mixed")
    images = fn.resize(images, resize_x=256, resize_y=256)
    return images, labels

pipeline = simple_pipeline(batch_size=8, num_threads=1, device_id=0)
iterator = DALIGenericIterator(pipeline, output_map=["images", "labels"], reader_name="image_reader")
assert next(iterator)["images"].shape == (8, 256, 256, 3)
print("done")
"""


@needs_jax
def test_jax_tutorial(images_dir: str) -> None:
    fn.__dir__()
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": "", "JAX_PLATFORMS": "cpu",
                   "PYTHONPATH": path}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", JAX, images_dir, str(int("rotate" in operators()))],
                          capture_output=True, text=True, env=environment, check=False)  # fmt: skip
    assert done.stdout.endswith("done\n"), done.stderr


# -- seed 003: an input iterator of one's own, with several labels ----------------------------------------------------


def test_external_input_iterator(images_dir: str) -> None:
    class ExternalInputIterator:
        def __init__(self, batch_size: int) -> None:
            self.batch_size = batch_size
            self.files = sorted(Path(images_dir).glob("*/*.jpg"))

        def __iter__(self):
            self.i = 0
            return self

        def __next__(self):
            batch, labels = [], []
            for _ in range(self.batch_size):
                batch.append(np.frombuffer(self.files[self.i % len(self.files)].read_bytes(), dtype=np.uint8))
                labels.append(np.array([self.i, 1, 0], dtype=np.uint8))
                self.i += 1
            return batch, labels

    class ExternalSourcePipeline(Pipeline):
        def __init__(self, batch_size, num_threads, device_id):
            super().__init__(batch_size, num_threads, device_id, seed=12)
            self.input = ops.ExternalSource()
            self.input_label = ops.ExternalSource()
            self.decode = ops.ImageDecoder(device="mixed", output_type=types.RGB)
            self.res = ops.Resize(device="gpu", resize_x=64, resize_y=64)
            self.source = iter(ExternalInputIterator(batch_size))

        def define_graph(self):
            self.jpegs = self.input()
            self.labels = self.input_label()
            return (self.res(self.decode(self.jpegs)), self.labels)

        def iter_setup(self):
            images, labels = next(self.source)
            self.feed_input(self.jpegs, images)
            self.feed_input(self.labels, labels)

    pipe = ExternalSourcePipeline(batch_size=4, num_threads=2, device_id=0)
    it = torch_iterator()([pipe], ["data", "label"], size=8)
    labels = [batch[0]["label"][:, 0].tolist() for batch in it]
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7]]


# -- seed 004: Pipeline ------------------------------------------------------------------------------------------------


def test_two_readers(images_dir: str) -> None:
    @pipeline_def
    def my_pipeline():
        """Create a pipeline which reads images and masks, decodes the images and returns them."""
        img_files, labels = fn.readers.file(file_root=images_dir, seed=1)
        mask_files, _ = fn.readers.file(file_root=images_dir, seed=1)
        images = fn.decoders.image(img_files, device="mixed")
        masks = fn.decoders.image(mask_files, device="mixed")
        return images, masks, labels

    pipe = my_pipeline(batch_size=4, num_threads=2, device_id=0)
    images, masks, labels = pipe.run()
    assert [(np.asarray(a.as_cpu()) == np.asarray(b.as_cpu())).all() for a, b in zip(images, masks, strict=True)]
    assert labels.as_array().tolist() == [[0]] * 4


def test_argument_input(images_dir: str) -> None:
    @pipeline_def
    def my_pipeline():
        img_files, labels = fn.readers.file(file_root=images_dir, device="cpu")
        # `images` is GPU data (result of Mixed operator)
        images = fn.decoders.image(img_files, device="mixed")
        # `coin_flip` must be on CPU so the `flip_params` can be used as argument input
        flip_param = fn.random.coin_flip(device="cpu")
        # `images` is input (GPU) and `flip_param` is argument input (CPU)
        flipped = fn.flip(images, horizontal=flip_param, device="gpu")
        # `labels` is explicitly marked for transfer to GPU, `flipped` is already GPU
        return flipped, labels.gpu()

    flipped, labels = my_pipeline(batch_size=4, num_threads=2, device_id=0).run()
    assert flipped.shape() == [(60 + k, 80, 3) for k in (0, 3, 6, 9)]
    assert len(labels) == 4


def test_current_pipeline() -> None:
    def my_source(iteration):
        return np.full((4, 2), iteration), np.ones((4, 1))

    pipe = dali.Pipeline(batch_size=4, num_threads=3, device_id=0)
    with pipe:
        src = dali.ops.ExternalSource(my_source, num_outputs=2)
        a, b = src()
        pipe.set_outputs(a, b)
    first = pipe.run()
    assert first[0].as_array().tolist() == [[0, 0]] * 4

    @dali.pipeline_def(batch_size=4, num_threads=3, device_id=0)
    def my_pipe(my_source):
        return dali.fn.external_source(my_source, num_outputs=2)

    second = my_pipe(my_source).run()
    assert (second[1].as_array() == first[1].as_array()).all()


def test_pipeline_arguments(images_dir: str) -> None:
    @pipeline_def
    def my_pipe(flip_vertical, flip_horizontal):
        """Creates a DALI pipeline, which returns flipped and original images"""
        data, _ = fn.readers.file(file_root=images_dir)
        img = fn.decoders.image(data, device="mixed")
        flipped = fn.flip(img, horizontal=flip_horizontal, vertical=flip_vertical)
        return flipped, img

    pipe = my_pipe(True, False)
    with pytest.raises(ValueError, match="batch_size must be set"):
        pipe.run()  # the pipeline is not configured properly yet
    pipe = my_pipe(True, False, batch_size=32, num_threads=1, device_id=0)
    flipped, img = pipe.run()
    assert (np.asarray(flipped[0].as_cpu()) == np.asarray(img[0].as_cpu())[::-1]).all()

    @pipeline_def(batch_size=42, num_threads=3)
    def fixed(flip_vertical, flip_horizontal):
        return fn.constant(idata=[flip_vertical, flip_horizontal])

    assert fixed(1, 0).max_batch_size == 42
    assert fixed(1, 0, batch_size=128).max_batch_size == 128

    def my_generator():
        yield np.zeros((128, 2))

    @pipeline_def(batch_size=32, num_threads=3)
    def overridden():
        data = fn.external_source(source=my_generator, cycle=True)
        return data

    assert len(overridden(batch_size=128).run()[0]) == 128  # batch_size=128 overrides batch_size=32

    @pipeline_def()
    def asks():
        pipe = Pipeline.current()
        return np.array([pipe.batch_size, pipe.num_threads])

    assert asks(batch_size=42, num_threads=3).run()[0].as_array()[0].tolist() == [42, 3]


def test_conditional_rotation(images_dir: str) -> None:
    need("rotate")

    @pipeline_def(enable_conditionals=True)
    def random_rotate():
        jpegs, _ = fn.readers.file(device="cpu", file_root=images_dir)
        images = fn.decoders.image(jpegs, device="mixed")
        do_rotate = fn.random.coin_flip(probability=0.25, dtype=DALIDataType.BOOL)
        if do_rotate:
            result = fn.rotate(images, angle=fn.random.uniform(range=(10, 30)), fill_value=0)
        else:
            result = images
        return result

    (result,) = random_rotate(batch_size=16, num_threads=2, device_id=0, seed=3).run()
    assert len(result) == 16
    assert 0 < sum(s[1] != 80 for s in result.shape()) < 16


def test_conditional_flip(images_dir: str) -> None:
    @pipeline_def(enable_conditionals=True)
    def random_flip():
        jpegs, _ = fn.readers.file(device="cpu", file_root=images_dir)
        images = fn.decoders.image(jpegs, device="mixed")
        do_flip = fn.random.coin_flip(probability=0.25, dtype=DALIDataType.BOOL)
        if do_flip:
            result = fn.flip(images)
        else:
            result = images
        return result, images, do_flip

    result, images, flags = random_flip(batch_size=16, num_threads=2, device_id=0, seed=3).run()
    assert 0 < flags.as_array().sum() < 16
    for got, image, flag in zip(result, images, flags, strict=True):
        expected = np.asarray(image.as_cpu())
        assert (np.asarray(got.as_cpu()) == (expected[:, ::-1] if np.asarray(flag) else expected)).all()


@do_not_convert
def source_factory(size):
    def source_fun(sample_info):
        return np.full(size, sample_info.iter_idx)

    return source_fun


def source_fun(sample_info):
    return np.full((2, 2), sample_info.iter_idx)


def test_do_not_convert() -> None:
    @pipeline_def(enable_conditionals=True)
    def pipe():
        source = source_factory(size=(2, 1))
        return fn.external_source(source=source, parallel=True, batch=False)

    with contextlib.closing(pipe(batch_size=3, num_threads=1, py_num_workers=1, py_start_method="spawn")) as made:
        made.run()
        assert made.run()[0].as_array().tolist() == [[[1], [1]]] * 3

    @pipeline_def(enable_conditionals=True)
    def outside():
        return fn.external_source(source=source_fun, batch=False)

    assert outside(batch_size=2, num_threads=1).run()[0].as_array().shape == (2, 2, 2)

    @pipeline_def(enable_conditionals=True)
    def inside():
        def source_factory(size):
            def source_fun(sample_info):
                return np.full(size, sample_info.iter_idx)

            return source_fun

        source = source_factory(size=(2, 1))
        return fn.external_source(source=source, parallel=True, batch=False)

    # which the document shows as what must be rewritten: functions inside the definition reach workers all the same
    for method in ("fork", "spawn"):
        with contextlib.closing(inside(batch_size=3, num_threads=1, py_start_method=method)) as made:
            made.run()
            assert made.run()[0].as_array().tolist() == [[[1], [1]]] * 3


def test_pickler_module() -> None:
    dill = pytest.importorskip("dill")

    @pipeline_def(py_callback_pickler=dill, py_start_method="spawn")
    def create_pipeline():
        src = fn.external_source(lambda sample_info: np.int32([42]), batch=False, parallel=True)
        return src

    with contextlib.closing(create_pipeline(batch_size=2, num_threads=1)) as pipe:
        assert pipe.run()[0].as_array().tolist() == [[42], [42]]


def test_named_inputs_of_run() -> None:
    @pipeline_def
    def my_pipe():
        inp = fn.external_source(name="my_inp")
        return inp

    p = my_pipe(prefetch_queue_depth=1, batch_size=2, num_threads=1)
    data = np.random.default_rng(0).random((2, 3, 2))
    assert (p.run(my_inp=data)[0].as_array() == data).all()


def test_debug_mode(images_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = []

    @dali.pipeline.experimental.pipeline_def(debug=True)
    def my_pipe():
        data, _ = fn.readers.file(file_root=images_dir)
        img = fn.decoders.image(data)
        shapes.append(np.array(img.get()[0]).shape)
        return img

    my_pipe(batch_size=2, num_threads=1).run()
    assert shapes == [(60, 80, 3)]

    @dali.pipeline.experimental.pipeline_def(batch_size=8, debug=True)
    def arrays():
        img = [np.random.default_rng(k).random((64, 48, 3)) for k in range(8)]
        output = fn.flip(img)
        return output

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (flipped,) = arrays(num_threads=1).run()
    assert (flipped.at(1) == np.random.default_rng(1).random((64, 48, 3))[:, ::-1]).all()
