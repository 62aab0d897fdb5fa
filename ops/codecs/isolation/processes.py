"""Isolation: decoders run in separate processes, so that a crash or hang affects only the file that caused it.

    this process    -- sockets -->  fork server (one thread, decodes nothing)  -- forks -->  workers (one image each)
        `------- per worker: requests and answers over a socket, bytes and pixels in shared memory -------'

A request may contain several small images, because waking another process costs as much as decoding a small one. A
worker that dies is replaced, and the image that it was decoding is retried once in a new one: if it fails there too,
the file is at fault. Nothing is started before an image needs it. The memory files have no names, and every process
ends when its parent does, for whatever reason, so nothing is ever left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np

from ...errors import JobError, RejectCode, SampleError
from ...storage.descriptors import Descriptor
from ...types import DALIImageType
from ..format import Header
from ..pixels import Pixels

T = TypeVar("T")
Mode = Literal["auto", "all", "none"]
"""Choice of the decoders that run in worker processes. ``auto``: decoders of all formats but JPEG, for files that
built-in decoders do not support; ``all``: every decoder, for all files; ``none``: no decoder."""
TIMEOUT = 30.0
"""Default limit on the CPU seconds for decoding one image: ten times what the largest allowed image takes."""
PATIENCE = 10
"""Limit on the elapsed time for decoding one image, as a multiple of the limit on CPU time: the machine may be busy, or
asleep."""

MAX_IMAGES_PER_REQUEST = 8
"""Maximum number of images per request to a worker process. With 8, each image bears an eighth of the cost of waking
the worker, and after a crash few images are decoded again."""
_MAX_REQUEST_BYTES = 6 << 20
"""Maximum bytes of pixels per request with several images, at four bytes per pixel. All pixels of a request are in
memory at the same time."""
HEAD = 4096
"""Size in bytes of the head of the memory file shared with a worker. It contains the number of the image that is being
decoded."""
_MAX_CACHED = 32 << 20
"""Maximum bytes of the shared memory file that a worker keeps between images."""
_MAX_IMAGES = 100_000
"""Number of images after which a worker process is replaced, because decoders leak some 20 bytes per damaged file."""
_ANSWER = 1 << 16
_FIELDS = attrgetter(*(field.name for field in dataclasses.fields(Header)))
_MAX_SERVERS = 10
"""Number of consecutive fork servers that may be killed before a job fails. An OOM killer may kill several."""
_PROGRAM = f"""
import json, sys
fd, jpeg, sys.path[:] = json.loads(sys.argv[1])
from {__package__}.worker import serve
serve(fd, jpeg)
"""


def isolated(mode: Mode, timeout: float, report: Callable[[str], object] = lambda _: None) -> Isolation | None:
    """Return an `Isolation`, which decodes images in worker processes; None if ``mode`` says that every decoder runs in
    this process."""
    return None if mode == "none" else Isolation(mode == "all", timeout, report)


class Isolation:
    """Decodes images in worker processes, one per thread that decodes at the same time. Owned by a run's `Services`,
    which closes it; any thread may use it. Also a context manager."""

    def __init__(
        self, jpeg: bool = False, timeout: float = TIMEOUT, report: Callable[[str], object] = lambda _: None
    ) -> None:
        """``timeout``: limit on the CPU seconds per image. ``report``: called with the reason when a worker process is
        replaced."""
        self.jpeg = jpeg
        """Whether JPEGs are also decoded in worker processes."""
        self.timeout = timeout
        self._report = report
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()
        self._server: _ForkServer | None = None
        self._closed = False

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all worker processes immediately, even while they decode. Callers that wait for them get a JobError."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        if server is not None:
            server.close()
        self._end_idle()

    def _end_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    @property
    def pids(self) -> list[int]:
        """Return the process id of the fork server in a list; an empty list if it does not run."""
        return [] if self._server is None else [self._server.process.pid]

    # -- decoders -----------------------------------------------------------------------------------------------

    def decode(self, data: memoryview, header: Header, adjust_orientation: bool, max_pixels: int) -> Pixels:
        """Decode an image like `pillow.decode`, in a worker process. Raises SampleError."""

        def copied(pixels: Pixels) -> Pixels:
            return pixels.copy()

        return self.lend(data, header, adjust_orientation, max_pixels, copied)

    def lend(
        self, data: memoryview, header: Header, adjust_orientation: bool, max_pixels: int, use: Callable[[Pixels], T],
        lenient: bool = False,
    ) -> T:  # fmt: skip
        """Decode an image in a worker process, call ``use`` on its pixels, and return the result of ``use``. The pixels
        are in the worker's memory: they are valid only until ``use`` returns. Raises SampleError."""
        request = self._image(data, header, adjust_orientation, max_pixels, lenient)

        def take(worker: _Worker, answer: Mapping[str, Any]) -> T:
            return use(worker.view(answer))

        made: T = self._run(header.format, data, request, take)
        return made

    def lend_several(
        self, files: Sequence[tuple[memoryview, Header]], adjust_orientation: bool, max_pixels: int,
        use: Callable[[int, Pixels], T],
    ) -> list[T | SampleError]:  # fmt: skip
        """Decode several files in worker processes, and call ``use`` on the index and the pixels of each, like `lend`.
        Small files share a request. Return for each file the result of ``use``, or its error."""
        results: list[T | SampleError] = []
        while len(results) < len(files):
            first, count, room = len(results), 0, 0
            for _, header in files[first : first + MAX_IMAGES_PER_REQUEST]:
                room += 4 * header.width * header.height
                if count and room > _MAX_REQUEST_BYTES:
                    break
                count += 1
            results += self._several(files, first, first + count, adjust_orientation, max_pixels, use)
        return results

    def _several(
        self, files: Sequence[tuple[memoryview, Header]], first: int, end: int, adjust: bool, max_pixels: int,
        use: Callable[[int, Pixels], T],
    ) -> list[T | SampleError]:  # fmt: skip
        """Decode the files ``first`` to ``end`` by one request to a worker process. If the worker dies, send one
        request for each file."""
        group = files[first:end]
        requests = [self._image(data, header, adjust, max_pixels, False) for data, header in group]
        current_image = -1
        if len(group) > 1:
            worker = self._worker(fresh=False)
            with self._borrowed(worker) as asking:
                answers = asking.ask([data for data, _ in group], requests)
                if not isinstance(answers, Mapping):
                    return [
                        self._result_of(asking, answer, partial(use, first + k)) for k, answer in enumerate(answers)
                    ]
                current_image = -1 if answers.get("server") else asking.current_image()
            self._report_death(answers)
        results: list[T | SampleError] = []
        for k, ((data, header), request) in enumerate(zip(group, requests, strict=True)):

            def take(worker: _Worker, answer: Mapping[str, Any], k: int = k) -> T:
                return use(first + k, worker.view(answer))

            try:
                results.append(self._run(header.format, data, request, take, int(k == current_image)))
            except SampleError as e:
                results.append(e.bare())
        return results

    def _result_of(self, worker: _Worker, answer: Mapping[str, Any], use: Callable[[Pixels], T]) -> T | SampleError:
        if "error" in answer:
            return SampleError(*answer["error"])
        try:
            return use(worker.view(answer))
        except SampleError as e:
            return e.bare()

    def _image(self, data: memoryview, header: Header, adjust: bool, max_pixels: int, lenient: bool) -> dict[str, Any]:
        return {"what": "image", "size": len(data), "timeout": self.timeout, "pixels": header.width * header.height,
                "header": _FIELDS(header), "adjust": adjust, "max_pixels": max_pixels,
                "lenient": lenient}  # fmt: skip

    def decode_into(
        self, data: memoryview, row: Any, output_type: DALIImageType, fast_idct: bool, out: memoryview,
        lenient: bool = False,
    ) -> None:  # fmt: skip
        """Decode a JPEG like `turbo.decode_into`, in a worker process. Raises SampleError."""
        fields = {name: row[name].tolist() for name in row.dtype.names}
        request = {"what": "jpeg", "size": len(data), "timeout": self.timeout,
                   "pixels": fields["width"] * fields["height"], "row": fields, "output_type": output_type.name,
                   "fast_idct": fast_idct, "lenient": lenient}  # fmt: skip

        def place(worker: _Worker, answer: Mapping[str, Any]) -> None:
            pixels = worker.view(answer).reshape(-1)
            np.frombuffer(out, np.uint8)[: len(pixels)] = pixels

        self._run("jpeg", data, request, place)

    def _run(
        self, format: str, data: memoryview, request: Mapping[str, Any],
        take: Callable[[_Worker, Mapping[str, Any]], Any], attempts: int = 0,
    ) -> Any:  # fmt: skip
        """Decode one image in a worker process. Return the result of ``take``, which is called with the worker and its
        answer. ``attempts``: number of earlier attempts to decode this image."""
        code, lost, fresh = 0, 0, attempts > 0
        while attempts < 2 and lost < _MAX_SERVERS:
            worker = self._worker(fresh)
            with self._borrowed(worker) as asking:
                answers = asking.ask([data], [request])
                if not isinstance(answers, Mapping):
                    (answer,) = answers
                    if "error" in answer:
                        raise SampleError(*answer["error"])
                    return take(asking, answer)
            if self._closed:
                break
            fresh, code = True, answers["died"]
            if answers.get("server"):  # the fork server was killed, and its workers with it: not the fault of the image
                lost += 1
            else:
                attempts += 1
            self._report_death(answers)
        if self._closed:
            raise JobError("the run was stopped")
        reject, text = _how(code, self.timeout)
        raise SampleError(reject, f"the {format} decoder {text} on it, again in a process of its own")

    def _report_death(self, died: Mapping[str, Any]) -> None:
        if self._closed:
            raise JobError("the run was stopped")
        self._report(f"decoder process replaced: {_how(died['died'], self.timeout)[1]}")

    @contextlib.contextmanager
    def _borrowed(self, worker: _Worker) -> Iterator[_Worker]:
        """Context manager: reserve ``worker`` for this thread. Afterwards other threads may use the worker, unless it
        died or did not answer."""
        try:
            yield worker
        finally:
            if not worker.answered:  # for example, there was no memory for the bytes
                worker.close()
            elif worker.recycle():
                self._idle.append(worker)
                if self._closed:  # closed meanwhile
                    self._end_idle()

    # -- processes ----------------------------------------------------------------------------------------------

    def _worker(self, fresh: bool) -> _Worker:
        if not fresh:
            with contextlib.suppress(IndexError):
                return self._idle.pop()
        why = ""
        with self._lock:
            for k in range(_MAX_SERVERS):
                if self._closed:
                    raise JobError("the run was stopped")
                try:
                    if self._server is None:
                        self._server = _ForkServer(self.jpeg)
                    return self._server.worker()
                except OSError as e:  # the fork server was killed, perhaps while it started; start another one
                    why = str(e)
                    if self._server is not None:
                        self._server.close()
                    self._server = None
                    time.sleep(min(0.01 * 2**k, 1.0))  # the cause, for example lack of memory, may pass
        lost = f"{_MAX_SERVERS} of them in a row were killed, or could not be started ({why})"
        raise JobError(_cannot_start(f"{lost}; is there memory for them?"))


