"""PNGs of a batch, by our decoder (`decoder_cpu`): straight into an output, or as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...batch import I32, I64, Batch
from ...kernels import Kernels
from ...types import DALIImageType
from ..formats import Header
from ..pixels import Pixels
from . import libdeflate

_decoder: Any = Kernels(".decoder_cpu", __package__)


def available() -> bool:
    """The decoder has what it needs, libdeflate."""
    return libdeflate.functions() is not None


def is_straight(header: Header, size: int, output_type: DALIImageType) -> bool:
    """The decoder makes what is wanted of a file of ``size`` bytes without a step between."""
    if header.format != "png" or header.bits > 8 or not _holds(header, size):
        return False
    return output_type in _STRAIGHT or (output_type is DALIImageType.GRAY and header.channels < 3)


_STRAIGHT = (DALIImageType.RGB, DALIImageType.BGR, DALIImageType.ANY_DATA)


def _holds(header: Header, size: int) -> bool:
    """A file of ``size`` bytes can hold the pixels; one that cannot is given no memory for them."""
    stored = 1 if header.bits <= 8 and header.channels == 3 else header.channels  # it may have a palette, of 1 bit
    return header.height * ((header.width * stored + 7) // 8) <= _MOST * size


_MOST = 1032
"""Bytes that deflate makes of one, at most (RFC 1951: 258 of two bits)."""


def decode_into(
    batch: Batch, which: I64, windows: I64, channels: I64, bgr: bool, out: Any, origins: I64, pitches: I64
) -> I32:
    """`decoder_cpu.decode_images` for the images ``which`` of ``batch``; the status of each, int32. The other arrays
    have a row for each of them."""
    sizes = batch.shapes[which, 0].astype(np.int64)
    return _decoded(batch.data, batch.offsets[which], sizes, windows, channels, bgr, out, origins, pitches)


def stored(data: memoryview, header: Header) -> Pixels | None:
    """(H, W, C) uint8 or uint16 as it is stored, palettes as RGB; None where it is one for others to judge."""
    if not available() or not _holds(header, len(data)):
        return None
    deep = header.bits > 8
    pixels = np.empty((header.height, header.width, header.channels), np.uint16 if deep else np.uint8)
    encoded = np.frombuffer(data, np.uint8)
    window = np.array([[0, 0, header.height, header.width]], np.int64)
    size = header.channels * pixels.itemsize
    flat = pixels.reshape(-1).view(np.uint8)
    one = np.zeros(1, np.int64)
    status = _decoded(
        encoded, one, one + len(encoded), window, one + header.channels, False, flat, one, one + header.width * size
    )
    return pixels if status[0] == _decoder.DONE else None


def _decoded(encoded: Any, offsets: I64, sizes: I64, *rest: Any) -> I32:
    encoded = encoded.view()
    encoded.flags.writeable = False  # one type for Numba, whether the bytes are mapped read-only or not
    status = np.empty(len(sizes), np.int32)
    _decoder.decode_images(libdeflate.functions(), encoded, offsets, sizes, np.arange(len(sizes)), *rest, status)
    return status
