"""Retries: which samples of a finished output were rejected, and are to be tried again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..ops.errors import JobError
from .journal import differences, read_journal
from .manifest import Retry, Side, retries
from .rejects import RejectRow


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The next retry of an output, or the one that was interrupted."""

    retry: Retry
    rows: tuple[RejectRow, ...]
    """The rejects that are tried again, by position."""


def next_retry(root: Path) -> Outstanding:
    """What to try again in the finished output ``root``. Raises JobError where it is no finished job in one piece."""
    base = read_journal(root / "journal.jsonl")
    if base is None or not base.done or not (root / "manifest.json").exists():
        raise JobError(f"{root} is no finished output of a job in one piece; run the job to its end first")
    stages = retries(root)
    stage = len(stages) + 1
    log = root / "rejects.jsonl"
    if stages and stages[-1].retry is not None and not stages[-1].retry.published(root):
        stage = len(stages)
        if stages[-1].before.exists():
            log = stages[-1].before
    try:
        rows = tuple(RejectRow(**json.loads(line)) for line in log.read_bytes().splitlines())
    except (OSError, ValueError, TypeError) as e:
        raise JobError(f"{log} cannot be read: {e}") from None
    rows = tuple(r for r in rows if not r.replaced)  # their places are taken
    return Outstanding(Retry(stage, tuple(r.position for r in rows)), rows)


def check_same_job(root: Path, identity: dict[str, object], write: dict[str, object]) -> None:
    """Raises JobError where the job is not the one that wrote ``root``. The inputs' fingerprint may differ, since
    repaired files are what a retry is for; their keys are compared by the caller."""
    contents = read_journal(Side(root).journal)
    assert contents is not None
    old, new = ({**i, "inputs": None} for i in (contents.header["identity"], identity))
    changed = differences({"identity": old, "write": contents.header["write"]}, {"identity": new, "write": write})
    if changed:
        raise JobError(f"{root} was written by another job; this one differs in\n  " + "\n  ".join(changed))
