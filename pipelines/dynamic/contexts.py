"""EvalContext, EvalMode and ThreadPool: the resources with which operators of the dynamic mode run, and when they
run."""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ...ops.errors import ArgumentValueError
from ...ops.gpu.lane import Lane, gpu_count
from ..cores import usable_cores
from .checkpoint import Checkpoint
from .devices import Device, Stream, get_current_stream, stream

T = TypeVar("T")


class EvalMode(enum.Enum):
    """Time at which calls of operators run. Each member is a context manager that sets the mode in its body: ``with
    EvalMode.deferred:``."""

    deferred = 1
    """Operators run when a result is read for the first time; results that are never read are not computed. Inputs are
    checked at the call."""
    eager = 2
    """Operators run at the call. On a GPU the call does not wait for the result."""
    sync_cpu = 3
    """Operators run at the call, as in eager mode. On the CPU a call returns when its work is done."""
    sync_full = 4
    """Operators run at the call, which also waits for the GPU."""
    default = 2  # noqa: PIE796 # another name of eager, as in DALI

    def __enter__(self) -> EvalMode:
        _local.modes.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _local.modes.pop()

    @staticmethod
    def current() -> EvalMode:
        """Return the mode that is set in this thread."""
        return _local.modes[-1]


class _Local(threading.local):
    def __init__(self) -> None:
        self.modes: list[EvalMode] = [EvalMode.eager]
        self.contexts: list[EvalContext] = []
        self.default: EvalContext | None = None


_local = _Local()
_threads: int | None = None
"""Value of `set_num_threads`, which DALI defines for the whole process; None if it was not called."""


