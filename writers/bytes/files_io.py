"""All file operations of the writers, in one place where tests inject kills and I/O errors.

All errors are OSError with the path in ``filename``; `job_errors` turns them into JobError.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64
from ...ops.errors import DaliRunError, JobError
from .checksums import Checksums
from .scatter_gather import IoVector

Bytes = bytes | npt.NDArray[np.uint8] | IoVector
Hook = Callable[[str, str], int | None]
"""Type of a function that tests install, called with (operation, path) before each operation on files. It may raise
OSError (then the operation does not happen), end the process, or return how many bytes a write may take at once (short
or torn writes)."""

_hook: Hook | None = None
"""Hook that a test has installed for the whole process, also for threads that write; None in normal use."""


def set_hook(hook: Hook | None) -> None:
    """Install ``hook`` for the whole process (tests only); None removes it."""
    global _hook
    _hook = hook


def before(operation: str, path: Path) -> int | None:
    """Call the hook that a test has installed, and return its result. Each operation on files calls this first."""
    return None if _hook is None else _hook(operation, str(path))


class File:
    """A file that is written in order. The last reference to it closes it, if `close` did not. One thread at a time
    calls it."""

    _fd = -1

    def __init__(self, path: Path, *, append: bool = False) -> None:
        """Create ``path`` (it must not exist), or open it for appending; a link is not followed.

        Appending uses O_APPEND: the kernel finds the end of the file at each write.
        """
        self.path = path
        before("open", path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if append else os.O_EXCL)
        self._fd = os.open(path, flags, 0o666)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode) or (append and found.st_nlink > 1):
            raise OSError(errno.EEXIST, "it is not a file of this program (a pipe, or a hard link)", str(path))
        self.size = found.st_size

    @property
    def removed(self) -> bool:
        """Whether the file was removed since it was opened."""
        return os.fstat(self._fd).st_nlink == 0

    def write(self, data: Bytes) -> None:
        """Write all of ``data`` at the end of the file."""
        view = data if isinstance(data, IoVector) else memoryview(data if isinstance(data, bytes) else data.data)
        at = 0
        while at < len(view):
            limit = min(before("write", self.path) or _MAX_WRITE, _MAX_WRITE)
            with _named(self.path):
                if isinstance(view, IoVector):
                    done = _writev(self._fd, view.part(at, limit))
                else:
                    done = os.write(self._fd, view[at : at + limit])
            at += done
            self.size += done

    def write_at(self, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset``, over bytes that were written before."""
        before("write", self.path)
        with _named(self.path):
            if os.pwrite(self._fd, data, offset) != len(data):
                raise OSError(errno.EIO, "short write")

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> int:
        """Read bytes at ``offset``, at most as many as ``buffer`` holds. Return their number, at least one."""
        with _named(self.path):
            n = os.preadv(self._fd, [buffer.data], offset)
            if n == 0:
                raise OSError(errno.EIO, "the file was cut short by somebody else")
            return n

    def sum(self, checksums: Checksums, first: int, size: int) -> None:
        """Compute the checksums of ``size`` bytes of this file from block ``first`` on, and add them to
        ``checksums``."""
        with _named(self.path):
            checksums.take(self._fd, first, size)

    def sync(self) -> None:
        """Make the file's content durable (fsync)."""
        before("fsync", self.path)
        with _named(self.path):
            os.fsync(self._fd)

    def truncate(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""
        before("truncate", self.path)
        with _named(self.path):
            os.ftruncate(self._fd, size)
        self.size = size

    def close(self) -> None:
        """Close the file's descriptor; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with _named(self.path):
                os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


_MAX_WRITE = 1 << 30
"""Largest number of bytes that are passed to one write call; Linux accepts at most 0x7ffff000."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.writev.restype = ctypes.c_ssize_t
_libc.writev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]


def _writev(handle: int, table: I64) -> int:
    """Write the segments of a table of addresses and sizes (`IoVector.part`). Return the number of bytes written.
    Python's os.writev would need an object per segment."""
    while True:
        done = int(_libc.writev(handle, table.ctypes.data, len(table)))
        if done >= 0:
            return done
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


class _named:  # noqa: N801
    """Context manager that adds the path to an OSError raised for a descriptor, and explains a bad address."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            if error.errno == errno.EFAULT:  # the written memory is part of a mapped file
                error.strerror = "an input file was cut short, or could not be read, while a record was copied from it"
            error.filename = str(self.path)


def write_new(path: Path, data: bytes) -> None:
    """Create a file that holds ``data``, durably."""
    file = File(path)
    try:
        file.write(data)
        file.sync()
    finally:
        file.close()


def rename(old: Path, new: Path) -> None:
    """Rename ``old`` to ``new`` atomically; an existing ``new`` is replaced."""
    before("rename", new)
    os.replace(old, new)


def rename_new(old: Path, new: Path) -> None:
    """Rename ``old`` to ``new`` atomically. Raises FileExistsError if ``new`` exists."""
    before("rename", new)
    os.link(old, new)
    os.unlink(old)


def sync_dir(path: Path) -> None:
    """Make the names of files in the directory ``path`` durable (fsync)."""
    before("fsync", path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _named(path):
            os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: Path) -> None:
    """Create directory ``path`` and its parents, unless they exist."""
    if not path.is_dir():
        before("mkdir", path)
        path.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a directory with its content; do nothing if there is none. Links are not followed."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            remove(child)
        before("remove", path)
        path.rmdir()
    elif path.exists() or path.is_symlink():
        before("remove", path)
        path.unlink()


@contextlib.contextmanager
def job_errors(then: str = "it continues after the last finished shard") -> Iterator[None]:
    """Context manager that raises an OSError as JobError. The message has the operation, the reason, and what happens
    if the same command is run again (``then``)."""
    try:
        yield
    except DaliRunError:
        raise
    except OSError as e:
        code = errno.errorcode.get(e.errno or 0, "?")
        raise JobError(
            f"cannot write {e.filename or 'the output'}: {e.strerror or e} ({code}); correct that and run the same "
            f"command again: {then}"
        ) from e
