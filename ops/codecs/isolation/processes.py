"""Isolation: decoders run in processes of their own, so that one that crashes or hangs on a file costs that file.

    this process      -- sockets -->  keeper (one thread, decodes nothing)  -- forks -->  workers (an image at a time)
        `------- requests and answers by a socket, bytes and pixels in shared memory, for each worker ---------'

A request may be for several small images, because waking another process costs as much as decoding a small one. A
worker that dies is replaced, and the image that it held is tried once more in a fresh one: what fails there, too, is
the file's fault. Nothing is started before an image needs it. The memory files have no names, and every process ends
when the one above it does, however that ends, so nothing is ever left behind.
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
"""Which decoders run in workers. ``auto``: those of all formats but JPEG, for what our own decoders leave; ``all``:
JPEG's, too, and for all files."""
TIMEOUT = 30.0
"""Seconds of CPU time for an image, by default: ten times what the largest allowed image takes."""
PATIENCE = 10
"""Times the timeout that an image may take by the clock: on a busy machine, or asleep."""

TOGETHER = 8
"""Images of a request, at most: each costs an eighth of the waking then, and few are tried again for a crash."""
_TOGETHER_BYTES = 6 << 20
"""Of the pixels of several images, four a pixel: they are in memory together."""
HEAD = 4096
"""Bytes at the beginning of a worker's memory file, which say the number of the image that it holds."""
_KEPT = 32 << 20
"""Bytes that a worker's memory file may keep between images."""
_ENOUGH = 100_000
"""Images after which a worker makes room for a fresh one: decoders lose some 20 bytes for a damaged file."""
_ANSWER = 1 << 16
_FIELDS = attrgetter(*(field.name for field in dataclasses.fields(Header)))
_KEEPERS = 10
"""Keepers that may be killed in a row before a job gives up: an OOM killer may take several."""
_PROGRAM = f"""
import json, sys
fd, jpeg, sys.path[:] = json.loads(sys.argv[1])
from {__package__}.worker import keep
keep(fd, jpeg)
"""


def isolated(mode: Mode, timeout: float, told: Callable[[str], object] = lambda _: None) -> Isolation | None:
    """An `Isolation`, or None where every decoder is to run in this process."""
    return None if mode == "none" else Isolation(mode == "all", timeout, told)


