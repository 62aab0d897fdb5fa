"""The manifest: what a finished output holds. A function of journal and reject log, so that it can be checked."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ops.errors import JobError
from . import files_io
from .journal import Contents, differences, encode_json, read_journal

VERSION = 1
_PART = re.compile(r"journal-(\d{5})-of-(\d{5})\.jsonl")


@dataclass(frozen=True, slots=True)
class Retry:
    """Samples that were rejected and are tried again."""

    stage: int
    """1 for the first retry of an output."""
    positions: tuple[int, ...]
    """Of the samples, ascending."""

    @property
    def name(self) -> str:
        return f"retry-{self.stage:03d}"

    def published(self, root: Path) -> bool:
        """Whether the manifest tells of it."""
        try:
            return int(json.loads((root / "manifest.json").read_bytes()).get("retries", 0)) >= self.stage
        except (OSError, ValueError):
            return False


class Side:
    """The files beside the shards. Parts of a job (part i of n) and retries have their own."""

    def __init__(self, root: Path, part: tuple[int, int] | None = None, retry: Retry | None = None) -> None:
        mark = "" if part is None else f"-{part[0]:05d}-of-{part[1]:05d}"
        if retry is not None:
            mark = f"-{retry.name}"
        self.root = root
        self.part = part
        self.retry = retry
        self.lock = root / (".dali-run.lock" if retry is not None else f".dali-run{mark}.lock")
        self.journal = root / f"journal{mark}.jsonl"
        self.rejects = root / f"rejects{mark}.jsonl"
        self.report = root / f"report{mark}.json"
        self.manifest = root / ("manifest.json" if retry is not None else f"manifest{mark}.json")
        self.before = root / f"rejects-before{mark}.jsonl"
        """Of a retry: the reject log as it found it."""
        self.tag = "" if part is None else f"{part[0]}-"
        """In temporary names, so that a part removes only its own leftovers."""

    @property
    def removable(self) -> list[Path]:
        """In the order in which a job is taken back: the journal, which knows of the rest, last."""
        return [self.manifest, self.report, self.before, self.rejects, self.journal]


def sides(root: Path) -> list[Side]:
    """Of all parts in directory ``root``, in order; one where the job has no parts."""
    if (root / "journal.jsonl").exists():
        return [Side(root)]
    parts = sorted(
        (int(m[1]), int(m[2])) for p in root.glob("journal-*.jsonl") if (m := _PART.fullmatch(p.name)) is not None
    )
    return [Side(root, p) for p in parts]


def retries(root: Path) -> list[Side]:
    """The retries of the output in ``root``, in order."""
    found: list[Side] = []
    for stage in itertools.count(1):
        side = Side(root, retry=Retry(stage, ()))
        contents = read_journal(side.journal)
        if contents is None:
            return found
        found.append(Side(root, retry=Retry(stage, tuple(contents.header["retry"]["positions"]))))
    raise AssertionError("count() ends")


def base_rejects(root: Path, base: Side) -> Path:
    """The reject log of the first run: set aside once a retry was published."""
    before = Side(root, retry=Retry(1, ())).before
    return before if base.part is None and before.exists() else base.rejects


def publish_retry(root: Path, side: Side) -> None:
    """Put the retry of ``side``, whose journal is done, into manifest and reject log. Safe to repeat."""
    rejects = root / "rejects.jsonl"
    if not side.before.exists():
        replace(side.before, rejects.read_bytes(), side)
    replace(rejects, side.rejects.read_bytes(), side)
    replace(root / "manifest.json", manifest_with_retries(root), side)


def manifest_with_retries(root: Path) -> bytes:
    """The manifest of an output that was retried: all shards, and the rejects that are left."""
    base = read_journal(root / "journal.jsonl")
    if base is None:
        raise JobError(f"{root / 'journal.jsonl'} is missing; only jobs in one piece can be retried")
    manifest = json.loads(build_manifest(base, base_rejects(root, Side(root))))
    for side in retries(root):
        assert side.retry is not None
        contents = read_journal(side.journal)
        if contents is None or not contents.done:
            continue
        manifest["retries"] = side.retry.stage
        manifest["samples"] += sum(e["samples"] for e in contents.entries)
        manifest["rejects"] = sum(e["rejects"] for e in contents.entries)
        manifest["bytes"] += sum(f["bytes"] for e in contents.entries for f in e["files"])
        manifest["shards"] += [{**_shard(e), "retry": side.retry.stage} for e in contents.entries]
        manifest.setdefault("earlier_rejects", []).append({"name": side.before.name, **_file(side.before)})
    manifest["rejects_file"] = {"name": "rejects.jsonl", **_file(root / "rejects.jsonl")}
    return encode_json(manifest, indent=2)


def build_manifest(contents: Contents, rejects: Path) -> bytes:
    """The manifest's text. Raises OSError where the reject log cannot be read."""
    return encode_json(
        {
            "format": "dali-run-manifest",
            "version": VERSION,
            **contents.header,
            "positions": [contents.header["range"][0], contents.stop],
            **_totals(contents.entries),
            "rejects_file": {"name": rejects.name, **_file(rejects)},
            "shards": [_shard(e) for e in contents.entries],
        },
        indent=2,
    )


