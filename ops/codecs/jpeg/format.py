"""Declaration of the format JPEG (ITU-T T.81)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...kernels import Kernels
from ..format import JPEG, Format, Header, Signature

_headers: Any = Kernels(".header", __package__)
_turbo: Any = Kernels(".turbo", __package__)


def probe(data: memoryview) -> Header:
    """Return the header of one JPEG. Raises SampleError for a file that no decoder supports."""
    raw = np.frombuffer(data, np.uint8)
    row = _headers.read_headers(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))[0]
    _turbo.check_header(row)
    width, height, orientation = (int(row[name]) for name in ("width", "height", "orientation"))
    return Header("jpeg", width, height, _turbo.stored_channels(row), 8, orientation)


FORMATS = (
    Format(
        "jpeg", JPEG, "JPEG", (".jpg", ".jpeg"), (Signature(b"\xff\xd8\xff"),), probe, mime="image/jpeg",
        rows=".jpeg.decoder", gpu_rows=".jpeg.on_gpu", pillow="JpegImagePlugin.JpegImageFile",
    ),
)  # fmt: skip
