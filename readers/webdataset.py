"""readers.webdataset: read samples of tar archives, with one output per requested extension."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.context import Context
from ..ops.errors import JobError, RejectCode, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.types import DALIDataType, to_numpy
from .fetch import index_cache
from .fetch.extents import MAX_RECORD, U8, Groups, Mapped, expand, in_utf8, one_or_more, payload, short_names
from .fetch.remote import local_copy
from .join.reader import JoiningReader

I64 = npt.NDArray[np.int64]

_VERSION = 4  # version of the cached index's layout
_BLOCK = 1 << 15
_THREADS = 16
_COLUMNS = 6
# columns and kinds of a member, equal to the constants of tar_cpu
_HEADER, _DATA, _SIZE, _KIND, _NAME, _NAME_SIZE = range(_COLUMNS)
_GOOD, _LOST, _TRUNCATED, _UNSUPPORTED, _HARD_LINK, _SYMBOLIC_LINK = range(6)


@dataclass(frozen=True, slots=True)
class _Archive:
    """Index of one archive: its members, their names, and the members of each sample."""

    members: I64
    names: U8
    firsts: I64
    """Index in ``members`` of the first member of each sample."""
    parts: I64
    """For each sample and output, the index of the tar member that holds it, or -1 if the sample has none. Shape
    [samples, outputs]."""


@dataclass(frozen=True, slots=True)
class _Extensions:
    """File name extensions of all outputs, as arrays for compiled loops."""

    text: U8
    starts: I64
    outputs: I64
    count: int
    case: bool

    @staticmethod
    def of(ext: tuple[str, ...], case: bool) -> _Extensions:
        pairs = [(e.encode(), k) for k, alternatives in enumerate(ext) for e in alternatives.split(";")]
        starts = np.cumsum([0, *(len(e) for e, _ in pairs)]).astype(np.int64)
        text = np.frombuffer(bytearray(b"".join(e for e, _ in pairs) + b"\0"), np.uint8)
        return _Extensions(text, starts, np.array([k for _, k in pairs], np.int64), len(ext), case)


class _Samples(BatchedOrigins):
    """Data set of the reader `WebDataset`, opened: the samples of all tar archives, by number."""

    def __init__(self, reader: WebDataset) -> None:
        paths = expand(one_or_more(reader.paths))
        self._missing = reader.missing_component_behavior or "empty"
        self._ext = reader.ext
        self._dtypes = [to_numpy(d) for d in reader.output_dtypes]
        self._mapped = Mapped(paths)
        wanted = _Extensions.of(reader.ext, reader.case_sensitive_extensions)
        if reader.index_paths:  # DALI's default is an empty list
            listed = expand(one_or_more(reader.index_paths))
            if len(listed) != len(paths):
                raise JobError(f"{len(listed)} index files for {len(paths)} archives; give one for each")
            archives = [_listed(p, self._mapped, i, wanted) for i, p in enumerate(listed)]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
                archives = list(pool.map(lambda i: _grouped(self._mapped, i, wanted), range(len(paths))))
        if self._missing == "skip":
            archives = [_complete(a) for a in archives]
        self._archives = archives
        self._files = Groups(np.array([len(a.firsts) for a in archives], np.int64))
        self.groups: I64 | None = self._files.counts
        self._names = short_names(paths)
        # one table of all archives: the extent of each part of each sample
        tables = [_table(a, int(start)) for a, start in zip(archives, self._mapped.starts, strict=True)]
        self._offsets, self._sizes, self._kinds = (np.concatenate(t) for t in zip(*tables, strict=True))
        self._unique = self._are_unique()
        if len(self) and bool((self._kinds > _GOOD).any(axis=1).all()):
            reason = self._why(0, int(self._kinds[0].max()))[1]
            first = self.origin(0)
            raise JobError(f"{first.source}: byte {first.offset}: {reason}; is it a tar archive?")

    def _are_unique(self) -> bool:
        """Whether no two samples have the same key. Hashes are compared, because the keys of millions of samples take
        much memory as texts."""
        from .tar_cpu import hash_keys

        hashes = []
        for a in self._archives:
            first = a.members[a.firsts]
            out = np.empty(len(first), np.uint64)
            at, sizes = np.ascontiguousarray(first[:, _NAME]), np.ascontiguousarray(first[:, _NAME_SIZE])
            hash_keys(a.names, at, sizes, out)
            hashes.append(out)
        everything = np.sort(np.concatenate(hashes))
        return not (everything[1:] == everything[:-1]).any()

    def __len__(self) -> int:
        return len(self._offsets)

    def origins_of(self, index: I64) -> list[Origin]:
        """Origins of the samples ``index``, for reports. A sample's key is the common name of its tar members; if
        another sample has the same key, archive and number are added."""
        found: list[Origin | None] = [None] * len(index)
        for i, file, number, header, name in self._first_members(index):
            path, text = self._mapped.paths[file], name.decode("utf-8", "backslashreplace")
            found[i] = Origin(self._key(file, number, text), path, number, header, f"{path}:{header}:{text}")
        return [o for o in found if o is not None]

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the samples ``index``, as `origin` returns them, in UTF-8."""
        found = [b""] * len(index)
        for i, file, number, _, name in self._first_members(index):
            plain = self._unique and name and name.isascii()
            found[i] = name if plain else in_utf8(self._key(file, number, name.decode("utf-8", "backslashreplace")))
        return found

    def _key(self, file: int, number: int, name: str) -> str:
        """Key of the sample with this number in its archive, whose members have the common ``name``."""
        if self._unique and name:
            return name
        return f"{self._names[file]}/{name}#{number:08d}" if name else f"{self._names[file]}/{number:08d}"

    def _first_members(self, index: I64) -> Iterator[tuple[int, int, int, int, bytes]]:
        """Yield for each of the samples ``index``, archive by archive: its position in ``index``, the number of its
        archive, its number there, the offset of its first member's header, and the common name of its members."""
        files = self._files.files(index)
        records = index - self._files.firsts[files]
        for file in np.unique(files).tolist():
            here = np.flatnonzero(files == file)
            archive, numbers = self._archives[file], records[here]
            rows = archive.members[archive.firsts[numbers]]
            columns = (here, numbers, rows[:, 0], rows[:, _NAME], rows[:, _NAME_SIZE])
            for i, number, header, at, size in zip(*(c.tolist() for c in columns), strict=True):
                name = archive.names[at : at + size].tobytes()
                dot = name.find(b".", name.rfind(b"/") + 1)
                yield i, file, number, header, name if dot < 0 else name[:dot]

    def fingerprint(self) -> str:
        return self._mapped.fingerprint(self._names, self._offsets, self._sizes)

    def inventory(self) -> InventoryEntries:
        return self._mapped.inventory(self._names, self._files.counts, "plain" if self._unique else "with archive")

    def close(self) -> None:
        """Do nothing: the files stay mapped until the last batch that is a view of them is gone."""

    def _why(self, index: int, kind: int) -> tuple[RejectCode, str]:
        damage = self._mapped.damage.get(self._files.locate(index)[0])
        size = int(self._sizes[index].max())
        if kind == _TRUNCATED and not size:
            return "truncated", damage or "the archive ends inside a member, or in its padding; what follows is lost"
        if kind == _TRUNCATED:
            return "truncated", damage or f"the archive ends inside a member; the last {size} bytes are lost"
        if kind == _UNSUPPORTED:
            return "unsupported", "a member is a sparse file, or a link to what is no member before it"
        return "corrupt_record", damage or f"no member begins here or in the {size} bytes from here; they are lost"

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        which = ctx.samples.index
        offsets, sizes, kinds = (table.take(which, axis=0) for table in (self._offsets, self._sizes, self._kinds))
        missing = kinds < 0
        good = (missing | (kinds == _GOOD)).all(axis=1)
        first = offsets.min(axis=1)
        self._mapped.will_need(ctx, first, (offsets + sizes).max(axis=1) - first)
        gone = self._mapped.truncated(offsets.max(axis=1))
        large = (sizes > MAX_RECORD).any(axis=1)
        for i in np.flatnonzero(~good | gone | large).tolist():
            if gone[i]:
                ctx.reject(i, "read_failed", "the archive was cut short while the job ran")
            elif not good[i]:
                ctx.reject(i, *self._why(int(which[i]), int(kinds[i].max())))
            else:
                ctx.reject(
                    i, "too_large", f"a member has {int(sizes[i].max())} bytes; at most {MAX_RECORD} are allowed"
                )
        good &= ~(gone | large)
        if self._missing == "error":
            for i in np.flatnonzero(good & missing.any(axis=1)).tolist():
                absent = ", ".join(repr(e) for e, m in zip(self._ext, missing[i].tolist(), strict=True) if m)
                ctx.reject(i, "missing_feature", f"the sample has no member with extension {absent}")
                good[i] = False
        out = []
        for k, dtype in enumerate(self._dtypes):
            odd = good & (sizes[:, k] % dtype.itemsize != 0)
            for i in np.flatnonzero(odd).tolist():
                ctx.reject(
                    i, "bad_shape", f"{int(sizes[i, k])} bytes of {self._ext[k]!r} are no whole number of {dtype}"
                )
            good &= ~odd
            there = good & ~missing[:, k]
            at, nbytes = np.where(there, offsets[:, k], 0), np.where(there, sizes[:, k], 0)
            batch = payload(ctx, self._mapped.data, at, nbytes, k)
            out.append(_as(batch, dtype))
        return tuple(out)


