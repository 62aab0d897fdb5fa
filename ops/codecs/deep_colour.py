"""Colour images of 16 bits a channel, which Pillow gives in 8: PNM and PNG by ourselves, others by imagecodecs."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec

import numpy as np

from .formats import Header
from .pixels import Pixels
from .png import decoder as png

_MODES = ("LA", "RGB", "RGBA")
"""Pillow's names of what is taken here; CMYK and others are converted by Pillow, in 8 bits."""
_PPM = re.compile(rb"P6(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)\s")


@cache
def available() -> bool:
    """imagecodecs is installed (the extra ``formats``)."""
    return find_spec("imagecodecs") is not None


def is_deep(header: Header) -> bool:
    """The image has more than one channel, of more than 8 bits."""
    return header.bits > 8 and header.channels > 1


def decode(data: memoryview, header: Header, mode: str) -> Pixels | None:
    """(H, W, C) uint16 over the whole range, as it is stored; None where the image is another one or damaged, which
    Pillow then judges."""
    if not is_deep(header) or mode not in _MODES:
        return None
    if header.format == "pnm":
        return _ppm(data)
    if not available():
        return png.stored(data, header) if header.format == "png" else None
    import imagecodecs

    codecs = {"png": imagecodecs.png_decode, "tiff": imagecodecs.tiff_decode, "jpeg2000": imagecodecs.jpeg2k_decode}
    if header.format not in codecs:
        return None
    try:
        pixels = codecs[header.format](bytes(data))
    except Exception:  # every codec has errors of its own, and Pillow says in its words what is wrong
        return None
    if pixels.dtype != np.uint16 or pixels.shape != (header.height, header.width, header.channels):
        return None
    if header.bits < 16:  # JPEG 2000 has any number of bits
        return spread(pixels, (1 << header.bits) - 1)
    return np.ascontiguousarray(pixels)


def _ppm(data: memoryview) -> Pixels | None:
    """Binary PPM: big-endian samples of 0 ... maxval (Netpbm's specification of ppm)."""
    found = _PPM.match(bytes(data[:65536]))
    if found is None:
        return None
    width, height, most = map(int, found.groups())
    size = 2 * 3 * width * height
    if not 255 < most < 65536 or len(data) - found.end() < size:
        return None
    stored = np.frombuffer(data, ">u2", size // 2, found.end()).reshape(height, width, 3)
    return spread(stored.astype(np.uint16), most)


def spread(pixels: Pixels, most: int) -> Pixels:
    """0 ... ``most`` to the whole range of the type, uint8 or uint16, rounded."""
    full = int(np.iinfo(pixels.dtype).max)
    if most == full:
        return pixels
    wide = np.minimum(pixels, most).astype(np.uint32) * np.uint32(full)
    return ((wide + most // 2) // most).astype(pixels.dtype)
