"""The shard protocol: an Output takes batches in order and publishes shards that survive anything.

A shard is written under a temporary name, fsynced, renamed; then one line goes to journal.jsonl, fsynced; manifest.json
comes last. Whatever the journal does not list is done again, so a rerun after any interruption ends in the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..ops.batch import I64, Batch, Samples
from ..ops.errors import DaliRunError, JobError, SpecError
from ..ops.inputs import Inputs
from . import files_io
from .background import Workers
from .base import FieldConfig, Frames, Records, Shard, ShardFiles, Writer, make_writer
from .files_io import File
from .journal import Contents, Journal, differences, encode_json, read_journal
from .lock import Lock
from .manifest import Side, Stage, build_manifest, merge_parts, publish_stage, replace, sides, stages, temporary_of
from .mirror import Mirror
from .rejects import Budget, ErrorBudget, RejectRow

Listing = Callable[[], Inputs]
"""What was read, made where it is to be kept."""
_NAME = re.compile(r"[A-Za-z0-9_.+=@-]{1,128}")


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """The ``write:`` section of a spec."""

    path: Path
    """A folder; where ``url`` is given, one to make shards in."""
    name: str
    """First part of the shards' names."""
    writer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    """Samples a shard: shard k holds positions [k * samples, (k + 1) * samples), less the rejected ones."""
    bytes: int | None = None
    """A shard ends after the record that makes it this large."""
    fields: Mapping[str, FieldConfig] = field(default_factory=dict)
    """What is written, in this order."""
    url: str = ""
    """Where the output goes, if that is no folder."""

    @property
    def where(self) -> str:
        """The output's place, for people."""
        return self.url or str(self.path)

    def check(self) -> Writer:
        """The writer. Raises SpecError where the section is wrong."""
        if not _NAME.fullmatch(self.name) or self.name.startswith("."):
            raise SpecError(f"name {self.name!r} cannot be part of file names; use letters, digits and _ . + = @ -")
        for limit, value in (("samples", self.samples), ("bytes", self.bytes)):
            if value is not None and value < 1:
                raise SpecError(f"shard: {limit} must be at least 1, got {value}")
        if not self.fields:
            raise SpecError("write: fields is empty; name at least one output")
        return make_writer(self.writer, self.options)

    def part_range(self, whole: range, part: tuple[int, int]) -> range:
        """Positions that part (i, n) of a job over ``whole`` writes: whole shards, so that n parts make the same files
        as one. Where shards are cut by bytes, parts have files of their own, and equal shares of the positions."""
        i, n = part
        unit = (self.samples_of_shard(len(whole), part) or 1) if self.bytes is None else 1
        units = -(-len(whole) // unit)
        return whole[units * i // n * unit : units * (i + 1) // n * unit]

    def samples_of_shard(self, whole: int | None, part: tuple[int, int] | None) -> int | None:
        """Positions a shard; None for everything in one. Parts of a job without shard sizes write one shard each."""
        samples = self.samples
        if samples is None and self.bytes is None:
            samples = self.check().default_samples
            if samples is None and part is not None and whole is not None:
                samples = max(1, -(-whole // part[1]))
        return samples

    def identity(self) -> dict[str, Any]:
        """What decides the output's bytes; compared when a job resumes."""
        return {
            "name": self.name,
            "writer": self.writer,
            "options": dict(self.options),
            "shard": {"samples": self.samples, "bytes": self.bytes},
            "fields": {k: dataclasses.asdict(v) for k, v in self.fields.items()},
        }


class Output:
    """The output directory of one job, from `open` to `finish` (or `abort`). One thread uses it.

        with Output.open(config, identity, total=n) as out:
            for batch in job(out.resume_from):
                out.add(start, stop, samples, fields, rejects)
            out.finish(report)

    Raises JobError, with path and reason, whenever the job cannot go on; what is on disk can then be resumed.
    """

    def __init__(
        self, config: WriteConfig, writer: Writer, side: Side, lock: Lock, journal: Journal, start: int,
        total: int | None, whole: int | None, budget: ErrorBudget,
    ) -> None:  # fmt: skip
        self.config = config
        self.budget = budget
        self._writer = writer
        self._side = side
        self._lock = lock
        self._journal = journal
        self._start = start
        self._stop = None if total is None else start + total
        whole = whole if whole is not None else self._stop
        self._samples = config.samples_of_shard(whole, side.part)
        self._count: int | None = None
        if whole is not None and config.bytes is None:
            self._count = -(-whole // self._samples) if self._samples else 1
        self._carry: dict[str, Any] = journal.carry
        self._next = journal.stop
        self._shard: _OpenShard | None = None
        self._workers = Workers()
        self._unpublished: list[ShardFiles] = []
        """Of closed shards, until the journal tells of them."""
        self._shards = journal.shards
        self._totals = [journal.samples, journal.rejected]
        """Shards, samples and rejects of the open shard's predecessors, published or not."""
        self._closed = False
        self._rejects_file: File | None = None
        self._state: Any = None
        if side.part is not None and self._samples and config.bytes is None and start % self._samples:
            raise SpecError(
                f"part {side.part[0]} begins at position {start}, inside a shard of {self._samples} samples; take "
                "WriteConfig.part_range"
            )

    # -- opening ------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, config: WriteConfig, identity: Mapping[str, Any], *, total: int | None, start: int = 0,
        whole: int | None = None, part: tuple[int, int] | None = None, budget: Budget | None = None,
        fresh: bool = False, stage: Stage | None = None, inputs: Listing | None = None,
    ) -> Output:  # fmt: skip
        """Open the output of positions [start, start + total), or start and on where ``total`` is None.

        ``identity`` (JSON-able) is everything else that decides the output: spec, seed, inputs, versions. A job that
        was interrupted continues at `resume_from` if it is equal. ``fresh`` removes an earlier job's output first.
        ``part`` (i, n) is one of n jobs that fill one directory together, ``whole`` the positions of all of them.
        ``stage`` adds shards to a finished output (see `retries.next_retry`): `add` then counts places in its list
        of positions, from 0 to ``total``. ``inputs`` is kept beside the journal, to tell one day what was added.
        """
        writer = config.check()
        if part is not None and total is None:
            raise SpecError("parts of a job need to know how many samples there are")
        if config.url and part is not None and getattr(writer, "key", "") == "sample" and writer.name == "files":
            raise SpecError("parts that write files behind a URL cannot see each other's names: give key: position")
        with _job_errors():
            files_io.make_dirs(config.path)
            side = Side(config.path, part, stage)
            lock = Lock(side.lock)
            try:
                if config.url:
                    side.mirror = Mirror(config.url, config.path)
                    side.mirror.begin(side.lock.name)
                header = {
                    "identity": dict(identity),
                    "write": config.identity(),
                    "range": [start, None if total is None else start + total],
                    "whole": whole,
                    "part": None if part is None else list(part),
                }
                if stage is not None:
                    header[stage.kind] = stage.header()
                journal = _open_journal(side, config, writer, header, fresh, inputs)
                limits = ErrorBudget(budget or Budget(), total)
                limits.resume(journal.stop - start, journal.rejected)
                side.put(side.journal)
                out = cls(config, writer, side, lock, journal, start, total, whole, limits)
            except BaseException:
                _let_go(side, lock)
                raise
            with out._guard():
                if not out.finished:
                    out._prepare(inputs)
                elif part is not None:
                    merge_parts(config.path, side)  # its last run may have been killed before
            return out

    def _prepare(self, inputs: Listing | None) -> None:
        """Undo what an interrupted run did beyond its journal."""
        self._remove_unlisted()
        if inputs is not None and not self._side.inputs.exists():
            replace(self._side.inputs, inputs().encode(), self._side)
        self._rejects_file = File(self._side.rejects, append=True)
        listed = self._journal.rejects_size
        if self._rejects_file.size < listed:
            raise JobError(
                f"{self._side.rejects} is shorter than the journal says ({self._rejects_file.size} bytes, {listed} "
                "expected); restore it, or start anew with --fresh"
            )
        if self._rejects_file.size > listed:
            self._rejects_file.truncate(listed)
        earlier: list[Mapping[str, Any]] = []
        if self._side.stage is not None:
            root = self.config.path
            for side in (*sides(root), *stages(root)[: self._side.stage.number - 1]):
                known = read_journal(side.journal)
                earlier += known.entries if known else []
            if not self._journal.entries and earlier:
                self._carry = copy.deepcopy(earlier[-1]["carry"])
        self._state = self._writer.begin(self.config.path, [*earlier, *self._journal.entries])

    def _remove_unlisted(self) -> None:
        prefix = f".{self.config.name}-"
        for entry in sorted(os.listdir(self.config.path)):
            if entry.startswith(prefix) and f".tmp-{self._side.tag}" in entry:
                files_io.remove(self.config.path / entry)
        if self._next == self._stop:
            return  # what follows is another part's
        # Only the shard after the journal's last can have been published without its line.
        stem = self._stem(self._next)
        listed = {info["name"].split("/")[0] for entry in self._journal.entries for info in entry["files"]}
        for entry in sorted(os.listdir(self.config.path)):
            if entry.startswith(stem + ".") and entry not in listed:
                files_io.remove(self.config.path / entry)

    # -- what there is to do --------------------------------------------------------------------------------------

    @property
    def resume_from(self) -> int:
        """First position still to do."""
        return self._next

    @property
    def finished(self) -> bool:
        """Everything is published already."""
        if self._side.stage is not None:
            return self._journal.done and self._side.stage.published(self.config.path)
        return self._journal.done and self._side.manifest.exists()

    @property
    def written(self) -> int:
        """Samples so far, earlier runs included."""
        return self._totals[0] + (self._shard.samples if self._shard else 0)

    @property
    def rejected(self) -> int:
        """Rejects so far, earlier runs included."""
        return self._totals[1] + (self._shard.rejects if self._shard else 0)

    # -- taking batches -------------------------------------------------------------------------------------------

    def add(
        self, start: int, stop: int, samples: Samples, fields: Mapping[str, Batch], rejects: Sequence[RejectRow] = ()
    ) -> None:
        """Take positions [start, stop): ``samples`` with their ``fields`` survived, the rest are ``rejects``.

        The fields' data may still be written after the return: it must not change.
        """
        with self._guard():
            self._workers.check()
            if self._side.mirror is not None:
                self._side.mirror.beat()
            self._check_range(start, stop, samples, rejects)
            records = Records(samples, {name: fields[name] for name in self.config.fields} if len(samples) else fields)
            rows = sorted(rejects, key=lambda r: r.position)
            at = start
            while at < stop:
                end = min(stop, self._boundary(at)) if self._samples else stop
                if end == stop and at == start:
                    at = self._add_piece(at, end, records, rows)
                    continue
                lo, hi = np.searchsorted(self._ranks(samples.position), (at, end))
                inside = [r for r in rows if at <= self._rank(r.position) < end]
                at = self._add_piece(at, end, records.take(slice(int(lo), int(hi))), inside)

    def _ranks(self, positions: I64) -> I64:
        """Places in what this output writes: the positions themselves, unless it is a stage."""
        return positions if self._side.stage is None else self._side.stage.places(positions)

    def _rank(self, position: int) -> int:
        return int(self._ranks(np.array([position]))[0])

    def _boundary(self, position: int) -> int:
        assert self._samples is not None
        return (position // self._samples + 1) * self._samples

    def _add_piece(self, start: int, stop: int, records: Records, rejects: Sequence[RejectRow]) -> int:
        """Take as much of [start, stop) as belongs to one shard; returns the position after it."""
        shard = self._shard or self._open_shard(start)
        refused = self._writer.refuse(records, self._carry) if len(records) else ()
        if refused:
            rejects = sorted([*rejects, *(self._row(records, r) for r in refused)], key=lambda r: r.position)
            kept = np.ones(len(records), bool)
            kept[[r.at for r in refused]] = False
            records = records.take(kept)
        n = len(records)
        frames: Frames | None = None
        if n:
            frames = self._opened(shard).frame(records)
            if self.config.bytes is not None:
                reached = shard.bytes + np.cumsum(frames.sizes)
                n = min(n, int(np.searchsorted(reached, self.config.bytes)) + 1)
                full = int(reached[n - 1]) >= self.config.bytes
                if full:
                    stop = self._rank(int(records.samples.position[n - 1])) + 1
                    rejects = [r for r in rejects if self._rank(r.position) < stop]
        if frames is not None:
            self._opened(shard).append(frames, n)
            shard.add(records, frames, n)
        if rejects:
            assert self._rejects_file is not None
            self._rejects_file.write("".join(r.line() for r in rejects).encode())
            shard.rejects += len(rejects)
            shard.replaced += sum(r.replaced for r in rejects)
        self._next = shard.stop = stop
        self.budget.add(stop - start, rejects)
        ends_here = self._samples is not None and stop == self._boundary(start)
        if ends_here or (self.config.bytes is not None and shard.bytes >= self.config.bytes):
            self._close_shard()
        return stop

    def _row(self, records: Records, refused: Any) -> RejectRow:
        origin = records.samples.origin(refused.at)
        return RejectRow(
            int(records.samples.position[refused.at]), origin.key, origin.source, origin.record, origin.offset,
            f"write.{self._writer.name}", refused.code, refused.message,
        )  # fmt: skip

    def _check_range(self, start: int, stop: int, samples: Samples, rejects: Sequence[RejectRow]) -> None:
        if self._closed or self.finished:
            raise JobError("internal: samples were delivered to an output that is closed")
        if start != self._next or stop < start or (self._stop is not None and stop > self._stop):
            raise JobError(
                f"internal: positions {start} to {stop} were delivered, but {self._next} is the next of "
                f"{self._start} to {'?' if self._stop is None else self._stop}"
            )
        if not rejects and self._side.stage is None and np.array_equal(samples.position, np.arange(start, stop)):
            return  # as almost always
        lost = np.array([r.position for r in rejects if not r.replaced], np.int64)
        given = self._ranks(np.concatenate((samples.position, lost)))
        ordered = bool((np.diff(samples.position) > 0).all())
        there = np.isin([r.position for r in rejects if r.replaced], samples.position).all()
        if not ordered or not there or not np.array_equal(np.sort(given), np.arange(start, stop)):
            raise JobError(
                f"internal: of positions {start} to {stop}, {len(samples)} samples and {len(rejects)} rejects do not "
                "account for each one exactly once"
            )

    # -- shards -------------------------------------------------------------------------------------------------

    def _stem(self, start: int) -> str:
        """Name of the shard that begins at ``start``, without suffix."""
        name = self.config.name if self._side.stage is None else f"{self.config.name}-{self._side.stage.name}"
        if self.config.bytes is not None:  # numbered as they come, by each part for itself
            mark = "" if self._side.part is None else f"-{self._side.part[0]:05d}"
            return f"{name}{mark}-{self._shards:05d}"
        number = start // self._samples if self._samples else 0
        of = "" if self._count is None else f"-of-{self._count:05d}"
        return f"{name}-{number:05d}{of}"

    def _open_shard(self, start: int) -> _OpenShard:
        end = self._stop if self._stop is not None else 0
        if self._samples is not None:
            end = min(self._boundary(start), self._stop or self._boundary(start))
        expected = 0 if self.config.bytes is not None else max(0, end - start)
        tag = f"{self._side.tag}{os.getpid()}"
        files = ShardFiles(
            self.config.path, self._stem(start), tag, expected, self._state, self._side.part is None, self._workers
        )
        files.carry = self._carry
        self._shard = _OpenShard(files, None, start, start)
        return self._shard

    def _opened(self, shard: _OpenShard) -> Shard:
        """The format's side of the shard; its files are made when the first record comes."""
        if shard.opened is None:
            shard.opened = self._writer.open(shard.files, self.config.fields)
        return shard.opened

    def _close_shard(self) -> None:
        """Publish the open shard; by another thread, in order, where others write and hash its files."""
        shard = self._shard
        assert shard is not None
        assert self._rejects_file is not None
        files = shard.files
        # Where names promise a count, or there is nothing else, a shard without samples is published too.
        there = bool(shard.samples or self.config.bytes is None or not self._shards)
        if there:
            self._opened(shard).close()
        behind = files.seal()
        entry = {
            "shard": files.stem,
            "positions": [shard.start, shard.stop],
            "samples": shard.samples,
            "rejects": shard.rejects,
            **({"replaced": shard.replaced} if shard.replaced else {}),
            "first_key": shard.first_key,
            "last_key": shard.last_key,
            "files": [],
            "rejects_size": self._rejects_file.size,
            "carry": copy.deepcopy(self._carry),
        }
        self._unpublished.append(files)
        self._shard = None
        self._shards += 1
        self._totals = [self._totals[0] + shard.samples, self._totals[1] + shard.rejects]
        if behind or not self._workers.publishing.idle:
            self._workers.publishing.put(lambda: self._publish(files, entry, there))
        else:
            self._workers.check()
            self._publish(files, entry, there)

    def _publish(self, files: ShardFiles, entry: dict[str, Any], there: bool) -> None:
        assert self._rejects_file is not None
        if there:
            entry["files"] = [dataclasses.asdict(i) for i in files.publish()]
        self._put([self.config.path / info["name"] for info in entry["files"]])
        self._rejects_file.sync()
        self._journal.append(entry)
        self._put([self._side.rejects, self._side.journal])
        if self._side.mirror is not None:
            for info in entry["files"]:
                self._side.mirror.forget(info["name"])
        self._unpublished.remove(files)

    def _put(self, paths: Sequence[Path]) -> None:
        """Copy files to where the output is, if that is elsewhere and still this job's."""
        if self._side.mirror is not None and paths:
            self._side.mirror.check()
            self._side.put(*paths)

    # -- the end ------------------------------------------------------------------------------------------------

    def finish(self, report: Mapping[str, Any] | None = None) -> None:
        """Publish the last shard, the report and the manifest. An output that was finished before stays as it is."""
        if self.finished:
            self.abort()
            return
        with self._guard():
            if not self._journal.done:
                self._finish_shards()
            if report is not None:
                replace(self._side.report, encode_json(report, indent=2), self._side)
            if self._side.stage is not None:
                publish_stage(self.config.path, self._side)
            else:
                contents = self._journal.contents
                replace(self._side.manifest, build_manifest(contents, self._side.rejects), self._side)
            if self._side.part is not None:
                merge_parts(self.config.path, self._side)
        self._release()

    def _finish_shards(self) -> None:
        if self._stop is not None and self._next != self._stop:
            raise JobError(
                f"the job ended at position {self._next} of {self._stop}; run the same command again: it continues"
            )
        self.budget.finish()
        if self._shard is None and self._shards == 0 and self._side.part is None and not self._side.stage:
            self._open_shard(self._start)  # an empty data set still has a readable output
        if self._shard is not None:
            self._close_shard()
        self._workers.publishing.wait()
        self._journal.append({"done": True, "stop": self._next})
        self._put([self._side.rejects, self._side.journal])

    def abort(self) -> None:
        """Stop here: publish what is complete, remove the rest and let go of the lock. The job can be resumed."""
        if not self._closed:
            self._workers.stop(JobError("internal: the output was closed"))
            left = [*self._unpublished, *([self._shard.files] if self._shard is not None else [])]
            self._shard, self._unpublished = None, []
            for files in left:
                with contextlib.suppress(OSError):  # the next run removes what is left
                    files.discard()
        self._release()

    def _release(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._workers.stop(JobError("internal: the output was closed"))
        with contextlib.suppress(OSError):
            if self._rejects_file is not None:
                self._rejects_file.close()
        with contextlib.suppress(OSError):
            self._journal.close()
        _let_go(self._side, self._lock)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """After any error the output is closed, so that nothing half-written can be added to."""
        try:
            with _job_errors():
                yield
        except BaseException:
            self.abort()
            raise


@dataclass(slots=True)
class _OpenShard:
    files: ShardFiles
    opened: Shard | None
    start: int
    stop: int
    samples: int = 0
    rejects: int = 0
    replaced: int = 0
    """Rejects in whose place another sample was written."""
    bytes: int = 0
    first_key: str | None = None
    last_key: str | None = None

    def add(self, records: Records, frames: Frames, n: int) -> None:
        self.samples += n
        self.bytes += int(frames.sizes[:n].sum())
        if self.first_key is None:
            self.first_key = records.samples.origin(0).key
        self.last_key = records.samples.origin(n - 1).key


def _open_journal(
    side: Side, config: WriteConfig, writer: Writer, header: Mapping[str, Any], fresh: bool, inputs: Listing | None
) -> Journal:  # fmt: skip
    root = config.path
    if side.stage is not None:
        return _open_stage_journal(side, side.stage.kind, header, inputs)
    for other in sides(root):
        if (other.part or (0, 1))[1] != (side.part or (0, 1))[1]:
            cut = "in one piece" if other.part is None else f"in {other.part[1]} parts"
            raise JobError(
                f"{config.where} holds a job that runs {cut} ({other.journal.name}); run it so, or choose another path"
            )
    known = read_journal(side.journal)
    if fresh:
        _remove_job(side, known.entries if known else [])
        known = None
    for path in (side.manifest, side.report, root / "manifest.json", root / "rejects.jsonl"):
        files_io.remove(temporary_of(path, side))
    if known is None:
        if not fresh:
            _refuse_foreign(side, config, writer)
        return Journal.start(side.journal, header)
    changed = differences(known.header, dict(header))
    if changed:
        raise JobError(
            f"{config.where} holds the output of another job; this one differs in\n  "
            + "\n  ".join(changed)
            + "\nChoose another path, or start anew with --fresh (removes the earlier output)"
        )
    _check_published(side, known)
    return Journal.reopen(side.journal, known)


def _check_published(side: Side, known: Contents) -> None:
    for entry in known.entries:
        for info in entry["files"]:
            size = side.size(info["name"])
            if size != info["bytes"]:
                what = "is missing" if size < 0 else f"has {size} bytes instead of {info['bytes']}"
                path = side.root / info["name"]
                raise JobError(f"{path} was written before but {what}; restore it, or start anew with --fresh")


def _let_go(side: Side, lock: Lock) -> None:
    """The next job may come."""
    if side.mirror is not None:
        with contextlib.suppress(OSError, JobError):
            side.mirror.end()
    with contextlib.suppress(OSError):
        lock.release()


def _open_stage_journal(side: Side, kind: str, header: Mapping[str, Any], inputs: Listing | None) -> Journal:
    known = read_journal(side.journal)
    if known is None:
        if inputs is not None:  # first, so that a stage that was begun can always be told from what came later
            replace(side.inputs, inputs().encode(), side)
        return Journal.start(side.journal, header)
    changed = differences(known.header, dict(header))
    if changed:
        raise JobError(
            f"{side.journal} was begun by another {kind}; this one differs in\n  "
            + "\n  ".join(changed)
            + "\nRemove it to begin again"
        )
    _check_published(side, known)
    return Journal.reopen(side.journal, known)


def _remove_job(side: Side, entries: Sequence[Mapping[str, Any]]) -> None:
    root = side.journal.parent
    later = stages(root)
    for stage in later:
        known = read_journal(stage.journal)
        entries = [*entries, *(known.entries if known else [])]
    side.take_back(root / "manifest.json")  # the whole job's, where this is one of its parts
    side.take_back(side.manifest)
    for entry in entries:
        for info in entry["files"]:
            path = root / info["name"]
            if not path.resolve().is_relative_to(root.resolve()):
                raise JobError(f"{side.journal} names a file outside of {root}: {info['name']!r}; remove it by hand")
            side.take_back(path)
            parent = path.parent
            while parent != root and parent.is_dir() and not any(parent.iterdir()):
                files_io.remove(parent)
                parent = parent.parent
    for path in [p for s in (*reversed(later), side) for p in s.removable]:
        side.take_back(path)


def _refuse_foreign(side: Side, config: WriteConfig, writer: Writer) -> None:
    """A new job never touches what it did not write."""
    ours = re.compile(rf"{re.escape(config.name)}-\d{{5,}}(-of-\d{{5,}})?(\..*)?")
    own_names = [p.name for p in side.removable if p != side.journal and (side.part is None or p != side.inputs)]
    for entry in side.names():
        if entry in own_names or (side.part is None and ours.fullmatch(entry)):
            raise JobError(
                f"{config.where} already holds {entry}, and no journal that knows of it; choose another path, or "
                "remove it"
            )
    own = {p.name for p in (side.lock, side.journal)}
    if side.part is None or len(sides(config.path)) <= side.journal.exists():  # the first of the parts looks
        writer.check_root(config.path, [e for e in side.names() if e not in own])


@contextlib.contextmanager
def _job_errors() -> Iterator[None]:
    """OSError as JobError: what failed, why, and that nothing is lost."""
    try:
        yield
    except DaliRunError:
        raise
    except OSError as e:
        code = errno.errorcode.get(e.errno or 0, "?")
        raise JobError(
            f"cannot write {e.filename or 'the output'}: {e.strerror or e} ({code}); put that right and run the same "
            "command again: it continues after the last finished shard"
        ) from e
