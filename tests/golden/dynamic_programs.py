"""Small programs of the dynamic mode that run on NVIDIA's DALI and here: `PROGRAMS` by name, each of the module and a
folder with files. make_dynamic.py stores what DALI makes of them, tests/pipelines/dynamic/test_as_dali.py compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

IMAGE = (np.arange(12 * 14 * 3) * 7 % 251).astype(np.uint8).reshape(12, 14, 3)
MASK = (np.arange(30) // 10).reshape(5, 6).astype(np.uint8)
BOXES = np.array([[0.1, 0.1, 0.5, 0.5], [0.3, 0.3, 0.9, 0.9]], np.float32)


def files(folder: Path) -> str:
    """Five files of 3, 4, ... 7 bytes in two folders, and a list of them with labels 0 ... 4."""
    for k in range(5):
        below = folder / ("a" if k < 3 else "b")
        below.mkdir(exist_ok=True, parents=True)
        (below / f"{k}.bin").write_bytes(bytes(range(k, 2 * k + 3)))
    (folder / "list.txt").write_text("".join(f"{'a' if k < 3 else 'b'}/{k}.bin {k}\n" for k in range(5)))
    return str(folder)


def plain(ndd: Any, value: Any) -> Any:
    """A result as JSON can hold it: types, shapes, layouts and all values."""
    if isinstance(value, ndd.Tensor):
        array = np.array(value)
        return {"dtype": str(value.dtype), "layout": value.layout, "shape": list(value.shape),
                "values": array.astype(np.float64).ravel().tolist()}  # fmt: skip
    if isinstance(value, ndd.Batch):
        return {"batch": [plain(ndd, t) for t in value.tensors]}
    if isinstance(value, (list, tuple)):
        return [plain(ndd, v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(ndd, v) for k, v in value.items()}
    return value if isinstance(value, (int, float, bool, type(None))) else str(value)


def raised(ndd: Any, work: Callable[[], Any]) -> str:
    """Which of Python's own exceptions ``work`` ends with."""
    try:
        work()
    except Exception as e:
        kinds = (TypeError, ValueError, IndexError, KeyError, StopIteration, RuntimeError)
        return next((k.__name__ for k in kinds if isinstance(e, k)), "another")
    return "nothing"


PROGRAMS: dict[str, Callable[[Any, str], Any]] = {}


