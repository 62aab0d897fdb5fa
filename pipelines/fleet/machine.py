"""A machine's means for workers: its GPUs, the cores near each of them, and how those are shared out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..cores import usable_cores
from .job_message import WorkerResources

_DEVICES = Path("/sys/bus/pci/devices")


def share_cpu(n: int) -> list[WorkerResources]:
    """``n`` workers that share the cores of this machine. They are not bound: the system moves them where there is
    room."""
    threads = max(1, usable_cores() // n)
    return [WorkerResources(f"process {i}", threads, 1 / n) for i in range(n)]


def share_gpus(indices: Sequence[int], n: int | None = None) -> list[WorkerResources]:
    """A worker for each of the GPUs, or ``n`` that share them, each bound to cores near its GPU."""
    n = n or len(indices)
    gpus = [indices[i % len(indices)] for i in range(n)]
    near = {gpu: cpus_near(pci_address(gpu)) for gpu in set(gpus)}
    sides = cores_of([near[gpu] for gpu in gpus], sorted(os.sched_getaffinity(0)))
    fair = max(1, usable_cores() // n)  # the quota of a container may be less than its cores
    twice = Counter(gpus)
    return [
        WorkerResources(f"GPU {gpu}" + f" ({i})" * (twice[gpu] > 1), max(1, min(fair, len(cpus) or fair)), 1 / n, cpus,
             visible(gpu), 1 / twice[gpu])
        for i, (gpu, cpus) in enumerate(zip(gpus, sides, strict=True))
    ]  # fmt: skip


def cores_of(near: Sequence[frozenset[int]], usable: Sequence[int]) -> list[tuple[int, ...]]:
    """The cores of each worker, given those near its GPU: those that are near the same ones share them equally. Nobody
    is bound where all GPUs are near the same cores (one NUMA node), or where that is not known."""
    mine = [tuple(c for c in usable if c in cores) for cores in near]
    if len(set(near)) < 2 or not all(mine):
        return [()] * len(near)
    sharing = Counter(mine)
    turn: Counter[tuple[int, ...]] = Counter()
    result = []
    for cores in mine:
        k, n = turn[cores], sharing[cores]
        turn[cores] += 1
        result.append(cores[len(cores) * k // n : len(cores) * (k + 1) // n] or cores)
    return result


def visible(gpu: int) -> str:
    """CUDA_VISIBLE_DEVICES for a process that is to see only GPU ``gpu`` of those that this one sees: a number, or the
    name (GPU-..., MIG-...) that stands in its place here."""
    told = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return told[gpu] if gpu < len(told) and told[gpu] else str(gpu)


def pci_address(gpu: int) -> str:
    """Where a GPU is plugged in, as Linux writes it; empty where that cannot be found out."""
    try:
        import cupy

        return str(cupy.cuda.runtime.deviceGetPCIBusId(gpu)).lower()
    except Exception:  # no CuPy, no driver: then nothing is bound
        return ""


def cpus_near(address: str, devices: Path = _DEVICES) -> frozenset[int]:
    """The cores on the side of a PCI device; empty where the system does not say."""
    try:
        return frozenset(cpu_list((devices / address / "local_cpulist").read_text())) if address else frozenset()
    except (OSError, ValueError):
        return frozenset()


def cpu_list(text: str) -> list[int]:
    """``0-3,8,10-11`` as numbers. Raises ValueError."""
    found: list[int] = []
    for piece in text.strip().split(","):
        low, dash, high = piece.partition("-")
        found += range(int(low), int(high if dash else low) + 1) if piece else []
    return found
