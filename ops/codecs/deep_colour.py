"""Decode colour images of more than 8 bits per channel, which Pillow reduces to 8: by built-in decoders or
imagecodecs."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np

from .format import Header
from .formats import BY_NAME
from .pixels import Pixels, spread

_MODES = ("LA", "RGB", "RGBA")
"""Pillow's modes that this module supports. Pillow itself converts the others, such as CMYK, in 8 bits."""


@cache
def available() -> bool:
    """Return whether imagecodecs is installed (the extra ``formats``)."""
    return find_spec("imagecodecs") is not None


def is_deep(header: Header) -> bool:
    """Return whether the image has more than one channel, of more than 8 bits each."""
    return header.bits > 8 and header.channels > 1


def decode(data: memoryview, header: Header, mode: str) -> Pixels | None:
    """Return the stored pixels (H, W, C) as uint16, scaled to the whole range. Return None if the image is damaged or
    of an unsupported kind: Pillow then decodes or rejects it."""
    format = BY_NAME[header.format]
    if not is_deep(header) or mode not in _MODES:
        return None
    if format.deep is not None and (pixels := format.deep(data, header)) is not None:
        return pixels
    if not format.imagecodecs or not available():
        return None
    import imagecodecs

    codec = getattr(imagecodecs, format.imagecodecs)
    try:
        pixels = codec(bytes(data))
    except Exception:  # every codec has its own exceptions, and Pillow's message says what is wrong
        return None
    if pixels.dtype != np.uint16 or pixels.shape != (header.height, header.width, header.channels):
        return None
    if header.bits < 16:  # JPEG 2000 has any number of bits
        return spread(pixels, (1 << header.bits) - 1)
    return np.ascontiguousarray(pixels)
