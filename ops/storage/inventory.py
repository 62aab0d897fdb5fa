"""Inventories of data sets: the files or containers that a reader reads, to find what was added, removed or edited.

Readers' sources make them, `pipelines.job.additions` compares them, and an output stores them as inputs.gz.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import JobError
from .json_text import parse_json

I64 = npt.NDArray[np.int64]

_SHOWN = 3
"""Maximum number of names that a message about changes lists."""
_HEAD = 1 << 20
"""Maximum length in bytes of the first line (JSON) of a file with inventories. It takes a few hundred bytes per
reader."""
LARGEST = 4 << 30
"""Maximum bytes of an unpacked file with inventories; 20 million files need about 3 GB."""


@dataclass(frozen=True, slots=True)
class InventoryEntries:
    """Entries of one data set, in the reader's order: files, or containers of records."""

    blob: bytes
    """Names of the entries, joined by NUL bytes to one object, because there may be millions."""
    state: Mapping[str, I64]
    """Properties that differ if an entry was edited, such as size, modification time and label: int64[entries] each, by
    name."""
    records: I64
    """Number of records in each entry, int64[entries]."""
    keys: str = ""
    """Name of the rule by which records get their keys, if the keys depend on all entries together; else empty."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def names(self) -> list[bytes]:
        """Names of the entries."""
        return self.blob.split(b"\0") if len(self) else []

    def take(self, where: I64) -> InventoryEntries:
        """Return a copy with only the entries at the indices ``where``."""
        names = self.names
        return InventoryEntries(
            b"\0".join([names[i] for i in where.tolist()]),
            {k: v[where] for k, v in self.state.items()},
            self.records[where],
            self.keys,
        )

    def record_numbers(self, where: I64) -> I64:
        """Return the record numbers, counted over the whole data set, of all records in the entries ``where``
        (indices), in that order."""
        counts = self.records[where]
        if (self.records == 1).all():
            return where
        first = np.cumsum(self.records) - self.records
        ends = np.cumsum(counts)
        inside = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        numbers: I64 = np.repeat(first[where], counts) + inside
        return numbers


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between an old and a new inventory of the same data set, as `compare` finds them."""

    where: I64
    """Index of each old entry in the new inventory; -1 if it was removed. int64[old entries]."""
    added: I64
    """Indices in the new inventory of the added entries."""
    removed: tuple[bytes, ...] = ()
    """Names of the removed entries."""
    edited: tuple[tuple[bytes, str], ...] = ()
    """Name of each edited entry, and what differs, as text such as ``size, modified``."""

    def lines(self, now: InventoryEntries) -> list[str]:
        """Return one line of text per kind of change (added, removed, edited), with the first few names. ``now``: the
        new inventory."""
        said = []
        everything = now.names if len(self.added) else []
        for what, names in (
            ("added", [everything[i] for i in self.added[:_SHOWN].tolist()]),
            ("removed", self.removed[:_SHOWN]),
            ("edited", [name + b" (" + how.encode() + b")" for name, how in self.edited[:_SHOWN]]),
        ):
            count = len(self.added) if what == "added" else len(getattr(self, what))
            if count:
                text = ", ".join(repr(n.decode("utf-8", "backslashreplace"))[1:-1] for n in names)
                said.append(f"{count} {what}: {text}{', ...' if count > len(names) else ''}")
        return said


