"""Find out which streaming library wrote an index.json, and what it lists."""

from __future__ import annotations

from ...ops.errors import JobError
from . import litdata, mds
from .records import Index, read_index


def index_at(path: str) -> tuple[str, Index] | None:
    """Recognize the data set at ``path``, a folder or an index.json. Return the name of its reader, ``readers.mds`` or
    ``readers.litdata``, and its index. None if it has no index.json, or one of another format. Raises JobError and
    SpecError for an index of these formats that cannot be read."""
    try:
        _, told = read_index(path)
    except JobError:
        return None
    if not isinstance(told, dict):
        return None
    if "shards" in told:
        return "readers.mds", mds.index_of(path)
    return ("readers.litdata", litdata.index_of(path)) if "chunks" in told and "config" in told else None
