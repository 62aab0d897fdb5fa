"""Verify a finished output: every file against its checksums, every record against its container's rules."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ops.errors import JobError, SpecError
from ...ops.storage.json_text import parse_json
from ...ops.storage.urls import is_url, join, plain_path
from ..base import Writer, find_writer
from ..bytes import sidecar
from ..bytes.checksums import checksums_of
from ..bytes.written import Problem, UnreadError, WrittenShard
from .journal import JournalContents, left_out_of, read_journal
from .left_out import parse_position
from .manifest import (
    OutputFiles,
    addition_files_of,
    base_rejects,
    build_manifest,
    file_info,
    last_carry,
    leaves_out,
    manifest_with_additions,
    output_files_of,
    rejects_with_additions,
)
from .mirror import Mirror
from .rejects import RejectRow

_MAX_UNLISTED = 20
"""Largest number of files without a journal entry that are named one by one in the result."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of `verify`: problems of an output, and how much was checked."""

    problems: Sequence[Problem]
    shards: int
    samples: int
    rejects: int
    bytes: int
    files: int
    hashed: int
    """Number of files whose SHA-256 was compared."""
    unchecked: Sequence[str]
    """Parts of the output that were not checked, such as a shard's records, each with the reason."""

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(
    place: Path | str, progress: Callable[[int, int], None] = lambda *_: None, *, deep: bool = False,
    writer_of: Callable[[str], type[Writer]] = find_writer,
) -> Verdict:  # fmt: skip
    """Check everything in the output at ``place``, a folder or a URL. Files at a URL are downloaded shard by shard.

    Files are compared by CRC-32C and tree of checksums. If they also have a SHA-256, it is compared if the check is
    ``deep``, or if there is no tree (outputs of version 1). ``writer_of`` returns the class of a writer by name, or
    raises SpecError; its `Writer.walk` reads the records. ``progress`` is called with the checked bytes of shards and
    their total.

    A file that no journal lists is a problem; hidden files are ignored. `Verdict.unchecked` names everything that was
    not checked. Bad data never raises; JobError is raised if a store cannot be read.
    """
    if not is_url(place):
        return _verify(Path(plain_path(str(place))), None, progress, FileCheck(deep, writer_of))
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        mirror = Mirror(str(place), Path(folder))
        mirror.fetch()
        return _verify(Path(folder), mirror, progress, FileCheck(deep, writer_of))


def _verify(root: Path, mirror: Mirror | None, progress: Callable[[int, int], None], files: FileCheck) -> Verdict:
    problems: list[Problem] = []
    entries: list[dict[str, Any]] = []
    found = output_files_of(root)
    if not found:
        inside = _outputs_below(root, mirror)
        if inside:  # the parts of a split, or the outputs of several jobs
            problems.append(Problem("journal.jsonl", "", f"is in the folders below: verify {' and '.join(inside)}"))
            return Verdict(problems, 0, 0, 0, 0, 0, 0, ())
        problems.append(
            Problem("journal.jsonl", "", "is missing: this is not an output of dali-run, or the job never started")
        )
    later: list[OutputFiles] = []
    try:
        later = addition_files_of(root)
    except (JobError, OSError) as e:
        problems.append(Problem("journal of an addition", "", str(e)))
    rejects, finished = 0, bool(found)
    checked = [(output_files, _check_files(root, output_files, problems)) for output_files in [*found, *later]]
    finished &= all(contents is not None and contents.done for _, contents in checked)
    done, total = 0, sum(_bytes_of(e) for _, contents in checked if contents is not None for e in contents.entries)
    for output_files, contents in checked:
        if contents is None:
            continue
        for entry in contents.entries:
            progress(done, total)
            with _at_hand(mirror, entry):
                problems += _check_shard(root, entry, contents.header, files)
            done += _bytes_of(entry)
        entries += contents.entries
        rejected = sum(e["rejects"] for e in contents.entries)
        rejects = (
            rejected
            if output_files.addition is not None and output_files.addition.kind == "retry"
            else rejects + rejected
        )
    collection = _Collection({}, ())
    if finished:
        problems += _check_whole(root, found[0].part is not None)
        collection = _collection_of(root, files)
        problems += _check_collection(root, mirror, collection)
    if all(contents is not None for _, contents in checked):
        problems += _unlisted(
            _names_below(root) if mirror is None else sorted(mirror.sizes), [*found, *later], entries, collection
        )
    unchecked = [f"the records of {n} of {len(entries)} shards: {why}" for why, n in files.unread.items()]
    unchecked += [f"{folder}: no checksum covers it, because it differs on every run" for folder in collection.folders]
    unchecked += _check_reports(root, [*found, *later], problems)
    return Verdict(problems, len(entries), sum(e["samples"] for e in entries), rejects, done, files.files,
                   files.hashed, unchecked)  # fmt: skip


