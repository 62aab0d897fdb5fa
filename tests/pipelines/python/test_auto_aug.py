"""dali_run.auto_aug: the schemes in pipelines, augmentations and policies of users' own, and what is refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, types
from dali_run.auto_aug import augmentations as a
from dali_run.auto_aug import auto_augment as aa
from dali_run.auto_aug import rand_augment as ra
from dali_run.auto_aug import trivial_augment as ta
from dali_run.auto_aug.core import Policy, augmentation, select, signed_bin

IMAGES = np.random.default_rng(0).integers(0, 256, (16, 11, 14, 3)).astype(np.uint8)


def run(definition: Callable[[Any], Any], **arguments: Any) -> np.ndarray:
    """The pictures that a definition makes of IMAGES."""

    @pipeline_def(batch_size=len(IMAGES), num_threads=2, device_id=None, seed=1, **arguments)
    def pipe() -> Any:
        return definition(fn.external_source(source=lambda: list(IMAGES), layout="HWC"))

    pipeline = pipe()
    pipeline.build()
    return np.stack([np.asarray(t) for t in pipeline.run()[0]])


@augmentation(mag_range=(0, 200), mag_to_param=lambda m: np.uint8(m))
def darker(data: Any, amount: Any, floor: int = 0) -> Any:
    return fn.cast(fn.cast(data, dtype=types.INT32) - amount + floor, dtype=types.UINT8)


@augmentation
def mirrored(data: Any, _: Any) -> Any:
    return fn.flip(data)


@augmentation(mag_range=(1, 100), randomly_negate=True, mag_to_param=lambda m: np.int32(m))
def shifted(data: Any, amount: Any) -> Any:
    return fn.cast(data, dtype=types.INT32) + amount


def test_all_names_of_dali_are_there() -> None:
    names = {
        "augmentations": "shear_x shear_y translate_x translate_x_no_shape translate_y translate_y_no_shape rotate "
        "brightness contrast color sharpness posterize solarize solarize_add invert equalize auto_contrast identity "
        "warp_x_param warp_y_param shift_enhance_range sharpness_kernel sharpness_kernel_shifted poster_mask_uint8 "
        "solarize_add_shift augmentation",
        "auto_augment": "auto_augment auto_augment_image_net apply_auto_augment get_image_net_policy "
        "get_reduced_cifar10_policy get_svhn_policy get_reduced_image_net_policy",
        "rand_augment": "rand_augment apply_rand_augment get_rand_augment_suite get_rand_augment_non_monotonic_suite",
        "trivial_augment": "trivial_augment_wide apply_trivial_augment get_trivial_augment_wide_suite",
        "core": "signed_bin augmentation select Policy _Augmentation",
    }
    for module, found in names.items():
        assert set(found.split()) <= set(dir(importlib.import_module(f"dali_run.auto_aug.{module}")))


def test_suites_and_policies_give_what_the_named_schemes_give() -> None:
    pairs: list[tuple[Any, Any]] = [
        (lambda x: ra.rand_augment(x, 2, 9, seed=7),
         lambda x: ra.apply_rand_augment(ra.get_rand_augment_suite(), x, 2, 9, seed=7, fill_value=128)),
        (lambda x: ra.rand_augment(x, 1, 3, monotonic_mag=False, seed=7, shape=(11, 14)),
         lambda x: ra.apply_rand_augment(ra.get_rand_augment_non_monotonic_suite(True), x, 1, 3, seed=7,
                                         shape=(11, 14))),
        (lambda x: ta.trivial_augment_wide(x, seed=7, fill_value=None, interp_type=types.INTERP_NN),
         lambda x: ta.apply_trivial_augment(ta.get_trivial_augment_wide_suite(), x, seed=7, fill_value=None,
                                            interp_type=types.INTERP_NN)),
        (lambda x: aa.auto_augment(x, "svhn", seed=7, shape=fn.shapes(x)),
         lambda x: aa.apply_auto_augment(aa.get_svhn_policy(True), x, seed=7, shape=fn.shapes(x))),
        (lambda x: aa.auto_augment_image_net(x, seed=7),
         lambda x: aa.apply_auto_augment(aa.get_image_net_policy(), x, seed=7)),
    ]  # fmt: skip
    for named, applied in pairs:
        got = run(named)
        np.testing.assert_array_equal(got, run(applied))
        assert not np.array_equal(got, IMAGES)


def test_one_augmentation_with_a_bin_and_a_sign() -> None:
    for sign in (0, 1):
        turned = run(
            lambda x, sign=sign: a.rotate(
                x, magnitude_bin=signed_bin(10, random_sign=fn.constant(idata=[sign], shape=[])), num_magnitude_bins=31
            )
        )
        want = run(lambda x, sign=sign: fn.rotate(x, angle=-10.0 if sign else 10.0, keep_size=True, fill_value=128))
        assert np.abs(turned.astype(int) - want).max() <= 1
    stronger = a.posterize.augmentation(mag_range=(1, 1), name="coarse")
    assert stronger.name == "coarse"
    np.testing.assert_array_equal(run(lambda x: stronger(x, magnitude_bin=0, num_magnitude_bins=3)), IMAGES & 128)


@pytest.mark.parametrize("arguments", [{}, {"enable_conditionals": True}])
def test_users_augmentations_take_their_part_of_the_batch(arguments: dict[str, Any]) -> None:
    got = run(lambda x: ra.apply_rand_augment([darker, mirrored, a.invert], x, 1, 3, 5, seed=7, floor=2), **arguments)
    dark = np.clip(IMAGES.astype(int) - 150 + 2, 0, 255)
    counts = [0, 0, 0]
    for image, out, low in zip(IMAGES, got, dark, strict=True):
        found = [np.array_equal(out, low), np.array_equal(out, image[:, ::-1]), np.array_equal(out, 255 - image)]
        assert sum(found) == 1
        counts[found.index(True)] += 1
    assert min(counts) > 0


def test_users_policies() -> None:
    policy = Policy("mine", 5, [[(darker, 1.0, 2), (mirrored, 1.0, None)], [(a.invert, 1.0, None)]])
    got = run(lambda x: aa.apply_auto_augment(policy, x, seed=3))
    first = np.clip(IMAGES.astype(int) - 100, 0, 255)[:, :, ::-1]
    kinds = [(np.array_equal(g, f), np.array_equal(g, 255 - i)) for g, f, i in zip(got, first, IMAGES, strict=True)]
    assert {(True, False), (False, True)} == set(kinds)
    chosen = run(lambda x: select([mirrored, a.invert], fn.random.coin_flip(seed=1), x))
    assert all(np.array_equal(c, i[:, ::-1]) or np.array_equal(c, 255 - i) for c, i in zip(chosen, IMAGES, strict=True))


def test_signs_and_bins_are_independent_with_a_seed() -> None:
    got = run(lambda x: ta.apply_trivial_augment([shifted], x, 4, seed=7)).astype(int) - IMAGES
    amounts = got.reshape(len(IMAGES), -1)
    assert (amounts == amounts[:, :1]).all()
    drawn = amounts[:, 0]
    assert set(np.abs(drawn).tolist()) <= {1, 34, 67, 100}
    assert 0 < np.count_nonzero(drawn < 0) < len(drawn)
    low, high = np.abs(drawn) < 50, np.abs(drawn) > 50
    assert {bool(v) for v in drawn[low] < 0} == {bool(v) for v in drawn[high] < 0} == {True, False}


def test_the_schemes_are_operators_of_specs() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None, seed=1)
    def pipe() -> Any:
        images = fn.random.uniform(range=[0, 255], shape=[8, 8, 3], dtype=types.UINT8)
        moved = ra.rand_augment(fn.reshape(images, layout="HWC"), 2, 9)
        return aa.apply_auto_augment(aa.get_image_net_policy(), moved)

    pipeline = pipe()
    pipeline.build()
    pipeline.run()
    text = pipeline.to_yaml()
    assert "auto_aug.rand_augment" in text
    assert "auto_aug.auto_augment" in text


def test_what_is_wrong_is_said() -> None:
    cases: list[tuple[Any, str]] = [
        (lambda x: ra.rand_augment(x, -1, 3), "n must be"),
        (lambda x: ra.rand_augment(x, 2, 31), "from 0 to 30"),
        (lambda x: ra.rand_augment(x, 2, 3, excluded=["hue"]), "not one of"),
        (lambda x: ra.apply_rand_augment([], x, 2, 3), "must not be empty"),
        (lambda x: ra.apply_rand_augment([mirrored], x, 2, 3, ceiling=3), "'ceiling'"),
        (lambda x: ta.apply_trivial_augment(ta.get_trivial_augment_wide_suite(True), x), "needs shape"),
        (lambda x: ta.trivial_augment_wide(x, 0), "at least 1"),
        (lambda x: aa.auto_augment(x, "imagenet"), "policy_name must be one of"),
        (lambda x: aa.apply_auto_augment(Policy("none", 3, []), x), "no sub-policies"),
        (lambda x: darker(x, num_magnitude_bins=3), "magnitude_bin is required"),
        (lambda x: darker(x, magnitude_bin=1), "num_magnitude_bins is required"),
    ]
    for definition, said in cases:
        with pytest.raises(RuntimeError, match=said):
            run(definition)
    for steps, said in (
        ([[(darker, 1.0, None)]], "has magnitudes"),
        ([[(darker, 1.0, 5)]], "0 to 4"),
        ([[(darker, 1.5, 1)]], "between 0 and 1"),
        ([[(len, 1.0, 1)]], "decorate it"),
        ([[darker]], "must be \\(augmentation"),
        (3, "list of lists"),
    ):
        with pytest.raises(RuntimeError, match=said):
            Policy("wrong", 5, steps)
    with pytest.raises(RuntimeError, match="must take the data and a parameter"):
        augmentation(lambda data: data)
    with pytest.raises(RuntimeError, match="already an augmentation"):
        augmentation(darker)
    with pytest.warns(UserWarning, match="changes nothing"):
        run(lambda x: ra.rand_augment(x, 0, 3))
    with pytest.warns(UserWarning, match="never applied"):
        Policy("idle", 5, [[(darker, 0, 1)]])
