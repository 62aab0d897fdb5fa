"""Pictures that decoders of ours take in the process, PNG, TIFF, BMP and PNM: files of every kind, damage that reaches
deep into them, and the loops on memory between pages that nobody may touch.

What a loop takes must be what Pillow, with libtiff, makes of the file (or imagecodecs, of 16 bits in colour), and
whatever it is asked for, it stays inside: of the file, of the output, and of the window in it.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import native_loops, pillow
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.headers import row_of
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.tiff import decoder as tiff
from dali_run.ops.codecs.uncompressed import decoder as plain
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIImageType

from ..kit.guarded import Guarded

MOST_PIXELS = 1 << 14
_WORTH = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 255, 256, 257, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000,
          0xFFFFFFFF)  # fmt: skip


def noise(h: int, w: int, channels: int, seed: int) -> np.ndarray[Any, Any]:
    """Half of it noise, half of it few colours, so that coders have something to do."""
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, channels), np.uint8)
    pixels[h // 2 :] &= 0xC0
    return pixels


# -- files ------------------------------------------------------------------------------------------------------------


def chunk(tag: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))


def png_file(bits: int, kind: int, interlaced: bool, h: int = 9, w: int = 11) -> bytes:
    """Of random filtered rows: every filter occurs."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    draw, rows = random.Random(bits * 10 + kind), b""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    for y, x, down, across in passes if interlaced else ((0, 0, 1, 1),):
        wide = len(range(x, w, across))
        for _ in range(y, h if wide else 0, down):
            rows += bytes([draw.randrange(5)]) + draw.randbytes(-(-wide * bits * channels // 8))
    palette = chunk(b"PLTE", draw.randbytes(3 << bits)) if kind == 3 else b""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, kind, 0, 0, interlaced))
    return b"\x89PNG\r\n\x1a\n" + head + palette + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@cache
def png_files() -> tuple[bytes, ...]:
    depths = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    return tuple(png_file(b, kind, i) for kind, all_bits in depths.items() for b in all_bits for i in (False, True))


