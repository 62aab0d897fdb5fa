"""Run jobs whose file operations fail, one after the other."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from dali_run.ops.errors import JobError
from dali_run.writers.bytes import files_io
from tests.kit.writers import JOBS, Job, digest
from tests.writers.shards.crash import check_final


class Failing:
    """Hook that fails file operation number ``at`` and, with ``lasting``, all later ones that need disk space."""

    def __init__(self, at: int, code: int, lasting: bool) -> None:
        self.at, self.code, self.lasting, self.n = at, code, lasting, 0
        self.failed = False
        self.lock = threading.Lock()

    def __call__(self, operation: str, path: str) -> int | None:
        with self.lock:
            self.n += 1
            now = self.n == self.at
            now = now or (self.lasting and self.failed and operation in ("open", "write", "mkdir", "fsync"))
            self.failed = self.failed or now
        if now:
            raise OSError(self.code, os.strerror(self.code), path)
        return 5000


def failure(job: Job, path: Path) -> str | None:
    try:
        job.run(path)
    except JobError as e:
        return str(e)
    return None


def inject(name: str, root: Path, code: int, lasting: bool, step: int) -> int:
    """Run a job again and again: operation 1, 1 + step, ... fails, and the job is resumed after each failure, until it
    succeeds. Return the number of failures."""
    job = JOBS[name]
    job.run(root / "expected")
    expected = digest(root / "expected")
    at = 1
    while True:
        path = root / f"out{at}"
        hook = Failing(at, code, lasting)
        files_io.set_hook(hook)
        message = failure(job, path)
        files_io.set_hook(None)
        if message is None:
            # Only operations after everything is published may fail without an error: removing temporary files.
            assert not hook.failed or (path / "manifest.json").exists()
        else:
            assert errno.errorcode[code] in message
            assert str(root) in message
            assert "run the same command again" in message
        if path.exists():
            check_final(path, expected)
        job.run(path)
        assert digest(path) == expected, f"after {errno.errorcode[code]} at operation {at}"
        if not hook.failed:
            return at // step
        at += step


def ended_at(nth: int, work: Callable[[], int]) -> int:
    """Run ``work``, which returns an exit code, in a process that exits with 77 before its ``nth`` file operation.
    Return the exit code."""
    left = [nth]

    def die(operation: str, path: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            os._exit(77)

    pid = os.fork()
    if pid == 0:
        files_io.set_hook(die)
        try:
            os._exit(work())
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