def compare(old: InventoryEntries, new: InventoryEntries) -> Changes:
    """Return the changes from ``old`` to ``new``. Raises JobError if several entries have the same name."""
    names = old.names
    places = {name: i for i, name in enumerate(new.names)}
    if len(places) != len(new) or len(set(names)) != len(old):
        raise JobError("some inputs are listed twice, so it is unknown which were added; list each input once")
    where = np.fromiter((places.get(name, -1) for name in names), np.int64, len(old))
    there = np.flatnonzero(where >= 0)
    differs: dict[int, list[str]] = {}
    for column in ({**old.state, "records": old.records}).items():
        kind, before = column
        after = new.records if kind == "records" else new.state.get(kind, np.full(len(new), -1, np.int64))
        for i in there[before[there] != after[where[there]]].tolist():
            differs.setdefault(i, []).append(kind)
    fresh = np.ones(len(new), np.bool_)
    fresh[where[there]] = False
    return Changes(
        where,
        np.flatnonzero(fresh),
        tuple(names[i] for i in np.flatnonzero(where < 0).tolist()),
        tuple((names[i], ", ".join(kinds)) for i, kinds in sorted(differs.items())),
    )


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inventories of the data sets of all readers of a job."""

    readers: Mapping[str, InventoryEntries]
    """Inventory of each reader's data set, by name of the reader."""
    identity: str = ""
    """Fingerprint of the job's inputs, as in the job's journal."""
    _version: int = field(default=1, repr=False)

    def encode(self) -> bytes:
        """Return the inventories as the bytes of a file: a JSON line, then names and numbers, all gzipped. Equal inputs
        give equal bytes."""
        body = io.BytesIO()
        head: dict[str, object] = {"format": "dali-run-inputs", "version": self._version, "identity": self.identity}
        told = []
        for name, pieces in self.readers.items():
            blob = pieces.blob
            told.append(
                {"reader": name, "pieces": len(pieces), "names": len(blob), "state": list(pieces.state),
                 "keys": pieces.keys}
            )  # fmt: skip
            body.write(blob)
            for column in (*pieces.state.values(), pieces.records):
                body.write(np.ascontiguousarray(column, "<i8").tobytes())
        head["readers"] = told
        # zlib's own header: gzip.compress writes another byte for the system from Python 3.13 on
        return zlib.compress(json.dumps(head).encode() + b"\n" + body.getvalue(), 1, wbits=16 + zlib.MAX_WBITS)

    @staticmethod
    def decode(data: bytes) -> Inputs:
        """Decode bytes that `encode` returned. Raises ValueError for other bytes."""
        try:
            # `encode` writes one gzip member: a file of many empty members would take seconds
            inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
            line, _, rest = inflater.decompress(data, _HEAD).partition(b"\n")
            head = parse_json(line)
            if head["format"] != "dali-run-inputs" or head["version"] != 1:
                raise ValueError("unknown format")
            sizes = [t["names"] + 8 * t["pieces"] * (len(t["state"]) + 1) for t in head["readers"]]
            if any(t["names"] < 0 or t["pieces"] < 0 for t in head["readers"]):
                raise ValueError("a count is negative")
            if sum(sizes) > LARGEST:
                raise ValueError(f"it promises {sum(sizes):,} bytes; at most {LARGEST:,} are read")
            # at most the promised number of bytes: a few packed bytes can unpack to any number
            rest += inflater.decompress(inflater.unconsumed_tail, max(sum(sizes) - len(rest) + 1, 1))
            if len(rest) > sum(sizes) or inflater.unused_data:
                raise ValueError("it holds more than it promises")
            if not inflater.eof:
                raise ValueError("it ends early")
            readers = {}
            at = 0
            for told in head["readers"]:
                count = told["pieces"]
                blob = rest[at : at + told["names"]]
                at += told["names"]
                columns = []
                for _ in range(len(told["state"]) + 1):
                    columns.append(np.frombuffer(rest, "<i8", count, at).astype(np.int64))
                    at += 8 * count
                if len(blob) != told["names"] or (blob.count(b"\0") + 1 if count else 0) != count:
                    raise ValueError("names are missing")
                state = dict(zip(told["state"], columns, strict=False))
                readers[told["reader"]] = InventoryEntries(blob, state, columns[-1], told["keys"])
            return Inputs(readers, head["identity"])
        except (OSError, EOFError, zlib.error, LookupError, TypeError, ValueError) as e:
            raise ValueError(f"is not a list of inputs: {e}") from None
