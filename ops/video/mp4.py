"""Read the sample tables of MP4 and MOV files (ISO/IEC 14496-12): position and time of each packet, without reading the
packets.

Called by `media`. Files with unusual tables (fragments, several edits, sample groups) are left to FFmpeg.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
_MAX_MOOV = 64 << 20
"""Maximum size in bytes of a `moov` box (the index of an MP4 file); a day of video needs less."""
_MAX_BOXES = 4096
"""Maximum number of boxes in one box or file, which limits the time for corrupt files: an empty box has only 8 bytes,
and takes as long to read as a large one."""
_LATER = bytes((1, 0, 0, 0))
"""Version and flags (first four bytes) of tables whose time offsets are signed."""
_UNUSUAL = frozenset((b"stps", b"sbgp", b"sgpd", b"stz2", b"saiz"))
"""Boxes with information that FFmpeg uses and this module ignores; files that have one are left to FFmpeg."""


@dataclass(frozen=True, slots=True)
class SampleTables:
    """Sample tables of one track of an MP4 file, one element per packet in decoding order. Times are in the track's
    units."""

    decode_times: I64
    display_times: I64
    starts: I64
    sizes: I64
    keys: npt.NDArray[np.bool_]


@contextmanager
def _opened(source: str | npt.NDArray[np.uint8]) -> Iterator[tuple[BinaryIO, int]]:
    if isinstance(source, str):
        with open(source, "rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    else:
        yield io.BytesIO(source.data), len(source)


def _header(data: bytes) -> tuple[bytes, int, int]:
    """Return (kind, size in bytes, header size in bytes) of the box at the start of ``data``."""
    size, kind, small = int.from_bytes(data[:4], "big"), data[4:8], 8
    if size == 1:
        size, small = int.from_bytes(data[8:16], "big"), 16
    return kind, size, small


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, contents) of each box in ``data``. Raises ValueError if a box is truncated, or if there are more
    than `_MAX_BOXES`."""
    at = count = 0
    while at + 8 <= len(data):
        kind, size, small = _header(data[at : at + 16])
        count += 1
        if size < small or at + size > len(data) or count > _MAX_BOXES:
            raise ValueError("a box is cut off, or there are too many")
        yield kind, data[at + small : at + size]
        at += size


def _movie(file: BinaryIO, length: int) -> tuple[bytes, I64]:
    """Return the contents of the `moov` box (index of the file), and start and end of each media data box, in file
    order, int64[boxes, 2]. Raises ValueError."""
    at, count, movie, media = 0, 0, b"", list[tuple[int, int]]()
    while at + 8 <= length:
        file.seek(at)
        kind, size, small = _header(file.read(16))
        count += 1
        if size < small or kind == b"moof" or at + size > length or count > _MAX_BOXES:
            raise ValueError("there is no plain table")
        if kind == b"moov" and size <= _MAX_MOOV:
            file.seek(at + small)
            movie = file.read(size - small)
        if kind == b"mdat":
            media.append((at + small, at + size))
        at += size
    return movie, np.array(media, np.int64).reshape(-1, 2)


def _entries(data: bytes, width: int, kind: str = ">u4") -> I64:
    """Return the entries of a table, ``width`` numbers each. Raises ValueError if the table's header gives another
    number of entries."""
    found = np.frombuffer(data, kind, offset=8).astype(np.int64).reshape(-1, width)
    if data[:4] not in (bytes(4), _LATER) or len(found) != int.from_bytes(data[4:8], "big"):
        raise ValueError("a table is of another length")
    return found


def samples_of(source: str | npt.NDArray[np.uint8], track: int) -> SampleTables | None:
    """Return the sample tables of track number ``track`` of a file (path or bytes). Return None if the tables are of an
    unusual kind, or contradict the file."""
    try:
        with _opened(source) as (file, length):
            movie, media = _movie(file, length)
            found = _samples(movie, track)
    except (OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError, StopIteration):
        return None
    if not len(media) or not len(found.sizes):
        return None
    box = np.searchsorted(media[:, 0], found.starts, "right") - 1
    inside = (box >= 0) & (found.starts <= media[box, 1] - found.sizes)
    order = np.argsort(found.starts)
    apart = (np.diff(found.starts[order]) >= found.sizes[order][:-1]).all()
    return found if inside.all() and apart else None


