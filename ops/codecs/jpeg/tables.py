"""Constants of JPEG files: the tables of T.81's Annex K, libjpeg's scale of qualities, the segments of a JFIF file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]

SAMPLING = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}
"""Sampling factors of luminance (horizontal, vertical), by the name of the chroma subsampling."""

LONGEST_SIDE = 65500
"""Maximum width and height in pixels of an encoded JPEG: libjpeg's limit."""

HEADER_ROOM = 1024
"""Maximum bytes of a JPEG's segments before the coded bits, with any Huffman tables."""

ZIGZAG = np.array(
    [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
     28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61,
     54, 47, 55, 62, 63]
)  # fmt: skip
"""For each zig-zag index, 8 * row + column of the coefficient in its block (T.81, figure A.6)."""

_QUANTISATION = [
    np.frombuffer(bytes.fromhex(digits), np.uint8).astype(np.int64)
    for digits in (
        "100b0c0e0c0a100e0d0e1211101318281a181616183123251d283a333d3c3933383740485c4e404457453738506d51575f626768673e4d71"
        "797064785c656763",
        "1112121815182f1a1a2f6342384263636363636363636363636363636363636363636363636363636363636363636363636363636363636363"
        "63636363636363",
    )
]
"""The standard's quantisation tables K.1 (luminance) and K.2 (chrominance), in zig-zag order."""

_HUFFMAN = [
    bytes.fromhex(digits)
    for digits in (
        "00010501010101010100000000000000000102030405060708090a0b",
        "0002010303020403050504040000017d01020300041105122131410613516107227114328191a1082342b1c11552d1f02433627282090a16"
        "1718191a25262728292a3435363738393a434445464748494a535455565758595a636465666768696a737475767778797a83848586878889"
        "8a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9ea"
        "f1f2f3f4f5f6f7f8f9fa",
        "00030101010101010101010000000000000102030405060708090a0b",
        "00020102040403040705040400010277000102031104052131061241510761711322328108144291a1b1c109233352f0156272d10a162434"
        "e125f11718191a262728292a35363738393a434445464748494a535455565758595a636465666768696a737475767778797a828384858687"
        "88898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae2e3e4e5e6e7e8e9"
        "eaf2f3f4f5f6f7f8f9fa",
    )
]
"""The standard's Huffman tables K.3 to K.6 in the form of DHT segments: DC and AC of luminance, DC and AC of
chrominance."""

HUFFMAN_KINDS = (0x00, 0x10, 0x01, 0x11)
"""Class and number of each of the four Huffman tables, combined in one byte as its DHT segment has it."""


def quantisation(quality: int) -> npt.NDArray[np.int64]:
    """Return int64[2, 64]: the quantisation tables of ``quality`` (1..100), luminance and chrominance, in zig-zag
    order, scaled as in libjpeg's jpeg_quality_scaling, for baseline files (no entry above 255)."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((np.stack(_QUANTISATION) * scale + 50) // 100, 1, 255)


def huffman_codes() -> npt.NDArray[np.uint32]:
    """Return the code of every symbol in the four standard Huffman tables, as length << 16 | code, uint32[4, 256]; 0 if
    a symbol has no code."""
    codes = np.zeros((4, 256), np.uint32)
    for table, text in enumerate(_HUFFMAN):
        code, at = 0, 16
        for length in range(1, 17):
            for symbol in text[at : at + text[length - 1]]:
                codes[table, symbol] = length << 16 | code
                code += 1
            at += text[length - 1]
            code <<= 1
    return codes


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def before_huffman(quality: int, components: int, h: int, v: int) -> bytes:
    """Return the segments from SOI to SOF0 of a baseline JFIF file, in libjpeg's order. Height and width are left zero:
    four bytes that begin ``5 + 3 * components`` bytes before the end. ``h``, ``v``: sampling factors of the first
    component."""
    tables = quantisation(quality)[: 1 if components == 1 else 2].astype(np.uint8)
    parts = [b"\xff\xd8", _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")]
    parts += [_segment(0xDB, bytes((k,)) + table.tobytes()) for k, table in enumerate(tables)]
    rows = [(1, h << 4 | v, 0), (2, 0x11, 1), (3, 0x11, 1)][:components]
    frame = bytes((8, 0, 0, 0, 0, components)) + bytes(x for row in rows for x in row)
    return b"".join(parts) + _segment(0xC0, frame)


def standard_huffman(components: int) -> bytes:
    """Return the DHT segments of the standard Huffman tables that an image of ``components`` needs."""
    used = range(2 if components == 1 else 4)
    return b"".join(_segment(0xC4, bytes((HUFFMAN_KINDS[k],)) + _HUFFMAN[k]) for k in used)


def file_headers(quality: int, subsampling: str, optimize: bool) -> tuple[U8, I32, I32]:
    """Return the bytes of a JPEG file before its coded bits (with ``optimize``, before its Huffman tables), for colour
    and for gray, uint8[2, HEADER_ROOM]. Also return their sizes, int32[2], and the offsets of height and width in
    them."""
    h, v = SAMPLING[subsampling]  # also for gray images: it has no effect there, but libjpeg writes it
    parts = [before_huffman(quality, components, h, v) for components in (3, 1)]
    dimensions = [len(part) - 5 - 3 * components for part, components in zip(parts, (3, 1), strict=True)]
    if not optimize:
        for k, components in enumerate((3, 1)):
            parts[k] += standard_huffman(components) + scan_header(components)
    text = np.stack([np.frombuffer(part.ljust(HEADER_ROOM, b"\0"), np.uint8) for part in parts])
    return text, np.array(list(map(len, parts)), np.int32), np.array(dimensions, np.int32)


def scan_header(components: int) -> bytes:
    """Return the SOS segment of a sequential scan of all components."""
    selectors = [(1, 0x00), (2, 0x11), (3, 0x11)][:components]
    return _segment(0xDA, bytes((components,)) + bytes(x for s in selectors for x in s) + b"\0\x3f\0")
