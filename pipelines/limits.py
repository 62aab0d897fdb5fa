"""Memory limits: their notation in specs and programs, and the bytes that they amount to on this machine."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .cores import control_groups, local_ranks

HOST_SHARE, GPU_SHARE = 0.5, 0.8
"""Default limits of a run's memory: shares of the host memory, and of the GPU memory that is free at the start."""

Limit = int | float | None
"""A memory limit: bytes (int), a share of the memory (float), or None for the default share."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B|B|%)?")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip
ALLOWED = "auto, a number of bytes such as 512MiB or 4GiB, or a share such as 50%"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory limits of a run, as set in a spec or by a program."""

    host: Limit = None
    """Limit of host memory. A share is a fraction of the memory that this process may use."""
    gpu: Limit = None
    """Limit of GPU memory. A share is a fraction of the memory that is free when the run starts."""

    def host_bytes(self) -> int:
        """Return the limit of host memory in bytes, on this machine. If torchrun started several processes here, each
        gets an equal part of the default share."""
        return _resolve(self.host, HOST_SHARE / local_ranks(), host_memory())

    def gpu_bytes(self, free: int) -> int:
        """Return the limit of GPU memory in bytes, for a GPU with ``free`` bytes of free memory."""
        return _resolve(self.gpu, GPU_SHARE, free)

    def to_dict(self) -> dict[str, int | str]:
        """Return the limits that the user set, in the notation of specs and of Pipeline."""
        limits = {"host": self.host, "gpu": self.gpu}
        return {k: f"{v * 100:g}%" if isinstance(v, float) else v for k, v in limits.items() if v is not None}

    def describe(self, device: str, default: str) -> dict[str, Any]:
        """Return the limits for display in plans: that of the host in bytes, and that of the GPU as the user wrote it
        (free memory is known only at run time) or the text ``default``."""
        limits: dict[str, Any] = {"host": self.host_bytes()}
        if device != "cpu":
            gpu = f"{self.gpu:.0%} of what is free" if isinstance(self.gpu, float) else self.gpu
            limits["gpu"] = default if gpu is None else gpu
        return limits


def _resolve(limit: Limit, default: float, total: int) -> int:
    limit = default if limit is None else limit
    return max(1, int(limit * total) if isinstance(limit, float) else limit)


def parse_limit(value: Any) -> Limit:
    """Parse a limit that a user wrote: ``auto``, ``4GiB``, ``50%`` or a number of bytes. Raises ValueError for anything
    else."""
    if value == "auto" or value is None:
        return None
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        match = _SIZE.fullmatch(str(value))
        if match and match[2] == "%" and 0 < float(match[1]) <= 100:
            return float(match[1]) / 100
        number = int(float(match[1]) * _UNITS[match[2] or "B"]) if match and match[2] != "%" else 0
        if 0 < number < 1 << 63:
            return number
    raise ValueError(f"must be {ALLOWED}, got {value!r}")


def memory_of(given: Mapping[str, Any] | None) -> Memory:
    """Parse memory limits from an argument of the Python API, such as ``{"host": "4GiB", "gpu": "50%"}``. Raises
    ValueError."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"memory must be like {{'host': '4GiB', 'gpu': '50%'}}, got {given!r}")
    unknown = set(given or {}) - {"host", "gpu"}
    if unknown:
        raise ValueError(f"memory has the keys host and gpu, got {', '.join(sorted(map(repr, unknown)))}")
    limits = {}
    for key, value in (given or {}).items():
        try:
            limits[key] = parse_limit(value)
        except ValueError as e:
            raise ValueError(f"memory[{key!r}] {e}") from None
    return Memory(**limits)


def host_memory() -> int:
    """Return the bytes that this process may use: the machine's memory, or the smallest limit of its control groups and
    of ``ulimit -v``."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    for folder, version in control_groups("memory"):
        with suppress(OSError, ValueError):  # "max", or a group that is not visible inside a container
            limits.append(int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text()))
    return min(limits)
