"""Rejected samples: their rows in the reject log, and the limit on their number."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json


@dataclass(frozen=True, slots=True)
class RejectRow:
    """One line of rejects.jsonl: a sample that was rejected, with the reason."""

    position: int
    """Position of the sample in the job's order."""
    key: str
    source: str
    record: int
    """Number of the record in the file ``source``, -1 if the file is a single record."""
    offset: int
    """Byte offset of the record in the file ``source``, -1 if unknown."""
    operator: str
    """Name of the graph node that rejected the sample, or ``write.<format>`` for a writer."""
    code: str
    message: str
    replaced: bool = False
    """Whether another sample was written in place of the rejected one (on_error policy replace)."""
    kept: bool = False
    """Whether the sample itself was written, though it is damaged (``on_damage: flag``)."""
    part: int = -1
    """Number of the rejected part of a split sample; -1 for a whole sample."""

    @property
    def there(self) -> bool:
        """Whether a sample was written at this position nevertheless: a replacement, or the damaged sample."""
        return self.replaced or self.kept

    @staticmethod
    def parse(line: bytes) -> RejectRow:
        """Parse a line of the reject log. Raises ValueError for anything else."""
        try:
            row = RejectRow(**parse_json(line))
        except TypeError as e:
            raise ValueError(f"is not a line of a reject log: {e}") from None
        for name, kind in _KINDS.items():
            if type(getattr(row, name)) is not kind:
                raise ValueError(f"is not a line of a reject log: {name} is {getattr(row, name)!r:.100}")
        return row

    def line(self) -> str:
        """The line of the log: JSON with the keys in the order of the attributes. Everything but printable ASCII is
        escaped, so that no text can forge a line."""
        row = asdict(self)
        for name in ("replaced", "kept"):
            if not row[name]:
                del row[name]
        if self.part < 0:
            del row["part"]
        return json.dumps(row, ensure_ascii=True) + "\n"


_KINDS = {"position": int, "key": str, "source": str, "record": int, "offset": int, "operator": str, "code": str,
          "message": str, "replaced": bool, "kept": bool, "part": int}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RejectLimit:
    """Largest number of rejects after which a job still continues: a count, a share of its samples, or no limit."""

    count: int | None = None
    share: float | None = None

    @staticmethod
    def parse(value: object) -> RejectLimit:
        """Parse ``None`` (no limit), ``20`` (a count), ``0.1%`` or ``0.001`` (a share). Raises ValueError."""
        if value is None:
            return RejectLimit()
        if isinstance(value, str):
            text = value.strip()
            try:
                value = float(text[:-1]) / 100 if text.endswith("%") else int(text)
            except ValueError:
                raise ValueError(f"{text!r} is neither a count (20) nor a share (0.1%)") from None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return RejectLimit(count=value)
        if isinstance(value, float) and 0 <= value <= 1:
            return RejectLimit(share=value)
        raise ValueError(f"max_errors must be a count (20) or a share from 0% to 100% (0.1%), got {value!r}")

    def max_rejects(self, samples: int) -> int | None:
        """Return the largest allowed number of rejects among ``samples`` samples; None for no limit. A share is rounded
        up: 1% of 75 samples is one, not none, and only 0% is zero. (The product is rounded first: 7% of 100 is
        7.000000000000001.)"""
        if self.share is None:
            return self.count
        return math.ceil(round(self.share * samples, 6))

    def __str__(self) -> str:
        if self.count is not None:
            return f"max_errors: {self.count}"
        return f"max_errors: {self.share * 100:g}%" if self.share is not None else "no limit"


class RejectCounter:
    """Counts the rejects of a job, and ends the job if there are too many. If the limit is a count, the first reject
    beyond it ends the job. If the limit is a share, it refers to all samples of the job if their number is known, so
    that many rejects at the start do not end the job. Otherwise the share refers to the samples so far, from the
    `GRACE`-th on and at the end."""

    GRACE = 1000

    def __init__(self, limit: RejectLimit, total: int | None, log: str = "rejects.jsonl") -> None:
        """``total``: number of samples of the job, if known; ``log``: path of the reject log, for messages."""
        self.limit = limit
        self.log = log
        self.total = total
        self.seen = 0
        self.rejected = 0
        self._codes: Counter[str] = Counter()
        self._example: RejectRow | None = None

    def resume(self, seen: int, rejected: int) -> None:
        """Start from the counts of an interrupted run: ``seen`` samples, of which ``rejected`` were rejected."""
        self.seen, self.rejected = seen, rejected

    def add(self, seen: int, rows: Sequence[RejectRow]) -> None:
        """Count ``seen`` samples, ``rows`` of them rejected. Raises JobError if there are too many rejects."""
        self.seen += seen
        self.rejected += len(rows)
        self._codes.update(r.code for r in rows)
        if self._example is None and rows:
            self._example = rows[0]
        if self.total is not None or self.seen >= self.GRACE:
            self.finish()

    def exceeded_by(self, rejected: int) -> bool:
        """Whether ``rejected`` rejects exceed the limit, for all samples of the job or for those counted so far."""
        limit = self.limit.max_rejects(self.total if self.total is not None else self.seen)
        return limit is not None and rejected > limit

    def finish(self) -> None:
        """Check the limit at the end of the job. Raises JobError if there are too many rejects."""
        if not self.exceeded_by(self.rejected):
            return
        of = self.total if self.total is not None else self.seen
        limit = self.limit.max_rejects(of)
        common = ", ".join(f"{n} {code}" for code, n in self._codes.most_common(3))
        example = f"; the first: {self._example.key!r}: {self._example.message}" if self._example else ""
        raise JobError(
            f"Too many rejected samples: {self.rejected} of {self.seen}; the limit is {self.limit}"
            f"{f' of {of}, that is {limit}' if self.limit.share is not None else ''}{': ' * bool(common)}{common}"
            f"{example}. They are in {self.log}; repair them, or raise max_errors and run the same command again: it "
            "continues"
        )
