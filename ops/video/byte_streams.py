"""H.264 and HEVC as MP4 and Matroska hold them, and as byte streams, which NVDEC takes."""

from __future__ import annotations

from functools import lru_cache

_UNIT = b"\0\0\0\1"
"""Begins a unit in a byte stream (ITU-T H.264 and H.265, annex B)."""


def parameter_sets(codec: str, header: bytes) -> bytes | None:
    """The parameter sets in the configuration ``header`` of MP4 (ISO/IEC 14496-15) as a byte stream; None where units
    have lengths of other than four bytes, or it cannot be read."""
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
    """Reads numbers of bits, and of Exp-Golomb codes (ITU-T H.264, 9.1). Raises IndexError after the end."""

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
        """Unsigned, or a signed one that nobody looks at."""
        zeros = 0
        while not self.bit():
            zeros += 1
        self._at += zeros
        return (1 << zeros) - 1 + int(self._bits[self._at - zeros : self._at] or "0", 2)

    def signed(self) -> int:
        number = self.number()
        return (number + 1) // 2 if number % 2 else -(number // 2)


_WITH_CHROMA = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
"""H.264's profiles whose parameter sets tell of chroma and scaling."""


@lru_cache(maxsize=256)
def interlaced(codec: str, header: bytes) -> bool:
    """The configuration ``header`` of MP4 or Matroska tells of H.264 frames that may be two fields (7.3.2.1.1), or of
    an interlaced HEVC source."""
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
            for k in range((8 if chroma != 3 else 12) if bits.bit() else 0):
                last = following = 8 * bits.bit()
                for _ in range((16 if k < 6 else 64) if last else 0):
                    if following:
                        following = (last + bits.signed()) % 256
                    last = following or last
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
"""H.264's number of the units that describe a whole sequence."""


def annexb(data: bytes, before: bytes) -> bytes:
    """A packet of MP4, whose units follow their lengths of four bytes, as a byte stream, after the units ``before``.
    Raises ValueError where the lengths are not the packet's."""
    out, at = bytearray(data), 0
    while at < len(data):
        out[at : at + 4] = _UNIT
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    if at != len(data):
        raise ValueError("units that are longer than their packet")
    return before + out
