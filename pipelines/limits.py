"""Limits of memory: how they are written, and the bytes that they come to on this machine."""

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
"""Parts of the host's memory and of the GPU's free memory that a run may hold by default."""

Limit = int | float | None
"""Bytes; or a share (a float) of what there is; None for the default share."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B|B|%)?")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip
ALLOWED = "auto, a number of bytes such as 512MiB or 4GiB, or a share such as 50%"


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a run may hold."""

    host: Limit = None
    """Of the memory that this process may use."""
    gpu: Limit = None
    """Of the memory that is free on the GPU when the run starts."""

    def host_bytes(self) -> int:
        """The budget on this machine; where torchrun started several processes on it, an equal part of the default."""
        return _resolve(self.host, HOST_SHARE / local_ranks(), host_memory())

    def gpu_bytes(self, free: int) -> int:
        """The budget on a GPU with ``free`` bytes."""
        return _resolve(self.gpu, GPU_SHARE, free)

    def to_dict(self) -> dict[str, int | str]:
        """The limits that were given, as a spec or a Pipeline takes them."""
        given = {"host": self.host, "gpu": self.gpu}
        return {k: f"{v * 100:g}%" if isinstance(v, float) else v for k, v in given.items() if v is not None}

    def describe(self, device: str, default: str) -> dict[str, Any]:
        """For plans: the host's budget in bytes, the GPU's as it was given (what is free is known when it runs), or its
        ``default`` in words."""
        found: dict[str, Any] = {"host": self.host_bytes()}
        if device != "cpu":
            given = f"{self.gpu:.0%} of what is free" if isinstance(self.gpu, float) else self.gpu
            found["gpu"] = default if given is None else given
        return found


def _resolve(limit: Limit, default: float, whole: int) -> int:
    limit = default if limit is None else limit
    return max(1, int(limit * whole) if isinstance(limit, float) else limit)


def parse_limit(value: Any) -> Limit:
    """``auto``, ``4GiB``, ``50%`` or a number of bytes. Raises ValueError for anything else."""
    if value == "auto" or value is None:
        return None
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        found = _SIZE.fullmatch(str(value))
        if found and found[2] == "%" and 0 < float(found[1]) <= 100:
            return float(found[1]) / 100
        number = int(float(found[1]) * _UNITS[found[2] or "B"]) if found and found[2] != "%" else 0
        if 0 < number < 1 << 63:
            return number
    raise ValueError(f"must be {ALLOWED}, got {value!r}")


def memory_of(given: Mapping[str, Any] | None) -> Memory:
    """``{"host": "4GiB", "gpu": "50%"}`` as the Python API takes it. Raises ValueError."""
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
    """Bytes that this process may use: the machine's, or the smallest limit of its control groups and ``ulimit -v``."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        found.append(address_space)
    for folder, version in control_groups("memory"):
        with suppress(OSError, ValueError):  # "max", or a group that cannot be seen from inside a container
            found.append(int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text()))
    return min(found)
