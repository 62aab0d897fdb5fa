"""Frames converted straight into memory: the pictures of av's own converter, and not a byte beside them."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.video.swscale import Converter, library

av = pytest.importorskip("av")
GUARD = 4096


@pytest.mark.parametrize("pixels", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "nv12", "yuv420p10le", "gray"])
def test_pictures_are_those_of_av(pixels: str) -> None:
    random = np.random.default_rng(7)
    taken = 0
    converter, theirs = Converter(), av.video.reformatter.VideoReformatter()
    for height, width in ((2, 16), (10, 32), (9, 48), (10, 30), (10, 34), (36, 640), (3, 17), (20, 80)):
        made = av.VideoFrame.from_ndarray(random.integers(0, 256, (height, width, 3), np.uint8), "rgb24")
        frame = made.reformat(format=pixels)
        for space in (1, 2, 6, 9):
            frame.colorspace = space
            memory = np.full(2 * GUARD + height * width * 3, 77, np.uint8)
            out = memory[GUARD:-GUARD].reshape(height, width, 3)
            if not converter.convert(frame, out):
                assert (memory == 77).all()
                continue
            taken += 1
            np.testing.assert_array_equal(out, theirs.reformat(frame, format="rgb24").to_ndarray())
            assert (memory[:GUARD] == 77).all()
            assert (memory[-GUARD:] == 77).all()
    converter.close()
    if library() is not None and pixels in ("yuv420p", "yuvj420p", "yuv422p"):
        assert taken >= 16


def test_what_it_does_not_take_is_left_alone() -> None:
    frame = av.VideoFrame.from_ndarray(np.zeros((16, 32, 3), np.uint8), "rgb24").reformat(format="yuv420p")
    converter = Converter()
    whole = np.full((16, 64, 3), 5, np.uint8)
    assert not converter.convert(frame, whole[:, :32])  # rows that do not follow each other
    assert not converter.convert(frame, np.zeros((16, 32, 3), np.float32))
    assert not converter.convert(frame, np.zeros((8, 32, 3), np.uint8))
    assert (whole == 5).all()
    converter.close()
