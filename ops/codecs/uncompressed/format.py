"""Declarations of the formats BMP (Microsoft, BITMAPINFOHEADER and its relatives) and PNM (Netpbm)."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from ...errors import SampleError
from ...kernels import Kernels
from ..format import Format, Header, Signature
from ..pixels import Pixels, spread

BMP, PNM = 3, 4
"""`Format.code` of BMP and PNM, which identify the formats in arrays of headers."""
_decoder: Any = Kernels(".decoder", __package__)


def probe_bmp(data: memoryview) -> Header:
    (size,) = struct.unpack_from("<I", data, 14)
    if size == 12:
        width, height, _, depth = struct.unpack_from("<HHHH", data, 18)
        return Header("bmp", width, height, 3, 8)
    width, height, _, depth, compression = struct.unpack_from("<iiHHI", data, 18)
    alpha = 0
    if depth == 32 and compression in (3, 6) and size >= 56:
        (alpha,) = struct.unpack_from("<I", data, 66)
    return Header("bmp", width, abs(height), 4 if alpha else 3, 8)


def probe_pnm(data: memoryview) -> Header:
    kind = data[1] - 0x30
    wanted = 2 if kind in (1, 4) else 3
    numbers: list[int] = []
    text, at = bytes(data[2:_MAX_PNM_HEADER]), 0
    while len(numbers) < wanted and at < len(text):
        byte = text[at : at + 1]
        if byte == b"#":
            end = text.find(b"\n", at)
            at = len(text) if end < 0 else end + 1
        elif byte.isspace():
            at += 1
        elif byte.isdigit():
            end = at
            while end < len(text) and text[end : end + 1].isdigit():
                end += 1
            if end - at > 10:
                raise SampleError("corrupt_data", "the PNM header holds a number of more than 10 digits")
            numbers.append(int(text[at:end]))
            at = end
        else:
            raise SampleError("corrupt_data", "the PNM header holds something that is not a number")
    if len(numbers) < wanted:
        raise SampleError("truncated", "the pnm file ends inside its header")
    deep = wanted == 3 and numbers[2] > 255
    return Header("pnm", numbers[0], numbers[1], 3 if kind in (3, 6) else 1, 16 if deep else 8)


_MAX_PNM_HEADER = 65536


_PPM = re.compile(rb"P6(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)\s")


def _decode_deep(data: memoryview, _: Header) -> Pixels | None:
    """Decode a binary PPM with 16-bit samples, stored big-endian, 0 ... maxval (Netpbm's specification of ppm)."""
    found = _PPM.match(bytes(data[:65536]))
    if found is None:
        return None
    width, height, most = map(int, found.groups())
    size = 2 * 3 * width * height
    if not 255 < most < 65536 or len(data) - found.end() < size:
        return None
    stored = np.frombuffer(data, ">u2", size // 2, found.end()).reshape(height, width, 3)
    return spread(stored.astype(np.uint16), most)


def _is_pnm(data: memoryview) -> bool:
    head = bytes(data[:3])
    return len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3] in b" \t\r\n\v\f#"


_ROWS = ".uncompressed.decoder", ".uncompressed.on_gpu"


def _view(data: memoryview, header: Header) -> Pixels | None:
    pixels: Pixels | None = _decoder.view(data, header)
    return pixels


FORMATS = (
    Format(
        "bmp", BMP, "BMP", (".bmp",), (Signature(b"BM"),), probe_bmp, rows=_ROWS[0], gpu_rows=_ROWS[1],
        pillow="BmpImagePlugin.BmpImageFile", stored=_view, exact_size=True,
    ),
    Format(
        "pnm", PNM, "PNM", (".pnm", ".ppm", ".pgm", ".pbm"), (), probe_pnm, matches=_is_pnm, rows=_ROWS[0],
        gpu_rows=_ROWS[1], pillow="PpmImagePlugin.PpmImageFile", stored=_view, deep=_decode_deep,
        keeps_16_bits=lambda: True, exact_size=True,
    ),
)  # fmt: skip
