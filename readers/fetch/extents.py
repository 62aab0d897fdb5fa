"""Map containers into one flat array: all files lie one after the other in one address range.

A record is then an extent, (offset, size), of that array, whichever file holds it, and a batch is a view of it: bytes
are copied only if a device or a later step needs them elsewhere. Readers of containers call this module.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import mmap
import os
import stat
import sys
import tempfile
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import Batch, Origin
from ...ops.context import Context
from ...ops.errors import JobError
from ...ops.gpu.readable_by_gpu import lease_of
from ...ops.interfaces import Uploader
from ...ops.kernels import Kernels
from ...ops.storage.inventory import InventoryEntries
from ...ops.storage.urls import Store, is_url, plain_path
from .bus_errors import forget, lost_files, watch
from .parallel import spread
from .remote import local_copies

_loops: Any = Kernels(".extents_cpu", __package__)
_sending: Any = Kernels(".sent_extents_cpu", __package__)

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

MAX_RECORD = 2**31 - 1
"""Largest size of a record in bytes, because a Batch stores sizes in 32 bits."""
_MAX_FILES = 60_000  # Linux allows 65530 mappings per process
_GUARD = mmap.PAGESIZE  # bytes of readable zeros after the last file
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_MADV_RANDOM, _AT_FDCWD = 1, -100
_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1
MAX_RATIO = 200
"""Largest ratio of unpacked to packed bytes for gzip'ed files of more than `FREE_UNPACKED` unpacked bytes. Useful
records shrink 2 to 50 times, gzip bombs a thousand times."""
FREE_UNPACKED = 1 << 26
"""Number of unpacked bytes up to which the compression ratio of a gzip'ed file is not checked (`MAX_RATIO`)."""
BOMB_RATIO, BOMB_UNPACKED = 500, 1 << 24
"""Second limit on gzip bombs: a file of more than BOMB_UNPACKED unpacked bytes must not shrink more than BOMB_RATIO
times. Runs of one byte shrink 1,030 times."""
FREE_RECORDS = 1 << 20
"""Number of records that any gzip'ed file may hold; larger files may hold one record per packed byte."""
FREE_MEMBERS, MEMBER_BYTES = 1 << 16, 1 << 10
"""Number of gzip members that any file may hold; larger files may hold one per MEMBER_BYTES packed bytes. An empty
member has 20 bytes and takes as long as unpacking thousands; bgzip's members have about 16,000."""
_COPY = 1 << 16  # bytes unpacked at a time, and the most that are lost before damage


