"""Settings: the checked arguments of Pipeline."""

from __future__ import annotations

import enum
import inspect
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from operator import index
from typing import Any, get_args

from ...ops.gpu.lane import gpu_count
from ...ops.types import DALIDataType
from ..compile.place import Target
from ..cores import threads_of
from ..settings import checked
from ..spec.model import Policy
from ..spec.model import Settings as SpecSettings
from ..user_warnings import warn


class StreamPolicy(enum.Enum):
    """DALI's policy for assigning CUDA streams. Accepted without effect: there is one stream per batch in flight."""

    SINGLE = 1
    PER_BACKEND = 2
    PER_OPERATOR = 3


class OperatorConcurrency(enum.Enum):
    """DALI's policy for running operators concurrently. Accepted without effect: operators of several batches run at
    the same time."""

    NONE = 0
    BACKEND = 1
    FULL = 2


@cache
def say_once(name: str, why: str) -> None:
    """Warn that the argument ``name`` of Pipeline has no effect here, because of ``why``. Each argument is reported
    once per process."""
    warn(f"Pipeline argument {name!r} has no effect: {why}")


class Settings:
    """The checked arguments of a pipeline. Created and owned by `Pipeline`."""

    def __init__(
        self,
        /,
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
        promote_to_gpu: bool = True,
        **settings: Any,
    ) -> None:
        """``device_id`` may name several GPUs, unlike in DALI. Batches are distributed to the GPUs in turn. They are
        returned in order, with the same values as from one GPU; outputs in GPU memory are on the GPU that computed the
        batch.

        Not in DALI: ``on_error``, the effect of a sample that fails (fail | skip | replace); ``promote_to_gpu``, which
        runs a CPU operator (decoders of images and audio, resizing) on the GPU if only GPU operators, including
        ``x.gpu()``, read its results, and these are equal to the bit; and the ``settings`` ``rng``, ``parity``,
        ``isolation``, ``decode_timeout``, ``memory``, ``upload``; docs/spec.md has their values.

        Raises ValueError for impossible sizes and settings, TypeError for wrong types and unknown settings.
        """
        threads = -1 if num_threads is None else _integer("num_threads", num_threads)
        if threads < 1 and threads != -1:
            raise ValueError(f"num_threads must be positive, got {threads}")
        _check_outputs(output_dtype, output_ndim, output_layout)
        if checkpoint is not None and not isinstance(checkpoint, (bytes, str)):
            raise TypeError(f"checkpoint must be a result of Pipeline.checkpoint(), got {checkpoint!r}")
        # whether a batch size is needed is checked when the pipeline is built
        self.batch_size = 0 if batch_size is None else max(_integer("batch_size", batch_size), 0)
        self.auto_threads = threads == -1
        self.num_threads = threads_of("auto") if self.auto_threads else threads
        self.device_id = _checked_devices(device_id)
        drawn = seed is None or _integer("seed", seed) < 0
        self.seed = None if drawn else _integer("seed", seed)
        self.run_seed = self.seed if self.seed is not None else secrets.randbits(31)
        self.prefetch = _checked_depth(prefetch_queue_depth)
        self.exec_pipelined = exec_pipelined
        self.exec_async = exec_async
        self.set_affinity = set_affinity
        self.asked_exec_dynamic = exec_dynamic if exec_dynamic is not None else experimental_exec_dynamic
        self.memory_stats = enable_memory_stats
        self.checkpointing = enable_checkpointing or checkpoint is not None
        self.checkpoint = checkpoint
        self.py_num_workers = _integer("py_num_workers", py_num_workers)
        self.py_start_method = _one_of("py_start_method", py_start_method, ("fork", "spawn"))
        self.py_callback_pickler = py_callback_pickler
        self.output_dtype = output_dtype
        self.output_ndim = output_ndim
        self.output_layout = output_layout
        self.on_error = _one_of("on_error", on_error, get_args(Policy))
        self.promote_to_gpu = promote_to_gpu
        self.run = checked(settings, inspect.signature(Settings.__init__).parameters)
        self.stream_policy = _member("stream_policy", stream_policy, StreamPolicy)
        self.concurrency = _member("concurrency", concurrency, OperatorConcurrency)
        _say_ignored(bytes_per_sample, max_streams, default_cuda_stream_priority, stream_policy, concurrency,
                     set_affinity)  # fmt: skip

    @property
    def exec_dynamic(self) -> bool:
        """Whether GPU results may be inputs of CPU operators. Always true, unless the program switched it off."""
        return (
            self.asked_exec_dynamic if self.asked_exec_dynamic is not None else not isinstance(self.prefetch, Mapping)
        )

    @property
    def cpu_queue_size(self) -> int:
        """Number of batches that CPU stages compute ahead."""
        return self.prefetch["cpu_size"] if isinstance(self.prefetch, Mapping) else self.prefetch

    @property
    def gpu_queue_size(self) -> int:
        """Number of batches that GPU stages compute ahead."""
        return self.prefetch["gpu_size"] if isinstance(self.prefetch, Mapping) else self.prefetch

    @property
    def deepest_queue(self) -> int:
        """The larger of `cpu_queue_size` and `gpu_queue_size`."""
        return max(self.cpu_queue_size, self.gpu_queue_size)

    def target(self) -> Target:
        """Return the device for which the graph is compiled, from ``device_id``; on a machine without GPUs the CPU,
        with a warning."""
        if self.device_id is None:
            return Target("cpu")
        requested = (self.device_id,) if isinstance(self.device_id, int) else self.device_id
        if gpu_count() == 0:
            say_once("device_id", f"GPU {self.device_id} was requested, but this machine has no usable GPU "
                     "(`dali-run doctor` shows the reason); the pipeline runs on the CPU")  # fmt: skip
            return Target("cpu")
        return Target("gpu", requested, auto_mixed=False)

    def check_batch_size(self) -> None:
        """Raise ValueError if no batch size was set."""
        if self.batch_size < 1:
            raise ValueError("batch_size must be set to a positive number before the pipeline is built")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of Pipeline's constructor, except those that are Python objects."""
        return {
            "batch_size": self.batch_size, "num_threads": self.num_threads, "device_id": self.device_id,
            "seed": self.seed, "exec_pipelined": self.exec_pipelined,
            "prefetch_queue_depth": dict(self.prefetch) if isinstance(self.prefetch, Mapping) else self.prefetch,
            "exec_async": self.exec_async, "exec_dynamic": self.asked_exec_dynamic,
            "enable_memory_stats": self.memory_stats, "enable_checkpointing": self.checkpointing,
            "stream_policy": self.stream_policy, "concurrency": self.concurrency,
            "py_num_workers": self.py_num_workers, "py_start_method": self.py_start_method,
            "output_dtype": self.output_dtype, "output_ndim": self.output_ndim,
            "output_layout": self.output_layout, "on_error": self.on_error,
            "promote_to_gpu": self.promote_to_gpu, **self.run.to_dict(),
        }  # fmt: skip

    def section(self) -> dict[str, Any]:
        """Return the ``pipeline:`` section of a spec with these settings; values that are a spec's defaults are
        omitted."""
        several = (self.device_id,) if isinstance(self.device_id, int) else self.device_id
        section: dict[str, Any] = {"batch_size": self.batch_size}
        if not self.auto_threads:
            section["num_threads"] = self.num_threads
        section["device"] = "cpu" if several is None else "gpu:" + ",".join(map(str, several))
        if self.seed is not None:
            section["seed"] = self.seed
        default = SpecSettings()
        if self.prefetch != default.prefetch_cpu:
            section["prefetch_queue_depth"] = self.prefetch
        return {**section, **self.run.to_dict()}


