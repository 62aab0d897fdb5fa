"""PNGs of every colour type, depth, filter and interlacing, encoded according to the specification."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


KINDS = [
    (bits, kind)
    for kind, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items()
    for bits in depths
]


ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def chunk(tag: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))


def packed(values: Any, bits: int) -> Any:
    """Pack (H, W, C) numbers of ``bits`` bits into scanlines, uint8 (H, bytes)."""
    h, w, c = values.shape
    if bits == 16:
        return values.astype(">u2").reshape(h, w * c).view(np.uint8).reshape(h, -1)
    if bits == 8:
        return values.astype(np.uint8).reshape(h, w * c)
    ones = (values.reshape(h, w, 1) >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(ones.reshape(h, w * bits).astype(np.uint8), axis=1)


def filtered(rows: Any, step: int, filters: Sequence[int]) -> bytes:
    """Filter scanlines with PNG's ``filters`` in turn, according to the specification."""
    out, above = b"", np.zeros(rows.shape[1] + step, np.int64)
    for y, row in enumerate(rows.astype(np.int64)):
        now = np.concatenate([np.zeros(step, np.int64), row])
        a, b, c = now[:-step], above[step:], above[:-step]
        p = a + b - c
        pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
        paeth = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, b, c))
        kind = filters[y % len(filters)]
        guess = (0 * a, a, b, (a + b) // 2, paeth)[kind]
        out += bytes([kind]) + ((row - guess) & 255).astype(np.uint8).tobytes()
        above = now
    return out


def encoded(
    values: Any, bits: int, kind: int, *, interlaced: bool = False, filters: Sequence[int] = (4, 1, 0, 3, 2, 4),
    pieces: int = 1, before: bytes = b"", after: bytes = b"", end: bytes | None = None, cut: int = 0, more: bytes = b"",
) -> bytes:  # fmt: skip
    """Encode ``values`` (H, W, C) as a PNG."""
    h, w = values.shape[:2]
    step = max(1, bits * CHANNELS[kind] // 8)
    if interlaced:
        parts = [values[y0::dy, x0::dx] for y0, x0, dy, dx in ADAM7]
        data = b"".join(filtered(packed(p, bits), step, filters) for p in parts if p.size)
    else:
        data = filtered(packed(values, bits), step, filters)
    stream = zlib.compress(data[: len(data) - cut] + more, 6)
    size = -(-len(stream) // pieces)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, kind, 0, 0, interlaced))
        + before
        + b"".join(chunk(b"IDAT", stream[k : k + size]) for k in range(0, len(stream), size))
        + after
        + (chunk(b"IEND", b"") if end is None else end)
    )


def picture(bits: int, kind: int, h: int, w: int, seed: int = 0) -> tuple[Any, bytes, Any]:
    """Return numbers to store, PLTE if there is one, and the pixels that they represent."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << bits, (h, w, CHANNELS[kind]))
    if kind == 3:
        palette = rng.integers(0, 256, (1 << bits, 3), dtype=np.uint8)
        return values, chunk(b"PLTE", palette.tobytes()), palette[values[..., 0]]
    return values, b"", (values * (255 // ((1 << bits) - 1)) if bits < 8 else values)
