"""Merge the parts of a job: publish their common manifest and reject log, or make one output of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.urls import is_url, plain_path
from ..bytes import sidecar
from .journal import JournalContents, encode_journal, encode_json, read_journal
from .lock import Lock
from .manifest import (
    OutputFiles,
    build_manifest,
    check_parts,
    journals_of,
    leaves_out,
    merge_parts,
    output_files_of,
    part_files_of,
    publish_manifest,
    replace,
    replace_joined,
    version_of,
)
from .mirror import Mirror


def merge(place: Path | str) -> int:
    """Join the outputs of a job's parts, which are all in the output at ``place``, a folder or a URL. Return the number
    of parts. Safe to repeat. Raises JobError if there are no parts, or if some are not finished; it names them."""
    if not is_url(place):
        return _merge(OutputFiles(Path(plain_path(str(place)))), str(place))
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        files = OutputFiles(Path(folder))
        files.mirror = Mirror(str(place), files.root)
        return _merge(files, str(place))


def _merge(files: OutputFiles, place: str) -> int:
    if not files.root.is_dir():
        raise JobError(f"{place}: there is no such folder")
    lock = Lock(files.lock)
    try:
        if files.mirror is not None:
            files.mirror.begin(files.lock.name)
        merged = merge_parts(files.root, files)
        found = output_files_of(files.root)
        if not found or found[0].part is None:
            raise JobError(f"{place} holds no job in parts")
        if not merged:
            count = found[0].part[1]
            finished = {s.part[0] for s in found if s.part is not None and s.manifest.exists()}
            missing = ", ".join(str(i) for i in range(count) if i not in finished)
            raise JobError(f"{place}: of {count} parts these are not finished: {missing}; run them, then merge again")
        return len(found)
    finally:
        if files.mirror is not None:
            files.mirror.end()
        lock.release()


def _check_complete(root: Path, parts: Sequence[OutputFiles], count: int) -> None:
    """Raise JobError unless there is a journal for each of ``count`` parts."""
    missing = ", ".join(str(i) for i in sorted(set(range(count)) - {p.part[0] for p in parts if p.part}))
    if missing:
        raise JobError(f"{root}: of {count} parts these have no journal: {missing}. They did not run, or something "
                       "removes the output; run the same command again: it does what is missing")  # fmt: skip


def join(files: OutputFiles, report: Mapping[str, Any]) -> None:
    """Join the outputs of job parts, all finished, into one output with ``report``. It equals the output of a single
    process to the byte. ``files`` are the paths of the joined output, whose lock the caller holds. Safe to repeat; an
    interrupted join is completed. If shards end at a size in bytes, parts keep their own shards, and only the manifest
    is made. Raises JobError if parts are missing or do not fit together, OSError."""
    root, parts = files.root, part_files_of(files.root)
    for part in parts:
        part.mirror = files.mirror
    if not files.journal.exists():
        if not parts:
            raise JobError(f"{root} holds no job in parts")
        journals = journals_of(parts)
        _check_complete(root, parts, journals[0].header["part"][1])
        shard = journals[0].header["write"]["shard"]
        if shard["bytes"] is not None or shard.get("full"):
            for part, contents in zip(parts, journals, strict=True):
                replace(part.manifest, build_manifest(contents, part.rejects, part.left_out, None), part)
            replace(files.report, encode_json(report, indent=2), files)
            merge_parts(root, files)
            return
        check_parts(parts, journals)
        header = journals[0].header
        header |= {"range": [header["range"][0], journals[-1].stop], "whole": None, "part": None}
        replace(files.rejects, b"".join(sidecar.read(p.rejects) for p in parts), files)
        if leaves_out(journals[0]):
            replace_joined(files.left_out, [p.left_out for p in parts], files)
        replace(files.report, encode_json(report, indent=2), files)
        lines = encode_journal(header, _in_a_row(journals), journals[-1].stop, version_of(journals))
        replace(files.journal, b"".join(lines), files)
    whole = read_journal(files.journal)
    assert whole is not None
    publish_manifest(root, build_manifest(whole, files.rejects, files.left_out, files.inputs), files)
    for part in parts:
        for path in part.removable:
            if path != part.inputs:
                part.take_back(path)


def _in_a_row(journals: list[JournalContents]) -> Iterator[dict[str, Any]]:
    """Yield the journal entries of all job parts' shards, one part after the other. Cumulative values, such as sizes of
    logs, count all parts."""
    before = dict.fromkeys(_LOG_SIZES, 0)
    carry: dict[str, Any] = {}
    for contents in journals:
        for entry in contents.entries:
            carry = entry["carry"] or carry
            yield {**entry, **{k: before[k] + entry[k] for k in _LOG_SIZES if k in entry}, "carry": carry}
        for key in _LOG_SIZES if contents.entries else ():
            before[key] += contents.entries[-1].get(key, 0)


_LOG_SIZES = ("rejects_size", "left_out_size")
"""Keys of a shard's line in the journal that hold the size of a log, up to and including this shard's lines."""
