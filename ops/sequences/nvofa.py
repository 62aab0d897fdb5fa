"""The GPU's optical flow engine (NVOFA), through NVIDIA's driver: its Optical Flow API for CUDA, by ctypes. Called by
`optical_flow`.

Declarations follow the public headers nvOpticalFlowCommon.h and nvOpticalFlowCuda.h, version 2.0 of the API, the first
with cells of 1 and 2 pixels; current drivers support it. The library is part of the driver, nothing has to be
installed.

A `Session` is the engine's work on images of one size. Its surfaces are the driver's memory: images are copied into
some, vectors out of others. The engine should never wait for these copies: images are on one stream, vectors on
another, and while the engine works on one half of the surfaces, the other half is filled and emptied. (One H200, pairs
of 320 x 180, best preset, a grid of 4: 203 us each; 239 if both are on one stream, 212 to 218 with two to eight
sessions on one stream each.)
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64
from ..gpu import driver_calls
from ..gpu.current import OnGpu
from ..gpu.lane import Lane, borrow_stream, return_stream

API = 0x20
"""Version of the driver's API that this module uses: four bits each for major and minor."""
_SURFACES = 32 << 20
"""Approximate bytes of device memory for the images of one session."""
_MAX_PAIRS = 32
"""Maximum number of image pairs per call of a session. Their images are copied together, and so are their vectors."""
_MAX_SESSIONS = 8
"""Maximum number of cached sessions per GPU; creating one takes 20 ms, destroying one 200 ms."""
_BLOCK = 256

# -- declarations of the headers --------------------------------------------------------------------------------------

FUNCTIONS = (
    "create", "init", "create_buffer", "array_of", "address_of", "strides_of", "set_streams", "execute",
    "destroy_buffer", "destroy", "last_error", "capabilities",
)  # fmt: skip
"""Names for the functions in the driver's table NV_OF_CUDA_API_FUNCTION_LIST, in its order."""
STATUS = (
    "success", "the engine is not available", "the device is not supported", "the device is gone", "invalid pointer",
    "invalid parameter", "invalid call", "invalid version", "out of memory", "not initialised", "unsupported feature",
    "internal error",
)  # fmt: skip
"""Messages for the values of the driver's NV_OF_STATUS, in its order."""
INIT = np.dtype(
    [(name, "u4") for name in ("width", "height", "grid", "hint_grid", "mode", "level", "hints", "costs")]
    + [("private", "u8"), ("disparities", "u4"), ("regions", "u4")]
)
"""Memory layout of the driver's struct NV_OF_INIT_PARAMS."""
DESCRIPTOR = np.dtype([(name, "u4") for name in ("width", "height", "usage", "format")])
"""Memory layout of the driver's struct NV_OF_BUFFER_DESCRIPTOR."""
STRIDES = np.dtype([("bytes", "u4", (3, 2)), ("planes", "u4")])
"""Memory layout of the driver's struct NV_OF_CUDA_BUFFER_STRIDE_INFO: for each plane the bytes from row to row, and
another number."""
INPUT = np.dtype(
    [("picture", "u8"), ("reference", "u8"), ("hints", "u8"), ("anew", "u4"), ("padding", "u4"), ("private", "u8"),
     ("padding2", "u4"), ("regions", "u4"), ("where", "u8")]
)  # fmt: skip
"""Memory layout of the driver's struct NV_OF_EXECUTE_INPUT_PARAMS. ``anew`` (disableTemporalHints): do not start from
the previous call's vectors."""
OUTPUT = np.dtype([("vectors", "u8"), ("costs", "u8"), ("private", "u8")])
"""Memory layout of the driver's struct NV_OF_EXECUTE_OUTPUT_PARAMS."""

