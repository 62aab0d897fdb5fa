"""Every operator's gpu kernel against its cpu kernel, on ragged batches: on a GPU, and run on the CPU without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Operator, find, operators, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.gpu.launch_recording import RecordingCache
from dali_run.pipelines.plugins import load_operators
from tests.kit.ops.kinds import KINDS, plain, ragged, takes

from ..kit.emulated_lane import EmulatedLane
from ..kit.operators import apply, of_example, operator

load_operators()

CMN = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("crop", {"crop": [3, 4], "out_of_bounds_policy": "pad", "fill_values": [9]}, {}),
    ("crop", {"crop": [6, 7], "out_of_bounds_policy": "pad", "fill_values": [1, 2, 3], "dtype": "FLOAT"}, {}),
    ("crop", {"crop": [6, 7], "out_of_bounds_policy": "trim_to_shape"}, {"dtype": "float32"}),
    ("slice", {"start": [-2, -3], "end": [9, 20], "axes": [0, 1], "out_of_bounds_policy": "reflect_101"}, {}),
    ("slice", {"start": [-2, -30], "end": [9, 20], "axes": [0, 1], "out_of_bounds_policy": "wrap"}, {}),
    ("slice", {"start": [-8, -3], "end": [9, 20], "axes": [0, 1], "out_of_bounds_policy": "reflect"}, {}),
    ("slice", {"start": [-2, -3], "end": [9, 20], "axes": [0, 1], "out_of_bounds_policy": "edge"}, {"dtype": "uint16"}),
    ("slice", {"rel_start": [0.1, 0.3], "rel_end": [0.9, 0.8], "axis_names": "WH"}, {}),
    ("flip", {"horizontal": 1, "vertical": 1}, {}),
    ("flip", {"horizontal": 1}, {"dtype": "float32"}),
    ("crop_mirror_normalize", {"crop": [1, 1], "mirror": 1, **CMN}, {}),
    ("crop_mirror_normalize", {"mirror": 1, **CMN}, {}),
    ("crop_mirror_normalize", {"mirror": 1, "dtype": "FLOAT16", "output_layout": "HWC", **CMN}, {}),
    ("crop_mirror_normalize", {"dtype": "INT8", "scale": 70.0, **CMN}, {}),
    ("crop_mirror_normalize",
     {"pad_output": True, "crop": [4, 6], "out_of_bounds_policy": "pad", "fill_values": [5], **CMN},
     {"dtype": "float32"}),
    ("cast", {"dtype": "FLOAT"}, {}),
    ("cast", {"dtype": "UINT8"}, {"dtype": "float32"}),
    ("cast", {"dtype": "INT16"}, {"dtype": "float16"}),
    ("cast", {"dtype": "FLOAT16"}, {"dtype": "float64"}),
    ("cast", {"dtype": "BOOL"}, {"dtype": "float32"}),
    ("cast", {"dtype": "INT8"}, {"dtype": "uint64"}),
    ("cast", {"dtype": "UINT64"}, {"dtype": "int64"}),
    ("cast", {"dtype": "INT32"}, {"dtype": "float64"}),
    ("transpose", {"perm": [2, 0, 1]}, {}),
    ("transpose", {"perm": [1, 0, 2]}, {"dtype": "float32"}),
    ("transpose", {}, {"dtype": "int64"}),
    ("pad", {"axes": [0, 1], "align": [4, 5], "fill_value": 7}, {}),
    ("pad", {"fill_value": -1.5}, {"dtype": "float32"}),
    ("cat", {"axis": 1}, {"inputs": 2}),
    ("cat", {"axis": 2}, {"inputs": 3, "dtype": "uint16"}),
    ("stack", {"axis": 3}, {"inputs": 3}),
    ("stack", {"axis": 0}, {"inputs": 2, "dtype": "float32"}),
    ("copy", {}, {}),
    ("reshape", {"shape": [-1, 3]}, {}),
    ("reinterpret", {"dtype": "UINT8"}, {"dtype": "float32"}),
    ("one_hot", {"num_classes": 9}, {"dtype": "int32"}),
    ("one_hot", {"num_classes": 200, "axis": 1, "dtype": "UINT8"}, {}),
    ("full_like", {}, {"inputs": 2}),
    ("ones_like", {"dtype": "FLOAT"}, {}),
    ("normalize", {}, {}),
    ("normalize", {"axes": [0, 1], "epsilon": 0.5, "ddof": 1}, {}),
    ("normalize", {"axes": [2], "epsilon": 1.0}, {"dtype": "float32"}),
    ("normalize", {"axes": [0, 1], "batch": True, "dtype": "UINT8", "scale": 60.0, "shift": 128.0}, {}),
    ("normalize", {"mean": 100.0, "axes": [0]}, {"dtype": "int16"}),
    ("normalize", {"stddev": 7.0}, {"dtype": "float16"}),
    ("erase", {"anchor": [1, 2, 3, 0], "shape": [2, 3, 9, 1], "fill_value": [1, 2, 3]}, {}),
    ("erase", {"anchor": [0.1], "shape": [0.5], "axis_names": "W", "normalized": True}, {"dtype": "float16"}),
    ("paste", {"ratio": 1.7, "paste_x": 0.2, "fill_value": [9, 8, 7]}, {}),
    ("multi_paste", {"output_size": [12, 13], "dtype": "FLOAT"}, {"inputs": 2}),
    ("grid_mask", {"tile": 3, "angle": 0.5, "shift_x": 1.25}, {}),
    ("grid_mask", {"tile": 4, "ratio": 0.3}, {"dtype": "float64"}),
    ("coord_transform", {"M": [1, 2, 3, 4, 5, 6], "T": [7, 8]}, {"dtype": "float32"}),
    ("coord_transform", {"M": [0.25, 0.5, 0.25], "dtype": "UINT8"}, {}),
    ("coord_flip", {"flip_z": 1}, {"dtype": "float32"}),
    ("reductions.sum", {"axes": [0, 1]}, {}),
    ("reductions.mean", {}, {"dtype": "int16"}),
    ("reductions.rms", {"axis_names": "C", "keep_dims": True}, {"dtype": "float32"}),
    ("reductions.max", {"axes": [1]}, {"dtype": "uint16"}),
    ("reductions.min", {"axes": [0, 2]}, {"dtype": "float16"}),
    ("experimental.warp_perspective", {"matrix": [0.9, 0.1, 0.3, 0, 1.1, -0.2, 1e-3, 0, 1], "interp_type": "NN"}, {}),
    ("experimental.warp_perspective", {"matrix": [1, 0, 2, 0, 1, -1, 0, 0, 1], "border_mode": "reflect_101"}, {}),
    ("water", {"ampl_x": 1.5, "ampl_y": 2.0, "freq_x": 0.5}, {}),
    ("sphere", {"interp_type": "NN", "fill_value": 3}, {}),
    ("tensor_resize", {"scales": [0.7, 1.6], "axis_names": "HW"}, {}),
    ("per_frame", {"replace": True}, {}),
]  # fmt: skip


def both(name: str, arguments: dict[str, Any], setting: dict[str, Any], lane: Any, to_device: Any) -> tuple[Any, Any]:
    op = operator(name, **arguments)
    inputs = [ragged(setting.get("dtype", "uint8"), 10 + j) for j in range(setting.get("inputs", 1))]
    expected, _ = apply(op, *inputs)
    got, rejects = apply(op, *map(to_device, inputs), lane=lane)
    assert not rejects
    return expected, got


def assert_same(expected: Batch, got: Batch) -> None:
    assert got.layout == expected.layout
    assert got.dtype == expected.dtype
    assert got.shapes.tolist() == expected.shapes.tolist()
    for want, have in zip(expected, got, strict=True):
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have.astype(float), want.astype(float), rtol=1e-6, atol=2e-6)
        else:
            np.testing.assert_array_equal(have, want)


IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]


@pytest.mark.parametrize(("name", "arguments", "setting"), CASES, ids=IDS)
def test_cuda_run_on_the_cpu(name: str, arguments: dict[str, Any], setting: dict[str, Any]) -> None:
    expected, got = both(name, arguments, setting, EmulatedLane(), lambda b: b)
    assert_same(expected, got)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "arguments", "setting"), CASES, ids=IDS)
def test_gpu(name: str, arguments: dict[str, Any], setting: dict[str, Any]) -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        expected, got = both(name, arguments, setting, lane, lane.to_device)
        host = lane.to_host(got)
        lane.synchronize()
    assert_same(expected, host)


# -- every operator, by its own example -------------------------------------------------------------------------------


def comparable() -> list[type[Operator]]:
    """Operators with a kernel on both sides that see no more than their samples."""
    found = [o for o in operators().values() if {"cpu", "gpu"} <= set(o.stages) and o.inputs[0] and o.example]
    ours = [o for o in found if o.__module__.startswith("dali_run.")]  # other tests declare operators, too
    return [o for o in ours if not o.per_batch and not o.name.startswith("_")]


APART = {
    "encoders.image", "decoders.inflate", "experimental.inflate", "python_function", "dl_tensor_python_function",
    "expr", "dump_image",
}  # fmt: skip
"""Compared by tests of their own: what they take or give is no plain array."""


@pytest.mark.parametrize("cls", comparable(), ids=lambda c: c.name)
def test_each_example_gives_the_same_on_both_sides(cls: type[Operator]) -> None:
    """A new operator is compared by its `example`, without being listed anywhere."""
    if cls.name in APART:
        pytest.skip("has a test of its own")
    op = of_example(cls)
    kinds = [[make() for _ in range(max(1, op.inputs[0]))] for make in KINDS.values()]
    inputs = next((given for given in kinds if takes(op, given)), None)
    if inputs is None:
        pytest.skip("its example takes none of the plain inputs")
    expected, _ = apply(op, *inputs)
    got, rejects = apply(op, *inputs, lane=EmulatedLane())
    assert not rejects
    both_sides = [(expected, got)] if isinstance(expected, Batch) else list(zip(expected, got, strict=True))
    for want, have in both_sides:
        assert_near(want, have, cls)


def aligned(batch: Batch, turn: int) -> Batch:
    """The batch with its values moved along, in memory that begins where a device's would."""
    data = np.roll(batch.data, turn)
    room = np.empty(data.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    room[start : start + data.nbytes] = data.view(np.uint8)
    return batch.replace(data=room[start : start + data.nbytes].view(data.dtype))


GIVEN: dict[str, Callable[[], list[Batch]]] = {
    "box_encoder": lambda: [plain("float32", (4, 4), ""), vectors_of_labels()],
    "mel_filter_bank": lambda: [plain("float32", (257, 9), "ft")],
    "audio_resample": lambda: [plain("float32", (400,), "")],
    "filter": lambda: [plain("uint8", (9, 8, 3), "HWC"), plain("float32", (3, 3), "")],
    "debayer": lambda: [plain("uint8", (8, 6), "HW")],
    "mfcc": lambda: [plain("float32", (40, 9), "ft")],
    "reductions.variance": lambda: [plain("float32", (6, 7, 3), "HWC"), plain("float32", (3,), "")],
    "reductions.std_dev": lambda: [plain("float32", (6, 7, 3), "HWC"), plain("float32", (), "")],
}
"""Inputs of operators that take several, or that repeat what they do of some alone."""


def vectors_of_labels() -> Batch:
    return Batch.from_dense(np.arange(12, dtype=np.int32).reshape(3, 4), "", Samples.numbered(3))


def repeated(cls: type[Operator], lane: Any, to_device: Any, to_host: Any) -> None:
    """Batches of the same shapes through recorded launches, and through the operator's own."""
    tried = [operator("expr", expr="a * 1.5 + 2")] if cls.name == "expr" else [of_example(cls)]
    tried += [operator(cls.name, **a) for n, a, s in CASES if n == cls.name and not s]
    kinds = [make for _ in tried for make in KINDS.values()]
    ops = [op for op in tried for _ in KINDS]
    op, inputs = (
        (tried[0], GIVEN[cls.name]())
        if cls.name in GIVEN
        else next(
            (op, given)
            for op, make in zip(ops, kinds, strict=True)
            if takes(op, given := [make() for _ in range(max(1, op.inputs[0]))])
        )
    )
    repeats, asked = RecordingCache(), []
    for turn in range(4):
        given = [to_device(aligned(b, turn)) for b in inputs]

        def launch(where: Any, given: list[Batch] = given) -> tuple[tuple[Batch, ...], bool]:
            result, rejects = apply(op, *given, lane=where)
            asked.append(1)
            return outputs_of(result), not rejects

        expected = [to_host(b) for b in launch(lane)[0]]
        got = [to_host(b) for b in repeats.run(lane, 0, given, given[0].samples, launch, None)]
        for want, have in zip(expected, got, strict=True):
            assert (want.layout, want.dtype, want.nbytes) == (have.layout, have.dtype, have.nbytes)
            for a, b in zip(want, have, strict=True):
                np.testing.assert_array_equal(a, b)
    assert len(asked) == 4 + 2, "the first batch is launched, the second recorded, the others repeat it"


REPEATED = [c for c in comparable() if c.replayable]


@pytest.mark.parametrize("cls", operators().values(), ids=lambda c: c.name)
def test_an_operator_sets_only_flags_that_its_classes_declare(cls: type[Operator]) -> None:
    set_ = {name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, bool)}
    annotated = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
    properties = {name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, property)}
    assert set_ - annotated - properties == set()


