"""Merge: the manifest and the reject log of a job in parts, as a step of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ...ops.errors import JobError
from ...ops.storage.urls import is_url, plain_path
from .lock import Lock
from .manifest import Side, merge_parts, sides
from .mirror import Mirror


def merge(place: Path | str) -> int:
    """Join the finished parts of the output at ``place``, a folder or a URL; how many there are. Safe to repeat.

    Raises JobError where there are no parts, or which of them are not finished.
    """
    if not is_url(place):
        return _merge(Side(Path(plain_path(str(place)))), str(place))
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        side = Side(Path(folder))
        side.mirror = Mirror(str(place), side.root)
        return _merge(side, str(place))


def _merge(side: Side, place: str) -> int:
    if not side.root.is_dir():
        raise JobError(f"{place}: there is no such folder")
    lock = Lock(side.lock)
    try:
        if side.mirror is not None:
            side.mirror.begin(side.lock.name)
        merged = merge_parts(side.root, side)
        found = sides(side.root)
        if not found or found[0].part is None:
            raise JobError(f"{place} holds no job in parts")
        if not merged:
            count = found[0].part[1]
            finished = {s.part[0] for s in found if s.part is not None and s.manifest.exists()}
            missing = ", ".join(str(i) for i in range(count) if i not in finished)
            raise JobError(f"{place}: of {count} parts these are not finished: {missing}; run them, then merge again")
        return len(found)
    finally:
        if side.mirror is not None:
            side.mirror.end()
        lock.release()
