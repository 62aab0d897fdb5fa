"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def threads_of(num_threads: int | Literal["auto"]) -> int:
    """Worker threads; ``auto`` is one for each core that this process may use."""
    return usable_cores() if num_threads == "auto" else num_threads


def usable_cores() -> int:
    """Cores by affinity and by the quota of the control group, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return cores
    return min(cores, max(1, int(limit) // int(period))) if limit.isdigit() else cores
