"""tiles against windows cut by NumPy, on the CPU and by the GPU's kernels without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.images.tiles import Tiles
from dali_run.ops.types import DALIDataType

from ...kit.operators import apply, batch_of, operator


def starts(extent: int, size: int, stride: int, edges: str) -> list[int]:
    """Where tiles begin along one axis, told one by one."""
    found = []
    at = 0
    while at < extent and (edges != "drop" or at + size <= extent):
        found.append(min(at, max(extent - size, 0)) if edges == "shift" else at)
        if at + size >= extent:
            break
        at += stride
    return found


def cut(image: np.ndarray, size: tuple[int, int], stride: tuple[int, int], edges: str, fill: int) -> list[Any]:
    tiles = []
    for y in starts(image.shape[0], size[0], stride[0], edges):
        for x in starts(image.shape[1], size[1], stride[1], edges):
            tile = np.full((*size, image.shape[2]), fill, image.dtype)
            part = image[y : y + size[0], x : x + size[1]]
            tile[: part.shape[0], : part.shape[1]] = part
            tiles.append(((y, x), tile))
    return tiles


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(1, 14)), min_size=1, max_size=3),
    st.tuples(st.integers(1, 6), st.integers(1, 6)), st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.sampled_from(["pad", "drop", "shift"]),
)  # fmt: skip
def test_tiles_are_windows(
    extents: list[tuple[int, int]], size: tuple[int, int], stride: tuple[int, int], edges: str
) -> None:
    images = [np.random.default_rng(i).integers(0, 255, (*e, 2), np.uint8) for i, e in enumerate(extents)]
    fill = {} if edges == "drop" else {"fill_value": 7}
    op = operator("tiles", size=list(size), stride=list(stride), edges=edges, places=True, **fill)
    batch = batch_of(images, "HWC")
    (tiles, places), rejects = apply(op, batch)
    assert not rejects
    assert (tiles.layout, places.dtype) == ("FHWC", np.int32)
    foreseen, _ = op.estimate_memory("cpu", batch)
    for i, image in enumerate(images):
        expected = cut(image, size, stride, edges, 7)
        assert tiles.sample(i).shape == (len(expected), *size, 2)
        assert places.sample(i).tolist() == [list(p) for p, _ in expected]
        for made, (_, want) in zip(tiles.sample(i), expected, strict=True):
            np.testing.assert_array_equal(made, want)
        assert foreseen[i] == tiles.sample(i).size
        told = op.infer(Spec(image.shape, DALIDataType.UINT8, "HWC"))
        assert [s.shape for s in told] == [tiles.sample(i).shape, places.sample(i).shape]


@pytest.mark.parametrize(("layout", "shape"), [("CHW", (3, 20, 30)), ("HW", (20, 30))])
def test_other_layouts(layout: str, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    tiles, _ = apply(operator("tiles", size=[10, 15]), batch_of([image], layout))
    assert tiles.layout == "F" + layout
    for k, (y, x) in enumerate(((0, 0), (0, 15), (10, 0), (10, 15))):
        np.testing.assert_array_equal(tiles.sample(0)[k], image[..., y : y + 10, x : x + 15])


@pytest.mark.parametrize(
    ("mode", "numpy"), [("edge", "edge"), ("reflect_101", "reflect"), ("reflect_1001", "symmetric")]
)
def test_borders(mode: str, numpy: str) -> None:
    image = np.random.default_rng(0).integers(0, 255, (9, 11, 3), np.uint8)
    tiles, _ = apply(operator("tiles", size=6, pad_mode=mode), batch_of([image], "HWC"))
    whole = np.pad(image, ((0, 3), (0, 1), (0, 0)), mode=numpy)
    assert tiles.sample(0).shape == (4, 6, 6, 3)
    np.testing.assert_array_equal(tiles.sample(0)[3], whole[6:, 6:])
    np.testing.assert_array_equal(tiles.sample(0)[1], whole[:6, 6:])


def test_too_many_are_a_reject_of_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [np.ones((40, 40, 3), np.uint8), np.ones((12, 12, 3), np.uint8)]
    monkeypatch.setattr("dali_run.ops.images.tiles.MAX_ELEMENTS", 10_000)
    tiles, rejects = apply(operator("tiles", size=10, stride=1), batch_of(images, "HWC"))
    assert [(r.slot, r.code) for r in rejects] == [(0, "too_large")]
    assert tiles.sample(1).shape == (9, 10, 10, 3)


def test_what_is_refused() -> None:
    for wrong, why in (
        ({"size": [1, 2, 3]}, "size takes one number"), ({"size": 4, "stride": [1, 1, 1]}, "stride takes one number"),
        ({"size": 4, "edges": "drop", "fill_value": 3}, "edges: drop fills nothing up"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=why):
            operator("tiles", **wrong)
    assert Tiles(size=(4,)).infer(Spec((None, 8, 3), DALIDataType.UINT8, "HWC"))[0].shape == (None, 4, 4, 3)
