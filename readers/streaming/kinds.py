"""The index.json of a streaming library: whose it is, and what it lists."""

from __future__ import annotations

from ...ops.errors import JobError
from . import litdata, mds
from .records import Index, read_index


def index_at(path: str) -> tuple[str, Index] | None:
    """Return the name of the reader for the folder (or index.json) ``path``, and its index; None if it has no
    index.json that is MDS's or litData's. Raises JobError and SpecError for one of theirs that cannot be read."""
    try:
        _, told = read_index(path)
    except JobError:
        return None
    if not isinstance(told, dict):
        return None
    if "shards" in told:
        return "readers.mds", mds.index_of(path)
    return ("readers.litdata", litdata.index_of(path)) if "chunks" in told and "config" in told else None
