"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def threads_of(num_threads: int | Literal["auto"]) -> int:
    """Worker threads; ``auto`` is one for each core that this process may use, or its share of them where torchrun
    started several on this machine."""
    return max(1, usable_cores() // local_ranks()) if num_threads == "auto" else num_threads


def local_ranks() -> int:
    """Processes of one training or job that torchrun (or what does as it does) started on this machine, with all cores
    and all memory for each. Slurm and MPI bind those that they start."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isascii() and told.isdecimal() else 1


def usable_cores() -> int:
    """Cores by affinity and by the quota of the control group, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return cores
    return min(cores, max(1, int(limit) // int(period))) if limit.isdigit() else cores
