"""Read the headers of AVIF, HEIC and JPEG XL: size, channels, depth and orientation, from bounded parts of the file.

Sources: HEIF (ISO/IEC 23008-12) and its boxes (ISO/IEC 14496-12): the primary item's properties; AVIF (AOM); JPEG XL
(ISO/IEC 18181-1, annexes A and D; 18181-2 for the container).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ...errors import SampleError

_MOST = 1024
"""Maximum number of boxes, properties and associations to read from one HEIF file, as protection against forged
files."""

Found = tuple[int, int, int, int, int]
"""Header of one image as a tuple: width, height, channels, bits per channel, Exif orientation."""


def boxes(data: memoryview, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the boxes that a HEIF or JPEG XL file stores from byte ``at`` to byte ``end``, each as (type, start and end
    of its content)."""
    for _ in range(_MOST):
        if at + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        stop = end if size == 0 else at + size
        if size and (size < head or stop > end):
            return
        yield bytes(kind), at + head, stop
        at = stop


def heif(data: memoryview, cropped: bool = False) -> Found:
    """Read the header of the primary image of a HEIF file. ``cropped``: return the size of its clean aperture, to which
    libheif crops it. Raises SampleError, struct.error, IndexError."""
    meta = next(((a, b) for kind, a, b in boxes(data, 0, len(data)) if kind == b"meta"), None)
    if meta is None:
        raise SampleError("unsupported", "a HEIF file without a primary image (a sequence); stills are decoded")
    parts = {kind: (a, b) for kind, a, b in boxes(data, meta[0] + 4, meta[1])}
    if b"pitm" not in parts or b"iprp" not in parts:
        raise SampleError("corrupt_data", "the HEIF file names no primary image, or none of its properties")
    at = parts[b"pitm"][0]
    (primary,) = struct.unpack_from(">I" if data[at] else ">H", data, at + 4)
    properties: list[tuple[bytes, int, int]] = []
    linked: list[int] = []
    alpha = False
    for kind, a, b in boxes(data, *parts[b"iprp"]):
        if kind == b"ipco":
            properties = list(boxes(data, a, b))
            alpha = any(kind == b"auxC" and _is_alpha(bytes(data[a : min(b, a + 64)])) for kind, a, b in properties)
        elif kind == b"ipma":
            linked += _linked(data, a, primary)
    return _described(data, [properties[k - 1] for k in linked if 1 <= k <= len(properties)], alpha, cropped)


def _described(data: memoryview, properties: Sequence[tuple[bytes, int, int]], alpha: bool, cropped: bool) -> Found:
    """Return the header of an image with these ``properties``: the kind, begin and end of each."""
    width = height = 0
    bits, turns, mirrored = 8, 0, None
    for kind, a, _ in properties:
        if kind == b"ispe":
            width, height = struct.unpack_from(">II", data, a + 4)
        elif kind == b"clap" and cropped and width:
            wide, by_wide, high, by_high = struct.unpack_from(">IIII", data, a)
            if by_wide and by_high and 0 < wide // by_wide <= width and 0 < high // by_high <= height:
                width, height = wide // by_wide, high // by_high
        elif kind == b"pixi":
            bits = data[a + 5]
        elif kind == b"irot":
            turns = data[a] & 3
        elif kind == b"imir":
            mirrored = data[a] & 1
    if not width or not height:
        raise SampleError("corrupt_data", "the HEIF file does not say how large its image is")
    return width, height, 4 if alpha else 3, bits, _ORIENTATIONS[mirrored, turns]


def _is_alpha(auxiliary: bytes) -> bool:
    return b":alpha" in auxiliary or b":hevc:2015:auxid:1\0" in auxiliary


_ORIENTATIONS = {
    (None, 0): 1, (None, 1): 8, (None, 2): 3, (None, 3): 6,
    (1, 0): 2, (0, 0): 4, (1, 2): 4, (0, 2): 2, (1, 1): 7, (0, 1): 5, (1, 3): 5, (0, 3): 7,
}  # fmt: skip
"""Exif orientation, by (mirroring in the imir box, number of quarter turns to the left in the irot box). The image is
turned first, then mirrored; mirroring 1 exchanges left and right."""


