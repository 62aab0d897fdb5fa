"""AutoAugment's policies (Cubuk et al., arXiv 1805.09501, appendix): 25 sub-policies each, of one or two steps."""

from __future__ import annotations

from .suites import Augmentation, Relative, added, along_x, along_y, poster_mask, sharpening_from_one, translations

Step = tuple[str, float, int | None]
"""Step of a sub-policy: name of the operation, probability, and bin of the magnitude (None if the operation has no
magnitude)."""
BINS = 11

_ENHANCED = (0.1, 1.9)
_OPERATIONS = {
    "shear_x": Augmentation("shear_x", (0, 0.3), True, along_x),
    "shear_y": Augmentation("shear_y", (0, 0.3), True, along_y),
    "rotate": Augmentation("rotate", (0, 30), True),
    "brightness": Augmentation("brightness", _ENHANCED),
    "contrast": Augmentation("contrast", _ENHANCED),
    "color": Augmentation("color", _ENHANCED),
    "sharpness": Augmentation("sharpness", _ENHANCED, False, sharpening_from_one),
    "posterize": Augmentation("posterize", (0, 4), False, poster_mask),
    "solarize": Augmentation("solarize", (0, 256)),
    "solarize_add": Augmentation("solarize_add", (0, 110), False, added),
    "invert": Augmentation("invert"),
    "equalize": Augmentation("equalize"),
    "auto_contrast": Augmentation("auto_contrast"),
}

_IMAGE_NET = """
    equalize .8 shear_y .8 4 | color .4 9 equalize .6 | color .4 1 rotate .6 8 | solarize .8 3 equalize .4
    solarize .4 2 solarize .6 2 | color .2 0 equalize .8 | equalize .4 solarize_add .8 3 | shear_x .2 9 rotate .6 8
    color .6 1 equalize 1 | invert .4 rotate .6 0 | equalize 1 shear_y .6 3 | color .4 7 equalize .6
    posterize .4 6 auto_contrast .4 | solarize .6 8 color .6 9 | solarize .2 4 rotate .8 9
    rotate 1 7 translate_y .8 9 | solarize .8 4 | shear_y .8 0 color .6 4 | color 1 0 rotate .6 2 | equalize .8
    equalize 1 auto_contrast .6 | shear_y .4 7 solarize_add .6 7 | posterize .8 2 solarize .6 10
    solarize .6 8 equalize .6 | color .8 6 rotate .4 5"""
_REDUCED_CIFAR10 = """
    invert .1 contrast .2 6 | rotate .7 2 translate_x .3 9 | sharpness .8 1 sharpness .9 3
    shear_y .5 8 translate_y .7 9 | auto_contrast .5 equalize .9 | shear_y .2 7 posterize .3 7
    color .4 3 brightness .6 7 | sharpness .3 9 brightness .7 9 | equalize .6 equalize .5 | contrast .6 7 sharpness .6 5
    color .7 7 translate_x .5 8 | equalize .3 auto_contrast .4 | translate_y .4 3 sharpness .2 6
    brightness .9 6 color .2 8 | solarize .5 2 invert 0 | equalize .2 auto_contrast .6 | equalize .2 equalize .6
    color .9 9 equalize .6 | auto_contrast .8 solarize .2 8 | brightness .1 3 color .7 0
    solarize .4 5 auto_contrast .9 | translate_y .9 9 translate_y .7 9 | auto_contrast .9 solarize .8 3
    equalize .8 invert .1 | translate_y .7 9 auto_contrast .9"""
_SVHN = """
    shear_x .9 4 invert .2 | shear_y .9 8 invert .7 | equalize .6 solarize .6 6 | invert .9 equalize .6
    equalize .6 rotate .9 3 | shear_x .9 4 auto_contrast .8 | shear_y .9 8 invert .4 | shear_y .9 5 solarize .2 6
    invert .9 auto_contrast .8 | equalize .6 rotate .9 3 | shear_x .9 4 solarize .3 3 | shear_y .8 8 invert .7
    equalize .9 translate_y .6 6 | invert .9 equalize .6 | contrast .3 3 rotate .8 4 | invert .8 translate_y 0 2
    shear_y .7 6 solarize .4 8 | invert .6 rotate .8 4 | shear_y .3 7 translate_x .9 3 | shear_x .1 6 invert .6
    solarize .7 2 translate_y .6 7 | shear_y .8 4 invert .8 | shear_x .7 9 translate_y .8 3
    shear_y .8 5 auto_contrast .7 | shear_x .7 2 invert .1"""
_REDUCED_IMAGE_NET = """
    posterize .4 8 rotate .6 9 | solarize .6 5 auto_contrast .6 | equalize .8 equalize .6
    posterize .6 7 posterize .6 6 | equalize .4 solarize .2 4 | equalize .4 rotate .8 8 | solarize .6 3 equalize .6
    posterize .8 5 equalize 1 | rotate .2 3 solarize .6 8 | equalize .6 posterize .4 6 | rotate .8 8 color .4 0
    rotate .4 9 equalize .6 | equalize 0 equalize .8 | invert .6 equalize 1 | color .6 4 contrast 1 8
    rotate .8 8 color 1 2 | color .8 8 solarize .8 7 | sharpness .4 7 invert .6 | shear_x .6 5 equalize 1
    color .4 0 equalize .6
    equalize .4 solarize .2 4 | solarize .6 5 auto_contrast .6 | invert .6 equalize 1 | color .6 4 contrast 1 8
    equalize .8 equalize .6"""
_TEXTS = {
    "image_net": _IMAGE_NET,
    "reduced_image_net": _REDUCED_IMAGE_NET,
    "svhn": _SVHN,
    "reduced_cifar10": _REDUCED_CIFAR10,
}
NAMES = tuple(_TEXTS)


def sub_policies(name: str) -> list[list[Step]]:
    """Return the steps of each sub-policy of the policy ``name``, one of `NAMES`, without steps of probability 0."""
    return [[step for step in steps if step[1]] for steps in published(name)]


def published(name: str) -> list[list[Step]]:
    """Return the steps of each sub-policy of the policy ``name``, as published; some have the probability 0."""
    return [_steps(part.split()) for line in _TEXTS[name].strip().splitlines() for part in line.split("|")]


def _steps(words: list[str]) -> list[Step]:
    steps: list[Step] = []
    for i, word in enumerate(words):
        if word[0].isalpha():
            has_bin = _OPERATIONS.get(word, _MOVED).ends is not None
            steps.append((word, float(words[i + 1]), int(words[i + 2]) if has_bin else None))
    return steps


_MOVED = Augmentation("translate_y", (0, 1))


def augmentations(
    name: str, relative: bool = False, absolute: Relative = None, share: Relative = None
) -> dict[str, Augmentation]:
    """Return the operations that the policy ``name`` uses, by name, in the order in which its sub-policies first use
    them."""
    moved = dict(zip(("translate_x", "translate_y"), translations(relative, (250, 1.0), absolute, share), strict=True))
    known = _OPERATIONS | moved
    used = dict.fromkeys(step[0] for steps in sub_policies(name) for step in steps)
    return {word: known[word] for word in used}
