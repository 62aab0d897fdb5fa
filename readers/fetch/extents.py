"""Containers as one flat array: files are mapped one after the other into one address range.

Records are then (offset, size) in that array, whatever file holds them; a batch is a view, and nothing is copied that
does not have to be.
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

from ...ops.batch import Batch
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
"""Sizes are 32 bits wide in a Batch."""
_MAX_FILES = 60_000  # Linux allows 65530 mappings
_GUARD = mmap.PAGESIZE  # readable zeros after the last byte
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_MADV_RANDOM, _AT_FDCWD = 1, -100
_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1
MAX_RATIO = 200
"""Unpacked bytes for each packed one, from `FREE_UNPACKED` on; records that people pack shrink 2 to 50 times, bombs a
thousand times."""
FREE_UNPACKED = 1 << 26
"""Bytes that a gzip'ed file may unpack to whatever its size."""
BOMB_RATIO, BOMB_UNPACKED = 500, 1 << 24
"""Above so many bytes a file that is packed more than so many times is a bomb: runs of a byte shrink 1,030 times."""
FREE_RECORDS = 1 << 20
"""Records that a gzip'ed file may hold whatever its size; from there on one for each packed byte."""
FREE_MEMBERS, MEMBER_BYTES = 1 << 16, 1 << 10
"""Gzip members that a file may hold whatever its size; from there on one for so many of its bytes. An empty one has 20
bytes and takes as long as unpacking thousands; bgzip's have about 16,000."""
_COPY = 1 << 16  # bytes unpacked at a time, and what damage may cost


class Mapped:
    """Files as one array ``data``; file ``i`` is ``data[starts[i] : starts[i] + sizes[i]]``.

    The mapping is private: a write into ``data`` stays in this process. It lives as long as any view of it. Gzip'ed
    files are unpacked into temporary files first. Raises JobError for files that cannot be opened.
    """

    def __init__(self, paths: Sequence[str], max_unpacked: int = 1 << 36, named: Sequence[str] | None = None) -> None:
        """``named``: what the files are called as sources of samples, where that is not their paths."""
        if len(paths) > _MAX_FILES:
            raise JobError(f"{len(paths)} files are too many to map at once; at most {_MAX_FILES}: use larger shards")
        self.paths = list(paths)
        self.named = self.paths if named is None else list(named)
        self.local = local_copies(self.paths)
        """Where the files lie here; elsewhere than ``paths`` where those are URLs."""
        self.sizes: I64 = np.empty(len(paths), np.int64)
        self.mtimes: I64 = np.empty(len(paths), np.int64)
        """Modification times in ns of the files as they lie on disk."""
        self.stored: I64 = np.empty(len(paths), np.int64)
        """Bytes on disk; differs from ``sizes`` for gzip'ed files."""
        self.unpacked: npt.NDArray[np.bool_] = np.zeros(len(paths), np.bool_)
        self.damage: dict[int, str] = {}
        """Problems with the packing of gzip'ed files; the bytes that could be unpacked are there."""
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
                self.damage[i] = f"{e}; if it is no bomb, unpack it yourself (gunzip)"
            out.flush()
            return os.dup(out.fileno())

    def records_left(self, i: int, found: int) -> int:
        """How many records after the first ``found`` ones are looked for in file ``i``. 0 where a gzip'ed file is a
        bomb of records that hold next to nothing: the rest of it is damage."""
        if not self.unpacked[i]:
            return sys.maxsize
        most = max(FREE_RECORDS, int(self.stored[i]))
        if found >= most:
            self.damage.setdefault(
                i, f"unpacks to more than {most} records; if it is no bomb, unpack it yourself (gunzip)"
            )
        return max(most - found, 0)

    def __len__(self) -> int:
        return len(self.paths)

    def fingerprint(self, names: Sequence[str], *columns: npt.NDArray[np.int64]) -> str:
        """Identity of a source of these files: names, sizes and times of the files, and the index of records."""
        h = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape"))
        for column in (self.stored, self.mtimes, *columns):
            h.update(np.ascontiguousarray(column).view(np.uint8).data)
        return h.hexdigest()

    def inventory(self, names: Sequence[str], records: I64, keys: str = "") -> InventoryEntries:
        """The files under ``names``, as what a data set is made of."""
        state = {"size": self.stored, "modified": self.mtimes}
        return InventoryEntries(b"\0".join(os.fsencode(n) for n in names), state, records, keys)

    def file_of(self, offsets: I64) -> I64:
        """The file that holds each offset."""
        return self._files_of(offsets)[0]

    def _files_of(self, offsets: I64) -> tuple[I64, int, int]:
        """`file_of`, and the first and the last of these files."""
        files = np.empty(len(offsets), np.int64)
        low, high = _loops.files_of(self.starts, np.ascontiguousarray(offsets), files)
        return files, low, high

    def will_need(self, ctx: Context, offsets: I64, sizes: I64) -> None:
        """Let the system read these extents; a disk is fastest when it knows everything that is wanted."""
        from .extents_cpu import will_need

        if ctx.lender is not None and ctx.lender.holds(self, offsets, sizes):
            return
        will_need(self.data, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes), mmap.PAGESIZE)

    def share(self) -> Shared:
        """The files once more, as the page cache has them: what is written to a file is seen there at once."""
        return Shared(self)

    def reopened(self, i: int) -> int | None:
        """File ``i``, if it is still the one that was mapped; the caller closes it. Not where it was unpacked."""
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
        """File ``i`` is there under its name, as it was mapped."""
        handle = self.reopened(i)
        if handle is not None:
            os.close(handle)
        return handle is not None

    def expect_jumps(self) -> None:
        """Only a few bytes here and there will be looked at: nothing is to be read ahead."""
        _libc().madvise(self.data.ctypes.data, len(self.data), _MADV_RANDOM)

    def truncated(self, offsets: I64) -> npt.NDArray[np.bool_]:
        """Which of ``offsets`` lie in a file that has been cut short since it was mapped, or could not be read.

        It is asked before every batch. What is lost later reads as zeros, see `bus_errors`.
        """
        from ..file_cpu import stat_files

        files, low, high = self._files_of(offsets)
        which = np.unique(files) if low < high else np.array([low] * (len(files) > 0), np.int64)
        now, mtimes = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
        # without the GIL: a shuffled batch may come from hundreds of files
        stat_files(np.int32(_AT_FDCWD), self._names, self._name_starts[which], now, mtimes, 0, len(which))
        bad = (now >= 0) & (now < self.stored[which])  # below 0: removed, and the mapping keeps the old bytes
        if lost := lost_files():
            bad |= np.array([self.named[i] in lost for i in which.tolist()], np.bool_)
        bad &= ~self.unpacked[which]  # whose mapped files are ours
        return np.isin(files, which[bad]) if bad.any() else np.zeros(len(files), np.bool_)