def _as(batch: Batch, dtype: np.dtype[np.generic]) -> Batch:
    """Return a batch of members' bytes as a view of type ``dtype``. This is possible because members begin at multiples
    of 512 bytes, copies at multiples of 16."""
    if dtype.itemsize == 1:
        return batch.replace(data=batch.data.view(dtype))
    whole = len(batch.data) // dtype.itemsize * dtype.itemsize
    shapes = batch.shapes // dtype.itemsize
    return Batch(batch.data[:whole].view(dtype), batch.offsets // dtype.itemsize, shapes, "", batch.samples)


def members_of(path: str) -> list[tuple[str, int, int]]:
    """Name, offset and size of the files in the archive ``path``. Raises JobError if it is damaged or compressed."""
    mapped = Mapped([path])
    if mapped.unpacked[0]:
        raise JobError(f"{path}: is compressed, so that its members have no offsets; unpack it first")
    members, names = _members(mapped, 0)
    found = []
    for row in members.tolist():
        if row[_KIND] != _GOOD:
            raise JobError(f"{path}: the member at byte {row[_HEADER]} is damaged, or is not a regular file")
        name = names[row[_NAME] : row[_NAME] + row[_NAME_SIZE]].tobytes()
        found.append((os.fsdecode(name), row[_DATA], row[_SIZE]))
    return found


def _table(archive: _Archive, start: int) -> tuple[I64, I64, I64]:
    """Offset, size and kind of each sample's members, each of shape [samples, outputs]; kind -1 for a missing member.
    ``start``: offset of the archive in the mapping."""
    there = archive.parts >= 0
    rows = archive.members[np.where(there, archive.parts, archive.firsts[:, None])]
    kinds = np.where(there, rows[:, :, _KIND], -1)
    return start + rows[:, :, _DATA], np.where(there, rows[:, :, _SIZE], 0), kinds


def _complete(archive: _Archive) -> _Archive:
    """Return the archive without samples that lack a member for one of the outputs. Damaged samples stay, to be
    reported."""
    keep = (archive.parts >= 0).all(axis=1)
    return _Archive(archive.members, archive.names, archive.firsts[keep], archive.parts[keep])


def _grouped(mapped: Mapped, i: int, wanted: _Extensions) -> _Archive:
    from .tar_cpu import group

    members, names = _members(mapped, i)
    firsts, parts = np.empty(len(members), np.int64), np.empty((len(members), wanted.count), np.int64)
    n = group(members, names, wanted.text, wanted.starts, wanted.outputs, wanted.case, firsts, parts)
    return _Archive(members, names, firsts[:n].copy(), parts[:n].copy())


def _members(mapped: Mapped, i: int) -> tuple[I64, U8]:
    """Return the members of the tar archive ``i`` and their names, from the cached index or by scanning the archive."""
    start, size = int(mapped.starts[i]), int(mapped.sizes[i])
    path, key = mapped.local[i], (_VERSION, int(mapped.stored[i]), int(mapped.mtimes[i]))
    if not mapped.unpacked[i]:
        cached = index_cache.load(path, "tar", *key, columns=_COLUMNS + 1)
        if cached is not None and len({len(c) for c in cached[:-1]}) == 1:
            members = np.stack(cached[:-1], axis=1)
            if _inside(members, size, 8 * len(cached[-1])):
                return members, cached[-1].view(np.uint8)
    members, names = _walk(mapped, start, start + size)
    if i in mapped.damage and (len(members) == 0 or members[-1, _KIND] == _GOOD):
        members = np.concatenate([members, [[size, size, 0, _LOST, 0, 0]]])
    if not mapped.unpacked[i]:
        text = np.concatenate([names, np.zeros(-len(names) % 8, np.uint8)]).view(np.int64)
        index_cache.store(path, "tar", *key, columns=[*members.T, text])
    return members, names


def _inside(members: I64, size: int, nbytes: int) -> bool:
    """Whether the ``members`` of a cached index are inside their archive of ``size`` bytes, and their names inside the
    index's ``nbytes`` bytes of names."""
    low, lengths = members[:, [_HEADER, _DATA, _NAME]], members[:, [_SIZE, _SIZE, _NAME_SIZE]]
    ends = np.array([size, size, nbytes])
    lengths = np.where(np.array([False, True, True]), lengths, 0)
    good = (low >= 0) & (lengths >= 0) & (low <= ends) & (lengths <= ends - low)
    return bool(good.all() and np.isin(members[:, _KIND], range(4)).all())


def _walk(mapped: Mapped, start: int, stop: int) -> tuple[I64, U8]:
    from .tar_cpu import walk

    blocks: list[I64] = []
    texts: list[U8] = []
    at, used = start, 0
    while at < stop:
        block, text = np.empty((_BLOCK, _COLUMNS), np.int64), np.empty(_BLOCK * 64, np.uint8)
        state = np.array([at, 0], np.int64)
        n = walk(mapped.data, start, stop, block, text, state)
        at = int(state[0])
        block[:n, _NAME] += used
        block[:n, _DATA] += np.where(block[:n, _KIND] >= _HARD_LINK, used, 0)
        used += int(state[1])
        blocks.append(block[:n].copy())
        texts.append(text[: state[1]].copy())
    if not blocks:
        return np.empty((0, _COLUMNS), np.int64), np.empty(1, np.uint8)
    members, names = np.concatenate(blocks), np.concatenate([*texts, np.zeros(1, np.uint8)])
    return _follow(members, names), names


def _follow(members: I64, names: U8) -> I64:
    """Give links in a tar archive the extents of the members to which they point. Links that point out of the archive
    become unsupported. (GNU tar stores the second name of a file as a hard link.)"""
    links = np.flatnonzero(members[:, _KIND] >= _HARD_LINK)
    if not len(links):
        return members
    text = names.tobytes()
    found: dict[str, int] = {}
    keep = np.ones(len(members), np.bool_)
    at = 0
    for i in [*links.tolist(), len(members)]:
        for k in range(at, i):  # the last of several equal names counts, as when unpacking
            found[_plain(text, members[k, _NAME], members[k, _NAME_SIZE])] = k
        at = i + 1
        if i == len(members):
            break
        name = _plain(text, members[i, _NAME], members[i, _NAME_SIZE])
        target = text[members[i, _DATA] : members[i, _DATA] + members[i, _SIZE]].decode("utf-8", "surrogateescape")
        if members[i, _KIND] == _SYMBOLIC_LINK:
            target = posixpath.join(posixpath.dirname(name), target)
        to = found.get(posixpath.normpath(target), -1)
        if to >= 0:
            members[i, [_DATA, _SIZE, _KIND]] = members[to, [_DATA, _SIZE, _KIND]]
            found[name] = i
        else:
            keep[i] = members[i, _KIND] == _HARD_LINK or "." in posixpath.basename(name)  # else it may link to a folder
            members[i, [_DATA, _SIZE, _KIND]] = members[i, _HEADER], 0, _UNSUPPORTED
    return members[keep]


def _plain(text: bytes, at: int, size: int) -> str:
    return posixpath.normpath(text[at : at + size].decode("utf-8", "surrogateescape"))


def _listed(path: str, mapped: Mapped, i: int, wanted: _Extensions) -> _Archive:
    """Read an index file of DALI's wds2idx: ``v1.2 <samples>``, then per sample a line of ``ext offset size name`` for
    every member. Versions 1.0 and 1.1 have no names."""
    size = int(mapped.sizes[i])
    try:
        lines = Path(local_copy(path)).read_text("utf-8", "surrogateescape").splitlines()
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    head = lines[0].split() if lines else []
    if len(head) != 2 or head[0] not in ("v1.0", "v1.1", "v1.2") or not head[1].isdigit():
        raise JobError(f"{path}:1: needs 'v1.2 <number of samples>' (as wds2idx writes), got {' '.join(head)[:100]!r}")
    width = 4 if head[0] == "v1.2" else 3
    rows: list[list[int]] = []
    samples: list[tuple[int, list[int]]] = []
    text = bytearray()
    ends = wanted.starts.tolist()
    known = [wanted.text[a:b].tobytes().decode() for a, b in pairwise(ends)]
    fold = str if wanted.case else str.lower
    for number, line in enumerate(lines[1:], 2):
        words = line.split()
        if not words:
            continue
        parts = [-1] * wanted.count
        for k in range(0, len(words), width):
            ext, *where = words[k : k + width]
            if len(where) != width - 1 or not all(w.isdigit() and len(w) < 19 for w in where[:2]):
                raise JobError(
                    f"{path}:{number}: needs extension, offset, size{', name' * (width == 4)}, got {words[k:]}"
                )
            offset, length = int(where[0]), int(where[1])
            if offset > size or length > size - offset:
                raise JobError(f"{path}:{number}: {offset} + {length} does not lie in {mapped.paths[i]} ({size} bytes)")
            name = where[2].encode("utf-8", "surrogateescape") if width == 4 else b""
            for alternative, output in zip(known, wanted.outputs.tolist(), strict=True):
                if fold(alternative) == fold(ext) and parts[output] < 0:
                    parts[output] = len(rows)
            rows.append([max(0, offset - 512), offset, length, _GOOD, len(text), len(name)])
            text += name
        samples.append((len(rows) - len(range(0, len(words), width)), parts))
    members = np.array(rows, np.int64).reshape(-1, _COLUMNS)
    firsts = np.array([f for f, _ in samples], np.int64)
    return _Archive(
        members,
        np.frombuffer(text + b"\0", np.uint8),
        firsts,
        np.array([p for _, p in samples], np.int64).reshape(-1, wanted.count),
    )


class WebDataset(JoiningReader, name="readers.webdataset"):
    """Read samples of tar archives (also gzip'ed ones): consecutive members with the same name up to its first dot.

    Outputs: one per entry of ``ext``, the member's bytes (uint8, 1-D) or its numbers, of ``dtypes``.
    """

    maps_files = True
    example = "{op: readers.webdataset, paths: train-*.tar, ext: [jpg;jpeg, cls], out: [jpegs, labels]}"

    paths: Annotated[str | tuple[str, ...], Arg("archives, or patterns that match them")]
    ext: Annotated[tuple[str, ...], Arg("extensions without the first dot, one per output; alternatives: jpg;png")]
    index_paths: Annotated[str | tuple[str, ...] | None, Arg("wds2idx's index of each archive")] = None
    missing_component_behavior: Annotated[
        Literal["", "empty", "skip", "error"],
        Arg("for samples that lack a part: output an empty part (default), skip or reject them"),
    ] = ""
    dtypes: Annotated[
        tuple[DALIDataType, ...] | None, Arg("view the bytes of each output as numbers of this dtype")
    ] = None
    case_sensitive_extensions: Annotated[bool, Arg("extensions distinguish upper from lower case")] = True

    @property
    def own_outputs(self) -> int:
        return len(self.ext)

    @property
    def output_dtypes(self) -> tuple[DALIDataType, ...]:
        """Dtype of each output."""
        return self.dtypes or (DALIDataType.UINT8,) * len(self.ext)

    def check(self) -> None:
        super().check()
        if not one_or_more(self.paths) or any(not p or "\0" in p for p in one_or_more(self.paths)):
            raise SpecError("paths names no file")
        if not self.ext or any(not e for entry in self.ext for e in entry.split(";")):
            raise SpecError("ext needs an extension for every output")
        if self.dtypes is not None and len(self.dtypes) != len(self.ext):
            raise SpecError(f"{len(self.dtypes)} dtypes for {len(self.ext)} outputs")
        if any(d in (DALIDataType.NO_TYPE, DALIDataType.STRING, DALIDataType.BOOL) for d in self.output_dtypes):
            raise SpecError("dtypes must be numeric types")

    def own_specs(self) -> tuple[Spec, ...]:
        return tuple(Spec((None,), d) for d in self.output_dtypes)

    def open_records(self) -> _Samples:
        return _Samples(self)