BEST, MEDIUM, FAST = 5, 10, 20
"""Quality levels of the search for vectors; values of the driver's NV_OF_PERF_LEVEL."""
_FLOW = 1  # NV_OF_MODE_OPTICALFLOW
_INPUT, _OUTPUT, _HINT = 1, 2, 3  # NV_OF_BUFFER_USAGE
_GRAY, _COLORS, _VECTORS = 1, 3, 5  # NV_OF_BUFFER_FORMAT: GRAYSCALE8, ABGR8, SHORT2
_DEVICE_POINTER = 2  # NV_OF_CUDA_BUFFER_TYPE_CUDEVICEPTR
_GRIDS, _HINT_GRIDS, _LEAST, _MOST = 0, 1, (5, 4), (7, 6)  # NV_OF_CAPS; minimum and maximum are height and width

_POINTER, _INT, _U32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create": (_INT, _POINTER, _POINTER),
    "init": (_INT, _POINTER, _POINTER),
    "create_buffer": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "address_of": (ctypes.c_uint64, _POINTER),
    "strides_of": (_INT, _POINTER, _POINTER),
    "set_streams": (_INT, _POINTER, _POINTER, _POINTER),
    "destroy_buffer": (_INT, _POINTER),
    "destroy": (_INT, _POINTER),
    "last_error": (_INT, _POINTER, _POINTER, _POINTER),
    "capabilities": (_INT, _POINTER, _INT, _POINTER, _POINTER),
}


class NoEngineError(Exception):
    """Raised if the GPU has no optical flow engine, or the engine does not support the request; the host then computes
    the flow."""


# -- the library ------------------------------------------------------------------------------------------------------


class Library:
    """The driver's shared library for optical flow, with the functions of its API."""

    def __init__(self, path: str) -> None:
        """Load the library at ``path``. Raises OSError if it cannot be loaded, AttributeError if it is another library,
        NoEngineError if it lacks this version of the API."""
        loaded, table = ctypes.CDLL(path), (_POINTER * len(FUNCTIONS))()
        loaded.NvOFAPICreateInstanceCuda.argtypes = (_U32, _POINTER)
        if status := loaded.NvOFAPICreateInstanceCuda(API, table):
            raise NoEngineError(f"the driver does not know version 2.0 of the API: {_words(status)}")
        self._loaded, places = loaded, dict(zip(FUNCTIONS, table, strict=True))
        self._functions = {name: ctypes.CFUNCTYPE(*types)(places[name]) for name, types in _SIGNATURES.items()}
        self.execute: int = places["execute"] or 0
        """Address of the function nvOFExecute, which `driver_calls` calls."""

    def call(self, name: str, *args: Any) -> int:
        """Call the function ``name``, one of `FUNCTIONS`, and return its status. The GIL is released meanwhile."""
        found: int = self._functions[name](*args)
        return found

    def check(self, status: int, operation: str, handle: Any) -> None:
        """Raise NoEngineError, with the driver's message, unless ``status`` is success. ``operation``: what was called,
        for the message."""
        if not status:
            return
        text, size = ctypes.create_string_buffer(256), _U32(256)
        self.call("last_error", handle, text, ctypes.byref(size))
        detail = text.value.decode(errors="replace").strip()
        raise NoEngineError(f"{operation}: {_words(status)}" + (f" ({detail})" if detail else ""))


def _words(status: int) -> str:
    return STATUS[status] if 0 <= status < len(STATUS) else f"status {status}"


_PATHS = ("nvofapi64.dll",) if os.name == "nt" else ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so")


@cache
def _loaded(paths: tuple[str, ...]) -> Library | str:
    problem = ""
    for path in paths:
        try:
            return Library(path)
        except (OSError, AttributeError, NoEngineError) as e:
            problem = problem or str(e)
    return problem


def library() -> Library:
    """Return the optical flow library of this machine's driver. Raises NoEngineError if there is none."""
    found = _loaded(_PATHS)
    if isinstance(found, str):
        raise NoEngineError(found)
    return found


