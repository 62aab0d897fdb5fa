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
    """Message with everything that a worker needs to open the job. Created by `fleet.run`; sent to the fork server and
    to Ray actors."""

    path: str
    """Path of the spec on the driver's machine."""
    text: str
    """Content of the spec file, because other machines need not have the file. Its bytes are decoded as Latin-1, since
    it may be a serialized pipeline."""
    overrides: Mapping[str, Any]
    device: str
    """Device on which the worker computes: ``cpu``, ``gpu`` (the only GPU that the worker sees) or ``null``."""
    limit: int | None
    folder: str
    """Working directory of the driver, from which relative paths start."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """Context manager that yields the path of a spec file with the content `text`: the original file, if it still
        has this content, so that files named relative to it are found; otherwise a temporary file."""
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
        """Change to the driver's working directory, so that relative paths mean the same as there. Do nothing if this
        machine has no such folder."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """A worker's share of the cores, memory and GPUs of a machine. Created by `machine.share_cpu` and `share_gpus`."""

    name: str
    """Name of the worker for users, such as ``GPU 0`` or ``process 3``."""
    threads: int
    """Number of threads that the worker uses if the spec does not set a number."""
    share: float
    """Fraction of the machine's memory budget that the worker gets, 0 to 1."""
    cpus: tuple[int, ...] = ()
    """Numbers of the CPU cores to which the worker's threads are bound; empty if they are not bound."""
    visible: str | None = None
    """Value of CUDA_VISIBLE_DEVICES for the worker; None to leave the variable unchanged."""
    gpu_share: float = 1.0
    """Fraction of the GPU's memory budget that the worker gets; below 1 if several workers share the GPU."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> WorkerResources:
        """Create an object from a dictionary that `to_dict` has returned."""
        return WorkerResources(**{**fields, "cpus": tuple(fields["cpus"])})