@pytest.mark.parametrize("cls", REPEATED, ids=lambda c: c.name)
def test_launches_that_are_repeated_give_what_the_operator_gives(cls: type[Operator]) -> None:
    repeated(cls, EmulatedLane(), lambda b: b, lambda b: b)


def on_a_lane(check: Callable[..., None], subject: Any) -> None:
    """``check`` of ``subject`` on a GPU, with ways there and back."""
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:

        def to_host(batch: Batch) -> Batch:
            host = lane.to_host(batch)
            lane.synchronize()
            return host

        check(subject, lane, lane.to_device, to_host)


@pytest.mark.gpu
@pytest.mark.parametrize("cls", REPEATED, ids=lambda c: c.name)
def test_launches_that_are_repeated_on_a_gpu(cls: type[Operator]) -> None:
    on_a_lane(repeated, cls)


CHANGING: list[tuple[str, dict[str, Any], dict[str, tuple[float, float, int]], bool]] = [
    ("flip", {}, {"horizontal": (0, 2, 0), "vertical": (0, 2, 0)}, True),
    ("crop_mirror_normalize", CMN, {"mirror": (0, 2, 0)}, True),
    ("crop_mirror_normalize", {"std": [50.0]}, {"mean": (0, 99, 3)}, True),
    ("brightness", {}, {"brightness": (0.5, 2, 0)}, True),
    ("contrast", {"dtype": "FLOAT"}, {"contrast": (0.5, 2, 0), "contrast_center": (9, 99, 0)}, True),
    ("hsv", {}, {"hue": (-90, 90, 0)}, True),
    ("color_twist", {}, {"hue": (-90, 90, 0), "brightness": (0.5, 2, 0), "contrast": (0.5, 2, 0)}, True),
    ("gaussian_blur", {}, {"sigma": (0.4, 1.0, 1)}, True),
    ("gaussian_blur", {"window_size": 5}, {"sigma": (0.1, 9, 2)}, True),
    ("rotate", {"keep_size": True}, {"angle": (-90, 90, 0)}, True),
    ("rotate", {}, {"angle": (0, 3, 0)}, False),
    ("warp_affine", {"size": [9, 8]}, {"matrix": (-1, 1, 6)}, True),
    ("warp_affine", {"inverse_map": False}, {"matrix": (-1, 1, 6)}, True),
    ("jpeg_compression_distortion", {}, {"quality": (0, 101, 0)}, True),
    ("erase", {"shape": [0.4, 0.3], "normalized": True}, {"anchor": (0, 0.6, 2)}, False),
    ("erase", {"shape": [2, 3], "anchor": [1, 1]}, {"fill_value": (0, 255, 3)}, True),
    ("random_resized_crop", {"size": [9, 8]}, {}, False),
    ("resize", {}, {"resize_shorter": (3, 9, 0)}, False),
    ("resize", {"size": [6, 5], "roi_end": [5, 6]}, {"roi_start": (0, 4, 2)}, False),
    ("coord_flip", {"center_y": -3}, {"flip_x": (0, 2, 0), "flip_y": (0, 2, 0), "center_x": (-9, 9, 0)}, True),
    ("coord_transform", {}, {"MT": (-2, 2, 6)}, True),
    ("coord_transform", {}, {"M": (-2, 2, 0), "T": (-9, 9, 2)}, True),
]
"""Operators whose launches are repeated with other arguments: between two numbers, and how many of them each sample has
(0: a number). Last whether any arguments will do; otherwise what has to be larger than before is launched anew."""


