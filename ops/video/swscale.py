"""FFmpeg's colour converter (libswscale), writing RGB directly into a given array. PyAV's own converter allocates a
frame, which then has to be copied.

It calls the library that av has loaded through its C interface (libswscale/swscale.h). For the frames that
`Converter.convert` accepts, images equal those of `VideoReformatter` exactly.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_FORMATS = frozenset(("yuv420p", "yuvj420p", "yuv422p"))
"""Pixel formats that this module converts. For others, libswscale's older interface, used here, rounds differently."""
_BLOCK = 16
"""Number of pixels that libswscale writes at once. If the width is not a multiple, it writes beyond the ends of
rows."""
_BILINEAR = 2
_FULL = 2
"""FFmpeg's number for the full range of colour values, in which black is 0."""
_BT601 = 5
_ONE = 1 << 16
_Pointers, _Numbers = ctypes.c_void_p * 4, ctypes.c_int * 4


@cache
def library() -> Any:
    """Return (libswscale, libavutil) as this process has loaded them; None if they are not found."""
    with suppress(Exception):
        paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
        scale, util = (ctypes.CDLL(next(p for p in paths if name in p)) for name in ("libswscale", "libavutil"))
        number, pointer = ctypes.c_int, ctypes.c_void_p
        util.av_get_pix_fmt.argtypes = [ctypes.c_char_p]
        scale.sws_getContext.argtypes = [*[number] * 7, *[pointer] * 3]
        scale.sws_getContext.restype = scale.sws_getCoefficients.restype = pointer
        scale.sws_setColorspaceDetails.argtypes = [pointer, pointer, number, pointer, *[number] * 4]
        scale.sws_scale.argtypes = [pointer, pointer, pointer, number, number, pointer, pointer]
        scale.sws_freeContext.argtypes = [pointer]
        scale.sws_freeContext.restype = None
        return scale, util.av_get_pix_fmt
    return None


class Converter:
    """Converter of video frames to RGB, into a given array. Close it; one thread at a time may use it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int, int, int], int] = {}

    def convert(self, frame: Any, out: npt.NDArray[Any]) -> bool:
        """Convert ``frame``, of the package av, into ``out`` (height, width, 3). Return False, with nothing done, if
        the library cannot convert the frame exactly and without a copy."""
        height, width = int(frame.height), int(frame.width)
        if (
            frame.format.name not in _FORMATS or width % _BLOCK or frame.interlaced_frame or out.dtype != np.uint8
            or out.shape != (height, width, 3) or not out.flags.c_contiguous or library() is None
        ):  # fmt: skip
            return False
        scale, _ = library()
        key = frame.format.name, height, width, int(frame.colorspace), int(frame.color_range)
        context = self._made.get(key) or self._make(*key)
        if not context:
            return False
        self._made[key] = context
        planes = frame.planes
        source = _Pointers(*(p.buffer_ptr for p in planes))
        strides = _Numbers(*(p.line_size for p in planes))
        rows = scale.sws_scale(context, source, strides, 0, height, _Pointers(out.ctypes.data), _Numbers(3 * width))
        return bool(rows == height)

    def _make(self, pixels: str, height: int, width: int, space: int, span: int) -> int:
        scale, number_of = library()
        context = scale.sws_getContext(width, height, number_of(pixels.encode()), width, height, number_of(b"rgb24"),
                                       _BILINEAR, None, None, None)  # fmt: skip
        if context:
            full = span == _FULL or pixels.startswith("yuvj")
            matrix, target = scale.sws_getCoefficients(space), scale.sws_getCoefficients(_BT601)
            scale.sws_setColorspaceDetails(context, matrix, full, target, 1, 0, _ONE, _ONE)
        return context or 0

    def close(self) -> None:
        """Free libswscale's conversion contexts."""
        for context in self._made.values():
            library()[0].sws_freeContext(context)
        self._made.clear()
