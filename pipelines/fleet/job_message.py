"""A job as it is sent to other processes and machines: small, and nothing but text and numbers."""

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
    """Whatever a worker needs to open the job."""

    path: str
    """Of the spec, on the driver's machine."""
    text: str
    """The bytes of the spec as Latin-1 (it may be a serialized pipeline): the file need not be there elsewhere."""
    overrides: Mapping[str, Any]
    device: str
    """``cpu``, ``gpu`` (the one that a worker sees) or ``null``."""
    limit: int | None
    folder: str
    """Where relative paths start from."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """The spec as a file: its own where that is the same, so that what it names relative to itself is found."""
        own = Path(self.path)
        text = self.text.encode("latin-1")
        with contextlib.suppress(OSError):
            if own.read_bytes() == text:
                yield own
                return
        with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
            copy = Path(folder, own.name)
            copy.write_bytes(text)
            yield copy

    def enter_folder(self) -> None:
        """Make relative paths start where they do for the driver, if there is such a folder here."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """A place for one worker: its share of a machine."""

    name: str
    """For people: ``GPU 0``, ``process 3``."""
    threads: int
    """That it may use where the spec leaves the number to us."""
    share: float
    """Of the host's memory budget."""
    cpus: tuple[int, ...] = ()
    """Cores that its threads are bound to; none: not bound."""
    visible: str | None = None
    """Its CUDA_VISIBLE_DEVICES; None: as it is."""
    gpu_share: float = 1.0
    """Of its GPU's memory budget: less where several workers share the GPU."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @staticmethod
    def of(told: Mapping[str, Any]) -> WorkerResources:
        """From `plain`."""
        return WorkerResources(**{**told, "cpus": tuple(told["cpus"])})
