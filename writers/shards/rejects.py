"""Rejected samples: the line each of them costs, and the budget that decides when they are too many."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ...ops.errors import JobError


@dataclass(frozen=True, slots=True)
class RejectRow:
    """One line of rejects.jsonl."""

    position: int
    """Place in the job's order."""
    key: str
    source: str
    record: int
    """Number of the record in ``source``, -1 for a file of its own."""
    offset: int
    """Byte offset in ``source``, -1 where there is none."""
    operator: str
    """Name of the node that refused the sample."""
    code: str
    message: str
    replaced: bool = False
    """Another sample was written in its place (on_error policy replace)."""
    kept: bool = False
    """The sample itself was written, though it is damaged (``on_damage: flag``)."""
    part: int = -1
    """Which part of the sample, where it was split; -1 for all of it."""

    @property
    def there(self) -> bool:
        """A sample was written at this position all the same."""
        return self.replaced or self.kept

    @staticmethod
    def parse(line: bytes) -> RejectRow:
        """The row of a `line`. Raises ValueError for anything else."""
        try:
            row = RejectRow(**json.loads(line))
        except (TypeError, RecursionError) as e:
            raise ValueError(f"is no line of a reject log: {e}") from None
        for name, kind in _KINDS.items():
            if type(getattr(row, name)) is not kind:
                raise ValueError(f"is no line of a reject log: {name} is {getattr(row, name)!r:.100}")
        return row

    def line(self) -> str:
        """JSON with the keys in this order; everything but printable ASCII is escaped, so that logs stay logs."""
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
    """How many rejects a job takes before it fails: a count, a share of its samples, or any number."""

    count: int | None = None
    share: float | None = None

    @staticmethod
    def parse(value: object) -> RejectLimit:
        """``None`` (no limit), ``20`` (a count), ``0.1%`` or ``0.001`` (a share). Raises ValueError."""
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
        """The most rejects among ``samples``; None for any number. A share is rounded up: 1% of 75 samples is one, not
        none, and only 0% is zero. (Rounded before: 7% of 100 is 7.000000000000001.)"""
        if self.share is None:
            return self.count
        return math.ceil(round(self.share * samples, 6))

    def __str__(self) -> str:
        if self.count is not None:
            return f"max_errors: {self.count}"
        return f"max_errors: {self.share * 100:g}%" if self.share is not None else "no limit"


class RejectCounter:
    """Counts rejects against a budget.

    A count is exceeded by the first reject beyond it. A share is taken of all samples of the job where their number is
    known, so that a bad stretch at the start does no harm; else of the samples so far, from the `GRACE`-th sample on
    and at the end.
    """

    GRACE = 1000

    def __init__(self, limit: RejectLimit, total: int | None, log: str = "rejects.jsonl") -> None:
        """``total``: samples of the job, if that is known; ``log``: path of the reject log, for messages."""
        self.limit = limit
        self.log = log
        self.total = total
        self.seen = 0
        self.rejected = 0
        self._codes: Counter[str] = Counter()
        self._example: RejectRow | None = None

    def resume(self, seen: int, rejected: int) -> None:
        """Start from what an interrupted run counted."""
        self.seen, self.rejected = seen, rejected

    def add(self, seen: int, rows: Sequence[RejectRow]) -> None:
        """Count ``seen`` samples, ``rows`` of them rejected. Raises JobError when they are too many."""
        self.seen += seen
        self.rejected += len(rows)
        self._codes.update(r.code for r in rows)
        if self._example is None and rows:
            self._example = rows[0]
        if self.total is not None or self.seen >= self.GRACE:
            self.finish()

    def exceeded_by(self, rejected: int) -> bool:
        """Whether so many rejects are too many, of all samples or of the samples so far."""
        limit = self.limit.max_rejects(self.total if self.total is not None else self.seen)
        return limit is not None and rejected > limit

    def finish(self) -> None:
        """The last check. Raises JobError when the rejects are too many."""
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
