"""Read inputs at URLs: single files are read whole, many at a time; containers are copied into a local cache and
mapped."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...ops.errors import JobError, SpecError
from ...ops.storage.urls import Store, is_url, plain_path, split, version_of

THREADS = 16
"""Number of concurrent requests to a store, which answers each one late, but many at the same time."""
_DEFAULT = 100 << 30
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_lock = threading.Lock()
_in_use: dict[Path, int] = {}
"""Local copies that this process uses, by path in the cache, and how many of their bytes are still to be downloaded. It
must be shared by all readers of the process: none may remove a copy that another one reads."""


def cache_limit() -> int:
    """Limit on the total bytes of downloaded copies in the cache: DALI_RUN_CACHE_SIZE (such as ``500G``), by default
    100 GiB. Raises SpecError if the variable is not a size."""
    text = os.environ.get("DALI_RUN_CACHE_SIZE", "").strip().upper().removesuffix("B")
    if not text:
        return _DEFAULT
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "")
    try:
        return int(float(number) * _UNITS[unit])
    except ValueError:
        raise SpecError(f"DALI_RUN_CACHE_SIZE={text!r} is not a size; use 500G, 20M or a number of bytes") from None


def cache_folder() -> Path:
    """Folder that holds the downloaded copies of remote files."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "dali-run", "remote")


def local_copy(path: str) -> str:
    """Return a local path for ``path``: the path itself, or for a URL the path of a copy in the cache. The copy is
    downloaded unless it is there in the same version. Its modification time is derived from the version that the store
    reports, so that it is equal on all machines. Raises JobError if there is no such file, or no space for it."""
    if not is_url(path):
        return plain_path(path)
    store, name = split(path)
    info = store.info(name)
    if info is None or info.get("type") == "directory":
        raise JobError(f"{path} cannot be opened: there is no such file")
    version, size = version_of(info), int(info.get("size") or 0)
    key = hashlib.sha256(f"{path}\n{version}".encode()).hexdigest()[:32]
    place = cache_folder() / key / name
    with _lock:
        cached = place.exists() and place.stat().st_size == size
        if not cached:
            _free_space(size, path)
        _in_use[place] = 0 if cached else size
    if not cached:
        temporary = ""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".dali-run-", dir=place.parent)
            os.close(handle)
            store.get(name, temporary)
            if os.path.getsize(temporary) != size:
                received = os.path.getsize(temporary)
                raise JobError(f"{path}: only {received} of {size} bytes were downloaded; try again")
            os.utime(temporary, ns=(time.time_ns(), version))
            os.replace(temporary, place)
        except FileNotFoundError:
            raise JobError(f"{path} cannot be opened: there is no such file") from None
        except OSError as e:
            raise JobError(f"{path} cannot be copied to {place}: {e.strerror or e}") from None
        finally:
            _in_use[place] = 0
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    with contextlib.suppress(OSError):
        os.utime(place, ns=(time.time_ns(), version))
    return str(place)


def is_folder(path: str) -> bool:
    """Whether ``path``, a local path or a URL, is a folder."""
    if not is_url(path):
        return os.path.isdir(path)
    info = Store(path).info()
    return info is not None and info.get("type") == "directory"


def local_copies(paths: Sequence[str]) -> list[str]:
    """Call `local_copy` for each of ``paths``, several at a time."""
    if not any(is_url(p) for p in paths):
        return [plain_path(p) for p in paths]
    with ThreadPoolExecutor(min(THREADS, len(paths))) as pool:
        return list(pool.map(local_copy, paths))


def _free_space(size: int, path: str) -> None:
    """Remove the least recently used copies from the cache until ``size`` bytes for a copy of ``path`` fit."""
    limit = cache_limit()
    files = [f for f in cache_folder().glob("*/[!.]*") if f.is_file()] if cache_folder().is_dir() else []
    copies = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            copies.append((status.st_atime_ns, status.st_size, file))
    total = sum(n for _, n, _ in copies) + sum(_in_use.values()) + size
    for _, n, file in sorted(copies):
        if total <= limit:
            return
        if file not in _in_use:
            with contextlib.suppress(OSError):
                file.unlink()
                file.parent.rmdir()
            total -= n
    if total > limit:
        raise JobError(
            f"{path}: its {size} bytes do not fit into the cache with the other inputs ({total} bytes of {limit}); "
            f"allow more with DALI_RUN_CACHE_SIZE, or copy the data yourself. The cache is {cache_folder()}"
        )


class RemoteFiles:
    """Remote files, addressed by number; they are all below one root URL, or each has a URL of its own."""

    def __init__(self, root: str | None, names: Sequence[bytes]) -> None:
        """``root``: URL of the folder that ``names`` are relative to; None if the names are URLs. Raises JobError if
        there is no root and a name is not a URL."""
        self._names = [os.fsdecode(n) for n in names]
        if root is None:
            local = next((n for n in self._names if not is_url(n)), None)
            if local is not None:
                raise JobError(f"files: {local!r} is not a URL, but others are; give URLs or local paths, not both")
        self._root = Store(root) if root is not None else None

    def _at(self, i: int) -> tuple[Store, str]:
        return (self._root, self._names[i]) if self._root is not None else split(self._names[i])

    def stat(self, absent: int) -> tuple[list[int], list[int]]:
        """Return sizes in bytes (``absent`` for a file that does not exist) and version numbers of all files."""
        listed = self._root.files() if self._root is not None else {}

        def one(i: int) -> tuple[int, int]:
            info = listed.get(self._names[i])
            if info is None:
                store, name = self._at(i)
                info = store.info(name)
            if info is None or info.get("type") == "directory":
                return absent, 0
            return int(info.get("size") or 0), version_of(info)

        with ThreadPoolExecutor(THREADS) as pool:
            rows = list(pool.map(one, range(len(self._names))))
        return [size for size, _ in rows], [version for _, version in rows]

    def read(self, indices: Sequence[int]) -> list[bytes | str]:
        """Read the remote files ``indices``. Return the bytes of each, or the reason why it cannot be read."""

        def one(i: int) -> bytes | str:
            store, name = self._at(i)
            try:
                return store.read(name)
            except FileNotFoundError:
                return "cannot be read: there is no such file any more"
            except JobError as e:
                return str(e)

        with ThreadPoolExecutor(min(THREADS, len(indices) or 1)) as pool:
            return list(pool.map(one, indices))
