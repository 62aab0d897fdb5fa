"""One job at a time in an output directory: a lock that ends with its owner.

It is a POSIX record lock on a file: the kernel drops it when the process ends, in whatever way, and children do not
inherit it. On file systems without locks, or that lose them, the owner is read from the file's text instead. There it
matters that one process alone creates the file (O_EXCL), and that no other overwrites it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import socket
import stat
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json
from ..bytes import files_io

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_PATIENCE = 1.0
"""Seconds that the owner of a new lock file has to write its identity into it. After that, the file counts as left by a
machine that died."""
_held: set[str] = set()
"""Paths of the locks that this process holds. Record locks of the system exclude other processes only, and are lost
when any descriptor of the file is closed."""


class BusyError(JobError):
    """Raised if another job has the lock of an output, and may be writing it."""

    def __init__(self, message: str, owner: dict[str, Any]) -> None:
        super().__init__(message)
        self.owner = owner
        """Identity of the other job, as `identify` returns it; empty if unknown."""


class Lock:
    """The lock of an output, which one job at a time holds. The constructor takes it, `release` ends it. Raises
    JobError if a live job holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.path.realpath(path)
        if self._name in _held:
            message = f"{path.parent} is being written by another job of this process; wait for it to end"
            raise BusyError(message, identify())
        self._fd = self._acquire()
        _held.add(self._name)

    def _acquire(self) -> int:
        while True:
            files_io.before("open", self.path)
            fd, new = _open_or_make(self.path)
            try:
                _check_ours(fd, self.path)
                self._take(fd, new)
                # Its last owner may have removed the file between open and lock.
                if _is_at(fd, self.path):
                    if new:
                        self._sign(fd)
                        return fd
                    files_io.remove(self.path)  # a dead owner's; one of the waiting jobs creates the next
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _sign(self, fd: int) -> None:
        try:
            files_io.before("write", self.path)
            os.pwrite(fd, json.dumps(identify()).encode(), 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            raise

    def _take(self, fd: int, new: bool) -> None:
        """Take the lock on ``fd``, a lock file that this process created (``new``) or found. Raises BusyError if its
        owner may be alive, OSError."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = {} if new else _settled_owner(fd)
            if owner.get("host") == socket.gethostname() and owner.get("pid") != os.getpid() and may_live(owner):
                raise OSError(errno.EAGAIN, "the file system has lost the lock of a live process")
        except OSError as e:
            owner = {} if new else _settled_owner(fd) if e.errno in _NO_LOCKS else _read_owner(fd)
            held = e.errno in (errno.EACCES, errno.EAGAIN) or (e.errno in _NO_LOCKS and may_live(owner))
            if held:
                holder = f"process {owner.get('pid')} on {owner.get('host')}" if owner else "another job"
                # A server may keep the lock of a machine that is gone; on this machine the kernel drops it.
                kept = e.errno in _NO_LOCKS or owner.get("host") != socket.gethostname()
                raise BusyError(
                    f"{self.path.parent} is being written by {holder}; wait for it to end, or choose another path"
                    + (f" (if it is dead: rm {shlex.quote(str(self.path))})" if kept else ""),
                    owner,
                ) from None
            if e.errno not in _NO_LOCKS:
                e.filename = str(self.path)
                raise

    def check(self) -> None:
        """Check that this process still has the lock: file systems lose locks, and people remove files. Raises JobError
        if another job has it now."""
        owner = _read_owner(self._fd)
        if owner != identify():
            holder = f"process {owner.get('pid')} on {owner.get('host')}" if owner else "another job"
            raise JobError(f"{self.path.parent}: {holder} has taken the output over; this job ends here")
        if not _is_at(self._fd, self.path):
            raise JobError(
                f"{self.path.parent}: the lock of this job was removed, so it ends here; if no other job writes there, "
                "run the same command again: it continues"
            )

    def release(self) -> None:
        """Release the lock and remove its file, unless another job holds it now. A second call does nothing."""
        if self._name not in _held or self._fd < 0:
            return
        _held.discard(self._name)
        try:
            if _is_at(self._fd, self.path):
                files_io.remove(self.path)
        finally:
            os.close(self._fd)
            self._fd = -1


def break_lock(path: Path, dead: dict[str, Any]) -> bool:
    """Remove the lock at ``path`` if its owner is ``dead``, a process known to be gone. Needed because a file server
    may keep the lock of a machine that is gone. Return whether the lock was removed."""
    try:
        fd = _open(path)
    except (OSError, JobError):
        return False
    try:
        if _read_owner(fd) != dead or not _is_at(fd, path):
            return False
        files_io.remove(path)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _open_or_make(path: Path) -> tuple[int, bool]:
    """Open the lock file at ``path``, or create it. Return its descriptor, and whether it was created. Raises JobError
    if the file cannot be a lock, OSError."""
    while True:
        try:
            return _open(path, os.O_CREAT | os.O_EXCL), True
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # its owner has just released it
                return _open(path), False


def _open(path: Path, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise JobError(
                f"{path} is not a file of this program (perhaps a link), and is left alone; remove it"
            ) from None
        raise


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file ``fd`` is still the file at ``path``."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _check_ours(fd: int, path: Path) -> None:
    """Check that the lock file may be overwritten. Raises JobError if not: whoever made the folder may have made it a
    hard link to an important file."""
    found = os.fstat(fd)
    head = os.pread(fd, len(_HEAD), 0) if stat.S_ISREG(found.st_mode) else b""
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not _HEAD.startswith(head):
        raise JobError(f"{path} is not a lock of this program, and is left alone; remove it")


_HEAD = b'{"host": '
"""First bytes of the text in a lock file. A truncated lock file is recognized by them."""


def identify() -> dict[str, Any]:
    """Return the identity of this process: host, boot, pid and start time, so that a reused process number is noticed.
    Raises OSError if the system does not provide these."""
    return dict(_identity(os.getpid()))


@lru_cache(1)
def _identity(pid: int) -> dict[str, Any]:
    """Return the identity of process ``pid``. It is cached: the lock must stay valid if the machine's name changes, or
    if no file descriptor is left to read the values."""
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "started": _started(pid)}


_ABSENT = (FileNotFoundError, NotADirectoryError, PermissionError, ProcessLookupError)
"""Errors of reading /proc which show that it does not exist, or that there is no such process. After any other error
the state of the lock's owner is unknown."""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except _ABSENT:
        return ""


def _started(pid: int) -> int | None:
    """Return the start time of process ``pid`` in clock ticks after boot (proc(5), field 22 of stat), or None if there
    is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (*_ABSENT, ValueError, IndexError):
        return None


def _read_owner(fd: int) -> dict[str, Any]:
    try:
        owner = parse_json(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _settled_owner(fd: int) -> dict[str, Any]:
    """Wait until the owner of the lock has written its identity into the file, and return the identity. Empty if this
    takes longer than `_PATIENCE`."""
    end = time.monotonic() + _PATIENCE
    while not (owner := _read_owner(fd)) and time.monotonic() < end:
        time.sleep(0.01)
    return owner


def may_live(owner: dict[str, Any]) -> bool:
    """Whether the owner of a lock could be running; True for an owner on another host, which cannot be checked."""
    if not owner:
        return False
    if owner.get("host") != socket.gethostname():
        return True
    return owner.get("boot") == _boot() and _started(int(owner.get("pid", -1))) == owner.get("started")
