"""Find the samples of a finished output that were rejected and can be retried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...ops.errors import JobError
from ..bytes import sidecar
from .journal import differences, read_journal
from .manifest import Addition, addition_files_of, output_files_of
from .rejects import RejectRow


@dataclass(frozen=True, slots=True)
class PendingRetry:
    """The next retry of an output's rejected samples: the one that was interrupted, if any, otherwise a new one."""

    retry: Addition
    rows: tuple[RejectRow, ...]
    """Lines of the reject log for the samples to retry, ordered by position."""


def next_retry(root: Path) -> PendingRetry:
    """Return the next retry for the finished output ``root``. Raises JobError if it is not finished."""
    check_finished(root)
    later = addition_files_of(root)
    number = len(later) + 1
    log = root / "rejects.jsonl"
    if later and later[-1].addition is not None and not later[-1].addition.published(root):
        if later[-1].addition.kind == "append":
            raise JobError(f"{root}: inputs are being added; run that to its end first (dali-run run SPEC --append)")
        number = len(later)
        if later[-1].before.exists():
            log = later[-1].before
    try:
        rows = tuple(RejectRow.parse(line) for line in sidecar.read(log).splitlines())
    except (OSError, ValueError) as e:
        raise JobError(f"{log} cannot be read: {e}") from None
    rows = tuple(r for r in rows if not r.there)  # other samples are at their positions
    positions = dict.fromkeys(r.position for r in rows)  # once, even if several parts of a sample were rejected
    return PendingRetry(Addition(number, "retry", tuple(positions)), rows)


def check_finished(root: Path) -> None:
    """Check that ``root`` is an output whose first run, with all of its parts, is finished. Raises JobError."""
    if not output_files_of(root) or not (root / "manifest.json").exists():
        raise JobError(f"{root} is not a finished output; run the job (all of its parts) to its end first")


def check_same_job(root: Path, identity: dict[str, object], write: dict[str, object]) -> None:
    """Check that the same job wrote ``root``, with this identity and ``write:`` section. The inputs' fingerprint may
    differ: files are repaired for a retry, and added for an append; the caller compares their contents. Raises
    JobError."""
    contents = read_journal(output_files_of(root)[0].journal)
    assert contents is not None
    old, new = ({**i, "inputs": None} for i in (contents.header["identity"], identity))
    changed = differences({"identity": old, "write": contents.header["write"]}, {"identity": new, "write": write})
    if changed:
        raise JobError(f"{root} was written by another job; this one differs in\n  " + "\n  ".join(changed))
