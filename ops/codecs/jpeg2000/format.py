"""Declaration of the format JPEG 2000 (ITU-T T.800, annexes A and I)."""

from __future__ import annotations

import struct

from ...errors import SampleError
from ..format import Format, Header, Signature
from ..pixels import Pixels, spread

CODE = 6
"""Number of JPEG 2000 in header arrays (`Format.code`)."""


def probe(data: memoryview) -> Header:
    if data[0] == 0xFF:
        return _codestream(data)
    at, end, boxes = 12, len(data), 0
    while at + 8 <= end and boxes < _MAX_BOXES:
        length, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        if kind == b"ihdr":
            height, width, channels, bits = struct.unpack_from(">IIHB", data, at + head)
            return Header("jpeg2000", width, height, channels, 8 if bits == 255 else (bits & 0x7F) + 1)
        if kind == b"jp2c":
            return _codestream(data[at + head :])
        if length and length < head:
            break
        at += head if kind == b"jp2h" else length or end
        boxes += 1
    raise SampleError("corrupt_data", "the JPEG 2000 file has no image header box")


def _codestream(data: memoryview) -> Header:
    width, height, left, top = struct.unpack_from(">IIII", data, 8)
    (channels,) = struct.unpack_from(">H", data, 40)
    return Header("jpeg2000", width - left, height - top, channels, (data[42] & 0x7F) + 1)


_MAX_BOXES = 4096
"""Maximum number of boxes of a JP2 file in which its header is searched."""


def _widen(pixels: Pixels, bits: int) -> Pixels:
    """Scale Pillow's samples to the whole range of their type. Pillow leaves ``bits`` bits of each sample in the top
    bits (5 bits: 0, 8 ... 248)."""
    width = 8 * pixels.itemsize
    return spread(pixels >> (width - bits), (1 << bits) - 1) if bits < 8 or width == 16 else pixels


FORMATS = (
    Format(
        "jpeg2000", CODE, "JPEG 2000", (".jp2",),
        (Signature(b"\0\0\0\x0cjP  \r\n\x87\n"), Signature(b"\xff\x4f\xff\x51", suffix=".j2k")), probe,
        gpu_rows=".jpeg2000.on_gpu", pillow="Jpeg2KImagePlugin.Jpeg2KImageFile", imagecodecs="jpeg2k_decode",
        widen=_widen,
        # The library needs 4 bytes per sample (tests/ops/codecs/test_resident.py measures it); the decoder on a GPU
        # stores coefficients twice, and the places of code blocks.
        extra_bytes=(4, 9),
    ),
)  # fmt: skip
