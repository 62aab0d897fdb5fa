"""The manifest: the index of a finished output. It is a function of journals and reject logs, so that it can be
checked."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...ops.batch import I64
from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json
from ..base import find_writer
from ..bytes import files_io, sidecar
from ..bytes.files_io import File
from .journal import JournalContents, differences, encode_json, left_out_of, read_journal
from .mirror import Mirror

_PIECE_BYTES = 16 << 20
"""Number of bytes of a log that are copied at a time."""
_PART = re.compile(r"journal-(\d{5})-of-(\d{5})\.jsonl")


@dataclass(frozen=True, slots=True)
class Addition:
    """An addition to a finished output: a retry of rejected samples, or an append of new inputs."""

    number: int
    """Number of this retry or append among all retries and appends of the output, counted from 1."""
    kind: Literal["retry", "append"]
    positions: Sequence[int]
    """Positions of the addition's samples, ascending. Those of an append are consecutive, after all earlier ones."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number:03d}"

    def header(self) -> dict[str, Any]:
        """Return number and positions of this retry or append, as the header of its journal stores them."""
        told = self.positions
        return {"stage": self.number, "positions": [told.start, told.stop] if isinstance(told, range) else list(told)}

    @staticmethod
    def of(contents: JournalContents) -> Addition:
        """Create the retry or append that the header of its journal, in ``contents``, describes."""
        if "retry" in contents.header:
            told = contents.header["retry"]
            return Addition(told["stage"], "retry", tuple(told["positions"]))
        told = contents.header["append"]
        return Addition(told["stage"], "append", range(*told["positions"]))

    def published(self, root: Path) -> bool:
        """Whether the manifest of the output in ``root`` already includes this retry or append."""
        try:
            return int(sidecar.read_json(root / "manifest.json").get("stages", 0)) >= self.number
        except (OSError, ValueError, TypeError):
            return False

    def indices(self, positions: I64) -> I64:
        """Return for each of ``positions`` its index in the list of positions to write; -1 if the list lacks it."""
        if isinstance(self.positions, range):
            inside = (positions >= self.positions.start) & (positions < self.positions.stop)
            return np.where(inside, positions - self.positions.start, -1)
        chosen = np.array(self.positions, np.int64)
        if not len(chosen):
            return np.full(len(positions), -1)
        indices = np.searchsorted(chosen, positions)
        return np.where(chosen[np.minimum(indices, len(chosen) - 1)] == positions, indices, -1)


class OutputFiles:
    """Paths of the files that describe the shards of an output, such as journal, reject log and manifest. Each part of
    a job and each addition (retry or append) has its own."""

    def __init__(self, root: Path, part: tuple[int, int] | None = None, addition: Addition | None = None) -> None:
        mark = "" if part is None else f"-{part[0]:05d}-of-{part[1]:05d}"
        if addition is not None:
            mark = f"-{addition.name}"
        self.root = root
        self.part = part
        self.addition = addition
        self.lock = root / (".dali-run.lock" if addition is not None else f".dali-run{mark}.lock")
        self.journal = root / f"journal{mark}.jsonl"
        self.rejects = root / f"rejects{mark}.jsonl"
        self.left_out = root / f"left_out{mark}.jsonl"
        """Log of samples that were left out on purpose; written by jobs that may do so."""
        self.report = root / f"report{mark}.json"
        self.manifest = root / ("manifest.json" if addition is not None else f"manifest{mark}.json")
        self.inputs = root / (f"inputs{mark}.gz" if addition is not None else "inputs.gz")
        """File that lists the job's input files, with sizes and times. All parts of a job share one."""
        self.before = root / f"rejects-before{mark}.jsonl"
        """Copy of the reject log as it was before this retry or append; a job's first run has none."""
        self.mirror: Mirror | None = None
        """The store that holds the output; ``root`` is then a local copy of journals, logs and manifests. None if the
        output is in a local folder."""
        self.tag = "" if part is None else f"{part[0]}-"
        """Mark of the job part in temporary file names, so that other job parts do not remove its files."""

    def names(self) -> list[str]:
        """Names of all files and folders at the top of the output, in its folder or store."""
        if self.mirror is not None:
            return sorted({name.split("/")[0] for name in self.mirror.sizes})
        return sorted(os.listdir(self.root))

    def size(self, name: str) -> int:
        """Return the size in bytes of the output's file ``name``, -1 if there is none."""
        if self.mirror is not None:
            return self.mirror.sizes.get(name, -1)
        path = self.root / name
        return path.stat().st_size if path.exists() else -1

    def put(self, *paths: Path) -> None:
        """Upload finished files of ``root`` to the output's store; do nothing for an output in a folder."""
        for path in paths if self.mirror is not None else ():
            assert self.mirror is not None
            self.mirror.put(path.relative_to(self.root).as_posix())

    def take_back(self, path: Path) -> None:
        """Remove a file of the output, also from its store if it has one."""
        files_io.remove(path)
        if self.mirror is not None:
            self.mirror.remove(path.relative_to(self.root).as_posix())

    @property
    def removable(self) -> list[Path]:
        """Paths of all these files, in the order in which to remove them: last the journal, which lists the others."""
        return [self.manifest, self.report, self.before, self.left_out, self.rejects, self.inputs, self.journal]


