"""Declaration of the format TIFF 6.0."""

from __future__ import annotations

import struct
from typing import Any

from ...errors import SampleError
from ...kernels import Kernels
from ..format import Format, Header, Signature
from ..pixels import Empty, Pixels, orient, spread

CODE = 2
"""`Format.code` of TIFF, which identifies the format in arrays of headers."""
_decoder: Any = Kernels(".decoder", __package__)
_packed: Any = Kernels(".packed", __package__)


def probe(data: memoryview) -> Header:
    order = "<" if data[0] == 0x49 else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (directory,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    (entries,) = struct.unpack_from(order + ("Q" if big else "H"), data, directory)
    at, step = directory + (8 if big else 2), 20 if big else 12
    tags: dict[int, int] = {}
    for _ in range(min(entries, _MAX_ENTRIES)):
        if at + step > len(data):
            break
        tag, kind = struct.unpack_from(order + "HH", data, at)
        (count,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + 4)
        if tag in _TAGS:
            code, width = _TYPES.get(kind, ("", 0))
            where = at + (12 if big else 8)
            if width * count > (8 if big else 4):
                (where,) = struct.unpack_from(order + ("Q" if big else "I"), data, where)
            if width and 1 <= count <= _MAX_VALUES and where + width * count <= len(data):
                tags.setdefault(tag, struct.unpack_from(order + code, data, where)[0])
            elif tag == 258:
                raise SampleError("corrupt_data", f"the TIFF's BitsPerSample is damaged: {count} values of type {kind} "
                                  f"at byte {where} of {len(data)}")  # fmt: skip
        at += step
    if 256 not in tags or 257 not in tags:
        raise SampleError("corrupt_data", "the TIFF's first directory has no width and height")
    photometric, samples = tags.get(262, 1), tags.get(277, 1)
    if samples > 1 and 258 not in tags:
        raise SampleError("corrupt_data", f"the TIFF has {samples} samples a pixel and no BitsPerSample")
    channels = 3 if photometric == 3 else samples
    orientation = tags.get(274, 1)
    return Header("tiff", tags[256], tags[257], channels, tags.get(258, 1), orientation if 1 <= orientation <= 8 else 1)


_MAX_VALUES = 1 << 16
"""Maximum number of values that are read for one tag of a TIFF's directory; SamplesPerPixel has 16 bits."""
_MAX_ENTRIES = 4096
"""Maximum number of entries of a TIFF's directory that are read."""
_TAGS = (256, 257, 258, 262, 274, 277)  # width, height, bits, photometric, orientation, samples per pixel
_TYPES = {1: ("B", 1), 3: ("H", 2), 4: ("I", 4), 16: ("Q", 8)}


def _decode_packed(data: memoryview, header: Header, adjust_orientation: bool, _: Empty) -> Pixels | None:
    """Decode a TIFF with a bit depth that Pillow does not support, or supports only for some byte orders (12 bits)."""
    if header.bits in ((1, 2, 4, 8, 16, 32) if header.channels == 1 else (8, 16, 32)):
        return None
    pixels: Pixels | None = _packed.decode(data, header)
    return pixels if pixels is None or not adjust_orientation else orient(pixels, header.orientation)


def _widen(pixels: Pixels, bits: int) -> Pixels:
    """Scale samples of ``bits`` bits to the whole range of their type. Pillow leaves them as stored: samples of 12
    bits, for example, are 0 ... 4095."""
    return spread(pixels, (1 << bits) - 1) if pixels.itemsize == 2 and bits > 8 else pixels


FORMATS = (
    Format(
        "tiff", CODE, "TIFF", (".tiff", ".tif"), tuple(map(Signature, (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"))), probe,
        rows=".tiff.decoder", gpu_rows=".tiff.on_gpu", library=_decode_packed, pillow="TiffImagePlugin.TiffImageFile",
        pillow_turns=True, stored=lambda data, header: _decoder.stored(data, header), imagecodecs="tiff_decode",
        widen=_widen,
    ),
)  # fmt: skip
