"""Calls of the built-in decoders that are compiled loops over whole batches: those of PNG and TIFF.

Such a loop takes ``(functions, raw, offsets, sizes, windows, channels, bgr, item, dst, origins, pitches, status)`` for
N images: the bytes raw[offset : offset + size] of each, and the addresses of `libdeflate`. ``windows`` [N, 4] (y0, x0,
y1, x1, inside the image) are the pixels to decode. The window of image i is written to dst[origins[i] + y * pitches[i]
+ x * channels[i] * item:], ``item`` bytes per sample: as uint8 with 1, 16-bit samples rounded; with 2, for 16-bit
images only, unchanged, low bytes first. ``channels[i]`` is the number of stored channels (alpha and a palette's colours
count), 3 for RGB or BGR (uint8 only), or 1 for gray. ``status[i]`` becomes 0 (decoded), or 1 for an image that another
decoder must decode or reject; some pixels of its window may then have been written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch
from ..types import DALIImageType
from . import libdeflate
from .format import CHANNELS, Header
from .headers import readonly
from .pixels import Pixels

_KEPT = (DALIImageType.RGB, DALIImageType.BGR, DALIImageType.ANY_DATA)


def keeps_channels(rows: I64, output_type: DALIImageType) -> npt.NDArray[np.bool_]:
    """Return for each image whether the channels of ``output_type`` are stored channels, so that none has to be
    computed from others. ``rows`` [M, 6]: headers."""
    if output_type in _KEPT:
        return np.ones(len(rows), np.bool_)
    few: npt.NDArray[np.bool_] = rows[:, CHANNELS] < 3
    return few & (output_type is DALIImageType.GRAY)


def decode_into(
    loop: Any, batch: Batch, which: I64, windows: I64, channels: I64, bgr: bool, out: Any, origins: I64, pitches: I64
) -> I32:
    """Decode the images ``which`` of ``batch`` as uint8 into ``out``, by a compiled loop. Return a status for each
    image, 0 if it was decoded. All other arrays have one row per image of ``which``."""
    sizes = batch.shapes[which, 0].astype(np.int64)
    return _run(loop, batch.data, batch.offsets[which], sizes, windows, channels, bgr, 1, out, origins, pitches)


def stored(loop: Any, data: memoryview, header: Header) -> Pixels | None:
    """Decode one image by the compiled ``loop``. Return the stored pixels (H, W, C), uint8 or uint16, with palettes as
    RGB. Return None if the loop does not support the file, which another decoder then decodes or rejects."""
    pixels = np.empty((header.height, header.width, header.channels), np.uint16 if header.bits > 8 else np.uint8)
    encoded, one = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
    window, pitch = np.array([[0, 0, header.height, header.width]], np.int64), one + header.width * header.channels
    item, flat = pixels.itemsize, pixels.reshape(-1).view(np.uint8)
    wanted = window, one + header.channels, False, item, flat, one, pitch * item
    return None if _run(loop, encoded, one, one + len(encoded), *wanted)[0] else pixels


def _run(loop: Any, encoded: Any, offsets: I64, sizes: I64, *wanted: Any) -> I32:
    status = np.empty(len(sizes), np.int32)
    loop(libdeflate.addresses(), readonly(encoded), offsets, sizes, *wanted, status)
    return status
