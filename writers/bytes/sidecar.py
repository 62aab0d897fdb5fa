"""Reading what an output folder says about itself. The folder may come from anybody: what it says is data.

So nothing is read but regular files, of bounded size; no link is followed; no name leads out of the folder.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

from ...ops.errors import JobError

LARGEST = 4 << 30
"""Bytes of a journal, log or manifest; 20 million files in one job make some 3 GB."""
REPORT = 64 << 20
"""Bytes of a report: a few kilobytes for each operator."""


def open_regular(path: Path) -> io.BufferedReader:
    """``path``, opened for reading. Raises JobError for a link or anything that is no regular file (a pipe would be
    waited for, a device never ends) and for one that cannot be read, FileNotFoundError where there is none."""
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
            raise JobError(f"{path} is no regular file, and is not read; remove it")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def _unreadable(path: Path, problem: OSError) -> JobError:
    return JobError(f"{path} cannot be read: {problem.strerror}; put that right and run the same command again")


def read(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file beside the shards. Raises as `open_regular`, and JobError above ``most`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise JobError(f"{path} has {size:,} bytes; at most {most:,} are read")
        try:
            return file.read(size)  # not of `most`: memory of that size would be allocated first
        except OSError as e:
            raise _unreadable(path, e) from None


def read_json(path: Path, most: int = LARGEST) -> dict[str, Any]:
    """The JSON mapping in ``path``. Raises as `read`, and ValueError where it holds anything else."""
    try:
        found = json.loads(read(path, most))
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("holds no mapping")
    return found


def is_inside(name: object) -> bool:
    """``name`` is that of something below a folder, written in the plain way."""
    if not isinstance(name, str) or "\0" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def inside(root: Path, name: str) -> Path:
    """The file ``name`` of the folder ``root``, which may be missing. Raises JobError for a name that leads out of
    it, by itself or by a link."""
    if not is_inside(name):
        raise JobError(f"{name!r} is no name of a file in {root}")
    path = root
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise JobError(f"{path} is a symbolic link; links in an output are not followed, remove it")
    return path