def _samples(movie: bytes, track: int) -> SampleTables:
    top = list(_boxes(movie))
    if any(kind == b"mvex" for kind, _ in top):
        raise ValueError("there are fragments")
    boxes = next(
        inside
        for inside in (dict(_boxes(data)) for kind, data in top if kind == b"trak")
        if _track(inside[b"tkhd"]) == track
    )
    media = dict(_boxes(boxes[b"mdia"]))
    table = dict(_boxes(dict(_boxes(media[b"minf"]))[b"stbl"]))
    if _UNUSUAL & table.keys() or int.from_bytes(table[b"stsd"][4:8], "big") != 1:
        raise ValueError("its tables are unusual")
    same, count = int.from_bytes(table[b"stsz"][4:8], "big"), int.from_bytes(table[b"stsz"][8:12], "big")
    sizes = np.frombuffer(table[b"stsz"], ">u4", offset=12).astype(np.int64)
    if same or len(sizes) != count or (sizes < 1).any():
        raise ValueError("its tables do not fit each other")
    lasting = _each(_entries(table[b"stts"], 2), count)
    decoded = np.cumsum(lasting) - lasting
    shown = decoded
    if b"ctts" in table:
        shown = decoded + _each(_entries(table[b"ctts"], 2, ">i4"), count)
    if b"edts" in boxes:
        _uncut(dict(_boxes(boxes[b"edts"]))[b"elst"], shown, _scale(dict(top)[b"mvhd"]), _scale(media[b"mdhd"]))
    keys = np.ones(count, np.bool_)
    if b"stss" in table:
        numbers = _entries(table[b"stss"], 1)[:, 0]
        if (np.diff(numbers, prepend=0) < 1).any():
            raise ValueError("key frames are not in order")
        keys[:] = False
        keys[numbers - 1] = True
    return SampleTables(decoded, shown, _starts(table, sizes), sizes, keys)


def _each(runs: I64, count: int) -> I64:
    """Expand ``runs``, rows of (count, value), to one value per packet. Raises ValueError if the counts do not add up
    to ``count``."""
    if (runs[:, 0] < 0).any() or int(runs[:, 0].sum()) != count:  # before memory is allocated for them
        raise ValueError("its tables do not fit each other")
    values: I64 = np.repeat(runs[:, 1], runs[:, 0])
    return values


def _scale(header: bytes) -> int:
    """Return the number of time units per second. ``header``: of the movie, or of a track's media."""
    at = 20 if header[0] == 1 else 12
    return int.from_bytes(header[at : at + 4], "big")


def _uncut(edits: bytes, display_times: I64, movie: int, media: int) -> None:
    """Raise ValueError unless a track's edit list (``edits``) shows all frames, from the first one on. ``movie``,
    ``media``: time units per second."""
    wide = 8 if edits[0] == 1 else 4
    lasting = int.from_bytes(edits[8 : 8 + wide], "big")
    first = int.from_bytes(edits[8 + wide : 8 + 2 * wide], "big", signed=True)
    rate = edits[8 + 2 * wide : 12 + 2 * wide]
    cut = first != int(display_times.min()) or (int(display_times.max()) - first) * movie >= lasting * media
    if cut or edits[4:8] != bytes((0, 0, 0, 1)) or rate != bytes((0, 1, 0, 0)):
        raise ValueError("frames are cut off")


def _track(header: bytes) -> int:
    at = 20 if header[0] == 1 else 12
    return int.from_bytes(header[at : at + 4], "big")


def _starts(table: dict[bytes, bytes], sizes: I64) -> I64:
    chunks = (_entries(table[b"co64"], 1, ">u8") if b"co64" in table else _entries(table[b"stco"], 1))[:, 0]
    first, each, _ = _entries(table[b"stsc"], 3).T
    many = np.repeat(each, np.diff(np.append(first - 1, len(chunks))))
    if int(many.sum()) != len(sizes) or len(many) != len(chunks):
        raise ValueError("its tables do not fit each other")
    before = np.cumsum(sizes) - sizes
    ends = np.cumsum(many)
    starts: I64 = np.repeat(chunks - before[np.minimum(ends - many, len(sizes) - 1)], many) + before
    return starts
