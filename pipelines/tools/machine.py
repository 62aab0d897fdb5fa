"""Description of the machine, for reports of runs."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...ops.gpu.driver import driver
from ...version import __version__
from ..cores import usable_cores
from .doctor import version_of

_PACKAGES = ("numpy", "numba", "simplejpeg", "pillow", "cupy-cuda12x", "cupy-cuda13x")


def facts() -> dict[str, Any]:
    """Return this machine's CPU, cores, GPUs, driver and versions as data for JSON."""
    gpu_driver = driver()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "usable_cores": usable_cores(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "gpus": [g.name for g in gpu_driver.gpus] if gpu_driver else [],
        "cuda": ".".join(map(str, gpu_driver.cuda)) if gpu_driver else None,
        "driver": _first_line("/proc/driver/nvidia/version") if gpu_driver else None,
        "versions": {"dali-run": __version__} | {p: v for p in _PACKAGES if (v := version_of(p))},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return None
