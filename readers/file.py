"""readers.file: each file is a sample, and the folder that holds it is its label. Also `FileSet`, the base of sources
of single files."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.codecs import libdeflate
from ..ops.codecs.formats import LISTED_SUFFIXES
from ..ops.context import Context
from ..ops.errors import JobError, SpecError
from ..ops.interfaces import Uploader
from ..ops.kernels import Kernels
from ..ops.storage.descriptors import Descriptor
from ..ops.storage.inventory import InventoryEntries
from ..ops.storage.urls import Store, is_url, join, plain_path
from ..ops.types import DALIDataType
from .fetch.parallel import spread
from .fetch.remote import RemoteFiles, local_copy
from .join.reader import JoiningReader

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

_kernels: Any = Kernels(".file_cpu", __package__)
_sending: Any = Kernels(".fetch.sent_files_cpu", __package__)

MEDIA_FILTERS = (*(f"*{suffix}" for suffix in LISTED_SUFFIXES), "*.flac", "*.ogg", "*.wav")
VIDEO_FILTERS = ("*.mp4", "*.mov", "*.mkv", "*.webm", "*.avi", "*.ts", "*.mpg", "*.mpeg")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: a file that was replaced by a pipe must not block
_AT_FDCWD = -100  # file names are relative to the working directory
MAX_FILE = 2**31 - 1
"""Largest file in bytes: sizes are 32 bits wide in a Batch."""
_OPENING = 1 << 15  # bytes that can be read in the time that opening a file takes
_STAT_THREADS = 16  # a file system answers many requests at a time, above all a remote one
_STAT_CHUNK = 2048


class FileSet(BatchedOrigins):
    """Files addressed by number, with their names, sizes and modification times; reads the bytes of many at a time.
    Base of the readers' data sets in which each record is a file. It reads local files and URLs. `read` may be called
    from several threads. Its owner calls `close`."""

    groups: I64 | None = None

    def __init__(self, root: str | None, names: Sequence[bytes], *, only_files: bool = False) -> None:
        """``names`` are paths relative to ``root``, or to the working directory if that is None. ``only_files``: leave
        out folders and devices; the mask ``kept`` tells which of ``names`` remain."""
        root = None if root is None else plain_path(root)
        self.root = root
        remote = is_url(root) if root is not None else any(is_url(os.fsdecode(n)) for n in names[:1])
        self._remote = RemoteFiles(root, names) if remote else None
        self._root = None if remote or root is None else _open_directory(root)
        self._name(names)
        self.sizes, self.mtimes = self._stat()
        self.kept: npt.NDArray[np.bool_] = np.ones(len(names), np.bool_)
        if only_files:
            from .file_cpu import NOT_A_FILE

            self.kept = self.sizes != NOT_A_FILE
            if not self.kept.all():
                self._name([name for name, keep in zip(names, self.kept.tolist(), strict=True) if keep])
                self.sizes, self.mtimes = self.sizes[self.kept], self.mtimes[self.kept]
        self._repeated: set[bytes] | None = None

    def _name(self, names: Sequence[bytes]) -> None:
        self._names = np.frombuffer(bytearray(b"\0".join(names) + b"\0"), np.uint8)
        lengths = np.fromiter(map(len, names), np.int64, len(names)) + 1
        self._starts: I64 = np.cumsum(lengths) - lengths

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, i: int) -> bytes:
        """Name of file ``i``, as the caller of the constructor gave it."""
        start = int(self._starts[i])
        stop = int(self._starts[i + 1]) if i + 1 < len(self) else len(self._names)
        return self._names[start : stop - 1].tobytes()

    def path(self, i: int) -> str:
        """Path of file ``i``: its name, below the root folder if there is one."""
        name = os.fsdecode(self.name(i))
        return join(self.root, name) if self.root else name

    def _repeated_names(self) -> set[bytes]:
        """Names of files that occur more than once in the list."""
        if self._repeated is None:
            seen: set[bytes] = set()
            names = self._names.tobytes().split(b"\0")[: len(self)]
            self._repeated = {n for n in names if n in seen or seen.add(n)}  # type: ignore[func-returns-value]
        return self._repeated

    def origin(self, index: int) -> Origin:
        """Origin of record ``index``, for reports. Its key is the file's path below the root; "#" and the file's number
        are appended if the file is listed more than once."""
        name = self.name(index)
        key = name.decode("utf-8", "backslashreplace")
        return Origin(f"{key}#{index}" if name in self._repeated_names() else key, self.path(index), named=key)

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the files ``index``, as `origin` returns them, in UTF-8."""
        repeated = self._repeated_names()
        return [
            name if name.isascii() and name not in repeated else self.origin(i).key.encode()
            for i, name in zip(index.tolist(), self._names_at(index), strict=True)
        ]

    def origins_of(self, index: I64) -> list[Origin]:
        """Origins of the files ``index``, as `origin` returns them."""
        repeated, prefix = self._repeated_names(), join(self.root, "") if self.root else ""
        return [
            Origin(text := name.decode(), prefix + text, named=text)
            if name.isascii() and name not in repeated and not (prefix and name.startswith(b"/"))
            else self.origin(i)
            for i, name in zip(index.tolist(), self._names_at(index), strict=True)
        ]

    def _names_at(self, index: I64) -> list[bytes]:
        text, n = self._names.data, len(self)
        starts = self._starts[index].tolist()
        stops = np.where(index + 1 < n, self._starts[np.minimum(index + 1, n - 1)], len(text)).tolist()
        return [bytes(text[a : b - 1]) for a, b in zip(starts, stops, strict=True)]

    def fingerprint(self) -> str:
        """Hash of the files' names, sizes and modification times."""
        h = hashlib.sha256(self._names.tobytes())
        h.update(self.sizes.tobytes())
        h.update(self.mtimes.tobytes())
        return h.hexdigest()

    def inventory(self) -> InventoryEntries:
        """Inventory of the data set, with one entry per file."""
        state = {"size": self.sizes, "modified": self.mtimes}
        return InventoryEntries(self._names[:-1].tobytes(), state, np.ones(len(self), np.int64))

    def close(self) -> None:
        """Close the descriptor of the root folder."""
        if self._root is not None:
            self._root.close()

    @property
    def _directory(self) -> int:
        """File descriptor of the folder to which the names are relative."""
        return _AT_FDCWD if self._root is None else self._root.number

    def _stat(self) -> tuple[I64, I64]:
        from .file_cpu import NOT_A_FILE, stat_files

        if self._remote is not None:
            told = self._remote.stat(NOT_A_FILE)
            return np.array(told[0], np.int64), np.array(told[1], np.int64)
        n = len(self)
        sizes, mtimes = np.empty(n, np.int64), np.empty(n, np.int64)
        chunks = [(low, min(low + _STAT_CHUNK, n)) for low in range(0, n, _STAT_CHUNK)]

        def stat(chunk: tuple[int, int]) -> None:
            stat_files(self._directory, self._names, self._starts, sizes, mtimes, *chunk)

        with ThreadPoolExecutor(min(_STAT_THREADS, len(chunks) or 1)) as pool:
            list(pool.map(stat, chunks))
        return sizes, mtimes

    def read(self, ctx: Context, indices: I64) -> Batch:
        """Read the files ``indices``, one per sample of ``ctx``, as a batch of bytes. Unreadable files are rejected."""
        if self._remote is not None:
            return self._fetched(ctx, self._remote, indices)
        which, n = np.ascontiguousarray(indices), len(indices)
        sizes, at, status = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int32)
        shapes = np.empty((n, 1), np.int32)
        nbytes = _kernels.places(self.sizes, which, MAX_FILE, sizes, at, shapes)
        uploads = ctx.uploads.get(0)
        found = None if uploads is None else self._sent(ctx, uploads, which, nbytes, at, sizes, status)
        out = self._whole(ctx, which, nbytes, at, sizes, status) if found is None else found
        for k in np.flatnonzero(status).tolist() if np.count_nonzero(status) else ():
            size = int(self.sizes[which[k]])
            if size > MAX_FILE:
                ctx.reject(k, "too_large", f"the file has {size} bytes; at most {MAX_FILE} can be one sample")
            else:
                ctx.reject(k, "read_failed", self._why(int(which[k]), size))
            shapes[k] = 0
        return Batch(out, at, shapes, "", ctx.samples)

    def _whole(self, ctx: Context, which: I64, nbytes: int, at: I64, sizes: I64, status: I32) -> U8:
        """Read the files ``which`` into one array in host memory: file k at offset ``at[k]``."""
        out, files = ctx.staging(nbytes), (self._directory, _FLAGS, self._names, self._starts, which)

        def read(a: int, b: int) -> None:
            _kernels.read_files(*files, out, at, sizes, status, a, b)

        spread(ctx, len(which), nbytes + len(which) * _OPENING, read)
        return out

    def _sent(
        self, ctx: Context, uploads: Uploader, which: I64, nbytes: int, at: I64, sizes: I64, status: I32
    ) -> U8 | None:  # fmt: skip
        """Read the files ``which``, and upload them to a GPU in pieces meanwhile. Return an array of all files, of
        which the host has only the first bytes. Return None if the upload is not possible; the caller then reads the
        files into host memory."""
        files = self._directory, _FLAGS, self._names, self._starts, which
        try:
            upload = uploads.begin(nbytes, sizes)
            if upload is None:
                return None
            shown, kept = ctx.empty(nbytes, np.uint8), np.empty(len(which), np.int64)
            functions = libdeflate.addresses()

            def send(a: int, b: int) -> None:
                with uploads.pieces() as p:
                    memory, there = p.memory.reshape(len(p.busy), -1), upload.address
                    where = memory, p.events, p.busy, p.state, upload.calls, there, shown, kept, functions
                    while (a := _sending.send_files(*files, at, sizes, status, a, b, *where)) < b:
                        upload.wait(p)

            spread(ctx, len(which), nbytes + len(which) * _OPENING, send)
            return upload.finish_files(shown, at, sizes, kept)
        except Exception as e:  # errors of the GPU or of memory: reading the files as a whole needs neither
            uploads.failed(e, nbytes)
            return None

    def _fetched(self, ctx: Context, remote: RemoteFiles, which: I64) -> Batch:
        """Read the files ``which`` from a remote store as a batch of bytes. Unreadable files are rejected."""
        for k in np.flatnonzero(self.sizes[which] > MAX_FILE).tolist():
            ctx.reject(k, "too_large", f"the file has {int(self.sizes[which[k]])} bytes; at most {MAX_FILE} can be one "
                       "sample")  # fmt: skip
        rejected = {r.slot for r in ctx.rejects}
        remaining = [k for k in range(len(which)) if int(ctx.samples.slot[k]) not in rejected]
        sizes = np.zeros(len(which), np.int64)
        contents: dict[int, bytes] = {}
        for k, got in zip(remaining, remote.read([int(which[k]) for k in remaining]), strict=True):
            expected = int(self.sizes[which[k]])
            if isinstance(got, str):
                ctx.reject(k, "read_failed", got if expected >= 0 else "is a folder, or was not there from the start")
            elif len(got) != expected:
                ctx.reject(k, "read_failed", f"changed while the job ran: {expected} bytes in the index, {len(got)} "
                           "now; start a new job")  # fmt: skip
            else:
                contents[k], sizes[k] = got, len(got)
        capacities = (sizes // 16 + 1) * 16
        at = np.cumsum(capacities) - capacities
        out = ctx.staging(int(capacities.sum()))
        for k, data in contents.items():
            out[at[k] : at[k] + len(data)] = np.frombuffer(data, np.uint8)
        return Batch(out, at, sizes.astype(np.int32).reshape(-1, 1), "", ctx.samples)

    def head(self, i: int, max_bytes: int) -> tuple[bytes, int]:
        """Return the first ``max_bytes`` bytes of file ``i``, and its size. Raises OSError."""
        if self._remote is not None:
            got = self._remote.read([i])[0]
            if isinstance(got, str):
                raise OSError(got)
            return got[:max_bytes], len(got)
        with open(self.path(i), "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:
            return file.read(max_bytes), os.fstat(file.fileno()).st_size

    def _why(self, i: int, size: int) -> str:
        """Reason for which file ``i`` cannot be read, found by opening it again."""
        path = self.path(i)
        try:
            if not os.path.isfile(path) and os.path.exists(path):
                return "is a folder or a device, not a file"
            with open(path, "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:
                file.read(1)
                now = os.fstat(file.fileno()).st_size
        except OSError as e:
            return f"cannot be read: {e.strerror}"
        if size < 0:
            return "could not be read when the job began"
        return f"changed while the job ran: {size} bytes in the index, {now} now; start a new job"


class _Files(FileSet):
    """Data set of the reader `File`, opened: files, each with a label."""

    def __init__(self, root: str | None, names: Sequence[bytes], labels: Sequence[int], *, only_files: bool) -> None:
        super().__init__(root, names, only_files=only_files)
        self.labels = np.array(labels, np.int32)[self.kept]

    def fingerprint(self) -> str:
        return hashlib.sha256(super().fingerprint().encode() + self.labels.tobytes()).hexdigest()

    def inventory(self) -> InventoryEntries:
        files = super().inventory()
        return InventoryEntries(files.blob, {**files.state, "label": self.labels.astype(np.int64)}, files.records)

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        which = ctx.samples.index
        return self.read(ctx, which), scalars(self.labels[which], ctx)


def scalars(values: npt.NDArray[np.generic], ctx: Context) -> Batch:
    """Return a batch that holds one value per sample, with shape (1,), as DALI's readers return labels."""
    return Batch.from_dense(np.ascontiguousarray(values).reshape(-1, 1), "", ctx.samples)


class File(JoiningReader, name="readers.file"):
    """Read files: ``file_root/<folder>/<file>``, a list of files, or a text file that lists them.

    Outputs: the files' bytes (uint8, 1-D) and labels (int32, shape (1,)). A label is the index of the file's folder
    among the sorted folders (byte-wise, empty ones included), the label in the list, or the file's index in the list.
    """

    aliases = ("file_reader", "readers._file")
    example = "{op: readers.file, file_root: ./train, random_shuffle: true, out: [jpegs, labels]}"
    shuffles_list: ClassVar[bool] = True

    file_root: Annotated[str | None, Arg("folder of class folders, or the base of relative names in a list")] = None
    files: Annotated[tuple[str, ...] | None, Arg("paths of the files")] = None
    labels: Annotated[tuple[int, ...] | None, Arg("labels of the files")] = None
    file_list: Annotated[str | None, Arg("text file with a name and a label on every line")] = None
    file_filters: Annotated[tuple[str, ...], Arg("patterns of file names below file_root")] = MEDIA_FILTERS
    dir_filters: Annotated[tuple[str, ...] | None, Arg("patterns of folder names below file_root")] = None
    case_sensitive_filter: Annotated[bool, Arg("patterns distinguish upper from lower case")] = False

    @property
    def own_outputs(self) -> int:
        return 2

    def check(self) -> None:
        super().check()
        check_choice(self.file_root, self.files, self.file_list)
        if self.labels is not None and self.files is None:
            raise SpecError("labels need files; with file_root the folders are the labels")
        if self.labels is not None and self.files is not None and len(self.labels) != len(self.files):
            raise SpecError(f"{len(self.labels)} labels for {len(self.files)} files")
        if self.labels is not None and any(not -(2**31) <= label < 2**31 for label in self.labels):
            raise SpecError("labels must fit 32 bits")

    def own_specs(self) -> tuple[Spec, ...]:
        return Spec((None,), DALIDataType.UINT8), Spec((1,), DALIDataType.INT32)

    def open_records(self) -> _Files:
        if self.files is not None:
            names = [os.fsencode(f) for f in self.files]
            if any(b"\0" in n for n in names):
                raise SpecError("a file name holds a NUL character")
            return _Files(self.file_root, names, self.labels or range(len(names)), only_files=False)
        if self.file_list is not None:
            names, labels = read_file_list(self.file_list)
            root = os.path.dirname(self.file_list) if self.file_root is None else self.file_root
            return _Files(root or None, names, labels, only_files=False)
        assert self.file_root is not None
        return self._walk(self.file_root)

    def _walk(self, root: str) -> _Files:
        wanted_dir = matcher(self.dir_filters, self.case_sensitive_filter)
        wanted_file = matcher(self.file_filters, self.case_sensitive_filter)
        names: list[bytes] = []
        labels: list[int] = []
        folders = subdirectories(root, wanted_dir)
        for label, folder in enumerate(folders):
            inside = sorted(filter(wanted_file, list_folder(os.path.join(os.fsencode(root), folder))))
            prefix = folder + b"/"
            names += [prefix + name for name in inside]
            labels += [label] * len(inside)
        if not names:
            patterns = ", ".join(self.file_filters)
            n = len(folders)
            seen = f"{n} folder{'s were' if n > 1 else ' was'} searched" if n else "it has no matching folders"
            hint = _where_they_are(root, folders, wanted_file) or _endings(root, folders)
            raise JobError(f"file_root {root} has no files <folder>/<file> that match {patterns}: {seen}{hint}")
        return _Files(root, names, labels, only_files=True)


def _endings(root: str, folders: Sequence[bytes]) -> str:
    """Hint for the message if a filter matches no file: the most common file name endings in ``folders``."""
    names = (name for folder in folders for name in list_folder(os.path.join(os.fsencode(root), folder)))
    found = Counter(os.fsdecode(os.path.splitext(name)[1]) for name in names)
    common = [f"'*{ending}'" for ending, _ in found.most_common(5) if ending]
    if not common:
        return "; give file_filters or files"
    return f"; names there end otherwise: give file_filters: [{', '.join(common)}], or files"


def _where_they_are(root: str, folders: Sequence[bytes], wanted: Callable[[bytes], object]) -> str:
    """Hint for the message if no file was found: whether matching files exist in ``root`` itself, or one folder further
    down."""
    if is_url(root):
        return ""
    top = os.fsencode(plain_path(root))

    def found(folder: bytes) -> bytes | None:
        return next((n for n in sorted(list_folder(folder)) if wanted(n) and os.path.isfile(folder + b"/" + n)), None)

    if (name := found(top)) is not None:
        above = os.fsdecode(os.path.dirname(os.path.abspath(top)))
        return f", but there is {os.fsdecode(name)} in it: is {above} meant, whose folders are the labels?"
    first, meant = "", []
    for folder in folders:
        inside = (b"/".join((top, folder, inner)) for inner in sorted(list_folder(top + b"/" + folder)))
        deep = next((d for d in inside if os.path.isdir(d) and found(d) is not None), None)
        if deep is not None:
            first = first or os.fsdecode(deep)
            meant.append(os.path.join(root, os.fsdecode(folder)))
    if meant:
        return f", but there are some in {first}: is {' or '.join(meant[:5])} meant?"
    return ""


def check_choice(root: str | None, files: Sequence[str] | None, file_list: str | None) -> None:
    """Check that exactly one of ``files``, ``file_list`` and ``root`` alone gives the files to read. Raises
    SpecError."""
    if files is not None and file_list is not None:
        raise SpecError("files and file_list exclude each other")
    if files is None and file_list is None and root is None:
        raise SpecError("needs one of file_root, files and file_list")
    if files is not None and not files:
        raise SpecError("files is an empty list")
    if files is not None and any("\0" in f for f in files):
        raise SpecError("a name in files holds a NUL character; a file's name cannot")


def chosen_files(
    root: str | None, files: Sequence[str] | None, file_list: str | None, file_filter: str
) -> tuple[str | None, list[bytes], bool]:
    """Find the files to read: ``files``, or the lines of ``file_list``, or the files in ``root`` and its folders that
    match ``file_filter``. Return the root folder, the names relative to it, and whether folders were searched. Raises
    JobError."""
    if files is not None:
        return root, [os.fsencode(f) for f in files], False
    if file_list is not None:
        try:
            lines = Path(local_copy(file_list)).read_bytes().splitlines()
        except OSError as e:
            raise JobError(f"{file_list} cannot be read: {e.strerror}") from None
        names = [line.strip() for line in lines if line.strip()]
        if not names or any(b"\0" in n for n in names):
            raise JobError(f"{file_list} lists no files")
        return (os.path.dirname(file_list) if root is None else root) or None, names, False
    assert root is not None
    wanted = matcher((file_filter,), case_sensitive=True)
    names = sorted(filter(wanted, list_folder(os.fsencode(root))))
    for folder in subdirectories(root, matcher(None, case_sensitive=True)):
        inside = sorted(filter(wanted, list_folder(os.path.join(os.fsencode(root), folder))))
        names += [folder + b"/" + name for name in inside]
    if not names:
        raise JobError(f"{root} has no files that match {file_filter}")
    return root, names, True


def subdirectories(root: str, matches: Callable[[bytes], object]) -> list[bytes]:
    """Names of the folders in ``root`` that ``matches`` accepts (links followed), sorted byte-wise. Raises JobError."""
    if is_url(root):
        return sorted(n for n in (os.fsencode(f) for f in Store(root).folder()[0]) if matches(n))
    try:
        with os.scandir(os.fsencode(plain_path(root))) as entries:
            return sorted(e.name for e in entries if matches(e.name) and e.is_dir())
    except FileNotFoundError:
        raise JobError(f"file_root {root}: there is no such folder{_from_here(root)}") from None
    except NotADirectoryError:
        raise JobError(f"file_root {root} is a file, not a folder of folders; single files go into `files`, containers "
                       "have readers of their own (dali-run ops)") from None  # fmt: skip
    except OSError as e:
        raise JobError(f"file_root {root} cannot be listed: {e.strerror}") from None


def _from_here(path: str) -> str:
    """Hint for the message if a path does not exist: the working directory, if the path is relative."""
    with suppress(OSError):
        return "" if os.path.isabs(plain_path(path)) else f" in {os.getcwd()}"
    return ""


def list_folder(folder: bytes) -> list[bytes]:
    """Return the names of everything in a folder. Raises JobError."""
    if is_url(os.fsdecode(folder)):
        return [os.fsencode(f) for f in Store(os.fsdecode(folder)).folder()[1]]
    try:
        return os.listdir(plain_path(os.fsdecode(folder)).encode("utf-8", "surrogateescape"))
    except OSError as e:
        raise JobError(f"{os.fsdecode(folder)} cannot be listed: {e.strerror}") from None


def matcher(patterns: Iterable[str] | None, case_sensitive: bool) -> Callable[[bytes], object]:
    """Return a test whether a name matches one of the shell patterns; always true if ``patterns`` is None."""
    if patterns is None:
        return lambda name: True  # noqa: ARG005
    flags = 0 if case_sensitive else re.IGNORECASE
    whole = b"|".join(os.fsencode(fnmatch.translate(p)) for p in patterns)
    return re.compile(whole, flags).match


_LINE = re.compile(rb"(.*\S)\s+(\d+)\s*\Z", re.DOTALL)


def read_file_list(path: str) -> tuple[list[bytes], list[int]]:
    """Read names and labels from a text file: on each line a name (spaces allowed), white space, a number. Blank lines
    are skipped. Raises JobError that names a malformed line."""
    try:
        lines = Path(local_copy(path)).read_bytes().split(b"\n")
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    names: list[bytes] = []
    labels: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _LINE.match(line)
        if not found or b"\0" in line:
            raise JobError(f"{path}:{number}: needs a file name and a label (a number), got {line[:200]!r}")
        label = int(found[2][:20])
        if label >= 2**31:
            raise JobError(f"{path}:{number}: label {found[2][:20].decode()} does not fit 32 bits")
        names.append(found[1].lstrip())
        labels.append(label)
    if not names:
        raise JobError(f"{path} lists no files")
    return names, labels


def _open_directory(root: str) -> Descriptor:
    try:
        return Descriptor(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as e:
        raise JobError(f"{root} cannot be opened: {e.strerror}") from None
