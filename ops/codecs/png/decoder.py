"""PNGs of a batch, by our decoder (`decoder_cpu`): straight into an output, or as they are stored."""

from __future__ import annotations

from typing import Any

from ...batch import I32, I64, Batch
from ...kernels import Kernels
from ...types import DALIImageType
from .. import straight
from ..formats import Header
from ..pixels import Pixels
from . import libdeflate

_decoder: Any = Kernels(".decoder_cpu", __package__)


def available() -> bool:
    """The decoder has what it needs, libdeflate."""
    return libdeflate.functions() is not None


def is_straight(header: Header, size: int, output_type: DALIImageType) -> bool:
    """The decoder makes what is wanted of a file of ``size`` bytes without a step between."""
    if header.format != "png" or not _holds(header, size):
        return False
    if header.bits > 8 and header.channels == 2 and output_type is DALIImageType.ANY_DATA:
        return False  # where the file is damaged, Pillow makes four channels of it
    return straight.needs_no_colours(header, output_type)


def _holds(header: Header, size: int) -> bool:
    """A file of ``size`` bytes can hold the pixels; one that cannot is given no memory for them."""
    stored = 1 if header.bits <= 8 and header.channels == 3 else header.channels  # it may have a palette, of 1 bit
    return header.height * ((header.width * stored + 7) // 8) <= _MOST * size


_MOST = 1032
"""Bytes that deflate makes of one, at most (RFC 1951: 258 of two bits)."""


def decode_into(batch: Batch, which: I64, *wanted: Any) -> I32:
    """`straight.decode_into` by the decoder."""
    return straight.decode_into(_decoder.decode_images, batch, which, *wanted)


def stored(data: memoryview, header: Header) -> Pixels | None:
    """`straight.stored` by the decoder."""
    return straight.stored(_decoder.decode_images, data, header) if _holds(header, len(data)) else None