def _totals(entries: Any) -> dict[str, int]:
    return {
        "samples": sum(e["samples"] for e in entries),
        "rejects": sum(e["rejects"] for e in entries),
        "bytes": sum(f["bytes"] for e in entries for f in e["files"]),
    }


def _shard(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in entry.items() if k not in ("rejects_size", "carry")}


def _file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def replace(path: Path, data: bytes, side: Side) -> None:
    """Publish a small file atomically and durably, on behalf of the part that holds the lock of ``side``."""
    temporary = temporary_of(path, side)
    files_io.remove(temporary)
    files_io.write_new(temporary, data)
    files_io.rename(temporary, path)
    files_io.sync_dir(path.parent)


def temporary_of(path: Path, side: Side) -> Path:
    """Where `replace` writes before it renames."""
    return path.with_name(f".{path.name}.tmp-{side.tag}")


def merge_parts(root: Path, by: Side) -> bool:
    """Publish the manifest and reject log of a whole job, once all of its parts are finished; False where some are not.

    Any number of parts (``by``: which) may do so at once: all write the same bytes. Raises JobError where the parts do
    not fit together.
    """
    found = sides(root)
    if not found or found[0].part is None:
        return (root / "manifest.json").exists()
    if len(found) != found[0].part[1] or not all(s.manifest.exists() for s in found):
        return False
    journals: list[Contents] = []
    for side in found:
        contents = read_journal(side.journal)
        if contents is None or not contents.done:
            return False
        journals.append(contents)
    first = journals[0].header
    at = first["range"][0]
    for side, contents in zip(found, journals, strict=True):
        header = contents.header
        same = {k: header[k] for k in ("identity", "write", "whole")}
        changed = differences({k: first[k] for k in same}, same)
        if changed:
            raise JobError(f"{side.journal.name} belongs to another job than {found[0].journal.name}:\n  " +
                           "\n  ".join(changed))  # fmt: skip
        if header["range"][0] != at:
            raise JobError(f"{side.journal.name} begins at position {header['range'][0]}, expected {at}")
        at = contents.stop
    if first["whole"] is not None and at != first["whole"]:
        raise JobError(f"the parts end at position {at} of {first['whole']}")
    entries = [e for j in journals for e in j.entries]
    rejects = root / "rejects.jsonl"
    replace(rejects, b"".join(s.rejects.read_bytes() for s in found), by)
    manifest = {
        "format": "dali-run-manifest",
        "version": VERSION,
        **{k: first[k] for k in ("identity", "write", "whole")},
        "parts": len(found),
        "positions": [first["range"][0], at],
        **_totals(entries),
        "rejects_file": {"name": rejects.name, **_file(rejects)},
        "shards": [_shard(e) for e in entries],
    }
    replace(root / "manifest.json", encode_json(manifest, indent=2), by)
    return True
