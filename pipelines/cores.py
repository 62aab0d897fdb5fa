"""How many cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal


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
    """Cores by affinity and by the quotas of the control groups, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _quotas() -> Iterator[int]:
    for folder, version in control_groups("cpu"):
        with suppress(OSError, ValueError):  # "max", or a group that cannot be seen from inside a container
            if version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0 and period > 0:
                yield quota // period


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of the control groups that this process is in, and of all groups above them, for ``cpu`` or ``memory``;
    each with its version of the interface, 1 or 2."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = Path("/sys/fs/cgroup") / (controller if controllers else "")
            here = root / path.lstrip("/")
            for folder in (here, *here.parents):
                yield folder, 1 if controllers else 2
                if folder == root:
                    break
