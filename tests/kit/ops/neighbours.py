"""Batches in which one valid sample differs from its neighbours, for every operator; and the outcome of each sample."""

from __future__ import annotations

import dataclasses
import io
import tempfile
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import PIL.Image
import yaml

from dali_run.ops.base import Operator, Spec, operators, parameters
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import from_numpy
from dali_run.pipelines.engine.nodes.guarded import guarded
from dali_run.pipelines.engine.nodes.node_pass import Env, NodePass
from dali_run.pipelines.graph.nodes import Edge, Node
from tests.kit.files.videos import make_video
from tests.kit.operators import operator
from tests.kit.ops.kinds import KINDS, takes

N = 6
"""Number of samples of a batch."""
VALUES: Mapping[str, Mapping[str, Any]] = {
    "coord_transform": {"M": [1.0, 0, 0, 0, 1, 0, 0, 0, 1], "T": [1.0, 2.0, 3.0], "MT": [1.0, 0, 0, 5] * 3},
    "bbox_rotate": {"input_shape": [7, 9], "size": [9, 9]},
    "decoders.image_crop": {"crop": [3, 4]}, "decoders.image_slice": {"start": [0, 0], "end": [1, 1], "shape": [1, 1]},
    "experimental.warp_perspective": {"size": [5, 6], "matrix": [1.0, 0, 0, 0, 1, 0, 0, 0, 1]},
    "roi_random_crop": {"crop_shape": [3, 3], "roi_start": [1, 1], "roi_end": [6, 7], "roi_shape": [4, 5],
                        "in_shape": [7, 9]},
    "crop": {"crop": [3, 4]}, "crop_mirror_normalize": {"crop": [3, 4], "mean": [1.0, 2, 3], "std": [1.0, 2, 3]},
    "gaussian_blur": {"sigma": [1.0, 2.0], "window_size": [3, 5]},
    "pad": {"axes": [0], "align": [2], "shape": [9]},
    "reshape": {"shape": [-1, 3], "rel_shape": [1.0, -1], "src_dims": [1, 0, 2]},
    "reinterpret": {"shape": [-1, 3], "rel_shape": [1.0, -1]},
    "resize": {"size": [5, 6], "roi_start": [0.0, 0], "roi_end": [4.0, 4]},
    "rotate": {"axis": [0.0, 0, 1], "size": [5, 6]},
    "slice": {"axes": [0, 1], "start": [0, 0], "end": [1, 1], "shape": [1, 1], "rel_end": [0.5, 0.5]},
    "tensor_resize": {"sizes": [5.0, 6], "scales": [0.5, 0.5], "roi_start": [0.0, 0], "roi_end": [4.0, 4]},
    "warp_affine": {"size": [5, 6], "matrix": [1.0, 0, 0, 0, 1, 0]}, "warp_perspective": {"size": [5, 6]},
    "random.uniform": {"values": [1.0, 2.0], "shape": [2], "range": [0.0, 1.0]},
    "random.normal": {"shape": [2]}, "random.coin_flip": {"shape": [2]}, "full": {"shape": [2]},
    "transforms.translation": {"offset": [1.0, 2.0]},
    "transforms.scale": {"scale": [1.0, 2.0], "center": [1.0, 2.0]},
    "transforms.rotation": {"axis": [0.0, 0, 1], "center": [1.0, 2.0]},
    "transforms.shear": {"shear": [1.0, 2.0], "angles": [1.0, 2.0], "center": [1.0, 2.0]},
    "transforms.crop": {"from_start": [0.0, 0], "from_end": [1.0, 1], "to_start": [0.0, 0], "to_end": [1.0, 1]},
    "random_resized_crop": {"size": [5, 6]}, "one_hot": {}, "decoders.audio": {"sample_rate": 8000.0},
    "decoders.inflate": {"shape": [7, 9, 3], "chunk_sizes": [191], "chunk_offsets": [0]},
    "decoders.video": {"start_frame": 1, "stride": 1, "sequence_length": 3, "end_frame": 4, "frames": [2, 0]},
}  # fmt: skip
"""Lists that are values of an argument for one sample, if neither the example nor the default has one."""


