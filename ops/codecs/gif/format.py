"""Declaration of the format GIF (GIF87a and GIF89a)."""

from __future__ import annotations

import struct

from ..format import Format, Header, Signature


def probe(data: memoryview) -> Header:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("gif", width, height, 3, 8)


FORMATS = (
    Format(
        "gif", 7, "GIF", (".gif",), (Signature(b"GIF87a"), Signature(b"GIF89a")), probe, listed=False, mime="image/gif",
        pillow="GifImagePlugin.GifImageFile",
    ),
)  # fmt: skip
