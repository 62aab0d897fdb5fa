"""NVIDIA's nvJPEG through ctypes, and a decoder that uses it: the few calls that decoding needs, on arrays of
addresses, so that a batch takes one call."""

from __future__ import annotations

import ctypes
import ctypes.util
import enum
import importlib.util
import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...errors import DeviceError
from ...gpu.lane import Lane
from ...types import DALIImageType
from ..decoder_table import DecodeJob, Mask
from ..gpu_table import GpuDecoder, GpuWork
from ..threaded_decode import ThreadedDecode
from .header import OK, YCBCR

U64 = npt.NDArray[np.uint64]


class Backend(enum.IntEnum):
    """Backend with which nvJPEG decodes, such as the hardware engine: nvjpegBackend_t."""

    GPU_HYBRID = 2  # batches of more than 50 baseline images entirely on the GPU's cores
    HARDWARE = 3  # the JPEG engines of A100, H100, H200, ...; baseline only


class Output(enum.IntEnum):
    """Pixel format of nvJPEG's output: nvjpegOutputFormat_t."""

    Y = 2
    RGB = 5  # interleaved
    BGR = 6


class Status(enum.IntEnum):
    """Status that an nvJPEG function returns: nvjpegStatus_t."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    INVALID_PARAMETER = 2
    BAD_JPEG = 3
    JPEG_NOT_SUPPORTED = 4
    ALLOCATOR_FAILURE = 5
    EXECUTION_FAILED = 6
    ARCH_MISMATCH = 7
    INTERNAL_ERROR = 8
    IMPLEMENTATION_NOT_SUPPORTED = 9
    INCOMPLETE_BITSTREAM = 10


FANCY_UPSAMPLING = 1 << 5
"""Flag for creating an nvJPEG handle: interpolate chroma as libjpeg does
(NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION)."""

IMAGE_WORDS = 8
"""Number of uint64 of an nvjpegImage_t, which describes where an image is decoded to: the addresses of up to 4 planes,
then their pitches in bytes."""


class NvJpegError(Exception):
    """Raised if an nvJPEG function returns an error."""

    def __init__(self, call: str, status: int) -> None:
        name = Status(status).name if status in Status._value2member_map_ else "unknown"
        super().__init__(f"{call}: nvJPEG status {status} ({name})")
        self.status = status


# -- finding the library ----------------------------------------------------------------------------------------------

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvjpegGetProperty": (_INT, _POINTER),
    "nvjpegCreateEx": (_INT, _POINTER, _POINTER, ctypes.c_uint, _POINTER),
    "nvjpegDestroy": (_POINTER,),
    "nvjpegGetHardwareDecoderInfo": (_POINTER, _POINTER, _POINTER),
    "nvjpegJpegStateCreate": (_POINTER, _POINTER),
    "nvjpegJpegStateDestroy": (_POINTER,),
    "nvjpegDecodeBatchedInitialize": (_POINTER, _POINTER, _INT, _INT, _INT),
    "nvjpegDecodeBatched": (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
}


def candidates() -> list[str]:
    """Return paths at which libnvjpeg may be, best first: in pip wheels, in CUDA toolkits, and last the bare name,
    which the loader searches."""
    found: list[str] = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        found += sorted(map(str, Path(root).glob("*/lib/libnvjpeg.so.*")), reverse=True)
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            found += sorted(map(str, Path(os.environ[variable]).glob("lib64/libnvjpeg.so.*[0-9]")), reverse=True)
    found += sorted(map(str, Path("/usr/local/cuda/lib64").glob("libnvjpeg.so.[0-9][0-9]")), reverse=True)
    return [*found, "libnvjpeg.so.13", "libnvjpeg.so.12"]


class Library:
    """The loaded library libnvjpeg. Created once by the function `library`."""

    def __init__(self, path: str) -> None:
        """Load libnvjpeg from ``path``. Raises OSError if it cannot be loaded, AttributeError if it lacks a
        function."""
        self.path = path
        self._library = ctypes.CDLL(path)
        for name, types in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = types, _INT

    def call(self, name: str, *args: Any) -> None:
        """Call the nvJPEG function ``name`` with the GIL released. Raises NvJpegError unless it succeeds."""
        status = getattr(self._library, name)(*args)
        if status:
            raise NvJpegError(name, status)

    @property
    def version(self) -> tuple[int, int, int]:
        """Version of nvJPEG: major, minor, patch. The major number is that of the CUDA version."""
        value = ctypes.c_int()
        numbers = []
        for part in range(3):
            self.call("nvjpegGetProperty", part, ctypes.byref(value))
            numbers.append(value.value)
        return numbers[0], numbers[1], numbers[2]


@cache
def library() -> Library:
    """Load and return nvJPEG. If several versions are installed, the one of CuPy's CUDA version is preferred. Raises
    DeviceError that says what to install."""
    loaded: list[Library] = []
    problems: list[str] = []
    for path in candidates():
        try:
            loaded.append(Library(path))
        except (OSError, AttributeError) as e:
            problems.append(f"{path}: {e}")
    if not loaded:
        raise DeviceError(
            "nvJPEG was not found; install dali-run[cuda13] or dali-run[cuda12] (package nvidia-nvjpeg or "
            f"nvidia-nvjpeg-cu12). Tried: {'; '.join(problems)}"
        )
    try:
        import cupy

        wanted = cupy.cuda.runtime.runtimeGetVersion() // 1000
    except Exception:  # no CuPy or no driver: use the first one
        wanted = 0
    return next((x for x in loaded if x.version[0] == wanted), loaded[0])


# -- decoding ---------------------------------------------------------------------------------------------------------

_creating = threading.Lock()


class Decoder:
    """nvJPEG decoder on the current GPU: one nvJPEG handle with one decoding state. Used by one thread at a time. Each
    decoder has its own handle, because nvJPEG fails if several threads use states of one handle."""

    def __init__(self, backend: Backend, fancy_upsampling: bool = False, flags: int = 0) -> None:
        """Create the nvJPEG handle and its state. Raises NvJpegError if the GPU has no such backend (ARCH_MISMATCH),
        DeviceError if nvJPEG is not installed."""
        self.backend = backend
        self._library = library()
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._ready: tuple[int, int, Output] | None = None
        flags |= FANCY_UPSAMPLING if fancy_upsampling else 0
        call = self._library.call
        with _creating:
            call("nvjpegCreateEx", backend, None, None, flags, ctypes.byref(self._handle))
            try:
                call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
            except NvJpegError:
                call("nvjpegDestroy", self._handle)
                raise

    def engines(self) -> int:
        """Return the number of hardware JPEG engines of this GPU."""
        engines, cores = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._library.call("nvjpegGetHardwareDecoderInfo", self._handle, ctypes.byref(engines), ctypes.byref(cores))
        except NvJpegError:
            return 0
        return engines.value

    def batch(self, data: U64, lengths: U64, images: U64, output: Output, stream: int, threads: int = 1) -> None:
        """Decode N images into device memory, in the order of ``stream``. ``data`` uint64[N]: host addresses of the
        encoded images. ``lengths`` uint64[N]: their sizes in bytes. ``images`` uint64[N, 8]: see `destinations`. The
        encoded bytes must stay unchanged until the stream is done. Raises NvJpegError for the whole batch if one image
        is bad, without naming it."""
        n = len(data)
        wanted = (n, threads, output)
        if self._ready != wanted:
            self._library.call("nvjpegDecodeBatchedInitialize", self._handle, self._state, *wanted)
            self._ready = wanted
        try:
            self._library.call("nvjpegDecodeBatched", self._handle, self._state, data.ctypes.data, lengths.ctypes.data,
                               images.ctypes.data, stream)  # fmt: skip
        except NvJpegError:
            self._ready = None  # a failed batch must be initialised again
            raise

    def close(self) -> None:
        """Free nvJPEG's handle and memory. All work on the stream must be done."""
        for name, what in (("nvjpegJpegStateDestroy", self._state), ("nvjpegDestroy", self._handle)):
            if what:
                self._library.call(name, what)
                what.value = None