def program(work: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    PROGRAMS[work.__name__] = work
    return work


@program
def tensors(ndd: Any, root: str) -> Any:
    t = ndd.tensor
    made = [[1, 2, 3], [1.0, 2.5], True, 5, np.zeros(2), np.arange(2), [[1, 2], [3, 4]], np.int64(3), [True, False],
            np.float16([1]), [np.float64(1), np.float64(2)]]  # fmt: skip
    typed = t(np.float64([1.7, 3.2]), dtype=ndd.uint8), t([1], dtype=np.float64), t([1.5], dtype=ndd.float16)
    facts = t([[1, 2, 3]], layout="HW")
    return [t(v) for v in made], typed, facts, facts.size, facts.nbytes, facts.itemsize, facts.ndim, t(5).item()


@program
def memory(ndd: Any, root: str) -> Any:
    x = np.zeros(3, np.int32)
    view, copy = ndd.as_tensor(x), ndd.tensor(x)
    x[0] = 7
    return view, copy, view.cpu() is view, view.to_device("cpu", force_copy=True) is view


@program
def batches(ndd: Any, root: str) -> Any:
    b = ndd.batch([[1, 2], [3, 4]])
    ragged = ndd.batch([[1], [2, 3]])
    facts = b.batch_size, b.ndim, b.shape, str(b.dtype), b.layout, len(b.tensors), len(list(b))
    return (b, ragged, facts, ndd.batch([1, 2]), ndd.batch([], dtype=ndd.uint8).batch_size, ndd.batch(b), b.select(0),
            ndd.batch(np.zeros((2, 2, 2, 3), np.uint8), layout="HWC"), ndd.Batch.broadcast([1, 2], 3), b.tensors[-1],
            ndd.tensor(b), ndd.tensor(ragged, pad=True), ndd.batch([np.zeros(2, np.uint8), np.ones(2, np.int32)]),
            ndd.tensor(ndd.batch(np.zeros((2, 2, 2, 3), np.uint8), layout="HWC")).layout)  # fmt: skip


@program
def indices(ndd: Any, root: str) -> Any:
    t, m = ndd.tensor([1, 2, 3]), ndd.tensor([[1, 2], [3, 4]])
    b = ndd.batch([[1, 2], [3, 4]])
    return (t[0], t[-1], t[::2], t[::-1], t[1:], t[:5], t[ndd.tensor(1)], t[np.int64(1)], m[..., 0], m[0, ...], m[1, 1],
            m[:, 1:], b.slice[0], b.slice[1:], b.slice[ndd.batch([0, 1])])  # fmt: skip


@program
def calculations(ndd: Any, root: str) -> Any:
    a, u = ndd.tensor([1, -2, 3]), ndd.tensor(np.uint8([200, 7, 0]))
    b = ndd.batch([[1, 2], [3, 4]])
    return (a + 1, 1 - a, a * 2.0, a / 2, a // 2, a % 2, a**2, u + u, u * 2, -a, abs(a), ~a, a & 1, a | 4, a ^ 1,
            u << 1, u >> 1, a < 2, a == a, a != 1, a >= 1, a + np.array([1, 2, 3]), a + [1, 2, 3], u + np.uint8(1),
            u + np.int16(1), u + np.float64(1), b + ndd.tensor([1, 1]), b + 1, b + b, b + [1, 2],
            ndd.math.sqrt(u), ndd.math.max(a, 0), ndd.math.clamp(a, 0, 2), ndd.math.atan2(a, 1.0))  # fmt: skip


@program
def calls(ndd: Any, root: str) -> Any:
    image = ndd.tensor(IMAGE, layout="HWC")
    several = ndd.batch([IMAGE, IMAGE[:8, :6].copy()], layout="HWC")
    return (ndd.flip(image), ndd.flip(several, horizontal=ndd.batch([0, 1])), ndd.cast([1, 2], dtype=ndd.float32),
            ndd.cast(3, dtype=ndd.uint8), ndd.flip(np.ascontiguousarray(IMAGE[:2, :2])),
            ndd.flip(ndd.tensor(IMAGE[:2, :2].copy(), layout="HWC"), batch_size=2),
            ndd.cat(several, several, axis=0).shape,
            ndd.rotate(image, angle=ndd.batch([0.0, 90.0])).shape, ndd.rotate(image, angle=ndd.tensor(90.0)).shape,
            ndd.rotate(image, angle=np.float32(90)).shape, ndd.resize(image, size=ndd.tensor([8.0, 9.0])).shape,
            ndd.resize(several, size=ndd.batch([[3, 4], [5, 6]])).shape, ndd.reshape(image, shape=[-1]).shape,
            ndd.crop_mirror_normalize(image, crop=[2, 2], mean=[1.0, 2.0, 3.0], dtype=ndd.float32),
            ndd.zeros(shape=[2]), ndd.zeros(shape=[2], batch_size=2), ndd.ones_like(ndd.batch([[1], [2, 3]])),
            ndd.stack(ndd.tensor([1, 2]), ndd.tensor([3, 4])), ndd.reductions.sum(ndd.batch([[1, 2], [3]])),
            ndd.get_property(image, key="layout"), ndd.permute_batch(ndd.batch([1, 2, 3]), indices=[2, 1, 0]),
            type(ndd.nonsilent_region(ndd.tensor(np.zeros(100, np.float32)))).__name__)  # fmt: skip


@program
def errors(ndd: Any, root: str) -> Any:
    image, b = ndd.tensor(IMAGE, layout="HWC"), ndd.batch([[1, 2], [3, 4]])
    works: list[Callable[[], Any]] = [
        lambda: ndd.flip(image, foo=3), lambda: ndd.flip(image, name="x"), lambda: ndd.flip(), lambda: ndd.flip(None),
        lambda: ndd.flip(image, image), lambda: ndd.cast(image), lambda: ndd.cast(image, dtype=ndd.tensor(3)),
        lambda: ndd.resize(image, size="x"), lambda: ndd.tensor([[1, 2]], layout="H"), lambda: ndd.tensor(None),
        lambda: b + ndd.batch([[1, 2]]), lambda: ndd.batch([]), lambda: ndd.batch(3), lambda: b[0], lambda: len(b),
        lambda: len(image), lambda: hash(image), lambda: int(ndd.tensor(3)), lambda: ndd.tensor([5, 6]).item(),
        lambda: b.tensors[5], lambda: ndd.random.uniform(seed=3), lambda: ndd.Device("tpu"),
        lambda: ndd.Device("cpu", 0),
        lambda: ndd.device(3), lambda: ndd.dtype("nonsense"), lambda: ndd.set_num_threads(0),
        lambda: ndd.random.RNG(seed=1, state=ndd.random.RNG(seed=1).state), lambda: ndd.random.RNG(seed=1).seed,
        lambda: ndd.random.RNG(seed=1).advance(-1), lambda: ndd.random.RNG(state="x"),
        lambda: ndd.readers.File(foo=3), lambda: ndd.readers.File(file_root=root).next_epoch(capture=True).__next__(),
        lambda: ndd.checkpoint.Checkpoint().serialize(), lambda: ndd.checkpoint.Checkpoint().get_state("x"),
        lambda: ndd.checkpoint.Checkpoint().register(ndd.random.RNG(seed=1), "__op_x"),
        lambda: ndd.ExternalSource(3), lambda: ndd.ExternalSource(lambda: 1, cycle="quiet"),
        lambda: ndd.ExternalSource(lambda i: i), lambda: ndd.ExternalSource(lambda: (1, 2, 3), num_outputs=2)(),
        lambda: ndd.EvalContext(num_threads=2, thread_pool=ndd.ThreadPool(2, device_id=None)),
    ]  # fmt: skip
    return [raised(ndd, w) for w in works]


@program
def generators(ndd: Any, root: str) -> Any:
    g = ndd.random.RNG(seed=7)
    drawn = g(), g()
    other = g.clone()
    other.advance(3)
    again = ndd.random.RNG(state=str(g.state))
    ndd.random.set_seed(5)
    default = str(ndd.random.get_default_rng())
    return (
        drawn,
        str(g.state),
        other(),
        g(),
        str(g.get_state()),
        again(),
        repr(g),
        default,
        repr(ndd.random.RNG(seed=-1)),
    )


@program
def draws(ndd: Any, root: str) -> Any:
    u, image = ndd.random, ndd.tensor(IMAGE, layout="HWC")
    grey = ndd.tensor(np.full((4, 5, 1), 3.0, np.float32), layout="HWC")
    works: list[Callable[[Any], Any]] = [
        lambda g: u.uniform(batch_size=4, rng=g), lambda g: u.uniform(rng=g), lambda g: u.uniform(shape=[5], rng=g),
        lambda g: u.uniform(range=ndd.batch([[0.0, 1.0], [5.0, 6.0]]), rng=g),
        lambda g: u.uniform(ndd.tensor([[1, 2]]), rng=g), lambda g: u.uniform(values=[1.0, 2.0], batch_size=5, rng=g),
        lambda g: u.uniform(range=[0, 100], dtype=ndd.int32, batch_size=5, rng=g),
        lambda g: u.coin_flip(batch_size=8, rng=g), lambda g: u.coin_flip(probability=0.1, shape=[8], rng=g),
        lambda g: u.normal(batch_size=3, rng=g), lambda g: u.choice(10, batch_size=6, rng=g),
        lambda g: u.choice([5, 6, 7], p=[0.1, 0.2, 0.7], shape=[6], rng=g), lambda g: ndd.noise.gaussian(grey, rng=g),
        lambda g: ndd.noise.salt_and_pepper(grey, prob=0.5, rng=g), lambda g: ndd.noise.shot(grey, factor=1.0, rng=g),
        lambda g: ndd.random_resized_crop(image, size=3, rng=g), lambda g: ndd.batch_permutation(batch_size=7, rng=g),
        lambda g: ndd.random_crop_generator(ndd.tensor([40, 50]), rng=g),
        lambda g: ndd.roi_random_crop(image, roi_start=[2, 2, 0], roi_end=[9, 9, 3], crop_shape=[4, 4, 1], rng=g),
        lambda g: ndd.random_bbox_crop(ndd.tensor(BOXES), ndd.tensor([1, 2]), aspect_ratio=[0.5, 2.0],
                                       thresholds=[0.0, 0.3], scaling=[0.3, 1.0], bbox_layout="xyXY", rng=g),
        lambda g: ndd.segmentation.random_mask_pixel(ndd.tensor(MASK), foreground=1, rng=g),
        lambda g: ndd.segmentation.random_object_bbox(ndd.tensor(MASK), rng=g),
    ]  # fmt: skip
    made = []
    for phase, work in enumerate(works):
        g = ndd.random.RNG(seed=99)
        g.advance(phase)  # every word of the counter comes first once
        made.append([work(g), str(g.state)])
    return made


@program
def epochs(ndd: Any, root: str) -> Any:
    def labels(batch_size: Any = 2, count: int = 3, **arguments: Any) -> Any:
        r = ndd.readers.File(file_root=root, file_list=f"{root}/list.txt", **arguments)
        return [[batch for _, batch in r.next_epoch(batch_size=batch_size)] for _ in range(count)]

    r = ndd.readers.File(file_root=root, file_list=f"{root}/list.txt")
    first = next(iter(r.next_epoch(batch_size=2)))[1]
    again = next(iter(r.next_epoch(batch_size=2)))[1]
    return (labels(), labels(None, 2), labels(max_batch_size=3, batch_size=None), labels(pad_last_batch=True),
            labels(num_shards=2, shard_id=0), labels(num_shards=2, shard_id=1, stick_to_shard=True), first, again,
            labels(random_shuffle=True, seed=1), labels(random_shuffle=True),
            ndd.readers.File(file_root=root, file_list=f"{root}/list.txt").get_metadata(),
            ndd.readers.File(file_root=root, file_list=f"{root}/list.txt")())  # fmt: skip


@program
def captured(ndd: Any, root: str) -> Any:
    count = [0]

    def loop(work: Callable[[Any, Any], Any], capture: bool) -> Any:
        count[0] = 0
        ndd.random.set_seed(3)
        r = ndd.readers.File(file_root=root, file_list=f"{root}/list.txt")
        return [
            [work(data, label) for data, label in r.next_epoch(batch_size=2, capture=capture)] for _ in range(2)
        ]  # fmt: skip

    def steady(data: Any, label: Any) -> Any:
        return ndd.cast(data, dtype=ndd.float32) * 2, label + 1

    def random(data: Any, label: Any) -> Any:
        return label + ndd.random.uniform(range=(0.0, 1.0), batch_size=2)

    def changing(data: Any, label: Any) -> Any:
        count[0] += 1
        return ndd.pad(data, fill_value=count[0]), ndd.batch([count[0], 2 * count[0]]) + label.slice[0]

    def branching(data: Any, label: Any) -> Any:
        return label * 3 if np.array(label.tensors[0]).item() % 2 else label

    return [loop(work, capture) for work in (steady, random, changing, branching) for capture in (False, True)]


@program
def sources(ndd: Any, root: str) -> Any:
    es = ndd.ExternalSource

    def take(source: Any, n: int, **call: Any) -> Any:
        out: list[Any] = []
        for _ in range(n):
            try:
                out.append(source(**call))
            except StopIteration:
                out.append("end")
        return out

    items = [np.full(2, i) for i in range(2)]
    return (take(es(items), 4), take(es(items, cycle="raise"), 5), take(es(items, cycle="quiet"), 5),
            take(es(lambda: [np.zeros(2), np.ones(2)]), 1, batch_size=2), take(es(lambda: ndd.batch([1, 2])), 1),
            take(es(lambda: (1, 2.5), num_outputs=2), 1), take(es(lambda: np.zeros((2, 2)), layout="HW"), 1),
            take(es(lambda: np.zeros(2), dtype=ndd.uint8), 1), take(es(i for i in range(2)), 3),
            list(es([ndd.batch([i, i]) for i in range(3)]).captured(2)), list(es([0, 1]).captured(2)))  # fmt: skip


@program
def texts(ndd: Any, root: str) -> Any:
    shown = [ndd.tensor([1, 2, 3]), ndd.tensor(5), ndd.tensor(IMAGE[:1, :1].copy(), layout="HWC"),
             ndd.batch([[1], [2, 3]]),
             ndd.batch([1, 2]), ndd.tensor(np.zeros((100, 100))), ndd.tensor([True, False])]  # fmt: skip
    kinds = [ndd.uint8, ndd.int64, ndd.float16, ndd.float32, ndd.bool, ndd.bfloat16]
    return ([repr(v) for v in shown], [repr(k) for k in kinds], [str(k) for k in kinds], repr(ndd.Device("cpu")),
            str(ndd.Device("cpu")), [m.name for m in ndd.EvalMode],
            [str(ndd.DType.parse(n)) for n in ("u8", "i32")])  # fmt: skip


@program
def modes(ndd: Any, root: str) -> Any:
    made = []
    for mode in (ndd.EvalMode.deferred, ndd.EvalMode.eager, ndd.EvalMode.sync_cpu, ndd.EvalMode.sync_full):
        with mode:
            image = ndd.tensor(IMAGE, layout="HWC")
            g = ndd.random.RNG(seed=3)
            x = ndd.random.uniform(rng=g)
            y = ndd.random.uniform(rng=g)
            made.append([ndd.flip(image) + 1, y, x, raised(ndd, lambda: ndd.resize(MASK, size=(2, 2)).evaluate())])
    with ndd.EvalContext(num_threads=2, device_id=None) as context:
        made.append([ndd.EvalContext.current() is context, context.num_threads])
    return made
