"""The files writer: one file per sample and field below the output directory, named by the sample's key."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...ops.base import Spec
from ...ops.errors import JobError, SpecError
from ...ops.storage.json_text import parse_json
from ..base import FieldConfig, Frames, KeyBy, Records, Shard, ShardFiles, Writer
from ..bytes import sidecar
from ..bytes.written import Problem, WrittenShard
from .columns import Column, check_field, elements, kind_of, position_names, total_of
from .extensions import file_columns, single
from .names import COMMON, safe_path, split_extension
from .names import texts as as_texts

OWN_NAMES = {"inputs", "journal", "left_out", "manifest", "rejects", "report"}
"""First words in the names of a job's own files, such as ``manifest`` of ``manifest-00001-of-00004.json``."""

_BESIDE = 2
"""Number of attempts to find an unused name in the folder that the sample's key gives."""


class Files(Writer, name="files", suffix=".jsonl"):
    """One file per sample and field, ``<key>.jpg`` for example, in the folders that the keys name.

    Single numbers (labels) go into the shard's listing ``<shard>.jsonl``: one line per sample, with its key, its files
    and its numbers. Two samples with one key get different names. By default a shard has 1000 samples.
    """

    default_samples: ClassVar[int | None] = 1000

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

    def begin(self, root: Path, finished: Sequence[Mapping[str, Any]]) -> UsedPaths:
        """Collect the names of samples and files that earlier runs of the job have used."""
        taken = UsedPaths()
        for entry in finished:
            listing = sidecar.read(sidecar.inside(root, f"{entry['shard']}.jsonl"))
            for line in listing.splitlines():
                row = parse_json(line)
                taken.add(row["name"], row["files"])
        return taken

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return FilesShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        name = shard.file(f"{shard.entry['shard']}.jsonl")
        rows = [parse_json(line) for line in sidecar.read(shard.root / name).splitlines()]
        yield from shard.count(name, len(rows))
        listed = {f["name"] for f in shard.entry["files"]}
        for row in rows:
            for file in row["files"]:
                if file not in listed:
                    yield Problem(name, f"position {row['position']}", f"names {file}, which was not written")


class UsedPaths:
    """Names in use in an output: names of samples, of their files, and of the folders of these files."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.files: set[str] = set()
        self.folders: set[str] = set()

    def add(self, name: str, files: Iterable[str]) -> None:
        """Mark a sample's name and the names of its files as used."""
        self.names.add(name)
        self.files.update(files)
        self.folders.update(_above(name.rpartition("/")[0]))

    def free(self, name: str, files: Sequence[str]) -> bool:
        """Whether a sample may have this name and these files. The name must be unused, no used file may be named like
        one of its folders, and no used folder like one of its files."""
        folders = _above(name.rpartition("/")[0])
        return name not in self.names and self.files.isdisjoint(folders) and self.folders.isdisjoint(files)


@lru_cache(1 << 12)
def _above(folder: str) -> tuple[str, ...]:
    """Return the paths of a folder and its parents."""
    parts = folder.split("/")
    return tuple("/".join(parts[:k]) for k in range(1, len(parts) + 1)) if folder else ()


@dataclass(slots=True)
class FilesFrames(Frames):
    """Records of a batch: names and contents of their files, and their lines for the listing."""

    names: list[str]
    columns: list[tuple[list[str], Column]]
    lines: list[dict[str, Any]]


class FilesShard(Shard):
    """The files of one shard's samples, and the listing that describes them."""

    def __init__(
        self, writer: Files, files: ShardFiles, fields: Mapping[str, FieldConfig], listed: bool = True
    ) -> None:  # fmt: skip
        """``listed``: whether the shard's listing is written."""
        self._by_position = writer.key == "position"
        self._fields = fields
        self._files = files
        self._taken: UsedPaths = files.state
        self._listing = files.create(".jsonl") if listed else None
        self._count = 0

    def frame(self, records: Records) -> FilesFrames:
        positions = records.samples.position.tolist()
        keys = records.sample_keys()
        kinds = {k: kind_of(self._fields.get(k, FieldConfig()), b.dtype, b.ndim) for k, b in records.fields.items()}
        listed = {k: single(records.fields[k]) for k, kind in kinds.items() if kind in ("int", "float")}
        rest = {k: b for k, b in records.fields.items() if k not in listed or not listed[k].all()}
        columns = []
        for name, (extensions, column) in zip(
            rest, file_columns(Records(records.samples, rest), self._fields, listed), strict=True
        ):
            texts = extensions.texts()
            if name in listed:  # single numbers are in the listing
                texts = ["" if one else text for one, text in zip(listed[name].tolist(), texts, strict=True)]
                column = Column(column.data, column.starts, np.where(listed[name], 0, column.sizes))
            columns.append((texts, column))
        if self._by_position:
            names = as_texts(position_names(records.samples))
        else:
            names = self._unique(keys, positions, [texts for texts, _ in columns])
        lines: list[dict[str, Any]] = [
            {"name": names[i], "key": keys[i], "position": positions[i],
             **({} if records.samples.part is None else {"part": int(records.samples.part[i])}),
             "files": [f"{names[i]}.{texts[i]}" for texts, _ in columns if texts[i]]}
            for i in range(len(records))
        ]  # fmt: skip
        for name, ones in listed.items():
            values = elements(records.fields[name].take(ones))[0].tolist()
            for i, value in zip(np.flatnonzero(ones).tolist(), values, strict=True):
                lines[i][f"field:{name}"] = value
        sizes = total_of([np.zeros(len(records), np.int64), *(c.sizes for _, c in columns)])
        return FilesFrames(sizes, names, columns, lines)

    def _unique(self, keys: Sequence[str], positions: Sequence[int], extensions: Sequence[Sequence[str]]) -> list[str]:
        """Return a unique name for each sample. The sample's position is appended to its key if its name, or the names
        of its files, are used already."""
        names, here = [], UsedPaths()
        for i, (key, position) in enumerate(zip(keys, positions, strict=True)):
            name = unique = _name(key)
            for k in itertools.count():
                files = [f"{unique}.{texts[i]}" for texts in extensions if texts[i]]
                if here.free(unique, files) and self._taken.free(unique, files):
                    break
                unique = f"{name}~{position}" + (f"-{k}" if k else "")
                if k == _BESIDE:  # one of its folders is a file: no name below it is possible
                    name = safe_path(name.replace("/", "_"))
            here.add(unique, files)
            names.append(unique)
        return names

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
        for line in frames.lines[:n]:
            self._taken.add(line["name"], line["files"])
        if self._listing is not None:
            self._listing.write("".join(json.dumps(line) + "\n" for line in frames.lines[:n]).encode())


def _name(key: str) -> str:
    """Return the name of the files of the sample with this key: a path below the root, without extension. It is
    distinct from the job's own files, also as a folder, and in any case (some file systems ignore case)."""
    common = COMMON.fullmatch(key)
    name = common[1] if common is not None else split_extension(safe_path(key))[0]
    first, slash, _ = name.partition("/")
    return f"_{name}" if _is_ours(first, bool(slash)) else name


@lru_cache(1 << 12)
def _is_ours(first: str, folder: bool) -> bool:
    """Whether ``first``, the first part of a path, may be the name of one of the job's own files. ``folder``: more
    parts follow."""
    lower = first.lower()
    return re.split("[.-]", lower, maxsplit=1)[0] in OWN_NAMES or (folder and lower.endswith(".jsonl"))