def destinations(address: int, offsets: npt.NDArray[np.int64], pitches: npt.NDArray[np.int64]) -> U64:
    """Return one nvjpegImage_t per image, uint64[N, 8], for interleaved or one-plane output. Image i is decoded to
    address ``address + offsets[i]``, with rows ``pitches[i]`` bytes apart."""
    images = np.zeros((len(offsets), IMAGE_WORDS), np.uint64)
    images[:, 0] = offsets.astype(np.uint64) + np.uint64(address)
    images[:, 4] = pitches
    return images


# -- the decoder ------------------------------------------------------------------------------------------------------


class NvJpeg(GpuDecoder):
    """Decoder for JPEGs by nvJPEG, as uint8, used only if ``jpeg_decoder`` selects nvJPEG. Supports whole upright
    baseline YCbCr images in one scan, of the common samplings. Pixels may differ from those of other decoders by a few
    levels."""

    name = "nvjpeg"
    needs_files = False

    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        rules, headers = job.rules, job.headers
        made = rules.output_type in _OUTPUTS and rules.dtype == np.uint8 and job.anchors is None
        if rules.jpeg_decoder != "nvjpeg" or not made:
            return np.zeros(len(indices), np.bool_)
        jpeg = headers.jpeg[indices]
        taken: Mask = (jpeg["status"] == OK) & (jpeg["sof"] == 0xC0) & (jpeg["quant_16bit"] == 0)
        taken &= (jpeg["scans"] == 1) & (jpeg["components"] == 3) & (jpeg["colour"] == YCBCR)
        taken &= headers.orientation[indices] == 1
        h, v = jpeg["h"], jpeg["v"]
        taken &= (h[:, 0] <= 2) & (v[:, 0] <= 2) & (h[:, 1:3] == 1).all(axis=1) & (v[:, 1:3] == 1).all(axis=1)
        for side in ("width", "height"):
            taken &= (jpeg[side] >= 16) & (jpeg[side] <= 16384)
        return taken & _ends(job.batch, indices)

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> GpuWork:
        # Engines decode one image after the other: the largest first, so that none is busy when the others are idle.
        pixels = job.headers.height[indices] * job.headers.width[indices]
        return NvJpegWork(indices[np.argsort(-pixels, kind="stable")])