def _check_outputs(output_dtype: Any, output_ndim: Any, output_layout: Any) -> None:
    """Raise TypeError or ValueError for expectations of outputs that no output can meet."""
    for t in output_dtype if isinstance(output_dtype, (list, tuple)) else [output_dtype]:
        if t is not None and not isinstance(t, DALIDataType):
            raise TypeError(f"output_dtype must be types.DALIDataType, a list of them, or None, got {t!r}")
        if t is DALIDataType.NO_TYPE:
            raise ValueError("output_dtype must not be NO_TYPE; use None for any type")
    for n in output_ndim if isinstance(output_ndim, (list, tuple)) else [output_ndim]:
        if n is not None and _integer("output_ndim", n) < 0:
            raise ValueError(f"output_ndim must not be negative, got {n}")
    for layout in output_layout if isinstance(output_layout, (list, tuple)) else [output_layout]:
        if layout is not None and not isinstance(layout, str):
            raise TypeError(f"output_layout must be a string, a list of strings, or None, got {layout!r}")


def _integer(name: str, value: Any) -> int:
    """Return ``value`` as an integer. A float with an integer value is accepted, as DALI does for seeds."""
    try:
        return int(value) if isinstance(value, float) and value.is_integer() else index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _member(name: str, value: Any, kind: type[enum.Enum]) -> Any:
    """Return ``value`` as a member of the enumeration ``kind``: a member, the name of one, or None, which stays
    None."""
    if value is None or isinstance(value, kind):
        return value
    return kind[_one_of(name, value, tuple(kind.__members__))]


def _checked_devices(device_id: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """Return ``device_id`` as the number of a GPU, several numbers, or None for the CPU; a negative number means None,
    as in DALI."""
    if device_id is None:
        return None
    if not isinstance(device_id, Sequence) or isinstance(device_id, (str, bytes)):
        number = _integer("device_id", device_id)
        return number if number >= 0 else None
    several = tuple(_integer("device_id", i) for i in device_id)
    if not several or min(several) < 0 or len(set(several)) < len(several):
        raise ValueError(f"device_id takes a number, or different numbers from 0 on, got {list(several)}")
    return several[0] if len(several) == 1 else several


def _checked_depth(depth: int | Mapping[str, int]) -> int | Mapping[str, int]:
    if isinstance(depth, Mapping) and set(depth) != {"cpu_size", "gpu_size"}:
        raise ValueError(f"prefetch_queue_depth is a number or {{'cpu_size': x, 'gpu_size': y}}, got {dict(depth)}")
    try:
        depths = {k: index(v) for k, v in depth.items()} if isinstance(depth, Mapping) else index(depth)
    except TypeError:
        raise TypeError(f"prefetch_queue_depth takes integers, got {depth!r}") from None
    if min(depths.values() if isinstance(depths, dict) else [depths]) < 1:
        raise ValueError(f"prefetch_queue_depth must be positive, got {depth}")
    return depths


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
        say_once("set_affinity", "the system assigns threads to cores")
