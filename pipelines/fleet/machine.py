"""Divide a machine among workers: its GPUs, the cores near each of them, and shares of memory.

Called by `fleet.run` and by benchmarks with several processes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..cores import usable_cores
from .job_message import WorkerResources

_DEVICES = Path("/sys/bus/pci/devices")


def share_cpu(n: int) -> list[WorkerResources]:
    """Return the resources of ``n`` workers that share the cores of this machine. They are not bound to cores, so the
    system moves their threads to free ones."""
    threads = max(1, usable_cores() // n)
    return [WorkerResources(f"process {i}", threads, 1 / n) for i in range(n)]


def share_gpus(indices: Sequence[int], n: int | None = None) -> list[WorkerResources]:
    """Return the resources of one worker per GPU, or of ``n`` workers that share the GPUs, each bound to CPU cores near
    the GPU."""
    n = n or len(indices)
    gpus = [indices[i % len(indices)] for i in range(n)]
    near = {gpu: cpus_near(pci_address(gpu)) for gpu in set(gpus)}
    bound = cores_of([near[gpu] for gpu in gpus], sorted(os.sched_getaffinity(0)))
    fair = max(1, usable_cores() // n)  # a container's quota may be less than its cores
    sharing = Counter(gpus)
    return [
        WorkerResources(
            f"GPU {gpu}" + f" ({i})" * (sharing[gpu] > 1), max(1, min(fair, len(cpus) or fair)), 1 / n, cpus,
            visible(gpu), 1 / sharing[gpu],
        )
        for i, (gpu, cpus) in enumerate(zip(gpus, bound, strict=True))
    ]  # fmt: skip


def cores_of(near: Sequence[frozenset[int]], usable: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the cores to which each worker is bound, given the cores ``near`` each worker's GPU. Workers whose GPUs
    are near the same cores share these equally. No worker is bound if all GPUs are near the same cores (one NUMA node),
    or if the near cores are not known."""
    usable_near = [tuple(c for c in usable if c in cores) for cores in near]
    if len(set(near)) < 2 or not all(usable_near):
        return [()] * len(near)
    sharing = Counter(usable_near)
    assigned: Counter[tuple[int, ...]] = Counter()
    result = []
    for cores in usable_near:
        k, n = assigned[cores], sharing[cores]
        assigned[cores] += 1
        result.append(cores[len(cores) * k // n : len(cores) * (k + 1) // n] or cores)
    return result


def visible(gpu: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES with which a new process sees only GPU ``gpu``, counted as in this
    process. If this process has the variable, the value is the GPU's entry in it, such as GPU-... or MIG-...; otherwise
    a number."""
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return names[gpu] if gpu < len(names) and names[gpu] else str(gpu)


def pci_address(gpu: int) -> str:
    """Return the PCI address of a GPU in Linux's notation; empty if the address cannot be found out."""
    try:
        import cupy

        return str(cupy.cuda.runtime.deviceGetPCIBusId(gpu)).lower()
    except Exception:  # no CuPy, no driver: then nothing is bound
        return ""


def cpus_near(address: str, devices: Path = _DEVICES) -> frozenset[int]:
    """Return the numbers of the CPU cores near the PCI device at ``address``; empty if unknown."""
    try:
        return frozenset(cpu_list((devices / address / "local_cpulist").read_text())) if address else frozenset()
    except (OSError, ValueError):
        return frozenset()


def cpu_list(text: str) -> list[int]:
    """Parse a list of cores like ``0-3,8,10-11``. Raises ValueError."""
    numbers: list[int] = []
    for piece in text.strip().split(","):
        low, dash, high = piece.partition("-")
        numbers += range(int(low), int(high if dash else low) + 1) if piece else []
    return numbers
