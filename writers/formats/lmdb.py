"""The LMDB writer: one database directory per shard, built page by page in one pass.

LMDB 0.9 itself accepts the file as its own (format version 1; layout as described in lmdb.h and mdb.c: meta, branch,
leaf and overflow pages of 4096 bytes). Building it here instead of through the library makes the same bytes in every
run, keeps every write under our control, and needs no map size. Large values are written to overflow pages as they
come; keys and small values wait in memory until the shard closes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.batch import I64
from ...ops.errors import SpecError
from ..base import FieldConfig, Frames, KeyBy, Records, Refused, Shard, ShardFiles, Writer
from ..bytes.scatter_gather import U8, ScatteredRecords
from ..bytes.written import Problem, WrittenShard
from .columns import (
    Column,
    as_bytes,
    as_they_are,
    check_encoded,
    check_field,
    copy,
    examples,
    features,
    keys_of,
    kind_of,
    pack,
    position_names,
    starts_of,
)  # fmt: skip
from .names import UsedNames

PAGE = 4096
_HEAD = 16
"""Size in bytes of an LMDB page header: page number u64, padding u16, flags u16, then two bounds u16 each, or a page
count u32."""
_NODE = 8
"""Size in bytes of an LMDB node header: data size or page number in two u16, flags u16, key size u16."""
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8
_BIG = 1
"""Flag of a leaf node whose value is on overflow pages; the node holds the number of the first of these pages."""
_NODE_MAX = ((PAGE - _HEAD) // 2 & ~1) - 2
"""Size in bytes of the largest node that is stored in a leaf page, because two must fit into a page; larger values go
to overflow pages."""
KEY_MAX = 511
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NO_PAGE = 0xFFFFFFFFFFFFFFFF


class LMDB(Writer, name="lmdb", suffix=".lmdb"):
    """LMDB directories (``<shard>.lmdb/data.mdb``), with keys in the order of positions.

    A single encoded field is stored as its bytes, anything else as a serialised Example (as in TFRecord).
    """

    independent = True

    key: KeyBy = "position"
    value: Annotated[Literal["auto", "raw", "example"], Arg("raw: one field's bytes; example: all fields")] = "auto"

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        if self.value == "raw" and len(fields) != 1:
            raise SpecError(f"value: raw stores one field, got {len(fields)} ({', '.join(fields)}); use example")

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        if self.key == "position":
            return ()
        sizes = keys_of(records.samples).sizes
        return [
            Refused(i, "bad_argument", f"the key has {sizes[i]} bytes, LMDB takes 1 to {KEY_MAX}; use key: position")
            for i in np.flatnonzero((sizes < 1) | (sizes > KEY_MAX - 24)).tolist()  # space to make equal keys distinct
        ]

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return LMDBShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        if not shard.sound:  # the library trusts the file that it maps
            return
        import lmdb

        name = shard.file(".lmdb/data.mdb")
        try:
            with (
                lmdb.open(str((shard.root / name).parent), readonly=True, lock=False, create=False) as env,
                env.begin(buffers=True) as txn,
            ):
                found = sum(1 for _ in txn.cursor().iternext(keys=True, values=True))
        except lmdb.Error as e:
            raise ValueError(str(e)) from e
        yield from shard.count(name, found)


@dataclass(slots=True)
class LMDBFrames(Frames):
    """Records of a batch as keys and values of an LMDB database."""

    keys: Column
    values: ScatteredRecords


class LMDBShard(Shard):
    """One LMDB database file, data.mdb."""

    def __init__(self, writer: LMDB, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._writer = writer
        self._fields = fields
        self._file = files.create_in_directory(".lmdb", "data.mdb", patched=True)
        self._file.write(bytes(2 * PAGE))  # the meta pages are written last
        self._next_page = 2
        self._overflow_pages = 0
        self._keys: list[Column] = []
        self._inline: list[Column] = []
        """Data of the leaf nodes, one per record: the record's value, or the number of its overflow page."""
        self._sizes: list[I64] = []
        self._taken = UsedNames()

    def frame(self, records: Records) -> LMDBFrames:
        positions = records.samples.position
        if self._writer.key == "position":
            keys = position_names(records.samples)
        else:
            keys = self._taken.unique(keys_of(records.samples), positions)
        values = self._values(records)
        totals = values.totals
        in_leaf = _NODE + keys.sizes + totals
        pages = -(-(totals + _HEAD) // PAGE) * PAGE
        sizes = np.where(in_leaf > _NODE_MAX, pages + _NODE + keys.sizes + 8, in_leaf) + 2
        return LMDBFrames(sizes, keys, values)

    def _values(self, records: Records) -> ScatteredRecords:
        fields = records.fields
        raw = self._writer.value == "raw"
        if self._writer.value == "auto" and len(fields) == 1:
            ((name, batch),) = fields.items()
            raw = kind_of(self._fields.get(name, FieldConfig()), batch.dtype, batch.ndim) == "bytes"
        if raw:
            ((name, batch),) = fields.items()
            check_encoded(name, self._fields.get(name, FieldConfig()), batch)
            return as_they_are(as_bytes(batch))
        return examples(features(fields, self._fields), len(records))

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, LMDBFrames)
        keys, values = _first(frames.keys, n), frames.values.take(slice(0, n))
        sizes = values.totals
        big = _NODE + keys.sizes + sizes > _NODE_MAX
        inline_sizes = np.where(big, 8, sizes)
        inline = np.empty(int(inline_sizes.sum()), np.uint8)
        starts = starts_of(inline_sizes)
        copy(inline, starts[~big], pack(values.take(~big)))
        if big.any():
            numbers = self._put_overflow(values.take(big))
            copy(
                inline,
                starts[big],
                Column(numbers.view(np.uint8), np.arange(len(numbers)) * 8, np.full(len(numbers), 8)),
            )
        self._keys.append(keys)
        self._inline.append(Column(inline, starts, inline_sizes))
        self._sizes.append(sizes)
        if self._writer.key != "position":
            self._taken.add(keys)

    def _put_overflow(self, values: ScatteredRecords) -> I64:
        """Write each value on overflow pages of its own. Return the numbers of their first pages."""
        totals, small = values.totals, values.ends - values.starts
        counts = -(-(totals + _HEAD) // PAGE)
        numbers = self._next_page + starts_of(counts)
        heads = np.zeros((len(counts), _HEAD), np.uint8)
        heads[:, 0:8] = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
        heads[:, 10] = _OVERFLOW
        heads[:, 12:16] = counts.astype("<u4").view(np.uint8).reshape(-1, 4)
        # per value: page header, the value's small bytes, zeros after the value; its large bytes are not copied
        here = counts * PAGE - (totals - small)
        starts = starts_of(here)
        own = np.zeros(int(here.sum()), np.uint8)
        copy(own, starts, Column(heads.reshape(-1), np.arange(len(heads)) * _HEAD, np.full(len(heads), _HEAD)))
        copy(own, starts + _HEAD, Column(values.own, values.starts, small))
        cuts = values.cuts + (starts + _HEAD - values.starts)
        pages = replace(values, own=own, starts=starts, ends=starts + here, cuts=cuts)
        self._file.write(pages.io_vector(len(pages)))
        self._next_page += int(counts.sum())
        self._overflow_pages += int(counts.sum())
        return numbers

    # -- the tree -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        keys, inline, sizes = (
            _concat(self._keys),
            _concat(self._inline),
            np.concatenate([np.zeros(0, np.int64), *self._sizes]),
        )
        n = len(keys)
        if self._writer.key != "position" and n:
            order = _order(keys)
            keys, inline, sizes = _at(keys, order), _at(inline, order), sizes[order]
        leaves = branches = depth = 0
        root = _NO_PAGE
        if n:
            heads = np.zeros((n, _NODE), np.uint8)
            heads[:, 0:4] = sizes.astype("<u4").view(np.uint8).reshape(-1, 4)
            heads[:, 4] = np.where(_NODE + keys.sizes + sizes > _NODE_MAX, _BIG, 0)
            pages, firsts = self._put_level(_LEAF, heads, keys, inline)
            leaves, depth = len(pages), 1
            while len(pages) > 1:
                level = _at(keys, firsts)
                pages, inner = self._put_branches(pages, level)
                firsts = firsts[inner]
                branches += len(pages)
                depth += 1
            root = int(pages[0])
        self._put_metas(depth, branches, leaves, n, root)

    def _put_branches(self, children: I64, keys: Column) -> tuple[I64, I64]:
        heads = np.zeros((len(children), _NODE), np.uint8)
        heads[:, 0:6] = children.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :6]
        empty = Column(np.zeros(1, np.uint8), np.zeros(len(children), np.int64), np.zeros(len(children), np.int64))
        return self._put_level(_BRANCH, heads, keys, empty)

    def _put_level(self, flags: int, heads: U8, keys: Column, values: Column) -> tuple[I64, I64]:
        """Write the pages of one level of the B-tree, whose nodes are ``heads``, keys and values. Return the numbers of
        the pages, and the index of the first node of each."""
        from ..bytes import frames_cpu

        room = PAGE - _HEAD
        nodes = _NODE + keys.sizes + values.sizes
        breaks = frames_cpu.pack_nodes(nodes + (nodes & 1) + 2, room)
        if flags == _BRANCH and len(breaks) > 2 and breaks[-1] - breaks[-2] == 1:
            breaks[-2] -= 1  # a branch has at least two children
        firsts = np.ascontiguousarray(breaks[:-1])
        sizes = keys.sizes.copy()
        if flags == _BRANCH:
            sizes[firsts] = 0  # all keys below the second one are in the first child
        heads[:, 6:8] = sizes.astype("<u2").view(np.uint8).reshape(-1, 2)
        out = np.zeros(len(firsts) * PAGE, np.uint8)
        frames_cpu.put_pages(
            out, PAGE, self._next_page, flags, breaks, heads, keys.data, keys.starts, sizes, values.data, values.starts,
            values.sizes,
        )  # fmt: skip
        self._file.write(out)
        numbers = self._next_page + np.arange(len(firsts), dtype=np.int64)
        self._next_page += len(firsts)
        return numbers, firsts

    def _put_metas(self, depth: int, branches: int, leaves: int, entries: int, root: int) -> None:
        """Write the two meta pages of the database: the empty database of transaction 0, and transaction 1, which added
        everything."""
        free = struct.pack("<IHHQQQQQ", PAGE, 0, 0, 0, 0, 0, 0, _NO_PAGE)
        none = struct.pack("<IHHQQQQQ", 0, 0, 0, 0, 0, 0, 0, _NO_PAGE)
        main = struct.pack("<IHHQQQQQ", 0, 0, depth, branches, leaves, self._overflow_pages, entries, root)
        for number, tree, last_page in ((0, none, 1), (1, main, self._next_page - 1)):
            page = struct.pack("<QHHI", number, 0, _META, 0)
            page += struct.pack("<IIQQ", _MAGIC, _VERSION, 0, self._next_page * PAGE)
            page += free + tree + struct.pack("<QQ", last_page, number)
            self._file.rewrite(number * PAGE, page)


def _order(keys: Column) -> I64:
    """Return the indices that sort the keys by their bytes; a key precedes longer keys that begin with it."""
    width = int(keys.sizes.max())
    padded = np.zeros((len(keys), width), np.uint8)
    copy(padded.reshape(-1), np.arange(len(keys)) * width, keys)
    # NumPy ignores zeros at the end: keys that differ only in them are sorted by their lengths
    order: I64 = np.lexsort((keys.sizes, padded.view(f"S{width}").reshape(-1)))
    return order


def _first(column: Column, n: int) -> Column:
    return Column(column.data, column.starts[:n], column.sizes[:n])


def _at(column: Column, where: Any) -> Column:
    return Column(column.data, np.ascontiguousarray(column.starts[where]), np.ascontiguousarray(column.sizes[where]))


def _concat(columns: Sequence[Column]) -> Column:
    if not columns:
        return Column(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    bases = starts_of(np.array([c.data.size for c in columns]))
    return Column(
        np.concatenate([c.data for c in columns]),
        np.concatenate([c.starts + base for c, base in zip(columns, bases, strict=True)]),
        np.concatenate([c.sizes for c in columns]),
    )
