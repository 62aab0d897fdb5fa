"""RandAugment, TrivialAugment and AutoAugment, for DALI's augmentations and for the user's.

DALI's augmentations become one operator, which draws an operation per image and runs all of them in one or two kernels.
The user's augmentations are called in conditionals, each with the samples that drew it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ....ops.augment import policies, suites
from ....ops.errors import SpecError
from ..control_flow.conditionals import Helper
from ..data_node import DataNode, apply, constant
from ..pipeline import Pipeline
from . import builtin, signatures
from .augmentation import Augmentation, drawn, select, signed_bin
from .policy import Policy

_STEP = 0x9E3779B97F4A7C15


def _seed(seed: int | None, number: int) -> int | None:
    """Return the seed of random draw ``number`` within one call, such as that of the signs. Draws get different seeds;
    if the pipeline uses DALI's random numbers, all get the same one, as in DALI."""
    pipeline = Pipeline.current()
    if seed is None or (pipeline is not None and pipeline.settings.rng == "dali"):
        return seed
    return (seed + number * _STEP) & 0x7FFFFFFFFFFFFFFF


def _given(**arguments: Any) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if v is not None}


def _filled(arguments: dict[str, Any], fill_value: int | None) -> dict[str, Any]:
    """Return ``arguments`` with ``fill_value`` added. None is passed on, because it means that the border is
    repeated."""
    return {**arguments, "fill_value": fill_value}


def rand_augment(
    data: DataNode, n: int, m: int, num_magnitude_bins: int = 31, shape: Any = None, fill_value: int | None = 128,
    interp_type: Any = None, max_translate_abs: Any = None, max_translate_rel: Any = None, seed: int | None = None,
    monotonic_mag: bool = True, excluded: list[str] | None = None,
) -> Any:  # fmt: skip
    """Apply RandAugment (arXiv 1909.13719) to uint8 images (HWC) or videos (FHWC): ``n`` operations in sequence per
    sample, drawn from 14, with the magnitude of bin ``m``.

    With ``shape`` (height, width), translations are fractions of the image size, up to ``max_translate_rel``. Without
    it they are in pixels, up to ``max_translate_abs``. Both limits are one number, or (vertical, horizontal).
    ``fill_value=None`` repeats the border. Raises SpecError.
    """
    _check_rand(n, m, num_magnitude_bins)
    if n == 0:
        warnings.warn("rand_augment with n=0 changes nothing", stacklevel=2)
        return data
    more = _given(shape=shape, interp_type=interp_type, max_translate_abs=max_translate_abs, seed=seed,
                  max_translate_rel=max_translate_rel, excluded=excluded)  # fmt: skip
    more |= {"n": n, "m": m, "num_magnitude_bins": num_magnitude_bins, "monotonic_mag": monotonic_mag}
    return apply("auto_aug.rand_augment", [data], _filled(more, fill_value))


def _check_rand(n: Any, m: Any, bins: Any) -> None:
    if not isinstance(n, int) or n < 0:
        raise SpecError(f"n must be an integer, 0 or more, got {n!r}")
    if not isinstance(bins, int) or bins < 1:
        raise SpecError(f"num_magnitude_bins must be a positive integer, got {bins!r}")
    if not isinstance(m, int) or not 0 <= m < bins:
        raise SpecError(f"m must be an integer from 0 to {bins - 1}, got {m!r}")


