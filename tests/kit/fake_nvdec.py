"""A stand-in for PyNvVideoCodec without a GPU: it decodes with PyAV into surfaces like NVDEC's (NV12, P016, with a
pitch), in the fake CuPy's device memory. It has the part that `ops.video.nvdec` uses."""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av
import numpy as np
import pytest

from dali_run.ops.video import nvdec

PITCH = 32
"""Pitch of surfaces: rows begin at multiples of this many bytes."""
_NAMES = {"H264": "h264", "HEVC": "hevc", "VP9": "vp9", "AV1": "av1"}


class PacketData:
    """One packet of a video stream; an empty one ends the stream."""

    bsl_data = bsl = pts = 0


class Surface:
    """A decoded frame. Its memory belongs to the decoder, which reuses it."""

    def __init__(self, pts: int, luma: int, chroma: int) -> None:
        self._pts, self._planes = pts, (luma, chroma)

    def getPTS(self) -> int:  # noqa: N802
        return self._pts

    def GetPtrToPlane(self, plane: int) -> int:  # noqa: N802
        return self._planes[plane]


class Decoder:
    """Stand-in for PyNvDecoder: takes packets of a byte stream, returns surfaces in display order."""

    def __init__(self, log: list[str], codec: str, height: int, width: int) -> None:
        self._log, self._codec, self._most, self._size = log, codec, (height, width), (height, width)
        self._memory = np.zeros(16 * (2 * width + PITCH) * (height * 3 // 2), np.uint8)
        self._context = self._new()
        self._thread: int | None = None

    def _new(self) -> Any:
        context = av.CodecContext.create(_NAMES[self._codec], "r")
        context.thread_count = 1
        return context

    def setReconfigParams(self, width: int, height: int) -> int:  # noqa: N802
        assert height <= self._most[0]
        assert width <= self._most[1]
        self._log.append(f"reconfigured {width}x{height}")
        self._size = height, width
        return 1

    def Decode(self, packet: PacketData) -> list[Surface]:  # noqa: N802
        if packet.bsl == 0:
            frames = self._context.decode(None)
            self._context = self._new()
        else:
            assert packet.bsl_data
            given = av.Packet(ctypes.string_at(packet.bsl_data, packet.bsl))
            given.pts = packet.pts
            frames = self._context.decode(given)
        at, made = 0, []
        for frame in frames:
            surface, at = self._surface(frame, at)
            made.append(surface)
        return made

    def _surface(self, frame: Any, at: int) -> tuple[Surface, int]:
        deep = frame.format.components[0].bits > 8
        shown = frame.reformat(format="p010le" if deep else "nv12")
        assert (shown.height, shown.width) == self._size, "it was not told of the size"
        pitch = (shown.width * (2 if deep else 1) + PITCH) // PITCH * PITCH
        starts = []
        for plane, rows in zip(shown.planes, (shown.height, shown.height // 2), strict=True):
            pixels = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:rows]
            used = min(pitch, plane.line_size)
            room = self._memory[at : at + rows * pitch].reshape(rows, pitch)
            room[:, :used] = pixels[:, :used]
            starts.append(self._memory.ctypes.data + at)
            at += rows * pitch
        return Surface(int(frame.pts), *starts), at


class Fake:
    """Stand-in for the functions of PyNvVideoCodec, with a log of their calls."""

    def __init__(self, refused: tuple[str, ...]) -> None:
        self.log: list[str] = []
        self._refused = refused
        self._lock = threading.Lock()

    def create(self, *, gpuid: int, codec: str, cudacontext: int, cudastream: int, usedevicememory: bool,
               maxwidth: int, maxheight: int) -> Decoder:  # fmt: skip
        assert usedevicememory
        assert cudastream
        with self._lock:
            self.log.append(f"created {codec}")
        if codec in self._refused:
            raise RuntimeError(f"HW decoder for {codec} is not available on this device")
        return Decoder(self.log, codec, maxheight, maxwidth)


@contextmanager
def faked_nvdec(refused: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Context manager that replaces PyNvVideoCodec by the stand-in, on a fake CuPy with memory; yields the log of
    calls. The GPUs do not support the codecs ``refused``."""
    import cupy

    fake, module = Fake(refused), types.ModuleType("PyNvVideoCodec")
    module.PacketData, module.CreateDecoder = PacketData, fake.create  # type: ignore[attr-defined]
    module.cudaVideoCodec = types.SimpleNamespace(**{n: n for n in _NAMES})  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "PyNvVideoCodec", module)
        patch.setattr(cupy.cuda.driver, "ctxGetCurrent", lambda: 1, raising=False)
        nvdec.module.cache_clear()
        nvdec.forget()
        try:
            yield fake.log
        finally:
            nvdec.forget()
            nvdec.module.cache_clear()
