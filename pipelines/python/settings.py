"""Settings: the arguments of Pipeline, checked, and the properties that say what they are."""

from __future__ import annotations

import enum
import os
import secrets
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from ...ops.types import DALIDataType
from ..settings import checked
from ..user_warnings import warn

_said: set[str] = set()


class StreamPolicy(enum.Enum):
    """DALI's choice of CUDA streams; accepted without effect: there is one for each batch in flight."""

    SINGLE = 1
    PER_BACKEND = 2
    PER_OPERATOR = 3


class OperatorConcurrency(enum.Enum):
    """DALI's choice of what runs at the same time; accepted without effect: operators of several batches do."""

    NONE = 0
    BACKEND = 1
    FULL = 2


def say_once(name: str, why: str) -> None:
    """Warn that an argument of Pipeline means nothing here, once a process."""
    if name not in _said:
        _said.add(name)
        warn(f"Pipeline argument {name!r} has no effect: {why}")


class Settings:
    """What a pipeline was asked for."""

    def __init__(
        self,
        batch_size: int | None = None,
        num_threads: int | None = None,
        device_id: int | Sequence[int] | None = None,
        seed: int | None = None,
        exec_pipelined: bool = True,
        prefetch_queue_depth: int | Mapping[str, int] = 2,
        exec_async: bool = True,
        bytes_per_sample: int = 0,
        set_affinity: bool = False,
        max_streams: int | None = None,
        default_cuda_stream_priority: int | None = None,
        *,
        enable_memory_stats: bool = False,
        enable_checkpointing: bool = False,
        checkpoint: bytes | str | None = None,
        py_num_workers: int = 1,
        py_start_method: str = "fork",
        py_callback_pickler: Any = None,
        output_dtype: Any = None,
        output_ndim: Any = None,
        output_layout: Any = None,
        exec_dynamic: bool | None = None,
        experimental_exec_dynamic: bool | None = None,
        stream_policy: Any = None,
        concurrency: Any = None,
        on_error: str = "fail",
        **settings: Any,
    ) -> None:
        """``device_id`` may name several GPUs, which is not DALI's either: batches are dealt to them in turns, and
        come in order, the same as from one; those that stay on a GPU are on the GPU of their turn.

        ``on_error`` is not DALI's: what a sample that fails costs (fail | skip | replace). Nor are the ``settings``:
        ``rng``, ``parity``, ``isolation``, ``decode_timeout``, ``memory``, ``upload``; docs/spec.md has their values.

        Raises ValueError for impossible sizes and settings, TypeError for wrong types and unknown settings.
        """
        if num_threads is not None and num_threads < 1 and num_threads != -1:
            raise ValueError(f"num_threads must be positive, got {num_threads}")
        for t in output_dtype if isinstance(output_dtype, (list, tuple)) else [output_dtype]:
            if t is not None and not isinstance(t, DALIDataType):
                raise TypeError(f"output_dtype must be types.DALIDataType, a list of these, or None, got {t!r}")
            if t is DALIDataType.NO_TYPE:
                raise ValueError("output_dtype must not be NO_TYPE; None stands for any type")
        if output_ndim is not None:
            for n in output_ndim if isinstance(output_ndim, Sequence) else [output_ndim]:
                if n is not None and n < 0:
                    raise ValueError(f"output_ndim must not be negative, got {n}")
        self._batch_size = max(index(batch_size or 0), 0)  # what it must be is known when the pipeline is built
        self._auto_threads = num_threads in (None, -1)
        self._num_threads = index(num_threads) if num_threads and num_threads > 0 else len(os.sched_getaffinity(0))
        self._device_id = _checked_devices(device_id)
        self._seed = int(seed) if seed is not None and seed >= 0 else None
        self._run_seed = self._seed if self._seed is not None else secrets.randbits(31)
        self._prefetch = _checked_depth(prefetch_queue_depth)
        self._exec_pipelined = exec_pipelined
        self._exec_async = exec_async
        self._set_affinity = set_affinity
        self._exec_dynamic = exec_dynamic if exec_dynamic is not None else experimental_exec_dynamic
        self._memory_stats = enable_memory_stats
        self._checkpointing = enable_checkpointing or checkpoint is not None
        self._checkpoint = checkpoint
        self._py_num_workers = py_num_workers
        self._py_start_method = py_start_method
        self._py_callback_pickler = py_callback_pickler
        self._output_dtype = output_dtype
        self._output_ndim = output_ndim
        self._output_layout = output_layout
        self._on_error = on_error
        self._run = checked(settings)
        self._stream_policy = StreamPolicy[stream_policy] if isinstance(stream_policy, str) else stream_policy
        self._concurrency = OperatorConcurrency[concurrency] if isinstance(concurrency, str) else concurrency
        _say_ignored(bytes_per_sample, max_streams, default_cuda_stream_priority, stream_policy, concurrency,
                     set_affinity)  # fmt: skip
        self._prepare()

    def _prepare(self) -> None:
        """Set the fields that are no arguments; called at the end of the constructor."""

    @property
    def max_batch_size(self) -> int:
        """Samples a batch, at most; 0 where it was not set."""
        return self._batch_size

    batch_size = max_batch_size

    @property
    def num_threads(self) -> int:
        """CPU worker threads."""
        return self._num_threads

    @property
    def device_id(self) -> int | tuple[int, ...] | None:
        """The GPU, or several, or None for the CPU alone."""
        return self._device_id

    @property
    def seed(self) -> int | None:
        """The seed, None if it was drawn."""
        return self._seed

    @property
    def exec_pipelined(self) -> bool:
        """Iterations overlap."""
        return self._exec_pipelined

    @property
    def exec_async(self) -> bool:
        """Iterations run beside the program."""
        return self._exec_async

    @property
    def exec_separated(self) -> bool:
        """CPU and GPU stages have queues of different depths."""
        return isinstance(self._prefetch, Mapping)

    @property
    def exec_dynamic(self) -> bool:
        """GPU results may go back to CPU operators: always so here, unless it was switched off."""
        return self._exec_dynamic if self._exec_dynamic is not None else not self.exec_separated

    @property
    def prefetch_queue_depth(self) -> int | Mapping[str, int]:
        """As it was given."""
        return self._prefetch

    @property
    def cpu_queue_size(self) -> int:
        """Batches that CPU stages work ahead."""
        return self._prefetch["cpu_size"] if isinstance(self._prefetch, Mapping) else self._prefetch

    @property
    def gpu_queue_size(self) -> int:
        """Batches that GPU stages work ahead."""
        return self._prefetch["gpu_size"] if isinstance(self._prefetch, Mapping) else self._prefetch

    @property
    def set_affinity(self) -> bool:
        """As it was given; threads are left to the system."""
        return self._set_affinity

    @property
    def max_streams(self) -> int:
        """DALI's old setting: always -1."""
        return -1

    @property
    def default_cuda_stream_priority(self) -> int:
        """DALI's old setting: always 0."""
        return 0

    @property
    def stream_policy(self) -> Any:
        """As it was given; there is one stream for each batch in flight."""
        return self._stream_policy

    @property
    def concurrency(self) -> Any:
        """As it was given; operators of several batches run at the same time."""
        return self._concurrency

    @property
    def enable_memory_stats(self) -> bool:
        """As it was given; statistics are always taken."""
        return self._memory_stats

    @property
    def py_num_workers(self) -> int:
        """Processes of parallel external_sources."""
        return self._py_num_workers

    @property
    def py_start_method(self) -> str:
        """How those are started: fork or spawn."""
        return self._py_start_method

    def _check_batch_size(self) -> None:
        """Raises ValueError where there is no size by which batches could be made."""
        if self._batch_size < 1:
            raise ValueError("batch_size must be set to a positive number before the pipeline is built")

    def enable_api_check(self, enable: bool) -> None:
        """DALI's check against mixing run and schedule_run; they may be mixed here, so there is nothing to check."""

    def _arguments(self) -> dict[str, Any]:
        """What the constructor was given, as far as it is plain data."""
        return {
            "batch_size": self._batch_size, "num_threads": self._num_threads, "device_id": self._device_id,
            "seed": self._seed, "exec_pipelined": self._exec_pipelined,
            "prefetch_queue_depth": dict(self._prefetch) if isinstance(self._prefetch, Mapping) else self._prefetch,
            "exec_async": self._exec_async, "exec_dynamic": self._exec_dynamic,
            "enable_memory_stats": self._memory_stats, "enable_checkpointing": self._checkpointing,
            "stream_policy": self._stream_policy, "concurrency": self._concurrency,
            "py_num_workers": self._py_num_workers, "py_start_method": self._py_start_method,
            "output_dtype": self._output_dtype, "output_ndim": self._output_ndim,
            "output_layout": self._output_layout, "on_error": self._on_error, **self._run.plain(),
        }  # fmt: skip


