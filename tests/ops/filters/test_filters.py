"""gaussian_blur, laplacian and filter: DALI's results (golden/make_filters.py), OpenCV's, and the CUDA kernels."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.filters import filter, separable  # noqa: F401  # declare the operators
from dali_run.ops.types import DALIDataType

from ...kit.dali_cases import (
    agrees_with_dali,
    apply,
    batch_of,
    cases,
    kernels_agree,
    largest_difference,
    operator,
    ours,
    source,
)
from ...kit.emulated_lane import EmulatedLane

NAMES = ("gaussian_blur", "laplacian", "filter")
IMAGE = source(3, 0, 256, "uint8", [21, 26, 3])


@pytest.mark.parametrize("name", NAMES)
def test_results_of_dali(name: str) -> None:
    agrees_with_dali("filters", name, 5000)


@pytest.mark.parametrize("name", NAMES)
def test_cuda_run_on_the_cpu(name: str) -> None:
    kernels_agree("filters", name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    for case, inputs, _ in cases("filters"):
        if case["op"] != name or case.get("per_sample"):
            continue
        (want,), _ = ours(case, inputs)
        op = operator(name, **case["arguments"])
        given = [batch_of([a], i["layout"] or "") for a, i in zip(inputs, case["inputs"], strict=True)]
        with Lane() as lane:
            out, rejects = apply(op, *[lane.to_device(g) for g in given], lane=lane)
            assert not rejects
            got = lane.to_host(out)
            lane.synchronize()
        assert largest_difference(got.sample(0), want) <= (1e-5 if want.dtype.kind == "f" else 1), case


def ragged(count: int = 5) -> list[np.ndarray]:
    return [source(k, 0, 256, "uint8", [7 + 3 * k, 19 - 2 * k, 3]) for k in range(count)]


@pytest.mark.parametrize("lane", [None, EmulatedLane()])
def test_each_sample_has_its_own_window(lane: Any) -> None:
    images, sigmas = ragged(), [0.3, 0.8, 1.5, 2.2, 4.0]
    args = {"sigma": batch_of([np.float32([s]) for s in sigmas])}
    out, rejects = apply(operator("gaussian_blur", ("sigma",)), batch_of(images, "HWC"), args=args, lane=lane)
    assert not rejects
    for got, image, sigma in zip(out, images, sigmas, strict=True):
        size = 2 * int(np.ceil(3 * sigma)) + 1
        padded = np.pad(image.astype(np.float64), ((size, size), (size, size), (0, 0)), "reflect")
        want = cv2.GaussianBlur(padded, (size, size), sigma)[size:-size, size:-size]
        assert np.abs(got - want).max() <= 0.5 + 1e-3


def test_laplacian_is_that_of_opencv() -> None:
    for size in (1, 3, 5, 7):
        arguments = {"window_size": max(size, 3), "smoothing_size": size, "dtype": "FLOAT"}
        out, _ = apply(operator("laplacian", **arguments), batch_of([IMAGE], "HWC"))
        want = cv2.Laplacian(IMAGE.astype(np.float32), -1, ksize=size)
        assert np.abs(out.sample(0) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("lane", [None, EmulatedLane()])
def test_filters_of_many_sizes_and_volumes(lane: Any) -> None:
    images = ragged()
    filters = [source(k, -1, 1, "float32", [1 + k, 5 - k]) for k in range(5)]
    out, rejects = apply(operator("filter", dtype="FLOAT"), batch_of(images, "HWC"), batch_of(filters), lane=lane)
    assert not rejects
    for got, image, window in zip(out, images, filters, strict=True):
        want = cv2.filter2D(image.astype(np.float32), -1, window, borderType=cv2.BORDER_REFLECT_101)
        np.testing.assert_allclose(got, want, atol=1e-2)
    volume, window = source(1, 0, 256, "uint8", [6, 7, 8]), source(2, -1, 1, "float32", [3, 2, 3])
    for mode in ("same", "valid"):
        op = operator("filter", dtype="FLOAT", mode=mode, border="constant")
        out, rejects = apply(op, batch_of([volume], "DHW"), batch_of([window]), lane=lane)
        assert not rejects
        padded = np.pad(volume.astype(np.float64), ((1, 1), (1, 0), (1, 1))) if mode == "same" else volume
        views = np.lib.stride_tricks.sliding_window_view(padded, window.shape)
        np.testing.assert_allclose(out.sample(0), np.einsum("xyzabc,abc->xyz", views, window), atol=1e-2)


BORDERS = ("reflect_101", "reflect_1001", "wrap", "clamp", "constant")
RAGGED = [(3, 2), (5, 13), (17, 8), (33, 21)]
"""Rows and columns: fewer than a filter's, and more than a thread makes."""