def jpeg(mode: str = "RGB", format: str = "jpeg", rows: int = 12) -> Any:
    """Return an image file of ``rows`` x 16 pixels."""
    file = io.BytesIO()
    pixels = (np.arange(rows * 48) % 256).astype(np.uint8).reshape(rows, 16, 3)
    PIL.Image.fromarray(pixels).convert(mode).save(file, format)
    return _bytes(file.getvalue())


def wav(rate: int = 16000, channels: int = 1, count: int = 60, width: int = 2) -> Any:
    """Return a WAV file of ``count`` values per channel, of ``width`` bytes each."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, rate, count, "NONE", ""))
        out.writeframes(((np.arange(count * channels * width) * 37) % 251).astype(np.uint8).tobytes())
    return _bytes(file.getvalue())


def flac(**options: Any) -> Any:
    """Return a FLAC file of the values of `wav`."""
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, *soundfile.read(io.BytesIO(wav(**options)), dtype="int16"), format="FLAC")
    return _bytes(out.getvalue())


def video(size: tuple[int, int] = (16, 32), count: int = 5, codec: str = "libx264", **options: Any) -> Any:
    """Return a video of ``count`` frames of ``size`` (rows, columns), in MP4."""
    with tempfile.TemporaryDirectory() as folder:
        make_video(Path(folder) / "a.mp4", count, codec, size, **options)
        return _bytes((Path(folder) / "a.mp4").read_bytes())


def lz4(array: Any) -> Any:
    """Return an LZ4 block that holds ``array`` without compressing it."""
    data = array.tobytes()
    more = len(data) - 15
    length = b"" if more < 0 else b"\xff" * (more // 255) + bytes([more % 255])
    return _bytes(bytes([min(len(data), 15) << 4]) + length + data)


def npy(array: Any) -> Any:
    """Return a .npy file of ``array``."""
    file = io.BytesIO()
    np.save(file, array)
    return _bytes(file.getvalue())


def _bytes(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


_IMAGE, _BOXES = np.arange(189, dtype=np.uint8).reshape(7, 9, 3), np.float32([[0.1, 0.1, 0.6, 0.5], [0.2, 0, 0.9, 1]])
_LABELS, _MAP = np.int32([1, 2]), np.float32([[1, 0, 2], [0, 1, 3]])
INPUTS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "bbox_rotate": ((_BOXES, _LABELS), ""), "box_encoder": ((_BOXES, _LABELS), ""), "crop": ((_IMAGE,), "HWC"),
    "crop_mirror_normalize": ((_IMAGE,), "HWC"), "decoders.image": ((jpeg,), ""), "permute_batch": ((_IMAGE,), "HWC"),
    "decoders.image_crop": ((jpeg,), ""), "decoders.image_slice": ((jpeg,), ""), "peek_image_shape": ((jpeg,), ""),
    "decoders.image_random_crop": ((jpeg,), ""), "encoded_as": ((jpeg,), ""),
    "experimental.remap": ((_IMAGE, np.ones((5, 4), np.float32), np.ones((5, 4), np.float32)), "HWC"),
    "experimental.warp_perspective": ((_IMAGE,), "HWC"), "number_from_text": ((np.frombuffer(b"12", np.uint8),), ""),
    "json_value": ((np.frombuffer(b'{"caption": "b"}', np.uint8),), ""),
    "random_crop_generator": (([7, 9],), ""), "reductions.std_dev": ((_IMAGE, np.ones((1, 1, 3), np.float32)), "HWC"),
    "reductions.variance": ((_IMAGE, np.ones((1, 1, 3), np.float32)), "HWC"),
    "decoders.audio": ((wav,), ""), "decoders.video": ((video,), ""), "video_cuts": ((video,), ""),
    "cut_video": ((video, np.float64([0, 0.1])), ""),
    "optical_flow": ((np.arange(3 * 32 * 32 * 3, dtype=np.uint8).reshape(3, 32, 32, 3) // 7,), "FHWC"),
    "decoders.inflate": ((lambda: lz4(_IMAGE),), ""), "decoders.numpy": ((lambda: npy(_MAP),), ""),
    "segmentation.select_masks": ((_LABELS[:1], [[1, 0, 3]], np.ones((3, 2), np.float32)), ""),
    "ssd_random_crop": ((_IMAGE, _BOXES, _LABELS), "HWC"), "transforms.combine": ((_MAP, _MAP), ""),
}  # fmt: skip
"""Inputs for one sample of an operator, if its example does not take those of `KINDS`."""
_IMAGES: Mapping[str, Callable[[], Any]] = {
    "gray": lambda: jpeg("L"), "PNG": lambda: jpeg(format="png"), "transparent": lambda: jpeg("RGBA", "png"),
    "larger": lambda: jpeg(rows=40), "CMYK": lambda: jpeg("CMYK"),
}  # fmt: skip
_VIDEOS: Mapping[str, Callable[[], Any]] = {
    "larger": lambda: video((32, 16)), "longer": lambda: video(count=20), "one frame": lambda: video(count=1),
    "MPEG-4": lambda: video(codec="mpeg4"), "4:4:4": lambda: video(pixels="yuv444p"),
    "uneven": lambda: video(times=(0, 40, 300, 320, 900)),
}  # fmt: skip
FILES: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    "decoders.audio": {
        "stereo": lambda: wav(channels=2), "slower": lambda: wav(8000), "longer": lambda: wav(count=4000),
        "wider": lambda: wav(width=3), "empty": lambda: wav(count=0), "FLAC": flac,
        "FLAC in stereo": lambda: flac(channels=2, count=5000),
    },
    **dict.fromkeys(("decoders.video", "video_cuts", "cut_video"), _VIDEOS),
    "decoders.inflate": {"longer": lambda: lz4(np.append(_IMAGE, _IMAGE)), "shorter": lambda: lz4(_IMAGE[:2])},
    "decoders.numpy": {
        "of another type": lambda: npy(_MAP.astype(np.int64)), "of another rank": lambda: npy(_MAP[None]),
        "longer": lambda: npy(_IMAGE[:, :, 0].astype(np.float32)), "big-endian": lambda: npy(_MAP.astype(">f4")),
        "in columns": lambda: npy(np.asfortranarray(_MAP)),
    },
    **dict.fromkeys(
        ("decoders.image", "decoders.image_crop", "decoders.image_slice", "decoders.image_random_crop",
         "peek_image_shape", "encoded_as"), _IMAGES),
}  # fmt: skip
"""Valid files that differ from the ordinary sample of `INPUTS`, by operator."""
KEPT: Mapping[str, Mapping[str, Any]] = {
    "crop": {"crop": [3, 4]}, "crop_mirror_normalize": {"crop": [3, 4]}, "decoders.image_crop": {"crop": [3, 4]},
    "experimental.warp_perspective": {"matrix": [1.0, 0, 0, 0, 1, 0, 0, 0, 1]}, "bbox_rotate": {"angle": 30.0},
    "transforms.rotation": {"angle": 30.0, "center": [1.0, 2]}, "decoders.inflate": {"shape": [7, 9, 3]},
    "decoders.audio": {"downmix": False}, "decoders.video": {"pad_mode": "none"},
    "decoders.image": {"output_type": "ANY_DATA"}, "video_cuts": {"seconds": 0.0},
}  # fmt: skip
"""Arguments that replace those of an operator's example, because its samples are larger here."""
WITH: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("crop_mirror_normalize", "mean"): {"std": [1.0, 2, 3]}, ("crop_mirror_normalize", "std"): {"mean": [1.0, 2, 3]},
    ("resize", "roi_start"): {"roi_end": [4.0, 4]}, ("resize", "roi_end"): {"roi_start": [0.0, 0]},
    ("tensor_resize", "sizes"): {"axes": [0, 1]},
    ("tensor_resize", "roi_start"): {"roi_end": [4.0, 4]}, ("tensor_resize", "roi_end"): {"roi_start": [0.0, 0]},
    ("roi_random_crop", "crop_shape"): {"roi_start": [1, 1], "roi_end": [6, 7]},
    ("roi_random_crop", "roi_start"): {"roi_end": [6, 7], "crop_shape": [3, 3]},
    ("roi_random_crop", "roi_end"): {"roi_start": [1, 1], "crop_shape": [3, 3]},
    ("roi_random_crop", "roi_shape"): {"roi_start": [1, 1], "crop_shape": [3, 3]},
    ("roi_random_crop", "in_shape"): {"roi_start": [1, 1], "roi_end": [6, 7], "crop_shape": [3, 3]},
    ("bbox_rotate", "input_shape"): {"angle": 30.0}, ("bbox_rotate", "size"): {"angle": 30.0, "input_shape": [7, 9]},
    ("experimental.warp_perspective", "size"): {"matrix": [1.0, 0, 0, 0, 1, 0, 0, 0, 1]},
    ("transforms.crop", "from_start"): {"from_end": [1.0, 1]},
    ("transforms.rotation", "axis"): {"angle": 30.0, "center": [1.0, 2, 3]},
    ("transforms.shear", "center"): {"shear": [1.0, 2.0]}, ("transforms.scale", "center"): {"scale": [1.0, 2.0]},
}  # fmt: skip
"""Further arguments that one argument needs, by operator and argument."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operator on batches of `N` samples, one of which is odd (has another shape or value than the others)."""

    op: Operator
    inputs: tuple[Any, ...]
    """For each input, an array for an ordinary sample."""
    odd_inputs: tuple[Any, ...]
    layout: str
    args: Mapping[str, tuple[Any, Any]]
    """For each argument that is passed as an input: the value of an ordinary sample and of the odd one."""
    name: str


