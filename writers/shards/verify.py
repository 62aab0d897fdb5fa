"""Is a finished output what it says? Every file against its checksums, every record against its container's rules."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...ops.errors import JobError
from ...ops.storage.urls import is_url, plain_path
from ..bytes import sidecar
from ..bytes.sums import sums_of
from .journal import Contents, read_journal
from .manifest import Side, base_rejects, build_manifest, manifest_with_stages, rejects_with_stages, sides, stages
from .mirror import Mirror
from .rejects import RejectRow


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    file: str
    where: str
    """``record 12 at byte 3456``, or empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}{f', {self.where}' if self.where else ''}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of `verify`."""

    problems: Sequence[Problem]
    shards: int
    samples: int
    rejects: int
    bytes: int
    files: int
    hashed: int
    """Files whose SHA-256 was compared."""

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(place: Path | str, progress: Callable[[int, int], None] = lambda *_: None, *, deep: bool = False) -> Verdict:
    """Check everything in the output at ``place``, a folder or a URL; ``progress`` gets the bytes of shards that are
    checked, and of all of them. Files at a URL are copied here shard by shard. Files are compared by CRC-32C and tree;
    where they have a SHA-256, by that, too, if the check is ``deep`` or there is no tree (outputs of version 1).
    Never raises for bad data; JobError where a store cannot be read."""
    if not is_url(place):
        return _verify(Path(plain_path(str(place))), None, progress, deep)
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        mirror = Mirror(str(place), Path(folder))
        mirror.fetch()
        return _verify(Path(folder), mirror, progress, deep)


def _verify(root: Path, mirror: Mirror | None, progress: Callable[[int, int], None], deep: bool) -> Verdict:
    problems: list[Problem] = []
    entries: list[dict[str, Any]] = []
    found = sides(root)
    if not found:
        problems.append(Problem("journal.jsonl", "", "is missing: this is no output of dali-run, or it never began"))
    later: list[Side] = []
    try:
        later = stages(root)
    except (JobError, OSError) as e:
        problems.append(Problem("journal of a stage", "", str(e)))
    rejects, finished = 0, bool(found)
    checked = [(side, _check_side(root, side, problems)) for side in [*found, *later]]
    finished &= all(contents is not None and contents.done for _, contents in checked)
    files = FileCheck(deep)
    done, total = 0, sum(_bytes_of(e) for _, contents in checked if contents is not None for e in contents.entries)
    for side, contents in checked:
        if contents is None:
            continue
        for entry in contents.entries:
            progress(done, total)
            with _at_hand(mirror, entry):
                problems += _check_shard(root, entry, contents.header["write"], files)
            done += _bytes_of(entry)
        entries += contents.entries
        rejected = sum(e["rejects"] for e in contents.entries)
        rejects = rejected if side.stage is not None and side.stage.kind == "retry" else rejects + rejected
    if finished:
        problems += _check_whole(root, found[0].part is not None)
    names = sorted(p.name for p in root.iterdir()) if root.is_dir() else []
    problems += _unlisted(names if mirror is None else sorted({n.split("/")[0] for n in mirror.sizes}), entries)
    return Verdict(problems, len(entries), sum(e["samples"] for e in entries), rejects, done, files.files,
                   files.hashed)  # fmt: skip


def _bytes_of(entry: Mapping[str, Any]) -> int:
    return sum(f["bytes"] for f in entry["files"])


def _check_whole(root: Path, parts: bool) -> Iterator[Problem]:
    """The published shards of all parts and stages together."""
    published = {"rejects.jsonl": rejects_with_stages, "manifest.json": manifest_with_stages}
    for name, made in published.items():
        try:
            if parts and not (root / "manifest.json").exists():
                yield Problem(name, "", "is missing: other parts of the job are not finished, or nobody joined them; "
                              "dali-run merge does")  # fmt: skip
                return
            if sidecar.read(root / name) != made(root):
                yield Problem(name, "", "does not say what the journals and reject logs say")
        except OSError as e:
            yield Problem(name, "", f"cannot be read: {e.strerror}; run the same command again")
        except (JobError, ValueError, LookupError) as e:
            yield Problem(name, "", str(e))


def _check_side(root: Path, side: Side, problems: list[Problem]) -> Contents | None:
    try:
        contents = read_journal(side.journal)
    except (JobError, OSError) as e:
        problems.append(Problem(side.journal.name, "", str(e)))
        return None
    if contents is None:
        problems.append(Problem(side.journal.name, "", "holds nothing: the job has just begun, or was killed then"))
        return None
    if side.journal.stat().st_size > contents.size:
        problems.append(Problem(side.journal.name, f"byte {contents.size}", "a torn or damaged last line"))
    at = contents.header["range"][0]
    for entry in contents.entries:
        start, stop = entry["positions"]
        lost = entry["rejects"] - entry.get("replaced", 0)
        split = contents.header.get("split") is True  # a position may have any number of samples
        if start != at or (not split and entry["samples"] + lost != stop - start):
            problems.append(Problem(side.journal.name, entry["shard"], (
                f"positions {start} to {stop} with {entry['samples']} samples and {entry['rejects']} rejects do not "
                f"follow on {at}, or do not add up")))  # fmt: skip
        at = stop
    if not contents.done:
        problems.append(Problem(side.journal.name, "", f"the job is not finished: it stands at position {at}; run the "
                                "same command again"))  # fmt: skip
    log = side.rejects if side.stage is not None else base_rejects(root, side)
    _check_rejects(log, contents, problems)
    if contents.done and side.part is not None:
        try:
            if sidecar.read(side.manifest) != build_manifest(contents, log):
                problems.append(Problem(side.manifest.name, "", "does not say what journal and reject log say"))
        except OSError as e:
            problems.append(
                Problem(side.manifest.name, "", f"cannot be read: {e.strerror}; run the same command again")
            )
    return contents


def _check_rejects(log: Path, contents: Contents, problems: list[Problem]) -> None:
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


@contextlib.contextmanager
def _at_hand(mirror: Mirror | None, entry: Mapping[str, Any]) -> Iterator[None]:
    """The files of a shard, here while they are checked."""
    for info in entry["files"] if mirror is not None else ():
        assert mirror is not None
        with contextlib.suppress(JobError):  # the check will say that it is missing
            mirror.get(info["name"])
    yield
    for info in entry["files"] if mirror is not None else ():
        assert mirror is not None
        mirror.forget(info["name"])


def _unlisted(names: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    listed = {f["name"].split("/")[0] for e in entries for f in e["files"]}
    stems = {re.sub(r"-\d{5,}(-of-\d{5,})?$", "", e["shard"]) for e in entries}
    for name in names:
        if ".tmp-" in name and name.startswith("."):
            yield Problem(name, "", "is left over from a run that was killed; the next run removes it")
        match = re.match(r"(.+?)-\d{5,}(-of-\d{5,})?\.", name)
        if match is not None and match[1] in stems and name not in listed:
            yield Problem(name, "", "looks like a shard, but the journal does not list it")


class FileCheck:
    """Compares files with what the journal lists of them."""

    def __init__(self, deep: bool) -> None:
        self.files = self.hashed = 0
        self._deep = deep
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "sums")

    def differences(self, file: io.BufferedReader, size: int, info: Mapping[str, Any]) -> list[str]:
        """The checksums of an open file of ``size`` bytes that are not those of the journal."""
        found: dict[str, str] = {}
        self.files += 1
        if "tree" in info:
            found["crc32c"], found["tree"] = sums_of(file.fileno(), size, self._threads)
        if "sha256" in info and (self._deep or "tree" not in info):
            self.hashed += 1
            found["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        return [name for name, value in found.items() if info.get(name) != value]


def _check_shard(root: Path, entry: Mapping[str, Any], write: Mapping[str, Any], files: FileCheck) -> Iterator[Problem]:
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
    check = _CHECKS.get(write["writer"])
    if check is None or not entry["files"] or not readable:
        return
    try:
        yield from check(_Shard(root, entry, write["options"], sound))
    except Exception as e:  # whatever a walk stumbles over in a file that says other things than its journal
        yield Problem(entry["shard"], "", f"cannot be walked: {type(e).__name__}: {e}")


@dataclass(frozen=True, slots=True)
class _Shard:
    root: Path
    entry: Mapping[str, Any]
    options: Mapping[str, Any]
    sound: bool
    """All of its files are what was written."""

    def file(self, suffix: str) -> str:
        for info in self.entry["files"]:
            if info["name"].endswith(suffix):
                return str(info["name"])
        raise LookupError(f"the journal names no file {suffix} of it")

    def count(self, name: str, found: int) -> Iterator[Problem]:
        if found != self.entry["samples"]:
            yield Problem(name, "", f"holds {found} records, {self.entry['samples']} were written")


# -- one walk a format. They name the damaged record; that there is damage, the checksums have said -------------------


def _map(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The file's bytes, mapped; copy-on-write, as compiled code has one version for writable arrays only."""
    return np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)