def _outputs_below(root: Path, mirror: Mirror | None) -> list[str]:
    """Return the paths, or URLs, of the outputs in the folders of ``root``, or of the mirrored store."""
    names = (p.relative_to(root).as_posix() for p in root.glob("*/journal.jsonl")) if mirror is None else mirror.sizes
    place = str(root) if mirror is None else mirror.store.url
    return sorted(join(place, name.partition("/")[0]) for name in names if re.fullmatch(r"[^/]+/journal\.jsonl", name))


def _bytes_of(entry: Mapping[str, Any]) -> int:
    return sum(f["bytes"] for f in entry["files"])


def _check_whole(root: Path, parts: bool) -> Iterator[Problem]:
    """Check a complete output's manifest and reject log, which cover all job parts, retries and appends."""
    published = {"rejects.jsonl": rejects_with_additions, "manifest.json": manifest_with_additions}
    for name, made in published.items():
        try:
            if parts and not (root / "manifest.json").exists():
                yield Problem(name, "", "is missing: other parts of the job are not finished, or were not joined; run "
                              "dali-run merge")  # fmt: skip
                return
            told = sidecar.read(root / name)
            wrong = list(_check_inputs(root, told)) if name == "manifest.json" else []
            yield from wrong
            if not wrong and told != made(root):
                yield Problem(name, "", "does not say what the journals and reject logs say")
        except OSError as e:
            yield Problem(name, "", f"cannot be read: {e.strerror}; run the same command again")
        except (JobError, ValueError, LookupError) as e:
            yield Problem(name, "", str(e))


@dataclass(frozen=True, slots=True)
class _Collection:
    """The expected content of files and folders that describe all shards together, such as index.json."""

    content: Mapping[str, bytes]
    """Expected content of each file, by its name."""
    folders: Sequence[str]
    """Names of the folders that the format's library fills; see `Writer.folders`."""
    problems: Sequence[Problem] = ()


def _collection_of(root: Path, files: FileCheck) -> _Collection:
    """Return the expected content of the files that describe all shards, which the writer makes from the manifest. It
    is empty if the manifest or the writer is unknown."""
    with contextlib.suppress(OSError, JobError, SpecError, ValueError, LookupError, TypeError, AttributeError):
        told = parse_json(sidecar.read(root / "manifest.json"))
        writer = files.writer_of(told["write"]["writer"])
        problems = list(writer.check_complete(root, told))
        return _Collection(writer.collect(told, last_carry(root, told)), writer.folders, problems)
    return _Collection({}, ())


def _check_collection(root: Path, mirror: Mirror | None, collection: _Collection) -> Iterator[Problem]:
    yield from collection.problems
    for name, content in collection.content.items():
        try:
            if mirror is not None:
                mirror.get(name)
            if sidecar.read(root / name) != content:
                yield Problem(name, "", "its content is not what was written")
        except OSError as e:
            yield Problem(name, "", f"cannot be read: {e.strerror}")
        except JobError as e:
            yield Problem(name, "", str(e))


def _check_inputs(root: Path, manifest: bytes) -> Iterator[Problem]:
    """Check the files that list the job's inputs, by the checksums in the manifest."""
    with contextlib.suppress(ValueError, AttributeError, TypeError, KeyError):
        told = parse_json(manifest)
        for info in (one.get("inputs_file") for one in (told, *told.get("appended", ()))):
            if info is None:
                continue
            name = info["name"]
            try:
                if file_info(sidecar.inside(root, name)) != info:
                    yield Problem(name, "", "its content is not what was written (sha256 differs)")
            except OSError as e:
                yield Problem(name, "", f"cannot be read: {e.strerror}")


def _check_positions(journal: str, contents: JournalContents) -> Iterator[Problem]:
    """Yield the problems of a journal whose shards do not follow one another, or do not reach the end of the job."""
    at = contents.header["range"][0]
    for entry in contents.entries:
        start, stop = entry["positions"]
        lost = entry["rejects"] - entry.get("replaced", 0)
        split = contents.header.get("split") is True  # a position may have any number of samples
        left_out = entry.get("left_out", 0)
        if start != at or (not split and entry["samples"] + lost + left_out != stop - start):
            yield Problem(journal, entry["shard"], (
                f"positions {start} to {stop} with {entry['samples']} samples, {entry['rejects']} rejects and "
                f"{left_out} left out do not follow on {at}, or do not add up"))  # fmt: skip
        at = stop
    if not contents.done:
        yield Problem(journal, "", f"the job is not finished: it ends at position {at}; run the same command again")