UNTRIED = frozenset({
    "constant", "expr", "get_property", "io.file.read", "python_function", "dl_tensor_python_function",
    "split_samples", "batch_permutation",
    *(["decoders.audio"] if find_spec("soundfile") is None else []),
    *(["decoders.video", "video_cuts", "cut_video"] if find_spec("av") is None else []),
    *(["optical_flow"] if find_spec("cv2") is None else []),
})  # fmt: skip
"""Operators without lists whose inputs are names of files or programs, and those whose package is missing.
`tests/pipelines/job/test_neighbours.py` runs jobs, `tests/pipelines/python/test_pipeline.py` calls functions of
programs."""


def operators_tried() -> list[type[Operator]]:
    """Return every operator of `ops` with a CPU kernel, except those of `UNTRIED`."""
    return [
        cls
        for name, cls in operators().items()
        if name == cls.name and cls.__module__.startswith("dali_run.ops.") and "cpu" in cls.stages and cls.example
        and name not in UNTRIED and not name.startswith("_")
    ]  # fmt: skip


def cases(cls: type[Operator]) -> Iterator[Case]:
    """Yield an operator's cases: lists of another length, lists in place of numbers, inputs of other shapes."""
    step = yaml.safe_load(cls.example)
    kept = {k: v for k, v in step.items() if k in parameters(cls) and not str(v).startswith("$")}
    kept |= KEPT.get(cls.name, {})
    inputs = _inputs(cls, kept)
    if inputs is None:
        return
    arrays, layout = inputs
    for p in parameters(cls).values():
        if not p.arg.per_sample or p.arg.ignored or p.arg.deprecated:
            continue
        value = VALUES.get(cls.name, {}).get(p.name, kept.get(p.name, p.default))
        beside = {**kept, **WITH.get((cls.name, p.name), {})}
        beside.pop(p.name, None)
        op = _with(cls, p.name, beside) or _with(cls, p.name, WITH.get((cls.name, p.name), {}))
        if op is None or value is dataclasses.MISSING or value is None:
            continue
        try:
            good = np.atleast_1d(np.asarray(value)) if p.is_vector else np.asarray(value)
        except ValueError:
            continue
        if good.dtype.kind not in "iufb" or not good.size:
            continue
        good = good.astype({"f": np.float32, "i": np.int32}.get(good.dtype.kind, good.dtype))
        flat = good.reshape(-1)
        odd = {"longer": np.append(flat, flat[-1:]), "twice": np.tile(flat, 2), "empty": flat[:0]}
        if p.is_vector and flat.size > 1:
            odd["shorter"] = flat[:-1]
        for kind, other in odd.items():
            given = arrays if cls.inputs[0] else ()
            yield Case(op, given, given, layout, {p.name: (flat, other)}, f"{cls.name}, {p.name} {kind}")
    try:
        op = operator(cls.name, **kept)
    except (DaliRunError, ValueError):
        return
    for k, a in enumerate(arrays):
        for kind, other in _shapes(a):
            yield Case(op, arrays, (*arrays[:k], other, *arrays[k + 1 :]), layout, {}, f"{cls.name}, input {k} {kind}")
    for kind, make in FILES.get(cls.name, {}).items():
        yield Case(op, arrays, (make(), *arrays[1:]), layout, {}, f"{cls.name}, a file that is {kind}")


