"""Storage of compiled loops: packs that the wheel contains, and folders on this machine.

An entry is one function for one list of argument types. Entries in a folder are files of their own, written under
another name and then renamed: any number of processes may read and write at once, and a process that is killed leaves
nothing that could be loaded. An entry begins with the stamp of the sources that it was compiled from; with another
stamp it counts as missing, and is overwritten.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from . import target
from .stamp import ROOT

PACKS = ROOT / "ops" / "compiled" / "packs"
"""Folder of the wheel's files with compiled functions (packs); a source checkout has none."""
_STAMP = 32


@cache
def checkout() -> bool:
    """Return whether the package runs from a source checkout. Compiled code may then be stored next to the sources."""
    return (ROOT / "pyproject.toml").is_file()


def user_folder() -> Path:
    """Return the folder in the user's cache directory (XDG_CACHE_HOME) in which compiled functions are stored."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dali-run" / "compiled"


def folders() -> list[Path]:
    """Return the folders that are searched for compiled functions, in this order. New functions are stored in the first
    writable one."""
    found = []
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        found.append(Path(chosen) / "dali-run")
    if checkout():
        found.append(ROOT / "ops" / "compiled" / "__pycache__" / "loops")
    with suppress(RuntimeError):  # no home directory
        found.append(user_folder())
    return found


@cache
def writable_folder() -> Path | None:
    """Return the folder in which newly compiled functions are stored; None if no folder is writable."""
    for folder in folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None


def announce_once() -> bool:
    """Return True for only one process on this machine, the first that asks, so that only one tells the user that
    functions are being compiled."""
    folder = writable_folder()
    try:
        if folder is not None:
            (folder / "announced").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def name_of(key: str, made_for: str) -> str:
    """Return the file name for a compiled function: the function's name, and a digest of its ``key``, the processor
    ``made_for``, Numba and Python."""
    digest = hashlib.sha256(f"{key} {made_for} {target.versions()}".encode()).hexdigest()[:24]
    return f"{key.split('(')[0].rsplit('.', 1)[-1]}-{digest}"


def find(key: str, stamp: str, made_for: str) -> bytes | None:
    """Return the stored code of the function ``key`` for the processor ``made_for``; None if there is none that was
    compiled from sources with this ``stamp`` (a digest)."""
    name = name_of(key, made_for)
    for folder in folders():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            continue
        if content[:_STAMP] == stamp.encode():
            with suppress(zlib.error):
                return zlib.decompress(memoryview(content)[_STAMP:])
    return None


def content(file: Path) -> bytes:
    """Return the compiled code that is stored in ``file``. Raises OSError, zlib.error."""
    return zlib.decompress(memoryview(file.read_bytes())[_STAMP:])


def holds(key: str, stamp: str, made_for: str) -> bool:
    """Return whether `find` would return code for these arguments."""
    name = name_of(key, made_for)
    for folder in folders():
        with suppress(OSError), (folder / name).open("rb") as file:
            if file.read(_STAMP) == stamp.encode():
                return True
    return False


def keep(key: str, stamp: str, made_for: str, entry: bytes) -> bool:
    """Store the compiled code ``entry`` in the first writable folder. Return False if no folder is writable."""
    folder = writable_folder()
    if folder is None or not stamp:
        return False
    try:
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(stamp.encode() + zlib.compress(entry, 6))
            os.replace(temporary, folder / name_of(key, made_for))
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError:  # a full disk or a quota: the code runs without being stored
        return False
    return True


# -- packs ------------------------------------------------------------------------------------------------------------


class Pack:
    """File in the wheel, read-only, with all compiled functions for one level of x86-64 (such as v3), one version of
    Numba and one of Python: a line of JSON, then the code of each function. Opened once per process by `packs`; any
    thread may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            heading = file.readline()
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._entries: dict[str, tuple[str, int, int]] = json.loads(heading)
        self._begin = len(heading)

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, key: str, stamp: str) -> bool:
        """Return whether `find` would return code for these arguments."""
        return self._entries.get(key, ("",))[0] == stamp

    def find(self, key: str, stamp: str) -> bytes | None:
        """Return the stored code of the function or CUDA kernel ``key``; None if there is none that was compiled from
        sources with this ``stamp`` (a digest)."""
        made_from, at, size = self._entries.get(key, ("", 0, 0))
        if not size or made_from != stamp:
            return None
        at += self._begin
        try:
            return zlib.decompress(self._memory[at : at + size])
        except zlib.error:
            return None


def pack_name(level: str) -> str:
    """Return the name of the wheel's file with compiled functions for a level of x86-64, for this version of Numba and
    Python."""
    return f"{level}-{target.versions()}.pack"


def write_pack(path: Path, entries: Mapping[str, tuple[str, bytes]]) -> None:
    """Write a file of compiled functions. ``entries``: stamp (digest of sources) and code of each function, by its
    key."""
    heading, body, at = {}, [], 0
    for key, (stamp, content) in sorted(entries.items()):
        packed = zlib.compress(content, 9)
        heading[key] = stamp, at, len(packed)
        body.append(packed)
        at += len(packed)
    path.write_bytes(json.dumps(heading).encode() + b"\n" + b"".join(body))


@cache
def packs() -> tuple[Pack, ...]:
    """Return the wheel's files of compiled functions that this process may use; the highest processor level first."""
    found = []
    if PACKS.is_dir():
        for level in target.levels():
            with suppress(OSError, ValueError):
                found.append(Pack(PACKS / pack_name(level)))
    return tuple(found)
