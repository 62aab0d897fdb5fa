"""AutoAugment, RandAugment, TrivialAugment: DALI's results (golden/make_auto_aug.py: auto_aug.npz), what is drawn, and
the CUDA kernels run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.augment import operators, policies, suites  # noqa: F401  # the first declares them
from dali_run.ops.base import Spec
from dali_run.ops.batch import Samples
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

from ...kit.dali_cases import apply, batch_of, operator
from ...kit.emulated_lane import EmulatedLane

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "auto_aug.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
IMAGE = (19, 26, 3)
SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "rand": ("auto_aug.rand_augment", {"n": 2, "m": 17}),
    "rand1": ("auto_aug.rand_augment", {"n": 1, "m": 9, "excluded": ["rotate", "identity"]}),
    "rand3": ("auto_aug.rand_augment", {"n": 3, "m": 4, "monotonic_mag": False, "shape": [19, 26]}),
    "trivial": ("auto_aug.trivial_augment_wide", {}),
    "image_net": ("auto_aug.auto_augment", {}),
    "reduced_image_net": ("auto_aug.auto_augment", {"policy_name": "reduced_image_net"}),
    "svhn": ("auto_aug.auto_augment", {"policy_name": "svhn", "max_translate_abs": 9}),
    "reduced_cifar10": ("auto_aug.auto_augment", {"policy_name": "reduced_cifar10", "shape": [19, 26]}),
}


def image(seed: int, shape: Any) -> np.ndarray:
    """As make_auto_aug.py makes it."""
    return (40 + np.random.default_rng(seed).integers(0, 160, shape)).astype(np.uint8)


def entry(case: dict[str, Any]) -> suites.Augmentation:
    """The augmentation that a case is about."""
    known = {
        "rand": suites.rand_augment(),
        "rand_shape": suites.rand_augment(True),
        "rand_old": suites.rand_augment(monotonic=False),
        "trivial": suites.trivial_augment_wide(),
        "image_net": list(policies.augmentations("image_net").values()),
        "cifar": list(policies.augmentations("reduced_cifar10", True).values()),
    }[case["suite"]]
    return next(a for a in known if a.function.removesuffix("_no_shape") == case["name"])


def single(case: dict[str, Any], number: int, lane: Any = None) -> np.ndarray:
    """Our result for a case of one augmentation."""
    a = entry(case)
    numbers = a.rows(case["bins"])[case["bin"], case["sign"], : suites.WIDTHS[a.operation]]
    op = operator("auto_aug.augment", operation=a.operation, parameters=numbers.tolist(), **case["arguments"])
    out, rejects = apply(op, batch_of([image(number, case["shape"])], case["layout"]), lane=lane)
    assert not rejects
    assert out.layout == case["layout"]
    return out.sample(0)


@pytest.mark.parametrize("suite", ["rand", "rand_shape", "rand_old", "trivial", "image_net", "cifar"])
def test_every_operation_gives_the_results_of_dali(suite: str) -> None:
    at = values = differing = 0
    for number, case in enumerate(CASES):
        size = int(np.prod(case["shape"]))
        want = GOLDEN["singles"][at : at + size].reshape(case["shape"])
        at += size
        if case["suite"] != suite:
            continue
        off = np.abs(single(case, number).astype(int) - want)
        assert off.max() <= 1, (case, off.max())
        values, differing = values + off.size, differing + np.count_nonzero(off)
    assert values > 10_000
    assert differing <= 0.005 * values  # ties: shears and filters by multiples of 0.1 make many


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_with_seeds_are_those_of_dali(name: str) -> None:
    want = GOLDEN[f"scheme_{name}"]
    kind, arguments = SCHEMES[name]
    op = operator(kind, **arguments)
    got = []
    for iteration in range(3):
        samples = Samples.numbered(8)
        samples = Samples(samples.slot, samples.position + 8 * iteration, samples.epoch, samples.index)
        out, rejects = apply(op, batch_of([image(5, IMAGE)] * 8, "HWC", samples), seed=99, rng="dali")
        assert not rejects
        got += list(out)
    off = np.abs(np.stack(got).astype(int) - want)
    assert np.mean(off > 1) <= 0.001
    assert np.mean(off > 0) <= 0.01


@pytest.mark.parametrize("suite", ["rand", "rand_old", "image_net"])
def test_cuda_run_on_the_cpu(suite: str) -> None:
    lane = EmulatedLane()
    for number, case in enumerate(CASES):
        if case["suite"] == suite and (case["bin"] != 0 or case["name"] in ("equalize", "auto_contrast", "invert")):
            off = np.abs(single(case, number, lane).astype(int) - single(case, number))
            assert off.max() <= 1, case
            assert np.mean(off) <= 0.01
    assert {"augment_step", "augment_tables"} <= set(lane.launched)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_numbers_of_channels(channels: int) -> None:
    for a in suites.rand_augment():
        numbers = a.rows(31)[20, 1, : suites.WIDTHS[a.operation]].tolist()
        op = operator("auto_aug.augment", operation=a.operation, parameters=numbers)
        images = batch_of([image(k, (5 + k, 9, channels)) for k in range(3)] + [image(0, (1, 1, channels))], "HWC")
        want, rejects = apply(op, images)
        assert not rejects
        got, _ = apply(op, images, lane=EmulatedLane())
        for x, y in zip(want, got, strict=True):
            assert np.abs(x.astype(int) - y).max() <= 1
    out, _ = apply(operator("auto_aug.augment", operation="color", parameters=[0.0]), batch_of([image(1, (4, 4, 1))]))
    np.testing.assert_array_equal(out.sample(0), image(1, (4, 4, 1)))  # gray has no colour to lose


def ragged(count: int) -> list[np.ndarray]:
    return [image(k, (11 + 3 * (k % 5), 9 + 2 * (k % 7), 3)) for k in range(count)]


@pytest.mark.parametrize("name", ["rand3", "trivial", "image_net", "reduced_cifar10"])
def test_batches_of_many_sizes_on_the_cuda_kernels(name: str) -> None:
    kind, arguments = SCHEMES[name]
    op = operator(kind, **arguments)
    images = batch_of(ragged(40), "HWC")
    want, _ = apply(op, images, seed=3)
    got, rejects = apply(op, images, seed=3, lane=EmulatedLane())
    assert not rejects
    changed = 0
    for x, y, z in zip(want, got, images, strict=True):
        assert np.abs(x.astype(int) - y).max() <= 3  # a level at the first step may be more after others
        changed += not np.array_equal(x, z)
    assert changed >= 20


@pytest.mark.gpu
@pytest.mark.parametrize("name", SCHEMES)
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    kind, arguments = SCHEMES[name]
    op = operator(kind, **arguments)
    images = batch_of(ragged(64), "HWC")
    want, _ = apply(op, images, seed=3)
    with Lane() as lane:
        out, _ = apply(op, lane.to_device(images), seed=3, lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    off = np.concatenate([np.abs(x.astype(int) - y).reshape(-1) for x, y in zip(want, got, strict=True)])
    assert np.mean(off > 0) <= 0.01
    assert np.mean(off > 2) <= 0.001


def test_each_sample_is_as_if_it_were_alone() -> None:
    op = operator("auto_aug.rand_augment", n=2, m=9)
    images = batch_of(ragged(12), "HWC")
    whole, _ = apply(op, images, seed=4)
    for where in (slice(3, 5), slice(11, 12)):
        part, _ = apply(op, images.take(where), seed=4)
        for a, b in zip(part, list(whole)[where], strict=True):
            np.testing.assert_array_equal(a, b)


def test_draws_are_independent_and_even() -> None:
    """DALI draws an operation and its sign from one number when it is given a seed."""
    samples = Samples.numbered(20_000)
    blank = batch_of([np.zeros((1, 1, 3), np.uint8)] * 20_000, "HWC", samples)
    from dali_run.ops.context import Context

    def chosen(name: str, rng: str, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        op = operator(name, **arguments)
        return op.chosen(Context(op, "cpu", blank.samples, seed=99, rng=rng))

    for rng, share in (("philox", 0.5), ("dali", None)):
        codes, numbers = chosen("auto_aug.rand_augment", rng, n=2, m=9)
        assert np.all(np.abs(np.bincount(codes[:, 0]) - np.bincount(codes[:, 1])) < 400)
        rotated = numbers[codes == suites.OPERATIONS.index("rotate")][:, 0]
        negative = np.mean(rotated < 0)
        assert abs(negative - share) < 0.03 if share else negative in (0, 1)
    codes, numbers = chosen("auto_aug.trivial_augment_wide", "philox")
    angles = numbers[codes == suites.OPERATIONS.index("rotate")][:, 0]
    assert len(set(np.abs(angles).round(3).tolist())) == 31
    codes, _ = chosen("auto_aug.auto_augment", "philox")
    assert 0.1 < np.mean(codes[:, 0] == 0) < 0.7


def test_policies_are_the_published_ones() -> None:
    for name in policies.NAMES:
        rows = policies.sub_policies(name)
        assert len(rows) == 25
        assert all(1 <= len(steps) <= 2 for steps in rows)
        assert all(0 < p <= 1 and (b is None or 0 <= b < 11) for steps in rows for _, p, b in steps)
    assert policies.sub_policies("image_net")[15] == [("rotate", 1.0, 7), ("translate_y", 0.8, 9)]
    assert policies.sub_policies("svhn")[15] == [("invert", 0.8, None)]


def test_equalize_is_that_of_opencv() -> None:
    op = operator("auto_aug.augment", operation="equalize")
    for seed in range(6):
        random = np.random.default_rng(seed)
        picture = random.integers(0, random.integers(2, 257), (31, 29, 3)).astype(np.uint8)
        if seed == 0:
            picture[:] = 77
        want = np.stack([cv2.equalizeHist(np.ascontiguousarray(picture[..., c])) for c in range(3)], axis=2)
        for lane in (None, EmulatedLane()):
            out, _ = apply(op, batch_of([picture], "HWC"), lane=lane)
            np.testing.assert_array_equal(out.sample(0), want)


def test_refused_before_anything_runs() -> None:
    op = operator("auto_aug.rand_augment", n=2, m=9)
    with pytest.raises(SpecError, match="cast"):
        op.infer(Spec((4, 4, 3), DALIDataType.FLOAT, "HWC"))
    with pytest.raises(SpecError, match="1 to 4 channels"):
        op.infer(Spec((4, 4, 5), DALIDataType.UINT8, "HWC"))
    for wrong, said in (
        ({"n": 1, "m": 31}, "below num_magnitude_bins"),
        ({"n": 1, "m": 3, "excluded": ["hue"]}, "not one of"),
        ({"n": 1, "m": 3, "max_translate_rel": 0.5}, "needs shape"),
        ({"n": 1, "m": 3, "shape": [4, 4], "max_translate_abs": 5}, "without shape"),
        ({"n": 1, "m": 3, "operations": [["rotate", True, [1, 2]]]}, "numbers for each"),
        ({"n": 1, "m": 3, "operations": [["turn", True, []]]}, "operations takes"),
    ):
        with pytest.raises(SpecError, match=said):
            operator("auto_aug.rand_augment", **wrong)
    with pytest.raises(SpecError, match="moves nothing"):
        operator("auto_aug.auto_augment", policy_name="reduced_image_net", max_translate_abs=4)
    with pytest.raises(SpecError, match="takes 2 parameters"):
        operator("auto_aug.augment", operation="shear", parameters=[1])


def test_images_of_many_channels_are_rejected_alone() -> None:
    images = batch_of([image(0, (4, 4, 3)), image(0, (4, 4, 7)), image(1, (4, 4, 3))], "HWC")
    out, rejects = apply(operator("auto_aug.augment", operation="invert"), images)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    np.testing.assert_array_equal(out.sample(2), 255 - image(1, (4, 4, 3)))
