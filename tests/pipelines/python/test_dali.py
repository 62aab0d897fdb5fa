"""The same pipelines in NVIDIA's DALI and here, in one process: order, labels, shapes, types, pixels, epochs."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

dali = pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
pytestmark = [pytest.mark.dali, pytest.mark.filterwarnings("ignore")]


class Library:
    """One of the two, under the names of the other."""

    def __init__(self, package: str, **options: Any) -> None:
        self.fn = importlib.import_module(f"{package}.fn")
        self.types = importlib.import_module(f"{package}.types")
        self.ops = importlib.import_module(f"{package}.ops")
        self.math = importlib.import_module(f"{package}.math")
        self.root = importlib.import_module(package)
        self.pipeline = importlib.import_module(f"{package}.pipeline")
        self.options = options

    def build(self, definition: Callable[..., Any], *args: Any, **options: Any) -> Any:
        conditionals = options.pop("enable_conditionals", False)
        factory = self.root.pipeline_def(definition, enable_conditionals=conditionals)
        given = {"batch_size": 4, "num_threads": 2, "device_id": None, "seed": 11, **self.options, **options}
        pipe = factory(self, *args, **given)
        pipe.build()
        return pipe


@pytest.fixture(scope="module")
def theirs() -> Library:
    return Library("nvidia.dali")


@pytest.fixture(scope="module")
def ours() -> Library:
    return Library("dali_run", rng="dali")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for k in range(10):
        y, x = np.mgrid[: 60 + 7 * k, : 90 - 4 * k]
        pixels = np.stack([x * 3 % 256, y * 4 % 256, (x + y + 10 * k) % 256], -1).astype(np.uint8)
        (folder / f"c{k % 3}").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"c{k % 3}" / f"{k:03d}.jpg", quality=92)
    return folder


def samples(outputs: Any) -> list[list[np.ndarray]]:
    return [[np.array(t.at(i)) for i in range(len(t))] for t in outputs]


def compare(theirs: Library, ours: Library, definition: Callable[..., Any], *args: Any, runs: int = 3, atol: float = 0,
            **options: Any) -> None:  # fmt: skip
    """Equal outputs: count, types, layouts, shapes, and values within ``atol``."""
    a, b = theirs.build(definition, *args, **options), ours.build(definition, *args, **options)
    for _ in range(runs):
        expected, got = a.run(), b.run()
        assert len(got) == len(expected)
        assert [int(t.dtype) for t in got] == [int(t.dtype) for t in expected]
        assert [t.layout() for t in got] == [t.layout() for t in expected]
        for one, other in zip(samples(expected), samples(got), strict=True):
            assert [s.shape for s in other] == [s.shape for s in one]
            for x, y in zip(one, other, strict=True):
                np.testing.assert_allclose(y.astype(np.float64), x.astype(np.float64), atol=atol, rtol=0)


def test_train_chain(theirs: Library, ours: Library, root: Path) -> None:
    def train(lib):
        jpegs, labels = lib.fn.readers.file(file_root=str(root), random_shuffle=True, name="Reader")
        images = lib.fn.decoders.image_random_crop(jpegs, output_type=lib.types.RGB)
        images = lib.fn.resize(images, resize_x=64, resize_y=64)
        mirror = lib.fn.random.coin_flip()
        images = lib.fn.crop_mirror_normalize(images, crop=(56, 56), mean=[123.0, 116.0, 103.0], std=[58.0, 57.0, 57.0],
                                              mirror=mirror)  # fmt: skip
        return images, labels, mirror

    compare(theirs, ours, train, atol=0.05)


def test_validation_chain(theirs: Library, ours: Library, root: Path) -> None:
    def val(lib):
        jpegs, labels = lib.fn.readers.file(file_root=str(root))
        images = lib.fn.decoders.image(jpegs, output_type=lib.types.RGB)
        resized = lib.fn.resize(images, resize_shorter=64, interp_type=lib.types.INTERP_TRIANGULAR)
        return images, resized, lib.fn.crop_mirror_normalize(resized, crop=(56, 56), std=[255.0]), labels

    compare(theirs, ours, val, atol=1.0)


def test_legacy_classes(theirs: Library, ours: Library, root: Path) -> None:
    def run(lib: Library) -> list[list[list[np.ndarray]]]:
        class Pipe(lib.pipeline.Pipeline):
            def __init__(self):
                super().__init__(4, 2, None, seed=12, **lib.options)
                self.input = lib.ops.FileReader(file_root=str(root), random_shuffle=True)
                self.decode = lib.ops.ImageDecoderRandomCrop(
                    device="cpu", output_type=lib.types.RGB, random_aspect_ratio=[0.8, 1.25], random_area=[0.6, 1.0],
                    num_attempts=100,
                )  # fmt: skip
                self.res = lib.ops.Resize(device="cpu", resize_x=32, resize_y=32,
                                          interp_type=lib.types.INTERP_TRIANGULAR)  # fmt: skip
                self.cmnp = lib.ops.CropMirrorNormalize(device="cpu", dtype=lib.types.FLOAT, crop=(32, 32),
                                                        mean=[0.0], std=[1.0])  # fmt: skip
                self.coin = lib.ops.CoinFlip(probability=0.5)

            def define_graph(self):
                rng = self.coin()
                self.jpegs, self.labels = self.input(name="Reader")
                return [self.cmnp(self.res(self.decode(self.jpegs)), mirror=rng), self.labels]

        pipe = Pipe()
        pipe.build()
        assert pipe.epoch_size("Reader") == 10
        return [samples(pipe.run()) for _ in range(3)]

    for a, b in zip(run(theirs), run(ours), strict=True):
        assert [x.tolist() for x in a[1]] == [x.tolist() for x in b[1]]
        np.testing.assert_allclose(np.stack(b[0]), np.stack(a[0]), atol=1)


@pytest.mark.parametrize("options", [{}, {"random_shuffle": True}, {"shuffle_after_epoch": True},
                                     {"num_shards": 3, "shard_id": 1}, {"pad_last_batch": True},
                                     {"random_shuffle": True, "initial_fill": 4, "num_shards": 2}])  # fmt: skip
def test_readers(options: dict[str, Any], theirs: Library, ours: Library, root: Path) -> None:
    def read(lib):
        data, labels = lib.fn.readers.file(file_root=str(root), name="Reader", **options)
        return data, labels

    compare(theirs, ours, read, runs=12)
    metas = [lib.build(read).reader_meta("Reader") for lib in (theirs, ours)]
    assert {k: int(v) for k, v in metas[1].items()} == {k: int(v) for k, v in metas[0].items()}


def test_random_numbers(theirs: Library, ours: Library) -> None:
    def draws(lib):
        return (
            lib.fn.random.uniform(range=(2.0, 3.0)),
            lib.fn.random.coin_flip(probability=0.3),
            lib.fn.random.uniform(values=[1.0, 5.0, 7.0], shape=[3]),
            lib.fn.random.normal(stddev=2.0),
            lib.fn.random.uniform(range=(2.0, 3.0), seed=5),
        )

    compare(theirs, ours, draws, atol=1e-5)


def test_arithmetic(theirs: Library, ours: Library) -> None:
    def calculate(lib):
        source = lib.fn.external_source
        u8 = source(lambda: np.arange(250, 258).astype(np.uint8).reshape(4, 2))
        i16 = source(lambda: np.arange(-3, 5).astype(np.int16).reshape(4, 2))
        f = source(lambda: np.linspace(-2, 2, 8, dtype=np.float32).reshape(4, 2))
        return (
            u8 + 10, u8 * 2.5, u8 + u8, u8 - i16, u8 / 3, i16 // 2, i16 % 3, f**2, -i16, ~u8, u8 & 15, u8 > i16,
            (f > 0) | (u8 == 0), 1 - f, 2 / f, lib.math.sqrt(u8), lib.math.clamp(f, -1, 1), lib.math.floor(f),
            u8 + lib.types.Constant(100).uint8(), lib.math.atan2(f, i16), abs(i16) if False else lib.math.abs(i16),
        )  # fmt: skip

    compare(theirs, ours, calculate, runs=1, atol=1e-6)


def test_indexing(theirs: Library, ours: Library) -> None:
    data = [np.arange((k + 2) * 3, dtype=np.int32).reshape(k + 2, 3) for k in range(4)]

    def index(lib):
        x = lib.fn.external_source(lambda: data, layout="HW")
        at = lib.fn.external_source(lambda: np.array([0, 1, -1, 1]))
        new = lib.root.newaxis
        slices = x[1:], x[:-1, 1:], x[:, ::-1], x[at:], x[100:]
        return (x[0], x[-1], x[:, 1], x[at], x[0, 1], x[:, new], x[new("C"), 0], x.shape(), *slices)

    compare(theirs, ours, index, runs=1)


def test_outputs_that_are_no_nodes(theirs: Library, ours: Library) -> None:
    def values(lib):
        return (5, 2.5, True, np.array([1, 2]), np.array([1.5]), np.float32([3]), [1, 2], lib.types.Constant(3),
                lib.types.Constant([1.5, 2]), lib.types.Constant(7, shape=(2,), dtype=lib.types.UINT8))  # fmt: skip

    compare(theirs, ours, values, runs=1)


def test_conditionals(theirs: Library, ours: Library) -> None:
    def branches(lib):
        x = lib.fn.external_source(lambda i: np.arange(4, dtype=np.int32) + i)
        flag = lib.fn.random.coin_flip(dtype=lib.types.BOOL)
        if flag:
            y = x + lib.fn.random.uniform(range=(0, 100), dtype=lib.types.INT32)
        elif x > 3:
            y = x * 1000
        else:
            y = -x
        z = flag and (x > 1)
        return y, flag, z, not flag or z

    compare(theirs, ours, branches, runs=4, enable_conditionals=True)


def test_seeds_in_conditionals_and_arguments(theirs: Library, ours: Library, root: Path) -> None:
    """They are dealt out in the same order."""

    def branches(lib):
        random = lib.fn.random
        first, second = (random.coin_flip(dtype=lib.types.BOOL) for _ in range(2))
        if first:
            y = random.normal()
            if second:
                y = y + random.uniform(range=(10, 20))
        elif second:
            y = random.uniform()
        else:
            y = random.uniform()
        image = lib.fn.decoders.image(lib.fn.readers.file(file_root=str(root))[0])
        if first:
            image = lib.fn.resize(image, resize_y=random.uniform(range=(3, 9)), resize_x=random.uniform(range=(3, 9)))
        return y, image.shape(), random.normal(stddev=random.uniform(), mean=random.uniform()), second, first

    compare(theirs, ours, branches, runs=3, atol=1e-6, enable_conditionals=True)


def sequence(pipe: Any, n: int) -> list[Any]:
    out: list[Any] = []
    while len(out) < n:
        try:
            out.append([np.array(s).tolist() for s in samples(pipe.run())[0]])
        except StopIteration:
            out.append("end")
            pipe.reset()
    return out


def test_sources(theirs: Library, ours: Library) -> None:
    batches = [np.full((4, 1), k) for k in range(3)]

    def generator():
        yield from batches

    def stops(i):
        if i == 2:
            raise StopIteration
        return np.full((4, 1), i)

    def by_sample(info):
        if info.iteration == 2:
            raise StopIteration
        return np.array([info.idx_in_epoch, info.idx_in_batch, info.iteration, info.epoch_idx])

    def short(info):
        if info.idx_in_epoch == 6:
            raise StopIteration
        return np.array([info.idx_in_epoch])

    def batch_info(info):
        return np.full((4, 2), [info.iteration, info.epoch_idx])

    cases: list[tuple[Any, dict[str, Any]]] = [
        *((s, {"cycle": c}) for s in (batches, generator) for c in (None, "raise", "quiet")),
        (stops, {}), (by_sample, {"batch": False}), (short, {"batch": False}), (batch_info, {"batch_info": True}),
        ([np.array([k]) for k in range(6)], {"batch": False}), (lambda x=3: np.full((4, 1), x), {}),
        (lambda i: np.full((i % 4 + 1, 2), i), {}),
    ]  # fmt: skip
    for source, arguments in cases:
        results = []
        for lib in (theirs, ours):
            pipe = lib.build(lambda lib, s=source, a=arguments: lib.fn.external_source(s, **a))
            results.append(sequence(pipe, 8))
        assert results[1] == results[0], (source, arguments)


def test_prefetching_calls(theirs: Library, ours: Library) -> None:
    counts = []
    for lib in (theirs, ours):
        own = []
        for depth in (1, 2, 3):
            asked: list[int] = []
            pipe = lib.build(lambda lib, a=asked: lib.fn.external_source(lambda i: a.append(i) or np.zeros((4, 1))),
                             prefetch_queue_depth=depth)  # fmt: skip
            for _ in range(2):
                pipe.run()
                own.append(list(asked))
        counts.append(own)
    assert counts[1] == counts[0]


def test_schedule_and_share(theirs: Library, ours: Library, root: Path) -> None:
    def read(lib):
        return lib.fn.readers.file(file_root=str(root))[1]

    results = []
    for lib in (theirs, ours):
        pipe = lib.build(read)
        got = []
        pipe.schedule_run()
        for _ in range(4):
            got.append([s.tolist() for s in samples(pipe.share_outputs())[0]])
            pipe.release_outputs()
            pipe.schedule_run()
        results.append(got)
    assert results[1] == results[0]


def test_python_function(theirs: Library, ours: Library) -> None:
    def call(lib):
        x = lib.fn.external_source(lambda: np.arange(8, dtype=np.float32).reshape(4, 2))
        a, b = lib.fn.python_function(x, function=lambda v: (v * 2, v[:1]), num_outputs=2)
        return a, b, lib.fn.python_function(x, function=lambda vs: [v + 1 for v in vs], batch_processing=True)

    compare(theirs, ours, call, exec_dynamic=False)
