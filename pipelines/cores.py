"""Number of cores that this process may use; for pools of threads and default memory budgets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal


def threads_of(num_threads: int | Literal["auto"]) -> int:
    """Return ``num_threads``, the number of worker threads, as a number. ``auto``: one per core that this process may
    use, or its share of the cores if torchrun started several processes on this machine."""
    return max(1, usable_cores() // local_ranks()) if num_threads == "auto" else num_threads


def local_ranks() -> int:
    """Return the number of processes that torchrun (or a launcher that sets LOCAL_WORLD_SIZE) started on this machine,
    each of which sees all cores and all memory. Slurm and MPI restrict the processes that they start."""
    value = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(value)) if value.isascii() and value.isdecimal() else 1


def usable_cores() -> int:
    """Return the number of cores that this process may use by its affinity and the quotas of its control groups, at
    least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _quotas() -> Iterator[int]:
    for folder, version in control_groups("cpu"):
        with suppress(OSError, ValueError):  # "max", or a group that is not visible inside a container
            if version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0 and period > 0:
                yield quota // period


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of this process's control groups for ``cpu`` or ``memory``, and of all groups above them, each
    with the version of the control group interface, 1 or 2."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = Path("/sys/fs/cgroup") / (controller if controllers else "")
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                yield folder, 1 if controllers else 2
                if folder == root:
                    break
