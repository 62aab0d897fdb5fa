"""Decompression bombs of every format: small files that claim, or contain, hundreds of megabytes."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

SIDE = 50_000
"""Side in pixels that most bombs claim: SIDE x SIDE pixels take 7.5 GB as RGB."""


def chunk(tag: bytes, data: bytes) -> bytes:
    """Make a chunk of a PNG."""
    return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))


def png(width: int, height: int, bits: int = 8, kind: int = 2, data: bytes = b"", interlace: int = 0) -> bytes:
    """Make a PNG with any header."""
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlace)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _with_text(tag: bytes, head: bytes, size: int = 1 << 26) -> bytes:
    small = io.BytesIO()
    Image.new("RGB", (4, 4)).save(small, "PNG")
    whole = small.getvalue()
    return whole[:33] + chunk(tag, head + zlib.compress(bytes(size), 9)) + whole[33:]


def _jpeg(side: int, **options: object) -> bytes:
    small = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(small, "JPEG", **options)  # type: ignore[arg-type]
    whole = bytearray(small.getvalue())
    frame = max(whole.find(b"\xff\xc0"), whole.find(b"\xff\xc2"))
    whole[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    return bytes(whole)


def _bmp(bits: int, compression: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, bits, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + header + bytes(64)


def _tiff(order: str, compression: int, big: bool = False) -> bytes:
    values = {256: SIDE, 257: SIDE, 258: 8, 259: compression, 262: 1, 273: 8, 277: 1, 278: SIDE, 279: 64}
    tags = sorted(values.items())
    mark = b"II" if order == "<" else b"MM"
    if big:
        entries = b"".join(struct.pack(order + "HHQQ", tag, 16, 1, value) for tag, value in tags)
        return mark + struct.pack(order + "HHHQQ", 43, 8, 0, 16, len(tags)) + entries + struct.pack(order + "Q", 0)
    entries = b"".join(struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in tags)
    return mark + struct.pack(order + "HIH", 42, 8, len(tags)) + entries + bytes(68)


def _riff(tag: bytes, body: bytes) -> bytes:
    data = b"WEBP" + tag + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(data)) + data


def _jpeg2000(side: int) -> bytes:
    size = struct.pack(">HHIIIIIIIIH", 47, 0, side, side, 0, 0, side, side, 0, 0, 3) + bytes([7, 1, 1]) * 3
    return b"\xff\x4f\xff\x51" + size + bytes(64)


def _jp2(side: int) -> bytes:
    ihdr = struct.pack(">I4sIIHBBBB", 22, b"ihdr", side, side, 3, 7, 7, 0, 0)
    stream = _jpeg2000(side)
    return (
        b"\0\0\0\x0cjP  \r\n\x87\n" + struct.pack(">I4s4sI4s", 20, b"ftyp", b"jp2 ", 0, b"jp2 ")
        + struct.pack(">I4s", 8 + len(ihdr), b"jp2h") + ihdr + struct.pack(">I4s", 8 + len(stream), b"jp2c") + stream
    )  # fmt: skip


def bombs() -> dict[str, bytes]:
    """Return bombs (small files that claim huge images) by name: too large by their header, or by a text."""
    side = str(SIDE).encode()
    most = 16383  # largest side of a WebP
    return {
        "jpeg": _jpeg(SIDE),
        "jpeg-progressive": _jpeg(SIDE, progressive=True),
        "jpeg-widest": _jpeg(65_500),
        "png": png(SIDE, SIDE),
        "png-16-bit": png(SIDE, SIDE, 16, 6),
        "png-palette": png(SIDE, SIDE, 8, 3),
        "png-interlaced": png(SIDE, SIDE, 8, 2, b"", 1),
        "png-wide": png(1 << 30, 1),
        "png-complete": png(16_000, 16_000, 1, 0, bytes(16_000 * 2001)),
        "png-text": _with_text(b"zTXt", b"key\0\0"),
        "png-utf8-text": _with_text(b"iTXt", b"key\0\1\0\0\0"),
        "png-profile": _with_text(b"iCCP", b"key\0\0"),
        "bmp": _bmp(24, 0),
        "bmp-rle": _bmp(8, 1),
        "tiff": _tiff("<", 1),
        "tiff-big-endian": _tiff(">", 1),
        "tiff-deflate": _tiff("<", 8),
        "tiff-lzw": _tiff("<", 5),
        "tiff-64-bit": _tiff("<", 1, big=True),
        "pnm": b"P6 " + side + b" " + side + b" 255\n" + bytes(64),
        "pnm-gray": b"P5 " + side + b" " + side + b" 65535\n" + bytes(64),
        "pnm-bits": b"P4 " + side + b" " + side + b"\n" + bytes(64),
        "pnm-text": b"P3 " + side + b" " + side + b" 255\n" + b"1 " * 64,
        "webp": _riff(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", most, most) + bytes(64)),
        "webp-lossless": _riff(b"VP8L", b"\x2f" + struct.pack("<I", most | most << 14) + bytes(64)),
        "webp-extended": _riff(b"VP8X", bytes(4) + 2 * struct.pack("<I", SIDE)[:3] + bytes(64)),
        "jpeg2000": _jpeg2000(SIDE),
        "jpeg2000-boxes": _jp2(SIDE),
        "gif": b"GIF89a" + struct.pack("<HHBBB", SIDE, SIDE, 0, 0, 0) + bytes(64),
    }  # fmt: skip
