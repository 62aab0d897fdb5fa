"""Declaration of the format PNG (W3C, 3rd ed.)."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from ...errors import SampleError
from ...kernels import Kernels
from ..exif import exif_orientation
from ..format import Format, Header, Signature
from ..pixels import Pixels

CODE = 1
"""`Format.code` of PNG, which identifies the format in arrays of headers."""
_decoder: Any = Kernels(".decoder", __package__)


def probe(data: memoryview) -> Header:
    if bytes(data[12:16]) != b"IHDR":
        raise SampleError("corrupt_data", "the PNG does not start with its IHDR chunk")
    width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
    if kind not in _CHANNELS:
        raise SampleError("corrupt_data", f"the PNG header names colour type {kind}; 0, 2, 3, 4 and 6 exist")
    orientation, at = 1, 33
    for _ in range(_MAX_CHUNKS):  # eXIf may be before or after the pixels
        if at + 12 > len(data):
            break
        length, tag = struct.unpack_from(">I4s", data, at)
        if tag == b"eXIf":
            orientation = exif_orientation(data[at + 8 : at + 8 + length])
            break
        at += 12 + length
    return Header("png", width, height, _CHANNELS[kind], 8 if kind == 3 else bits, orientation)


_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_MAX_CHUNKS = 4096
"""Maximum number of chunks of a PNG that are searched for the orientation, which is in chunk eXIf."""


def check_chunks(data: memoryview) -> None:
    """Raise SampleError if the checksum of a chunk with pixels or colours is wrong (PNG 3rd ed., 5.3). Pillow does not
    check the checksums of pixel chunks."""
    at = 8
    while at + 12 <= len(data):
        length, tag = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            return  # cut off: the decoder reports it
        if tag in _CHECKED and zlib.crc32(data[at + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            raise SampleError("corrupt_data", f"the PNG is damaged: the checksum of its {tag.decode()} chunk differs")
        if tag == b"IEND":
            return
        at = end + 4


_CHECKED = (b"IHDR", b"PLTE", b"IDAT", b"tRNS")


def _stored(data: memoryview, header: Header) -> Pixels | None:
    pixels: Pixels | None = _decoder.stored(data, header)
    return pixels


FORMATS = (
    Format(
        "png", CODE, "PNG", (".png",), (Signature(b"\x89PNG\r\n\x1a\n"),), probe, mime="image/png",
        rows=".png.decoder", gpu_rows=".png.on_gpu", pillow="PngImagePlugin.PngImageFile", check=check_chunks,
        stored=_stored, deep=_stored, keeps_16_bits=lambda: bool(_decoder.available()), imagecodecs="png_decode",
    ),
)  # fmt: skip
