"""Makes auto_aug.npz with NVIDIA DALI 2.4 (CPU): every augmentation of its suites over bins and signs, and its three
schemes end to end with seeds."""

import json
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def
from nvidia.dali.auto_aug import auto_augment as aa
from nvidia.dali.auto_aug import rand_augment as ra
from nvidia.dali.auto_aug import trivial_augment as ta
from nvidia.dali.auto_aug.core import signed_bin

IMAGE = (19, 26, 3)


def image(seed, shape):
    """A picture with some contrast left to stretch."""
    return (40 + np.random.default_rng(seed).integers(0, 160, shape)).astype(np.uint8)


def one(augmentation, data, layout, bins, chosen, sign, **kwargs):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None, seed=1)
    def pipe():
        given = fn.external_source(source=lambda: [data], layout=layout)
        negated = signed_bin(chosen, random_sign=fn.constant(idata=sign, shape=[]))
        return augmentation(given, magnitude_bin=negated, num_magnitude_bins=bins, **kwargs)

    p = pipe()
    p.build()
    return np.array(p.run()[0].at(0))


def singles():
    """Suite, name, bin, sign, layout, shape and keywords of calls of one augmentation."""
    suites = {
        "rand": (ra.get_rand_augment_suite(), 31),
        "rand_shape": (ra.get_rand_augment_suite(use_shape=True), 31),
        "rand_old": (ra.get_rand_augment_non_monotonic_suite(), 31),
        "trivial": (ta.get_trivial_augment_wide_suite(), 31),
        "image_net": (list(aa.get_image_net_policy().augmentations.values()), 11),
        "cifar": (list(aa.get_reduced_cifar10_policy(True).augmentations.values()), 11),
    }
    for suite, (augmentations, bins) in suites.items():
        for a in augmentations:
            strengths = (0,) if a.mag_range is None else (0, bins // 3, bins - 1)
            for chosen in strengths:
                for sign in (0, 1) if a.randomly_negate else (0,):
                    yield suite, a, bins, chosen, sign, "HWC", IMAGE, {}
        if suite == "rand":
            for a in augmentations:
                yield suite, a, bins, 9, 1, "FHWC", (3, 7, 9, 3), {}
                if a.name in ("shear_x", "rotate", "translate_y"):
                    yield suite, a, bins, 20, 0, "HWC", IMAGE, {"fill_value": None}
                    yield suite, a, bins, 20, 1, "HWC", IMAGE, {"interp_type": "INTERP_NN", "fill_value": 7}


def scheme(name, seed, batch, iterations):
    """The outputs of a scheme over equal pictures, [iterations * batch, ...]."""
    data = image(5, IMAGE)
    calls = {
        "rand": lambda x: ra.rand_augment(x, n=2, m=17, seed=seed),
        "rand1": lambda x: ra.rand_augment(x, n=1, m=9, seed=seed, excluded=["rotate", "identity"]),
        "rand3": lambda x: ra.rand_augment(x, n=3, m=4, seed=seed, monotonic_mag=False, shape=(19, 26)),
        "trivial": lambda x: ta.trivial_augment_wide(x, seed=seed),
        "image_net": lambda x: aa.auto_augment(x, "image_net", seed=seed),
        "reduced_image_net": lambda x: aa.auto_augment(x, "reduced_image_net", seed=seed),
        "svhn": lambda x: aa.auto_augment(x, "svhn", seed=seed, max_translate_abs=9),
        "reduced_cifar10": lambda x: aa.auto_augment(x, "reduced_cifar10", seed=seed, shape=(19, 26)),
    }
    call = calls[name]

    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=1, enable_conditionals=True)
    def pipe():
        given = fn.external_source(source=lambda: [data] * batch, layout="HWC")
        return call(given)

    p = pipe()
    p.build()
    return np.stack([np.array(out.at(i)) for _ in range(iterations) for out in [p.run()[0]] for i in range(batch)])


if __name__ == "__main__":
    described, flat = [], []
    for suite, a, bins, chosen, sign, layout, shape, kwargs in singles():
        number = len(described)
        if suite in ("rand_shape", "cifar") and a.name.startswith("translate"):
            kwargs = {**kwargs, "shape": [19, 26]}
        typed = {k: getattr(types, v) if isinstance(v, str) else v for k, v in kwargs.items()}
        flat.append(one(a, image(number, shape), layout, bins, chosen, sign, **typed).reshape(-1))
        described.append(
            {"suite": suite, "name": a.name.split("__")[-1], "bins": bins, "bin": chosen, "sign": sign,
             "layout": layout, "shape": shape, "arguments": kwargs}
        )  # fmt: skip
    schemes = {
        f"scheme_{name}": scheme(name, 99, 8, 3)
        for name in ("rand", "rand1", "rand3", "trivial", "image_net", "reduced_image_net", "svhn", "reduced_cifar10")
    }
    path = Path(__file__).with_name("auto_aug.npz")
    np.savez_compressed(path, cases=json.dumps(described), singles=np.concatenate(flat), **schemes)