def tiff_file(order: str, channels: int, bits: int, coding: str, tiled: bool) -> bytes:
    from tests.kit.files.tiffs import CODINGS, lzw, packed, plain_tags

    h, w = 13, 18
    pixels = noise(32, 32, channels * bits // 8, channels)
    parts = [pixels[:16, :16], pixels[16:, 16:]] if tiled else [pixels[:7, :w], pixels[7:h, :w]]
    code: Callable[[bytes], bytes] = {"tiff_lzw": lzw, "tiff_adobe_deflate": zlib.compress, "packbits": literals}.get(
        coding, bytes
    )
    tags = {**plain_tags(h, w, channels, CODINGS[coding], bits), 317: 1 + (coding == "tiff_lzw")}
    tags |= {322: 16, 323: 16} if tiled else {278: 7}
    return packed([code(p.tobytes()) for p in parts], tags, order)


def literals(data: bytes) -> bytes:
    """PackBits: literals, and a run at the end."""
    before = data[:-9]
    out = b"".join(bytes([len(before[k : k + 100]) - 1]) + before[k : k + 100] for k in range(0, len(before), 100))
    return out + bytes([257 - 9]) + data[-1:]


@cache
def tiff_files() -> tuple[bytes, ...]:
    made = []
    for k, coding in enumerate(("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate")):
        for channels in (1, 3, 4):
            for bits in (8, 16):
                for tiled in (False, True):
                    made.append(tiff_file("<>"[(k + channels + tiled) % 2], channels, bits, coding, tiled))
    return tuple(made)


@cache
def plain_files() -> tuple[bytes, ...]:
    from tests.kit.files.plain import KINDS, encoded

    deep = [b"P%d\n7 6\n65535\n" % kind + noise(6, 14, channels, kind).tobytes() for kind, channels in ((5, 1), (6, 3))]
    return (*(encoded(kind, 6, 7, k) for k, kind in enumerate(KINDS)), *deep)


# -- damage -----------------------------------------------------------------------------------------------------------


def changed(data: bytes, draw: random.Random) -> bytes:
    """A number of two, four or eight bytes of it becomes one at a border, most often in what decides: at the beginning,
    or in a TIFF's directory; or bytes change anywhere, or the end is missing."""
    raw = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        low, high = 0, len(raw)
        if draw.random() < 0.7:
            big = data[:1] == b"M"
            first = struct.unpack(">I" if big else "<I", data[4:8])[0] if data[:2] in (b"II", b"MM") else 0
            low, high = min(first, high - 8), min(first + (200 if first else 60), high)
        size = draw.choice((1, 1, 2, 4, 4, 8))
        if high - low < size:
            continue
        at = draw.randrange(low, high - size + 1)
        old = int.from_bytes(raw[at : at + size], "little")
        value = draw.choice((draw.choice(_WORTH), old + draw.randrange(-3, 4), draw.getrandbits(8 * size)))
        raw[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, draw.choice(("little", "big")))
    if draw.random() < 0.1:
        del raw[draw.randrange(len(raw)) :]
    elif draw.random() < 0.1:
        at = draw.randrange(len(raw))
        raw[at:at] = draw.randbytes(draw.randrange(1, 9))
    return bytes(raw)


def changed_png(data: bytes, draw: random.Random) -> bytes:
    """The same, of a chunk or of the rows in it, with right checksums, which chance never gives."""
    if draw.random() < 0.15:
        return changed(data, draw)
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    k = draw.randrange(len(chunks) - 1)
    tag, body = chunks[k]
    if tag == b"IDAT" and draw.random() < 0.8:
        rows = bytearray(zlib.decompress(body))
        rows[draw.randrange(len(rows))] = draw.choice((0, 4, 5, 255))
        if draw.random() < 0.3:
            del rows[draw.randrange(len(rows)) :]
        body = zlib.compress(bytes(rows) + bytes(draw.choice((0, 0, 1, 9))))
    elif tag == b"IHDR" and draw.random() < 0.8:
        at = draw.choice((3, 7, 8, 9, 10, 11, 12))
        body = body[:at] + bytes([draw.choice((0, 1, 2, 3, 4, 6, 8, 9, 16, 17, 255))]) + body[at + 1 :]
    else:
        body = changed(body, draw) if body else body
    chunks[k] = (tag, body)
    if draw.random() < 0.1:
        chunks.insert(draw.randrange(len(chunks)), draw.choice(chunks))
    elif draw.random() < 0.05:
        del chunks[draw.randrange(len(chunks))]
    return data[:8] + b"".join(chunk(*c) for c in chunks)


# -- what must hold ---------------------------------------------------------------------------------------------------


@cache
def memory() -> tuple[Guarded, Guarded]:
    return Guarded(1 << 18), Guarded(16 * MOST_PIXELS)


def judged(data: bytes, header: Header) -> Any:
    """The pixels of libraries; None where they refuse the file."""
    if header.bits > 8 and header.channels > 1 and find_spec("imagecodecs") is None:
        return None
    try:
        return pillow.decode(memoryview(data), header, False, 10**8)
    except SampleError:
        return None


def run(data: bytes) -> bool:
    """Whether one of the loops took the file."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return False
    if header.format not in ("png", "tiff", "bmp", "pnm") or header.width * header.height > MOST_PIXELS:
        return False
    draw = random.Random(zlib.crc32(data))
    place, room = memory()
    file = place.put(data, at_end=draw.random() < 0.7)
    if header.format == "png":
        whole = png.stored(file.data, header)
    elif header.format == "tiff":
        whole = tiff.stored(file.data, header)
    else:
        whole = plain.view(file.data, header)
    if whole is not None:
        wanted = judged(data, header)
        assert wanted is not None, "taken, but refused by others"
        if header.bits > 8 and wanted.dtype == np.uint8:  # another library's own way of making eight bits
            wanted = None
        if wanted is not None:
            np.testing.assert_array_equal(whole, wanted)
    cut_out(header, file, room, whole, draw)
    return whole is not None


def cut_out(header: Header, file: Any, room: Guarded, whole: Any, draw: random.Random) -> None:
    """Cut out a part, among bytes that stay as they are, in any order of channels."""
    kind = draw.choice((DALIImageType.RGB, DALIImageType.BGR, DALIImageType.ANY_DATA, DALIImageType.GRAY))
    y0, x0 = draw.randrange(header.height), draw.randrange(header.width)
    y1, x1 = draw.randrange(y0, header.height) + 1, draw.randrange(x0, header.width) + 1
    batch = Batch.from_list([np.empty(0, np.uint8)], "", Samples.numbered(1))
    batch = Batch(file, np.zeros(1, np.int64), np.array([[len(file)]], np.int32), "", batch.samples)
    which, rows = np.zeros(1, np.int64), np.empty((0, 4), np.int64)
    row = np.array([row_of(header)], np.int64)
    if header.format == "png":
        taken = bool(png.writes_directly(row, batch.shapes[:, 0], kind)[0])
    elif header.format == "tiff":
        taken = bool(tiff.writes_directly(row, kind)[0]) and bool(tiff.are_plain(batch, which)[0])
    else:
        taken = bool(plain.makes(row, kind)[0])
        if taken:
            rows = plain.find(batch, which, np.array([[header.height, header.width]], np.int64))
            taken = bool(rows[0, plain.STEP])
    if not taken:
        return
    stored = 3 if header.format == "bmp" else header.channels
    channels = {DALIImageType.ANY_DATA: stored, DALIImageType.GRAY: 1}.get(kind, 3)
    pitch = (x1 - x0) * channels
    out = room.empty((y1 - y0) * pitch, at_end=draw.random() < 0.5)
    out[:] = 0x5A
    one = np.ones(1, np.int64)
    wanted = (np.array([[y0, x0, y1, x1]], np.int64), one * channels, kind is DALIImageType.BGR, out,
              one * -(y0 * pitch + x0 * channels), one * pitch)  # fmt: skip
    if header.format in ("png", "tiff"):
        loops = (png if header.format == "png" else tiff)._decoder
        if native_loops.decode_into(loops.decode_images, batch, which, *wanted)[0]:
            assert whole is None or header.bits > 8
            return
    else:
        plain.copy_into(batch, which, rows, *wanted)
    if whole is None:  # what is odd lies outside of the window
        whole = judged(file.tobytes(), header)
    assert whole is not None, "taken, but refused by others"
    part = whole[y0:y1, x0:x1]
    if part.dtype == np.uint16:
        part = ((part.astype(np.int64) * 2 + 257) // 514).astype(np.uint8)
    if channels == 3:
        part = part[..., :3] if part.shape[2] >= 3 else part[..., :1].repeat(3, axis=2)
        part = part[..., ::-1] if kind is DALIImageType.BGR else part
    np.testing.assert_array_equal(out.reshape(part.shape[0], part.shape[1], channels), part[..., :channels])


KINDS: dict[str, tuple[Callable[[], Sequence[bytes]], Callable[[bytes, random.Random], bytes]]] = {
    "png": (png_files, changed_png),
    "tiff": (tiff_files, changed),
    "plain": (plain_files, changed),
}
"""Valid files, and what damages them."""
