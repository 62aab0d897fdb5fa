"""Split: the checked `split` argument of readers, which puts every record into one part of a data set by its key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import Origins, Samples
from ...ops.errors import JobError, SpecError

_OPTIONS = ("by", "group", "seed")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_BLOCK = 1 << 16
"""Number of records whose keys are hashed at a time."""


@dataclass(frozen=True, slots=True)
class Split:
    """A checked `split` argument of a reader: ``{train: 0.9, val: 0.1, by: key, seed: 7}``. The part of a record (such
    as ``train``) depends only on its key or group, the seed and the shares. It does not change with the order of the
    records, the number of job parts, or records that are added later."""

    shares: Mapping[str, float]
    """Share of the records that each part, such as ``train``, gets, by the part's name. The shares add up to 1."""
    by: str = "key"
    """Property of a record that decides its part. ``key``: each record is assigned by its own key; ``group``: all
    records of a group are in the same part."""
    group: re.Pattern[str] | None = None
    """Pattern that finds the group in a record's key: the match, or its first capture group if it has one. None: the
    key's folder is the group."""
    seed: int = 0

    @staticmethod
    def of(given: Mapping[str, Any]) -> Split:
        """Check the argument `split` and return it as an object. Raises SpecError."""
        shares = {str(name): share for name, share in given.items() if name not in _OPTIONS}
        by, seed, group = given.get("by", "key"), given.get("seed", 0), given.get("group")
        for name, share in shares.items():
            if not _NAME.fullmatch(name):
                raise SpecError(f"split: {name!r} cannot name a part; use letters, digits and _ . -")
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
                raise SpecError(f"split: the share of {name} must be between 0 and 1, got {share!r}")
        total = sum(shares.values())
        if len(shares) < 2 or abs(total - 1) > 1e-9:
            raise SpecError(f"split: give two parts or more whose shares add up to 1, got {dict(shares)} "
                            f"(together {total:g})")  # fmt: skip
        if by not in ("key", "group"):
            raise SpecError(f"split: by must be key or group, got {by!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise SpecError(f"split: seed must be an integer of at least 0, got {seed!r}")
        if group is not None and by != "group":
            raise SpecError("split: group means nothing for by: key; give by: group")
        try:
            pattern = None if group is None else re.compile(group)
        except (re.error, TypeError) as e:
            raise SpecError(f"split: group must be a regular expression, got {group!r}: {e}") from None
        return Split(shares, by, pattern, seed)

    def part_of(self, name: str, source: Origins, records: int) -> npt.NDArray[np.bool_]:
        """Return which records of a data set are in the part ``name`` of the split, such as ``train``. ``source`` gives
        the keys of its ``records`` records. Raises JobError if a key has no group."""
        ends = np.cumsum(list(self.shares.values()))
        ends[-1] = 2.0  # whatever the rounding of the sum
        number = list(self.shares).index(name)
        low, high = (ends[number - 1] if number else 0.0), ends[number]
        chosen = np.empty(records, np.bool_)
        for at in range(0, records, _BLOCK):
            index = np.arange(at, min(at + _BLOCK, records))
            samples = Samples.of_epoch_0(np.zeros(len(index), np.int32), np.zeros(len(index), np.int64), index, source)
            places = self._places(samples.names())
            chosen[at : at + len(index)] = (places >= low) & (places < high)
        return chosen

    def _places(self, keys: list[bytes]) -> npt.NDArray[np.float64]:
        """Return a number from 0 to 1 for each key, which decides its part. All keys of a group get the same number."""
        texts = keys if self.by == "key" else [self._group_of(key) for key in keys]
        salt = self.seed.to_bytes(8, "little")
        hashes = b"".join([hashlib.blake2b(text, digest_size=8, key=salt).digest() for text in texts])
        return np.frombuffer(hashes, "<u8").astype(np.float64) / 2.0**64

    def _group_of(self, key: bytes) -> bytes:
        if self.group is None:
            return key.rpartition(b"/")[0]
        match = self.group.search(key.decode("utf-8", "surrogateescape"))
        if match is None:
            raise JobError(f"split: group {self.group.pattern!r} matches nothing in the key "
                           f"{key.decode('utf-8', 'replace')!r}; every record needs a group")  # fmt: skip
        return (match[1] if match.re.groups and match[1] is not None else match[0]).encode("utf-8", "surrogateescape")
