"""Exif orientation from odd and damaged directories: what DALI 2.4 makes of each (measured), in both of our readers."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from dali_run.ops.codecs.exif import exif_orientation
from dali_run.ops.codecs.jpeg import header as jpeg_header
from tests.kit.files.jpegs import encode, segment

SHORT, LONG, ASCII, RATIONAL = 3, 4, 2, 5
UPRIGHT = (0x0112, SHORT, 1, 6)
OUTSIDE = struct.pack(">I", 5000)
FILE = encode(16, 8)
Entry = tuple[int, int, int, int | bytes]


def directory(entries: list[Entry], order: str = ">", count: int | None = None, tail: bytes = bytes(4)) -> bytes:
    block = (b"MM" if order == ">" else b"II") + struct.pack(order + "HI", 42, 8)
    block += struct.pack(order + "H", len(entries) if count is None else count)
    for tag, kind, number, value in entries:
        block += struct.pack(order + "HHI", tag, kind, number)
        block += value if isinstance(value, bytes) else struct.pack(order + "HH", value, 0)
    return block + tail


CASES = [
    ("plain", directory([UPRIGHT]), 6),
    ("little endian", directory([UPRIGHT], "<"), 6),
    ("no next directory", directory([UPRIGHT], tail=b""), 6),
    ("more entries than there are", directory([UPRIGHT], count=5), 1),
    ("no entries", directory([UPRIGHT], count=0), 1),
    ("LONG, big endian", directory([(0x0112, LONG, 1, struct.pack(">I", 6))]), 1),
    ("LONG, little endian", directory([(0x0112, LONG, 1, struct.pack("<I", 6))], "<"), 6),
    ("count 14", directory([(0x0112, SHORT, 14, 6)]), 6),
    ("value 0", directory([(0x0112, SHORT, 1, 0)]), 1),
    ("value 9", directory([(0x0112, SHORT, 1, 9)]), 1),
    ("twice", directory([UPRIGHT, (0x0112, SHORT, 1, 3)]), 6),
    ("twice, the first is wrong", directory([(0x0112, SHORT, 1, 0), (0x0112, SHORT, 1, 3)]), 1),
    ("text outside, before", directory([(0x0110, ASCII, 100, OUTSIDE), UPRIGHT]), 1),
    ("text outside, behind", directory([UPRIGHT, (0x0110, ASCII, 100, OUTSIDE)]), 1),
    ("text of 500 MB", directory([(0x0110, ASCII, 0x2000000E, struct.pack(">I", 30)), UPRIGHT]), 1),
    ("text in place", directory([(0x0132, ASCII, 4, b"abc\0"), UPRIGHT]), 6),
    ("fraction outside", directory([UPRIGHT, (0x011A, RATIONAL, 1, OUTSIDE)]), 1),
    ("white point outside", directory([UPRIGHT, (0x013E, RATIONAL, 2, OUTSIDE)]), 1),
    ("other tag outside", directory([UPRIGHT, (0x8888, ASCII, 100, OUTSIDE)]), 6),
    ("Exif directory outside", directory([UPRIGHT, (0x8769, LONG, 1, OUTSIDE)]), 6),
    ("last entry cut in the middle", directory([UPRIGHT, (0x0128, SHORT, 1, 2)], tail=b"")[:-6], 1),
    ("last entry cut in its tag", directory([UPRIGHT, (0x8888, SHORT, 1, 2)], tail=b"")[:-11], 1),
    ("cut right behind the value", directory([UPRIGHT], tail=b"")[:-2], 6),
    ("wrong magic", directory([UPRIGHT]).replace(b"\0*", b"\0+"), 1),
]


@pytest.mark.parametrize(("block", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_orientation(block: bytes, expected: int) -> None:
    file = np.frombuffer(FILE[:2] + segment(0xE1, b"Exif\0\0" + block) + FILE[2:], np.uint8)
    header = jpeg_header.read_headers(file, np.zeros(1, np.int64), np.array([len(file)]))
    assert header["orientation"].tolist() == [expected]
    assert exif_orientation(memoryview(block)) == expected


@pytest.mark.parametrize("first", [b"", b"XX\0*", directory([UPRIGHT]), directory([(0x0100, SHORT, 1, 6)])])
def test_the_first_exif_segment_of_a_jpeg_decides(first: bytes) -> None:
    """As in Pillow and DALI, whatever is in it."""
    blocks = [first, directory([(0x0112, SHORT, 1, 3)])]
    segments = b"".join(segment(0xE1, b"Exif\0\0" + block) for block in blocks)
    other = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0")
    file = np.frombuffer(FILE[:2] + other + segments + FILE[2:], np.uint8)
    found = jpeg_header.read_headers(file, np.array([0]), np.array([len(file)]))["orientation"][0]
    assert found == (6 if first == directory([UPRIGHT]) else 1)