# -- the engine -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """Parameters of a session, such as image size and grid, by which cached sessions are found."""

    height: int
    width: int
    gray: bool
    """Whether images have one channel (gray); else they have three."""
    grid: int
    """Side in pixels of an output cell; each cell gets one vector."""
    level: int
    """Quality of the search: BEST, MEDIUM or FAST."""
    hint_grid: int = 0
    """Side in pixels of a cell of the hints (vectors with which the search begins); 0 without hints."""

    def cells(self, side: int) -> tuple[int, int]:
        """Return the number of rows and columns of cells of ``side`` pixels in an image."""
        return -(-self.height // side), -(-self.width // side)

    @property
    def pairs(self) -> int:
        """Number of image pairs that one call of the session processes."""
        size = self.height * self.width * (1 if self.gray else 4)
        return min(max(_SURFACES // (4 * size), 1), _MAX_PAIRS)


@dataclass(frozen=True, slots=True)
class FlowEngine:
    """Optical flow engine of one GPU, with the image sizes and grids that it supports."""

    grids: tuple[int, ...]
    hint_grids: tuple[int, ...]
    min_size: tuple[int, int]
    """Minimum height and width of images."""
    max_size: tuple[int, int]
    """Maximum height and width of images."""

    def check(self, kind: Kind) -> None:
        """Raise NoEngineError unless the engine supports images and grids of ``kind``."""
        size = kind.height, kind.width
        if any(not low <= here <= high for low, here, high in zip(self.min_size, size, self.max_size, strict=True)):
            least, most = (" x ".join(map(str, s)) for s in (self.min_size, self.max_size))
            raise NoEngineError(f"it supports images of {least} to {most} pixels")
        if kind.grid not in self.grids:
            raise NoEngineError(f"it does not support an output_grid of {kind.grid}")
        if kind.hint_grid and (kind.hint_grid not in self.hint_grids or kind.hint_grid < kind.grid):
            raise NoEngineError(
                f"it does not support a hint_grid of {kind.hint_grid} with an output_grid of {kind.grid}"
            )


_asking = threading.Lock()


def engine(index: int, context: int) -> FlowEngine:
    """Return the engine of GPU ``index``, whose CUDA context ``context`` is current. Raises NoEngineError if there is
    none."""
    if not context:
        raise NoEngineError("there is no GPU")
    with _asking:
        found = _engine_or_reason(index, context)
    if isinstance(found, str):
        raise NoEngineError(found)
    return found


@cache
def _engine_or_reason(index: int, context: int) -> FlowEngine | str:
    """Return the engine of a GPU, or the reason why there is none."""
    del index
    try:
        return _ask(library(), context)
    except NoEngineError as e:
        return str(e)


def _ask(library: Library, context: int) -> FlowEngine:
    handle = _create(library, context)

    def known(capability: int) -> tuple[int, ...]:
        count = _U32()
        library.check(
            library.call("capabilities", handle, capability, None, ctypes.byref(count)), "capabilities", handle
        )
        values = (_U32 * max(count.value, 1))()
        library.check(
            library.call("capabilities", handle, capability, values, ctypes.byref(count)), "capabilities", handle
        )
        return tuple(values[: count.value])

    try:
        least, most = ((known(height)[0], known(width)[0]) for height, width in (_LEAST, _MOST))
        return FlowEngine(known(_GRIDS), known(_HINT_GRIDS), least, most)
    finally:
        _destroy(library, handle, begun=False)


def _create(library: Library, context: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    if status := library.call("create", context, ctypes.byref(handle)):
        raise NoEngineError(f"nvCreateOpticalFlowCuda: {_words(status)}")
    return handle


def _destroy(library: Library, handle: ctypes.c_void_p, *, begun: bool) -> None:
    """Destroy a session. ``handle``: the driver's handle. ``begun``: whether nvOFInit has initialised it; if not, it is
    initialised first, because the driver would not free it."""
    if not begun:
        library.call("init", handle, _init(Kind(128, 128, gray=True, grid=4, level=FAST)).ctypes.data)
    library.call("destroy", handle)


def _init(kind: Kind) -> npt.NDArray[Any]:
    init = np.zeros(1, INIT)
    init["width"], init["height"], init["mode"] = kind.width, kind.height, _FLOW
    init["grid"], init["level"] = kind.grid, kind.level
    init["hint_grid"], init["hints"] = kind.hint_grid, kind.hint_grid > 0
    return init


@dataclass(frozen=True, slots=True)
class _Surfaces:
    """Image buffers (surfaces) of the driver, all of one size and format."""

    handles: npt.NDArray[np.uint64]
    addresses: I64
    pitch: int
    """Number of bytes from one row of a surface to the next."""


class Session:
    """Session of a GPU's optical flow engine for images of one `Kind`, with its surfaces and streams. Owned by
    `_CachedSessions`; one thread at a time uses it."""

    def __init__(self, library: Library, index: int, context: int, kind: Kind) -> None:
        """Create a session on GPU ``index``, whose CUDA context ``context`` is current. Raises NoEngineError."""
        self.kind, self._index = kind, index
        self._library, self._buffers = library, list[int]()
        self._handle, self._begun = _create(library, context), False
        self._streams = borrow_stream(index), borrow_stream(index)
        """CUDA streams for copying images to the surfaces, and for copying vectors from them."""
        self._works = [driver_calls.Work(stream.ptr) for stream in self._streams]
        self._half = 0
        """Half of the surfaces (0 or 1) that the next turn uses, while the engine works on the other half."""
        self._free: list[Any] = [None, None]
        """For each half of the surfaces, a CUDA event that completes when its vectors are copied, so that the half can
        be used again. None before the first use."""
        try:
            pictures, vectors = (stream.ptr for stream in self._streams)
            self._check(library.call("set_streams", self._handle, pictures, vectors), "nvOFSetIOCudaStreams")
            self._check(library.call("init", self._handle, _init(kind).ctypes.data), "nvOFInit")
            self._begun = True
            size, pairs, form = (kind.height, kind.width), 2 * kind.pairs, _GRAY if kind.gray else _COLORS
            self._pictures = self._surfaces(2 * pairs, size, _INPUT, form)
            self._vectors = self._surfaces(pairs, kind.cells(kind.grid), _OUTPUT, _VECTORS)
            self._hints = (
                self._surfaces(pairs, kind.cells(kind.hint_grid), _HINT, _VECTORS) if kind.hint_grid else self._vectors
            )
        except NoEngineError:
            self.close()
            raise

    def _surfaces(self, count: int, size: tuple[int, int], usage: int, form: int) -> _Surfaces:
        wanted, strides, handle = np.zeros(1, DESCRIPTOR), np.zeros(1, STRIDES), ctypes.c_void_p()
        wanted["height"], wanted["width"] = size
        wanted["usage"], wanted["format"] = usage, form
        handles, addresses, pitches = np.zeros(count, np.uint64), np.zeros(count, np.int64), set()
        call, at = self._library.call, wanted.ctypes.data
        for k in range(count):
            status = call("create_buffer", self._handle, at, _DEVICE_POINTER, ctypes.byref(handle))
            self._check(status, "nvOFCreateGPUBufferCuda")
            self._buffers.append(handle.value or 0)
            self._check(call("strides_of", handle, strides.ctypes.data), "nvOFGPUBufferGetStrideInfo")
            handles[k], addresses[k] = self._buffers[-1], call("address_of", handle)
            pitches.add(int(strides["bytes"][0, 0, 0]))
        if len(pitches) > 1 or not addresses.all():
            raise NoEngineError("its surfaces are of several kinds, or none")
        return _Surfaces(handles, addresses, pitches.pop())

    def _check(self, status: int, operation: str) -> None:
        self._library.check(status, operation, self._handle)

    def find(self, lane: Lane, pairs: Pairs, *, temporal: bool, red: int) -> None:
        """Compute the optical flow of ``pairs`` (image pairs) with this session; see the function `find`."""
        plan = _Plan(pairs, self.kind.pairs, self._half)
        tables = [
            np.column_stack((plan.sources, self._pictures.addresses[plan.surfaces])),
            np.column_stack((self._vectors.addresses[plan.places], pairs.vectors)),
        ]
        inputs, outputs = np.zeros(len(pairs), INPUT), np.zeros(len(pairs), OUTPUT)
        inputs["picture"] = self._pictures.handles[plan.pictures]
        inputs["reference"] = self._pictures.handles[plan.pictures - 1]
        inputs["anew"] = pairs.begins | (not temporal)
        outputs["vectors"] = self._vectors.handles[plan.places]
        if pairs.hints is not None:
            tables.append(np.column_stack((pairs.hints, self._hints.addresses[plan.places])))
            inputs["hints"] = self._hints.handles[plan.places]
        there = lane.upload(*tables)
        pictures, vectors, *hints = map(lane.address, there)
        (before, after), kind = self._streams, self.kind
        before.wait_event(lane.stream.record())
        try:
            for first, last, low, high in plan.turns:
                if self._free[self._half] is not None:
                    before.wait_event(self._free[self._half])
                if kind.gray:
                    self._copy(lane, 0, "flow_gray", pictures, first, last, self._pictures, 1)
                else:
                    self._copy(lane, 0, "flow_colors", pictures, first, last, self._pictures, 1, red)
                for table in hints:
                    self._copy(lane, 0, "flow_hints", table, low, high, self._hints, kind.hint_grid)
                self._execute(inputs[low:high], outputs[low:high])
                self._copy(lane, 1, "flow_vectors", vectors, low, high, self._vectors, kind.grid)
                self._works[1].submit()
                self._free[self._half] = after.record()
                self._half = 1 - self._half
        finally:  # the kernels use memory of the lane
            lane.after(before.record())
            lane.after(after.record())

    def _copy(
        self, lane: Lane, stream: int, kernel: str, table: int, low: int, high: int, surfaces: _Surfaces, side: int,
        *more: int,
    ) -> None:  # fmt: skip
        """Launch a copy kernel of flow.cu on one of the two streams. Rows ``low`` to ``high`` of the device array
        ``table`` list what to copy."""
        height, width = self.kind.cells(side)
        blocks = (high - low) * -(-height * width // _BLOCK)
        handle = lane.handle("flow.cu", kernel)
        self._works[stream].launch(handle, blocks, _BLOCK, table + 16 * low, height, width, surfaces.pitch, *more)

    def _execute(self, inputs: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> None:
        """Enqueue the search for the vectors of several image pairs, in one call without the GIL. The call returns when
        the engine's queue has space."""
        rows = np.empty((len(inputs), 3), np.int64)
        rows[:, 0] = self._handle.value or 0
        rows[:, 1] = inputs.ctypes.data + np.arange(len(inputs)) * INPUT.itemsize
        rows[:, 2] = outputs.ctypes.data + np.arange(len(outputs)) * OUTPUT.itemsize
        self._check(self._works[0].calls(self._library.execute, rows), "nvOFExecute")

    def close(self) -> None:
        """Wait for the session's work, and free its surfaces and streams."""
        for stream in self._streams:
            stream.synchronize()
        for buffer in self._buffers:
            self._library.call("destroy_buffer", buffer)
        _destroy(self._library, self._handle, begun=self._begun)
        for stream in self._streams:
            return_stream(self._index, stream)


class _Plan:
    """Order in which a session processes image pairs: in turns of up to ``room`` pairs, alternately in the two halves
    of the surfaces, beginning with ``half``. Within a turn, an image that belongs to two consecutive pairs is copied
    only once."""

    def __init__(self, pairs: Pairs, room: int, half: int) -> None:
        n = len(pairs)
        number = np.arange(n)
        turn, place = number // room, number % room
        half_of = (turn + half) % 2
        new = np.ones(n, np.bool_)
        """Mask of the pairs whose reference image must be copied, because it is not the previous pair's image."""
        new[1:] = pairs.references[1:] != pairs.pictures[:-1]
        new |= place == 0
        ends = np.cumsum(1 + new)
        """Number of image copies up to and including each pair."""
        begin = (ends - 1 - new)[number - place]
        """Number of image copies before each pair's turn."""
        self.places: I64 = half_of * room + place
        """Index of the surface (buffer of the driver) for each pair's vectors."""
        self.pictures: I64 = half_of * 2 * room + ends - 1 - begin
        """Index of the surface (image buffer of the driver) for each pair's image; the reference image is in the
        surface before."""
        self.sources, self.surfaces = np.zeros((2, int(ends[-1])), np.int64)
        """Address of the image of each copy, and index of the surface (image buffer of the driver) to copy it to."""
        self.sources[ends - 1], self.surfaces[ends - 1] = pairs.pictures, self.pictures
        self.sources[ends[new] - 2], self.surfaces[ends[new] - 2] = pairs.references[new], self.pictures[new] - 1
        lows = np.arange(0, n, room)
        highs = np.minimum(lows + room, n)
        self.turns = np.column_stack((begin[lows], ends[highs - 1], lows, highs)).tolist()
        """Turns, each as four numbers: begin and end of its image copies, begin and end of its pairs."""


# -- cached sessions -------------------------------------------------------------------------------------------------


class _CachedSessions:
    """Cached sessions of one GPU, for all threads of the process: the GPU has one engine, whose queue is in the
    driver."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._sessions = OrderedDict[Kind, Session]()

    @contextmanager
    def borrowed(self, context: int, kind: Kind) -> Iterator[Session]:
        """Context manager: provide the session of ``kind`` for exclusive use by the calling thread. Raises
        NoEngineError."""
        with self._lock:
            session = self._sessions.pop(kind, None)
            if session is None:
                while len(self._sessions) >= _MAX_SESSIONS:
                    self._sessions.popitem(last=False)[1].close()
                session = Session(library(), self._index, context, kind)
            try:
                yield session
            except BaseException:  # the state of the session's queue is unknown
                with suppress(Exception):  # the first error is the one to raise
                    session.close()
                raise
            self._sessions[kind] = session

    def release(self) -> None:
        """Destroy all cached sessions, to free their memory. Waits for threads that use them."""
        with self._lock, OnGpu(self._index):
            while self._sessions:
                self._sessions.popitem()[1].close()


_kept: dict[int, _CachedSessions] = {}
"""Idle sessions of the flow engine, by GPU, for reuse by any lane: creating one takes tenths of a second."""


def forget() -> None:
    """Destroy all cached sessions, and drop what is cached about libraries and engines."""
    for index in list(_kept):
        _kept.pop(index).release()
    _engine_or_reason.cache_clear()
    _loaded.cache_clear()


# -- batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of consecutive images whose optical flow is computed, as device addresses, in the order of their
    sequences."""

    pictures: I64
    """Address of each pair's image, for whose cells vectors are computed."""
    references: I64
    """Address of each pair's reference image, usually the previous frame, in which the cells are searched."""
    begins: npt.NDArray[np.bool_]
    """Whether each pair is the first of its sequence."""
    vectors: I64
    """Addresses to which the results are written: float32 [rows, columns, 2] per pair, in pixels."""
    hints: I64 | None = None
    """Addresses of the vectors with which each pair's search begins; None without hints."""

    def __len__(self) -> int:
        return len(self.pictures)


def find(lane: Lane, kind: Kind, pairs: Pairs, *, temporal: bool, red: int = 0) -> None:
    """Enqueue the computation of the vectors of ``pairs`` on the GPU's engine; later work of ``lane``, a CUDA stream,
    waits for it. ``temporal``: begin each search with the previous pair's vectors, within a sequence. ``red``: index of
    the red channel, 0 or 2. Raises NoEngineError."""
    context = lane.context
    engine(lane.index, context).check(kind)
    kept = _kept.setdefault(lane.index, _CachedSessions(lane.index))
    lane.cache["optical flow engine"] = kept  # `release` is called if memory is short
    with kept.borrowed(context, kind) as session:
        session.find(lane, pairs, temporal=temporal, red=red)
