"""The WebDataset writer: tar files in which the members of one sample share a key and differ in extension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.batch import I64
from ...ops.errors import SpecError
from ..base import FieldConfig, Frames, KeyBy, Records, Shard, ShardFiles, Writer
from ..bytes import sidecar
from ..bytes.scatter_gather import U8, ScatteredRecords
from ..bytes.written import Problem, WrittenShard, map_file
from .columns import Column, LargeValues, check_field, copy, from_values, keys_of, position_names, starts_of
from .extensions import Extensions, file_columns
from .names import UsedNames, webdataset_key

BLOCK = 512
_INDEX_VERSION = b"v1.2"


class WebDataset(Writer, name="webdataset", suffix=".tar"):
    """Tar files for webdataset, DALI's readers.webdataset, and tar itself.

    A field named like an extension (jpg, txt, json, npy) is the member ``<key>.<field>``. Other encoded fields become
    ``<key>.jpg`` for example (kept bytes by their signature), one integer becomes ``<key>.cls``, arrays become
    ``<key>.npy``; if two fields share an extension the member is ``<field>.<extension>``. Members carry no times or
    owners.
    """

    independent = True

    key: KeyBy = "sample"
    index: Annotated[bool, Arg("also write <shard>.idx, as wds2idx does, for DALI's reader")] = True

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
            if "." in name or "/" in name or any(c.isspace() for c in name):
                raise SpecError(f"field {name!r} cannot be part of a member's name; avoid dots, slashes and spaces")

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return WebDatasetShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        name = shard.file(".tar")
        data = map_file(shard.root / name)
        at = 0
        keys: set[bytes] = set()
        contents: list[tuple[int, int]] = []
        while (head := data[at : at + 512].tobytes()).strip(b"\0"):
            where = f"member at byte {at}"
            total = sum(head) - sum(head[148:156]) + 8 * 32
            if len(head) < 512 or int(head[148:154].strip(b" \0") or b"0", 8) != total:
                yield Problem(name, where, f"the header is damaged; {len(data) - at} bytes cannot be read")
                break
            size = int(head[124:135], 8)
            end = at + 512 + size
            if end > len(data):
                yield Problem(name, where, f"{size} bytes should follow, {len(data) - at - 512} do")
                break
            if head[156:157] == b"L":
                member = data[at + 512 : end].tobytes().rstrip(b"\0")
                at += 512 + -(-size // 512) * 512
                size = int(data[at + 124 : at + 135].tobytes(), 8)
            else:
                prefix = head[345:500].rstrip(b"\0")
                member = (prefix + b"/" if prefix else b"") + head[:100].rstrip(b"\0")
            folder, _, base = member.rpartition(b"/")
            keys.add(folder + b"/" + base.partition(b".")[0])
            contents.append((at + 512, size))
            at += 512 + -(-size // 512) * 512
        else:
            if len(data) - at != 1024:
                yield Problem(name, f"byte {at}", "the archive does not end in two empty blocks")
        yield from shard.count(name, len(keys))
        if shard.options.get("index", True):
            index = shard.file(".idx")
            lines = [line.split(b" ") for line in sidecar.read(shard.root / index).splitlines()]
            listed = [(int(line[k + 1]), int(line[k + 2])) for line in lines[1:] for k in range(0, len(line), 4)]
            if lines[0] != [_INDEX_VERSION, b"%d" % len(keys)] or listed != contents:
                yield Problem(index, "", "does not say where the members are")


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the tar members of a batch, ``<key>.<extension>``, as columns of keys and extensions."""

    keys: Column
    extensions: Column
    """All file name extensions that occur in the batch."""
    which: I64
    """For each record and field, the index in ``extensions`` of its member's extension, [records, fields]."""

    def of_first(self, n: int) -> tuple[U8, I64, I64, U8, I64, I64]:
        """Return the names of the members of the first ``n`` records, as arrays for compiled loops."""
        keys, ends = self.keys, np.append(self.extensions.starts, self.extensions.data.size)
        return keys.data, keys.starts[:n], keys.sizes[:n], self.extensions.data, ends, self.which[:n]