def output_files_of(root: Path) -> list[OutputFiles]:
    """Return the `OutputFiles` (paths of journal, manifest and so on) of each job part in directory ``root``, in order;
    one entry if the job has no parts."""
    if (root / "journal.jsonl").exists():
        return [OutputFiles(root)]
    return part_files_of(root)


def part_files_of(root: Path) -> list[OutputFiles]:
    """Return the `OutputFiles` (paths of journal, manifest and so on) of each job part in directory ``root``, in order,
    even if the parts have been joined."""
    parts = sorted(
        (int(m[1]), int(m[2])) for p in root.glob("journal-*.jsonl") if (m := _PART.fullmatch(p.name)) is not None
    )
    return [OutputFiles(root, p) for p in parts]


def addition_files_of(root: Path) -> list[OutputFiles]:
    """Return the `OutputFiles` (paths of journal, manifest and so on) of each addition (retry or append) to the output
    in ``root``, in order."""
    found: list[OutputFiles] = []
    for number in itertools.count(1):
        for kind in ("retry", "append"):
            contents = read_journal(OutputFiles(root, addition=Addition(number, kind, ())).journal)
            if contents is not None:
                found.append(OutputFiles(root, addition=Addition.of(contents)))
                break
        else:
            return found
    raise AssertionError("count() ends")


def base_rejects(root: Path, base: OutputFiles | None = None) -> Path:
    """Return the path of the reject log that the first run (or the job part ``base``) wrote. After a retry or append
    this is the copy that was made before it."""
    if base is not None and base.part is not None:
        return base.rejects
    aside = [root / f"rejects-before-{kind}-001.jsonl" for kind in ("retry", "append")]
    return next((p for p in aside if p.exists()), root / "rejects.jsonl")


def rejects_with_additions(root: Path) -> bytes:
    """Return the reject log's lines for samples that all additions (retries and appends) left rejected."""
    log = sidecar.read(base_rejects(root))
    for files in addition_files_of(root):
        contents = read_journal(files.journal)
        if files.addition is not None and contents is not None and contents.done:
            own = sidecar.read(files.rejects)
            log = own if files.addition.kind == "retry" else log + own
    return log


def publish_addition(root: Path, files: OutputFiles) -> None:
    """Include an addition (a retry or append) in the output's manifest and reject log. ``files`` are the paths of the
    addition, whose journal is complete. Safe to repeat."""
    rejects = root / "rejects.jsonl"
    if not files.before.exists():
        replace(files.before, sidecar.read(rejects), files)
    replace(rejects, rejects_with_additions(root), files)
    publish_manifest(root, manifest_with_additions(root), files)


def publish_manifest(root: Path, manifest: bytes, files: OutputFiles) -> None:
    """Publish the manifest of a complete output. Files such as index.json, in which the writer describes all shards
    together, are published before it."""
    told = parse_json(manifest)
    writer, carry = find_writer(told["write"]["writer"]), last_carry(root, told)
    writer.complete(root, told, carry)
    for name, content in writer.collect(told, carry).items():
        replace(root / name, content, files)
    replace(root / "manifest.json", manifest, files)