def _how(code: int, timeout: float) -> tuple[RejectCode, str]:
    """Return a reject code and a text that explain how a worker process ended. ``code``: exit code, -N for signal N."""
    if code == -signal.SIGPROF:
        return "decoder_timeout", f"took more than {timeout:g} s of CPU time"
    if code == -signal.SIGALRM:
        return "decoder_timeout", f"did not end within {timeout * PATIENCE:g} s"
    try:
        return "decoder_crashed", f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return "decoder_crashed", f"crashed (exit code {code})"


class _ForkServer:
    """Fork server: a process that forks workers, as its parent sees it. It has loaded the decoders' libraries, has one
    thread, and decodes nothing itself. Owned by an `Isolation`."""

    def __init__(self, jpeg: bool) -> None:
        """Start the fork server. ``jpeg``: whether it also loads the JPEG decoder. Raises JobError with the process's
        output if it does not start."""
        with contextlib.ExitStack() as undo:
            self._control = self._started(jpeg, undo)
            undo.pop_all()

    def _started(self, jpeg: bool, undo: contextlib.ExitStack) -> socket.socket:
        """Start the fork server, and return this process's end of their socket. ``undo``: collects functions that end
        and close everything that was started."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(here.close)
        argument = json.dumps([there.fileno(), jpeg, [str(p) for p in sys.path]])
        with there, tempfile.TemporaryFile() as printed:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, argument],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=printed, pass_fds=[there.fileno()],
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process that forks must have no threads
                    start_new_session=True,  # Ctrl-C must reach this process only, which ends the fork server
                )  # fmt: skip
            except OSError as e:
                raise JobError(_cannot_start(str(e))) from None
            undo.callback(_end, self.process)
            there.close()
            if not _receive(here):
                self.process.wait()
                if self.process.returncode < 0:
                    raise ChildProcessError("killed while it started")
                printed.seek(0)
                last = printed.read().decode(errors="replace").strip().splitlines()[-1:]
                raise JobError(_cannot_start(last[0] if last else f"exit code {self.process.returncode}"))
        return here

    def worker(self) -> _Worker:
        """Fork a new worker process and return it. Raises OSError if the fork server has ended."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, contextlib.ExitStack() as undo:
            undo.callback(here.close)
            file = Descriptor(os.memfd_create("dali-run decoder", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            # A faulty worker must not shrink memory that this process has mapped: touching it would end this process.
            fcntl.fcntl(file.number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            socket.send_fds(self._control, [b"fork"], [there.fileno(), file.number])
            undo.pop_all()
        return _Worker(here, file)

    def close(self) -> None:
        """End the fork server and its workers."""
        _hang_up(self._control)
        try:
            self.process.wait(5)
        except BaseException as e:
            _end(self.process)
            if not isinstance(e, subprocess.TimeoutExpired):
                raise


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _cannot_start(why: str) -> str:
    return f"the processes for decoders cannot be started: {why}; `isolation: none` decodes without them"


class _Worker:
    """One worker process, as seen from the process that sends it images. Created by `_ForkServer.worker`; used by one
    thread at a time."""

    def __init__(self, channel: socket.socket, file: Descriptor) -> None:
        self._channel, self._memory, self._file = channel, file, file.number
        self._map: mmap.mmap | None = None
        self._images = 0
        self.answered = False
        """Whether the worker has answered the last request. If not, it gets no further request."""

    def ask(
        self, files: Sequence[memoryview], requests: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]] | Mapping[str, Any]:
        """Send ``requests`` for ``files`` to the worker, and return one answer per request: its ``error``, or ``shape``
        and ``dtype`` of the pixels for `view`. If the worker died, return one mapping with its exit code, ``died``."""
        self.answered = False
        self._images += len(files)
        at, message = HEAD, []
        for data, request in zip(files, requests, strict=True):
            try:
                _write(self._file, data, at)
            except OSError:  # the bytes are of a mapped file that was truncated: reading them here gives zeros
                _write(self._file, memoryview(bytes(data)), at)
            message.append({**request, "start": at})
            at += -(-len(data) // 64) * 64
        with contextlib.suppress(OSError):  # the worker is dead: the answer says how
            self._channel.send(json.dumps(message).encode())
        answer = _receive(self._channel)
        # if the fork server sends no answer, both were killed
        lost_server = {"died": -int(signal.SIGKILL), "server": True}
        found: list[Mapping[str, Any]] | Mapping[str, Any] = json.loads(answer) if answer else lost_server
        self.answered = isinstance(found, list)
        return found

    def current_image(self) -> int:
        """Return the index, in the last requests, of the image that the worker began to decode last."""
        return int.from_bytes(os.pread(self._file, 8, 0), "little")

    def view(self, answer: Mapping[str, Any]) -> Pixels:
        """Return the decoded pixels that ``answer`` describes. They are in the worker's memory, and valid until
        `recycle`. Raises SampleError."""
        shape, dtype, at = answer["shape"], np.dtype(answer["dtype"]), answer["at"]
        end = at + math.prod(shape) * dtype.itemsize
        if self._map is None or len(self._map) < end:
            size = os.fstat(self._file).st_size
            if size < end:
                raise SampleError("decoder_crashed", "the decoder process returned fewer pixels than announced")
            self._map = mmap.mmap(self._file, size, prot=mmap.PROT_READ)
        return np.ndarray(shape, dtype, self._map, at)

    def recycle(self) -> bool:
        """Prepare the worker for the next request, and free memory that only large images need. Return False if the
        worker has decoded its maximum number of images and was ended."""
        if self._images >= _MAX_IMAGES:
            self.close()
            return False
        if self._map is not None and len(self._map) > _MAX_CACHED:
            self._map.madvise(mmap.MADV_REMOVE)
        return True

    def close(self) -> None:
        """End the worker process."""
        _hang_up(self._channel)
        self._memory.close()
        self._map = None  # unmapped when its last view is released


def _write(file: int, data: memoryview, start: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(file, data[at:], start + at)


def _hang_up(channel: socket.socket) -> None:
    """Close a socket so that the process at its other end notices, even if forked processes have a copy of the
    socket."""
    with contextlib.suppress(OSError):  # the process at the other end has ended
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()


def _receive(channel: socket.socket) -> bytes:
    """Return the next message from the socket; empty if the other end is closed."""
    try:
        return channel.recv(_ANSWER)
    except ConnectionError:
        return b""
