"""I/O errors at every file operation: a JobError that names path and errno, nothing half-written, resumable."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from dali_run.ops.errors import JobError
from dali_run.writers import base
from dali_run.writers.bytes import files_io
from dali_run.writers.formats import columns
from tests.kit.writers import JOBS, PARQUET, Job, digest
from tests.writers.shards.crash import check_final


class Failing:
    """The ``at``-th operation fails, and with ``lasting`` all later ones that need space."""

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


@pytest.fixture(autouse=True)
def no_hook() -> object:
    yield
    files_io.set_hook(None)


def failure(job: Job, path: Path) -> str | None:
    try:
        job.run(path)
    except JobError as e:
        return str(e)
    return None


def inject(name: str, root: Path, code: int, lasting: bool, step: int) -> int:
    """Fail operation 1, 1 + step, ... until the job runs through; after each, resume. Returns how many there were."""
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
            # Only what cannot be lost may fail unheard: tidying up after everything is published.
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


@pytest.mark.parametrize("lasting", [False, True])
def test_disk_full_at_every_operation(tmp_path: Path, lasting: bool) -> None:
    assert inject("tfrecord", tmp_path, errno.ENOSPC, lasting, 2) > 40


@pytest.mark.parametrize("name", ["tfrecord", "lmdb_bytes", "webdataset", "numpy"])
def test_errors_of_other_threads(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, with every write and every shard left to another thread."""
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(columns, "LOOSE", 0)
    assert inject(name, tmp_path, errno.EIO, False, 3) > 10


@pytest.mark.parametrize("name", ["lmdb", "webdataset", "numpy", "recordio", "files", "tfrecord_both", PARQUET])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_errors_for_every_writer(tmp_path: Path, name: str, code: int) -> None:
    assert inject(name, tmp_path, code, code == errno.EROFS, 13 if name != "files" else 53) >= 6


def test_the_message_says_what_to_do(tmp_path: Path) -> None:
    files_io.set_hook(Failing(12, errno.ENOSPC, True))
    with pytest.raises(
        JobError, match=r"cannot write .*train-00000.*No space left on device \(ENOSPC\); put that right"
    ):
        JOBS["tfrecord"].run(tmp_path)
