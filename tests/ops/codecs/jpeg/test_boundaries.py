"""Facts that are remembered of JPEGs between epochs: the same pixels, and no belief in what is wrong."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from benchmarks.jpeg.small_pictures import small_pictures
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg.boundaries import Boundaries
from tests.kit.ops.jpeg_harness import EmulatedRuntime, GpuRuntime, Harness

SMALL = ("-DSUBSEQUENCE_BITS=1024", "-DSTEP_BITS=256", "-DENTROPY_THREADS=64")
"""Small pieces, of which pictures that are quickly decoded have many."""


@pytest.fixture(params=["emulated", "small pieces", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    if request.param == "gpu":
        return Harness(GpuRuntime())
    if request.param == "emulated":
        return Harness(EmulatedRuntime())
    monkeypatch.setattr(jpeg_gpu, "SUBSEQUENCE_BITS", 1024)
    monkeypatch.setattr(jpeg_gpu, "ENTRIES_EACH", 1024 // 4 + 128)
    monkeypatch.setattr(jpeg_gpu, "ENTROPY_THREADS", 64)
    return Harness(EmulatedRuntime(*SMALL))


def pixels(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
    return jpeg_gpu.pixel_output(plan, orient=False)


def picture(width: int, height: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 60, (height, width, 3)) * (x > width / 2)[..., None]
    return (np.stack([x % 256, y % 256, (x * y) % 200], 2) * 0.7 + noise).astype(np.uint8)


def encode(width: int, height: int, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture(width, height)).save(stream, "JPEG", **({"quality": 85} | options))
    return stream.getvalue()


def files() -> list[bytes]:
    made = [encode(310, 240, subsampling=s, quality=q) for s in ("4:2:0", "4:4:4") for q in (30, 95)]
    made += [encode(200, 160, restart_marker_blocks=n, quality=95) for n in (1, 10, 33)]
    flat = np.full((700, 900, 3), 77, np.uint8)
    made.append(simplejpeg.encode_jpeg(flat, quality=90, colorspace="RGB", colorsubsampling="420"))
    made.append(encode(64, 48, progressive=True))
    return made


def known(boundaries: Boundaries, some: list[bytes]) -> NDArray[np.int64]:
    return boundaries.counts(np.arange(len(some)), np.array([len(f) for f in some]))


def assert_same(harness: Harness, some: list[bytes], boundaries: Boundaries) -> None:
    """Twice the same, the second time by what was learned."""
    first, status = harness.decode(some, pixels, boundaries=boundaries)
    assert not status.any()
    again, status = harness.decode(some, pixels, boundaries=boundaries)
    assert not status.any()
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_same_pixels_again(harness: Harness) -> None:
    some, boundaries = files(), Boundaries()
    assert_same(harness, some, boundaries)
    counts = known(boundaries, some)
    assert (counts[:-1] > 0).all()
    assert counts[-1] == 0, "progressive pictures have no states that could be kept"
    assert counts.sum() == boundaries.used


def test_small_pictures_of_all_kinds(tmp_path: Path, harness: Harness) -> None:
    (tmp_path / "one.jpg").write_bytes(encode(200, 170))
    some, boundaries = small_pictures(tmp_path, 48), Boundaries()
    assert_same(harness, some, boundaries)
    assert known(boundaries, some).any()


def test_no_search_where_all_is_known() -> None:
    runtime = EmulatedRuntime()
    harness, boundaries, some = Harness(runtime), Boundaries(), files()[:4]
    harness.decode(some, pixels, boundaries=boundaries)
    assert "jpeg_states" in runtime.launched
    runtime.launched.clear()
    harness.decode(some, pixels, boundaries=boundaries)
    assert "jpeg_known_coefficients" in runtime.launched
    assert not {"jpeg_states", "jpeg_coefficients"} & set(runtime.launched)


def test_known_pictures_and_others_in_one_batch(harness: Harness) -> None:
    some, boundaries = files(), Boundaries()
    expected, _ = harness.decode(some, pixels)
    harness.decode(some[:3], pixels, boundaries=boundaries)
    results, status = harness.decode(some, pixels, boundaries=boundaries)
    assert not status.any()
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_wrong_is_believed(harness: Harness) -> None:
    """With any bit of any state changed, a picture is refused, or is right all the same."""
    some, boundaries = files()[:7], Boundaries()
    expected, _ = harness.decode(some, pixels, boundaries=boundaries)
    counts = known(boundaries, some)
    states = np.empty(int(counts.sum()), np.uint64)
    boundaries.fill(np.arange(len(some)), counts, states)
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(12):
        wrong = states.copy()
        starts = np.cumsum(counts) - counts
        chosen = starts + rng.integers(0, counts)  # one of each picture
        wrong[chosen] ^= np.uint64(1) << rng.choice(
            [0, 1, 2, 3, 4, 8, 9, 16, 17, 20, 21, 32, 33, 40], len(some)
        ).astype(np.uint64)

        class Wrong(Boundaries):
            def fill(self, index: Any, counts: Any, out: Any) -> None:
                out[:] = wrong  # noqa: B023  # used up in this turn

            def counts(self, index: Any, sizes: Any) -> Any:
                return counts

        results, status = harness.decode(some, pixels, boundaries=Wrong())
        refused += np.count_nonzero(status == jpeg_gpu.STALE)
        for i in np.flatnonzero(status == 0):
            np.testing.assert_array_equal(results[i], expected[i])
    assert refused > 20


def test_states_of_another_picture(harness: Harness) -> None:
    """The data set was changed since: each record is another one now, of the same length."""
    some, boundaries = files()[:7], Boundaries()
    some = [f.ljust(max(map(len, some)), b"\0") for f in some]
    harness.decode(some, pixels, boundaries=boundaries)
    turned = some[1:] + some[:1]
    expected, _ = harness.decode(turned, pixels)
    results, status = harness.decode(turned, pixels, boundaries=boundaries)
    assert status.all()
    boundaries.forget(np.flatnonzero(status))
    assert not known(boundaries, some).any()
    results, status = harness.decode(turned, pixels, boundaries=boundaries)
    assert not status.any()
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert known(boundaries, some).all()


def test_a_file_that_grew_is_learned_anew(harness: Harness) -> None:
    some, boundaries = files()[:2], Boundaries()
    harness.decode(some, pixels, boundaries=boundaries)
    grown = [some[1], some[0] + bytes(10)]
    assert not known(boundaries, grown).any()
    assert_same(harness, grown, boundaries)
    assert known(boundaries, grown).all()
    assert not boundaries.wrong


def test_damage_is_noticed_all_the_same(harness: Harness) -> None:
    """Files that were damaged since they were learned: accepted is what is accepted without, with the same pixels."""
    base, boundaries = (
        [encode(60, 44, restart_marker_blocks=4), encode(150, 90), encode(90, 70, subsampling="4:2:0")],
        Boundaries(),
    )
    harness.decode(base * 40, pixels, boundaries=boundaries)
    rng = np.random.default_rng(7)
    damaged = []
    for file in base * 40:
        data = bytearray(file)
        for at in rng.integers(len(data) // 2, len(data), rng.integers(1, 3)):
            data[at] = rng.integers(0, 256)
        damaged.append(bytes(data))
    expected, wanted = harness.decode(damaged, pixels)
    results, status = harness.decode(damaged, pixels, boundaries=boundaries)
    assert not (status[wanted != 0] == 0).any()
    assert (status == 0).any()
    for i in np.flatnonzero(status == 0):
        np.testing.assert_array_equal(results[i], expected[i])


def test_nothing_is_believed_after_too_much_that_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_run.ops.codecs.jpeg.boundaries.MAX_WRONG", 3)
    harness, boundaries, some = Harness(EmulatedRuntime()), Boundaries(), files()[:4]
    harness.decode(some, pixels, boundaries=boundaries)
    boundaries.forget(np.arange(3))
    assert known(boundaries, some).tolist()[:3] == [0, 0, 0]
    assert known(boundaries, some)[3] > 0
    boundaries.forget(np.arange(3, 4))
    assert boundaries.full
    assert not known(boundaries, some).any()


def test_no_more_than_the_budget(harness: Harness) -> None:
    some = files()[:4]
    whole = Boundaries()
    harness.decode(some, pixels, boundaries=whole)
    counts = known(whole, some)
    little = Boundaries(budget=4 * int(counts[:2].sum()) + 4)
    assert_same(harness, some, little)
    assert known(little, some).tolist() == [*counts[:2], 0, 0]
    assert little.used * 4 <= little.budget


def test_records_in_any_order() -> None:
    """Numbers far apart and out of order, and those that were never seen."""
    harness, boundaries, some = Harness(EmulatedRuntime()), Boundaries(), files()[:2]
    numbers, lengths = np.array([70_000, 3]), np.array([len(f) for f in some])

    class Numbered(Boundaries):
        def counts(self, index: Any, sizes: Any) -> Any:
            return boundaries.counts(numbers[index], sizes)

        def fill(self, index: Any, counts: Any, states: Any) -> None:
            boundaries.fill(numbers[index], counts, states)

        def learn(self, index: Any, which: Any, plan: Any, found: Any) -> None:
            boundaries.learn(numbers[index], which, plan, found)

    assert_same(harness, some, Numbered())
    assert (boundaries.counts(numbers, lengths) > 0).all()
    assert not boundaries.counts(np.array([4, 1 << 40]), lengths).any()