def get_num_threads() -> int:
    """Return the number of threads of pools created without a number: the value of `set_num_threads`, else
    DALI_NUM_THREADS, else the number of usable cores."""
    if _threads is not None:
        return _threads
    value = os.environ.get("DALI_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else usable_cores()


def set_num_threads(num_threads: int | None) -> None:
    """Set the default number of threads of pools created from now on; None restores the initial default. Raises
    ValueError."""
    global _threads
    if num_threads is not None:
        limit = 100 * usable_cores()
        if num_threads <= 0:
            raise ArgumentValueError(f"the number of threads must be positive, got {num_threads}")
        if num_threads > limit:
            raise ArgumentValueError(f"the number of threads must be at most {limit}, got {num_threads}")
    _threads = num_threads


class ThreadPool:
    """Threads that divide the work of one call between them. Created by the program or by an `EvalContext`; they start
    at the first use."""

    def __init__(self, num_threads: int | None = None, *, device_id: int | None = -1) -> None:
        """Create a pool; without a number it has `get_num_threads` threads. Raises ValueError for a number below 1."""
        count = get_num_threads() if num_threads is None else num_threads
        if count < 1:
            raise ArgumentValueError(f"the number of threads must be positive, got {count}")
        self._count = count
        self._device_id = (0 if gpu_count() else None) if device_id == -1 else device_id
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_threads(self) -> int:
        """Number of threads in the pool."""
        return self._count

    @property
    def device_id(self) -> int | None:
        """Number of the GPU that the pool belongs to; None if it belongs to none."""
        return self._device_id

    def submit(self, work: Callable[..., T], *args: Any) -> Any:
        """Run ``work(*args)`` in a thread of the pool, and return a Future."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="dali-run dynamic")
        return self._pool.submit(work, *args)

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Return ``[work(item) for item in items]``, computed by the threads of the pool; the calling thread computes
        the first one."""
        others = [self.submit(work, item) for item in items[1:]]
        first = work(items[0])
        return [first, *(f.result() for f in others)]


def _close(lanes: dict[int, Lane]) -> None:
    """Close the GPU lanes (CUDA streams and their memory) that no context uses any more. Errors of a failed GPU are
    ignored here, because calls on that GPU report them."""
    for lane in lanes.values():
        with contextlib.suppress(Exception):
            lane.close()
    lanes.clear()


class EvalContext:
    """The resources with which operators run: a pool of threads, a GPU and its CUDA stream. ``with context:`` sets them
    for its body, in one thread."""

    def __init__(
        self,
        *,
        num_threads: int | None = None,
        device_id: int | None = None,
        cuda_stream: Any = None,
        thread_pool: ThreadPool | None = None,
    ) -> None:
        """All arguments are optional: missing resources are created when they are first needed. Raises ValueError if
        both a pool and a number of threads are given."""
        if num_threads is not None and thread_pool is not None:
            raise ArgumentValueError("thread_pool and num_threads exclude each other")
        self._device = None if device_id is None else Device("gpu", device_id)
        self._stream = stream(stream=cuda_stream)
        self._own = thread_pool if num_threads is None else ThreadPool(num_threads, device_id=device_id)
        self._shared: ThreadPool | None = None
        self._lanes: dict[int, Lane] = {}
        weakref.finalize(self, _close, self._lanes).atexit = False  # at exit, CUDA can no longer be called
        self._pending: weakref.WeakSet[Any] = weakref.WeakSet()
        self._checkpoint: Checkpoint | None = None

    @staticmethod
    def current() -> EvalContext:
        """Return the context of this thread's innermost ``with``, or its default context outside of any."""
        return _local.contexts[-1] if _local.contexts else EvalContext.default()

    @staticmethod
    def default() -> EvalContext:
        """Return this thread's default context, created at the first call."""
        if _local.default is None:
            _local.default = EvalContext()
        return _local.default

    @property
    def thread_pool(self) -> ThreadPool:
        """The pool of threads: the given pool, or a new one with `get_num_threads` threads."""
        if self._own is not None:
            return self._own
        if self._shared is None or self._shared.num_threads != get_num_threads():
            self._shared = ThreadPool(device_id=self.device_id)
        return self._shared

    @property
    def num_threads(self) -> int:
        """Number of threads in the pool."""
        return self.thread_pool.num_threads

    @property
    def device_id(self) -> int | None:
        """Number of the context's GPU; None on a machine without one."""
        if self._device is not None:
            return self._device.device_id
        return Device.default_device_id("gpu") if gpu_count() else None

    @property
    def cuda_stream(self) -> Stream | None:
        """The CUDA stream that the program has set for GPU operators; None if the context creates its own, or without a
        GPU."""
        return self._stream or get_current_stream()

    def lane(self, device_id: int | None = None) -> Lane:
        """Return the lane (CUDA stream with its memory) of GPU ``device_id``, or of the context's GPU for None. The
        first call opens it. Raises DeviceError without a GPU."""
        number = Device("gpu", self.device_id if device_id is None else device_id).device_id or 0
        if number not in self._lanes:
            self._lanes[number] = Lane(number)
        return self._lanes[number]

    @property
    def checkpoint(self) -> Checkpoint:
        """The context's checkpoint, with which the program can register readers and random generators."""
        if self._checkpoint is None:
            self._checkpoint = Checkpoint()
        return self._checkpoint

    def wait_for(self, pending: Any) -> None:
        """Store a deferred call, so that `evaluate_all` runs it."""
        self._pending.add(pending)

    def evaluate_all(self) -> None:
        """Run all deferred calls of this context."""
        for call in list(self._pending):
            call.results()
        self._pending.clear()

    def cached_results(self, invocation: Any) -> None:
        """Return None, because results are not cached. The method exists for compatibility with DALI."""

    def cache_results(self, invocation: Any, results: Any) -> None:
        """Do nothing, because results are not cached. The method exists for compatibility with DALI."""

    def __enter__(self) -> EvalContext:
        _local.contexts.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.evaluate_all()
        _local.contexts.pop()


def current_checkpoint() -> Checkpoint:
    """Return the checkpoint of the current `EvalContext`."""
    return EvalContext.current().checkpoint
