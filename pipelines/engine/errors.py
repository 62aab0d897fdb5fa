"""Translate errors of devices and of memory into messages for the user."""

from __future__ import annotations

from collections.abc import Callable

from ...ops.errors import DeviceError, JobError

REMEDY = "lower pipeline.batch_size or prefetch_queue_depth, or run with --device cpu"


def out_of_memory(problem: BaseException) -> bool:
    """Return whether ``problem`` means that GPU or page-locked memory is exhausted, while the device works."""
    kind = type(problem).__name__
    if kind in ("CUDARuntimeError", "CUDADriverError"):
        return "emoryAllocation" in str(problem) or "OUT_OF_MEMORY" in str(problem)
    return kind == "OutOfMemoryError"


def as_user_error(problem: BaseException) -> BaseException:
    """Return the error that ends a run for ``problem``, with a message for the user. Lack of memory or threads, and
    failures of a device, are not reported as bugs."""
    kind = type(problem).__name__
    if kind == "OutOfMemoryError" or out_of_memory(problem):
        return DeviceError(f"GPU memory does not suffice: {problem}; {REMEDY}")
    if kind in ("CUDARuntimeError", "CUDADriverError"):
        return DeviceError(f"the GPU failed: {problem}; this process can no longer use it. CUDA_LAUNCH_BLOCKING=1 "
                           "shows which kernel failed; check the GPU with `dali-run doctor` and dmesg")  # fmt: skip
    if isinstance(problem, MemoryError):
        return JobError(f"out of memory: {str(problem) or 'an allocation failed'}; lower pipeline.batch_size, "
                        "prefetch_queue_depth or memory.host, so that less is held at a time")  # fmt: skip
    if isinstance(problem, RuntimeError) and str(problem) == "can't start new thread":
        return JobError("the system cannot start more threads: raise the limit (ulimit -u, or the container's limit "
                        "of processes), or lower pipeline.num_threads")  # fmt: skip
    return problem


def ignore_device_errors(end: Callable[[], object]) -> None:
    """Call ``end()``, which frees something on a device. Errors of a device that has failed before are ignored, because
    the user has seen that error."""
    try:
        end()
    except Exception as e:
        if as_user_error(e) is e:
            raise
