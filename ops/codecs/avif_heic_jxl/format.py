"""Declarations of the formats AVIF, HEIC (HEIF: ISO/IEC 23008-12; AOM) and JPEG XL (ISO/IEC 18181)."""

from __future__ import annotations

from typing import Any

from ...kernels import Kernels
from ..format import Format, Header, Signature
from ..pixels import Empty, Pixels
from .headers import heif, jpeg_xl

_decoder: Any = Kernels(".decoder", __package__)
_AVIF, _HEIC = (b"avif", b"avis"), (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")
_HEIF = (b"mif1", b"msf1")


def _heif_name(data: memoryview) -> str:
    """Return the name of the image format inside a HEIF file (AVIF or HEIC), by the brands that the file declares;
    empty for any other file."""
    if bytes(data[4:8]) != b"ftyp":
        return ""
    size = min(int.from_bytes(data[:4], "big"), len(data), 256)
    brands = [bytes(data[8:12]), *(bytes(data[k : k + 4]) for k in range(16, size - 3, 4))]
    if brands[0] not in (*_AVIF, *_HEIC, *_HEIF):
        return ""
    return "avif" if any(b in _AVIF for b in brands) and not any(b in _HEIC for b in brands) else "heic"


def _decode(data: memoryview, header: Header, adjust_orientation: bool, _: Empty) -> Pixels | None:
    pixels: Pixels = _decoder.decode(data, header, adjust_orientation)
    return pixels


FORMATS = (
    Format(
        "avif", 8, "AVIF", (".avif",), (), lambda data: Header("avif", *heif(data)), listed=False,
        matches=lambda data: _heif_name(data) == "avif", library=_decode, missing=lambda: str(_decoder.missing("avif")),
    ),
    Format(
        "heic", 9, "HEIC", (".heic", ".heif"), (), lambda data: Header("heic", *heif(data, cropped=True)), listed=False,
        matches=lambda data: _heif_name(data) == "heic", library=_decode, missing=lambda: str(_decoder.missing("heic")),
        keeps_16_bits=lambda: True,
    ),
    Format(
        "jpegxl", 10, "JPEG XL", (".jxl",),
        (Signature(b"\0\0\0\x0cJXL \r\n\x87\n"), Signature(b"\xff\x0a")), lambda data: Header("jpegxl", *jpeg_xl(data)),
        listed=False, library=_decode, missing=lambda: str(_decoder.missing("jpegxl")), keeps_16_bits=lambda: True,
    ),
)  # fmt: skip