def _checked_devices(device_id: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """A GPU, several, or None; negative numbers mean none, as in DALI."""
    if device_id is None:
        return None
    if not isinstance(device_id, Sequence):
        return int(device_id) if device_id >= 0 else None
    several = tuple(int(i) for i in device_id)
    if not several or min(several) < 0 or len(set(several)) < len(several):
        raise ValueError(f"device_id takes a number, or different numbers from 0 on, got {list(several)}")
    return several[0] if len(several) == 1 else several


def _checked_depth(depth: int | Mapping[str, int]) -> int | Mapping[str, int]:
    if isinstance(depth, Mapping) and set(depth) != {"cpu_size", "gpu_size"}:
        raise ValueError(f"prefetch_queue_depth is a number or {{'cpu_size': x, 'gpu_size': y}}, got {dict(depth)}")
    try:
        known = {k: index(v) for k, v in depth.items()} if isinstance(depth, Mapping) else index(depth)
    except TypeError:
        raise TypeError(f"prefetch_queue_depth takes integers, got {depth!r}") from None
    if min(known.values() if isinstance(known, dict) else [known]) < 1:
        raise ValueError(f"prefetch_queue_depth must be positive, got {depth}")
    return known


def _say_ignored(
    bytes_per_sample: int, max_streams: int | None, priority: int | None, stream_policy: Any, concurrency: Any,
    set_affinity: bool,
) -> None:  # fmt: skip
    if bytes_per_sample:
        say_once("bytes_per_sample", "memory is sized by the data itself")
    if max_streams is not None:
        say_once("max_streams", "there is one stream for each batch in flight")
    if priority is not None:
        say_once("default_cuda_stream_priority", "streams have one priority")
    if stream_policy is not None:
        say_once("stream_policy", "there is one stream for each batch in flight")
    if concurrency is not None:
        say_once("concurrency", "operators of several batches run at the same time")
    if set_affinity:
        say_once("set_affinity", "threads are left to the system")