def last_carry(root: Path, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the writer's ``carry`` (state) after the last shard: the manifest's schema, or that shard's ``carry``."""
    carry: Mapping[str, Any] | None = manifest.get("schema", {}).get("fields")
    if carry is None:
        journals = [read_journal(files.journal) for files in (*output_files_of(root), *addition_files_of(root))]
        carry = next((e["carry"] for j in reversed(journals) if j for e in reversed(j.entries) if e["carry"]), {})
    return carry


def manifest_with_additions(root: Path) -> bytes:
    """Return the manifest of the output with all its additions: all shards, and the remaining rejects. Raises JobError,
    OSError."""
    found = output_files_of(root)
    if found and found[0].part is not None:
        left_out = root / "left_out.jsonl"
        manifest = merged_manifest(journals_of(found), base_rejects(root), left_out, found[0].inputs)
    else:
        base = read_journal(root / "journal.jsonl")
        if base is None:
            raise JobError(f"{root / 'journal.jsonl'} is missing")
        manifest = parse_json(build_manifest(base, base_rejects(root), found[0].left_out, found[0].inputs))
    for files in addition_files_of(root):
        contents = read_journal(files.journal)
        if contents is None or not contents.done or files.addition is None:
            continue
        kind, totals = files.addition.kind, _totals([contents])
        first = files.addition.positions[0] if kind == "append" and len(files.addition.positions) else 0
        manifest["stages"] = files.addition.number
        manifest["version"] = max(manifest["version"], contents.version)
        manifest["samples"] += totals["samples"]
        manifest["bytes"] += totals["bytes"]
        if "left_out" in totals:
            manifest["left_out"] = manifest.get("left_out", 0) + totals["left_out"]
            manifest.setdefault("later_left_out", []).append(file_info(files.left_out))
        manifest["rejects"] = totals["rejects"] + (manifest["rejects"] if kind == "append" else 0)
        for entry in contents.entries:
            shard = _shard(entry)
            shard["positions"] = [first + p for p in shard["positions"]]
            manifest["shards"].append({**shard, kind: files.addition.number})
        manifest.setdefault("earlier_rejects", []).append(file_info(files.before))
        if kind == "append":
            manifest["positions"][1] = first + contents.stop
            manifest.setdefault("appended", []).append(
                {"stage": files.addition.number, "positions": [first, first + contents.stop],
                 "inputs": contents.header["identity"].get("inputs"), **_inputs(contents, files.inputs)}
            )  # fmt: skip
    manifest["rejects_file"] = file_info(root / "rejects.jsonl")
    return encode_json(manifest, indent=2)


def build_manifest(contents: JournalContents, rejects: Path, left_out: Path, inputs: Path | None) -> bytes:
    """Return the manifest as JSON text. ``left_out`` is read if the job may leave samples out; ``inputs`` is the file
    that lists the inputs, if there is one. Raises OSError if a log cannot be read."""
    return encode_json(
        {
            "format": "dali-run-manifest",
            "version": contents.version,
            **contents.header,
            "positions": [contents.header["range"][0], contents.stop],
            **_totals([contents]),
            "rejects_file": file_info(rejects),
            **_left_out(contents, left_out),
            **_inputs(contents, inputs),
            "shards": [_shard(e) for e in contents.entries],
        },
        indent=2,
    )


def version_of(journals: Sequence[JournalContents]) -> int:
    """Return the version of the format for a file that combines several journals."""
    return max(contents.version for contents in journals)


def _totals(journals: Sequence[JournalContents]) -> dict[str, int]:
    entries = [e for j in journals for e in j.entries]
    return {
        "samples": sum(e["samples"] for e in entries),
        "rejects": sum(e["rejects"] for e in entries),
        **({"left_out": sum(map(left_out_of, entries))} if leaves_out(journals[0]) else {}),
        "bytes": sum(f["bytes"] for e in entries for f in e["files"]),
    }


def leaves_out(contents: JournalContents) -> bool:
    """Whether a job may leave samples out on purpose, judged by its journal."""
    return contents.header.get("leaves_out") is True


def _shard(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in entry.items() if k not in ("rejects_size", "left_out_size", "carry")}


def _left_out(contents: JournalContents, path: Path) -> dict[str, Any]:
    """Return the manifest's entry for the log of samples that were left out; empty if the job leaves none out."""
    return {"left_out_file": file_info(path)} if leaves_out(contents) else {}


def _inputs(contents: JournalContents, path: Path | None) -> dict[str, Any]:
    """Return the manifest's entry for the file that lists the inputs; empty if there is none, or if the journal's
    version has no such entry."""
    return {"inputs_file": file_info(path)} if contents.version > 1 and path is not None and path.exists() else {}


def file_info(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a small file, as manifests list them. Raises OSError, JobError if it cannot be
    read."""
    with sidecar.open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"name": path.name, "bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def replace(path: Path, data: bytes, files: OutputFiles) -> None:
    """Publish a small file atomically and durably. ``files``: paths of the job part whose lock the caller holds."""
    temporary = temporary_of(path, files)
    files_io.remove(temporary)
    files_io.write_new(temporary, data)
    files_io.rename(temporary, path)
    files_io.sync_dir(path.parent)
    files.put(path)


def replace_joined(path: Path, sources: Sequence[Path], files: OutputFiles) -> None:
    """Publish a file with the bytes of all ``sources``, one after the other. Like `replace`, but the bytes need not fit
    into memory."""
    temporary = temporary_of(path, files)
    files_io.remove(temporary)
    file = File(temporary)
    try:
        for source in sources:
            with sidecar.open_regular(source) as log:
                while piece := log.read(_PIECE_BYTES):
                    file.write(piece)
        file.sync()
    finally:
        file.close()
    files_io.rename(temporary, path)
    files_io.sync_dir(path.parent)
    files.put(path)


def temporary_of(path: Path, files: OutputFiles) -> Path:
    """Return the temporary path to which `replace` writes before it renames."""
    return path.with_name(f".{path.name}.tmp-{files.tag}")


def merge_parts(root: Path, by: OutputFiles) -> bool:
    """Publish the manifest and reject log of all parts of a job, once they are all finished. Return False if some are
    not. ``by`` is the part that calls this; parts may call it at the same time, because all write the same bytes.
    Raises JobError if the parts do not fit together."""
    if by.mirror is not None:
        by.mirror.fetch()  # the files of other parts
    found = output_files_of(root)
    if (
        not found or found[0].part is None or addition_files_of(root)
    ):  # additions are made only after all parts are merged
        return (root / "manifest.json").exists()
    if len(found) != found[0].part[1] or not all(s.manifest.exists() for s in found):
        return False
    journals = [read_journal(files.journal) for files in found]
    if not all(j is not None and j.done for j in journals):
        return False
    contents = journals_of(found)
    rejects, left_out = root / "rejects.jsonl", root / "left_out.jsonl"
    check_parts(found, contents)
    replace(rejects, b"".join(sidecar.read(s.rejects) for s in found), by)
    if leaves_out(contents[0]):
        replace_joined(left_out, [s.left_out for s in found], by)
    manifest = merged_manifest(contents, rejects, left_out, found[0].inputs)
    publish_manifest(root, encode_json(manifest, indent=2), by)
    return True


def journals_of(found: Sequence[OutputFiles]) -> list[JournalContents]:
    """Read the journals of job parts. Raises JobError if one is not finished, or has been removed."""
    journals = []
    for files in found:
        contents = read_journal(files.journal)
        if contents is None and not files.journal.exists():
            raise JobError(f"{files.journal} is gone: something removes the output while the job runs. Run the same "
                           "command again when that is over: it does again what is missing")  # fmt: skip
        if contents is None or not contents.done:
            raise JobError(f"{files.journal.name} is not finished; run that part of the job first")
        journals.append(contents)
    return journals


def check_parts(found: Sequence[OutputFiles], journals: Sequence[JournalContents]) -> None:
    """Check that job parts belong to one job, and begin where the part before ends. Raises JobError."""
    first = journals[0].header
    at = first["range"][0]
    carry: tuple[str, Any] | None = None
    for files, contents in zip(found, journals, strict=True):
        header = contents.header
        same = {**{k: header[k] for k in ("identity", "write", "whole")}, "schema": header.get("schema", {})}
        changed = differences({k: first.get(k, {}) for k in same}, same)
        if changed:
            raise JobError(f"{files.journal.name} belongs to another job than {found[0].journal.name}:\n  " +
                           "\n  ".join(changed))  # fmt: skip
        if header["range"][0] != at:
            raise JobError(f"{files.journal.name} begins at position {header['range'][0]}, expected {at}")
        at = contents.stop
        if "schema" not in first and header["write"]["writer"] == "numpy" and contents.entries[-1:]:
            shapes = contents.entries[-1]["carry"]
            carry = carry or (files.journal.name, shapes)
            if carry[1] != shapes:
                raise JobError(
                    f"the arrays of {files.journal.name} have other shapes than those of {carry[0]}:\n  "
                    + "\n  ".join(differences(carry[1], shapes))
                    + "\nA .npy data set needs one shape: resize, crop or pad in the spec, and start anew with --fresh"
                )
    if first["whole"] is not None and at != first["whole"]:
        raise JobError(f"the parts end at position {at} of {first['whole']}")


def merged_manifest(journals: Sequence[JournalContents], rejects: Path, left_out: Path, inputs: Path) -> dict[str, Any]:
    """Return the manifest of a job, as JSON text, from the journals of its parts."""
    first = journals[0].header
    entries = [e for j in journals for e in j.entries]
    return {
        "format": "dali-run-manifest",
        "version": version_of(journals),
        **{k: first[k] for k in ("identity", "write", "whole")},
        **({"schema": first["schema"]} if "schema" in first else {}),
        "parts": len(journals),
        "positions": [first["range"][0], journals[-1].stop],
        **_totals(journals),
        "rejects_file": file_info(rejects),
        **_left_out(journals[0], left_out),
        **_inputs(journals[0], inputs),
        "shards": [_shard(e) for e in entries],
    }