_OUTPUTS = {DALIImageType.RGB: Output.RGB, DALIImageType.BGR: Output.BGR, DALIImageType.GRAY: Output.Y}


def _ends(batch: Batch, indices: I64) -> Mask:
    """Return for each file whether it ends with the EOI marker. Without it, the file may be cut off, which nvJPEG does
    not report."""
    if len(batch.data) < 2:
        return np.zeros(len(indices), np.bool_)
    last = np.clip(batch.offsets[indices] + batch.shapes[indices, 0] - 1, 1, len(batch.data) - 1)
    ends: Mask = (batch.data[last - 1] == 0xFF) & (batch.data[last] == 0xD9)
    return ends


@dataclass(slots=True)
class NvJpegWork(GpuWork):
    """Work for the GPU: decoding images of a batch by one call of nvJPEG, on hardware engines or on the GPU's cores."""

    indices: I64

    def launch(self, job: DecodeJob, lane: Lane, files: Batch, out: Batch) -> I64:
        decoder = _decoder_of(lane, job.rules.fancy_upsampling)
        if decoder is None:
            return self.indices
        left = np.array(self._decode(decoder, job, lane, out, self.indices), np.int64)
        job.ctx.decoded_by(NvJpeg.name, len(self.indices) - len(left))
        return left

    def _decode(self, decoder: Decoder, job: DecodeJob, lane: Lane, out: Batch, some: I64) -> list[int]:
        """Decode the images ``some``, and return those that nvJPEG rejects. If nvJPEG rejects a batch, it is halved
        until the bad images are found, which must not change the pixels of others."""
        batch = job.batch
        data = (batch.offsets[some] + batch.data.ctypes.data).astype(np.uint64)
        lengths = batch.shapes[some, 0].astype(np.uint64)
        shapes = out.shapes[some].astype(np.int64)
        images = destinations(int(out.data.data.ptr), out.offsets[some], shapes[:, 1] * shapes[:, 2])
        lane.keep(data, lengths, images)
        try:
            decoder.batch(data, lengths, images, _OUTPUTS[job.rules.output_type], lane.stream.ptr)
        except NvJpegError:
            half = len(some) // 2
            if not half:
                return [int(some[0])]
            return [i for part in (some[:half], some[half:]) for i in self._decode(decoder, job, lane, out, part)]
        return []


def _decoder_of(lane: Lane, fancy: bool) -> Decoder | None:
    """Return the nvJPEG decoder of ``lane``, a CUDA stream, created at its first use. Return None if nvJPEG is not
    installed or does not support the GPU."""
    key = f"nvjpeg {fancy}"
    if key not in lane.cache:
        lane.cache[key] = _opened(fancy)
    decoder: Decoder | None = lane.cache[key]
    return decoder


def _opened(fancy: bool) -> Decoder | None:
    for backend in (Backend.HARDWARE, Backend.GPU_HYBRID):
        try:
            decoder = Decoder(backend, fancy)
        except (NvJpegError, DeviceError):
            continue
        if backend is Backend.GPU_HYBRID or decoder.engines():
            return decoder
        decoder.close()
    return None