@dataclass(slots=True)
class TarFrames(Frames):
    """Tar members of all records of a batch, with their headers; large contents are not copied."""

    records: ScatteredRecords
    names: _Names
    content: I64
    """Offset of each member's content, from the start of the batch's first record."""
    content_sizes: I64


class WebDatasetShard(Shard):
    """One tar file, and its index."""

    def __init__(self, writer: WebDataset, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._by_position = writer.key == "position"
        self._fields = fields
        self._file = files.create(".tar")
        self._index = files.create(".idx") if writer.index else None
        self._lines: list[bytes] = []
        self._count = 0
        self._taken = UsedNames()

    def frame(self, records: Records) -> TarFrames:
        from . import tar_cpu

        columns = file_columns(records, self._fields)
        table: dict[str, int] = {}
        which = np.stack([_numbered(e, table) for e, _ in columns], axis=1)
        names = _Names(self._keys(records), from_values([e.encode() for e in table]), which)
        named = names.of_first(len(records))
        sizes = np.stack([c.sizes for _, c in columns], axis=1).reshape(-1)
        heads = tar_cpu.head_sizes(*named[:3], *named[4:])
        members = heads + -(-sizes // BLOCK) * BLOCK
        large_values = LargeValues([c for _, c in columns], len(records))
        copied = sizes * np.tile([not len(cuts) for cuts in large_values.cuts_of], len(records))
        here = members - sizes + copied
        ends, at = np.cumsum(here), starts_of(here) + heads
        own = np.empty(int(here.sum()), np.uint8)
        tar_cpu.put_heads(own, at, heads, sizes, copied, *named)
        for k, ((_, column), cuts) in enumerate(zip(columns, large_values.cuts_of, strict=True)):
            if len(cuts):
                cuts[:] = at[k :: len(columns)]
            else:
                copy(own, at[k :: len(columns)], column)
        first, last = (at - heads)[:: len(columns)], ends[len(columns) - 1 :: len(columns)]
        scattered = large_values.records(own, first, last)
        return TarFrames(members.reshape(which.shape).sum(axis=1), scattered, names, starts_of(members) + heads, sizes)

    def _keys(self, records: Records) -> Column:
        from . import tar_cpu

        if self._by_position:
            return position_names(records.samples)
        keys = keys_of(records.samples)
        sizes = tar_cpu.common_sizes(keys.data, keys.starts, keys.sizes)
        if (sizes < 0).any():
            keys = from_values(
                [webdataset_key(keys.value(i).decode("utf-8", "surrogateescape")).encode() for i in range(len(keys))]
            )
        else:
            keys = Column(keys.data, keys.starts, sizes)
        return self._taken.unique(keys, records.samples.position)

    def append(self, frames: Frames, n: int) -> None:
        from . import tar_cpu

        assert isinstance(frames, TarFrames)
        keys, named = frames.names.keys, frames.names.of_first(n)
        if self._index is not None:
            members = named[-1].size
            room = members * (43 + int(keys.sizes.max()) + 2 * int(frames.names.extensions.sizes.max()))
            lines = np.empty(room, np.uint8)
            content = frames.content[:members] + self._file.size
            used = tar_cpu.put_index(lines, content, frames.content_sizes[:members], *named)
            self._lines.append(lines[:used].tobytes())
            self._count += n
        if not self._by_position:
            self._taken.add(Column(*named[:3]))
        self._file.write(frames.records.io_vector(n))

    def close(self) -> None:
        self._file.write(bytes(2 * BLOCK))
        if self._index is not None:
            self._index.write(b"%s %d\n" % (_INDEX_VERSION, self._count) + b"".join(self._lines))


def _numbered(extensions: Extensions, table: dict[str, int]) -> I64:
    """Return the index in ``table`` of each record's extension; new extensions are added to ``table``."""
    numbers = np.array([table.setdefault(e, len(table)) for e in extensions.table], np.int64)
    return numbers[extensions.which]
