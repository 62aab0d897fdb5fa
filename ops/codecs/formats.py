"""Recognises encoded images by their first bytes: format, stored size, channels, depth, orientation.

Nothing is decoded. Every probe reads only bounded, checked places of the data, so that hostile files cost microseconds
and decompression bombs are known before memory is asked for. JPEG headers of a batch are walked by `jpeg.header`.

Facts: PNG (W3C, 3rd ed.), BMP (Microsoft, BITMAPINFOHEADER and kin), TIFF 6.0, Exif 2.3, Netpbm, WebP container
(Google), JPEG 2000 (ITU-T T.800, annex A and I), GIF89a. AVIF, HEIC and JPEG XL: `modern_headers`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..errors import SampleError
from .modern_headers import heif, jpeg_xl


@dataclass(frozen=True, slots=True)
class Header:
    """One image as it is stored, before any orientation is applied."""

    format: str
    """`jpeg`, `png`, `bmp`, `tiff`, `pnm`, `webp`, `jpeg2000`, `gif`, `avif`, `heic` or `jpegxl`."""
    width: int
    height: int
    channels: int
    """As decoded with ANY_DATA: palettes count as colour, alpha counts."""
    bits: int
    """Of a channel: 1 ... 16, or 32."""
    orientation: int = 1
    """Exif: 1 ... 8."""


NAMES = ("jpeg", "png", "tiff", "bmp", "pnm", "webp", "jpeg2000", "gif", "avif", "heic", "jpegxl")
JPEG, PNG, TIFF, BMP, PNM, WEBP, JPEG2000, GIF, AVIF, HEIC, JPEGXL = range(11)
"""Formats as numbers, for arrays of headers."""
FORMAT, WIDTH, HEIGHT, CHANNELS, BITS, ORIENTATION = range(6)
"""Columns of those."""


def recognise(data: memoryview) -> str:
    """The format by its signature, ``jpeg``, ``png``, ... Raises SampleError for anything else."""
    head = bytes(data[:32])
    for signature, name in _BEGINNINGS.get(head[:2], ()):
        if head.startswith(signature):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3] in b" \t\r\n\v\f#":
        return "pnm"
    if head[4:8] == b"ftyp" and (name := _heif(data)):
        return name
    if not head:
        raise SampleError("not_an_image", "the file is empty")
    if any(signature.startswith(head) for signature, _ in _SIGNATURES):
        raise SampleError("truncated", f"the file ends after {len(head)} bytes, inside its signature")
    shown = head[:8].hex(" ")
    raise SampleError("not_an_image", f"starts with {shown}, which is no known image format ({FORMATS})")


def _heif(data: memoryview) -> str:
    """The format by the brands of a HEIF file (AV1 or HEVC inside); empty where they are of something else."""
    size = min(int.from_bytes(data[:4], "big"), len(data), 256)
    brands = [bytes(data[8:12]), *(bytes(data[k : k + 4]) for k in range(16, size - 3, 4))]
    if brands[0] not in (*_AVIF, *_HEIC, *_HEIF):
        return ""
    return "avif" if any(b in _AVIF for b in brands) and not any(b in _HEIC for b in brands) else "heic"


_AVIF, _HEIC = (b"avif", b"avis"), (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")
_HEIF = (b"mif1", b"msf1")
FORMATS = "JPEG, PNG, BMP, TIFF, PNM, WebP, JPEG 2000, GIF, AVIF, HEIC, JPEG XL"
_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jpegxl"),
    (b"\xff\x0a", "jpegxl"),
)
_BEGINNINGS = {
    head: [pair for pair in _SIGNATURES if pair[0].startswith(head)] for head in {s[:2] for s, _ in _SIGNATURES}
}
"""The signatures, by their first two bytes."""


def probe(data: memoryview, name: str = "") -> Header:
    """The header of any image but a JPEG, of format ``name`` where that is known. Raises SampleError: what is wrong, in
    words."""
    name = name or recognise(data)
    try:
        header = _PROBES[name](data)
    except (struct.error, IndexError, OverflowError) as e:  # an offset or a field that lies beyond the end
        raise SampleError("truncated", f"the {name} file ends inside its header") from e
    if header.width <= 0 or header.height <= 0:
        raise SampleError("corrupt_data", f"the {name} header claims {header.width} x {header.height} pixels")
    if max(header.width, header.height) > LARGEST:  # fields of 64 bits hold anything; products must not overflow
        raise SampleError("too_large", f"the {name} header claims {header.width} x {header.height} pixels")
    if not (0 < header.channels < 1 << 16 and 0 < header.bits <= 64):
        raise SampleError("corrupt_data", f"the {name} header claims {header.channels} channels of {header.bits} bits")
    return header


LARGEST = (1 << 31) - 1
"""Pixels of a side, for any format."""
BOMB_RATIO = 1000.0
"""Pixels for each byte of a file, by default: an empty PNG has 340 of three channels, an empty JPEG 256."""
BOMB_PIXELS = 89_478_485
"""Up to here an image may be packed as tightly as it likes (2^28 bytes of RGB; Pillow warns from there): an empty page
that was scanned as TIFF G4 has 30,000 pixels a byte."""


def check_pixels(width: int, height: int, limit: int, nbytes: int = 0, ratio: float = 0) -> None:
    """Raises SampleError for an image of more than ``limit`` pixels, and for a large one of more than ``ratio`` pixels
    for each of its ``nbytes`` (0: of any)."""
    if width * height > limit:
        raise SampleError(
            "too_large", f"the header claims {width} x {height} pixels, over the limit of {limit:,} (max_pixels)"
        )
    if ratio and width * height > max(BOMB_PIXELS, ratio * nbytes):
        raise SampleError(
            "too_large",
            f"the header claims {width} x {height} pixels in a file of {nbytes:,} bytes, over the limit of {ratio:g} "
            "pixels a byte (bomb_ratio)",
        )


# -- one function a format --------------------------------------------------------------------------------------------


def _png(data: memoryview) -> Header:
    if bytes(data[12:16]) != b"IHDR":
        raise SampleError("corrupt_data", "the PNG does not start with its IHDR chunk")
    width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
    if kind not in _PNG_CHANNELS:
        raise SampleError("corrupt_data", f"the PNG header names colour type {kind}; 0, 2, 3, 4 and 6 exist")
    orientation, at = 1, 33
    for _ in range(_MAX_CHUNKS):  # eXIf may stand before or after the pixels
        if at + 12 > len(data):
            break
        length, tag = struct.unpack_from(">I4s", data, at)
        if tag == b"eXIf":
            orientation = exif_orientation(data[at + 8 : at + 8 + length])
            break
        at += 12 + length
    return Header("png", width, height, _PNG_CHANNELS[kind], 8 if kind == 3 else bits, orientation)


_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_MAX_CHUNKS = 4096


def _bmp(data: memoryview) -> Header:
    (size,) = struct.unpack_from("<I", data, 14)
    if size == 12:
        width, height, _, depth = struct.unpack_from("<HHHH", data, 18)
        return Header("bmp", width, height, 3, 8)
    width, height, _, depth, compression = struct.unpack_from("<iiHHI", data, 18)
    alpha = 0
    if depth == 32 and compression in (3, 6) and size >= 56:
        (alpha,) = struct.unpack_from("<I", data, 66)
    return Header("bmp", width, abs(height), 4 if alpha else 3, 8)


def _tiff(data: memoryview) -> Header:
    order = "<" if data[0] == 0x49 else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (directory,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    (entries,) = struct.unpack_from(order + ("Q" if big else "H"), data, directory)
    at, step = directory + (8 if big else 2), 20 if big else 12
    tags: dict[int, int] = {}
    for _ in range(min(entries, _MAX_CHUNKS)):
        if at + step > len(data):
            break
        tag, kind = struct.unpack_from(order + "HH", data, at)
        (count,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + 4)
        if tag in _TIFF_TAGS:
            code, width = _TIFF_TYPES.get(kind, ("", 0))
            where = at + (12 if big else 8)
            if width * count > (8 if big else 4):
                (where,) = struct.unpack_from(order + ("Q" if big else "I"), data, where)
            if width and 1 <= count <= _MAX_VALUES and where + width * count <= len(data):
                tags.setdefault(tag, struct.unpack_from(order + code, data, where)[0])
            elif tag == 258:
                raise SampleError("corrupt_data", f"the TIFF's BitsPerSample is damaged: {count} values of type {kind} "
                                  f"at byte {where} of {len(data)}")  # fmt: skip
        at += step
    if 256 not in tags or 257 not in tags:
        raise SampleError("corrupt_data", "the TIFF's first directory has no width and height")
    photometric, samples = tags.get(262, 1), tags.get(277, 1)
    if samples > 1 and 258 not in tags:
        raise SampleError("corrupt_data", f"the TIFF has {samples} samples a pixel and no BitsPerSample")
    channels = 3 if photometric == 3 else samples
    orientation = tags.get(274, 1)
    return Header("tiff", tags[256], tags[257], channels, tags.get(258, 1), orientation if 1 <= orientation <= 8 else 1)


_MAX_VALUES = 1 << 16
"""Values of a tag of the header; SamplesPerPixel has 16 bits."""
_TIFF_TAGS = (256, 257, 258, 262, 274, 277)  # width, height, bits, photometric, orientation, samples per pixel
_TIFF_TYPES = {1: ("B", 1), 3: ("H", 2), 4: ("I", 4), 16: ("Q", 8)}


def _pnm(data: memoryview) -> Header:
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
            raise SampleError("corrupt_data", "the PNM header holds something that is no number")
    if len(numbers) < wanted:
        raise SampleError("truncated", "the pnm file ends inside its header")
    deep = wanted == 3 and numbers[2] > 255
    return Header("pnm", numbers[0], numbers[1], 3 if kind in (3, 6) else 1, 16 if deep else 8)


_MAX_PNM_HEADER = 65536


def _webp(data: memoryview) -> Header:
    tag = bytes(data[12:16])
    if tag == b"VP8X":
        flags = data[20]
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        if len(data) < 30:
            raise IndexError
        orientation, at = 1, 12
        while flags & 8 and at + 8 <= len(data):
            name, length = struct.unpack_from("<4sI", data, at)
            if name == b"EXIF":
                block = data[at + 8 : at + 8 + length]
                orientation = exif_orientation(block[6:] if bytes(block[:6]) == b"Exif\0\0" else block)
                break
            at += 8 + length + (length & 1)
        return Header("webp", width, height, 4 if flags & 16 else 3, 8, orientation)
    if tag == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), 4 if bits >> 28 & 1 else 3, 8)
    if tag == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("webp", width & 0x3FFF, height & 0x3FFF, 3, 8)
    raise SampleError("corrupt_data", "the WebP's first chunk is not VP8, VP8L or VP8X")


def _jpeg2000(data: memoryview) -> Header:
    if data[0] == 0xFF:
        return _codestream(data)
    at, end, boxes = 12, len(data), 0
    while at + 8 <= end and boxes < _MAX_CHUNKS:
        length, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        if kind == b"ihdr":
            height, width, channels, bits = struct.unpack_from(">IIHB", data, at + head)
            return Header("jpeg2000", width, height, channels, 8 if bits == 255 else (bits & 0x7F) + 1)
        if kind == b"jp2c":
            return _codestream(data[at + head :])
        if length and length < head:
            break
        at += head if kind == b"jp2h" else length or end
        boxes += 1
    raise SampleError("corrupt_data", "the JPEG 2000 file has no image header box")


def _codestream(data: memoryview) -> Header:
    width, height, left, top = struct.unpack_from(">IIII", data, 8)
    (channels,) = struct.unpack_from(">H", data, 40)
    return Header("jpeg2000", width - left, height - top, channels, (data[42] & 0x7F) + 1)


def _gif(data: memoryview) -> Header:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("gif", width, height, 3, 8)


def _avif(data: memoryview) -> Header:
    return Header("avif", *heif(data))


def _heic(data: memoryview) -> Header:
    return Header("heic", *heif(data, cropped=True))


def _jpeg_xl(data: memoryview) -> Header:
    return Header("jpegxl", *jpeg_xl(data))


_PROBES = {
    "png": _png, "bmp": _bmp, "tiff": _tiff, "pnm": _pnm, "webp": _webp, "jpeg2000": _jpeg2000, "gif": _gif,
    "avif": _avif, "heic": _heic, "jpegxl": _jpeg_xl,
}  # fmt: skip


EXIF_SHORTS = (0x0112, 0x0128, 0x0213)
EXIF_STRINGS = (0x010E, 0x010F, 0x0110, 0x0131, 0x0132, 0x8298)
EXIF_RATIONALS = ((0x011A, 8), (0x011B, 8), (0x013E, 16), (0x013F, 48), (0x0211, 24), (0x0214, 48))
"""Tags that DALI's reader checks (TIFF 6.0): in place, text, and fractions with their size in bytes."""


def exif_orientation(block: memoryview) -> int:
    """Tag 0x0112 of an Exif block (a TIFF structure), 1 ... 8; 1 where it is missing or odd. As in DALI, a directory
    with any entry that is cut off, or with a value outside the block in a tag of the baseline, counts for nothing."""
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