_PADDED = {
    "reflect_101": "reflect",
    "reflect_1001": "symmetric",
    "wrap": "wrap",
    "clamp": "edge",
    "constant": "constant",
}


def _by_hand(image: np.ndarray, window: np.ndarray, border: str, anchor: list[int], valid: bool) -> np.ndarray:
    """Sums of products, in float64; NumPy continues the picture."""
    wide = image.astype(np.float64)
    if not valid:
        pads: Any = [(a, n - 1 - a) for a, n in zip(anchor, window.shape, strict=True)] + [(0, 0)]
        wide = np.pad(wide, pads, mode=_PADDED[border])
    extent = [wide.shape[d] - window.shape[d] + 1 for d in range(window.ndim)]
    out = np.zeros((*extent, image.shape[-1]))
    for at, weight in np.ndenumerate(window.astype(np.float64)):
        out += weight * wide[tuple(slice(a, a + n) for a, n in zip(at, extent, strict=True))]
    return out


@pytest.mark.parametrize("border", [*_PADDED, "valid"])
@pytest.mark.parametrize("window", [(3, 3), (5, 5), (5, 3), (1, 1), (2, 7), (4, 11)])
def test_floats(border: str, window: tuple[int, int]) -> None:
    """Lines of floats are read where they are: ends of lines, odd heights, anchors off the middle."""
    for channels in (1, 3, 4):
        sides = ((12, 40), (13, 75), (21, 43), (40, 64))
        images = [source(k, -9, 9, "float32", [*side, channels]) for k, side in enumerate(sides)]
        filters = [source(9 + k, -1, 1, "float32", list(window)) for k in range(len(sides))]
        anchors = [[(k * 3 + 1) % n for n in window] for k in range(len(sides))]
        valid = border == "valid"
        settings: dict[str, Any] = {"mode": "valid"} if valid else {"border": border}
        args = {"anchor": batch_of([np.array(a, np.int32) for a in anchors])}
        op = operator("filter", ("anchor",), **settings)
        out, rejects = apply(op, batch_of(images, "HWC"), batch_of(filters), args=args)
        assert not rejects
        for got, image, own, anchor in zip(out, images, filters, anchors, strict=True):
            want = _by_hand(image, own, border, anchor, valid)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4, err_msg=f"{image.shape} {anchor}")