_known: weakref.WeakValueDictionary[int, Mapped] = weakref.WeakValueDictionary()


def mapped_of(data: U8) -> Mapped | None:
    """The mapping whose whole bytes are ``data``; None for any other array."""
    found = _known.get(id(data))
    return found if found is not None and found.data is data else None


def cut_short(address: int, offsets: I64) -> str | None:
    """The first file that was cut short, or could not be read, of those in which ``offsets`` bytes from ``address``
    lie; None where all are whole, and for memory that is no file's."""
    for mapped in list(_known.values()):
        place = address - mapped.data.ctypes.data
        if 0 <= place < len(mapped.data):
            gone = mapped.truncated(offsets + place)
            return mapped.named[int(mapped.file_of(offsets[gone][:1] + place)[0])] if gone.any() else None
    return None


class Shared:
    """The files of a `Mapped` at the same places of a second address range, read-only and shared with all users.
    A registered part of it is the page cache itself, while a page of a private mapping is copied when it is pinned."""

    def __init__(self, mapped: Mapped) -> None:
        """Raises OSError where there is no room for it."""
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
        """Places [a, b) of files that are not here: unpacked ones, and what was replaced since."""
        for i, (start, size) in enumerate(zip(mapped.starts.tolist(), mapped.sizes.tolist(), strict=True)):
            handle = mapped.reopened(i) if size else None
            placed = handle is not None and libc.mmap(
                base + start, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, handle, 0
            )
            if handle is not None:
                os.close(handle)
            if size and placed in (False, None, _FAILED):
                self.missing.append((start, start + size))
        watch(base, self.length, mapped.starts.tolist(), mapped.named, again=True)  # should the host look at it

    def resident(self, start: int, size: int) -> float:
        """The part of the pages of ``size`` bytes from ``start`` (a page's) that are in the page cache."""
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        if _libc().mincore(self.base + start, size, pages.ctypes.data):
            return 0.0
        return float((pages & 1).mean())

    def close(self) -> None:
        """Take the mapping away."""
        forget(self.base)
        _libc().munmap(self.base, max(self.length, 1))


