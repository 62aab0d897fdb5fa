"""Programs of the decoder processes: a fork server that creates workers, and a worker's loop around the decoders.

Workers have limits that the kernel enforces, whatever the decoder does: CPU time and elapsed time per image, address
space by the image's size, no core dumps, and they end when the fork server ends. `processes` starts both.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import mmap
import os
import resource
import select
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...batch import address
from ...errors import SampleError
from ...types import DALIImageType
from ..format import Header
from ..pixels import Empty, Pixels
from .processes import HEAD, PATIENCE

_REQUEST = 1 << 16
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAX_REUSED = 32 << 20
"""Maximum bytes of freed memory that malloc keeps for reuse (glibc allows no more for its setting M_MMAP_THRESHOLD)."""
_STEP, _ALIGNED = 4 << 20, 4096
"""Number of bytes by which the shared memory grows; and alignment in bytes of the pixels in it."""
_MIN_SPACE, _SPACE_PER_PIXEL = 1 << 30, 64
"""Limit on the additional address space for decoding an image, in bytes: minimum, and bytes per pixel. This is twice
what the most demanding decoder needs (JPEG 2000: 32 bits per channel, and copies). Only a file with more data than its
header says exceeds it."""


def serve(fd: int, jpeg: bool) -> None:
    """Run the fork server, in its own process: fork a worker for each socket that the parent process sends, and report
    through the socket how the worker ended. Returns when the parent process has ended."""
    parent = os.getppid()
    control = socket.socket(fileno=fd)
    from .. import pillow as pillow_decode

    pillow_decode.load()
    _keep_memory()
    if jpeg:
        from ..jpeg import turbo as jpeg_cpu  # noqa: F401 (so that workers have it loaded)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send(b"ready")
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)  # messages of libraries about odd files are of no use
    workers: dict[int, socket.socket] = {}
    while os.getppid() == parent:  # other processes may have inherited the parent's end of the socket
        ready, _, _ = select.select([control.fileno(), woken], [], [], 1.0)
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(workers, os.WNOHANG)
        if control.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(control, 16, 2)
            if not message:
                break
            channel = socket.socket(fileno=fds[0])
            server, pid = os.getpid(), os.fork()
            if pid == 0:
                _work(server, channel, fds[1], [control, *workers.values()])
            os.close(fds[1])
            workers[pid] = channel
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    _report_ended(workers, 0)


def _keep_memory() -> None:
    """Let glibc's malloc reuse freed memory for the next image: new pages took a third of the time of decoding a
    WebP."""
    with contextlib.suppress(AttributeError):  # other C libraries lack mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _MAX_REUSED)
        mallopt(_M_MMAP_THRESHOLD, _MAX_REUSED)


def _report_ended(workers: dict[int, socket.socket], flags: int) -> None:
    """Report the exit code of each worker that has ended, through the worker's socket. ``flags``: of waitpid."""
    while workers:
        pid, status = os.waitpid(-1, flags)
        if pid == 0:
            return
        with workers.pop(pid) as channel, contextlib.suppress(OSError):
            channel.send(json.dumps({"died": os.waitstatus_to_exitcode(status)}).encode())


def _work(server: int, channel: socket.socket, file: int, others: list[socket.socket]) -> NoReturn:
    """Run a worker in the process that was just forked, until the other end of ``channel`` is closed; then end the
    process. ``others``: sockets of other workers, to be closed."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != server:  # the fork server ended before the signal was set
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            other.close()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        memory = _Memory(file)
        while message := channel.recv(_REQUEST):
            channel.send(json.dumps(_answers(json.loads(message), memory)).encode())
        os._exit(0)
    finally:
        os._exit(1)


def _answers(requests: Sequence[Mapping[str, Any]], memory: _Memory) -> list[dict[str, Any]]:
    """Decode the images of all requests in order, and return the answers. Pixels are stored in the shared memory, after
    all encoded images."""
    end = max(request["start"] + request["size"] for request in requests)
    answers = []
    for k, request in enumerate(requests):
        memory.view(HEAD)[:8] = k.to_bytes(8, "little")
        at = -(-end // _ALIGNED) * _ALIGNED
        answer, end = _answer(request, memory, at)
        answers.append(answer)
    return answers


def _answer(request: Mapping[str, Any], memory: _Memory, at: int) -> tuple[dict[str, Any], int]:
    """Decode one image to offset ``at`` of the shared memory. Return the answer, and the offset at which the pixels
    end."""
    start, size = request["start"], request["size"]
    try:
        data = memory.view(start + size)[start : start + size]
        room = _MIN_SPACE + _SPACE_PER_PIXEL * request["pixels"] + 4 * size + memory.size
        with _limits(request["timeout"], room):
            pixels = _DECODERS[request["what"]](data, request, partial(memory.bytes, at))
        place = memory.array(at, pixels.shape, pixels.dtype)
        # not decoded there, or turned afterwards
        if address(pixels) != address(place) or not pixels.flags.c_contiguous:
            place[...] = pixels
    except SampleError as e:
        return {"error": [e.code, str(e)]}, at
    except MemoryError:
        return {"error": ["too_large", "it needs more memory than an image of its size should"]}, at
    except Exception as e:  # a bug in dali-run: the engine reports the code "internal"
        return {"error": ["internal", f"{type(e).__name__}: {e}"[:1000]]}, at
    return {"shape": pixels.shape, "dtype": pixels.dtype.str, "at": at}, at + pixels.nbytes


class _Memory:
    """Memory that a worker shares with the process that sends it images."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Bytes of the shared memory that are mapped now."""
        return 0 if self._map is None else len(self._map)

    def view(self, size: int) -> memoryview:
        """Return at least the first ``size`` bytes of the shared memory, which grows if it is smaller."""
        if self._map is None or len(self._map) < size:
            size = -(-max(size, 1) // _STEP) * _STEP
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            self._map = mmap.mmap(self._file, size)
        return memoryview(self._map)

    def array(self, at: int, shape: Sequence[int], dtype: Any) -> Pixels:
        """Return an array at offset ``at`` of the shared memory."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return np.ndarray(shape, dtype, self.view(at + nbytes), at)

    def bytes(self, at: int, shape: Sequence[int]) -> Pixels:
        """Return an array of uint8 at offset ``at`` of the shared memory."""
        return self.array(at, shape, np.uint8)


def _image(data: memoryview, request: Mapping[str, Any], empty: Empty) -> Pixels:
    from ..pillow import decode

    header = Header(*request["header"])
    return decode(data, header, request["adjust"], request["max_pixels"], request["lenient"], empty)


def _jpeg(data: memoryview, request: Mapping[str, Any], empty: Empty) -> Pixels:
    from ..jpeg.turbo import decode_into, stored_channels
    from ..pixels import channels_of

    row, output_type = request["row"], DALIImageType[request["output_type"]]
    shape = (row["height"], row["width"], channels_of(output_type, stored_channels(row)))
    pixels = empty(shape)
    decode_into(data, row, output_type, request["fast_idct"], pixels.reshape(-1).data, request["lenient"])
    return pixels


_DECODERS = {"image": _image, "jpeg": _jpeg}


@cache
def _own_space() -> int:
    """Return the bytes of address space that a worker uses before it decodes an image."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def _limits(timeout: float, room: int) -> Iterator[None]:
    """Context manager: limit the CPU seconds of its body to ``timeout`` (then the system ends the process), and its
    additional address space to ``room`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (soft, hard, _own_space() + room) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    signal.setitimer(signal.ITIMER_PROF, timeout)
    signal.setitimer(signal.ITIMER_REAL, timeout * PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
