"""The shard protocol: an Output takes batches in order and publishes shards that survive any interruption.

A shard is written under a temporary name, fsynced, renamed; then one line is added to journal.jsonl, fsynced;
manifest.json comes last. Shards that the journal does not list are made again, so a rerun after any interruption ends
in the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from ...ops.batch import Batch, Samples
from ...ops.errors import JobError, SpecError
from .. import base
from ..base import Records, Refused, Shard, ShardFiles, Writer
from ..bytes import files_io
from ..bytes.background import waiting_for
from ..bytes.files_io import job_errors
from ..formats.columns import not_text
from .borders import ShardBounds
from .config import WriteConfig
from .journal import Journal, encode_json
from .left_out import NOTHING_LEFT_OUT, LeftOutRows
from .lock import Lock
from .manifest import Addition, OutputFiles, build_manifest, merge_parts, publish_addition, publish_manifest, replace
from .mirror import Mirror
from .publisher import Publisher
from .rejects import RejectCounter, RejectLimit, RejectRow
from .resume import Listing, earlier_entries, open_journal, open_log, release_locks, remove_unlisted


def _header(
    config: WriteConfig, identity: Mapping[str, Any], schema: Mapping[str, Any] | None, positions: Sequence[int | None],
    whole: int | None, part: tuple[int, int] | None, addition: Addition | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the header of a new journal, whose entries keep their order."""
    return {
        "identity": dict(identity),
        "write": config.identity(),
        **({"schema": dict(schema)} if schema else {}),
        "range": list(positions),
        "whole": whole,
        **({"split": True} if config.split else {}),
        **({"leaves_out": True} if config.leaves_out else {}),
        "part": None if part is None else list(part),
        **({} if addition is None else {addition.kind: addition.header()}),
    }


