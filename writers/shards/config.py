"""The `write:` section of a spec: what is written, where to, and how many samples a shard holds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ops.errors import SpecError
from ..base import FieldConfig, Writer, make_writer

_NAME = re.compile(r"[A-Za-z0-9_.+=@-]{1,128}")


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """The ``write:`` section of a spec: where and how a job writes its output."""

    path: Path
    """Folder of the output. If ``url`` is given, the local folder in which shards are made before they are uploaded."""
    name: str
    """Name of the output, with which the names of its shards begin."""
    writer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    """Number of positions of samples per shard: shard k holds the positions [k * samples, (k + 1) * samples), except
    rejected ones. None if it is not given."""
    bytes: int | None = None
    """Size in bytes at which a shard ends, after the record that reaches it; None if it is not given."""
    fields: Mapping[str, FieldConfig] = field(default_factory=dict)
    """Fields of the samples that are written, in this order, and how each is stored."""
    url: str = ""
    """URL of the output; empty if the output is a local folder."""
    split: bool = False
    """Whether the job splits each sample into items (`split_samples`) and writes these. Positions then count the
    samples before the split."""

    leaves_out: bool = False
    """Whether the job may leave samples out on purpose (`keep_if`); they are listed in left_out.jsonl."""
    full: bool = False
    """Whether every shard gets ``samples`` written samples. If False, rejected and left-out ones also count."""
    sha256: bool = False
    """Whether SHA-256 is computed for every file, in addition to the other checksums."""

    @property
    def by_content(self) -> bool:
        """Whether the ends of shards depend on the samples written, such as their sizes, not only on positions."""
        return self.bytes is not None or self.full

    @property
    def where(self) -> str:
        """URL or path of the output, for messages."""
        return self.url or str(self.path)

    def check(self) -> Writer:
        """Check the section, and return the writer that it names. Raises SpecError."""
        if not _NAME.fullmatch(self.name) or self.name.startswith("."):
            raise SpecError(f"name {self.name!r} cannot be part of file names; use letters, digits and _ . + = @ -")
        for limit, value in (("samples", self.samples), ("bytes", self.bytes)):
            if value is not None and value < 1:
                raise SpecError(f"shard: {limit} must be at least 1, got {value}")
        if self.full and self.samples is None:
            raise SpecError("shard: full needs samples, the number of samples per shard")
        if not self.fields:
            raise SpecError("write: fields is empty; name at least one output")
        writer = make_writer(self.writer, self.options)
        if self.url and writer.local_only:
            raise SpecError(f"the {self.writer} writer writes to folders only, not to {self.url}")
        return writer

    def part_range(self, whole: range, part: tuple[int, int]) -> range:
        """Return the positions, out of ``whole``, that part i of n of a job writes. A part writes complete shards, so
        that n parts make the same files as one job. If the written samples decide where shards end, each part has its
        own shards and an equal share of the positions."""
        i, n = part
        unit = (self.samples_of_shard(len(whole), part) or 1) if not self.by_content else 1
        units = -(-len(whole) // unit)
        return whole[units * i // n * unit : units * (i + 1) // n * unit]

    def samples_of_shard(self, whole: int | None, part: tuple[int, int] | None) -> int | None:
        """Return the number of positions per shard; None if one shard gets everything. If no shard size is given, each
        job part writes one shard. ``whole``: number of positions of all parts."""
        samples = self.samples
        if samples is None and self.bytes is None:
            samples = self.check().default_samples
            if samples is None and part is not None and whole is not None:
                samples = max(1, -(-whole // part[1]))
        return samples

    def identity(self) -> dict[str, Any]:
        """Return all settings that decide the output's bytes (JSON-able); compared when a job resumes."""
        return {
            "name": self.name,
            "writer": self.writer,
            "options": dict(self.options),
            "shard": {"samples": self.samples, "bytes": self.bytes, **({"full": True} if self.full else {})},
            "fields": {k: dataclasses.asdict(v) for k, v in self.fields.items()},
            **({"sha256": True} if self.sha256 else {}),
        }
