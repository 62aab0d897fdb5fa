"""Files: one file a sample and field below the output directory, named by the sample's key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.base import Spec
from ...ops.errors import JobError, SpecError
from ..base import FieldConfig, Frames, KeyBy, Records, Shard, ShardFiles, Writer
from .columns import Column, check_field, elements, kind_of, total_of
from .extensions import file_columns, single
from .names import make_unique, safe_path, split_extension

_RESERVED = ("manifest", "journal", "rejects", "report")


class Files(Writer, name="files", suffix=".jsonl"):
    """One file a sample and field, ``<key>.jpg`` and so on, in the folders that the keys name.

    Single numbers (labels) go into the shard's listing ``<shard>.jsonl``: one line a sample, with its key, its files
    and its numbers. Two samples of one key get different names. The commit unit is 1000 samples unless the spec says
    otherwise.
    """

    default_samples = 1000

    key: KeyBy = "sample"

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
            if "/" in name or name.startswith("."):
                raise SpecError(f"field {name!r} cannot be part of a file name")
            if config.extension == "jsonl":
                raise SpecError(f"field {name!r}: extension jsonl is taken by the shards' listings")

    def check_root(self, root: Path, others: Sequence[str]) -> None:
        if others:
            raise JobError(f"{root} is not empty (it holds {others[0]}); the files writer needs a directory of its own")

    def begin(self, root: Path, finished: Sequence[Mapping[str, Any]]) -> set[str]:
        """The names that are taken."""
        taken: set[str] = set()
        for entry in finished:
            with (root / f"{entry['shard']}.jsonl").open(encoding="utf-8") as listing:
                taken.update(json.loads(line)["name"] for line in listing)
        return taken

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return FilesShard(self, files, fields)


@dataclass(slots=True)
class FilesFrames(Frames):
    """What goes into which file."""

    names: list[str]
    columns: list[tuple[list[str], Column]]
    lines: list[dict[str, Any]]


class FilesShard(Shard):
    """The files of one shard, and their listing."""

    def __init__(self, writer: Files, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._by_position = writer.key == "position"
        self._fields = fields
        self._files = files
        self._taken: set[str] = files.state
        self._listing = files.create(".jsonl")
        self._count = 0

    def frame(self, records: Records) -> FilesFrames:
        positions = records.samples.position.tolist()
        keys = records.sample_keys()
        if self._by_position:
            names = [f"{p:010d}" for p in positions]
        else:
            names = make_unique([_name(k) for k in keys], positions, self._taken)
        kinds = {k: kind_of(self._fields.get(k, FieldConfig()), b.dtype, b.ndim) for k, b in records.fields.items()}
        listed = {k: single(records.fields[k]) for k, kind in kinds.items() if kind in ("int", "float")}
        rest = {k: b for k, b in records.fields.items() if k not in listed or not listed[k].all()}
        columns = []
        for name, (extensions, column) in zip(
            rest, file_columns(Records(records.samples, rest), self._fields, listed), strict=True
        ):
            texts = extensions.texts()
            if name in listed:  # one number stands in the listing
                texts = ["" if one else text for one, text in zip(listed[name].tolist(), texts, strict=True)]
                column = Column(column.data, column.starts, np.where(listed[name], 0, column.sizes))
            columns.append((texts, column))
        lines: list[dict[str, Any]] = [
            {"name": names[i], "key": keys[i], "position": positions[i],
             "files": [f"{names[i]}.{texts[i]}" for texts, _ in columns if texts[i]]}
            for i in range(len(records))
        ]  # fmt: skip
        for name, ones in listed.items():
            values = elements(records.fields[name].take(ones))[0].tolist()
            for i, value in zip(np.flatnonzero(ones).tolist(), values, strict=True):
                lines[i][f"field:{name}"] = value
        sizes = total_of([np.zeros(len(records), np.int64), *(c.sizes for _, c in columns)])
        return FilesFrames(sizes, names, columns, lines)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, FilesFrames)
        for i in range(n):
            for extensions, column in frames.columns:
                if not extensions[i]:
                    continue
                file = self._files.create_at(self._count, f"{frames.names[i]}.{extensions[i]}")
                self._count += 1
                start = int(column.starts[i])
                file.write(column.data[start : start + int(column.sizes[i])])
                file.finish()
        self._taken.update(frames.names[:n])
        self._listing.write("".join(json.dumps(line) + "\n" for line in frames.lines[:n]).encode())


def _name(key: str) -> str:
    """Below the root, without extension, apart from our own files."""
    name = split_extension(safe_path(key))[0]
    return f"_{name}" if name.split("-")[0] in _RESERVED else name
