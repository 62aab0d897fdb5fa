"""Where compiled code is kept: packs that the wheel brings, and a folder of this machine's own.

An entry is one function for one list of argument types. Entries of the folder are files of their own, written under
another name and renamed: any number of processes may read and write at once, and one that is killed leaves nothing
that could be loaded. An entry begins with the stamp of the sources that it was made from; with another stamp it is as
good as missing, and is overwritten.
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
"""The folder of the packs; there is none in a checkout."""
_STAMP = 32


@cache
def checkout() -> bool:
    """The package runs from its project's folder: what it compiles may be kept beside the sources."""
    return (ROOT / "pyproject.toml").is_file()


def user_folder() -> Path:
    """Where things of a user are kept that can be made anew."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dali-run" / "compiled"


def folders() -> list[Path]:
    """Folders to look for entries in, in this order; the first that can be written takes new ones."""
    found = []
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        found.append(Path(chosen) / "dali-run")
    if checkout():
        found.append(ROOT / "ops" / "compiled" / "__pycache__" / "loops")
    with suppress(RuntimeError):  # nobody's home
        found.append(user_folder())
    return found


@cache
def writable_folder() -> Path | None:
    """The folder that takes new entries; None where none can be written."""
    for folder in folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None


def announce_once() -> bool:
    """Whether no process of this machine has told yet that loops are compiled. From then on one has."""
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
    """The file name of an entry: what it holds, for which target, Numba and Python."""
    digest = hashlib.sha256(f"{key} {made_for} {target.versions()}".encode()).hexdigest()[:24]
    return f"{key.split('(')[0].rsplit('.', 1)[-1]}-{digest}"


def find(key: str, stamp: str, made_for: str) -> bytes | None:
    """The entry ``key`` that was made from sources of this stamp for this target."""
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
    """The content of an entry of a folder. Raises OSError, zlib.error."""
    return zlib.decompress(memoryview(file.read_bytes())[_STAMP:])


def holds(key: str, stamp: str, made_for: str) -> bool:
    """`find` would find it."""
    name = name_of(key, made_for)
    for folder in folders():
        with suppress(OSError), (folder / name).open("rb") as file:
            if file.read(_STAMP) == stamp.encode():
                return True
    return False


def keep(key: str, stamp: str, made_for: str, entry: bytes) -> bool:
    """Keep an entry; False where nothing can be written."""
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
    except OSError:  # a full disk, a quota: the code runs without being kept
        return False
    return True


# -- packs ------------------------------------------------------------------------------------------------------------


class Pack:
    """The entries for one level of processors, Numba and Python, in one file: a line of JSON, then the entries."""

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
        """`find` would find it."""
        return self._entries.get(key, ("",))[0] == stamp

    def find(self, key: str, stamp: str) -> bytes | None:
        """The entry ``key`` that was made from sources of this stamp."""
        made_from, at, size = self._entries.get(key, ("", 0, 0))
        if not size or made_from != stamp:
            return None
        at += self._begin
        try:
            return zlib.decompress(self._memory[at : at + size])
        except zlib.error:
            return None


def pack_name(level: str) -> str:
    """The file of a level's pack, for this Numba and Python."""
    return f"{level}-{target.versions()}.pack"


def write_pack(path: Path, entries: Mapping[str, tuple[str, bytes]]) -> None:
    """Write ``entries``: the stamp and the content of each."""
    heading, body, at = {}, [], 0
    for key, (stamp, content) in sorted(entries.items()):
        packed = zlib.compress(content, 9)
        heading[key] = stamp, at, len(packed)
        body.append(packed)
        at += len(packed)
    path.write_bytes(json.dumps(heading).encode() + b"\n" + b"".join(body))


@cache
def packs() -> tuple[Pack, ...]:
    """The packs of the wheel that this process may use, the best first."""
    found = []
    if PACKS.is_dir():
        for level in target.levels():
            with suppress(OSError, ValueError):
                found.append(Pack(PACKS / pack_name(level)))
    return tuple(found)