def changing(case: tuple[Any, ...], lane: Any, to_device: Any, to_host: Any) -> None:
    """Batches of the same shapes with arguments of their own, as `repeated` has those without."""
    name, constant, ranges, always = case
    op = operator(name, list(ranges), **constant)
    inputs = [plain("float32", (7, 2), "") if name.startswith("coord") else ragged("uint8", 1)]
    random, repeats, asked = np.random.default_rng(3), RecordingCache(), []
    for turn in range(8):
        given = [to_device(aligned(b, turn)) for b in inputs]
        samples = Samples.numbered(len(given[0]), 10 * turn)
        given = [b.replace(samples=samples) for b in given]
        args = {}
        for argument, (low, high, width) in ranges.items():
            whole = parameter(type(op), argument).type is int
            shape = (len(samples), width) if width else (len(samples),)
            values = random.integers(low, high, shape) if whole else random.uniform(low, high, shape)
            args[argument] = Batch.from_dense(values.astype(np.int32 if whole else np.float32), "", samples)

        def context() -> Context:
            return Context(op, "gpu", samples, args=args, seed=5)  # noqa: B023

        def launch(where: Any) -> tuple[tuple[Batch, ...], bool]:
            result, rejects = apply(op, *given, args=args, lane=where, seed=5)  # noqa: B023
            asked.append(1)
            return outputs_of(result), not rejects

        expected = [to_host(b) for b in launch(lane)[0]]
        got = [to_host(b) for b in repeats.run(lane, 0, given, samples, launch, context)]
        for want, have in zip(expected, got, strict=True):
            assert (want.layout, want.dtype, want.nbytes) == (have.layout, have.dtype, have.nbytes)
            assert have.samples is samples
            for a, b in zip(want, have, strict=True):
                np.testing.assert_array_equal(a, b)
    assert len(asked) == 8 + 2 or not always, "only the first two batches are launched as a whole"
    assert len(asked) < 8 + 8 or not always, "some are repeated"


