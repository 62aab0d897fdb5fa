"""A published shard, as `Writer.walk` reads it for `verify`, and the problems found in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that `verify` found in an output."""

    file: str
    where: str
    """Position of the problem in the file, such as ``record 12 at byte 3456``; empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}{f', {self.where}' if self.where else ''}: {self.message}"


class UnreadError(Exception):
    """Raised if a shard's records cannot be read on this machine. The message is the reason (``pyarrow is
    missing``)."""


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """One shard of an output that `verify` checks; its files may be damaged."""

    root: Path
    entry: Mapping[str, Any]
    """The shard's line of the journal: its files, with checksums, and numbers of samples."""
    options: Mapping[str, Any]
    """Options of the writer that wrote the shard."""
    sound: bool
    """Whether all files of the shard have the checksums that the journal lists."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The facts that `Writer.schema` returned for the job; empty in outputs of older versions."""

    def file(self, suffix: str) -> str:
        """Return the name of the shard's file with this suffix. Raises LookupError if the journal names none."""
        for info in self.entry["files"]:
            if info["name"].endswith(suffix):
                return str(info["name"])
        raise LookupError(f"the journal names no file {suffix} of this shard")

    def count(self, name: str, found: int) -> Iterator[Problem]:
        """Yield a problem if the file ``name`` holds another number of records than the journal says."""
        if found != self.entry["samples"]:
            yield Problem(name, "", f"holds {found} records, {self.entry['samples']} were written")


def map_file(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the file's bytes, mapped copy-on-write, because compiled code takes only writable arrays."""
    return np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
