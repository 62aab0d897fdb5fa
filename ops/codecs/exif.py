"""Read the Exif orientation of an image (TIFF 6.0, Exif 2.3)."""

from __future__ import annotations

import struct

EXIF_SHORTS = (0x0112, 0x0128, 0x0213)
EXIF_STRINGS = (0x010E, 0x010F, 0x0110, 0x0131, 0x0132, 0x8298)
EXIF_RATIONALS = ((0x011A, 8), (0x011B, 8), (0x013E, 16), (0x013F, 48), (0x0211, 24), (0x0214, 48))
"""Exif tags (TIFF 6.0) whose values are fractions, with the size of each value in bytes. Like DALI's reader,
`exif_orientation` checks these, text (EXIF_STRINGS), and numbers inside an entry (EXIF_SHORTS)."""


def exif_orientation(block: memoryview) -> int:
    """Return the orientation, 1 to 8, that an Exif block stores in tag 0x0112; 1 if the tag is missing or invalid. As
    in DALI, all tags are ignored if an entry of the directory is cut off, or if the value of a baseline tag is outside
    the block."""
    found = None
    try:
        order = {b"II*\0": "<", b"MM\0*": ">"}[bytes(block[:4])]
        (directory,) = struct.unpack_from(order + "I", block, 4)
        (entries,) = struct.unpack_from(order + "H", block, directory)
        for i in range(entries):
            at = directory + 2 + 12 * i
            (tag,) = struct.unpack_from(order + "H", block, at)
            if tag in EXIF_SHORTS:
                (value,) = struct.unpack_from(order + "H", block, at + 8)
                found = value if tag == 0x0112 and found is None else found
                continue
            size = dict(EXIF_RATIONALS).get(tag, 0)
            if tag in EXIF_STRINGS:
                (size,) = struct.unpack_from(order + "I", block, at + 4)
                size = size if size > 4 else 0
            if size and struct.unpack_from(order + "I", block, at + 8)[0] + size > len(block):
                return 1
    except (KeyError, struct.error, OverflowError):
        return 1
    return found if found is not None and 1 <= found <= 8 else 1
