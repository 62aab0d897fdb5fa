"""Files at URLs (``s3://bucket/train``), through fsspec. Nothing is imported, and no socket is opened, before a spec or
a command contains such a URL; ``file://`` is treated as a local path."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import JobError, SpecError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ATOMIC = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "hf", "memory"})
"""URL schemes of stores in which an object appears only when it is complete. In others, files are written under a
temporary name and renamed."""
_VERSIONS = ("ETag", "etag", "md5Hash", "md5", "crc32c", "generation", "mtime", "LastModified", "last_modified",
             "updated", "modified", "created")  # fmt: skip


def is_url(path: object) -> bool:
    """Return whether ``path`` is the URL of a remote store. ``file://`` URLs are local paths."""
    text = str(path)
    return _URL.match(text) is not None and not text.lower().startswith("file://")


def plain_path(path: str) -> str:
    """Return the path without ``file://``."""
    return path[7:] if path.lower().startswith("file://") else path


def join(root: str, name: str) -> str:
    """Return the path of ``name`` below ``root``, a URL or a path."""
    return f"{root.rstrip('/')}/{name}" if is_url(root) else os.path.join(root, name)


def version_of(info: dict[str, Any]) -> int:
    """Return a number that changes when the object changes: from its checksum or time, if the store reports one, and
    its size."""
    told = next((str(info[k]) for k in _VERSIONS if info.get(k) is not None), "")
    return int(hashlib.sha256(f"{told}/{info.get('size')}".encode()).hexdigest()[:15], 16)


class Store:
    """Files below one URL. Names are relative, with slashes. Methods raise JobError if the store reports an error."""

    def __init__(self, url: str) -> None:
        """Open the store of ``url``. Raises SpecError if no installed package supports such a URL."""
        self.url = url.rstrip("/")
        try:
            import fsspec
        except ImportError:
            raise SpecError(f"{url}: URLs need fsspec; pip install 'dali-run[remote]', and s3fs or gcsfs") from None
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as e:
            raise SpecError(f"{url}: {' '.join(str(e).split())}") from None
        self._root = str(root).rstrip("/")
        self._atomic = url.split("://", 1)[0].lower() in _ATOMIC

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _errors(self, name: str, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (JobError, SpecError):
            raise
        except Exception as e:  # every store raises its own exceptions
            what = " ".join(str(e).split()) or type(e).__name__
            raise JobError(f"{self.url}/{name} cannot be {doing}: {what}") from e

    def files(self) -> dict[str, dict[str, Any]]:
        """Return all files below the URL, by name, each with what the store reports about it, such as its size."""
        with self._errors("", "listed"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        skip = len(self._root) + 1
        return {path[skip:]: info for path, info in sorted(found.items()) if len(path) > skip}

    def folder(self, name: str = "") -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the files in folder ``name``. Raises JobError if it does not exist."""
        with self._errors(name, "listed"):
            try:
                found = self._fs.ls(self._path(name), detail=True)
            except FileNotFoundError:
                raise JobError(f"{self.url}/{name} cannot be listed: there is no such folder") from None
        names: tuple[list[str], list[str]] = ([], [])
        for info in found:
            base = str(info["name"]).rstrip("/").rpartition("/")[2]
            if base:
                names[info["type"] != "directory"].append(base)
        return sorted(names[0]), sorted(names[1])

    def info(self, name: str = "") -> dict[str, Any] | None:
        """Return what the store reports about a file or folder, such as its size; None if it does not exist."""
        with self._errors(name, "found"):
            self._fs.invalidate_cache()
            try:
                return dict(self._fs.info(self._path(name)))
            except FileNotFoundError:
                return None

    def age(self, name: str, now: float) -> float | None:
        """Return the seconds since a file was written; None if the store does not report it."""
        try:
            return now - float(self._fs.modified(self._path(name)).timestamp())
        except (NotImplementedError, FileNotFoundError, AttributeError):
            return None

    def matching(self) -> list[str]:
        """Return the URLs of the files that match this store's URL, which contains a pattern such as ``*``."""
        with self._errors("", "listed"):
            self._fs.invalidate_cache()
            found = self._fs.glob(self._root)
        scheme = self.url.split("://", 1)[0]
        return [f"{scheme}://{str(p).lstrip('/')}" for p in sorted(found)]

    def read(self, name: str = "") -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with self._errors(name, "read"):
            return bytes(self._fs.cat_file(self._path(name)))

    def get(self, name: str, path: str) -> None:
        """Copy a file to the local ``path``. Raises FileNotFoundError."""
        with self._errors(name, "read"):
            self._fs.get_file(self._path(name), path)

    def put(self, path: str, name: str) -> None:
        """Copy the local file ``path`` to the store. The file appears there completely or not at all."""
        final = self._path(name)
        folder, _, base = final.rpartition("/")
        with self._errors(name, "written"):
            target = final if self._atomic else f"{folder}/.{base}.tmp"
            if not self._atomic or self._fs.protocol == "memory":
                self._fs.makedirs(folder, exist_ok=True)
            self._fs.put_file(path, target)
            if target != final:
                self._fs.mv(target, final)
            self._fs.invalidate_cache()
            size, sent = int(self._fs.info(final)["size"]), os.path.getsize(path)
            if size != sent:
                raise JobError(f"{self.url}/{name} has {size} bytes, {sent} were sent")

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._errors(name, "removed"):
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                return


def split(url: str) -> tuple[Store, str]:
    """Return the store of a file's folder, and the file's name."""
    folder, _, name = url.rstrip("/").rpartition("/")
    return Store(folder), name
