"""Thumbnails of encoded pictures, and what pictures that nobody should trust cost."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from dali_run.pipelines.tools import thumbnails as module
from dali_run.pipelines.tools.thumbnails import SIDE, thumbnail, thumbnails


def encoded(kind: str, size: tuple[int, int], color: str = "teal") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, kind)
    return out.getvalue()


def test_pictures_become_small_jpegs_and_the_rest_nothing() -> None:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    good = encoded("JPEG", (640, 480))
    found = thumbnails([good, b"no picture", encoded("PNG", (10, 20)), good[: len(good) // 2], bomb, b"",
                        encoded("WEBP", (300, 900))])  # fmt: skip
    assert [f is not None for f in found] == [True, False, True, True, False, False, True]
    sizes = [Image.open(io.BytesIO(f)).size for f in found if f is not None]
    assert sizes == [(SIDE, SIDE * 3 // 4), (10, 20), (SIDE, SIDE * 3 // 4), (SIDE // 3, SIDE)]
    assert thumbnails([]) == []


def test_a_picture_that_ends_the_process_costs_its_own_thumbnail(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_it_ends(given: list[bytes]) -> list[bytes | None]:
        end = given.index(b"deadly") if b"deadly" in given else len(given)
        return list(given[:end])

    monkeypatch.setattr(module, "_apart", until_it_ends)
    assert thumbnails([b"a", b"deadly", b"b", b"c"]) == [b"a", None, b"b", b"c"]
    assert thumbnails([b"a", *[b"deadly"] * 9, b"b"]) == [b"a", *[None] * 10]  # it is not started for ever


def test_modes_without_colour() -> None:
    for mode in ("L", "1", "I;16", "RGBA", "CMYK", "P"):
        assert Image.open(io.BytesIO(thumbnail(Image.new(mode, (8, 8))))).mode == "RGB"