class Output:
    """The output directory of one job, from `open` to `finish` (or `abort`). One thread uses it.

        with Output.open(config, identity, total=n) as out:
            for batch in job(out.resume_from):
                out.add(start, stop, samples, fields, rejects)
            out.finish(report)

    Raises JobError, with path and reason, whenever the job cannot continue; it can then be resumed from the files on
    disk.
    """

    def __init__(
        self, config: WriteConfig, writer: Writer, output_files: OutputFiles, lock: Lock, journal: Journal,
        bounds: ShardBounds, reject_counter: RejectCounter, memory: int | None,
    ) -> None:  # fmt: skip
        self.config = config
        self.reject_counter = reject_counter
        self._writer = writer
        self._output_files = output_files
        self._lock = lock
        self._journal = journal
        self._bounds = bounds
        self._memory = memory
        """Bytes of the host's memory budget; None if there is none."""
        self._publisher = Publisher(output_files, journal, lock, waiting_for(memory or 0))
        self._carry: dict[str, Any] = journal.carry
        self._next = journal.stop
        self._shard: _OpenShard | None = None
        self._shards = journal.shards
        self._totals = [journal.samples, journal.rejected, journal.left_out]
        """Numbers of written, rejected and left-out samples in all shards before the open one, published or not."""
        self.unplaced: dict[str, int] = {}
        """Numbers of records that readers left out, by reader, whose lines this run wrote to left_out.jsonl."""
        self._closed = False
        self._led = False
        self._begun = True
        """Whether an earlier run of the job may have left files."""
        self._state: Any = None

    # -- opening ------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, config: WriteConfig, identity: Mapping[str, Any], *, total: int | None, start: int = 0,
        whole: int | None = None, part: tuple[int, int] | None = None, reject_limit: RejectLimit | None = None,
        fresh: bool = False, addition: Addition | None = None, inputs: Listing | None = None, led: bool = False,
        memory: int | None = None, schema: Mapping[str, Any] | None = None,
        unplaced: Callable[[], Iterable[tuple[str, LeftOutRows]]] | None = None,
    ) -> Output:  # fmt: skip
        """Open the output of the samples at positions [start, start + total), or from start on if ``total`` is None.

        ``identity`` (JSON-able) is everything else that decides the output: spec, seed, inputs, versions. An
        interrupted job with an equal identity continues at `resume_from`. ``fresh`` removes an earlier job's output
        first. ``part`` (i, n) is one of n job parts that fill one directory together, ``whole`` the number of positions
        of all of them. ``led``: a driver process assigns the parts. It has checked the directory, compares the rejects
        of all parts with the limit, writes the report, and joins the parts in the end; for each of many parts that is
        too much work. ``addition`` adds shards to a finished output (see `retries.next_retry`): `add` then takes
        indices in its list of positions, from 0 to ``total``. ``inputs`` makes the inventories that are stored with the
        journal, for later appends. ``memory``: bytes of the host's memory budget; a fraction of them may wait to be
        written, and records that exceed them while they are written are rejected. ``schema`` (JSON-able)
        holds facts that all parts have in common and that the spec leaves open; its ``fields`` are the writer's
        `Writer.schema`. ``unplaced`` yields lines for records that readers left out, each with the reader's name; the
        first part of a job writes them to left_out.jsonl before all others.
        """
        writer = config.check()
        if part is not None and total is None:
            raise SpecError("a job in parts needs the number of samples")
        if config.url and part is not None and getattr(writer, "key", "") == "sample" and writer.name == "files":
            raise SpecError("parts that write files to a URL cannot see each other's names: give key: position")
        output_files = OutputFiles(config.path, part, addition)
        bounds = ShardBounds(config, output_files, start, total, whole)
        with job_errors("nothing was written yet"):
            files_io.make_dirs(config.path)
        with job_errors():
            lock = Lock(output_files.lock)
            try:
                if config.url:
                    output_files.mirror = Mirror(config.url, config.path)
                    own = [output_files.journal.name, output_files.rejects.name, output_files.left_out.name]
                    output_files.mirror.begin(output_files.lock.name, own if led else None)
                begun = output_files.journal.exists()
                header = _header(config, identity, schema, [start, bounds.stop], whole, part, addition)
                journal = open_journal(output_files, config, writer, header, fresh, inputs, led)
                reject_counter = RejectCounter(
                    reject_limit or RejectLimit(),
                    whole if led else total,
                    f"{config.where}/{output_files.rejects.name}",
                )
                reject_counter.resume(journal.stop - start, journal.rejected)
                output_files.put(output_files.journal)
                out = cls(config, writer, output_files, lock, journal, bounds, reject_counter, memory)
                out._led, out._begun = led, begun
            except BaseException:
                release_locks(output_files, lock)
                raise
            with out._guard():
                if not out.finished:
                    out._prepare(inputs, unplaced if part is None or not part[0] else None)
                elif part is not None and not led:
                    merge_parts(config.path, output_files)  # its last run may have been killed before the merge
            return out

    def _prepare(
        self, inputs: Listing | None, unplaced: Callable[[], Iterable[tuple[str, LeftOutRows]]] | None
    ) -> None:  # fmt: skip
        """Prepare the output for writing: remove what an interrupted run did after the last line of its journal, and
        open the logs. ``inputs`` makes the inventories to store, ``unplaced`` the lines for records that readers left
        out."""
        # Only the shard after the journal's last can have been published without its line.
        left = None if self._next == self._bounds.stop else self._bounds.stem(self._next, self._shards)
        if self._begun or not self._led:
            remove_unlisted(self._output_files, self.config.name, self._journal, left)
        if inputs is not None and not self._output_files.inputs.exists():
            replace(self._output_files.inputs, inputs().encode(), self._output_files)
        self._publisher.rejects = open_log(self._output_files.rejects, self._journal.rejects_size)
        if self.config.leaves_out:
            self._publisher.left_out = open_log(self._output_files.left_out, self._journal.left_out_size)
            for reader, rows in unplaced() if unplaced is not None and not self._journal.entries else ():
                self._publisher.log_left_out(rows)
                self.unplaced[reader] = self.unplaced.get(reader, 0) + len(rows)
                self._totals[2] += len(rows)
        earlier = earlier_entries(self._output_files)
        if not self._journal.entries and earlier and earlier[-1]["carry"]:
            self._carry = copy.deepcopy(earlier[-1]["carry"])
        self._state = self._writer.begin(self.config.path, [*earlier, *self._journal.entries])

    # -- progress -------------------------------------------------------------------------------------------------

    @property
    def part(self) -> tuple[int, int] | None:
        """The job part (i, n) whose samples this output takes; None for a job without parts."""
        return self._output_files.part

    @property
    def schema(self) -> Mapping[str, Any]:
        """Facts that all job parts have in common and that the spec leaves open, such as the writer's schema."""
        found: Mapping[str, Any] = self._journal.header.get("schema", {})
        return found

    @property
    def resume_from(self) -> int:
        """First position whose sample is not written yet; a resumed job continues there."""
        return self._next

    @property
    def finished(self) -> bool:
        """Whether all positions are published already, so that nothing is left to write."""
        if self._output_files.addition is not None:
            return self._journal.done and self._output_files.addition.published(self.config.path)
        return self._journal.done and (self._led or self._output_files.manifest.exists())

    @property
    def written(self) -> int:
        """Number of samples written so far, earlier runs included."""
        return self._totals[0] + (self._shard.samples if self._shard else 0)

    @property
    def rejected(self) -> int:
        """Number of rejects so far, earlier runs included."""
        return self._totals[1] + (self._shard.rejects if self._shard else 0)

    @property
    def left_out(self) -> int:
        """Number of samples left out on purpose so far, earlier runs included."""
        return self._totals[2] + (self._shard.left_out if self._shard else 0)

    # -- taking batches -------------------------------------------------------------------------------------------

    def add(
        self, start: int, stop: int, samples: Samples, fields: Mapping[str, Batch], rejects: Sequence[RejectRow] = (),
        check_intact: Callable[[], None] = lambda: None, left_out: LeftOutRows = NOTHING_LEFT_OUT,
    ) -> None:  # fmt: skip
        """Write the samples of positions [start, stop): ``samples`` with their ``fields``. Other positions are in
        ``rejects`` or ``left_out``. The fields' data must not change until it is written, which may be after the
        return. Any thread calls ``check_intact`` when the data was read (and small values copied), before anything of
        it is published; it may raise."""
        with self._guard():
            self._publisher.check()
            if self._closed or self.finished:
                raise JobError("internal: samples were delivered to an output that is closed")
            bounds = self._bounds
            bounds.check(self._next, start, stop, samples, rejects, left_out)
            records = Records(samples, {name: fields[name] for name in self.config.fields} if len(samples) else fields)
            rows = sorted(rejects, key=lambda r: r.position)
            at = start
            while at < stop:
                end = bounds.end(at, stop, samples.position, self._shard.samples if self._shard else 0)
                if end == stop and at == start:
                    at = self._add_piece(at, end, records, rows, left_out, check_intact)
                    continue
                lo, hi = np.searchsorted(bounds.indices(samples.position), (at, end))
                inside = [r for r in rows if at <= bounds.index(r.position) < end]
                at = self._add_piece(
                    at,
                    end,
                    records.take(slice(int(lo), int(hi))),
                    inside,
                    self._between(left_out, at, end),
                    check_intact,
                )

    def _between(self, left_out: LeftOutRows, start: int, stop: int) -> LeftOutRows:
        indices = self._bounds.indices(left_out.positions)
        return left_out.take(np.flatnonzero((indices >= start) & (indices < stop)))

    def _add_piece(
        self, start: int, stop: int, records: Records, rejects: Sequence[RejectRow], left_out: LeftOutRows,
        check_intact: Callable[[], None],
    ) -> int:  # fmt: skip
        """Write samples from position ``start`` on, before ``stop``, as many as go into the open shard. Return the
        position after the last one."""
        shard = self._shard or self._open_shard(start)
        refused = {r.at: r for r in self._writer.refuse(records, self._carry)} if len(records) else {}
        refused.update((r.at, r) for r in (*not_text(records, self.config.fields), *self._over_budget(records)))
        if refused:
            rejects = sorted([*rejects, *(self._row(records, r) for r in refused.values())], key=lambda r: r.position)
            kept = np.ones(len(records), bool)
            kept[list(refused)] = False
            records = records.take(kept)
        if len(records):
            opened = self._opened(shard)
            weight = self._background_weight(shard, records)
            if weight:
                self._frame_in_background(shard, lambda: _put(opened, records, check_intact), weight)
                shard.add(records, len(records), 0)
            else:
                frames = opened.frame(records)
                n, full = self._bounds.fitting(shard.bytes, frames.sizes)
                if self.config.split:  # all parts of a sample are in one shard
                    n = int(np.searchsorted(records.samples.position, records.samples.position[n - 1], "right"))
                if full:
                    stop = self._bounds.index(int(records.samples.position[n - 1])) + 1
                    rejects = [r for r in rejects if self._bounds.index(r.position) < stop]
                    left_out = self._between(left_out, start, stop)
                opened.append(frames, n)
                check_intact()
                shard.add(records, n, int(frames.sizes[:n].sum()))
        if rejects:
            self._publisher.log(rejects)
            shard.rejects += len(rejects)
            shard.replaced += sum(r.there for r in rejects)
        if len(left_out):
            self._publisher.log_left_out(left_out)
            shard.left_out += len(left_out)
        self._next = shard.stop = stop
        self.reject_counter.add(stop - start, rejects)
        if self._bounds.complete(start, stop, shard.bytes, shard.samples):
            self._close_shard()
        return stop

    @property
    def copies(self) -> int:
        """Number of copies of a large record that are in memory while the record is written; see `Writer.copies`."""
        return self._writer.copies

    def _over_budget(self, records: Records) -> list[Refused]:
        """Return the records that would exceed the memory budget while they are written."""
        if self._memory is None or not self.copies or not len(records):
            return []
        sizes = np.sum([b.sizes * b.dtype.itemsize for b in records.fields.values()], axis=0)
        needs = sizes * (1 + self.copies)
        return [
            Refused(i, "too_large", f"a record of {sizes[i] / 2**20:.1f} MiB takes {needs[i] / 2**20:.0f} MiB of "
                    f"memory while it is written as {self._writer.name}, the budget is {self._memory / 2**20:.0f} MiB; "
                    "raise pipeline.memory.host, then run `dali-run retry-failed`")
            for i in np.flatnonzero((sizes >= base.LARGE) & (needs > self._memory)).tolist()
        ]  # fmt: skip

    def _background_weight(self, shard: _OpenShard, records: Records) -> int:
        """Decide whether a background thread converts ("frames") ``records`` to the format's bytes. Return 0 if the
        calling thread does it. Otherwise return the size of the records in bytes, which counts in the background
        thread's queue. That thread takes over a shard at its first large records, unless the size of records decides
        where the shard ends."""
        if not self._writer.independent or self.config.bytes is not None:
            return 0
        nbytes = sum(int(b.sizes.sum()) * b.dtype.itemsize for b in records.fields.values())
        return nbytes if nbytes >= base.LARGE else int(shard.framed is not None)

    def _frame_in_background(self, shard: _OpenShard, work: Callable[[], object], weight: int) -> None:
        """Enqueue ``work`` for the background thread that converts ("frames") all records of this shard to the format's
        bytes. ``weight``: number of bytes that the work keeps in memory."""
        frames = self._publisher.workers.frames
        if shard.thread is None:
            shard.thread = frames.least_busy()
            shard.files.frame_in_background()
        shard.framed = frames.put(work, weight, shard.thread, shard.files)

    def _row(self, records: Records, refused: Refused) -> RejectRow:
        origin = records.samples.origin(refused.at)
        return RejectRow(
            int(records.samples.position[refused.at]), origin.key, origin.source, origin.record, origin.offset,
            f"write.{self._writer.name}", refused.code, refused.message,
            part=-1 if records.samples.part is None else int(records.samples.part[refused.at]),
        )  # fmt: skip

    # -- shards -------------------------------------------------------------------------------------------------

    def _open_shard(self, start: int) -> _OpenShard:
        files = ShardFiles(
            self.config.path, self._bounds.stem(start, self._shards), f"{self._output_files.tag}{os.getpid()}",
            self._bounds.expected(start), self._state, self._output_files.part is None, self._publisher.workers,
            self.config.sha256 or self._journal.contents.version == 1,
        )  # fmt: skip
        files.carry = self._carry
        self._shard = _OpenShard(files, None, start, start)
        return self._shard

    def _opened(self, shard: _OpenShard) -> Shard:
        """Return the writer's `Shard` object for ``shard``. The first call, for the first record, creates its files."""
        if shard.opened is None:
            shard.opened = self._writer.open(shard.files, self.config.fields)
        return shard.opened

    def _close_shard(self) -> None:
        """Close the open shard and pass it to the publisher."""
        shard = self._shard
        assert shard is not None
        # If names state a count, or if there is no other shard, a shard without samples is published too.
        has_files = bool(shard.samples or not self.config.by_content or not self._shards)
        if has_files:
            opened = self._opened(shard)
            if shard.framed is None:
                opened.close()
            else:
                self._frame_in_background(shard, lambda: _close(opened, shard.files), 1)
        self._shard = None
        self._shards += 1
        found = (shard.samples, shard.rejects, shard.left_out)
        self._totals = [before + n for before, n in zip(self._totals, found, strict=True)]
        entry = shard.entry(self._publisher.logged, copy.deepcopy(self._carry))
        if self.unplaced and not self._journal.entries:
            entry["unplaced"] = sum(self.unplaced.values())
        self._publisher.take(shard.files, entry, has_files=has_files, framed=shard.framed)

    # -- the end ------------------------------------------------------------------------------------------------

    def finish(self, report: Mapping[str, Any] | None = None) -> None:
        """Publish the last shard, the report and the manifest. An output that was finished before is not changed."""
        if self.finished:
            self.abort()
            return
        with self._guard():
            if not self._journal.done:
                self._finish_shards()
            if self._led:
                self.abort()
                return
            if report is not None:
                replace(self._output_files.report, encode_json(report, indent=2), self._output_files)
            if self._output_files.addition is not None:
                publish_addition(self.config.path, self._output_files)
            else:
                contents = self._journal.contents
                inputs = (
                    self._output_files.inputs if self._output_files.part is None else None
                )  # one file for all parts
                manifest = build_manifest(contents, self._output_files.rejects, self._output_files.left_out, inputs)
                if self._output_files.part is None:
                    publish_manifest(self.config.path, manifest, self._output_files)
                else:
                    replace(self._output_files.manifest, manifest, self._output_files)
            if self._output_files.part is not None:
                merge_parts(self.config.path, self._output_files)
        self.abort()

    def _finish_shards(self) -> None:
        if self._bounds.stop is not None and self._next != self._bounds.stop:
            raise JobError(
                f"the job ended at position {self._next} of {self._bounds.stop}; run the same command again: it "
                "continues"
            )
        self.reject_counter.finish()
        if (
            self._shard is None
            and self._shards == 0
            and self._output_files.part is None
            and not self._output_files.addition
        ):
            self._open_shard(self._bounds.start)  # an empty data set still has a readable output
        if self._shard is not None:
            self._close_shard()
        self._publisher.finish(self._next)

    def abort(self) -> None:
        """Stop writing: publish complete shards, remove others, release the lock. The job can be resumed."""
        if self._closed:
            return
        unfinished, self._shard = self._shard, None
        self._publisher.stop([] if unfinished is None else [unfinished.files])
        self._closed = True
        self._publisher.close()
        release_locks(self._output_files, self._lock)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Context manager that closes the output after any error, so that nothing is added to incomplete files."""
        try:
            with job_errors():
                yield
        except BaseException:
            self.abort()
            raise


def _put(shard: Shard, records: Records, check_intact: Callable[[], None]) -> None:
    """Convert ``records`` to the format's bytes and write them to the shard."""
    shard.append(shard.frame(records), len(records))
    check_intact()


