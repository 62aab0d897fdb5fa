"""I/O errors at every file operation: a JobError that names path and errno, nothing half-written, resumable."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dali_run.ops.errors import JobError
from dali_run.writers import base
from dali_run.writers.bytes import files_io
from dali_run.writers.formats import columns
from dali_run.writers.shards.output import Output
from tests.kit.jobs.faults import Failing, inject
from tests.kit.writers import JOBS, PARQUET_CARD


@pytest.fixture(autouse=True)
def no_hook() -> object:
    yield
    files_io.set_hook(None)


@pytest.mark.parametrize("lasting", [False, True])
def test_disk_full_at_every_operation(tmp_path: Path, lasting: bool) -> None:
    assert inject("tfrecord", tmp_path, errno.ENOSPC, lasting, 2) > 40


@pytest.mark.parametrize("name", ["tfrecord", "lmdb_bytes", "webdataset", "numpy"])
def test_errors_of_other_threads(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, with every write and every shard left to another thread."""
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(columns, "LOOSE", 0)
    assert inject(name, tmp_path, errno.EIO, False, 3) > 10


@pytest.mark.parametrize("name", ["lmdb", "webdataset", "numpy", "recordio", "files", "mds_bytes", PARQUET_CARD])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_errors_for_every_writer(tmp_path: Path, name: str, code: int) -> None:
    assert inject(name, tmp_path, code, code == errno.EROFS, 13 if name != "files" else 53) >= 6


def test_the_message_says_what_to_do(tmp_path: Path) -> None:
    files_io.set_hook(Failing(12, errno.ENOSPC, True))
    with pytest.raises(JobError, match=r"cannot write .*train-00000.*No space left on device \(ENOSPC\); correct that"):
        JOBS["tfrecord"].run(tmp_path)


def test_a_publisher_that_failed_in_the_background_ends_the_job_at_the_next_batch(tmp_path: Path) -> None:
    """Not at the next shard, hours of computing later."""
    job = JOBS["one_shard"]
    with Output.open(job.config(tmp_path), {}, total=job.total) as out:
        out.add(0, 2, *job.batch(0, 2))

        def fail() -> None:
            raise JobError("the disk is full")

        with pytest.raises(JobError, match="full"):
            out._publisher.workers.publishing.put(fail).result()
        with pytest.raises(JobError, match="the disk is full"):
            out.add(2, 4, *job.batch(2, 4))