def _tfrecord(shard: _Shard) -> Iterator[Problem]:
    from ...ops.storage.crc32c_cpu import masked_crc32c

    name = shard.file(".tfrecord")
    data = _map(shard.root / name)
    raw = data.data
    at = count = 0
    starts: list[tuple[int, int]] = []
    while at < len(data):
        where = f"record {count} at byte {at}"
        if at + 16 > len(data):
            yield Problem(name, where, f"{len(data) - at} bytes are left, too few for a record")
            break
        length, crc = struct.unpack_from("<QI", raw, at)
        if masked_crc32c(data, at, at + 8) != crc or at + 16 + length > len(data):
            yield Problem(name, where, f"the record's length is damaged; {len(data) - at} bytes cannot be read")
            break
        if masked_crc32c(data, at + 12, at + 12 + length) != struct.unpack_from("<I", raw, at + 12 + length)[0]:
            yield Problem(name, where, f"its {length} bytes are damaged (CRC-32C differs)")
        starts.append((at, length + 16))
        at += length + 16
        count += 1
    yield from shard.count(name, count)
    if shard.options.get("index", True):
        index = shard.file(".idx")
        if sidecar.read(shard.root / index) != b"".join(b"%d %d\n" % s for s in starts):
            yield Problem(index, "", "does not say where the records are")


