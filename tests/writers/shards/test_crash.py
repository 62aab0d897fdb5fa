"""kill -9 and power loss at file operations all over a job: the resumed output is the uninterrupted one's, to the byte.

`make torture` does the same at every operation of every kind of job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.jobs.slow import ROOT, start_slow
from tests.kit.long import thinned
from tests.kit.writers import JOBS, PARQUET, digest


@pytest.mark.parametrize(
    ("name", "behind"),
    [*((n, False) for n in thinned(("tfrecord", "lmdb", "webdataset_bytes", "numpy", "files", "recordio"), 4)),
     *((n, True) for n in thinned(("lmdb_keys", "tfrecord_both", "webdataset"), 3)),
     *(pytest.param(*PARQUET.values, behind, marks=PARQUET.marks) for behind in (False, True))],
)  # fmt: skip
def test_killed_jobs_resume_to_the_same_bytes(tmp_path: Path, name: str, behind: bool) -> None:
    command = [sys.executable, "-m", "tests.writers.shards.crash", name, str(tmp_path), "--points", "10",
               "--double", "1", *["--behind"] * behind]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] == 22


def test_killed_from_outside_while_writing(tmp_path: Path) -> None:
    JOBS["tfrecord"].run(tmp_path / "expected")
    with start_slow("tfrecord", tmp_path / "out", hold=True) as process:
        while not list((tmp_path / "out").glob("*-00001-*")):
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "out/manifest.json").exists()
    JOBS["tfrecord"].run(tmp_path / "out")
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")