def _check_files(root: Path, output_files: OutputFiles, problems: list[Problem]) -> JournalContents | None:
    try:
        contents = read_journal(output_files.journal)
    except (JobError, OSError) as e:
        problems.append(Problem(output_files.journal.name, "", str(e)))
        return None
    if contents is None:
        problems.append(
            Problem(output_files.journal.name, "", "holds nothing: the job has just begun, or was killed then")
        )
        return None
    if output_files.journal.stat().st_size > contents.size:
        problems.append(Problem(output_files.journal.name, f"byte {contents.size}", "a torn or damaged last line"))
    problems += _check_positions(output_files.journal.name, contents)
    log = output_files.rejects if output_files.addition is not None else base_rejects(root, output_files)
    _check_rejects(log, contents, problems)
    if leaves_out(contents):
        problems += _check_left_out(output_files.left_out, contents)
    if contents.done and output_files.part is not None:
        try:
            if sidecar.read(output_files.manifest) != build_manifest(contents, log, output_files.left_out, None):
                problems.append(Problem(output_files.manifest.name, "", "does not say what journal and reject log say"))
        except OSError as e:
            problems.append(
                Problem(output_files.manifest.name, "", f"cannot be read: {e.strerror}; run the same command again")
            )
    return contents


def _check_rejects(log: Path, contents: JournalContents, problems: list[Problem]) -> None:
    try:
        lines = sidecar.read(log).splitlines()
    except OSError as e:
        problems.append(Problem(log.name, "", f"cannot be read: {e.strerror}"))
        return
    except JobError as e:
        problems.append(Problem(log.name, "", str(e)))
        return
    before = -1
    for number, line in enumerate(lines, 1):
        try:
            row = RejectRow.parse(line)
            if not before < row.position:
                raise ValueError(f"position {row.position} follows {before}")
            before = row.position
        except ValueError as e:
            problems.append(Problem(log.name, f"line {number}", f"is damaged: {e}"))
    expected = sum(e["rejects"] for e in contents.entries)
    if len(lines) != expected and contents.done:
        problems.append(Problem(log.name, "", f"holds {len(lines)} lines, the journal says {expected}"))


def _check_left_out(log: Path, contents: JournalContents) -> Iterator[Problem]:
    """Check the log of samples that were left out, line by line, because it may be larger than memory."""
    before, lines = -1, 0
    try:
        with sidecar.open_regular(log) as file:
            for lines, line in enumerate(file, 1):
                try:
                    position = parse_position(line)
                    if position < before or not line.endswith(b"\n"):
                        raise ValueError(f"position {position} follows {before}")
                    before = position
                except ValueError as e:
                    yield Problem(log.name, f"line {lines}", f"is damaged: {e}")
    except FileNotFoundError:
        yield Problem(log.name, "", "is missing")
    except (OSError, JobError) as e:
        yield Problem(log.name, "", f"cannot be read: {e.strerror if isinstance(e, OSError) else e}")
    expected = sum(map(left_out_of, contents.entries))
    if lines != expected and contents.done:
        yield Problem(log.name, "", f"holds {lines} lines, the journal says {expected}")


@contextlib.contextmanager
def _at_hand(mirror: Mirror | None, entry: Mapping[str, Any]) -> Iterator[None]:
    """Context manager that downloads one shard's files from the store that holds the output, and removes them at its
    end. Does nothing for an output in a folder."""
    for info in entry["files"] if mirror is not None else ():
        assert mirror is not None
        with contextlib.suppress(JobError):  # the check reports the file as missing
            mirror.get(info["name"])
    yield
    for info in entry["files"] if mirror is not None else ():
        assert mirror is not None
        mirror.forget(info["name"])