def _webdataset(shard: _Shard) -> Iterator[Problem]:
    name = shard.file(".tar")
    data = _map(shard.root / name)
    at = 0
    keys: set[bytes] = set()
    while (head := data[at : at + 512].tobytes()).strip(b"\0"):
        where = f"member at byte {at}"
        total = sum(head) - sum(head[148:156]) + 8 * 32
        if len(head) < 512 or int(head[148:154].strip(b" \0") or b"0", 8) != total:
            yield Problem(name, where, f"the header is damaged; {len(data) - at} bytes cannot be read")
            break
        size = int(head[124:135], 8)
        end = at + 512 + size
        if end > len(data):
            yield Problem(name, where, f"{size} bytes should follow, {len(data) - at - 512} do")
            break
        if head[156:157] == b"L":
            member = data[at + 512 : end].tobytes().rstrip(b"\0")
            at += 512 + -(-size // 512) * 512
            size = int(data[at + 124 : at + 135].tobytes(), 8)
        else:
            prefix = head[345:500].rstrip(b"\0")
            member = (prefix + b"/" if prefix else b"") + head[:100].rstrip(b"\0")
        folder, _, base = member.rpartition(b"/")
        keys.add(folder + b"/" + base.partition(b".")[0])
        at += 512 + -(-size // 512) * 512
    else:
        if len(data) - at != 1024:
            yield Problem(name, f"byte {at}", "the archive does not end in two empty blocks")
    yield from shard.count(name, len(keys))


def _lmdb(shard: _Shard) -> Iterator[Problem]:
    if not shard.sound:  # the library trusts the file that it maps
        return
    import lmdb

    name = shard.file(".lmdb/data.mdb")
    try:
        with (
            lmdb.open(str((shard.root / name).parent), readonly=True, lock=False, create=False) as env,
            env.begin(buffers=True) as txn,
        ):
            found = sum(1 for _ in txn.cursor().iternext(keys=True, values=True))
    except lmdb.Error as e:
        raise ValueError(str(e)) from e
    yield from shard.count(name, found)


def _numpy(shard: _Shard) -> Iterator[Problem]:
    if not shard.sound:  # the header's parser raises anything for damaged ones
        return
    mode: Literal["r"] | None = "r" if shard.entry["samples"] else None
    for info in shard.entry["files"]:
        array = np.load(shard.root / info["name"], mmap_mode=mode, allow_pickle=False)
        yield from shard.count(info["name"], len(array))


def _files(shard: _Shard) -> Iterator[Problem]:
    name = shard.file(f"{shard.entry['shard']}.jsonl")
    rows = [json.loads(line) for line in sidecar.read(shard.root / name).splitlines()]
    yield from shard.count(name, len(rows))
    listed = {f["name"] for f in shard.entry["files"]}
    for row in rows:
        for file in row["files"]:
            if file not in listed:
                yield Problem(name, f"position {row['position']}", f"names {file}, which was not written")


def _recordio(shard: _Shard) -> Iterator[Problem]:
    name = shard.file(".rec")
    data = _map(shard.root / name)
    at = 0
    starts: list[int] = []
    while at < len(data):
        where = f"record {len(starts)} at byte {at}"
        if at + 8 > len(data):
            yield Problem(name, where, f"{len(data) - at} bytes are left, too few for a record")
            break
        magic, word = struct.unpack_from("<II", data.data, at)
        length = word & (1 << 29) - 1
        if magic != 0xCED7230A or at + 8 + length > len(data):
            yield Problem(name, where, f"the record's head is damaged; {len(data) - at} bytes cannot be read")
            break
        if word >> 29 in (0, 1):
            starts.append(at)
        at += 8 + -(-length // 4) * 4
    yield from shard.count(name, len(starts))
    index = shard.file(".idx")
    if sidecar.read(shard.root / index) != b"".join(b"%d\t%d\n" % pair for pair in enumerate(starts)):
        yield Problem(index, "", "does not say where the records are")


def _parquet(shard: _Shard) -> Iterator[Problem]:
    if not shard.sound or importlib.util.find_spec("pyarrow") is None:  # pyarrow ends the process at some damage
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = shard.file(".parquet")
    rows = 0
    try:
        file = pq.ParquetFile(shard.root / name, page_checksum_verification=True)
        for g in range(file.num_row_groups):
            rows += file.read_row_group(g, use_threads=False).num_rows
    except pa.ArrowException as e:
        raise ValueError(" ".join(str(e).split())) from e
    yield from shard.count(name, rows)


_CHECKS: dict[str, Callable[[_Shard], Iterator[Problem]]] = {
    "tfrecord": _tfrecord,
    "webdataset": _webdataset,
    "lmdb": _lmdb,
    "numpy": _numpy,
    "files": _files,
    "recordio": _recordio,
    "parquet": _parquet,
}