class Mapped:
    """Files that are memory-mapped as one array ``data``; file ``i`` is ``data[starts[i] : starts[i] + sizes[i]]``.

    The mapping is private (a write into ``data`` stays in this process) and lives as long as any view of it. Gzip'ed
    files are unpacked into temporary files first. Raises JobError for files that cannot be opened.
    """

    def __init__(self, paths: Sequence[str], max_unpacked: int = 1 << 36, named: Sequence[str] | None = None) -> None:
        """``max_unpacked``: largest number of bytes to which a gzip'ed file may unpack. ``named``: names of the files
        for reports and origins of samples; by default their paths."""
        if len(paths) > _MAX_FILES:
            raise JobError(f"{len(paths)} files are too many to map at once; at most {_MAX_FILES}: use larger shards")
        self.paths = list(paths)
        self.named = self.paths if named is None else list(named)
        self.local = local_copies(self.paths)
        """Local paths of the files; they differ from ``paths`` for URLs, whose files are copied into a cache."""
        self.sizes: I64 = np.empty(len(paths), np.int64)
        self.mtimes: I64 = np.empty(len(paths), np.int64)
        """Modification times in ns of the files on disk."""
        self.stored: I64 = np.empty(len(paths), np.int64)
        """Sizes in bytes on disk; they differ from ``sizes`` for gzip'ed files."""
        self.unpacked: npt.NDArray[np.bool_] = np.zeros(len(paths), np.bool_)
        self.damage: dict[int, str] = {}
        """Errors of corrupt gzip'ed files, by index of the file. Bytes before the error are unpacked and readable."""
        self._identities: list[tuple[int, int]] = []
        names = [os.fsencode(path) + b"\0" for path in self.local]
        self._names = np.frombuffer(bytearray(b"".join(names) + b"\0"), np.uint8)
        self._name_starts: I64 = np.cumsum([0, *map(len, names)], dtype=np.int64)
        handles = []
        try:
            for i, path in enumerate(self.paths):
                handles.append(self._open(i, path, max_unpacked))
            pages = -(-self.sizes // mmap.PAGESIZE) * mmap.PAGESIZE
            self.starts: I64 = np.cumsum(pages) - pages
            self.data: U8 = _map(handles, self.sizes, self.starts, int(pages.sum()), self.named)
        finally:
            for handle in handles:
                os.close(handle)
        _known[id(self.data)] = self

    def _open(self, i: int, path: str, max_unpacked: int) -> int:
        try:
            handle = os.open(self.local[i], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            raise JobError(f"{path} cannot be opened: {e.strerror}") from None
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                files = f"; give the files in it, as {path}/*" if stat.S_ISDIR(info.st_mode) else ""
                raise JobError(f"{path} is not a file{files}")
            self.stored[i], self.mtimes[i], self.sizes[i] = info.st_size, info.st_mtime_ns, info.st_size
            self._identities.append((info.st_dev, info.st_ino))
            if os.pread(handle, 2, 0) == b"\x1f\x8b":
                unpacked = self._unpack(i, handle, max_unpacked)
                os.close(handle)
                handle = unpacked
                self.sizes[i] = os.fstat(handle).st_size
        except BaseException as e:
            os.close(handle)
            if isinstance(e, OSError):
                raise JobError(f"{path} cannot be read or unpacked: {e.strerror}") from None
            raise
        return handle

    def _unpack(self, i: int, handle: int, max_unpacked: int) -> int:
        self.unpacked[i] = True
        with tempfile.TemporaryFile(prefix="dali-run-") as out, os.fdopen(os.dup(handle), "rb") as packed:
            packed.seek(0)
            try:
                _gunzip(packed, out, max_unpacked)
            except (EOFError, zlib.error) as e:
                self.damage[i] = f"its gzip packing is damaged after the first {out.tell()} bytes: {e}"
            except OverflowError as e:
                self.damage[i] = f"{e}; if that is right, unpack the file first (gunzip)"
            out.flush()
            return os.dup(out.fileno())

    def records_left(self, i: int, found: int) -> int:
        """Return how many more records may be read from file ``i``, after ``found`` records. 0 if a gzip'ed file holds
        more records than its size allows (a bomb of empty records); the rest of the file then counts as damage."""
        if not self.unpacked[i]:
            return sys.maxsize
        max_records = max(FREE_RECORDS, int(self.stored[i]))
        if found >= max_records:
            self.damage.setdefault(
                i, f"unpacks to more than {max_records} records; if that is right, unpack the file first (gunzip)"
            )
        return max(max_records - found, 0)

    def __len__(self) -> int:
        return len(self.paths)

    def fingerprint(self, names: Sequence[str], *columns: npt.NDArray[np.int64]) -> str:
        """Return a hash that identifies a data set of these files. It covers the files' ``names``, sizes and
        modification times, and the index of records, given as ``columns``."""
        h = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape"))
        for column in (self.stored, self.mtimes, *columns):
            h.update(np.ascontiguousarray(column).view(np.uint8).data)
        return h.hexdigest()

    def inventory(self, names: Sequence[str], records: I64, keys: str = "") -> InventoryEntries:
        """Return the entries of a job's list of inputs for these files, with the given ``names``. ``records``: number
        of records in each file."""
        state = {"size": self.stored, "modified": self.mtimes}
        return InventoryEntries(b"\0".join(os.fsencode(n) for n in names), state, records, keys)

    def file_of(self, offsets: I64) -> I64:
        """Return the index of the file that holds each of ``offsets`` in the mapping."""
        return self._files_of(offsets)[0]

    def _files_of(self, offsets: I64) -> tuple[I64, int, int]:
        """Return the index of the file that holds each of ``offsets``, and the smallest and largest of them."""
        files = np.empty(len(offsets), np.int64)
        low, high = _loops.files_of(self.starts, np.ascontiguousarray(offsets), files)
        return files, low, high

    def will_need(self, ctx: Context, offsets: I64, sizes: I64) -> None:
        """Ask the operating system to read these extents (``offsets`` and ``sizes`` in ``data``) into the page cache. A
        disk is fastest if it gets all of them at once (madvise)."""
        from .extents_cpu import will_need

        if ctx.services.lender is not None and ctx.services.lender.holds(self, offsets, sizes):
            return
        will_need(self.data, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes), mmap.PAGESIZE)

    def share(self) -> Shared:
        """Map the files again. The new mapping shares the page cache: bytes written to a file appear in it."""
        return Shared(self)

    def reopened(self, i: int) -> int | None:
        """Open file ``i`` again and return its descriptor, which the caller closes. None if it is no longer the file
        that was mapped, or if it was unpacked."""
        if self.unpacked[i]:
            return None
        try:
            handle = os.open(self.local[i], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        info = os.fstat(handle)
        now = (info.st_dev, info.st_ino), info.st_size, info.st_mtime_ns
        if now == (self._identities[i], int(self.stored[i]), int(self.mtimes[i])):
            return handle
        os.close(handle)
        return None

    def is_same(self, i: int) -> bool:
        """Whether the mapped file ``i`` still exists under its name, unchanged."""
        handle = self.reopened(i)
        if handle is not None:
            os.close(handle)
        return handle is not None

    def expect_jumps(self) -> None:
        """Turn off the operating system's read-ahead, because only a few bytes will be read at scattered offsets."""
        _libc().madvise(self.data.ctypes.data, len(self.data), _MADV_RANDOM)

    def truncated(self, offsets: I64) -> npt.NDArray[np.bool_]:
        """Return whether each of ``offsets`` is in a file that has been truncated since it was mapped, or that could
        not be read, bool[n]. Called before every batch. Pages that are lost later read as zeros, see `bus_errors`."""
        from ..file_cpu import stat_files

        files, low, high = self._files_of(offsets)
        which = np.unique(files) if low < high else np.array([low] * (len(files) > 0), np.int64)
        now, mtimes = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
        # the loop holds no GIL: a shuffled batch may come from hundreds of files
        stat_files(np.int32(_AT_FDCWD), self._names, self._name_starts[which], now, mtimes, 0, len(which))
        bad = (now >= 0) & (now < self.stored[which])  # -1 is a removed file, whose bytes the mapping keeps
        if lost := lost_files():
            bad |= np.array([self.named[i] in lost for i in which.tolist()], np.bool_)
        bad &= ~self.unpacked[which]  # unpacked files are private copies
        return np.isin(files, which[bad]) if bad.any() else np.zeros(len(files), np.bool_)


_known: weakref.WeakValueDictionary[int, Mapped] = weakref.WeakValueDictionary()
"""Open mappings, by the id() of their array, for `mapped_of`: an array does not refer to its mapping."""


def mapped_of(data: U8) -> Mapped | None:
    """Return the `Mapped` object whose ``data`` is this array; None for any other array."""
    found = _known.get(id(data))
    return found if found is not None and found.data is data else None


def cut_short(address: int, offsets: I64) -> str | None:
    """Return the name of the first truncated or unreadable file among those that hold the bytes at ``offsets`` from
    ``address``. None if there is no such file, or if the memory is not a mapping."""
    for mapped in list(_known.values()):
        place = address - mapped.data.ctypes.data
        if 0 <= place < len(mapped.data):
            gone = mapped.truncated(offsets + place)
            return mapped.named[int(mapped.file_of(offsets[gone][:1] + place)[0])] if gone.any() else None
    return None


class Shared:
    """A second mapping of the files of a `Mapped`, at the same offsets of another address range, read-only and shared.

    CUDA can register it without a copy: a registered range of it is the page cache itself, whereas a page of a private
    mapping is copied when it is pinned. `gpu_reads` creates and closes it.
    """

    def __init__(self, mapped: Mapped) -> None:
        """Map the files of ``mapped`` again. Raises OSError if they are too many, or if no free range of addresses is
        large enough."""
        libc = _libc()
        self.length = int((-(-mapped.sizes // mmap.PAGESIZE)).sum()) * mmap.PAGESIZE
        if 2 * len(mapped) > _MAX_FILES:
            raise OSError(f"{len(mapped)} files are too many to map twice")
        anonymous = mmap.MAP_PRIVATE | _MAP_NORESERVE | mmap.MAP_ANONYMOUS
        base = libc.mmap(None, max(self.length, 1), _PROT_NONE, anonymous, -1, 0)
        if base in (None, _FAILED):
            raise OSError(f"{self.length} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
        self.base: int = base
        self.missing: list[tuple[int, int]] = []
        """Ranges [a, b) of offsets without a file in this mapping, because it was unpacked, or replaced meanwhile."""
        for i, (start, size) in enumerate(zip(mapped.starts.tolist(), mapped.sizes.tolist(), strict=True)):
            handle = mapped.reopened(i) if size else None
            placed = handle is not None and libc.mmap(
                base + start, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, handle, 0
            )
            if handle is not None:
                os.close(handle)
            if size and placed in (False, None, _FAILED):
                self.missing.append((start, start + size))
        watch(base, self.length, mapped.starts.tolist(), mapped.named, second=True)  # in case the host reads it

    def resident(self, start: int, size: int) -> float:
        """Share of the pages of ``size`` bytes from ``start``, a multiple of the page size, in the page cache."""
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        if _libc().mincore(self.base + start, size, pages.ctypes.data):
            return 0.0
        return float((pages & 1).mean())

    def close(self) -> None:
        """Unmap the files of this mapping."""
        forget(self.base)
        _libc().munmap(self.base, max(self.length, 1))


def _gunzip(packed: IO[bytes], out: IO[bytes], limit: int) -> None:
    """Unpack all gzip members of ``packed`` into ``out``. If an exception is raised, the bytes before the damage have
    been written. Raises EOFError or zlib.error for damage, and OverflowError for more than ``limit`` unpacked bytes or
    for too many bytes or members for the packed size."""
    gzip_header = 16 + zlib.MAX_WBITS
    decoder = zlib.decompressobj(gzip_header)
    members = 1
    while chunk := packed.read(_COPY):
        while chunk:
            if decoder.eof:
                members += 1
                if members > max(FREE_MEMBERS, packed.tell() // MEMBER_BYTES):
                    raise OverflowError(f"has more than {members - 1} gzip members, nearly empty ones")
                decoder = zlib.decompressobj(gzip_header)
            out.write(decoder.decompress(chunk, 16 * _COPY))
            if out.tell() > limit:
                raise OverflowError(f"unpacks to more than {limit} bytes")
            if out.tell() > max(BOMB_UNPACKED, BOMB_RATIO * packed.tell()):
                raise OverflowError(f"unpacks to more than {BOMB_RATIO} times its size")
            if out.tell() > max(FREE_UNPACKED, MAX_RATIO * packed.tell()):
                raise OverflowError(f"unpacks to more than {MAX_RATIO} times its size")
            chunk = decoder.unused_data.lstrip(b"\0") if decoder.eof else decoder.unconsumed_tail
    out.write(decoder.flush())
    if not decoder.eof:
        raise EOFError("it ends early")


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc


def _map(handles: Sequence[int], sizes: I64, starts: I64, total: int, paths: Sequence[str]) -> U8:
    map_, unmap = _libc().mmap, _libc().munmap
    length = total + _GUARD
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    private = mmap.MAP_PRIVATE | _MAP_NORESERVE
    anonymous = private | mmap.MAP_ANONYMOUS
    base = map_(None, length, _PROT_NONE, anonymous, -1, 0)
    guarded = base not in (None, _FAILED) and map_(base + total, _GUARD, writable, anonymous | _MAP_FIXED, -1, 0)
    if not guarded or guarded == _FAILED:
        raise JobError(f"{length} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    for handle, size, start in zip(handles, sizes.tolist(), starts.tolist(), strict=True):
        if size == 0:
            continue
        # read-only if the system counts memory that could be written (vm.overcommit_memory=2): it is never written
        # anyway
        placed = any(
            map_(base + start, size, access, private | _MAP_FIXED, handle, 0) != _FAILED
            for access in (writable, mmap.PROT_READ)
        )
        if not placed:
            reason = os.strerror(ctypes.get_errno())
            unmap(base, length)
            raise JobError(f"{size} bytes cannot be mapped: {reason}")
    watch(base, length, starts.tolist(), paths)

    def release() -> None:
        forget(base)
        unmap(base, length)

    buffer = (ctypes.c_uint8 * length).from_address(base)
    weakref.finalize(buffer, release).atexit = False  # threads may still read while the interpreter exits
    data: U8 = np.frombuffer(memoryview(buffer), np.uint8)[:total]
    return data


class Groups:
    """Converts between the number of a record in a data set and (file, number in the file). Records of the data set are
    numbered from 0 on, one file after the other."""

    def __init__(self, counts: I64) -> None:
        self.counts = counts
        self.firsts: I64 = np.cumsum(counts) - counts
        self._firsts: list[int] = self.firsts.tolist()

    def locate(self, index: int) -> tuple[int, int]:
        """Index of the file that holds record ``index`` of the data set, and the record's number in that file."""
        file = bisect_right(self._firsts, index) - 1
        return file, index - self._firsts[file]

    def files(self, index: I64) -> npt.NDArray[np.intp]:
        """Index of the file that holds each of the records ``index``; these are numbers in the data set."""
        return np.searchsorted(self.firsts, index, side="right") - 1

    def origins(
        self, paths: Sequence[str], keys: Sequence[bytes], index: I64, offsets: I64 | None = None
    ) -> list[Origin]:  # fmt: skip
        """Origins of the records ``index``, whose ``keys`` are in UTF-8. ``paths`` are those of all files; ``offsets``
        are the places of the records in their files."""
        files = self.files(index)
        records = (index - self.firsts[files]).tolist()
        places = [-1] * len(index) if offsets is None else offsets.tolist()
        return [
            Origin(key.decode("utf-8", "surrogateescape"), paths[f], r, place)
            for key, f, r, place in zip(keys, files.tolist(), records, places, strict=True)
        ]

    def numbered(self, names: Sequence[str], index: I64) -> list[bytes]:
        """Default keys of the records ``index``: ``<name of the file>/<number in the file>``, in UTF-8. ``names`` are
        the names of all files."""
        files = self.files(index)
        records = (index - self.firsts[files]).tolist()
        texts = [in_utf8(name) for name in names]
        return [b"%b/%08d" % (texts[f], r) for f, r in zip(files.tolist(), records, strict=True)]


@dataclass(slots=True)
class UncheckedRecords:
    """TFRecords of a batch whose checksums are checked later, while the records are copied."""

    offsets: I64
    sizes: I64
    kinds: npt.NDArray[np.int32]
    good: npt.NDArray[np.bool_]
    """Whether each record is valid so far. Checking the checksums updates ``good`` and ``kinds``
    (`tfrecord_cpu.check_record`)."""
    checked: bool = False


NO_RECORDS = UncheckedRecords(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.bool_), checked=True
)


def payload(
    ctx: Context, data: U8, offsets: I64, sizes: I64, output: int = 0, records: UncheckedRecords = NO_RECORDS
) -> Batch:  # fmt: skip
    """Return the extents (offset, size) of ``data``, such as records in mapped files, as a batch of bytes, for output
    number ``output`` of the reader. The batch is a view if the engine accepts views, or if the GPU reads the files
    itself; otherwise the bytes are copied into memory of the engine. Extents must lie in ``data``; rejected records
    have size 0. ``records``: the TFRecords around the extents. A copy also checks their checksums, unless that was done
    before."""
    if ctx.services.allocate_staging is None:
        return Batch(data, offsets, sizes.astype(np.int32).reshape(-1, 1), "", ctx.samples)
    mapped, why = mapped_of(data), ""
    if ctx.services.lender is not None and mapped is not None:
        lent = ctx.services.lender.lend(mapped, offsets, sizes)
        lease = lease_of(lent)
        if lease is not None:
            batch = Batch(lent, offsets, sizes.astype(np.int32).reshape(-1, 1), "", ctx.samples)
            lease.plan(batch)
            return batch
        why = str(lent)
    n, sizes = len(sizes), np.ascontiguousarray(sizes, np.int64)
    at, shapes = np.empty(n, np.int64), np.empty((n, 1), np.int32)
    total = _loops.lay_out(sizes, 16, at, shapes)
    offsets = np.ascontiguousarray(offsets)
    if not records.checked and 2 * total < int(
        records.sizes.sum()
    ):  # few bytes are copied: checks deserve more threads
        records = NO_RECORDS
    uploads = ctx.uploads.get(output)
    if uploads is not None and mapped is not None:
        sent = _sent(ctx, uploads, data, offsets, sizes, at, total, why, records)
        if sent is not None:
            return Batch(sent, offsets, shapes, "", ctx.samples)
    out = ctx.staging(total)
    if records.checked:
        spread(ctx, n, total, lambda a, b: _loops.copy_extents(data, offsets[a:b], sizes[a:b], out, at[a:b]))
    else:
        named = records.offsets, records.sizes, records.kinds, records.good
        spread(ctx, n, total, lambda a, b: _sending.copy_checked(data, offsets, sizes, out, at, a, b, *named))
        records.checked = True
    return Batch(out, at, shapes, "", ctx.samples)


def _sent(
    ctx: Context, uploads: Uploader, data: U8, offsets: I64, sizes: I64, at: I64, nbytes: int, why: str,
    records: UncheckedRecords,
) -> U8 | None:  # fmt: skip
    """Upload the extents of ``data`` to the GPU in pieces, through page-locked memory, while others are read. Return an
    array whose extents are on the GPU. Return None if that is not possible; the caller then copies the extents.
    ``why``: reason for the report why the host copies them although a GPU could read them itself."""
    try:
        upload = uploads.begin(nbytes, reason=why)
        if upload is None:
            return None

        wanted = NO_RECORDS if records.checked else records
        named = wanted.offsets, wanted.sizes, wanted.kinds, wanted.good

        def send(a: int, b: int) -> None:
            with uploads.pieces() as p:
                memory, there = p.memory.reshape(len(p.busy), -1), upload.address
                where = memory, p.events, p.busy, p.state, upload.calls, there, *named
                while (a := _sending.send_extents(data, offsets, sizes, at, a, b, *where)) < b:
                    upload.wait(p)

        spread(ctx, len(sizes), nbytes, send)
        records.checked = True
        return upload.finish_extents(data, offsets, sizes, at)
    except Exception as e:  # errors of the GPU or of memory: copying the extents as a whole needs neither
        uploads.failed(e, nbytes)
        return None


def in_utf8(key: str) -> bytes:
    """Encode a sample's key in UTF-8; bytes of a path that are not valid UTF-8 are kept."""
    return key.encode("utf-8", "surrogateescape")


def expand(paths: Sequence[str]) -> list[str]:
    """Expand patterns (``*``, ``?``, ``[...]``) in paths, sorted. Raises JobError for a path or pattern without a
    match."""
    found: list[str] = []
    for path in map(plain_path, paths):
        if is_url(path):
            found += Store(path).matching() if glob.has_magic(path) else [path]
            continue
        if os.path.exists(path):
            found.append(path)
            continue
        matches = sorted(glob.glob(path), key=os.fsencode)
        if not matches:
            raise JobError(f"there is no file {path}")
        found += matches
    return found


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths relative to their common folder: short names of the files of one data set."""
    full = [os.path.abspath(p) for p in paths]
    top = os.path.dirname(full[0]) if len(full) == 1 else os.path.commonpath([os.path.dirname(p) for p in full])
    return [os.path.relpath(p, top) for p in full]


def one_or_more(value: Any) -> tuple[str, ...]:
    """Return a text as a tuple of one, or several texts as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)