def test_volumes_of_floats() -> None:
    volumes = [source(k, -9, 9, "float32", [5 + k, 7 + k, 41, 2]) for k in range(3)]
    filters = [source(7 + k, -1, 1, "float32", [3, 2 + k, 5]) for k in range(3)]
    out, rejects = apply(operator("filter", border="clamp"), batch_of(volumes, "DHWC"), batch_of(filters))
    assert not rejects
    for got, volume, own in zip(out, volumes, filters, strict=True):
        want = _by_hand(volume, own, "clamp", [n // 2 for n in own.shape], False)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def strips(lane: Any, dtype: str, channels: int, side: Any, arguments: dict[str, Any]) -> list[np.ndarray]:
    random = np.random.default_rng(channels)
    kernel = (random.normal(size=np.broadcast_to(side, 2)) / np.max(side)).astype(np.float32)
    images = [random.integers(0, 256, (*extent, channels)).astype(dtype) for extent in RAGGED]
    if arguments.get("mode") == "valid":
        images = images[2:]
    fill = [batch_of([np.float32(99)] * len(images))] if arguments.get("border") == "constant" else []
    inputs = batch_of(images, "HWC"), batch_of([kernel] * len(images)), *fill
    out, rejects = apply(operator("filter", **arguments), *inputs, lane=lane)
    assert not rejects
    return list(out)


@pytest.mark.parametrize(
    ("dtype", "channels", "side", "arguments"),
    [
        *(("uint8", 3, 5, {"border": border}) for border in BORDERS),
        ("uint8", 1, 3, {"dtype": "FLOAT", "border": "wrap"}),
        ("uint8", 1, 7, {"anchor": [0, 6]}),
        ("uint8", 3, 7, {"mode": "valid", "dtype": "FLOAT"}),
        ("uint8", 4, 5, {"border": "clamp"}),
        ("uint8", 3, (2, 9), {"border": "reflect_1001"}),
        ("uint8", 1, (1, 1), {}),
        ("float32", 1, (6, 1), {"border": "wrap"}),
        ("float32", 3, 5, {"border": "constant"}),
        ("float32", 2, 3, {"mode": "valid"}),
        ("int16", 3, 3, {"anchor": [2, 0]}),
    ],
)
def test_strips_of_the_cuda_kernel(dtype: str, channels: int, side: Any, arguments: dict[str, Any]) -> None:
    lane = EmulatedLane()
    got, want = (strips(where, dtype, channels, side, arguments) for where in (lane, None))
    assert all("correlate_strips" in kernel for kernel in lane.launched)
    for a, b in zip(got, want, strict=True):
        whole = a.dtype.kind != "f"
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=0, atol=1 if whole else 1e-3)
        assert np.mean(a != b) < 0.01 if whole else True


def test_bad_samples_are_rejected_alone() -> None:
    args = {"sigma": batch_of([np.float32([s]) for s in (1.0, -1.0, np.nan, 0.0, 2.0)])}
    out, rejects = apply(operator("gaussian_blur", ("sigma",)), batch_of(ragged(), "HWC"), args=args)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument"), (2, "bad_argument"), (3, "bad_argument")]
    alone, _ = apply(operator("gaussian_blur", sigma=2.0), batch_of(ragged()[4:], "HWC"))
    np.testing.assert_array_equal(out.sample(4), alone.sample(0))
    filters = batch_of([np.ones((3, 3), np.float32), np.ones((40, 3), np.float32)])
    op = operator("filter", mode="valid")
    out, rejects = apply(op, batch_of(ragged(2), "HWC"), filters)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    assert out.sample(0).shape == (5, 17, 3)
    filters = batch_of([np.ones((3, 3), np.float32), np.ones((2, 3), np.float32)])
    _, rejects = apply(operator("filter", anchor=[2, 2]), batch_of(ragged(2), "HWC"), filters)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]


def test_refused_before_anything_runs() -> None:
    image = Spec((4, 4, 3), DALIDataType.UINT8, "HWC")
    with pytest.raises(SpecError, match="needs sigma"):
        operator("gaussian_blur")
    with pytest.raises(SpecError, match="odd"):
        operator("gaussian_blur", window_size=4)
    with pytest.raises(SpecError, match="FLOAT"):
        operator("gaussian_blur", sigma=1.0, dtype="INT16").infer(image)
    with pytest.raises(SpecError, match="one to three dimensions"):
        operator("gaussian_blur", sigma=1.0).infer(Spec((4, 4, 4, 4), DALIDataType.UINT8, ""))
    with pytest.raises(SpecError, match="exclude"):
        operator("laplacian", normalized_kernel=True, scale=2.0)
    with pytest.raises(SpecError, match="float32"):
        operator("filter").infer(image, Spec((3, 3), DALIDataType.INT32, ""))


def test_both_axes_in_one_kernel_give_what_the_cpu_gives() -> None:
    """Pictures of one to four channels: wider than a block, lower than a strip and higher, narrower than the window, at
    places that are no multiple of four, and frames of sequences."""
    lane = EmulatedLane()
    for channels, sizes in ((3, [(70, 300), (5, 257), (130, 3), (1, 1)]), (1, [(9, 800), (3, 2)]), (4, [(66, 195)]),
                            (2, [(8, 30)])):  # fmt: skip
        for shapes in ([(*s, channels) for s in sizes], [(2, *s, channels) for s in sizes[:2]]):
            images = [source(k, 0, 256, "uint8", list(s)) for k, s in enumerate(shapes)]
            batch = batch_of(images, "HWC" if len(shapes[0]) == 3 else "FHWC")
            spread = batch.replace(data=np.concatenate([[np.uint8(7)], batch.data]), offsets=batch.offsets + 1)
            for arguments in ({"sigma": [1.9, 0.4]}, {"window_size": [3, 25]}, {"sigma": 0.5, "dtype": "FLOAT"}):
                want, _ = apply(operator("gaussian_blur", **arguments), spread)
                got, rejects = apply(operator("gaussian_blur", **arguments), spread, lane=lane)
                assert not rejects
                for a, b in zip(got, want, strict=True):
                    np.testing.assert_allclose(
                        a.astype(float), b.astype(float), atol=2e-3 if "dtype" in arguments else 1
                    )
    assert {name.split("<")[0] for name in lane.launched} == {"plane"}
