"""BMPs and PNMs of every kind."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

KINDS = ["24", "32", "24 down", "32 down", "P5", "P6"]


def encoded(kind: str, h: int, w: int, seed: int) -> bytes:
    """Return an image file (BMP or PNM) of noise."""
    channels = {"3": 4, "P": 1}.get(kind[0], 3) if kind != "P6" else 3
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, channels), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(out, "PPM" if kind[0] == "P" else "BMP")
    data = out.getvalue()
    if "down" in kind:
        data = data[:22] + (-h).to_bytes(4, "little", signed=True) + data[26:]
    return data
