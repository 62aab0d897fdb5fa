"""The journal of an output: one JSON line for each shard that is safe, each with a checksum of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.errors import JobError
from ..bytes import files_io
from ..bytes.files_io import File

VERSION = 1


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """JSON that is the same bytes for equal values (mappings keep their order), with a final newline."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, ensure_ascii=True, indent=indent, separators=separators).encode() + b"\n"


def _checksum(body: bytes) -> str:
    from ...ops.storage.crc32c_cpu import crc32c

    data = np.frombuffer(bytearray(body), np.uint8)
    return f"{int(crc32c(data, 0, len(data))):08x}"


def _line(entry: Mapping[str, Any]) -> bytes:
    """The entry, and the CRC-32C of its text as the last key."""
    body = encode_json(entry)[:-2]
    return body + f',"crc32c":"{_checksum(body)}"}}\n'.encode()


def _parse(line: bytes) -> dict[str, Any] | None:
    """The entry of a complete line, or None for anything else."""
    body, comma, tail = line.rpartition(b',"crc32c":"')
    if not comma or not tail.endswith(b'"}') or tail[:-2] != _checksum(body).encode():
        return None
    try:
        entry = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


@dataclass(slots=True)
class Contents:
    """What a journal says."""

    header: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    """One for each shard, in order."""
    done: bool = False
    size: int = 0
    """Bytes of the complete lines."""
    stop: int = 0


def read_journal(path: Path) -> Contents | None:
    """The journal at ``path``; None where there is none, or only a torn first line.

    A torn last line (the end of a killed run) is left out. Raises JobError for any other damage.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found: Contents | None = None
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        entry = None if end < 0 else _parse(data[at:end])
        if entry is None:
            if data.find(b"\n", at) not in (-1, len(data) - 1):
                raise JobError(f"{path}: line at byte {at} is damaged; restore it, or start anew with --fresh")
            break
        if found is None:
            if entry.pop("format", None) != "dali-run-journal":
                raise JobError(f"{path} is not a journal of dali-run; choose another path")
            version = entry.pop("version", None)
            if version != VERSION:
                raise JobError(f"{path} has format version {version}, this dali-run writes {VERSION}; use --fresh")
        elif not _follows(entry, found):
            raise JobError(f"{path}: line at byte {at} is out of place; restore the file, or start anew with --fresh")
        at = end + 1
        if found is None:
            found = Contents(entry, stop=entry["range"][0])
        elif "done" in entry:
            found.done, found.stop = True, entry["stop"]
        else:
            found.entries.append(entry)
            found.stop = entry["positions"][1]
        found.size = at
    return found


def _follows(entry: Mapping[str, Any], found: Contents) -> bool:
    """``entry`` is a shard behind those before, or the last line; a whole line anywhere else was copied there."""
    if found.done:
        return False
    if "done" in entry:
        return isinstance(entry.get("stop"), int) and entry["stop"] >= found.stop
    first, stop = entry.get("positions", (-1, -1))
    return bool(found.stop <= first <= stop)


class Journal:
    """A journal that is being written."""

    def __init__(self, file: File, contents: Contents) -> None:
        self._file = file
        self._contents = contents

    @staticmethod
    def start(path: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal; its first line is durable."""
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
    def reopen(path: Path, contents: Contents) -> Journal:
        """Continue a journal after its last complete line."""
        file = File(path, append=True)
        try:
            if file.size > contents.size:
                file.truncate(contents.size)
        except BaseException:
            file.close()
            raise
        return Journal(file, contents)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line, durably."""
        self._file.write(_line(entry))
        self._file.sync()
        if "done" in entry:
            self._contents.done, self._contents.stop = True, entry["stop"]
        else:
            self._contents.entries.append(json.loads(json.dumps(entry)))
            self._contents.stop = entry["positions"][1]

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def contents(self) -> Contents:
        """What it says."""
        return self._contents

    @property
    def header(self) -> Mapping[str, Any]:
        return self._contents.header

    @property
    def entries(self) -> Sequence[dict[str, Any]]:
        return self._contents.entries

    @property
    def done(self) -> bool:
        """All positions are in published shards."""
        return self._contents.done

    @property
    def stop(self) -> int:
        """First position that is in no published shard."""
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
        """Bytes of rejects.jsonl that belong to published shards."""
        return int(self.entries[-1]["rejects_size"]) if self.entries else 0

    @property
    def carry(self) -> dict[str, Any]:
        """What the writer keeps over shards."""
        return copy.deepcopy(self.entries[-1]["carry"]) if self.entries else {}


def read_back(header: dict[str, Any]) -> Contents:
    """A new journal's contents, its header as JSON gives it back (tuples become lists)."""
    header = json.loads(json.dumps(header))
    return Contents(header, stop=header["range"][0])


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs between two JSON values, one line each: ``identity.seed: 42, now 43``."""
    new = json.loads(json.dumps(new))
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