def _close(shard: Shard, files: ShardFiles) -> None:
    """Write the end of a shard, such as its index, and declare that no other writes follow."""
    shard.close()
    files.seal()


@dataclass(slots=True)
class _OpenShard:
    files: ShardFiles
    opened: Shard | None
    start: int
    stop: int
    samples: int = 0
    rejects: int = 0
    left_out: int = 0
    replaced: int = 0
    """Number of lines of the reject log whose sample was replaced by another one, or written although damaged."""
    bytes: int = 0
    first_key: str | None = None
    last: tuple[Samples, int] | None = None
    """The last sample written to the shard, as (samples, index); the journal gets its key in the end."""
    thread: int | None = None
    """Number of the framing thread (which converts records to the format's bytes) that does all work on this shard;
    None until there is work for one."""
    framed: Future[None] | None = None
    """Last task on this shard in the queue of a framing thread; None if there was none."""

    def add(self, records: Records, n: int, nbytes: int) -> None:
        """Count the first ``n`` of ``records`` as written to the shard, with ``nbytes`` (0 if sizes do not matter)."""
        self.samples += n
        self.bytes += nbytes
        if self.first_key is None:
            self.first_key = records.samples.origin(0).key
        self.last = records.samples, n - 1

    def entry(self, log_sizes: Mapping[str, int], carry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the shard's entry for the journal; its list of files is filled in when they are published."""
        return {
            "shard": self.files.stem,
            "positions": [self.start, self.stop],
            "samples": self.samples,
            "rejects": self.rejects,
            **({"replaced": self.replaced} if self.replaced else {}),
            **({"left_out": self.left_out} if self.left_out else {}),
            "first_key": self.first_key,
            "last_key": None if self.last is None else self.last[0].origin(self.last[1]).key,
            "files": [],
            **log_sizes,
            "carry": carry,
        }