def apply_rand_augment(
    augmentations: Sequence[Augmentation], data: DataNode, n: int, m: int, num_magnitude_bins: int = 31,
    seed: int | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Apply RandAugment with the user's ``augmentations``; ``kwargs`` are passed to those that accept them. See
    `rand_augment`."""
    _check_rand(n, m, num_magnitude_bins)
    if n == 0:
        warnings.warn("apply_rand_augment with n=0 changes nothing", stacklevel=2)
        return data
    if len(augmentations) == 0:
        raise SpecError("augmentations must not be empty")
    signatures.refuse_unused([a.op for a in augmentations], kwargs, "apply_rand_augment")
    operations = builtin.as_operations(augmentations, num_magnitude_bins, list(kwargs))
    if operations is not None:
        more = {"n": n, "m": m, "num_magnitude_bins": num_magnitude_bins, "operations": operations}
        return apply("auto_aug.rand_augment", [data], {**more, **_given(seed=seed), **_handed_on(kwargs)})
    shape = () if n == 1 else (n,)
    selected = drawn(range(len(augmentations)), _seed(seed, 1), shape)
    signed = any(a.randomly_negate for a in augmentations)
    bins: Any = signed_bin(m, seed=_seed(seed, 2), shape=shape) if signed else m
    for step in range(n):
        step_bins = bins if n == 1 or not signed else bins[step]
        index = selected if n == 1 else selected[step]
        data = select(
            augmentations, index, data, magnitude_bin=step_bins, num_magnitude_bins=num_magnitude_bins, **kwargs
        )
    return data


def _handed_on(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that a program passed to augmentations, as arguments of the operator that applies
    them. Arguments that are None are left out, except ``fill_value``."""
    return {k: v for k, v in kwargs.items() if v is not None or k == "fill_value"}


def trivial_augment_wide(
    data: DataNode, num_magnitude_bins: int = 31, shape: Any = None, fill_value: int | None = 128,
    interp_type: Any = None, max_translate_abs: Any = None, max_translate_rel: Any = None, seed: int | None = None,
    excluded: list[str] | None = None,
) -> Any:  # fmt: skip
    """Apply TrivialAugment Wide (arXiv 2103.10158): one operation per sample, drawn from 14, with a random magnitude.

    The arguments are those of `rand_augment`. Raises SpecError.
    """
    more = _given(shape=shape, interp_type=interp_type, max_translate_abs=max_translate_abs, seed=seed,
                  max_translate_rel=max_translate_rel, excluded=excluded)  # fmt: skip
    more["num_magnitude_bins"] = num_magnitude_bins
    return apply("auto_aug.trivial_augment_wide", [data], _filled(more, fill_value))


def apply_trivial_augment(
    augmentations: Sequence[Augmentation], data: DataNode, num_magnitude_bins: int = 31, seed: int | None = None,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Apply TrivialAugment with the user's ``augmentations``; ``kwargs`` are passed to those that accept them."""
    if not isinstance(num_magnitude_bins, int) or num_magnitude_bins < 1:
        raise SpecError(f"num_magnitude_bins must be a positive integer, got {num_magnitude_bins!r}")
    if len(augmentations) == 0:
        raise SpecError("augmentations must not be empty")
    signatures.refuse_unused([a.op for a in augmentations], kwargs, "apply_trivial_augment")
    operations = builtin.as_operations(augmentations, num_magnitude_bins, list(kwargs))
    if operations is not None:
        more = {"num_magnitude_bins": num_magnitude_bins, "operations": operations}
        return apply("auto_aug.trivial_augment_wide", [data], {**more, **_given(seed=seed), **_handed_on(kwargs)})
    bins: Any = drawn(range(num_magnitude_bins), _seed(seed, 1))
    if any(a.randomly_negate for a in augmentations):
        bins = signed_bin(bins, seed=_seed(seed, 2))
    selected = drawn(range(len(augmentations)), _seed(seed, 3))
    return select(augmentations, selected, data, magnitude_bin=bins, num_magnitude_bins=num_magnitude_bins, **kwargs)


def auto_augment(
    data: DataNode, policy_name: str = "image_net", shape: Any = None, fill_value: int | None = 128,
    interp_type: Any = None, max_translate_abs: Any = None, max_translate_rel: Any = None, seed: int | None = None,
) -> Any:  # fmt: skip
    """Apply AutoAugment (arXiv 1805.09501) with one of its policies: image_net, reduced_image_net, svhn,
    reduced_cifar10.

    The arguments are those of `rand_augment`. Raises SpecError.
    """
    if policy_name not in policies.NAMES:
        raise SpecError(f"policy_name must be one of {', '.join(policies.NAMES)}, got {policy_name!r}")
    more = _given(shape=shape, interp_type=interp_type, max_translate_abs=max_translate_abs, seed=seed,
                  max_translate_rel=max_translate_rel)  # fmt: skip
    return apply("auto_aug.auto_augment", [data], _filled({**more, "policy_name": policy_name}, fill_value))


def auto_augment_image_net(
    data: DataNode, shape: Any = None, fill_value: int | None = 128, interp_type: Any = None,
    max_translate_abs: Any = None, max_translate_rel: Any = None, seed: int | None = None,
) -> Any:  # fmt: skip
    """Apply `auto_augment` with the policy image_net."""
    return auto_augment(data, "image_net", shape, fill_value, interp_type, max_translate_abs, max_translate_rel, seed)


def _unchanged(data: Any) -> Any:
    return data


def apply_auto_augment(policy: Policy, data: DataNode, seed: int | None = None, **kwargs: Any) -> Any:
    """Apply AutoAugment with ``policy``; ``kwargs`` are passed to the augmentations that accept them. Raises
    SpecError."""
    if not policy.sub_policies:
        raise SpecError(f"policy {policy.name} has no sub-policies")
    rows, longest = policy.sub_policies, max(map(len, policy.sub_policies))
    used = list(dict.fromkeys(a for steps in rows for a, _, _ in steps))
    bins = policy.num_magnitude_bins
    signatures.refuse_unused([a.op for a in used], kwargs, "apply_auto_augment")
    operations = builtin.as_operations(used, bins, list(kwargs))
    if operations is not None:
        steps = [[[used.index(a), float(p), strength] for a, p, strength in row] for row in rows]
        more = {"operations": operations, "sub_policies": steps, "num_magnitude_bins": bins}
        return apply("auto_aug.auto_augment", [data], {**more, **_given(seed=seed), **_handed_on(kwargs)})
    shares = np.zeros((len(rows), longest), np.float32)
    strengths, places = np.zeros((2, len(rows), longest), np.int32)
    choices: list[list[Augmentation]] = []
    for k in range(longest):
        of_step = [*dict.fromkeys(row[k][0] for row in rows if k < len(row)), builtin.identity]
        choices.append(of_step)
        for i, row in enumerate(rows):
            a, p, strength = row[k] if k < len(row) else (builtin.identity, 0.0, None)
            shares[i, k], strengths[i, k], places[i, k] = p, strength or 0, of_step.index(a)
    runs = apply("random.uniform", [], {"range": [0, 1], "shape": [longest], **_given(seed=_seed(seed, 1))})
    selected = drawn(range(len(rows)), _seed(seed, 2))
    share, place = constant(shares)[selected], constant(places)[selected]
    chosen: Any = constant(strengths)[selected]
    if any(a.randomly_negate for a in used):
        chosen = signed_bin(chosen, seed=_seed(seed, 3), shape=(longest,))

    def step(k: int, before: Any) -> Any:
        return select(choices[k], place[k], before, magnitude_bin=chosen[k], num_magnitude_bins=bins, **kwargs)

    for k in range(longest):
        data = Helper.choose(runs[k] < share[k], partial(step, k, data), partial(_unchanged, data), 0)
    return data


# -- what they choose from ------------------------------------------------------------------------------------------


def get_rand_augment_suite(
    use_shape: bool = False, max_translate_abs: Any = None, max_translate_rel: Any = None
) -> list[Augmentation]:
    """Return the 14 augmentations of `rand_augment`. With ``use_shape``, translations are fractions of the image size,
    which the augmentations then take as the argument ``shape``."""
    return [builtin.of(e) for e in suites.rand_augment(use_shape, max_translate_abs, max_translate_rel)]


def get_rand_augment_non_monotonic_suite(
    use_shape: bool = False, max_translate_abs: Any = None, max_translate_rel: Any = None
) -> list[Augmentation]:
    """Return the augmentations of `get_rand_augment_suite` with AutoAugment's ranges, in which a higher magnitude bin
    is not always a stronger effect."""
    entries = suites.rand_augment(use_shape, max_translate_abs, max_translate_rel, monotonic=False)
    return [builtin.of(e) for e in entries]


def get_trivial_augment_wide_suite(
    use_shape: bool = False, max_translate_abs: Any = None, max_translate_rel: Any = None
) -> list[Augmentation]:
    """Return the 14 augmentations of `trivial_augment_wide`."""
    return [builtin.of(e) for e in suites.trivial_augment_wide(use_shape, max_translate_abs, max_translate_rel)]


def _policy(name: str, title: str, *translations: Any) -> Policy:
    used = {word: builtin.of(e) for word, e in policies.augmentations(name, *translations).items()}
    rows = [[(used[word], p, strength) for word, p, strength in steps] for steps in policies.sub_policies(name)]
    return Policy(title, policies.BINS, rows)


def get_image_net_policy(
    use_shape: bool = False, max_translate_abs: Any = None, max_translate_rel: Any = None
) -> Policy:
    """Return AutoAugment's policy for ImageNet."""
    return _policy("image_net", "ImageNetPolicy", use_shape, max_translate_abs, max_translate_rel)


def get_reduced_image_net_policy() -> Policy:
    """Return AutoAugment's policy for the reduced ImageNet."""
    return _policy("reduced_image_net", "ReducedImageNetPolicy")


def get_reduced_cifar10_policy(
    use_shape: bool = False, max_translate_abs: Any = None, max_translate_rel: Any = None
) -> Policy:
    """Return AutoAugment's policy for the reduced CIFAR-10."""
    return _policy("reduced_cifar10", "ReducedCifar10Policy", use_shape, max_translate_abs, max_translate_rel)


def get_svhn_policy(use_shape: bool = False, max_translate_abs: Any = None, max_translate_rel: Any = None) -> Policy:
    """Return AutoAugment's policy for SVHN."""
    return _policy("svhn", "SvhnPolicy", use_shape, max_translate_abs, max_translate_rel)
