"""Decode AVIF, HEIC and JPEG XL, on one thread each: AVIF with Pillow (or imagecodecs for more than 8 bits), HEIC with
pillow-heif, JPEG XL with imagecodecs."""

from __future__ import annotations

import io
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...errors import SampleError
from ..format import Header
from ..pixels import INVERSE_ORIENTATION, Pixels, orient, spread

LABELS = {"avif": "AVIF", "heic": "HEIC", "jpegxl": "JPEG XL"}
REMEDY = "pip install 'dali-run[formats]'"


@cache
def missing(format: str) -> str:
    """Return what to install for decoding ``format``, if its library is missing; empty if it is installed."""
    if format == "avif":
        from PIL import features

        there = bool(features.check("avif"))
    else:
        there = find_spec({"heic": "pillow_heif", "jpegxl": "imagecodecs"}[format]) is not None
    return "" if there else f"{LABELS[format]} is not decoded without its library: {REMEDY}"


def decode(data: memoryview, header: Header, adjust_orientation: bool) -> Pixels:
    """Return an image as (H, W, C), uint8, uint16 or float32; of several images in the file, the first.
    ``adjust_orientation``: rotate and flip the image as the file says. Raises SampleError if the library is missing,
    and the library's own exceptions."""
    if problem := missing(header.format):
        raise SampleError("unsupported", problem)
    pixels: Any
    if header.format == "jpegxl":
        import imagecodecs

        pixels = imagecodecs.jpegxl_decode(bytes(data), index=0, numthreads=1, keeporientation=not adjust_orientation)
        if pixels.dtype == np.float16:
            pixels = pixels.astype(np.float32)
        return _channels(pixels)
    if header.format == "heic":
        import pillow_heif

        pillow_heif.options.DECODE_THREADS = 1
        file = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=False, bgr_mode=False)
        pixels = _channels(np.array(file[file.primary_index]))  # libheif has applied the orientation
        if pixels.dtype == np.uint16 and header.bits < 16:  # libheif has shifted the samples to the top bits
            pixels = spread(pixels >> (16 - header.bits), (1 << header.bits) - 1)
        return pixels if adjust_orientation else orient(pixels, INVERSE_ORIENTATION[header.orientation])
    pixels = _avif(data, header)
    return orient(pixels, header.orientation) if adjust_orientation else pixels


def _avif(data: memoryview, header: Header) -> Pixels:
    if header.bits > 8 and find_spec("imagecodecs") is not None:
        import imagecodecs

        return spread(_channels(imagecodecs.avif_decode(bytes(data), index=0, numthreads=1)), (1 << header.bits) - 1)
    from PIL import AvifImagePlugin

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    image = AvifImagePlugin.AvifImageFile(io.BytesIO(data))
    image.load()
    return _channels(np.asarray(image))


def _channels(pixels: Pixels) -> Pixels:
    """Return a decoded array as (H, W, C). Raises SampleError unless it is an image with 1 to 4 channels."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or not 1 <= pixels.shape[2] <= 4 or pixels.dtype not in (np.uint8, np.uint16, np.float32):
        raise SampleError("unsupported", f"an image of shape {pixels.shape} and type {pixels.dtype}")
    return np.ascontiguousarray(pixels)
