"""Read the files in which an output folder describes itself. The folder may have any origin: its content is not
trusted.

Only regular files of bounded size are read; links are not followed, and names must stay inside the folder.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json

LARGEST = 4 << 30
"""Largest size in bytes of a journal, log or manifest that is read; 20 million files in one job make about 3 GB."""
REPORT = 64 << 20
"""Largest size in bytes of a report that is read; a report has a few kilobytes per operator."""


def open_regular(path: Path) -> io.BufferedReader:
    """Open ``path`` for reading. Raises JobError for a link or anything but a regular file (reading a pipe would block,
    a device never ends) and for a file that cannot be read, FileNotFoundError if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise JobError(f"{path} is a symbolic link; links in an output are not followed, remove it") from None
        if isinstance(e, FileNotFoundError):
            raise
        raise _unreadable(path, e) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise JobError(f"{path} is not a regular file, so it is not read; remove it")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def _unreadable(path: Path, problem: OSError) -> JobError:
    return JobError(f"{path} cannot be read: {problem.strerror}; correct that and run the same command again")


def read(path: Path, max_bytes: int = LARGEST) -> bytes:
    """Read a file that describes the shards, such as a journal or manifest. Raises the errors of `open_regular`, and
    JobError above ``max_bytes`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise JobError(f"{path} has {size:,} bytes; at most {max_bytes:,} are read")
        try:
            return file.read(size)  # `max_bytes` would allocate memory of that size first
        except OSError as e:
            raise _unreadable(path, e) from None


def read_json(path: Path, max_bytes: int = LARGEST) -> dict[str, Any]:
    """Read the JSON mapping in ``path``. Raises the errors of `read`, and ValueError if it holds anything else."""
    found = parse_json(read(path, max_bytes))
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    return found


def is_inside(name: object) -> bool:
    """Whether ``name`` is a normalized relative path that stays inside its folder."""
    if not isinstance(name, str) or "\0" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def inside(root: Path, name: str) -> Path:
    """Return the path of the file ``name`` in the folder ``root``; the file may be missing. Raises JobError if the name
    leaves the folder, by itself or through a link."""
    if not is_inside(name):
        raise JobError(f"{name!r} is not the name of a file in {root}")
    path = root
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise JobError(f"{path} is a symbolic link; links in an output are not followed, remove it")
    return path
