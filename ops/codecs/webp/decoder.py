"""Decode WebP with the libwebp that Pillow includes. Pillow itself decodes every file as an animation, into four
channels and over a canvas, which takes twice as long.

Animations and invalid files are left to Pillow, whose pixels are the same.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..format import Header
from ..pixels import Empty, Pixels, fresh

_FLAGS = 0b111100
"""Flags of a WebP's VP8X chunk that are supported: a colour profile, alpha, Exif and XMP, but not animation."""
_ABI = 0x0209
"""ABI version of libwebp's decoder (WEBP_DECODER_ABI_VERSION); its high byte must equal the library's."""


def decode(data: memoryview, header: Header, empty: Empty = fresh) -> Pixels | None:
    """Decode a WebP to uint8 (H, W, 3 or 4), in memory from ``empty``. Return None if libwebp is missing, or if Pillow
    must decode or reject the file."""
    library = _library()
    image = None if library is None else _image(data)
    if image is None:
        return None
    encoded = np.frombuffer(image, np.uint8)
    source, size = ctypes.c_void_p(encoded.ctypes.data), ctypes.c_size_t(len(encoded))
    found = (ctypes.c_int * 10)()  # width, height, alpha, animation, ...
    if library.WebPGetFeaturesInternal(source, size, found, _ABI):
        return None
    if tuple(found[:4]) != (header.width, header.height, header.channels == 4, 0):
        return None
    pixels = empty((header.height, header.width, header.channels))
    into = library.WebPDecodeRGBAInto if header.channels == 4 else library.WebPDecodeRGBInto
    place, most = ctypes.c_void_p(pixels.ctypes.data), ctypes.c_size_t(pixels.nbytes)
    return pixels if into(source, size, place, most, header.width * header.channels) else None


def is_lossy(data: memoryview) -> bool:
    """Return whether the file is a lossy WebP without alpha that is at least as long as its header says."""
    name = bytes(data[12:16])
    if name == b"VP8 ":
        return 8 + int(struct.unpack_from("<I", data, 4)[0]) <= len(data)
    image = _image(data) if name == b"VP8X" else None
    return image is not None and bytes(image[:4]) == b"VP8 "


def _image(data: memoryview) -> memoryview | None:
    """Return the chunks with the image (ALPH and VP8, or VP8L) if the file consists of valid chunks up to the end that
    its header gives; otherwise None. With more bytes, the decoder would read on after a damaged image."""
    if len(data) < 20:
        return None
    end, at = 8 + int(struct.unpack_from("<I", data, 4)[0]), 12
    begin = found = 0
    while at + 8 <= end <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        following = at + 8 + size + (size & 1)
        if name == b"VP8X" and (at > 12 or size != 10 or data[20] & ~_FLAGS or bytes(data[21:24]) != bytes(3)):
            return None
        if not found and name == b"ALPH":
            begin = at
        elif not found and name in (b"VP8 ", b"VP8L"):
            begin, found = begin or at, following
        elif begin and not found:
            return None
        at = following
    return data[begin:found] if at == end and found else None


@cache
def _library() -> Any:
    """Return the libwebp library that Pillow has loaded; None if it is not found."""
    try:
        from PIL import _webp  # noqa: F401 (loads it)

        lines = Path("/proc/self/maps").read_text().splitlines()
    except (ImportError, OSError):
        return None
    for path in sorted({line.split()[-1] for line in lines if "/libwebp-" in line or "/libwebp.so" in line}):
        try:
            library = ctypes.CDLL(path)
            for name in ("WebPDecodeRGBInto", "WebPDecodeRGBAInto"):
                getattr(library, name).restype = ctypes.c_void_p
            library.WebPGetFeaturesInternal.restype = ctypes.c_int
        except (OSError, AttributeError):
            continue
        return library
    return None