def _gunzip(packed: IO[bytes], out: IO[bytes], limit: int) -> None:
    """Unpack all gzip members. What comes before damage has been written when EOFError or zlib.error is raised, or
    OverflowError: more than ``limit`` bytes, or too many bytes or members for what was packed."""
    gzip_header = 16 + zlib.MAX_WBITS
    decoder = zlib.decompressobj(gzip_header)
    members = 1
    while chunk := packed.read(_COPY):
        while chunk:
            if decoder.eof:
                members += 1
                if members > max(FREE_MEMBERS, packed.tell() // MEMBER_BYTES):
                    raise OverflowError(f"is packed in more than {members - 1} parts, each next to nothing")
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
        # read-only where the system counts what could be written (vm.overcommit_memory=2): nobody writes anyway
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
    weakref.finalize(buffer, release).atexit = False  # threads may still read while the interpreter ends
    data: U8 = np.frombuffer(memoryview(buffer), np.uint8)[:total]
    return data


class Groups:
    """Which file holds a record, and as which number; records of all files are numbered through."""

    def __init__(self, counts: I64) -> None:
        self.counts = counts
        self.firsts: I64 = np.cumsum(counts) - counts
        self._firsts: list[int] = self.firsts.tolist()

    def locate(self, index: int) -> tuple[int, int]:
        """File and number in it of record ``index``."""
        file = bisect_right(self._firsts, index) - 1
        return file, index - self._firsts[file]

    def files(self, index: I64) -> npt.NDArray[np.intp]:
        """The file of each record."""
        return np.searchsorted(self.firsts, index, side="right") - 1

    def numbered(self, names: Sequence[str], index: I64) -> list[bytes]:
        """``<name of its file>/<number in it>`` of each record, in UTF-8."""
        files = self.files(index)
        records = (index - self.firsts[files]).tolist()
        texts = [in_utf8(name) for name in names]
        return [b"%b/%08d" % (texts[f], r) for f, r in zip(files.tolist(), records, strict=True)]


@dataclass(slots=True)
class Records:
    """TFRecords of a batch whose checksums are to be computed: while something of them is copied, if anything is."""

    offsets: I64
    sizes: I64
    kinds: npt.NDArray[np.int32]
    good: npt.NDArray[np.bool_]
    """``kinds`` and ``good`` are as of `tfrecord_cpu.check_record`."""
    checked: bool = False


NO_RECORDS = Records(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.bool_), checked=True
)


def payload(
    ctx: Context, data: U8, offsets: I64, sizes: I64, output: int = 0, records: Records = NO_RECORDS
) -> Batch:  # fmt: skip
    """Extents of ``data`` as a batch of bytes, for ``output`` of the reader: a view, or copied where the engine wants
    them in its own memory and nobody lends a view that a device can fetch from.

    Extents must lie in ``data``; what was rejected has size 0. Where they are copied, and the checksums of the
    ``records`` that they lie in were not computed before, that is done, too.
    """
    if ctx.allocate_staging is None:
        return Batch(data, offsets, sizes.astype(np.int32).reshape(-1, 1), "", ctx.samples)
    mapped, why = mapped_of(data), ""
    if ctx.lender is not None and mapped is not None:
        lent = ctx.lender.lend(mapped, offsets, sizes)
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
    if not records.checked and 2 * total < int(records.sizes.sum()):  # as many threads as the records are worth
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
    records: Records,
) -> U8 | None:  # fmt: skip
    """``data``, of which these extents are on their way to a device; None where they are to be copied as a whole.
    ``why``: the host copies them."""
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
    except Exception as e:  # of the GPU, of memory; to copy them as a whole does without
        uploads.failed(e, nbytes)
        return None


def in_utf8(key: str) -> bytes:
    """A key as names hold it; what of a path was no UTF-8 stays as it is."""
    return key.encode("utf-8", "surrogateescape")


def expand(paths: Sequence[str]) -> list[str]:
    """Paths with patterns (``*``, ``?``, ``[...]``) expanded in sorted order. Raises JobError where nothing matches."""
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
    """Paths below their common folder: what tells the files of one data set apart."""
    full = [os.path.abspath(p) for p in paths]
    top = os.path.dirname(full[0]) if len(full) == 1 else os.path.commonpath([os.path.dirname(p) for p in full])
    return [os.path.relpath(p, top) for p in full]


def one_or_more(value: Any) -> tuple[str, ...]:
    """A text, or several."""
    return (value,) if isinstance(value, str) else tuple(value)
