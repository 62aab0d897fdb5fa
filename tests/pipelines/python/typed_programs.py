"""Programs of users, as type checkers see them: `make lint` runs mypy on this file; pyright finds no error either."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import dali_run
import dali_run.dynamic as ndd
import dali_run.fn as fn
import dali_run.math as dmath
import dali_run.ops as ops
import dali_run.tfrecord as tfrec
import dali_run.types as types
from dali_run import Pipeline, pipeline_def
from dali_run.backend import TensorListCPU
from dali_run.data_node import DataNode
from dali_run.pipeline import do_not_convert, experimental
from dali_run.pipeline.experimental import pipeline_def as debug_pipeline_def
from dali_run.plugin.base_iterator import LastBatchPolicy
from dali_run.plugin.numpy import DALIGenericIterator
from dali_run.tensors import TensorCPU, TensorList


@pipeline_def
def simple() -> Any:
    jpegs, labels = fn.readers.file(file_root="x", random_shuffle=True, name="Reader")
    images = fn.decoders.image(jpegs, device="mixed", output_type=types.RGB)
    images = fn.resize(images, size=(256, 256), interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(224, 224),
        mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
        std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
        mirror=fn.random.coin_flip(probability=0.5),
    )
    return images, labels.gpu()


@pipeline_def(batch_size=4, num_threads=2, device_id=None, enable_conditionals=True, seed=1)
def conditional(root: str, flag: bool = True) -> Any:
    jpegs, labels = fn.readers.file(file_root=root, shard_id=0, num_shards=2, stick_to_shard=True, pad_last_batch=True)
    images = fn.decoders.image(jpegs)
    if fn.random.coin_flip(dtype=types.BOOL):
        images = fn.rotate(images, angle=fn.random.uniform(range=(-10.0, 10.0)), fill_value=0, keep_size=True)
    else:
        images = fn.flip(images, horizontal=1)
    x = images * 2 + 1 - images / 3.0
    y = (x > 5) & (x != 7) | ~(x <= 2)
    z = x[0:10, :, ::-1] if flag else x
    s = images.shape()[0]
    w = dmath.clamp(dmath.sqrt(x), 0, 255)
    i = types.Constant(np.array([1, 2, 3]), dtype=types.INT32)
    j = types.Constant(3).uint8()
    return images, labels, y, z, s, w, i, images + j, fn.cast(images, dtype=types.UINT8)


p = simple(batch_size=3, num_threads=1, device_id=0)
p.build()
outs = p.run()
a = outs[0].as_cpu().as_array()
t = outs[0].as_tensor()
one = outs[1].at(0)
n: int = len(outs[0])
layout: str = outs[0].layout()
p2 = conditional("x", batch_size=2, num_threads=3)
q = conditional("y", flag=False)
meta = p.reader_meta("Reader")
size: int = p.epoch_size("Reader")
state: bytes = p.checkpoint()
Pipeline.deserialize(p.serialize())
yaml: str = p.to_yaml()


class Legacy(Pipeline):
    def __init__(self, batch_size: int, num_threads: int, device_id: int):
        super().__init__(batch_size, num_threads, device_id, seed=12)
        self.input = ops.readers.File(file_root="x", random_shuffle=True)
        self.decode = ops.decoders.Image(device="mixed", output_type=types.RGB)
        self.res = ops.Resize(device="gpu", resize_x=224, resize_y=224)
        self.old = ops.FileReader(file_root="x")
        self.coin = ops.random.CoinFlip(probability=0.5)
        self.cmn = ops.CropMirrorNormalize(device="gpu", dtype=types.FLOAT, crop=(224, 224))

    def define_graph(self) -> Any:
        jpegs, labels = self.input(name="Reader")
        images = self.decode(jpegs)
        images = self.res(images)
        return self.cmn(images, mirror=self.coin()), labels


def source(info: types.SampleInfo) -> Any:
    return np.zeros((2, 2)), np.int32(info.idx_in_epoch)


with Pipeline(batch_size=2, num_threads=1, prefetch_queue_depth={"cpu_size": 3, "gpu_size": 2}) as pipe:
    img, lab = fn.external_source(source, num_outputs=2, batch=False, parallel=False, dtype=[types.FLOAT, types.INT32])
    single = fn.external_source(lambda: [np.zeros(2)], name="in")
    feats = fn.readers.tfrecord(
        path=["a"],
        index_path=["b"],
        features={
            "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
            "label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
        },
    )
    enc = feats["image/encoded"]
    res = fn.python_function(single, function=lambda x: x * 2)
    stacked = fn.stack(img, img)
    cat = fn.cat(img, img, axis=1)
    pipe.set_outputs(img, lab, single, enc, res, stacked, cat)

it = DALIGenericIterator(
    [pipe], ["a", "b"], reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
)
normalized = fn.crop_mirror_normalize(img, mean=np.array([1.0, 2.0]), crop=np.array([2, 2]))
shown = np.array(normalized.get()[0])  # in debug mode
for data in it:
    arr = data[0]["a"]
k = len(it)


@experimental.pipeline_def(debug=True, batch_size=2, num_threads=1)
def dbg() -> Any:
    return fn.random.uniform(range=(0, 1))


@do_not_convert
def factory() -> Any:
    return 1


loaded: Pipeline = dali_run.load_spec("spec.yaml", {"data": "."}, batch_size=3)
names: tuple[str, ...] = loaded.output_names
by_name = DALIGenericIterator(loaded, reader_name="Reader")
batch: TensorList = loaded.run()[0]
batch.set_layout(types.TensorLayout("HWC"))
batch.reinterpret(types.INT32)
batch.copy_to_external(ctypes.c_void_p(1), types.CUDAStream(0), non_blocking=True)
repeated: TensorListCPU = TensorListCPU.broadcast(TensorCPU([1, 2]), 3)
changed: bool = repeated[0].squeeze()


@debug_pipeline_def(debug=True, batch_size=2)
def stepwise() -> DataNode:
    return fn.random.uniform(range=(0.0, 1.0))


def dynamic(path: str) -> list[ndd.Batch]:
    reader = ndd.readers.File(file_root=path, random_shuffle=True, seed=1)
    rng = ndd.random.RNG(seed=2)
    found = []
    for encoded, labels in reader.next_epoch(batch_size=8, capture=True):
        images: ndd.Batch = ndd.decoders.image(ndd.as_batch(encoded), output_type=types.RGB)
        turned = ndd.rotate(images, angle=ndd.random.uniform(range=[-10.0, 10.0], batch_size=8, rng=rng))
        found.append(ndd.resize(turned, size=[224, 224]))
        sizes: list[tuple[int, ...]] = found[-1].shape
        print(sizes, labels)
    one: ndd.Tensor = ndd.flip(ndd.tensor(np.zeros((4, 5, 3), np.uint8), layout="HWC"))
    shape: tuple[int, ...] = one.shape
    with ndd.EvalMode.deferred, ndd.EvalContext(num_threads=2):
        print(shape, (one + 1)[0, ::2], ndd.math.sqrt(one), ndd.dtype("u8").type_id)
    return found
