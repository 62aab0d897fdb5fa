"""Messages that describe a job and the resources of a worker to other processes and machines: small, only text and
numbers."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class JobMessage:
    """All that a worker needs to open the job. Created by `fleet.run`; sent to the fork server and to Ray actors."""

    path: str
    """Path of the spec on the driver's machine."""
    text: str
    """Content of the spec file, its bytes decoded as Latin-1 (it may be a serialized pipeline): the file need not exist
    on other machines."""
    overrides: Mapping[str, Any]
    device: str
    """Device: ``cpu``, ``gpu`` (the only one that a worker sees) or ``null``."""
    limit: int | None
    folder: str
    """Folder of the driver, from which relative paths start."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """Context manager: the spec as a file. It is the original one if that has the same content, so that files named
        relative to it are found; otherwise a temporary one."""
        original = Path(self.path)
        text = self.text.encode("latin-1")
        with contextlib.suppress(OSError):
            if original.read_bytes() == text:
                yield original
                return
        with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
            copy = Path(folder, original.name)
            copy.write_bytes(text)
            yield copy

    def enter_folder(self) -> None:
        """Change to the driver's working directory, if this machine has such a folder, so that relative paths mean the
        same."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """The resources of one worker: its share of a machine. Created by `machine.share_cpu` and `share_gpus`."""

    name: str
    """Name of the worker for users: ``GPU 0``, ``process 3``."""
    threads: int
    """Number of threads that the worker uses if the spec does not set it."""
    share: float
    """Share of the host's memory budget."""
    cpus: tuple[int, ...] = ()
    """Cores to which the worker's threads are bound; empty if they are not bound."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES of the worker; None to leave it unchanged."""
    gpu_share: float = 1.0
    """Share of the GPU's memory budget; below 1 if several workers share the GPU."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> WorkerResources:
        """Create the object from the result of `to_dict`."""
        return WorkerResources(**{**fields, "cpus": tuple(fields["cpus"])})