def _linked(data: memoryview, at: int, item: int) -> list[int]:
    """Return the numbers of the properties that a HEIF file's ipma box, whose content begins at ``at``, assigns to the
    image ``item``."""
    (version_flags, entries) = struct.unpack_from(">II", data, at)
    at += 8
    found: list[int] = []
    for _ in range(min(entries, _MOST)):
        (number,) = struct.unpack_from(">I" if version_flags >> 24 else ">H", data, at)
        at += 4 if version_flags >> 24 else 2
        count = data[at]
        at += 1
        for _ in range(count):
            (link,) = struct.unpack_from(">H" if version_flags & 1 else ">B", data, at)
            at += 2 if version_flags & 1 else 1
            if number == item:
                found.append(link & (0x7FFF if version_flags & 1 else 0x7F))
    return found


class _Bits:
    """Reader of single bits of a JPEG XL codestream, from the lowest bit of each byte on."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, 8 * at

    def take(self, n: int) -> int:
        """Return the next ``n`` bits as a number. Raises IndexError at the end."""
        value = 0
        for k in range(n):
            value |= (self._data[self._at >> 3] >> (self._at & 7) & 1) << k
            self._at += 1
        return value

    def either(self, *choices: tuple[int, int]) -> int:
        """Read a number stored as a JPEG XL U32 field: two bits select one of the ``choices``, each (number of further
        bits to read, offset to add)."""
        bits, offset = choices[self.take(2)]
        return self.take(bits) + offset


_SIZES = ((9, 1), (13, 1), (18, 1), (30, 1))
_RATIOS = {1: (1, 1), 2: (12, 10), 3: (4, 3), 4: (3, 2), 5: (16, 9), 6: (5, 4), 7: (2, 1)}


def jpeg_xl(data: memoryview) -> Found:
    """Read the header of a JPEG XL file, which is a bare codestream or consists of boxes. Raises SampleError,
    struct.error, IndexError."""
    at = 0
    if data[0] == 0:
        for kind, a, _ in boxes(data, 0, len(data)):
            if kind in (b"jxlc", b"jxlp"):
                at = a + (4 if kind == b"jxlp" else 0)
                break
        else:
            raise SampleError("truncated", "the JPEG XL file ends before its codestream")
    if bytes(data[at : at + 2]) != b"\xff\x0a":
        raise SampleError("corrupt_data", "the JPEG XL codestream does not begin as one does")
    bits = _Bits(data, at + 2)
    width, height = _size(bits)
    channels, depth, orientation = 3, 8, 1
    if not bits.take(1):  # the header is not all defaults
        plain = True
        if bits.take(1):
            orientation = 1 + bits.take(3)
            plain = not bits.take(3)  # intrinsic size, preview, animation: the fields after them are not read
        if plain:
            floating = bits.take(1)
            usual = ((0, 32), (0, 16), (0, 24), (6, 1)) if floating else ((0, 8), (0, 10), (0, 12), (6, 1))
            depth = bits.either(*usual)
            bits.take(4 if floating else 0)
            bits.take(1)
            extra = bits.either((0, 0), (0, 1), (4, 2), (12, 1))
            channels = 4 if extra else 3
            if not extra:
                bits.take(1)
                default = bits.take(1)
                if not default and not bits.take(1) and bits.either((0, 0), (0, 1), (4, 2), (6, 18)) == 1:
                    channels = 1
    return width, height, channels, min(depth, 32), orientation


def _size(bits: _Bits) -> tuple[int, int]:
    eights = bits.take(1)
    height = 8 * (1 + bits.take(5)) if eights else bits.either(*_SIZES)
    ratio = bits.take(3)
    if ratio:
        above, below = _RATIOS[ratio]
        return height * above // below, height
    return (8 * (1 + bits.take(5)) if eights else bits.either(*_SIZES)), height