def _with(cls: type[Operator], name: str, beside: Mapping[str, Any]) -> Operator | None:
    """Return the operator with constants ``beside`` and ``name`` as an input; None if it does not accept them."""
    try:
        made: Operator = operator(cls.name, [name] if name else [], **beside)
    except (DaliRunError, ValueError, TypeError):
        return None
    return made


def _shapes(a: Any) -> Iterator[tuple[str, Any]]:
    """Yield arrays of the dtype and rank of ``a``, with other shapes, each with a name."""
    for axis in range(a.ndim):
        for extent in {0, 1, 2, a.shape[axis] + 1} - {a.shape[axis]}:
            shape = (*a.shape[:axis], extent, *a.shape[axis + 1 :])
            yield f"axis {axis} of {extent}", np.resize(a, shape) if a.size else np.zeros(shape, a.dtype)


def _inputs(cls: type[Operator], kept: Mapping[str, Any]) -> tuple[tuple[Any, ...], str] | None:
    if cls.name in INPUTS:
        arrays, layout = INPUTS[cls.name]
        return tuple(a() if callable(a) else np.asarray(a) for a in arrays), layout
    op = _with(cls, "", kept)
    for make in KINDS.values() if cls.inputs[1] and op is not None else ():
        batches = [make() for _ in range(max(1, cls.inputs[0]))]
        if takes(op, batches):
            return tuple(np.array(b.sample(0)) for b in batches), batches[0].layout
    return None if cls.inputs[0] else ((), "")


