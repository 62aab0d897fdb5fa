"""Locks where file systems lose them, or people remove them."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dali_run.ops.errors import JobError
from dali_run.writers.bytes import files_io
from dali_run.writers.shards.lock import Lock, break_lock
from tests.kit.writers import JOBS, digest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    files_io.set_hook(None)


SECOND = """
import fcntl, sys
from pathlib import Path
from dali_run.ops.errors import JobError
from dali_run.writers.shards import lock
fcntl.lockf = lambda *_: None
lock._PATIENCE = 200
read = lock._read_owner
def tell(fd):
    owner = read(fd)
    Path(sys.argv[2]).touch()
    return owner
lock._read_owner = tell
try:
    lock.Lock(Path(sys.argv[1]))
    print("taken")
except JobError as e:
    print(e)
"""


def test_where_locks_are_lost_one_of_two_jobs_that_start_at_once_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes when the first has made its file and has not yet said whose it is."""
    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)
    seen, others = tmp_path / "seen", []

    def meanwhile(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(".lock"):
            files_io.set_hook(None)
            argv = [sys.executable, "-c", SECOND, path, str(seen)]
            others.append(subprocess.Popen(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE))
            while not seen.exists():
                assert others[0].poll() is None
                time.sleep(0.01)

    files_io.set_hook(meanwhile)
    lock = Lock(tmp_path / ".dali-run.lock")
    with others[0] as other:
        said, _ = other.communicate()
    assert f"is being written by process {os.getpid()} on" in said
    lock.check()
    lock.release()
    assert not lock.path.exists()


def test_a_lock_that_has_become_anothers_stays(tmp_path: Path) -> None:
    path = tmp_path / ".dali-run.lock"
    for text in ('{"host": "elsewhere", "pid": 7}', ""):
        lock = Lock(path)
        path.unlink()
        path.write_text(text)
        with pytest.raises(JobError, match="was removed"):
            lock.check()
        lock.release()
        assert path.read_text() == text
        path.unlink()
    assert not break_lock(path, {"host": "elsewhere", "pid": 7})
    assert not path.exists()


def test_a_job_whose_lock_was_removed_by_hand_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was removed: what the journal tells of is there, and the bytes are those of a quiet run."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no power is lost here
    job = JOBS["tfrecord"]
    job.run(tmp_path / "whole")
    steps = itertools.count(1)
    files_io.set_hook(lambda *_: next(steps) and None)
    job.run(tmp_path / "counted")
    last = next(steps)
    for at in range(3, last, 3):
        out, now = tmp_path / f"out{at}", itertools.count(1)

        def remove(*_: object, at: int = at, out: Path = out, now: Iterator[int] = now) -> None:
            if next(now) == at:
                (out / ".dali-run.lock").unlink(missing_ok=True)

        files_io.set_hook(remove)
        with contextlib.suppress(JobError):
            job.run(out)
        files_io.set_hook(None)
        job.run(out)
        assert digest(out) == digest(tmp_path / "whole"), f"removed at operation {at} of {last}"
