"""Errors of devices and of memory, in words for the user."""

from __future__ import annotations

from collections.abc import Callable

from ...ops.errors import DeviceError, JobError

REMEDY = "lower pipeline.batch_size or prefetch_queue_depth, or run with --device cpu"


def out_of_memory(problem: BaseException) -> bool:
    """The device (or page-locked memory) could not give what was asked for; the device itself is well."""
    kind = type(problem).__name__
    if kind in ("CUDARuntimeError", "CUDADriverError"):
        return "emoryAllocation" in str(problem) or "OUT_OF_MEMORY" in str(problem)
    return kind == "OutOfMemoryError"


def as_ours(problem: BaseException) -> BaseException:
    """The error that ends a run, in words for its user: lack of memory or threads and failures of a device are not
    bugs."""
    kind = type(problem).__name__
    if kind == "OutOfMemoryError" or out_of_memory(problem):
        return DeviceError(f"the GPU's memory does not suffice: {problem}; {REMEDY}")
    if kind in ("CUDARuntimeError", "CUDADriverError"):
        return DeviceError(f"the GPU failed: {problem}; this process cannot use it any more. CUDA_LAUNCH_BLOCKING=1 "
                           "shows which kernel went astray, `dali-run doctor` and dmesg how the GPU is")  # fmt: skip
    if isinstance(problem, MemoryError):
        return JobError(f"out of memory: {str(problem) or 'an allocation failed'}; lower pipeline.batch_size, "
                        "prefetch_queue_depth or memory.host, so that less is held at a time")  # fmt: skip
    if isinstance(problem, RuntimeError) and str(problem) == "can't start new thread":
        return JobError("the system starts no more threads; allow more (ulimit -u, or the container's limit of "
                        "processes), or lower pipeline.num_threads")  # fmt: skip
    return problem


def if_it_works(end: Callable[[], object]) -> None:
    """Call ``end``, and ignore that a failed device fails again: the caller has already been told."""
    try:
        end()
    except Exception as e:
        if as_ours(e) is e:
            raise
