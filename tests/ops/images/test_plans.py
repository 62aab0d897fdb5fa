"""The planners' loops give what the formulas give in NumPy, on random shapes, regions, filters and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg.cuda import BGR, GRAY, RGB
from dali_run.ops.context import Context
from dali_run.ops.copies import windows_cpu
from dali_run.ops.copies.windows import integers
from dali_run.ops.fused import resize_normalize as fused
from dali_run.ops.images import resize
from dali_run.ops.images.resampling import resample
from tests.kit.files.jpegs import encode, with_orientation

from ...kit.ops import reference_plans as reference

MODES: tuple[resize.Mode, ...] = ("default", "stretch", "not_larger", "not_smaller")


def regions(rng: np.random.Generator, n: int, axes: int, least: int) -> tuple[Any, Any, Any]:
    """Extents, and regions that begin and end anywhere; whole images, some backwards, some empty."""
    extents = rng.integers(least, 3000, (n, axes))
    lo = np.where(rng.random((n, axes)) < 0.5, 0, rng.uniform(-50, 200, (n, axes)))
    hi = np.where(rng.random((n, axes)) < 0.5, extents, rng.uniform(-50, 3000, (n, axes)))
    return extents, lo.astype(np.float32), hi.astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_sizes_and_filters(mode: resize.Mode, axes: int) -> None:
    rng = np.random.default_rng(axes)
    for k in range(150):
        n = int(rng.integers(0, 6))
        extents, lo, hi = regions(rng, n, axes, least=int(k % 5 > 0))
        numbers = np.where(
            rng.random((n, axes)) < 0.5, rng.integers(1, 1000, (n, axes)), rng.uniform(0, 500, (n, axes))
        )
        wanted = (numbers * rng.choice([-1, 0, 0, 1, 1, 1], (n, axes))).astype(np.float32)
        limit = None if k % 2 else np.where(rng.random(axes) < 0.3, 0, rng.uniform(10, 500, axes)).astype(np.float32)
        before = lo.copy(), hi.copy(), wanted.copy()
        expected = reference.fit(wanted, lo, hi, extents, mode, limit, bool(k % 3))
        *found, endless = resize.fit(wanted, (lo, hi), extents, mode, limit, subpixel=bool(k % 3))
        assert endless == 0
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        for a, b in zip((lo, hi, wanted), before, strict=True):
            np.testing.assert_array_equal(a, b)
        shrink, enlarge = rng.integers(0, 6, n), rng.integers(0, 6, n)
        same_filters(
            reference.plan(*found, shrink, enlarge, bool(k % 4)), resample.plan(*found, shrink, enlarge, bool(k % 4))
        )


def same_filters(expected: resample.ResamplePlan, found: resample.ResamplePlan) -> None:
    for name in ("lo", "hi", "size", "kind", "support", "anchor", "shape", "flip", "across"):
        a, b = getattr(expected, name), getattr(found, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def decode_plan(rng: np.random.Generator, n: int) -> jpeg_gpu.DecodePlan:
    """Images of random sizes, samplings and orientations; some are no JPEGs."""
    files = []
    for i in range(n):
        kind = {"gray": True} if i % 5 == 4 else {"subsampling": ("4:4:4", "4:2:0", "4:2:2")[i % 3]}
        file = encode(*rng.integers(8, 90, 2).tolist(), **kind)
        files.append(with_orientation(file, int(rng.integers(1, 9))) if i % 7 != 6 else b"no JPEG at all")
    sizes = np.array([len(f) for f in files], np.int64)
    buffer = np.frombuffer(b"".join(files), np.uint8)
    offsets = np.cumsum(sizes) - sizes
    return jpeg_gpu.plan_decode(jpeg_header.read_headers(buffer, offsets, sizes), offsets, sizes, limited=False)


def assert_room_for_strips(weights: int, found: jpeg_gpu.Output) -> None:
    """After the weights of all pictures, each axis of a picture of jpeg_strips has four floats for each sample."""
    assert found.resize is not None
    axis, end = found.resize["axis"], weights
    for row in axis:
        for part in row:
            if not row[0]["tile"]:
                assert part["reached"] == -1
                continue
            assert part["reached"] % 4 == 0
            assert end <= part["reached"] < end + 4
            samples = np.ceil(part["count"] * abs(np.float64(part["scale"]))) + part["taps"] + 2
            end = part["reached"] + 4 * int(samples)
    assert found.weights == end


@pytest.mark.parametrize("kind", [RGB, BGR, GRAY])
def test_resizing_of_jpegs(kind: int) -> None:
    rng = np.random.default_rng(kind)
    for k in range(25):
        n = int(rng.integers(1, 12))
        plan = decode_plan(rng, n)
        swap = plan.orientation >= 5
        stored = np.stack([plan.images["height"], plan.images["width"]], 1).astype(np.int64)
        shown = np.maximum(np.where(swap[:, None], stored[:, ::-1], stored), 1)
        begin = (rng.random((n, 2)) * shown * 0.5).astype(np.int64)
        end = begin + 1 + (rng.random((n, 2)) * (shown - begin - 1)).astype(np.int64)
        domain = np.stack([begin, end], axis=2) if k % 2 else None
        ends = (begin + rng.random((n, 2)), end.astype(np.float64))
        backwards = rng.random((n, 2)) < 0.3
        lo, hi = (np.where(backwards, ends[1 - j], ends[j]).astype(np.float32) for j in range(2))
        size = rng.integers(1, 700, (n, 2))
        sampling = resample.plan(lo, hi, size, rng.integers(0, 6, n), rng.integers(0, 6, n), bool(k % 3))
        anchor = rng.integers(0, size)
        sampling = sampling.mirrored(rng.random((n, 2)) < 0.5).window(anchor, rng.integers(0, size - anchor + 1))
        options: dict[str, Any] = {
            "domain": domain, "mirror": rng.random(n) < 0.5 if k % 4 else None, "orient": k % 5 > 0,
            "output_type": kind, "layout": "CHW" if k % 2 else "HWC", "mean": (1.0, 2.0, 3.0), "std": (4.0,),
        }  # fmt: skip
        expected, found = (
            reference.resize_output(plan, sampling, **options),
            jpeg_gpu.resize_output(plan, sampling, **options),
        )
        for name in ("shapes", "offsets"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(found, name))
        for name in ("elements", "threads", "mul", "add", "dtype", "output_type"):
            assert getattr(expected, name) == getattr(found, name), name
        assert expected.resize is not None
        assert found.resize is not None
        tile = found.resize["axis"]["tile"]
        assert (tile <= found.resize["axis"]["count"]).all()
        expected.resize["axis"]["tile"] = tile
        assert_room_for_strips(expected.weights, found)
        expected.resize["axis"]["reached"] = found.resize["axis"]["reached"]
        np.testing.assert_array_equal(expected.resize, found.resize)
        assert found.strips_first is not None
        blocks = found.blocks_first + found.strips_first
        np.testing.assert_array_equal(reference.resize_tiles(found), blocks)
        good = plan.status == 0
        assert expected.windows is not None
        np.testing.assert_array_equal(expected.windows[good], found.windows[good])


@pytest.mark.parametrize("kind", [RGB, GRAY])
def test_pixels_of_jpegs(kind: int) -> None:
    """Whole pictures and windows, that reach outside or hold nothing, turned and mirrored; packed, and elsewhere."""
    rng = np.random.default_rng(10 + kind)
    for k in range(12):
        n = int(rng.integers(1, 12))
        plan = decode_plan(rng, n)
        corners = np.sort(rng.integers(-20, 120, (n, 2, 2)), axis=1).reshape(n, 4).astype(np.int32)
        options: dict[str, Any] = {
            "output_type": kind, "windows": corners if k % 2 else None, "orient": k % 5 > 0,
            "offsets": rng.permutation(n) * 100_000 if k % 3 else None,
        }  # fmt: skip
        expected, found = reference.pixel_output(plan, **options), jpeg_gpu.pixel_output(plan, **options)
        assert expected.elements == found.elements
        for name in ("shapes", "offsets", "pixels"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(found, name))
        assert found.blocks_first is not None
        assert expected.blocks_first is not None
        np.testing.assert_array_equal(expected.blocks_first, found.blocks_first[: n + 1])
        assert (found.blocks_first[n:] == expected.blocks_first[-1]).all()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_rows_in_records_are_of_one_type_however_many_there_are(n: int) -> None:
    """Numba compiles a loop once for contiguous arrays and once for others; one record is contiguous for NumPy."""
    records = np.zeros(n, jpeg_gpu.IMAGE)
    rows = jpeg_gpu._rows_of(records, "component")
    assert not rows.flags.c_contiguous
    assert rows.strides[1] == records["component"].strides[1]
    rows["pitch"][:n] = np.arange(1, 3 * n + 1).reshape(n, 3)
    assert records["component"]["pitch"].ravel().tolist() == list(range(1, 3 * n + 1))


def test_only_some_images_are_planned() -> None:
    files = [encode(40 + i, 30) for i in range(6)]
    sizes = np.array([len(f) for f in files], np.int64)
    offsets = np.cumsum(sizes) - sizes
    headers = jpeg_header.read_headers(np.frombuffer(b"".join(files), np.uint8), offsets, sizes)
    which = np.arange(6) % 2 == 0
    marked = headers.copy()
    marked["status"] = np.where(which, headers["status"], jpeg_header.UNSUPPORTED)
    a, b = jpeg_gpu.plan_decode(marked, offsets, sizes), jpeg_gpu.plan_decode(headers, offsets, sizes, which=which)
    np.testing.assert_array_equal(a.images, b.images)
    np.testing.assert_array_equal(a.status != 0, ~which)
    np.testing.assert_array_equal(a.idct_first, b.idct_first)


@pytest.mark.parametrize("rounding", windows_cpu.ROUNDINGS)
def test_places_of_windows(rounding: str) -> None:
    rng = np.random.default_rng(1)
    extent = np.ascontiguousarray(rng.integers(0, 60, (500, 3)))
    position = np.where(rng.random(500) < 0.5, rng.integers(0, 21, 500) / 20, rng.random(500)).astype(np.float32)
    size = np.where(rng.random(500) < 0.5, rng.integers(-2, 80, 500), rng.uniform(-3, 80, 500)).astype(np.float32)
    size[:3] = np.nan, np.inf, -np.inf
    for axis in range(3):
        anchor, shape = np.full((500, 3), -7), np.full((500, 3), -7)
        windows_cpu.place(extent, axis, size, position, windows_cpu.ROUNDINGS.index(rounding), anchor, shape)
        wanted = integers(size)
        expected = np.where(wanted > 0, wanted, extent[:, axis])
        np.testing.assert_array_equal(shape[:, axis], expected)
        np.testing.assert_array_equal(anchor[:, axis], reference.place(position, extent[:, axis], expected, rounding))
        assert (np.delete(anchor, axis, 1) == -7).all()
        assert (np.delete(shape, axis, 1) == -7).all()


@pytest.mark.parametrize(("layout", "axes"), [("HWC", 2), ("FCHW", 2), ("CDHW", 3), ("DHWC", 3)])
def test_order_of_passes_and_what_they_need(layout: str, axes: int) -> None:
    rng = np.random.default_rng(2)
    first = layout.index("HWC"[0] if axes == 2 else "D")
    for k in range(40):
        n = int(rng.integers(0, 5))
        before = rng.integers(1, 4000, (n, len(layout)))
        _, lo, hi = regions(rng, n, axes, 1)
        size = rng.integers(1, 4000, (n, axes))
        plan = resample.plan(lo, hi, size, rng.integers(0, 6, n), rng.integers(0, 6, n), bool(k % 2))
        shapes = before.copy()
        shapes[:, first : first + axes] = size
        np.testing.assert_array_equal(plan.across, reference.columns_first(plan))
        ctx = Context(resize.Resize(size=(1.0,)), "cpu", Samples.numbered(n))
        found = resample.bounded(ctx, plan, shapes, before, first)
        elements = reference.bounded(plan, shapes, before, first)
        refused = elements > resample.MOST_ELEMENTS
        np.testing.assert_array_equal(found, np.where(refused[:, None], 0, shapes))
        assert [r.slot for r in ctx.rejects] == np.flatnonzero(refused).tolist()
        assert all(f"needs {elements[r.slot]:.0f} values" in r.message for r in ctx.rejects)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_windows_of_outputs_are_cut_in_one_go(layout: str) -> None:
    """`fused` plans the same as the operators one after the other: windows, channels, sizes, mirroring."""
    rng = np.random.default_rng(len(layout))
    every = few = large = 0
    for k in range(60):
        n = int(rng.integers(0, 9))
        extents, lo, hi = regions(rng, n, 2, least=1)
        channels = rng.integers(1, 5, n) if k % 2 else np.array([3])
        size = rng.integers(1, 60000 if k % 5 == 4 else 90, (n, 2))
        plan = resample.plan(lo, hi, size, np.array([k % 6]), rng.integers(0, 6, n), True)
        inner = rng.integers(0, size)
        plan = plan.window(inner, rng.integers(1, size - inner + 1)).mirrored(rng.random((n, 2)) < 0.5)
        rows = n if k % 3 else 1
        crop = (rng.integers(1, 50, (rows, 2)) * (rng.random((rows, 1)) < 0.5)).astype(np.float32)
        position = rng.random((n if k % 4 else 1, 2)).astype(np.float32)
        window = np.concatenate(np.broadcast_arrays(crop, position), axis=1) if n else np.zeros((1, 4), np.float32)
        mirror, width, rounding = rng.integers(0, 2, n if k % 2 else 1, np.int32), (0, 1, 3)[k % 3], k % 3

        depth = np.broadcast_to(channels, n)
        anchor, shape = np.empty((n, 2), np.int64), np.empty((n, 2), np.int64)
        for axis in range(2):
            given = (np.ascontiguousarray(window[:, column]) for column in (axis, 2 + axis))
            windows_cpu.place(plan.shape, axis, *given, rounding, anchor, shape)
        good = ((anchor >= 0) & (anchor + shape <= plan.shape)).all(axis=1)
        good &= (depth == width) | (width < 2)
        images = np.concatenate([extents, depth[:, None]], axis=1)
        results = np.where(good[:, None], np.concatenate([shape, depth[:, None]], axis=1), 0)
        ctx = Context(resize.Resize(size=(1.0,)), "cpu", Samples.numbered(n))
        results = resample.bounded(ctx, plan, results, images, 0)
        good &= results.any(axis=1) | (shape == 0).any(axis=1)
        expected = plan.window(np.where(good[:, None], anchor, 0), results[:, :2])
        expected = expected.mirrored(np.stack([np.zeros(n, bool), np.broadcast_to(mirror != 0, n)], axis=1))

        found, refused = fused._cut(
            plan, extents, channels, np.dtype(np.float32), layout, window, rounding, mirror, width
        )
        large, every = large + len(ctx.rejects), every + n
        few += refused
        assert refused == n - np.count_nonzero(good)
        same_filters(expected, found.plan)
        order = [2, 0, 1] if layout == "CHW" else [0, 1, 2]
        packed = Batch.allocate(np.empty, results[:, order].astype(np.int32), np.uint8, layout, Samples.numbered(n))
        np.testing.assert_array_equal(found.shapes, packed.shapes)
        np.testing.assert_array_equal(found.offsets, packed.offsets)
        assert found.elements == len(packed.data)
        assert found.shapes.dtype == np.int32
        pixel, plane = found.strides.T
        np.testing.assert_array_equal(pixel[good], 1 if layout == "CHW" else depth[good])
        np.testing.assert_array_equal(plane[good], results[good, :2].prod(axis=1) if layout == "CHW" else 1)
    assert 0 < large < few < every


def test_numbers_that_are_not_finite_are_counted_and_reported() -> None:
    """By sample, for all samples at once, and in regions."""
    extents = np.full((4, 2), 50)
    wanted = np.array([[20.0, 30.0], [np.nan, 30.0], [20.0, np.inf], [20.0, 30.0]], np.float32)
    region = np.zeros((4, 2), np.float32), np.full((4, 2), 40, np.float32)
    region[1][3, 0] = np.nan
    lo, hi, size, endless = resize.fit(wanted, region, extents, "default", None, subpixel=True)
    assert endless == 3
    np.testing.assert_array_equal(size, [[20, 30], [1, 1], [1, 1], [1, 1]])
    assert np.isfinite(lo).all()
    assert np.isfinite(hi).all()
    for name in ("dali", "torchvision"):
        op = resize.Resize(resize_shorter=float("inf"), parity=name)  # type: ignore[arg-type]
        ctx = Context(op, "cpu", Samples.numbered(2))
        op.plan(ctx, extents[:2], (0, 2))
        assert [r.message for r in ctx.rejects] == ["size [inf, inf] or region is not finite"] * 2


def large_headers(n: int, width: int, height: int, factors: tuple[int, int]) -> Any:
    """Headers of ``n`` colour images, as the header walk gives them."""
    headers = np.zeros(n, jpeg_header.HEADER)
    for name, value in (("width", width), ("height", height), ("components", 3), ("colour", jpeg_header.YCBCR)):
        headers[name] = value
    headers["orientation"], headers["scan_offset"], headers["precision"], headers["sof"] = 1, 600, 8, 0xC0
    headers["h"][:, 0], headers["v"][:, 0] = factors
    headers["h"][:, 1:3] = headers["v"][:, 1:3] = 1
    headers["quant"], headers["dc"], headers["ac"] = 100, 200, 300
    return headers


@pytest.mark.parametrize(
    ("n", "width", "height", "nbytes"),
    [(200, 4000, 3000, 4 << 20), (32, 9216, 7168, 24 << 20), (3, 40000, 15000, 100 << 20), (4, 8, 65500, 1 << 20)],
)
def test_large_photos_need_more_than_32_bits(n: int, width: int, height: int, nbytes: int) -> None:
    """Everything that counts over a batch is what Python's integers give."""
    headers = large_headers(n, width, height, (2, 2))
    sizes = np.full(n, nbytes, np.int64)
    offsets = np.arange(n, dtype=np.int64) * (nbytes + 16) + (5 << 30)
    plan = jpeg_gpu.plan_decode(headers, offsets, sizes)
    assert not plan.status.any()
    mcus_x, mcus_y = -(-width // 16), -(-height // 16)
    luma, chroma = -(-mcus_x * 2 // 4) * 32 * mcus_y * 16, -(-mcus_x // 4) * 32 * mcus_y * 8
    each = luma + 2 * chroma
    assert plan.planes == n * each
    assert plan.blocks == n * mcus_x * mcus_y * 6
    scan = nbytes - 600
    assert plan.words == n * (-(-scan // 128) * 32 + 32)
    assert plan.entries == n * (-(-scan * 8 // jpeg_gpu.SUBSEQUENCE_BITS) + 1) * jpeg_gpu.ENTRIES_EACH
    at = np.arange(n, dtype=np.int64)
    np.testing.assert_array_equal(plan.images["raw"], offsets)
    np.testing.assert_array_equal(plan.images["component"]["plane"][:, 0], at * each)
    np.testing.assert_array_equal(plan.images["component"]["plane"][:, 2], at * each + luma + chroma)
    np.testing.assert_array_equal(plan.images["entries"], at * (plan.entries // n))
    assert (np.diff(plan.idct_first) >= 0).all()
    assert (np.diff(plan.unstuff_first) > 0).all()
    whole = jpeg_gpu.pixel_output(plan)
    assert whole.elements == n * width * height * 3
    np.testing.assert_array_equal(whole.offsets, at * width * height * 3)
    extent = np.tile(np.array([height, width], np.int64), (n, 1))
    interp = np.full(n, 1, np.int64)
    sampling = resample.plan(np.zeros((n, 2), np.float32), extent.astype(np.float32), extent, interp, interp, True)
    resized = jpeg_gpu.resize_output(plan, sampling)
    assert resized.elements == whole.elements
    np.testing.assert_array_equal(resized.offsets, whole.offsets)
    np.testing.assert_array_equal(resized.windows, np.tile([0, 0, width, height], (n, 1)))


def test_a_batch_that_no_launch_can_hold_is_refused_before_anything_is_allocated() -> None:
    headers = large_headers(400, 4000, 3000, (2, 2))
    sizes = np.full(400, 8 << 20, np.int64)
    with pytest.raises(ValueError, match="split it"):
        jpeg_gpu.plan_decode(headers, np.arange(400) * (8 << 20), sizes)


def test_small_files_of_huge_pictures_take_no_memory() -> None:
    """A few bytes cannot hold the blocks that the header promises."""
    headers = large_headers(64, 65500, 65500, (1, 1))
    plan = jpeg_gpu.plan_decode(headers, np.arange(64) * 1000, np.full(64, 1000, np.int64))
    assert plan.status.all()
    assert plan.planes == plan.blocks == 0
    assert plan.words < 1 << 20


def test_factors_beyond_float32_become_infinite_as_on_the_cpu() -> None:
    mul, add = jpeg_gpu._affine((0.0, 1.0), (1e-45, 0.5), 1.0, 1.0)
    packed = jpeg_gpu._RECORD.pack(*range(len(jpeg_gpu._POINTERS)), 0, 0, 0, 0, 0, *mul, *add, 0)
    (record,) = np.frombuffer(packed, jpeg_gpu.BATCH)
    assert record["mul"].tolist() == [np.inf, 2.0] * 2
    assert record["add"].tolist() == [1.0, -1.0] * 2
    assert record["raw"] == 0