def _names_below(root: Path) -> Iterator[str]:
    """Iterate over the names of all files below ``root``, except hidden files and folders; temporary files of this
    program are included."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        inside = "" if Path(folder) == root else f"{Path(folder).relative_to(root).as_posix()}/"
        links = [f for f in folders if os.path.islink(os.path.join(folder, f))]
        yield from (inside + name for name in sorted([*files, *links]))
    if root.is_dir():
        yield from sorted(p.name for p in root.glob(".*.tmp-*") if p.is_dir())


def _unlisted(
    names: Iterable[str], output_files_of: Sequence[OutputFiles], entries: Sequence[Mapping[str, Any]],
    collection: _Collection,
) -> Iterator[Problem]:  # fmt: skip
    listed = {*collection.content, *(f["name"] for e in entries for f in e["files"])}
    listed.update(p.name for output_files in output_files_of for p in output_files.removable)
    listed.update(("manifest.json", "rejects.jsonl", "left_out.jsonl", "report.json", "inputs.gz"))
    suffixes = tuple({Path(name).suffix for e in entries for f in e["files"] if (name := f["name"])} - {""})
    found = 0
    for name in names:
        base = name.rpartition("/")[2]
        if ".tmp-" in name and name.startswith("."):
            yield Problem(name, "", "is left over from a run that was killed; the next run removes it")
        elif (
            base.startswith(".")
            or name in listed
            or _is_lock_of_lmdb(name, listed)
            or (name.partition("/")[0] in collection.folders)
        ):
            continue
        elif (found := found + 1) <= _MAX_UNLISTED:
            what = "looks like a shard, but the journal does not list it" if name.endswith(suffixes) else (
                "is not a file of this output: the journal does not list it")  # fmt: skip
            yield Problem(name, "", f"{what}; move it elsewhere")
    if found > _MAX_UNLISTED:
        yield Problem("journal.jsonl", "", f"does not list {found - _MAX_UNLISTED} more files of this folder")


def _is_lock_of_lmdb(name: str, listed: Collection[str]) -> bool:
    """Whether the file is a lock that LMDB readers create next to a database of the output."""
    return name.endswith(".lmdb/lock.mdb") and name.removesuffix("lock.mdb") + "data.mdb" in listed


def _check_reports(root: Path, output_files_of: Sequence[OutputFiles], problems: list[Problem]) -> Iterator[str]:
    """Check that the reports have the right form; they contain times, so no checksum covers them."""
    for path in sorted({root / "report.json", *(output_files.report for output_files in output_files_of)}):
        try:
            sidecar.read_json(path, sidecar.REPORT)
            yield f"{path.name}: no checksum covers it, because it holds times"
        except FileNotFoundError:
            continue
        except (JobError, OSError, ValueError) as e:
            problems.append(Problem(path.name, "", f"is not a report: {e}"))


class FileCheck:
    """Compares the files of an output with their entries in the journal, and counts the files that were compared.
    Created by `verify`."""

    def __init__(self, deep: bool, writer_of: Callable[[str], type[Writer]]) -> None:
        self.files = self.hashed = 0
        self.unread: Counter[str] = Counter()
        """Number of shards whose records could not be read on this machine, by reason."""
        self.writer_of = writer_of
        self._deep = deep
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "sums")

    def differences(self, file: io.BufferedReader, size: int, info: Mapping[str, Any]) -> list[str]:
        """Return the names of the checksums that differ between an open file of ``size`` bytes and its entry ``info``
        in the journal."""
        found: dict[str, str] = {}
        self.files += 1
        if "tree" in info:
            found["crc32c"], found["tree"] = checksums_of(file.fileno(), size, self._threads)
        if "sha256" in info and (self._deep or "tree" not in info):
            self.hashed += 1
            found["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        return [name for name, value in found.items() if info.get(name) != value]


def _check_shard(
    root: Path, entry: Mapping[str, Any], header: Mapping[str, Any], files: FileCheck
) -> Iterator[Problem]:
    sound = readable = True
    for info in entry["files"]:
        try:
            with sidecar.open_regular(sidecar.inside(root, info["name"])) as file:
                size = os.fstat(file.fileno()).st_size
                wrong = files.differences(file, size, info)
        except (OSError, JobError) as e:
            sound = readable = False
            yield Problem(info["name"], "", f"cannot be read: {e.strerror if isinstance(e, OSError) else e}")
            continue
        if size != info["bytes"]:
            sound = False
            yield Problem(info["name"], "", f"has {size} bytes, {info['bytes']} were written")
        elif wrong:
            sound = False
            differ = "differs" if len(wrong) == 1 else "differ"
            yield Problem(info["name"], "", f"its content is not what was written ({' and '.join(wrong)} {differ})")
    if not entry["files"] or not readable:
        return
    try:
        schema, write = header.get("schema", {}).get("fields", {}), header["write"]
        shard = WrittenShard(root, entry, write["options"], sound, schema)
        yield from files.writer_of(write["writer"]).walk(shard)
    except (SpecError, UnreadError) as e:
        files.unread[str(e)] += 1
    except Exception as e:  # anything that a walk raises for a file that differs from its journal
        yield Problem(entry["shard"], "", f"cannot be walked: {type(e).__name__}: {e}")
