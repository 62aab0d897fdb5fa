"""The output of a job with several workers, as its driver holds it: into how many parts the job is cut, which of them
are finished, and how they are joined into one output at the end."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ...ops.errors import JobError
from ...writers.bytes import files_io, sidecar
from ...writers.bytes.files_io import job_errors
from ...writers.shards.config import WriteConfig
from ...writers.shards.journal import JournalContents, differences, left_out_of, read_journal
from ...writers.shards.lock import Lock, break_lock
from ...writers.shards.manifest import OutputFiles, part_files_of, replace
from ...writers.shards.merge import join
from ...writers.shards.mirror import Mirror
from ...writers.shards.rejects import RejectRow
from ...writers.shards.resume import refuse_foreign, release_locks, remove_all

_PER_WORKER = {"gpu": 4, "cpu": 16, "null": 16}
"""Number of job parts per worker, by device. Several, so that all workers end at about the same time. Not many, because
each costs one or two tenths of a second, in which a GPU computes several shards; instead, the last parts are
smaller."""
_TAPER = {"gpu": 3.0, "cpu": 1.5, "null": 1.5}
"""Exponent, by device, that decides how fast job parts become smaller toward the end of a job. Simulated with 0.2 s per
part and 128 shards: two workers that take 0.05 s per shard work 79 % of the time with 4 parts each and a power of 3,
and 50 % with 16 and 1.5; two that take 5 s per shard work 99 % of the time with both."""
_LONGEST = {"gpu": 20_000_000, "cpu": 500_000, "null": 500_000}
"""Maximum number of samples of a job part, by device: one to five minutes for a fast worker, so that workers that start
later still find work."""
_MAX_PARTS = 99_999
"""Maximum number of parts of a job: file names have five digits for the number."""


@dataclass(slots=True)
class Part:
    """The driver's record of one part of a job: a range of shards that one worker processes. Created by `JobOutput`,
    changed by `Driver`."""

    number: int
    start: int
    stop: int
    """The position after the last sample of the part."""
    remaining: int
    """Number of the part's positions whose samples are not in a published shard yet."""
    written: int = 0
    rejected: int = 0
    left_out: int = 0
    done: bool = False
    tries: int = 0
    """Number of times that a worker has failed at this part of the job."""
    problem: str = ""
    """Message of the last failure at the part; empty if there was none."""


