"""Convert H.264 and HEVC packets from the form in MP4 and Matroska to byte streams (annex B), which NVDEC reads."""

from __future__ import annotations

from functools import lru_cache

_UNIT = b"\0\0\0\1"
"""Start code in front of each unit of a byte stream (ITU-T H.264 and H.265, annex B)."""


def parameter_sets(codec: str, header: bytes) -> bytes | None:
    """Return the codec's parameter sets in MP4's configuration record ``header`` (ISO/IEC 14496-15), as a byte stream
    with start codes. Return None if unit lengths do not have four bytes, or if the record cannot be read."""
    sizes, found, at = header[4 if codec == "h264" else 21 : 22][:1], [], 0

    def take(count: int) -> None:
        nonlocal at
        for _ in range(count):
            size = int.from_bytes(header[at : at + 2], "big")
            found.append(header[at + 2 : at + 2 + size])
            at += 2 + size

    if not sizes or sizes[0] & 3 != 3:
        return None
    if codec == "h264":
        at = 6
        take(header[5] & 31 if len(header) > 5 else 0)
        count, at = header[at : at + 1], at + 1
        take(count[0] if count else 0)
    else:
        at = 23
        for _ in range(header[22] if len(header) > 22 else 0):
            count, at = header[at + 1 : at + 3], at + 3
            take(int.from_bytes(count, "big"))
    return None if at > len(header) or not all(found) else b"".join(_UNIT + part for part in found)


class _Bits:
    """Reader of single bits and Exp-Golomb codes (ITU-T H.264, 9.1). Raises IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        plain = data.replace(b"\0\0\3", b"\0\0")
        self._bits = "".join(f"{byte:08b}" for byte in plain)
        self._at = 0

    def skip(self, count: int) -> None:
        self._at += count

    def bit(self) -> int:
        self._at += 1
        return int(self._bits[self._at - 1])

    def number(self) -> int:
        """Return an unsigned number; also used to skip signed ones."""
        zeros = 0
        while not self.bit():
            zeros += 1
        self._at += zeros
        return (1 << zeros) - 1 + int(self._bits[self._at - zeros : self._at] or "0", 2)

    def signed(self) -> int:
        number = self.number()
        return (number + 1) // 2 if number % 2 else -(number // 2)


_WITH_CHROMA = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
"""H.264 profiles (by number) whose parameter sets contain fields for chroma format and scaling."""


def _skip_scaling(bits: _Bits, lists: int) -> None:
    """Skip the scaling lists of a sequence parameter set (7.3.2.1.1.1)."""
    for k in range(lists):
        last = following = 8 * bits.bit()
        for _ in range((16 if k < 6 else 64) if last else 0):
            if following:
                following = (last + bits.signed()) % 256
            last = following or last


@lru_cache(maxsize=256)
def interlaced(codec: str, header: bytes) -> bool:
    """Return whether the configuration record ``header`` of MP4 or Matroska allows H.264 frames of two fields
    (7.3.2.1.1), or declares an interlaced HEVC source."""
    if codec == "hevc" and len(header) > 6 and header[0] == 1:
        return header[6] & 0b11000000 == 0b01000000
    if codec != "h264" or (sets := parameter_sets(codec, header)) is None:
        return False
    unit = next((u for u in sets.split(_UNIT) if u[:1] and u[0] & 31 == _SEQUENCE), b"")
    bits = _Bits(unit[1:])
    try:
        bits.skip(24)
        bits.number()
        if unit[1] in _WITH_CHROMA:
            chroma = bits.number()
            bits.skip(chroma == 3)
            bits.number()
            bits.number()
            bits.skip(1)
            _skip_scaling(bits, (8 if chroma != 3 else 12) if bits.bit() else 0)
        bits.number()
        order = bits.number()
        if order == 0:
            bits.number()
        elif order == 1:
            bits.skip(1)
            bits.number()
            bits.number()
            for _ in range(bits.number()):
                bits.number()
        bits.number()
        bits.skip(1)
        bits.number()
        bits.number()
        return not bits.bit()
    except IndexError:
        return False


_SEQUENCE = 7
"""Type number of H.264's sequence parameter set."""


def annexb(data: bytes, before: bytes) -> bytes:
    """Return the MP4 packet ``data`` as a byte stream: start codes instead of unit lengths, preceded by the units
    ``before``, such as parameter sets. Raises ValueError if the lengths do not add up to the packet's size."""
    out, at = bytearray(data), 0
    while at < len(data):
        out[at : at + 4] = _UNIT
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    if at != len(data):
        raise ValueError("units that are longer than their packet")
    return before + out
