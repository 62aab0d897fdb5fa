"""Data without a layout: which one operators take it to have, and give it, as DALI 2.4 does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, types

MATRIX = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
CASES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "resize": (lambda x: fn.resize(x, resize_x=3), ["HWC", "FHWC", "FDHWC"]),
    "resize_crop_mirror": (
        lambda x: fn.resize_crop_mirror(x, resize_x=4, resize_y=4, crop=(2, 2)),
        ["HWC", "FHWC"],
    ),
    "random_resized_crop": (lambda x: fn.random_resized_crop(x, size=(3, 3), seed=1), ["HWC", "FHWC"]),
    "crop": (lambda x: fn.crop(x, crop=(2, 2)), ["HWC", "DHWC"]),
    "flip": (lambda x: fn.flip(x, vertical=1, depthwise=1), ["HWC", "FHWC", "FDHWC"]),
    "rotate": (lambda x: fn.rotate(x, angle=30.0), ["HWC", "FHWC"]),
    "warp_affine": (lambda x: fn.warp_affine(x, matrix=MATRIX), ["HWC", "FHWC"]),
    "color_space_conversion": (
        lambda x: fn.color_space_conversion(x, image_type=types.RGB, output_type=types.BGR),
        ["HWC", "FHWC", "FDHWC"],
    ),
}


def run(definition: Callable[[Any], Any], ndim: int, layout: str, promised: bool) -> Any:
    """Of samples of 5 x 6 x ... x 3; ``promised`` lets the compiler know their dimensions."""
    shape = ((5, 6), (2, 5, 6), (2, 3, 5, 6))[ndim - 3] + (3,)
    data = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    known: dict[str, Any] = {"dtype": types.UINT8, "ndim": ndim} if promised else {}
    if layout:
        known = {**known, "layout": layout}

    @pipeline_def(batch_size=2, num_threads=1)
    def pipe() -> Any:
        return definition(fn.external_source(lambda: data, **known))

    return pipe().run()[0]


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize(("name", "layout"), [(n, layout) for n, (_, layouts) in CASES.items() for layout in layouts])
def test_the_first_layout_that_fits(name: str, layout: str, promised: bool) -> None:
    definition, _ = CASES[name]
    without = run(definition, len(layout), "", promised)
    named = run(definition, len(layout), layout, promised)
    assert without.layout() == named.layout() == layout
    for a, b in zip(without, named, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"axis_names": "WH"}])
@pytest.mark.parametrize("layout", ["HWC", "FHWC"])
def test_slices_of_width_and_height(layout: str, arguments: dict[str, Any], promised: bool) -> None:
    """The result has no layout, either."""

    def definition(x: Any) -> Any:
        return fn.slice(x, [0.5, 0.0], [0.5, 0.4], **arguments)

    without = run(definition, len(layout), "", promised)
    named = run(definition, len(layout), layout, promised)
    assert (without.layout(), named.layout()) == ("", layout)
    np.testing.assert_array_equal(without.as_array(), named.as_array())
    assert without.shape()[0][-3:] == (2, 3, 3)
