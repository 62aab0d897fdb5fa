"""Decode TIFFs of depths for which Pillow has no mode: samples of 1 to 16 bits, packed without gaps, with one to four
channels.

TIFF 6.0, sections 3 to 9: strips, chunky, uncompressed or deflated, gray or RGB. Pillow decodes all others.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from ..format import Header
from ..pixels import Pixels, spread

_KINDS = {1: ("B", 1), 3: ("H", 2), 4: ("I", 4), 16: ("Q", 8)}
_NONE, _DEFLATE = (1,), (8, 32946)
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL, _OFFSETS, _SAMPLES = 256, 257, 258, 259, 262, 266, 273, 277
_ROWS, _SIZES, _PLANAR, _PREDICTOR, _FORMAT = 278, 279, 284, 317, 339
_MOST_STRIPS = 1 << 20
_AT_ONCE = 1 << 20
"""Number of samples that are unpacked at a time; each bit takes a byte of memory meanwhile."""


def decode(data: memoryview, header: Header) -> Pixels | None:
    """Decode a TIFF whose samples have unusual numbers of bits. Return the pixels (H, W, C), scaled to the whole range
    of uint8 (up to 8 bits) or uint16. Return None for other TIFFs and damaged ones, which Pillow then decodes or
    rejects."""
    if header.format != "tiff" or not (0 < header.bits <= 16):
        return None
    try:
        tags = _tags(data)
        return _unpacked(data, tags)
    except (struct.error, zlib.error, LookupError, ValueError, OverflowError):
        return None


def _tags(data: memoryview) -> dict[int, tuple[int, ...]]:
    order = "<" if data[0] == 0x49 else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    (entries,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
    at, step, room = at + (8 if big else 2), 20 if big else 12, 8 if big else 4
    tags: dict[int, tuple[int, ...]] = {}
    for _ in range(min(entries, 4096)):
        tag, kind = struct.unpack_from(order + "HH", data, at)
        (count,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + 4)
        if kind in _KINDS and 0 < count <= _MOST_STRIPS:
            code, width = _KINDS[kind]
            where = at + step - room
            if width * count > room:
                (where,) = struct.unpack_from(order + ("Q" if big else "I"), data, where)
            if where + width * count <= len(data):
                tags.setdefault(tag, struct.unpack_from(f"{order}{count}{code}", data, where))
        at += step
    return tags


def _unpack(packed: npt.NDArray[np.uint8], bits: int, out: Pixels) -> None:
    """Write the samples of some rows, which are ``packed`` with this many ``bits`` each, to ``out`` [rows, samples]."""
    single = np.unpackbits(packed, axis=1, count=out.shape[1] * bits).reshape(*out.shape, bits)
    value = np.zeros(out.shape, np.uint16)
    for b in range(bits):
        value = value << np.uint16(1) | single[..., b]
    out[:] = value


def _unpacked(data: memoryview, tags: dict[int, tuple[int, ...]]) -> Pixels | None:
    def one(tag: int, default: int) -> int:
        return tags.get(tag, (default,))[0]

    width, height, channels = one(_WIDTH, 0), one(_HEIGHT, 0), one(_SAMPLES, 1)
    all_bits = set(tags.get(_BITS, (1,)))
    plain = (one(_PREDICTOR, 1), one(_PLANAR, 1), one(_FILL, 1), one(_FORMAT, 1)) == (1, 1, 1, 1)
    coding, photometric = one(_COMPRESSION, 1), one(_PHOTOMETRIC, 1)
    if len(all_bits) != 1 or not plain or coding not in _NONE + _DEFLATE or photometric not in (0, 1, 2):
        return None
    (bits,) = all_bits
    if not 1 <= channels <= 4 or bits > 16 or (photometric < 2) != (channels < 3):
        return None
    rows_each = min(one(_ROWS, height), height)
    offsets, sizes = tags[_OFFSETS], tags[_SIZES]
    if len(offsets) != len(sizes) or rows_each < 1 or len(offsets) < -(-height // rows_each):
        return None
    line = -(-width * channels * bits // 8)
    out = np.empty((height, width * channels), np.uint8 if bits <= 8 else np.uint16)
    few = max(1, _AT_ONCE // max(1, width * channels))
    for k, top in enumerate(range(0, height, rows_each)):
        rows = min(rows_each, height - top)
        strip = data[offsets[k] : offsets[k] + sizes[k]]
        if coding in _DEFLATE:
            strip = memoryview(zlib.decompressobj().decompress(strip, rows * line))
        if len(strip) < rows * line:
            return None
        packed = np.frombuffer(strip, np.uint8, rows * line).reshape(rows, line)
        for a in range(0, rows, few):
            _unpack(packed[a : a + few], bits, out[top + a : top + min(a + few, rows)])
    most = (1 << bits) - 1
    if photometric == 0:
        out = (most - out).astype(out.dtype)
    return spread(out, most).reshape(height, width, channels)
