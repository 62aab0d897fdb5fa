"""A small local copy of the data at a URL for inspection: the first container, or the first files and all file
names."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...ops.errors import JobError, SpecError
from ...ops.storage.urls import Store, join, split

CONTAINERS: tuple[tuple[str, ...], ...] = (
    (".tfrecord", ".tfrecords", ".tfrecord.gz"),
    (".lmdb", ".mdb"),
    (".tar", ".tar.gz", ".tgz"),
    (".rec",),
    (".parquet",),
    (".array_record", ".arrayrecord"),
)
"""File name suffixes of containers, one entry per kind, in the order in which remote folders are searched for them."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A local copy of a part of a remote data set, for inspecting it."""

    place: Path
    """Path of the copy: a folder, or a file if the URL names a file."""
    containers: tuple[str, ...]
    """URLs of all containers of the kind that was found. Only the first one was copied."""
    deeper: str = ""
    """Name of a file two folders deep, which is too deep for a sample, for a message; empty if there is none."""


@contextlib.contextmanager
def skeleton(url: str, files: int) -> Iterator[Skeleton]:
    """Context manager that yields a temporary copy of a part of the data set at ``url``: its first container or,
    without containers, ``files`` files and all others as empty files. Raises SpecError if there is no data, JobError if
    the store cannot be read."""
    store = Store(url)
    info = store.info()
    if info is None:
        raise SpecError(f"{url}: there is no such file or folder")
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        root = Path(folder)
        if info.get("type") != "directory":
            parent, name = split(url)
            _copy(parent, [name], root)
            yield Skeleton(root / name, (url,))
            return
        folders, names = store.folder()
        if "manifest.json" in names:  # an output of dali-run, with the lists of its files
            _copy(store, ["manifest.json", *(n for n in names if n.endswith(".jsonl"))], root)
        if "data.mdb" in names:
            _copy(store, ["data.mdb"], root)
            yield Skeleton(root, (url,))
            return
        for suffixes in CONTAINERS:
            containers = [n for n in (*folders, *names) if n.endswith(suffixes) and not n.startswith(".")]
            if containers:
                first = sorted(containers)[0]
                inner = [f"{first}/data.mdb"] if first in folders else [first]
                stem = first.removesuffix(".rec")
                _copy(store, inner + [n for n in names if n == stem + ".idx" and suffixes == (".rec",)], root)
                yield Skeleton(root, tuple(join(url, n) for n in sorted(containers)))
                return
        yield Skeleton(root, (), _copy_files(store, root, files))


def _copy_files(store: Store, root: Path, files: int) -> str:
    listed = list(store.files())
    names = [n for n in listed if n.count("/") < 2]
    for k, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if k < files:
            _copy(store, [name], root)
        elif not (root / name).exists():
            (root / name).touch()
    return next((n for n in listed if n.count("/") >= 2), "")


def _copy(store: Store, names: Sequence[str], root: Path) -> None:
    for name in names:
        if not (root / name).resolve().is_relative_to(root.resolve()):
            raise JobError(f"{store.url} contains a file named {name!r}, which points outside of it")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            store.get(name, str(root / name))
        except FileNotFoundError:
            raise JobError(f"{store.url}/{name} no longer exists") from None
