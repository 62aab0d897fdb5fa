"""Videos through NVDEC, as the package PyNvVideoCodec drives it: frames go from its surfaces to tensors on the GPU.

`NvClip` is a `Clip`: packets, index and seeks are those of the CPU, and frames are compared with the index by their
times. Only what decodes is another. Whatever NVDEC refuses is the CPU's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..context import Context
from ..errors import SampleError
from ..gpu.lane import Lane
from .media import NO_FRAME, Clip, Index

_CODECS = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1"}
"""PyNvVideoCodec's names; VP8 has packets that show nothing, so that its frames are counted by decoding them."""
_BITS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10, "yuv420p12le": 12}
_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Of red and blue in luma, by the number of the matrix in ITU-T H.273; all others are taken for BT.601, as FFmpeg's
converter does."""
_BT601 = (0.299, 0.114)
_FULL = 2
"""The range of values in which black is 0, as FFmpeg numbers it."""
_BLOCK = 256
_THREADS = 8


class RefusedError(Exception):
    """NVDEC does not take this, or gave up; the CPU is next."""


@cache
def module() -> Any:
    """The package PyNvVideoCodec; None where it is not installed, or finds no driver."""
    try:
        import PyNvVideoCodec
    except Exception:  # it looks for libraries of the driver while it is imported, and raises many kinds
        return None
    return PyNvVideoCodec


@dataclass(slots=True)
class Decoders:
    """The decoders of one thread at a time, with a stream of their own."""

    lane: Lane
    kept: dict[tuple[str, int], tuple[Any, int, int]] = field(default_factory=dict)
    """By codec and bits of a sample: a decoder, and the height and width that it was made for."""

    def of(self, codec: str, bits: int, height: int, width: int) -> Any:
        """A decoder with nothing in it, reconfigured where one is there. Raises RefusedError."""
        found = self.kept.pop((codec, bits), None)
        try:
            if found is not None and height <= found[1] and width <= found[2]:
                decoder, most = found[0], found[1:]
                for _ in range(_FLUSHES):
                    if not decoder.Decode(module().PacketData()):
                        break
                decoder.setReconfigParams(width, height)
            else:
                most = height, width
                decoder = module().CreateDecoder(
                    gpuid=self.lane.index, codec=getattr(module().cudaVideoCodec, _CODECS[codec]),
                    cudacontext=_context(), cudastream=int(self.lane.stream.ptr), usedevicememory=True,
                    maxwidth=width, maxheight=height,
                )  # fmt: skip
        except Exception as e:
            raise RefusedError(f"{codec} of {bits} bits: {_reason(e)}") from None
        self.kept[codec, bits] = (decoder, *most)
        return decoder

    def drop(self, codec: str, bits: int) -> None:
        """Forget a decoder that failed."""
        self.kept.pop((codec, bits), None)


_FLUSHES = 8
"""Times that a decoder may be asked for what is left in it."""
_idle: dict[int, list[Decoders]] = {}
_lock = threading.Lock()


@contextmanager
def borrowed(index: int) -> Iterator[Decoders]:
    """Decoders on GPU ``index`` for this thread; there are as many as threads ever decoded at once."""
    with _lock:
        idle = _idle.setdefault(index, [])
        decoders = idle.pop() if idle else None
    if decoders is None:
        decoders = Decoders(Lane(index))
    try:
        with decoders.lane:
            yield decoders
    finally:
        with _lock:
            _idle.setdefault(index, []).append(decoders)


def forget() -> None:
    """Let go of all decoders that are idle."""
    with _lock:
        idle = [d for found in _idle.values() for d in found]
        _idle.clear()
    for decoders in idle:
        decoders.kept.clear()
        decoders.lane.close()


def _context() -> int:
    import cupy

    return int(cupy.cuda.driver.ctxGetCurrent())


@dataclass(frozen=True, slots=True)
class _Frame:
    pts: int
    surface: Any
    is_corrupt: bool = False


class NvClip(Clip):
    """A clip whose pictures are surfaces of NVDEC; places are flat uint8 arrays of the device."""

    def __init__(self, source: str | npt.NDArray[np.uint8], index: Index | None = None) -> None:
        """Raises SampleError as `Clip` does."""
        super().__init__(source, index)
        context = self.stream.codec_context
        self._bits = _BITS.get(str(context.pix_fmt), 0)
        self._matrix = matrix_of(int(context.colorspace), int(context.color_range), str(context.pix_fmt))
        self._decoders: Decoders | None = None

    def use(self, decoders: Decoders) -> Self:
        """Decode by ``decoders``, on their stream. Raises RefusedError where NVDEC is not asked, SampleError."""
        context = self.stream.codec_context
        if self.codec not in _CODECS or not self._bits:
            raise RefusedError(f"{self.codec}, {context.pix_fmt}")
        if self.height % 2 or self.width % 2:
            raise RefusedError("odd sizes")
        if not self.index[0]:
            raise RefusedError("packets without times")
        self._decoders = decoders
        return self

    def _pictures(self) -> Iterator[Any]:
        if self._decoders is None:  # frames are counted
            yield from super()._pictures()
            return
        decoder = self._decoders.of(self.codec, self._bits, self.height, self.width)
        annexb = None
        extra = bytes(self.stream.codec_context.extradata or b"")
        if self.codec in ("h264", "hevc") and extra[:1] == b"\1":  # lengths before its units, as MP4 has them
            annexb = self._av.bitstream.BitStreamFilterContext(f"{self.codec}_mp4toannexb", self.stream)
        for packet in self.container.demux(self.stream):
            if packet.size:
                for unit in annexb.filter(packet) if annexb is not None else [packet]:
                    yield from self._fed(decoder, bytes(unit), unit.pts)
        while frames := list(self._fed(decoder, b"", None)):
            yield from frames

    def _fed(self, decoder: Any, data: bytes, pts: int | None) -> Iterator[_Frame]:
        """The frames that come out for one packet; for an empty one, those that are left."""
        packet, held = module().PacketData(), np.frombuffer(data, np.uint8)
        if data:
            packet.bsl_data, packet.bsl, packet.pts = int(held.ctypes.data), len(data), int(pts or 0)
        try:
            frames = [(int(surface.getPTS()), surface) for surface in decoder.Decode(packet)]
        except Exception as e:
            assert self._decoders is not None
            self._decoders.drop(self.codec, self._bits)
            raise RefusedError(f"{self.codec}: {_reason(e)}") from None
        for pts, surface in frames:
            yield _Frame(pts, surface)

    def on_host(self) -> Clip:
        """The same clip, decoded by the CPU."""
        return Clip(self._source, self.index)

    def _write(self, frame: Any, places: Sequence[Any]) -> None:
        for place in places:
            self.convert(frame.surface, place)

    def convert(self, surface: Any, out: Any) -> None:
        """RGB of ``surface`` into ``out``, a flat uint8 array of the device, on the decoders' stream. Raises
        RefusedError where the surface is not what the file promised."""
        assert self._decoders is not None
        luma, chroma = int(surface.GetPtrToPlane(0)), int(surface.GetPtrToPlane(1))
        nbytes = 1 if self._bits == 8 else 2
        pitch, rest = divmod(chroma - luma, self.height * nbytes)
        if rest or pitch < self.width:
            raise RefusedError(f"surfaces of another size than {self.width} x {self.height}")
        # samples of more than 8 bits stand in the high bits of 16
        unit = 1.0 if nbytes == 1 else 2.0**-8
        if self._matrix[-1] and nbytes == 2:
            unit = 255 / ((2.0**self._bits - 1) * 2.0 ** (16 - self._bits))
        numbers = [np.float32(v) for v in (unit, *self._matrix[:-1])]
        pixels = self.height * self.width
        self._decoders.lane.launch(
            "video.cu", f"rgb<{'unsigned char' if nbytes == 1 else 'unsigned short'}>", -(-pixels // _BLOCK), _BLOCK,
            np.uint64(luma), np.uint64(chroma), np.int64(pitch), np.int32(self.height), np.int32(self.width), *numbers,
            out,
        )  # fmt: skip


def decode_to(
    clip: NvClip, places: Mapping[int, Sequence[Any]], fill: npt.NDArray[np.uint8], decoders: Decoders
) -> str:
    """Frames of ``clip`` into ``places`` by their numbers: flat uint8 arrays of the device. Each frame is decoded once,
    those without a number are of the value ``fill``; the CPU does what NVDEC refuses. The reason, where it did. The
    stream is to be waited for. Raises SampleError."""
    wanted = sorted(set(places) - {NO_FRAME})
    for place in places.get(NO_FRAME, ()):
        _send(decoders.lane, place, np.tile(fill, clip.height * clip.width))
    try:
        clip.use(decoders).decode(wanted, places.__getitem__)
    except (RefusedError, SampleError) as e:  # the CPU has the last word on damage
        picture = np.empty((clip.height, clip.width, 3), np.uint8)
        with clip.on_host() as other:
            for n in wanted:  # one at a time: a whole video may be more than the host has room for
                other.decode([n], lambda _: [picture])
                for place in places[n]:
                    _send(decoders.lane, place, picture)
        return str(e)
    return ""


def report(ctx: Context, why: str, seconds: float) -> None:
    """Tell who decoded one sample, and ``why`` it was the CPU."""
    ctx.decoded_by("CPU threads" if why else "NVDEC", 1, seconds)
    if why and ctx.count is not None:
        ctx.count(f"not for NVDEC: {why}", 1)


@cache
def threads() -> ThreadPoolExecutor:
    """The threads that drive NVDEC: more of them wait for each other in the driver."""
    return ThreadPoolExecutor(_THREADS, "nvdec")


def _send(lane: Lane, out: Any, host: npt.NDArray[np.uint8]) -> None:
    """Copy ``host`` to the device array ``out``, on the lane's stream."""
    staged = lane.pinned(host.nbytes)
    staged[:] = host.reshape(-1)
    if host.nbytes:
        lane.copy_in(lane.address(out), staged)


def _reason(e: Exception) -> str:
    """The one line of the package's messages that says what is wrong, else the first."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Error Type")), lines[0])


def matrix_of(space: int, span: int, pixels: str) -> tuple[float, float, float, float, float, float, bool]:
    """Factor and offset of luma, Cr's part of red, Cb's and Cr's of green, Cb's of blue, and whether the range is full,
    of a matrix and a range by their numbers in ITU-T H.273 and FFmpeg. It is the inverse of Y = R r + G g + B b, Cb =
    (B - Y) / (2 - 2 b), Cr = (R - Y) / (2 - 2 r), for values as 8 bits have them."""
    r, b = _WEIGHTS.get(space, _BT601)
    g = 1 - r - b
    full = span == _FULL or pixels.startswith("yuvj")
    luma, offset, chroma = (1.0, 0.0, 1.0) if full else (255 / 219, 16.0, 255 / 224)
    red, blue = 2 * (1 - r) * chroma, 2 * (1 - b) * chroma
    return luma, offset, red, blue * b / g, red * r / g, blue, full
