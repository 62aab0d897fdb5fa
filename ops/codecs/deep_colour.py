"""Colour images of more than 8 bits a channel, which Pillow gives in 8: built-in decoders, else imagecodecs."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np

from .format import Header
from .formats import BY_NAME
from .pixels import Pixels, spread

_MODES = ("LA", "RGB", "RGBA")
"""Pillow's names of the modes that are taken here; CMYK and others are converted by Pillow, in 8 bits."""


@cache
def available() -> bool:
    """Whether imagecodecs is installed (the extra ``formats``)."""
    return find_spec("imagecodecs") is not None


def is_deep(header: Header) -> bool:
    """Whether the image has more than one channel, of more than 8 bits."""
    return header.bits > 8 and header.channels > 1


def decode(data: memoryview, header: Header, mode: str) -> Pixels | None:
    """(H, W, C) uint16 over the whole range, as it is stored; None for an image of another kind, or a damaged one,
    which Pillow then judges."""
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
    except Exception:  # every codec has errors of its own, and Pillow says in its words what is wrong
        return None
    if pixels.dtype != np.uint16 or pixels.shape != (header.height, header.width, header.channels):
        return None
    if header.bits < 16:  # JPEG 2000 has any number of bits
        return spread(pixels, (1 << header.bits) - 1)
    return np.ascontiguousarray(pixels)