def outcome(
    case: Case, odd_at: int | None, chosen: Sequence[int], kinds: Mapping[Edge, Spec] = MappingProxyType({}),
    **extra: Any,
) -> dict[int, Any]:  # fmt: skip
    """Return the results, or the reject, of each of the ``chosen`` samples in a batch with the odd sample at
    ``odd_at``. The engine runs them together; ``kinds`` are the types that the data set's first sample determines."""
    samples = Samples.numbered(N).take(np.array(chosen))
    node_inputs, args, env = [], {}, Env()
    for k in range(len(case.inputs)):
        arrays = [(case.odd_inputs if i == odd_at else case.inputs)[k] for i in chosen]
        env[Edge(k)] = Batch.from_list(arrays, case.layout if k == 0 else "", samples)
        node_inputs.append(Edge(k))
    for k, (name, (good, odd)) in enumerate(case.args.items(), len(case.inputs)):
        env[Edge(k)] = Batch.from_list([odd if i == odd_at else good for i in chosen], "", samples)
        args[name] = Edge(k)
    object.__setattr__(case.op, "num_inputs", len(case.inputs))
    node = Node(9, case.op, tuple(node_inputs), args, case.op.name, stage=extra.pop("stage", "cpu"))
    run = NodePass(samples, {9: 7}, kinds=kinds, **extra)
    gives = [Edge(9, k) for k in range(case.op.num_outputs)]
    try:
        results = guarded([node], env, run, gives, lambda problem, n: None)
    except DaliRunError as e:
        return {-1: str(e)}
    found: dict[int, Any] = {d.slot: (d.code, d.message) for d in run.dropped}
    for j, slot in enumerate(results[gives[0]].samples.slot.tolist()):
        found[slot] = [(b.dtype, b.layout, np.array(b.sample(j))) for b in (results[e] for e in gives)]
    return found


def kinds_of(good: Any) -> dict[Edge, Spec]:
    """Return the types that a data set determines if its first sample has these results."""
    return {Edge(9, k): Spec(a.shape, from_numpy(dtype), layout) for k, (dtype, layout, a) in enumerate(good)}


def equal(a: Any, b: Any) -> bool:
    """Return whether two outcomes of a sample are equal: equal results, or the same reject."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        return type(a) is type(b) and a == b
    return len(a) == len(b) and all(
        x[:2] == y[:2] and np.array_equal(x[2], y[2], equal_nan=x[2].dtype.kind == "f")
        for x, y in zip(a, b, strict=True)
    )
