"""Serialized pipelines of DALI's, what it gives for them, and its names of all operators: tests/golden/serialized.npz.

Run it with a Python that has DALI 2.4: python tests/golden/make_serialized.py
"""

import io
from pathlib import Path

import numpy as np
import nvidia.dali.tfrecord as tfrec
from nvidia.dali import Pipeline, backend, fn, math, newaxis, pipeline_def, types
from PIL import Image

CPU = {"batch_size": 4, "num_threads": 1, "device_id": None, "seed": 12}


@pipeline_def(**CPU)
def arithmetic():
    a = fn.external_source(name="a", dtype=types.UINT8, ndim=1)
    b = fn.external_source(name="b", dtype=types.FLOAT, ndim=1)
    k = fn.external_source(name="k", dtype=types.INT32, ndim=1)
    two = types.Constant(2).uint8()
    sums = (a + 3, a - b, -b, 0.3 * b, a / 2, k // 7, k % 5, k**2, +k, ~a, (a & 15) | (a ^ two), k << 2, k >> two)
    comparisons = (a < 100, a <= b, a > k, a >= 7, a == 7, a != k)
    wave = (
        math.sin(b),
        math.sqrt(math.abs(b)),
        math.clamp(b, -1, 1.5),
        math.min(a, k),
        math.max(b, 0.5),
        math.fpow(k, 0.5),
    )
    return (
        *sums,
        *comparisons,
        *wave,
        math.atan2(b, 2.0),
        abs(k),
        types.Constant(True) & (a > 3),
        b - types.Constant(2.5).float64(),
    )


@pipeline_def(**CPU)
def pictures():
    encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
    images = fn.decoders.image(encoded, output_type=types.RGB)
    angles = fn.random.uniform(range=[-20.0, 20.0], name="angles", seed=5)
    turned = fn.rotate(images, angle=angles, fill_value=0, keep_size=True)
    small = fn.resize(turned, size=[16, 20.0], interp_type=types.INTERP_TRIANGULAR, antialias=False)
    mirror = fn.random.coin_flip(probability=0.3)
    crops = fn.crop_mirror_normalize(
        small,
        crop=(12, 14),
        crop_pos_x=fn.random.uniform(range=[0.0, 1.0]),
        mirror=mirror,
        dtype=types.FLOAT,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        output_layout="CHW",
    )
    return crops, angles, mirror, images.shape(dtype=types.INT32)


@pipeline_def(**CPU)
def indexing():
    x = fn.external_source(name="x", dtype=types.FLOAT, ndim=3, layout="HWC")
    i = fn.external_source(name="i", dtype=types.INT32, ndim=0)
    return x[1], x[0:2, :, -1], x[i], x[i:, 1:3], x[:, ::2], x[:, newaxis], x[:, :, newaxis("F"), 1], x[:-1, i]


@pipeline_def(**CPU)
def arrays():
    x = fn.external_source(name="x", dtype=types.UINT8, ndim=2, layout="HW")
    table = types.Constant(np.arange(6, dtype=np.float32).reshape(2, 3), layout="AB")
    wide = fn.pad(x, axes=[1], shape=[9], fill_value=7)
    return (
        table,
        wide,
        fn.cast(x, dtype=types.FLOAT16),
        fn.transpose(x, perm=[1, 0]),
        fn.reductions.mean(x, axes=[0]),
        fn.stack(x, x, axis=0),
        fn.cat(x, x, axis_name="W"),
        fn.flip(fn.expand_dims(x, axes=[2], new_axis_names="C"), horizontal=1, vertical=0),
        fn.reshape(x, shape=[-1]),
        fn.one_hot(x[0, 0] % 4, num_classes=4),
        fn.reinterpret(x, dtype=types.INT8),
        fn.lookup_table(x, keys=[1, 2, 3], values=[10, 20, 30], default_value=5, dtype=types.INT32),
        fn.expand_dims(x, axes=[0, 2], new_axis_names="NC"),
        fn.slice(x, start=[0.0, 0.2], end=[0.5, 0.9]),
        types.Constant([1, 2, 3], dtype=types.INT16),
    )


@pipeline_def(enable_conditionals=True, **CPU)
def conditionals():
    x = fn.external_source(name="x", dtype=types.FLOAT, ndim=0)
    chosen = fn.external_source(name="chosen", dtype=types.BOOL, ndim=0)
    if chosen:
        y = x * 2
        if not (x > 0.5 and chosen):
            y = y + fn.random.uniform(range=[1.0, 2.0])
        elif x < 0.7 or chosen == False:  # noqa: E712
            y = y + types.Constant(np.float32(3))
        z = x
    else:
        y = -x
        z = fn.cast(fn.random.normal(), dtype=types.FLOAT) + y
    return y, z, chosen


@pipeline_def(**CPU)
def sources():
    files, labels = fn.readers.file(
        file_root="/data/pictures",
        files=["a.bin", "b.bin", "c.bin"],
        labels=[3, 4, 5],
        random_shuffle=True,
        initial_fill=2,
        name="Reader",
        shard_id=1,
        num_shards=2,
        pad_last_batch=True,
    )
    features = {
        "image": tfrec.FixedLenFeature((), tfrec.string, ""),
        "label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
        "box": tfrec.VarLenFeature([4], tfrec.float32, 0.0),
        "points": tfrec.FixedLenFeature([2, 3], tfrec.float32, 0.5),
    }  # fmt: skip
    found = fn.readers.tfrecord(path="/data/x.tfrecord", index_path="/data/x.idx", features=features)
    pair = fn.external_source(
        source=lambda: ([], []), num_outputs=2, layout=["HWC", ""], dtype=[types.UINT8, types.INT64]
    )
    return files, labels, found["image"], found["label"], found["box"], found["points"], *pair


def jpeg(seed: int) -> np.ndarray:
    """A picture of slow waves, as a JPEG of good quality."""
    y, x = np.mgrid[0:24, 0 : 30 + seed]
    rows = [128 + 100 * np.sin((x + seed * y) / (7 + c)) for c in range(3)]
    file = io.BytesIO()
    Image.fromarray(np.stack(rows, -1).astype(np.uint8)).save(file, "JPEG", quality=95)
    return np.frombuffer(file.getvalue(), np.uint8)


def inputs() -> dict[str, dict[str, list[np.ndarray]]]:
    rng = np.random.default_rng(7)
    return {
        "arithmetic": {
            "a": [rng.integers(0, 256, 6, np.uint8) for _ in range(4)],
            "b": [rng.normal(0, 2, 6).astype(np.float32) for _ in range(4)],
            "k": [rng.integers(1, 300, 6, np.int32) for _ in range(4)],
        },
        "pictures": {"encoded": [jpeg(k) for k in range(4)]},
        "indexing": {
            "x": [rng.normal(0, 1, (3 + k, 5, 3)).astype(np.float32) for k in range(4)],
            "i": [np.array(k % 3, np.int32) for k in range(4)],
        },
        "arrays": {"x": [rng.integers(0, 6, (3 + k, 4 + k), np.uint8) for k in range(4)]},
        "conditionals": {
            "x": [np.array(v, np.float32) for v in (0.1, 0.6, 0.9, 0.4)],
            "chosen": [np.array(v) for v in (True, True, True, False)],
        },
    }


def schema_names() -> list[str]:
    """``fn.name=schema`` of every operator."""
    found = {}

    def walk(module, prefix):
        for name in dir(module):
            value = getattr(module, name)
            schema = getattr(value, "_schema_name", None)
            if isinstance(schema, str):
                found[prefix + name] = schema
            elif type(value).__name__ == "module" and value.__name__.startswith("nvidia.dali.fn."):
                walk(value, f"{prefix}{name}.")

    walk(fn, "")
    return [f"{k}={v}" for k, v in sorted(found.items())]


def main() -> None:
    saved: dict[str, np.ndarray] = {}
    fed = inputs()
    for definition in (arithmetic, pictures, indexing, arrays, conditionals, sources):
        name = definition.__name__
        pipe = definition()
        saved[f"{name}/file"] = np.frombuffer(pipe.serialize(), np.uint8)
        if name not in fed:
            continue
        for key, samples in fed[name].items():
            for k, sample in enumerate(samples):
                saved[f"{name}/input/{key}/{k}"] = sample
        pipe = Pipeline.deserialize(pipe.serialize(), prefetch_queue_depth=1)
        for key, samples in fed[name].items():
            pipe.feed_input(key, samples)
        for n, output in enumerate(pipe.run()):
            for k in range(len(output)):
                saved[f"{name}/output/{n}/{k}"] = np.array(output.at(k))
    saved["schemas"] = np.array(schema_names())
    np.savez_compressed(Path(__file__).with_name("serialized.npz"), **saved)
    print(len(saved["schemas"]), "operators", backend.__name__)


if __name__ == "__main__":
    main()