def parts_for(samples: int, unit: int, workers: int, device: str) -> int:
    """Return the number of parts into which a job of ``samples`` samples, in shards of ``unit`` samples, is cut."""
    count = max(_PER_WORKER[device] * workers, -(-samples // _LONGEST[device]))
    return max(1, min(count, -(-samples // unit), _MAX_PARTS))


def tapered(units: int, n: int, device: str) -> list[int]:
    """Return n + 1 borders that cut ``units`` shards into ``n`` job parts. The first parts are half as large again as
    the mean (three times on GPUs) and the last ones small, so that workers end together. No part is empty if there are
    at least ``n`` shards."""
    power = _TAPER[device]
    return [max(0, min(units - (n - i), units - int(units * (1 - i / n) ** power))) for i in range(n + 1)]


class JobOutput:
    """The output folder of a job with several workers. A context manager that holds the output's lock while entered,
    and raises JobError if another job holds it. Created by `fleet.run`; used by the driver's thread."""

    def __init__(self, config: WriteConfig, *, fresh: bool) -> None:
        self.config = config
        self.files = OutputFiles(config.path)
        self._fresh = fresh

    def __enter__(self) -> JobOutput:
        config = self.config
        writer = config.check()
        with job_errors("nothing was written yet"):
            files_io.make_dirs(config.path)
        with job_errors():
            self._lock = Lock(self.files.lock)
            try:
                if config.url:
                    self.files.mirror = Mirror(config.url, config.path)
                    self.files.mirror.begin(self.files.lock.name)
                if self._fresh:
                    remove_all(config.path, self.files, config, writer)
                if not part_files_of(config.path):
                    refuse_foreign(self.files, config, writer)
            except BaseException:
                release_locks(self.files, self._lock)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release_locks(self.files, self._lock)

    def check(self) -> None:
        """Raise JobError if another job has the output's lock now. In a store, this also keeps the lock alive."""
        with job_errors():
            if self.files.mirror is not None:
                self.files.mirror.beat()
            else:
                self._lock.check()

    @property
    def was_joined(self) -> bool:
        """Whether the job parts were already joined into one output. (The process that did so was killed before it had
        removed all of the parts.)"""
        contents = read_journal(self.files.journal)
        return contents is not None and contents.done

    def earlier_parts(self) -> tuple[int, dict[int, JournalContents]] | None:
        """Return what earlier runs of the job left: the number of parts, and the journal of each part that was begun.
        Return None if no part was begun. Raises JobError."""
        files_of_parts = part_files_of(self.config.path)
        if not files_of_parts:
            return None
        counts = {files.part[1] for files in files_of_parts if files.part is not None}
        if len(counts) > 1:
            raise JobError(f"{self.config.where} holds parts of several jobs; start again with --fresh")
        journals = {files.part[0]: read_journal(files.journal) for files in files_of_parts if files.part is not None}
        return counts.pop(), {i: contents for i, contents in journals.items() if contents is not None}

    def parts(self, span: range, who: Mapping[str, Any], workers: int, device: str) -> list[Part]:
        """Return all parts of the job, with the progress that earlier runs made. Raises JobError if parts of another
        job are there."""
        earlier_parts = self.earlier_parts()
        unit = (self.config.samples_of_shard(len(span), None) or 1) if not self.config.by_content else 1
        n = parts_for(len(span), unit, workers, device)
        n, journals = (n, {}) if earlier_parts is None else earlier_parts
        borders = tapered(-(-len(span) // unit), n, device)
        spans = [span[a * unit : b * unit] for a, b in itertools.pairwise(borders)]
        if any(contents.header["range"][0] != spans[i].start for i, contents in journals.items()):
            spans = [self.config.part_range(span, (i, n)) for i in range(n)]  # begun by --part
        parts = [Part(i, part_span.start, part_span.stop, len(part_span)) for i, part_span in enumerate(spans)]
        for i, contents in journals.items():
            self._check_ours(contents, who, len(span), n, i)
            part = parts[i]
            if contents.header["range"][0] != part.start:
                raise JobError(f"{self.config.where} holds parts of another version of dali-run, which cuts the job "
                               "differently; finish the job with it, or start again with --fresh")  # fmt: skip
            part.remaining = part.stop - contents.stop
            part.done = contents.done
            part.written = sum(int(e["samples"]) for e in contents.entries)
            part.rejected = sum(int(e["rejects"]) for e in contents.entries)
            part.left_out = sum(map(left_out_of, contents.entries))
        return parts

    def _check_ours(self, contents: JournalContents, who: Mapping[str, Any], total: int, n: int, i: int) -> None:
        same = {"identity": dict(who), "write": self.config.identity(), "whole": total}
        changed = differences({k: contents.header[k] for k in same}, same)
        if changed:
            raise JobError(
                f"{self.config.where} holds the output of another job (part {i} of {n}); this one differs in\n  "
                + "\n  ".join(changed)
                + "\nChoose another path, or start again with --fresh (removes the earlier output)"
            )

    def break_lock(self, part: tuple[int, int], dead: Mapping[str, Any]) -> None:
        """Release the lock of a job part that the worker ``dead`` held. That worker is known to be gone, together with
        its machine."""
        files = OutputFiles(self.config.path, part)
        if self.files.mirror is not None:
            self.files.mirror.break_lock(files.lock.name, dict(dead))
        else:
            break_lock(files.lock, dict(dead))

    def publish_rejects(self) -> list[RejectRow]:
        """Write the rejected samples of all job parts so far into one reject log, as a job in one process does, and
        return its rows. Nothing is written if no part was begun, or if writing fails."""
        rows: list[RejectRow] = []
        with contextlib.suppress(OSError, JobError, ValueError):
            if self.files.mirror is not None:
                self.files.mirror.fetch()
            logs = [files.rejects for files in part_files_of(self.config.path) if files.rejects.exists()]
            lines = [line for log in logs for line in sidecar.read(log).splitlines(keepends=True)]
            if logs:
                replace(self.files.rejects, b"".join(lines), self.files)
            rows += [RejectRow.parse(line) for line in lines]
        return rows

    def join(self, report: Mapping[str, Any]) -> None:
        """Join the finished parts of the job into one output. Raises JobError."""
        with job_errors():
            if self.files.mirror is not None:
                self.files.mirror.fetch()
            join(self.files, report)