@pytest.mark.parametrize("case", CHANGING, ids=lambda c: "-".join([c[0], *c[2]]))
def test_launches_are_repeated_with_other_arguments(case: tuple[Any, ...]) -> None:
    changing(case, EmulatedLane(), lambda b: b, lambda b: b)


@pytest.mark.parametrize("name", ["warp_affine", "experimental.warp_perspective", "filter"])
def test_what_follows_from_data_is_not_repeated(name: str) -> None:
    """Matrices that are an input on the device, and the number that lies around pictures."""
    more = {"border": "constant", "num_inputs": 3} if name == "filter" else {"num_inputs": 2}
    op, lane, repeats, random = find(name)(**more), EmulatedLane(), RecordingCache(), np.random.default_rng(3)
    images = ragged("uint8", 1)
    width = 2 if name == "warp_affine" else 3
    for turn in range(4):
        matrices = np.repeat(np.eye(width, 3, dtype=np.float32)[None], len(images), axis=0)
        matrices[:, :2] += random.uniform(-0.3, 0.3, (len(images), 2, 3)).astype(np.float32)
        inputs = [images, Batch.from_dense(matrices, "", images.samples)]
        if name == "filter":
            inputs.append(Batch.from_dense(random.uniform(0, 99, len(images)).astype(np.float32), "", images.samples))
        given = [aligned(b, turn) for b in inputs]
        want, _ = apply(op, *given, lane=lane)

        def launch(where: Any, given: list[Batch] = given) -> tuple[tuple[Batch], bool]:
            return (apply(op, *given, lane=where)[0],), True

        (got,) = repeats.run(lane, 0, given, images.samples, launch, None)
        for a, b in zip(want, got, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CHANGING, ids=lambda c: "-".join([c[0], *c[2]]))
def test_launches_are_repeated_with_other_arguments_on_a_gpu(case: tuple[Any, ...]) -> None:
    on_a_lane(changing, case)


def assert_near(expected: Batch, got: Batch, cls: type[Operator]) -> None:
    """Equal within the bound that the operator states: levels of integers, or parts of the largest float."""
    assert (expected.layout, expected.dtype, expected.shapes.tolist()) == (got.layout, got.dtype, got.shapes.tolist())
    for want, have in zip(expected, got, strict=True):
        most = max(1.0, float(np.abs(want.astype(float)).max(initial=0)))
        levels = 0.0 if cls.bound == "exact" else 1.0
        allowed = levels if want.dtype.kind in "iu" else 1e-4 * most
        assert np.abs(have.astype(float) - want.astype(float)).max(initial=0) <= allowed
