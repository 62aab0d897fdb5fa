"""Declaration of the format WebP (Google's container)."""

from __future__ import annotations

import struct
from typing import Any

from ...errors import SampleError
from ...kernels import Kernels
from ..exif import exif_orientation
from ..format import Format, Header, Signature
from ..pixels import Empty, Pixels, orient

CODE = 5
"""Number of WebP in header arrays (`Format.code`)."""
_decoder: Any = Kernels(".decoder", __package__)


def probe(data: memoryview) -> Header:
    tag = bytes(data[12:16])
    if tag == b"VP8X":
        flags = data[20]
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        if len(data) < 30:
            raise IndexError
        orientation, at = 1, 12
        while flags & 8 and at + 8 <= len(data):
            name, length = struct.unpack_from("<4sI", data, at)
            if name == b"EXIF":
                block = data[at + 8 : at + 8 + length]
                orientation = exif_orientation(block[6:] if bytes(block[:6]) == b"Exif\0\0" else block)
                break
            at += 8 + length + (length & 1)
        return Header("webp", width, height, 4 if flags & 16 else 3, 8, orientation)
    if tag == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), 4 if bits >> 28 & 1 else 3, 8)
    if tag == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("webp", width & 0x3FFF, height & 0x3FFF, 3, 8)
    raise SampleError("corrupt_data", "the WebP's first chunk is not VP8, VP8L or VP8X")


def _matches(data: memoryview) -> bool:
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WEBP"


def _decode(data: memoryview, header: Header, adjust_orientation: bool, empty: Empty) -> Pixels | None:
    """Decode a WebP with libwebp, without Pillow. Return None for animations and invalid files, which Pillow decodes or
    rejects."""
    pixels: Pixels | None = _decoder.decode(data, header, empty)
    return pixels if pixels is None or not adjust_orientation else orient(pixels, header.orientation)


FORMATS = (
    Format(
        "webp", CODE, "WebP", (".webp",), (Signature(b"WEBP", 8),), probe, matches=_matches, mime="image/webp",
        library=_decode, gpu_rows=".webp.on_gpu", pillow="WebPImagePlugin.WebPImageFile", exact_size=True,
    ),
)  # fmt: skip