class Isolation:
    """Decodes in worker processes, as many as threads ask at the same time. Close it, or use it as context manager."""

    def __init__(
        self, jpeg: bool = False, timeout: float = TIMEOUT, told: Callable[[str], object] = lambda _: None
    ) -> None:
        """``timeout``: seconds of CPU time for an image. ``told`` is called with the reason when a worker is
        replaced."""
        self.jpeg = jpeg
        """JPEGs are decoded in workers, too."""
        self.timeout = timeout
        self._told = told
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()
        self._keeper: _Keeper | None = None
        self._closed = False

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes at once, also those that decode; callers that wait for them get a JobError."""
        with self._lock:
            self._closed = True
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        self._end_idle()

    def _end_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    @property
    def pids(self) -> list[int]:
        """The keeper's, where it runs."""
        return [] if self._keeper is None else [self._keeper.process.pid]

    # -- decoders -----------------------------------------------------------------------------------------------

    def decode(self, data: memoryview, header: Header, adjust_orientation: bool, max_pixels: int) -> Pixels:
        """As `pillow.decode`. Raises SampleError."""

        def copied(pixels: Pixels) -> Pixels:
            return pixels.copy()

        return self.lend(data, header, adjust_orientation, max_pixels, copied)

    def lend(
        self, data: memoryview, header: Header, adjust_orientation: bool, max_pixels: int, use: Callable[[Pixels], T],
        lenient: bool = False,
    ) -> T:  # fmt: skip
        """The result of ``use`` on the decoded pixels, which are valid only until it returns: they are in the worker's
        memory. Raises SampleError."""
        request = self._image(data, header, adjust_orientation, max_pixels, lenient)

        def take(worker: _Worker, answer: Mapping[str, Any]) -> T:
            return use(worker.view(answer))

        made: T = self._run(header.format, data, request, take)
        return made

    def lend_several(
        self, files: Sequence[tuple[memoryview, Header]], adjust_orientation: bool, max_pixels: int,
        use: Callable[[int, Pixels], T],
    ) -> list[T | SampleError]:  # fmt: skip
        """`lend` for all ``files``, small ones several at a time: the results of ``use`` on a number and its pixels, or
        the errors."""
        results: list[T | SampleError] = []
        while len(results) < len(files):
            first, count, room = len(results), 0, 0
            for _, header in files[first : first + TOGETHER]:
                room += 4 * header.width * header.height
                if count and room > _TOGETHER_BYTES:
                    break
                count += 1
            results += self._several(files, first, first + count, adjust_orientation, max_pixels, use)
        return results

    def _several(
        self, files: Sequence[tuple[memoryview, Header]], first: int, end: int, adjust: bool, max_pixels: int,
        use: Callable[[int, Pixels], T],
    ) -> list[T | SampleError]:  # fmt: skip
        """One request for files ``first`` to before ``end``; where the worker dies, one for each."""
        asked = files[first:end]
        requests = [self._image(data, header, adjust, max_pixels, False) for data, header in asked]
        held = -1
        if len(asked) > 1:
            worker = self._worker(fresh=False)
            with self._given_back(worker) as asking:
                answers = asking.ask([data for data, _ in asked], requests)
                if not isinstance(answers, Mapping):
                    return [self._used(asking, answer, partial(use, first + k)) for k, answer in enumerate(answers)]
                held = -1 if answers.get("keeper") else asking.held()
            self._told_of(answers)
        results: list[T | SampleError] = []
        for k, ((data, header), request) in enumerate(zip(asked, requests, strict=True)):

            def take(worker: _Worker, answer: Mapping[str, Any], k: int = k) -> T:
                return use(first + k, worker.view(answer))

            try:
                results.append(self._run(header.format, data, request, take, int(k == held)))
            except SampleError as e:
                results.append(e.bare())
        return results

    def _used(self, worker: _Worker, answer: Mapping[str, Any], use: Callable[[Pixels], T]) -> T | SampleError:
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
        """As `jpeg_cpu.decode_into`. Raises SampleError."""
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
        """``attempts``: how often the image was tried before."""
        code, lost, fresh = 0, 0, attempts > 0
        while attempts < 2 and lost < _KEEPERS:
            worker = self._worker(fresh)
            with self._given_back(worker) as asking:
                answers = asking.ask([data], [request])
                if not isinstance(answers, Mapping):
                    (answer,) = answers
                    if "error" in answer:
                        raise SampleError(*answer["error"])
                    return take(asking, answer)
            if self._closed:
                break
            fresh, code = True, answers["died"]
            if answers.get("keeper"):  # it was killed, and its workers with it: that is not the image's doing
                lost += 1
            else:
                attempts += 1
            self._told_of(answers)
        if self._closed:
            raise JobError("the run was stopped")
        reject, text = _how(code, self.timeout)
        raise SampleError(reject, f"the {format} decoder {text} on it, again in a process of its own")

    def _told_of(self, died: Mapping[str, Any]) -> None:
        if self._closed:
            raise JobError("the run was stopped")
        self._told(f"decoder process replaced: {_how(died['died'], self.timeout)[1]}")

    @contextlib.contextmanager
    def _given_back(self, worker: _Worker) -> Iterator[_Worker]:
        """``worker``, which then rests for the next image, unless it died or could not be asked."""
        try:
            yield worker
        finally:
            if not worker.answered:  # no memory for the bytes, say
                worker.close()
            elif worker.rest():
                self._idle.append(worker)
                if self._closed:  # meanwhile
                    self._end_idle()

    # -- processes ----------------------------------------------------------------------------------------------

    def _worker(self, fresh: bool) -> _Worker:
        if not fresh:
            with contextlib.suppress(IndexError):
                return self._idle.pop()
        why = ""
        with self._lock:
            for k in range(_KEEPERS):
                if self._closed:
                    raise JobError("the run was stopped")
                try:
                    if self._keeper is None:
                        self._keeper = _Keeper(self.jpeg)
                    return self._keeper.worker()
                except OSError as e:  # it was killed, perhaps before it was up; another one will do
                    why = str(e)
                    if self._keeper is not None:
                        self._keeper.close()
                    self._keeper = None
                    time.sleep(min(0.01 * 2**k, 1.0))  # what kills them, short of memory, say, may pass
        lost = f"{_KEEPERS} of them in a row were killed, or could not be made ({why})"
        raise JobError(_cannot_start(f"{lost}; is there memory for them?"))


def _how(code: int, timeout: float) -> tuple[RejectCode, str]:
    """How a process ended, by its exit code (-N: signal N), as a code and words."""
    if code == -signal.SIGPROF:
        return "decoder_timeout", f"took more than {timeout:g} s of CPU time"
    if code == -signal.SIGALRM:
        return "decoder_timeout", f"did not end within {timeout * PATIENCE:g} s"
    try:
        return "decoder_crashed", f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return "decoder_crashed", f"crashed (exit code {code})"


