"""Take over an output's folder: find what is there, check which job it belongs to, and remove what an interrupted run
left incomplete. `Output.open` and the fleet call this module."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.inventory import Inputs
from ...ops.storage.json_text import parse_json
from ..base import Writer
from ..bytes import files_io
from ..bytes.files_io import File
from ..bytes.sidecar import inside, is_inside, read
from .config import WriteConfig
from .journal import ForgedError, Journal, JournalContents, differences, read_journal, salvage
from .lock import Lock
from .manifest import Addition, OutputFiles, addition_files_of, output_files_of, part_files_of, replace, temporary_of

Listing = Callable[[], Inputs]
"""Type of a function that lists a job's input files, with sizes and times."""


def open_journal(
    files: OutputFiles, config: WriteConfig, writer: Writer, header: Mapping[str, Any], fresh: bool,
    inputs: Listing | None, led: bool = False,
) -> Journal:  # fmt: skip
    """Open the journal for `Output.open`: a new one, or that of the job's interrupted run.

    ``fresh`` removes an earlier job's output first. ``led``: a driver process has checked the directory for this part.
    Raises JobError if the output belongs to another job, or to another program.
    """
    root = config.path
    if files.addition is not None:
        return _open_addition_journal(files, files.addition.kind, header, inputs)
    for other in () if led else output_files_of(root):
        if (other.part or (0, 1))[1] != (files.part or (0, 1))[1]:
            cut = "in one piece" if other.part is None else f"in {other.part[1]} parts"
            raise JobError(
                f"{config.where} holds a job that runs {cut} ({other.journal.name}); run it so, or choose another path"
            )
    if not fresh and not led and files.part is not None:
        _check_same_job(files, config, header)
    if fresh:
        _remove_job(files, config.name, writer)
    known = None if fresh else read_journal(files.journal)
    for path in (
        files.inputs,
        files.manifest,
        files.report,
        root / "manifest.json",
        root / "rejects.jsonl",
        *(root / name for name in writer.collection),
    ):
        files_io.remove(temporary_of(path, files))
    if known is None:
        if not fresh and not led:
            refuse_foreign(files, config, writer)
        return Journal.start(files.journal, header)
    remedy = "Choose another path, or start anew with --fresh (removes the earlier output)"
    return _reopened(files, known, header, f"{config.where} holds the output of another job", remedy, led)


def _check_same_job(files: OutputFiles, config: WriteConfig, header: Mapping[str, Any]) -> None:
    """Check that all parts in the folder are of one job. Raises JobError if not: they cannot be joined."""
    for other in output_files_of(config.path):
        known = None if other.part == files.part else read_journal(other.journal, header_only=True)
        if known is None:
            continue
        same = ("identity", "write", "whole")
        changed = differences({k: known.header[k] for k in same}, {k: header[k] for k in same})
        if changed:
            raise JobError(f"{config.where} holds a part of another job ({other.journal.name}); this one differs in\n  "
                           + "\n  ".join(changed) + "\nRun it as the other parts, choose another path, or start all "
                           "parts anew with --fresh")  # fmt: skip
        return


def _reopened(
    files: OutputFiles, known: JournalContents, header: Mapping[str, Any], whose: str, remedy: str, led: bool = False
) -> Journal:
    """Reopen the journal of an interrupted run. Raises JobError if it belongs to another job, or if published files are
    missing."""
    changed = differences(known.header, dict(header))
    if len(changed) == 1 and changed[0].startswith("range: "):
        changed[0] += " (--limit is another)"
    if changed:
        raise JobError(f"{whose}; this one differs in\n  " + "\n  ".join(changed) + f"\n{remedy}")
    if led and files.mirror is not None:
        files.mirror.look_up(info["name"] for entry in known.entries for info in entry["files"])
    _check_published(files, known)
    return Journal.reopen(files.journal, known)


def _check_published(files: OutputFiles, known: JournalContents) -> None:
    for entry in known.entries:
        for info in entry["files"]:
            size = files.size(info["name"])
            if size != info["bytes"]:
                what = "is missing" if size < 0 else f"has {size} bytes instead of {info['bytes']}"
                path = files.root / info["name"]
                raise JobError(f"{path} was written before but {what}; restore it, or start anew with --fresh")


def release_locks(files: OutputFiles, lock: Lock) -> None:
    """Release the locks of the output, in its folder and in its store."""
    if files.mirror is not None:
        with contextlib.suppress(OSError, JobError):
            files.mirror.end()
    with contextlib.suppress(OSError):
        lock.release()


def _open_addition_journal(files: OutputFiles, kind: str, header: Mapping[str, Any], inputs: Listing | None) -> Journal:
    known = read_journal(files.journal)
    if known is None:
        if inputs is not None:  # first, so that a started addition can always be told from later inputs
            replace(files.inputs, inputs().encode(), files)
        return Journal.start(files.journal, header)
    return _reopened(files, known, header, f"{files.journal} was begun by another {kind}", "Remove it to begin again")


def _listed(journals: Iterable[Path]) -> tuple[list[Mapping[str, Any]], bool]:
    """Return the entries of all shards in ``journals``, and whether a journal is damaged; its readable lines count.
    Raises JobError for a file that is not a journal."""
    entries: list[Mapping[str, Any]] = []
    damaged = False
    for journal in journals:
        try:
            known = read_journal(journal)
            entries += known.entries if known else []
        except ForgedError:
            raise
        except JobError:
            left = salvage(journal)
            if left is None:  # a user's own file of that name
                raise
            entries += left
            damaged = True
    return entries, damaged


