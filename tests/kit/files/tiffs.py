"""TIFFs of every kind, encoded according to the specification."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

CODINGS = {"raw": 1, "packbits": 32773, "tiff_lzw": 5, "tiff_adobe_deflate": 8, "tiff_deflate": 32946}


def picture(k: int, channels: int, height: int = 61, width: int = 83) -> np.ndarray[Any, Any]:
    """Return an image: noise, a gradient with a little noise, or few colours in long runs, depending on ``k``."""
    rng = np.random.default_rng(k)
    noise = rng.integers(0, 256, (height, width, channels))
    slope = np.add.outer(np.arange(height), 2 * np.arange(width))[..., None] + np.arange(channels) * 40
    pixels = [noise, slope + noise % 4, (slope // 97) * 60 + (noise > 254)][k % 3]
    return pixels.astype(np.uint8)


def saved(pixels: np.ndarray[Any, Any], coding: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.save(out, "TIFF", compression=coding, **options)
    return out.getvalue()


def packed(parts: Sequence[bytes], tags: Mapping[int, Any], order: str) -> bytes:
    """Return a TIFF of strips or tiles ``parts``, with ``tags`` in addition to the tags for the parts' offsets."""
    data = bytearray(struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 0))
    places = []
    for part in parts:
        places.append(len(data))
        data += part
    tiled = 322 in tags
    numbers = {**tags, 324 if tiled else 273: places, 325 if tiled else 279: [len(p) for p in parts]}
    entries = b""
    for tag, value in sorted(numbers.items()):
        values = value if isinstance(value, (list, tuple)) else [value]
        code = "I" if tag in (273, 279, 324, 325) else "H"
        body = struct.pack(f"{order}{len(values)}{code}", *values)
        where = body.ljust(4, b"\0")
        if len(body) > 4:
            where = struct.pack(order + "I", len(data))
            data += body
        entries += struct.pack(order + "HHI", tag, 3 if code == "H" else 4, len(values)) + where
    data += bytes(len(data) & 1)
    struct.pack_into(order + "I", data, 4, len(data))
    return bytes(data) + struct.pack(order + "H", len(numbers)) + entries + bytes(4)


def plain_tags(height: int, width: int, channels: int, coding: int, bits: int = 8) -> dict[int, Any]:
    tags: dict[int, Any] = {
        256: width, 257: height, 258: [bits] * channels, 259: coding, 262: 2 if channels > 2 else 1, 277: channels,
        284: 1,
    }  # fmt: skip
    if channels in (2, 4):
        tags[338] = 2
    return tags


def lzw(data: bytes) -> bytes:
    """Compress ``data`` by LZW, according to section 13 of TIFF 6.0."""
    table, codes, string = {bytes([k]): k for k in range(256)}, [(256, 9)], b""
    width, free = 9, 258
    for k in range(len(data)):
        longer = string + data[k : k + 1]
        if longer in table:
            string = longer
            continue
        codes.append((table[string], width))
        table[longer] = free
        free += 1
        if free == 4094:
            codes.append((256, 12))
            table, width, free = {bytes([b]): b for b in range(256)}, 9, 258
        elif free + 1 > 1 << width:
            width += 1
        string = data[k : k + 1]
    codes.append((table[string], width))
    free += 1
    codes.append((257, width + (free + 1 > 1 << width and width < 12)))
    bits = "".join(f"{code:0{n}b}" for code, n in codes)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def good_files() -> dict[str, bytes]:
    """Return one file of each kind of TIFF that the decoder supports, by name."""
    files = {}
    for n, coding in enumerate(CODINGS):
        for k, channels in enumerate((1, 2, 3, 4)):
            pixels = picture(n + k, channels)
            more = {"tiffinfo": {278: 7 + 20 * (k % 2)}} if coding != "raw" else {}
            files[f"{coding} {channels}"] = saved(pixels, coding, **more)
    for order in "<>":
        for predictor in (1, 2):
            pixels = picture(4, 3, 70, 90)
            tiles = []
            for y in range(0, 70, 32):
                for x in range(0, 90, 48):
                    tile = np.zeros((32, 48, 3), np.uint8)
                    part = pixels[y : y + 32, x : x + 48]
                    tile[: part.shape[0], : part.shape[1]] = part
                    if predictor == 2:
                        tile[:, 1:] -= tile[:, :-1].copy()
                    tiles.append(lzw(tile.tobytes()))
            tags = {**plain_tags(70, 90, 3, 5), 317: predictor, 322: 48, 323: 32}
            files[f"tiles {order} {predictor}"] = packed(tiles, tags, order)
        gray = picture(1, 1)
        inverted = {**plain_tags(61, 83, 1, 1), 262: 0, 278: 61}
        files[f"0 is white {order}"] = packed([gray.tobytes()], inverted, order)
    for channels in (1, 3, 4):
        files[f"differences {channels}"] = saved(picture(1, channels), "tiff_lzw", tiffinfo={317: 2})
    large = picture(1, 3, 300, 200)
    files["full tables"] = packed([lzw(large.tobytes())], {**plain_tags(300, 200, 3, 5), 278: 300}, "<")
    return files


def deep(
    k: int, channels: int, coding: int, order: str, *, tiled: bool = False, predictor: int = 1
) -> tuple[bytes, Any]:
    """Return a TIFF with 16 bits per channel, and its numbers."""
    pixels = picture(k, channels, 70, 90).astype(np.uint16) * 257 ^ picture(k + 5, channels, 70, 90)
    tags = {**plain_tags(70, 90, channels, coding, 16), 317: predictor}
    high, wide = (32, 48) if tiled else (23, 90)
    parts = []
    for y in range(0, 70, high):
        for x in range(0, 90, wide):
            part = np.zeros((high if tiled else min(high, 70 - y), wide, channels), np.uint16)
            inside = pixels[y : y + high, x : x + wide]
            part[: inside.shape[0], : inside.shape[1]] = inside
            if predictor == 2:
                part[:, 1:] -= part[:, :-1].copy()
            data = part.astype(order + "u2").tobytes()
            parts.append({5: lzw, 8: zlib.compress}.get(coding, bytes)(data))
    tags |= {322: wide, 323: high} if tiled else {278: high}
    return packed(parts, tags, order), pixels


def literal(pixels: Any, channels: int, order: str) -> bytes:
    """Encode pixels as a TIFF with PackBits literals, in one strip."""
    raw = pixels.astype(order + "u2").tobytes()
    part = b"".join(bytes([len(raw[k : k + 128]) - 1]) + raw[k : k + 128] for k in range(0, len(raw), 128))
    return packed([part], {**plain_tags(70, 90, channels, 32773, 16), 278: 70}, order)