class _Keeper:
    """The process that forks workers. It holds the decoders' libraries, has one thread and decodes nothing."""

    def __init__(self, jpeg: bool) -> None:
        """Starts it. Raises JobError with what it printed where it does not come up."""
        with contextlib.ExitStack() as undo:
            self._control = self._started(jpeg, undo)
            undo.pop_all()

    def _started(self, jpeg: bool, undo: contextlib.ExitStack) -> socket.socket:
        """Our end of its socket, once it is up. ``undo`` ends what was begun."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(here.close)
        argument = json.dumps([there.fileno(), jpeg, [str(p) for p in sys.path]])
        with there, tempfile.TemporaryFile() as printed:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, argument],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=printed, pass_fds=[there.fileno()],
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process that forks must have no threads
                    start_new_session=True,  # Ctrl-C is for us; we end it
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
        """A new worker. Raises OSError where the keeper is gone."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, contextlib.ExitStack() as undo:
            undo.callback(here.close)
            file = Descriptor(os.memfd_create("dali-run decoder", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            # A worker gone astray must not take away what this process has mapped: to touch that would end it.
            fcntl.fcntl(file.number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            socket.send_fds(self._control, [b"fork"], [there.fileno(), file.number])
            undo.pop_all()
        return _Worker(here, file)

    def close(self) -> None:
        """End it and its workers."""
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
    """One process that decodes, from outside."""

    def __init__(self, channel: socket.socket, file: Descriptor) -> None:
        self._channel, self._memory, self._file = channel, file, file.number
        self._map: mmap.mmap | None = None
        self._images = 0
        self.answered = False
        """The last request, by an answer: the worker may have another."""

    def ask(
        self, files: Sequence[memoryview], requests: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]] | Mapping[str, Any]:
        """For each request an answer: ``shape`` and ``dtype`` of the pixels that `view` gives, or ``error``. Or that it
        ``died``, with the exit code."""
        self.answered = False
        self._images += len(files)
        at, message = HEAD, []
        for data, request in zip(files, requests, strict=True):
            try:
                _write(self._file, data, at)
            except OSError:  # the bytes are of a mapped file that was cut short: touched here, they become zeros
                _write(self._file, memoryview(bytes(data)), at)
            message.append({**request, "start": at})
            at += -(-len(data) // 64) * 64
        with contextlib.suppress(OSError):  # it is dead: the answer says how
            self._channel.send(json.dumps(message).encode())
        answer = _receive(self._channel)
        # without the keeper's word, both were killed
        gone = {"died": -int(signal.SIGKILL), "keeper": True}
        found: list[Mapping[str, Any]] | Mapping[str, Any] = json.loads(answer) if answer else gone
        self.answered = isinstance(found, list)
        return found

    def held(self) -> int:
        """The number of the image that it has begun last."""
        return int.from_bytes(os.pread(self._file, 8, 0), "little")

    def view(self, answer: Mapping[str, Any]) -> Pixels:
        """The pixels of an answer, in the worker's memory; for use before `rest`. Raises SampleError."""
        shape, dtype, at = answer["shape"], np.dtype(answer["dtype"]), answer["at"]
        end = at + math.prod(shape) * dtype.itemsize
        if self._map is None or len(self._map) < end:
            size = os.fstat(self._file).st_size
            if size < end:
                raise SampleError("decoder_crashed", "the decoder's process gave fewer pixels than it promised")
            self._map = mmap.mmap(self._file, size, prot=mmap.PROT_READ)
        return np.ndarray(shape, dtype, self._map, at)

    def rest(self) -> bool:
        """Give back memory that few images need. False where it has done enough and ended."""
        if self._images >= _ENOUGH:
            self.close()
            return False
        if self._map is not None and len(self._map) > _KEPT:
            self._map.madvise(mmap.MADV_REMOVE)
        return True

    def close(self) -> None:
        """Let it end."""
        _hang_up(self._channel)
        self._memory.close()
        self._map = None  # it goes with the last view


def _write(file: int, data: memoryview, start: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(file, data[at:], start + at)


def _hang_up(channel: socket.socket) -> None:
    """The other side sees the end, even if others have inherited our end (processes that were forked from this one)."""
    with contextlib.suppress(OSError):  # it is gone already
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()


def _receive(channel: socket.socket) -> bytes:
    """The next message; nothing where the other side is gone."""
    try:
        return channel.recv(_ANSWER)
    except ConnectionError:
        return b""
