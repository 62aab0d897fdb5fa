"""Publish closed shards: they get their final names and the journal gets their lines, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ..base import ShardFiles
from ..bytes import files_io
from ..bytes.background import WriterThreads
from ..bytes.files_io import File
from .journal import Journal
from .left_out import LeftOutRows
from .lock import Lock
from .manifest import OutputFiles
from .rejects import RejectRow


class Publisher:
    """Publishes complete shards: makes their files durable, gives them their final names, and then records them in logs
    and journal. `Output` creates, calls and closes it."""

    def __init__(self, output_files: OutputFiles, journal: Journal, lock: Lock, waiting: int) -> None:
        """``waiting``: limit on the bytes that wait to be written."""
        self.workers = WriterThreads(waiting)
        self.rejects: File | None = None
        """File of the reject log, rejects.jsonl; None until `Output` has opened it."""
        self.left_out: File | None = None
        """File of the log of samples that are left out on purpose, left_out.jsonl; None if the job leaves none out."""
        self._output_files = output_files
        self._journal = journal
        self._lock = lock
        self._waiting: list[ShardFiles] = []
        """Files of the closed shards that the journal does not list yet, because they wait to be published."""

    def check(self) -> None:
        """Check that no background work has failed, and renew the lock in a store. Raises the first failure."""
        self.workers.check()
        if self._output_files.mirror is not None:
            self._output_files.mirror.beat()

    def log(self, rows: Sequence[RejectRow]) -> None:
        """Add lines to the reject log."""
        self._log.write("".join(r.line() for r in rows).encode())

    def log_left_out(self, rows: LeftOutRows) -> None:
        """Add lines to the log of samples that are left out on purpose."""
        if self.left_out is None:
            raise JobError("internal: samples were left out by a job that leaves none out")
        self.left_out.write("".join(rows.lines).encode("ascii"))

    @property
    def logged(self) -> dict[str, int]:
        """Sizes of the logs in bytes, under the keys that journal entries use, such as ``rejects_size``."""
        left_out = {} if self.left_out is None else {"left_out_size": self.left_out.size}
        return {"rejects_size": self._log.size, **left_out}

    @property
    def _logs(self) -> list[File]:
        return [self._log] if self.left_out is None else [self._log, self.left_out]

    @property
    def _log(self) -> File:
        assert self.rejects is not None
        return self.rejects

    def take(
        self, files: ShardFiles, entry: dict[str, Any], *, has_files: bool, framed: Future[None] | None = None
    ) -> None:
        """Publish a closed shard, and add its ``entry`` to the journal. If other threads still write its files, a
        background thread publishes it when they have finished, in the order of the calls. ``framed``: the last task
        that writes the shard. Without ``has_files`` the shard is only an entry in the journal."""
        pending = framed is not None or files.seal()
        self._waiting.append(files)
        if pending or not self.workers.publishing.idle:
            self.workers.publishing.put(lambda: self._publish(files, entry, has_files, framed))
        else:
            self.workers.check()
            self._publish(files, entry, has_files)

    def _publish(
        self, files: ShardFiles, entry: dict[str, Any], has_files: bool, framed: Future[None] | None = None
    ) -> None:
        if framed is not None:
            framed.result()
        self._check_there()
        if has_files:
            entry["files"] = [i.listed(self._journal.contents.version) for i in files.publish()]
        self._put([self._output_files.root / info["name"] for info in entry["files"]])
        for log in self._logs:
            log.sync()
        self._journal.append(entry)
        try:
            self._check_there()
        except JobError:
            if self._journal.removed:  # removed meanwhile: no journal lists this shard, so it must not stay
                for info in entry["files"]:
                    files_io.remove(self._output_files.root / info["name"])
            raise
        self._put([*(log.path for log in self._logs), self._output_files.journal])
        if self._output_files.mirror is not None:
            for info in entry["files"]:
                self._output_files.mirror.forget(info["name"])
        self._waiting.remove(files)

    def _check_there(self) -> None:
        """Check that the output still exists and belongs to this job. Raises JobError if it was removed while the job
        writes it, or if another job also writes it."""
        self._lock.check()
        watched: list[Journal | File] = [self._journal, *self._logs]
        for file in watched:
            if file.removed:
                raise JobError(
                    f"{self._output_files.root}: the output was removed while the job wrote it ({file.path.name} is "
                    "gone); run the same command again: it starts anew"
                )

    def _put(self, paths: Sequence[Path]) -> None:
        """Upload files to the output's store, if there is one. Raises JobError if the job has lost its lock."""
        if self._output_files.mirror is not None and paths:
            self._output_files.mirror.check()
            self._output_files.put(*paths)

    def finish(self, stop: int) -> None:
        """Wait until all shards are published. Then record in the journal that the job is done up to ``stop``."""
        self.workers.publishing.wait()
        self._journal.append({"done": True, "stop": stop})
        self._put([*(log.path for log in self._logs), self._output_files.journal])

    def stop(self, unfinished: Iterable[ShardFiles] = ()) -> None:
        """Publish complete shards, remove the files of other shards and of ``unfinished``, and end the threads."""
        self.workers.stop(JobError("internal: the output was closed"))
        left, self._waiting = [*self._waiting, *unfinished], []
        for files in left:
            with contextlib.suppress(OSError):  # the next run removes leftovers
                files.discard()

    def close(self) -> None:
        """Close the reject log and the journal."""
        for file in (self.rejects, self.left_out, self._journal):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()