def _remove_job(files: OutputFiles, name: str, writer: Writer) -> None:
    """Remove a job's output: the files that its journals list. If journals are damaged, also remove files that have the
    name of a shard of job ``name``."""
    root = files.journal.parent
    later = _later(root)
    entries, damaged = _listed([files.journal, *(s.journal for s in later)])
    if damaged and files.part is None:  # with parts it is unknown whose a shard is
        entries += _shards_named(files, name, writer)
    files.take_back(root / "manifest.json")  # the whole job's manifest, if this is one of its parts
    for made in (*writer.collection, *writer.folders):
        files.take_back(root / made)
    files.take_back(files.manifest)
    for entry in entries:
        for info in entry["files"]:
            path = inside(root, info["name"])
            files.take_back(path)
            parent = path.parent
            while parent != root and parent.is_dir() and not any(parent.iterdir()):
                files_io.remove(parent)
                parent = parent.parent
    for path in [p for s in (*reversed(later), files) for p in s.removable]:
        files.take_back(path)


def remove_all(root: Path, by: OutputFiles, config: WriteConfig, writer: Writer) -> None:
    """Remove the output in ``root``, with the outputs of all job parts. The caller holds the lock of ``by``. Raises
    JobError if another job writes a part of the output, OSError."""
    for files in [*output_files_of(root), *part_files_of(root)]:
        files.mirror = by.mirror
        lock = Lock(files.lock) if files.part is not None else None
        try:
            _remove_job(files, config.name, writer)
        finally:
            if lock is not None:
                lock.release()
    by.take_back(root / "rejects.jsonl")


def _later(root: Path) -> list[OutputFiles]:
    """Return the `OutputFiles` (paths of journal, manifest and so on) of each addition (retry or append) to an output,
    including additions with damaged journals."""
    found = {m[0]: (m[1], int(m[2])) for p in root.glob("journal-*.jsonl") if (m := _STAGE.fullmatch(p.name))}
    return [OutputFiles(root, addition=Addition(n, kind, ())) for kind, n in sorted(found.values(), key=lambda f: f[1])]  # type: ignore[arg-type]


_STAGE = re.compile(r"journal-(retry|append)-(\d{3,})\.jsonl")


def _shards_named(files: OutputFiles, name: str, writer: Writer) -> list[Mapping[str, Any]]:
    """Return entries like a journal's for the shards of job ``name``, made from the names of files because the journal
    is damaged. They include the samples' files that the shards' listings name."""
    shard = re.compile(rf"{re.escape(name)}(-(retry|append)-\d{{3,}})?-\d{{5,}}(-of-\d{{5,}})?\.[^/]*")
    found: list[Mapping[str, Any]] = []
    for entry in filter(shard.fullmatch, files.names()):
        names = [entry]
        if writer.name == "files" and entry.endswith(".jsonl"):
            with contextlib.suppress(OSError, JobError, ValueError, LookupError, TypeError):
                for line in read(files.root / entry).splitlines():
                    names += [f for f in parse_json(line)["files"] if is_inside(f)]
        found.append({"files": [{"name": n} for n in names]})
    return found


def refuse_foreign(files: OutputFiles, config: WriteConfig, writer: Writer) -> None:
    """Raise JobError if a new job would replace files in the output folder that no job has written."""
    ours = re.compile(rf"{re.escape(config.name)}-\d{{5,}}(-of-\d{{5,}})?(\..*)?")
    own_names = [p.name for p in files.removable if p != files.journal and (files.part is None or p != files.inputs)]
    own_names += [*writer.collection, *writer.folders]
    for entry in files.names():
        if entry in own_names or (files.part is None and ours.fullmatch(entry)):
            remedy = f": rm -r {shlex.quote(str(files.root / entry))}" if files.mirror is None else ""
            raise JobError(
                f"{config.where} already holds {entry}, and no journal that lists it; choose another path, or "
                f"remove it{remedy}"
            )
    own = {p.name for p in (files.lock, files.journal)}
    if files.part is None or len(output_files_of(config.path)) <= files.journal.exists():  # the first part checks
        writer.check_root(config.path, [e for e in files.names() if e not in own])


def remove_unlisted(files: OutputFiles, name: str, journal: Journal, stem: str | None) -> None:
    """Remove what an interrupted run did after the last line of its journal: temporary files of the shards of job
    ``name``, and the files of the next shard, ``stem``, that were published (None if there is no next shard)."""
    root = files.root
    for entry in sorted(os.listdir(root)):
        if entry.startswith(f".{name}-") and f".tmp-{files.tag}" in entry:
            files_io.remove(root / entry)
    if stem is None:
        return
    listed = {info["name"].split("/")[0] for entry in journal.entries for info in entry["files"]}
    for entry in sorted(os.listdir(root)):
        if entry.startswith(stem + ".") and entry not in listed:
            files_io.remove(root / entry)


def open_log(path: Path, listed: int) -> File:
    """Open a log of the output, such as rejects.jsonl, truncated to the ``listed`` bytes that the journal records."""
    log = File(path, append=True)
    if log.size < listed:
        raise JobError(
            f"{path} is shorter than the journal says ({log.size} bytes, {listed} expected); restore it, or "
            "start anew with --fresh"
        )
    if log.size > listed:
        log.truncate(listed)
    return log


def earlier_entries(files: OutputFiles) -> list[Mapping[str, Any]]:
    """Return an output's journal entries from before a retry or append; empty for a job's first run."""
    if files.addition is None:
        return []
    earlier: list[Mapping[str, Any]] = []
    for one in (
        *output_files_of(files.root),
        *addition_files_of(files.root)[: files.addition.number - 1],
    ):
        known = read_journal(one.journal)
        earlier += known.entries if known else []
    return earlier
