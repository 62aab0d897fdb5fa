"""Random crop windows: equal to DALI's, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import SpecError
from dali_run.ops.images.random_window import WINDOW_SALT, check_window_ranges, random_windows
from dali_run.ops.streams import Streams

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "random_window.npz")
SETTINGS = sorted(k.removeprefix("setting_") for k in GOLDEN.files if k.startswith("setting_"))


@pytest.mark.parametrize("setting", SETTINGS)
def test_windows_equal_dali(setting: str) -> None:
    height, width, narrow, wide, least, most, attempts = GOLDEN[f"setting_{setting}"].tolist()
    expected = GOLDEN[f"windows_{setting}"]
    n, batch = len(expected), int(GOLDEN["batch"])
    number = np.arange(n, dtype=np.uint64)
    slot = number % np.uint64(batch)
    streams = Streams(int(GOLDEN["seed"]) ^ WINDOW_SALT, number - slot + slot * np.uint64(65537))
    anchors, shapes = random_windows(
        streams, np.full(n, int(height)), np.full(n, int(width)), (narrow, wide), (least, most), int(attempts)
    )
    np.testing.assert_array_equal(np.hstack([anchors, shapes]), expected)


def test_a_window_depends_on_its_sample_alone() -> None:
    streams = Streams(5, np.arange(50, dtype=np.uint64))
    heights, widths = np.arange(50) * 7 + 1, np.arange(50) * 3 + 2
    anchors, shapes = random_windows(streams, heights, widths)
    some = np.array([3, 41, 17])
    np.testing.assert_array_equal(random_windows(streams.take(some), heights[some], widths[some])[0], anchors[some])
    assert (anchors >= 0).all()
    assert (shapes >= 1).all()
    assert (anchors + shapes <= np.stack([heights, widths], 1)).all()


def test_images_without_pixels_get_windows_without_pixels() -> None:
    _, shapes = random_windows(Streams(1, np.zeros(2, np.uint64)), np.array([0, 4]), np.array([5, 4]))
    assert (shapes[0] == 0).all()
    assert (shapes[1] > 0).all()


@pytest.mark.parametrize(
    ("aspect", "area"),
    [((2.0, 1.0), (0.1, 1.0)), ((1.0, 2.0), (-0.1, 1.0)), ((0.0, 2.0), (0.1, 1.0)), ((1.0,), (0.1, 1.0))],
)
def test_impossible_ranges_are_refused(aspect: tuple[float, ...], area: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="two positive numbers"):
        check_window_ranges(aspect, area)
