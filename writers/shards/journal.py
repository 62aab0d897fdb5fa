"""The journal of an output: one JSON line for each shard that is durable, each line with a checksum of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json
from ..bytes import files_io, sidecar
from ..bytes.files_io import File

VERSION = 2
"""Version of the format of journals and manifests. Version 1 lists SHA-256 checksums instead of trees of checksums. A
job that started with version 1 keeps it."""
_VERSIONS = (1, VERSION)


class ForgedError(JobError):
    """Raised for a journal (list of an output's shards) that was forged: its checksums are right, but this program
    never writes such content."""


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """Encode JSON so that equal values give equal bytes (mappings keep their order), with a final newline."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, ensure_ascii=True, indent=indent, separators=separators).encode() + b"\n"


def _checksum(body: bytes) -> str:
    from ...ops.storage.crc32c_cpu import crc32c_extend  # writing shards needs it as well: one loop less to compile

    return f"{int(crc32c_extend(np.uint32(0), np.frombuffer(bytearray(body), np.uint8))):08x}"


def _line(entry: Mapping[str, Any]) -> bytes:
    """Encode the entry of one shard as a line of a journal. Its last key is the CRC-32C of the entry's text."""
    body = encode_json(entry)[:-2]
    return body + f',"crc32c":"{_checksum(body)}"}}\n'.encode()


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse a complete line of a journal into its entry. Return None for anything else."""
    body, comma, tail = line.rpartition(b',"crc32c":"')
    if not comma or not tail.endswith(b'"}') or tail[:-2] != _checksum(body).encode():
        return None
    try:
        entry = parse_json(body + b"}")
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


@dataclass(slots=True)
class JournalContents:
    """Contents of a journal (the list of an output's shards): its header, and its entries so far."""

    header: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Entries of the published shards, in order."""
    done: bool = False
    size: int = 0
    """Total size in bytes of the journal's complete lines."""
    stop: int = 0
    version: int = VERSION


def read_journal(path: Path, *, header_only: bool = False) -> JournalContents | None:
    """Read the journal at ``path``; None if there is none, or only an incomplete first line. ``header_only``: read only
    the header.

    An incomplete last line (of a killed run) is left out. Raises JobError for any other damage, and for content that no
    journal has, such as names of files outside its folder.
    """
    try:
        if header_only:
            with sidecar.open_regular(path) as file:
                data = file.readline(sidecar.REPORT)
        else:
            data = sidecar.read(path)
    except FileNotFoundError:
        return None
    found: JournalContents | None = None
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        entry = None if end < 0 else _parse(data[at:end])
        if entry is None:
            if data.find(b"\n", at) not in (-1, len(data) - 1):
                raise JobError(f"{path}: line at byte {at} is damaged; restore it, or start anew with --fresh")
            break
        if found is None:
            found = _header(path, entry)
        else:
            _add_line(path, found, entry, at)
        at = found.size = end + 1
    return found


def _header(path: Path, entry: dict[str, Any]) -> JournalContents:
    """Return the contents of a journal whose first line is ``entry``. Raises JobError if no journal begins with it."""
    if entry.pop("format", None) != "dali-run-journal":
        raise JobError(f"{path} is not a journal of dali-run; choose another path")
    version = entry.pop("version", None)
    if version not in _VERSIONS:
        raise JobError(f"{path} has format version {version}, this dali-run writes {VERSION}; use --fresh")
    entry |= {k: copy.deepcopy(v) for k, v in _NO_HEADER.items() if k not in entry}  # the order stays
    _check_line(path, 0, _wrong_header(entry))
    return JournalContents(entry, stop=entry["range"][0], version=version)


def _add_line(path: Path, found: JournalContents, entry: dict[str, Any], at: int) -> None:
    """Add the line ``entry``, which begins at byte ``at``, to ``found``. Raises JobError if it is out of place."""
    if not _follows(entry, found):
        raise JobError(f"{path}: line at byte {at} is out of place; restore the file, or start anew with --fresh")
    if "done" in entry:
        found.done, found.stop = True, entry["stop"]
        return
    entry |= {k: copy.deepcopy(v) for k, v in _NO_SHARD.items() if k not in entry}
    _check_line(path, at, _wrong_entry(entry))
    entry["shard"] = str(entry["shard"])
    found.entries.append(entry)
    found.stop = entry["positions"][1]


def _check_line(path: Path, at: int, wrong: str) -> None:
    if wrong:
        raise ForgedError(f"{path}: line at byte {at} is not one that dali-run writes ({wrong}); remove it by hand")


def salvage(path: Path) -> list[dict[str, Any]] | None:
    """Return the entries of shards that can still be read from a damaged journal, so that the shards' files can be
    removed. Return None if no line of the file comes from this program. Raises JobError if it is not a regular file."""
    try:
        lines = sidecar.read(path).split(b"\n")
    except OSError:
        return None
    entries = [e for e in map(_parse, lines) if e is not None]
    if not any(e.get("format") == "dali-run-journal" or "done" in e or not _wrong_entry(e) for e in entries):
        return None
    return [e for e in entries if "shard" in e and not _wrong_entry(e)]


_NO_HEADER: dict[str, Any] = {"identity": {}, "write": {"writer": "", "options": {}}, "whole": None, "part": None}
_NO_SHARD: dict[str, Any] = {"samples": 0, "rejects": 0, "files": [], "rejects_size": 0, "carry": {}}
"""Default values of the keys that a shard's line in the journal may omit."""


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _wrong_header(header: Mapping[str, Any]) -> str:
    """Check the header of a journal. Return the name of a key whose value this program never writes, empty if there is
    none. A forger can compute right checksums, so these prove nothing."""
    whole, part, write = header.get("whole"), header.get("part"), header.get("write")
    range_ = header.get("range")
    if not isinstance(range_, list) or len(range_) != 2 or not _count(range_[0]):
        return "range"
    if range_[1] is not None and not _count(range_[1]):
        return "range"
    if not isinstance(header.get("identity"), dict) or not isinstance(write, dict):
        return "identity or write"
    if not isinstance(write.get("writer"), str) or not isinstance(write.get("options"), dict):
        return "writer"
    if whole is not None and not _count(whole):
        return "whole"
    if part is not None and not _is_pair(part):
        return "part"
    schema = header.get("schema", {})
    if not isinstance(schema, dict) or not isinstance(schema.get("fields", {}), dict):
        return "schema"
    return next((kind for kind in ("retry", "append") if _is_wrong_addition(kind, header.get(kind))), "")


def _is_wrong_addition(kind: str, addition: Any) -> bool:
    """Return whether ``addition``, a header's entry of ``kind`` (retry, append), is one that is never written."""
    if addition is None:
        return False
    places = addition.get("positions") if isinstance(addition, dict) else None
    if not isinstance(places, list) or not all(map(_count, places)) or not _count(addition.get("stage")):
        return True
    return kind == "append" and len(places) != 2


def _is_pair(value: Any) -> bool:
    """Return whether ``value`` is a list of two counts."""
    return isinstance(value, list) and len(value) == 2 and all(map(_count, value))


def left_out_of(entry: Mapping[str, Any]) -> int:
    """Return how many lines of left_out.jsonl belong to one shard's ``entry`` in the journal. The first entry also
    counts the records that readers left out (``unplaced``), which have no position."""
    return int(entry.get("left_out", 0)) + int(entry.get("unplaced", 0))


def _wrong_entry(entry: Mapping[str, Any]) -> str:
    """Check a shard's entry in a journal. Return a key whose value this program never writes; empty if none."""
    files = entry.get("files", [])
    shard = entry.get("shard")
    if not isinstance(shard, (str, int)) or not sidecar.is_inside(str(shard)) or "/" in str(shard):
        return "shard"
    if not _is_pair(entry.get("positions")):
        return "positions"
    counts = ("samples", "rejects", "rejects_size", "replaced", "left_out", "left_out_size", "unplaced")
    if not all(_count(entry.get(k, 0)) for k in counts):
        return "counts"
    if not isinstance(entry.get("carry", {}), dict):
        return "counts"
    if not isinstance(files, list) or not all(isinstance(f, dict) for f in files):
        return "files"
    return next(filter(None, map(_wrong_file, files)), "")


def _wrong_file(info: Mapping[str, Any]) -> str:
    """Check a shard's file. Return the reason why this program never writes such an entry; empty if there is none."""
    if not sidecar.is_inside(info.get("name")):
        return f"a file outside of its folder: {info.get('name')!r}"
    sums = [info[k] for k in ("tree", "sha256") if k in info]
    if not sums or not all(isinstance(s, str) for s in (*sums, info.get("crc32c"))):
        return "files"
    return "" if _count(info.get("bytes")) else "files"


def _follows(entry: Mapping[str, Any], found: JournalContents) -> bool:
    """Whether ``entry`` may come next in a journal that has ``found`` so far, and was not copied to a wrong place."""
    if found.done:
        return False
    if "done" in entry:
        return isinstance(entry.get("stop"), int) and entry["stop"] >= found.stop
    positions = entry.get("positions")
    if not isinstance(positions, list) or len(positions) != 2 or not all(map(_count, positions)):
        return False
    return bool(found.stop <= positions[0] <= positions[1])


def encode_journal(
    header: Mapping[str, Any], entries: Iterable[Mapping[str, Any]], stop: int, version: int
) -> Iterator[bytes]:
    """Yield the lines of a finished job's journal, as `Journal` would have written them."""
    yield _line({"format": "dali-run-journal", "version": version, **header})
    yield from map(_line, entries)
    yield _line({"done": True, "stop": stop})


class Journal:
    """A journal (the list of a job's durable shards) that is being written. Created by `open_journal`, closed by
    `Publisher`; one thread at a time calls it."""

    def __init__(self, file: File, contents: JournalContents) -> None:
        self._file = file
        self._contents = contents

    @staticmethod
    def start(path: Path, header: Mapping[str, Any]) -> Journal:
        """Create a journal with a durable first line, the header."""
        contents = read_back(dict(header))
        file = File(path, append=True)
        try:
            if file.size:
                file.truncate(0)  # a torn first line
            file.write(_line({"format": "dali-run-journal", "version": VERSION, **contents.header}))
            file.sync()
            files_io.sync_dir(path.parent)
        except BaseException:
            file.close()
            raise
        return Journal(file, contents)

    @staticmethod
    def reopen(path: Path, contents: JournalContents) -> Journal:
        """Open an existing journal, to continue it after its last complete line."""
        file = File(path, append=True)
        try:
            if file.size > contents.size:
                file.truncate(contents.size)
        except BaseException:
            file.close()
            raise
        return Journal(file, contents)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append a line with ``entry``, durably."""
        self._file.write(_line(entry))
        self._file.sync()
        if "done" in entry:
            self._contents.done, self._contents.stop = True, entry["stop"]
        else:
            self._contents.entries.append(parse_json(json.dumps(entry)))
            self._contents.stop = entry["positions"][1]

    def close(self) -> None:
        """Close the journal's file."""
        self._file.close()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def removed(self) -> bool:
        """Whether the journal was removed since it was opened."""
        return self._file.removed

    @property
    def contents(self) -> JournalContents:
        """Header and entries of the journal so far."""
        return self._contents

    @property
    def header(self) -> Mapping[str, Any]:
        return self._contents.header

    @property
    def entries(self) -> Sequence[dict[str, Any]]:
        return self._contents.entries

    @property
    def done(self) -> bool:
        """Whether the job is finished: all positions are in published shards, and the final line says so."""
        return self._contents.done

    @property
    def stop(self) -> int:
        """First position whose sample is not in a published shard."""
        return self._contents.stop

    @property
    def shards(self) -> int:
        return len(self.entries)

    @property
    def samples(self) -> int:
        return sum(int(e["samples"]) for e in self.entries)

    @property
    def rejected(self) -> int:
        return sum(int(e["rejects"]) for e in self.entries)

    @property
    def rejects_size(self) -> int:
        """Size in bytes of the lines of rejects.jsonl that belong to published shards."""
        return int(self.entries[-1]["rejects_size"]) if self.entries else 0

    @property
    def left_out(self) -> int:
        """Number of samples that were left out on purpose, including records that readers left out."""
        return sum(left_out_of(e) for e in self.entries)

    @property
    def left_out_size(self) -> int:
        """Size in bytes of the lines of left_out.jsonl that belong to published shards."""
        return int(self.entries[-1].get("left_out_size", 0)) if self.entries else 0

    @property
    def carry(self) -> dict[str, Any]:
        """State (``carry``) that the writer passes from shard to shard, as it was after the last published shard.
        Before the first shard it is the job's schema."""
        return copy.deepcopy(
            self.entries[-1]["carry"] if self.entries else self.header.get("schema", {}).get("fields", {})
        )


def read_back(header: dict[str, Any]) -> JournalContents:
    """Return the contents of a new journal with this header, as if it was read from JSON (tuples become lists)."""
    header = parse_json(json.dumps(header))
    return JournalContents(header, stop=header["range"][0])


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return the differences between two JSON values, one line each, such as ``identity.seed: 42, now 43``."""
    new = parse_json(json.dumps(new))
    if isinstance(old, dict) and isinstance(new, dict):
        out = []
        for key in [*old, *(k for k in new if k not in old)]:
            name = f"{where}.{key}" if where else str(key)
            if key not in new:
                out.append(f"{name}: was {_short(old[key])}, is gone")
            elif key not in old:
                out.append(f"{name}: is new: {_short(new[key])}")
            else:
                out += differences(old[key], new[key], name)
        return out
    return [] if old == new and type(old) is type(new) else [f"{where}: was {_short(old)}, now {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 80 else text[:77] + "..."
